"""The plane in a real browser: fingers and keys move what is drawn, predictions follow, and basins are painted."""

from __future__ import annotations

import numpy as np
import pytest

from browser_page import (
    DESKTOP,
    PHONE,
    apply,
    drag,
    handle,
    lab_state,
    open_lab,
    predicted_limits,
    press,
    resize,
    settle,
    wait_for,
)

WHOLE_PICTURE_SECONDS = 60
JOINT = {"tokens": [[[0, 0], [1, 1]], [[0, 0], [1, -1]]], "labels": [1, -1], "train": "both"}


def grip(browser, name):
    """The circle in which a pointer holds a point, without its label."""
    return handle(browser, name).find_element("css selector", ".hit")


def square_side(browser):
    """The width of the plane's square in pixels."""
    return browser.execute_script(
        "return document.querySelector('#plane .plane-picture').getBoundingClientRect().width"
    )


def focused(browser):
    """The name of the point that has the focus."""
    return browser.execute_script("return document.activeElement.dataset.handle ?? null")


def tokens(browser):
    problem = lab_state(browser)["problem"]
    return np.array(problem["tokens"] if "tokens" in problem else problem["keys"])


def enter_by_tab(browser):
    """Press Tab from before the plane until a point of it has the focus."""
    from selenium.webdriver.common.keys import Keys

    browser.execute_script("document.getElementById('content').focus()")
    for _ in range(15):
        press(browser, Keys.TAB)
        if focused(browser) is not None:
            return
    pytest.fail("Tab does not reach the plane")


# ---- moving


def test_fingers_drag_a_token_on_a_phone(browser, lab_file):
    resize(browser, PHONE)
    open_lab(browser, lab_file)
    before, limits = tokens(browser), predicted_limits(browser)
    node = handle(browser, "token:0:1")
    browser.execute_script("arguments[0].scrollIntoView({ block: 'center' })", node)
    box = browser.execute_script(
        """
        const box = arguments[0].querySelector(".hit").getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2, box.width];
        """,
        node,
    )
    x, y, width = box
    assert width >= 44  # what a finger hits
    for kind, at in [("touchStart", (x, y)), *[("touchMove", (x, y - 8 * k)) for k in range(1, 8)], ("touchEnd", None)]:
        points = [] if at is None else [{"x": at[0], "y": at[1]}]
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    settle(browser)
    half, side = lab_state(browser)["view"]["half"], square_side(browser)
    assert tokens(browser)[0, 1, 1] == pytest.approx(before[0, 1, 1] + 56 * 2 * half / side, abs=0.05, rel=0.0)
    assert predicted_limits(browser) != limits
    resize(browser, DESKTOP)


def test_tokens_can_be_edited_by_keyboard_alone(lab):
    from selenium.webdriver.common.keys import Keys

    enter_by_tab(lab)
    assert focused(lab) == "token:0:0"
    press(lab, "]")
    assert focused(lab) == "token:0:1"
    before, half = tokens(lab), lab_state(lab)["view"]["half"]
    press(lab, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_UP)
    step = 2 * half / 100
    assert tokens(lab)[0, 1] == pytest.approx(before[0, 1] + [2 * step, step], abs=0.3 * step, rel=0.0)
    press(lab, Keys.ARROW_UP, modifier=Keys.SHIFT)
    moved = tokens(lab)
    assert moved[0, 1, 1] == pytest.approx(before[0, 1, 1] + 11 * step, abs=0.3 * step, rel=0.0)
    press(lab, "z", modifier=Keys.CONTROL)
    assert (tokens(lab) != moved).any()
    assert focused(lab) == "token:0:1"
    press(lab, Keys.ENTER)
    assert (lab_state(lab)["chosen"]["input"], lab_state(lab)["chosen"]["token"]) == (0, 1)
    press(lab, Keys.END, Keys.ENTER)
    last = len(predicted_limits(lab)) - 1
    assert focused(lab) == f"limit:{last}"
    assert lab_state(lab)["chosen"]["limit"] == last
    count = len(tokens(lab)[0])
    press(lab, Keys.HOME, Keys.DELETE)
    assert len(tokens(lab)[0]) == count - 1
    assert focused(lab) == "token:0:0"
    press(lab, Keys.TAB)  # one stop for the whole plane
    assert focused(lab) is None


def test_the_initial_head_can_be_moved_in_joint_training(lab):
    from selenium.webdriver.common.keys import Keys

    apply(lab, "(state) => ({ ...state, problem: arguments[0] })", JOINT)
    lab.execute_script("arguments[0].focus()", handle(lab, "head"))
    press(lab, Keys.ARROW_RIGHT, modifier=Keys.SHIFT)
    view = lab_state(lab)["view"]
    assert lab_state(lab)["problem"]["start_head"] == pytest.approx([0.2 * view["half"], 0], abs=0.02, rel=0.0)


def test_every_point_has_a_readable_position(lab):
    names = lab.execute_script(
        "return [...document.querySelectorAll('#plane [data-handle]')].map((node) => node.getAttribute('aria-label'))"
    )
    assert names
    assert all(names)
    assert any("token 1 of input 0, score 0.9, at (1, 0)" in name for name in names)


# ---- starts, view, basins


def test_a_double_click_adds_a_start(lab):
    from selenium.webdriver.common.action_chains import ActionChains

    picture = lab.find_element("css selector", "#plane .plane-picture")
    before = len(lab_state(lab)["starts"])
    ActionChains(lab).move_to_element_with_offset(picture, -120, 150).double_click().perform()
    settle(lab)
    starts = lab_state(lab)["starts"]
    assert len(starts) == before + 1
    assert starts[-1][0] < 0
    assert starts[-1][1] < 0


def test_the_wheel_zooms_once_the_plane_has_the_focus(lab):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    half = lab_state(lab)["view"]["half"]
    grip(lab, "token:0:1").click()
    origin = ScrollOrigin.from_element(lab.find_element("css selector", "#plane .plane-picture"))
    ActionChains(lab).scroll_from_origin(origin, 0, -300).perform()
    settle(lab)
    assert lab_state(lab)["view"]["half"] < half


def basins_painted(browser):
    from selenium.webdriver.support.ui import WebDriverWait

    status = browser.find_element("css selector", "#plane-view .basin-status")
    WebDriverWait(browser, WHOLE_PICTURE_SECONDS).until(lambda _: status.text.startswith("Every start"))
    return [entry.text for entry in browser.find_elements("css selector", "#plane-view .basin-shares li")]


def test_basins_are_painted_with_their_shares(browser, lab_file):
    open_lab(browser, lab_file)
    apply(browser, "(state) => ({ ...state, view: { ...state.view, map: 'window', half: 4 } })")
    browser.find_element("css selector", "#plane-view input[name=basins]").click()
    shares = basins_painted(browser)
    assert len(shares) == 2
    labels = np.array(browser.execute_script("return Array.from(lab.basins().labels)"))
    share = 100 * np.mean(labels[labels >= 0] == 0)
    assert f"→ 0 ★: {share:.0f} %" in shares[0]
    assert f"→ 1: {100 - share:.0f} %" in shares[1]
    above, below = browser.execute_script(
        """
        const canvas = document.getElementById("basins");
        const at = (x, y) => Array.from(canvas.getContext("2d").getImageData(x * canvas.width, y * canvas.height, 1, 1).data);
        return [at(0.1, 0.4), at(0.9, 0.65)];
        """
    )
    assert above[0] > above[2]  # vermilion above, blue below
    assert below[2] > below[0]


def test_basins_without_workers_are_replaced_by_a_notice(lab):
    lab.execute_script("window.Worker = undefined")
    lab.find_element("css selector", "#plane-view input[name=basins]").click()
    wait_for(lab, "document.querySelector('#plane-view .basin-status').textContent.includes('no workers')")


def test_basins_follow_the_problem_and_a_notice_replaces_missing_ones(lab):
    lab.find_element("css selector", "#plane-view input[name=basins]").click()
    before = basins_painted(lab)
    drag(lab, grip(lab, "token:0:1"), (0, -60))
    after = basins_painted(lab)
    assert after != before
    adam = "{ name: 'adam', size: 0.1, betas: [0.9, 0.99], eps: 0 }"
    apply(lab, f"(state) => ({{ ...state, problem: {{ ...state.problem, optimizer: {adam}, steps: 500 }} }})")
    assert basins_painted(lab)
    apply(lab, "(state) => ({ ...state, problem: { ...state.problem, scores: [[1, 1, 1]] } })")
    assert "no limit" in lab.find_element("css selector", "#plane-view .basin-status").text
