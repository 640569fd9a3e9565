"""The first five minutes in the lab: it opens moving, its verdict names a token, and follows what is dragged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from browser_page import (
    PHONE,
    accessibility_violations,
    drag,
    lab_state,
    open_page,
    overflowing,
    prefer,
    resize,
    settle,
    wait_for,
)
from marginlens.lab import write_lab

LAPTOP, SMALL_LAPTOP, TABLET = (1440, 900), (1280, 720), (900, 1100)
FIRST_VERDICT_MS = 2000
CHANGED_VERDICT_MS = 150
GUESSED = (1, 2)  # scenes whose sentence would give the answer away


@pytest.fixture(scope="module")
def greeting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab as `marginlens lab` writes it."""
    return write_lab(tmp_path_factory.mktemp("lab") / "lab.html")


def opened(browser, path, size=LAPTOP, fragment=""):
    resize(browser, size)
    open_page(browser, path, fragment)
    wait_for(browser, "window.lab?.store !== undefined")


def is_in_view(browser, selector):
    """Whether all of an element is on the screen, with nothing above it."""
    return browser.execute_script(
        """
        const node = document.querySelector(arguments[0]), box = node.getBoundingClientRect();
        const over = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
        return box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth && node.contains(over);
        """,
        selector,
    )


def largest_texts(browser):
    """The elements with a text of their own that is shown, by the size of their letters, the largest first: [id, pixels]."""
    return browser.execute_script(
        """
        const sizes = [];
        for (const node of document.body.querySelectorAll("*")) {
          const isText = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim() !== "");
          if (isText && node.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
            sizes.push([node.id, parseFloat(getComputedStyle(node).fontSize)]);
        }
        return sizes.sort((a, b) => b[1] - a[1]);
        """
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [LAPTOP, SMALL_LAPTOP, PHONE], ids=["laptop", "small", "phone"])
def test_the_winner_is_the_largest_text(browser, greeting, size, scheme):
    prefer(browser, color_scheme=scheme)
    opened(browser, greeting, size)
    (name, largest), (_, second), *_ = largest_texts(browser)
    assert name == "headline"
    assert largest > second


# Drags the chosen start along a line through the whole picture; gives how far the plane moved, and what was said on the way.
DRAGGED = """
    const [preset, done] = arguments;
    const state = lab.store.state, tops = [], said = new Set(), half = state.view.half;
    const turn = (k) => {
      if (k > 40) return done([Math.max(...tops) - Math.min(...tops), said.size]);
      const start = [half * (k / 20 - 1), half * (0.6 * Math.sin(k))];
      lab.store.apply("drag", (before) => ({ ...before, starts: [start, ...before.starts.slice(1)] }), { gesture: "drag" });
      requestAnimationFrame(() => requestAnimationFrame(() => {
        tops.push(document.querySelector(".plane-square").getBoundingClientRect().top + scrollY);
        said.add(document.getElementById("headline").textContent);
        turn(k + 1);
      }));
    };
    turn(0);
"""


@pytest.mark.parametrize("fragment", ["#the-start-decides", "#A-F8", "#X-B"])
@pytest.mark.parametrize("size", [LAPTOP, TABLET, PHONE], ids=["laptop", "tablet", "phone"])
def test_the_plane_stays_under_the_hand_while_winners_change(browser, greeting, size, fragment):
    opened(browser, greeting, size, fragment)
    settle(browser)
    moved, said = browser.execute_async_script(DRAGGED, fragment)
    assert moved <= 1
    assert said >= 2


def test_the_story_begins_at_its_first_scene_and_notices_what_is_done(browser, greeting):
    opened(browser, greeting)
    wait_for(browser, "document.querySelector('#story [aria-current=step]') !== null")
    settle(browser)
    assert browser.execute_script("return document.querySelector('#story ol').scrollTop") == 0
    current = browser.find_element("css selector", "#story [aria-current=step]")
    assert current.text.startswith("1 of 6 Start")
    assert current == browser.find_element("css selector", "#story li:first-child")
    for mark in ("Dots are tokens", "Coloured areas are starts", "The arrow is p"):
        assert mark in current.text
    height = current.size["height"]
    drag(browser, browser.find_element("css selector", '[data-handle="start:0"] .hit'), (330, 0))
    wait_for(browser, "document.querySelector('#story [aria-current] .task.done') !== null")
    assert current.find_element("css selector", ".task").text.startswith("Yes: token ")
    assert current.find_element("css selector", ".sentence").is_displayed()
    assert abs(current.size["height"] - height) <= 1
    following = browser.find_element("xpath", "//*[@id='story']//button[contains(., 'Next')]")
    assert "primary" in following.get_attribute("class")
    following.click()
    wait_for(browser, "lab.state().preset === 'two-tokens'")


def test_damaged_links_are_one_sentence(browser, greeting):
    opened(browser, greeting, fragment="#garbage")
    message = "document.getElementById('message').textContent"
    wait_for(browser, f"{message} !== ''")
    assert browser.find_element("id", "message").text.startswith("This link is damaged and cannot be read")
    change = "(state) => ({ ...state, preset: 'A-F8', starts: [[0.25, 0.5]], view: { ...state.view, half: 7 } })"
    browser.execute_script(f"lab.store.apply('x', {change})")
    link = browser.execute_script("return lab.link()")
    opened(browser, greeting, fragment=link[link.index("#") :][:120])
    wait_for(browser, f"{message} !== ''")
    said = browser.find_element("id", "message").text
    assert said.startswith("This link is damaged: the end of it is missing.")
    assert lab_state(browser)["preset"] == "A-F8"


def test_basins_come_coarse_then_fine(browser, greeting):
    opened(browser, greeting)
    wait_for(browser, "lab.basins().first !== null")
    coarse = browser.execute_script("return lab.basins()")
    assert coarse["share"] < 0.5
    assert min(coarse["labels"]) >= -2  # every pixel of the picture has a colour by now
    wait_for(browser, "lab.basins().total !== null")
    times = browser.execute_script("return lab.basins()")
    assert times["first"] <= times["fine"] <= times["total"]
    assert times["fine"] < 0.9 * times["total"]


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_lab_opens_playing_with_verdict_and_play_button_visible(browser, greeting, size):
    opened(browser, greeting, size)
    assert lab_state(browser)["preset"] == "start-decides"
    assert browser.execute_script("return lab.firstPrediction") <= FIRST_VERDICT_MS
    assert browser.find_element("id", "headline").text == "Token 0 wins."
    assert browser.find_element("id", "proved").text == "Proved ✓"
    for selector in ("#headline", "#playback .play"):
        assert is_in_view(browser, selector), selector
    assert "drag me" in browser.find_element("css selector", "#plane svg").text
    wait_for(browser, "lab.runs().step > 5")
    width = browser.execute_script("return document.querySelector('.plane-picture').getBoundingClientRect().width")
    assert width >= (900 if size == LAPTOP else 330)
    assert overflowing(browser) == []


def test_lab_with_reduced_motion_stands_still(browser, greeting):
    prefer(browser, reduced_motion="reduce")
    opened(browser, greeting)
    browser.execute_async_script("setTimeout(arguments[0], 300)")
    assert browser.execute_script("return [lab.runs().isPlaying, lab.runs().step]") == [False, 0]
    prefer(browser, reduced_motion="no-preference")


# Moves what is given as a drag does, state by state, and gives the milliseconds until the verdict said something else: the shortest of
# twelve times, since the machine may be busy with other things.
MEASURED = """
    const [moves, done] = arguments, headline = document.getElementById("verdict"), times = [];
    const turn = (k) => {
      if (k === 12 * moves.length) return done(moves.map((_, j) => Math.min(...times.filter((_, t) => t % moves.length === j))));
      const before = headline.textContent, begin = performance.now();
      lab.store.apply("drag", (state) => ({ ...state, ...moves[k % moves.length] }), { gesture: `drag-${k}` });
      const look = () => {
        if (headline.textContent === before && performance.now() - begin < 5000) return requestAnimationFrame(look);
        times.push(performance.now() - begin);
        turn(k + 1);
      };
      requestAnimationFrame(look);
    };
    turn(0);
"""


def test_drags_change_the_verdict_in_time(browser, greeting):
    opened(browser, greeting)
    starts = [
        [[1.5, -0.5]],
        [[-1.0, -1.0]],
        [[2.0, 1.0]],
        [[-2.0, 0.5]],
    ]  # each leads to another token than the one before
    times = browser.execute_async_script(MEASURED, [{"starts": entry} for entry in starts])
    assert max(times) <= CHANGED_VERDICT_MS
    said = browser.find_element("id", "headline").text
    drag(browser, browser.find_element("css selector", '[data-handle="start:0"] .hit'), (330, 0))
    assert browser.find_element("id", "headline").text != said


def test_three_inputs_of_seven_tokens_are_answered_in_time(browser, greeting):
    opened(browser, greeting)
    rng = np.random.default_rng(3)
    problems = []
    for _ in range(3):
        problem = {"keys": rng.normal(size=(3, 7, 2)).round(3).tolist(), "scores": rng.random((3, 7)).round(3).tolist()}
        problems.append({"problem": {**problem, "optimizer": {"name": "normalized-gd", "size": 0.1}}, "preset": None})
    times = browser.execute_async_script(MEASURED, problems)
    assert max(times) <= CHANGED_VERDICT_MS
    said = browser.find_element("id", "headline").text
    assert "token" in said.lower() or "finite minimum" in said


def test_the_reader_guesses_before_the_answer_appears(browser, greeting):
    opened(browser, greeting)
    browser.find_element("css selector", "#story li:nth-child(2) button").click()
    wait_for(browser, "lab.state().preset === 'two-tokens'")
    for hidden in ("caption", "limits"):
        assert not browser.find_element("id", hidden).is_displayed()
    assert browser.find_element("id", "headline").text == "Where will the arrow point?"
    assert browser.find_elements("css selector", "#plane .limit") == []
    drag(browser, browser.find_element("css selector", '[data-handle="guess"] .hit'), (160, -60))
    wait_for(browser, "lab.state().view.guess === null")
    assert browser.find_element("id", "headline").text.startswith("Token 0")
    assert "away from where training ends" in browser.find_element("css selector", "#story [aria-current] .task").text
    browser.find_element("xpath", "//*[@id='story']//button[contains(., 'Next')]").click()
    wait_for(browser, "lab.state().preset === 'score-decides' && lab.state().view.guess !== null")


def test_the_story_leads_through_six_scenes(browser, greeting, axe):
    opened(browser, greeting)
    for k, name in enumerate(["start-decides", "two-tokens", "score-decides", "X-N4-linf", "A-F3a", "text"]):
        browser.find_element("css selector", f"#story li:nth-child({k + 1}) button").click()
        wait_for(browser, f"lab.state().preset === '{name}'")
        settle(browser)
        assert browser.find_element("css selector", "#story [aria-current=step]").text.startswith(str(k + 1))
        assert browser.find_element("css selector", "#story [aria-current] .task").text.endswith(".")
        assert browser.find_element("css selector", "#story [aria-current] .sentence").is_displayed() or k in GUESSED
        wait_for(browser, "document.querySelector('#curves [role=img]:not([aria-label])') === null")
        assert accessibility_violations(browser) == []


def test_scrolling_the_story_opens_its_scenes(browser, greeting):
    from selenium.webdriver.common.keys import Keys

    opened(browser, greeting)
    box = "return document.querySelector('.plane-picture').getBoundingClientRect().top"
    top = browser.execute_script(box)
    story = browser.find_element("css selector", "#story ol")
    card = browser.find_element("css selector", "#story [aria-current]")
    at = {"x": story.location["x"] + 100, "y": story.location["y"] + 50}
    wheel = {"type": "mouseWheel", "deltaX": 0, "deltaY": card.size["height"], **at}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    wait_for(browser, "lab.state().preset === 'two-tokens'")
    settle(browser)
    assert abs(browser.execute_script(box) - top) <= 1
    assert browser.find_element("css selector", "#story [aria-current]").text.startswith("2 of 6 Margin")
    browser.find_element("css selector", "#story [aria-current] button").send_keys(Keys.TAB)  # to the name of the next
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    assert lab_state(browser)["preset"] == "two-tokens"
    resize(browser, PHONE)  # where the story lies across: its scene stays
    settle(browser)
    browser.execute_async_script("setTimeout(arguments[0], 400)")
    assert lab_state(browser)["preset"] == "two-tokens"
    browser.back()
    wait_for(browser, "lab.state().preset === 'start-decides'")


def test_panels_are_tabs_for_the_keyboard(browser, greeting):
    from selenium.webdriver.common.keys import Keys

    opened(browser, greeting)
    browser.find_element("id", "panel-button-numbers").send_keys(Keys.ARROW_RIGHT)
    assert browser.find_element("id", "editor").is_displayed()
    assert not browser.find_element("id", "curves").is_displayed()
    assert browser.switch_to.active_element.get_attribute("id") == "panel-button-data"
    browser.switch_to.active_element.send_keys(Keys.END)
    assert browser.find_element("id", "settings").is_displayed()


def test_the_stage_has_large_letters_and_no_panels(browser, greeting, axe):
    opened(browser, greeting)
    small = browser.find_element("id", "headline").value_of_css_property("font-size")
    opened(browser, greeting, fragment="#stage")
    large = browser.find_element("id", "headline").value_of_css_property("font-size")
    assert float(large[:-2]) >= 1.3 * float(small[:-2])
    assert largest_texts(browser)[0] == ["headline", float(large[:-2])]
    assert largest_texts(browser)[1][1] <= 0.7 * float(large[:-2])  # it is the only large text
    assert not browser.find_element("id", "panels").is_displayed()
    assert not browser.find_element("id", "toolbar").is_displayed()
    assert browser.find_element("css selector", "#plane .band .top").is_displayed()
    assert is_in_view(browser, "#playback .play")
    assert accessibility_violations(browser) == []
    browser.execute_script("document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
    assert browser.find_element("id", "panels").is_displayed()
