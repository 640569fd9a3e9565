"""The lab from end to end, opened from its file in a real browser: move, undo, share, read it anywhere, and ask nobody for anything."""

from __future__ import annotations

import numpy as np
import pytest

from browser_page import (
    DESKTOP,
    PHONE,
    accessibility_violations,
    background_brightness,
    console_errors,
    drag,
    handle,
    lab_link,
    lab_state,
    open_lab,
    open_page,
    overflowing,
    path_ends,
    predicted_limits,
    prefer,
    press,
    problem_of,
    resize,
    settle,
    wait_for,
)
from fake_claims import fake_claim
from marginlens.arithmetic.directions import correlation
from marginlens.dynamics import descend
from marginlens.lab import permalink, presets
from marginlens.theory import locally_optimal_directions
from marginlens_papers.report import reproduce
from tolerances import ROUNDING

TABS = ("plane", "text")
PROJECTOR, NARROWEST = (2560, 1440), (340, 700)


def show_tab(browser, tab):
    browser.find_element("id", f"tab-button-{tab}").click()
    settle(browser)
    assert lab_state(browser)["tab"] == tab


def choose_example(browser, name):
    browser.find_element("css selector", f"#preset option[value='{name}']").click()
    settle(browser)


def button(browser, name):
    """The button whose name, for screen readers, begins so."""
    script = """
      return [...document.querySelectorAll("button, [role=menuitem]")].find((one) =>
        one.checkVisibility() && (one.getAttribute("aria-label") ?? one.textContent).trim().startsWith(arguments[0]));
    """
    found = browser.execute_script(script, name)
    assert found is not None, name
    return found


# ---- one file that asks nobody


def test_neither_page_nor_workers_may_ask_the_network(lab):
    address = "https://elsewhere.invalid/"
    refused = lab.execute_async_script(
        "fetch(arguments[0]).then(() => arguments[1](false), () => arguments[1](true))", address
    )
    assert refused
    assert "Content Security Policy" in " ".join(console_errors(lab))
    lab.execute_async_script(
        """
        const done = arguments[1];
        const text = `fetch("${arguments[0]}").then(() => postMessage("sent"), () => postMessage("refused"));
          addEventListener("securitypolicyviolation", (event) => postMessage(event.effectiveDirective));`;
        const said = [], worker = new Worker(URL.createObjectURL(new Blob([text])));
        worker.onmessage = ({ data }) => { said.push(data); if (said.includes("refused") && said.includes("connect-src")) done(); };
        """,
        address,
    )
    console_errors(lab)


# ---- moving things


def test_a_token_follows_the_mouse_and_the_prediction_follows_the_token(lab):
    before, limits = lab_state(lab), predicted_limits(lab)
    said = lab.find_element("id", "limits").text
    drag(lab, handle(lab, "token:0:1"), (40, 60))
    after = lab_state(lab)
    (x, y), (old_x, old_y) = after["problem"]["keys"][0][1], before["problem"]["keys"][0][1]
    assert x > old_x
    assert y < old_y  # down the screen
    assert after["problem"]["keys"][0][0] == before["problem"]["keys"][0][0]
    assert predicted_limits(lab) != limits
    assert lab.find_element("id", "limits").text != said
    agrees_with_python(lab)
    button(lab, "Undo: move token 1 of input 0").click()  # the whole drag at once
    settle(lab)
    assert lab_state(lab)["problem"] == before["problem"]
    assert predicted_limits(lab) == limits
    button(lab, "Redo").click()
    settle(lab)
    assert lab_state(lab)["problem"] == after["problem"]


def agrees_with_python(browser):
    """The limits on the page are those of the library."""
    problem = problem_of(lab_state(browser))
    theirs = locally_optimal_directions(problem.data, problem.head)
    mine = {tuple(limit["selected"]): limit for limit in predicted_limits(browser)}
    assert set(mine) == set(map(tuple, theirs.selections.tolist()))
    for selection, direction, margin in zip(theirs.selections, theirs.directions, theirs.margins, strict=True):
        limit = mine[tuple(selection.tolist())]
        assert limit["direction"] == pytest.approx(direction, rel=1e-9, abs=1e-9)
        assert limit["margin"] == pytest.approx(margin, rel=1e-9, abs=ROUNDING)


# ---- runs


def play_to_the_end(browser):
    """Press Play, by keys."""
    from selenium.webdriver.common.keys import Keys

    browser.find_element("css selector", "#playback .play").send_keys(Keys.ENTER)
    wait_for(browser, "lab.runs().step > 0 && !lab.runs().isPlaying && lab.runs().step === lab.runs().end")
    settle(browser)


def ends_in_python(state):
    """Where descent from each start ends by the library, and its limit: the nearest locally optimal direction."""
    problem = problem_of(state)
    settings = {"optimizer": problem.optimizer, "n_steps": problem.n_steps}
    ends = [descend(problem.risk, start=np.array(start), **settings).final for start in state["starts"]]
    optima = locally_optimal_directions(problem.data, problem.head)
    near = [np.argmax([correlation(end, direction) for direction in optima.directions]) for end in ends]
    return ends, [optima.selections[k].tolist() for k in near]


def test_paths_play_to_the_end_that_python_finds(lab):
    limits = {tuple(limit["selected"]): limit["direction"] for limit in predicted_limits(lab)}
    play_to_the_end(lab)
    mine, (theirs, selections) = path_ends(lab), ends_in_python(lab_state(lab))
    assert lab_state(lab)["playback"]["step"] == problem_of(lab_state(lab)).n_steps
    for end, exact, selection in zip(mine, theirs, selections, strict=True):
        assert end == pytest.approx(exact, rel=1e-9, abs=ROUNDING)
        assert correlation(np.array(end), np.array(limits[tuple(selection)])) > 0.99
    assert len({tuple(selection) for selection in selections}) == 2  # each start has a limit of its own
    n_steps = problem_of(lab_state(lab)).n_steps
    assert f"Step {n_steps:,} of {n_steps:,}" in lab.find_element("id", "playback").text


def test_the_step_of_a_run_is_in_the_address(lab, lab_file):
    field = lab.find_element("id", "playback-step")
    field.clear()
    field.send_keys("37\n")
    settle(lab)
    ends = path_ends(lab)
    open_lab(lab, lab_file, lab_link(lab).removeprefix(lab_file.as_uri()))
    wait_for(lab, "lab.runs().step === 37")
    assert path_ends(lab) == ends


# ---- keys


def test_keys_play_scrub_and_undo(lab):
    from selenium.webdriver.common.keys import Keys

    tab_to(lab, "[data-handle]")
    press(lab, Keys.ARROW_UP)
    moved = lab_state(lab)
    tab_to(lab, "#playback .play")
    press(lab, Keys.ENTER)
    wait_for(lab, "lab.runs().step > 3")
    press(lab, Keys.SPACE)
    assert not lab.execute_script("return lab.runs().isPlaying")
    step = lab.execute_script("return lab.runs().step")
    press(lab, ".")
    press(lab, ".")
    press(lab, ",")
    assert lab.execute_script("return lab.runs().step") == step + 1
    tab_to(lab, "#playback-bar")
    press(lab, Keys.ARROW_LEFT)
    assert lab.execute_script("return lab.runs().step") <= step
    press(lab, "z", modifier=Keys.CONTROL)
    settle(lab)
    assert lab_state(lab)["problem"] != moved["problem"] or lab_state(lab)["starts"] != moved["starts"]


def focus_is(browser, selector):
    return browser.execute_script("return document.activeElement.matches(arguments[0])", selector)


def tab_to(browser, selector, n_stops=60):
    """Press Tab until the focus is where a selector says; the focus is seen at every stop."""
    from selenium.webdriver.common.keys import Keys

    for _ in range(n_stops):
        press(browser, Keys.TAB)
        assert focus_is(browser, ":focus-visible")
        if focus_is(browser, selector):
            return
    pytest.fail(f"Tab does not reach {selector}")


# ---- the state and its address


def test_another_example_can_be_opened_undone_and_redone(lab):
    before = lab_state(lab)
    choose_example(lab, "A-F1a")
    after = lab_state(lab)
    assert after["preset"] == "A-F1a"
    assert after["problem"] != before["problem"]
    button(lab, "Undo").click()
    settle(lab)
    assert lab_state(lab) == before
    button(lab, "Redo").click()
    settle(lab)
    assert lab_state(lab) == after


def test_a_changed_example_is_marked_changed_in_the_place_of_its_caption(lab):
    shown = "return document.getElementById('preset').selectedOptions[0].textContent"
    caption = lab.find_element("id", "caption")
    said = caption.text
    assert said
    assert not lab.execute_script(shown).endswith("changed")
    drag(lab, handle(lab, "token:0:1"), (30, -30))
    assert lab.execute_script(shown).endswith(", changed")
    assert caption.text == "You changed this example; Reset brings it back."
    button(lab, "Undo").click()
    settle(lab)
    assert caption.text == said
    show_tab(lab, "text")
    assert lab.execute_script(shown) == "Your own text"


def test_the_address_brings_back_the_state(lab, lab_file):
    choose_example(lab, "A-F1a")
    show_tab(lab, "text")
    link, state = lab_link(lab), lab_state(lab)
    assert link.startswith(lab_file.as_uri() + "#1.")
    open_lab(lab, lab_file, link.removeprefix(lab_file.as_uri()))
    assert lab_state(lab) == state
    open_lab(lab, lab_file)
    assert lab_state(lab) != state


def open_two_examples(browser):
    # of fifty entries, which the tests of a session fill, the browser drops those that scripts made
    browser.execute_cdp_cmd("Page.resetNavigationHistory", {})
    for name, address in (("A-F1a", "#A-F1a"), ("start-decides", "#the-start-decides")):
        choose_example(browser, name)
        wait_for(browser, f"location.hash === {address!r}")


def test_examples_have_short_addresses_and_browser_history_works(lab, lab_file):
    titles = {entry.name: entry.title for entry in presets()}
    first = lab_state(lab)
    open_two_examples(lab)
    lab.execute_script("history.back()")
    wait_for(lab, "lab.state().preset === 'A-F1a'")
    lab.execute_script("history.back()")
    wait_for(lab, "lab.state().preset === 'A-F1b'")
    assert lab_state(lab)["problem"] == first["problem"]
    lab.execute_script("history.forward()")
    wait_for(lab, "lab.state().preset === 'A-F1a'")
    open_lab(lab, lab_file, "#the-start-decides")
    assert lab_state(lab)["preset"] == "start-decides"
    assert (
        lab.execute_script("return document.getElementById('preset').selectedOptions[0].textContent")
        == titles["start-decides"]
    )


def test_browser_back_while_a_change_is_pending_is_kept(lab):
    open_two_examples(lab)
    lab.execute_script(  # the address would follow the change when the browser has gone back, and before the page is told of it
        """
        for (const tab of ["text", "plane"]) lab.store.apply("tab", (state) => ({ ...state, tab }));
        history.back();
        for (const start = performance.now(); performance.now() - start < 500; );
        """
    )
    wait_for(lab, "lab.state().preset === 'A-F1a' && location.hash === '#A-F1a'")


@pytest.mark.parametrize("entry", presets(), ids=lambda entry: entry.name)
def test_a_python_link_opens_the_preset_with_the_librarys_limits(browser, lab_file, entry):
    open_lab(browser, lab_file, permalink(entry))
    state = lab_state(browser)
    assert (state["preset"], state["tab"]) == (entry.name, "text" if entry.text else "plane")
    assert problem_of(state).data == entry.problem.data
    assert browser.find_element("id", "message").text.count(".") <= 1
    if not (
        entry.text or entry.problem.trains_head or "X-N" in entry.name
    ):  # tests/lab has other norms and joint training
        agrees_with_python(browser)


def test_the_report_leads_to_the_lab_with_the_claims_problem(browser, tmp_path):
    report = reproduce((fake_claim("A-F8"), fake_claim("X-B")), tmp_path / "report")
    open_page(browser, report.page)
    browser.execute_script("document.querySelector('button.all').click()")  # opens every claim
    links = browser.find_elements("css selector", "article .lab a")
    assert [link.text for link in links] == [entry.title for entry in presets() if entry.claim in ("A-F8", "X-B")]
    browser.execute_script('arguments[0].scrollIntoView({ block: "center", behavior: "instant" })', links[-1])
    links[-1].click()
    wait_for(browser, "window.lab?.store !== undefined")
    assert lab_state(browser)["preset"] == "X-B-random"
    assert browser.current_url.startswith((report.folder / "lab.html").as_uri())


@pytest.mark.parametrize(("fragment", "sentence"), [("#7.abc", "another version"), ("#1.abc", "damaged")])
def test_an_unreadable_link_is_refused(browser, lab_file, fragment, sentence):
    open_lab(browser, lab_file, fragment)
    assert sentence in browser.find_element("id", "message").text
    assert lab_state(browser)["preset"] == "A-F1b"


# ---- for every reader


@pytest.mark.parametrize("size", [NARROWEST, PHONE, PROJECTOR], ids=["narrowest", "phone", "projector"])
def test_no_element_overflows_at_any_width(browser, lab_file, size):
    resize(browser, size)
    open_lab(browser, lab_file)
    for tab in TABS:
        show_tab(browser, tab)
        assert overflowing(browser) == []


def test_color_scheme_follows_the_system_and_the_switch_overrides_it(browser, lab_file):
    prefer(browser, color_scheme="dark")
    open_lab(browser, lab_file)
    assert background_brightness(browser) < 0.2
    button(browser, "Colours").click()
    assert background_brightness(browser) > 0.9
    button(browser, "Colours").click()
    assert background_brightness(browser) < 0.2
    prefer(browser, color_scheme="light")
    open_lab(browser, lab_file)
    assert background_brightness(browser) < 0.2
    button(browser, "Colours").click()
    assert background_brightness(browser) > 0.9


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", DESKTOP), ("light", PHONE)], ids=str)
def test_the_lab_is_accessible(browser, lab_file, axe, scheme, size):
    prefer(browser, color_scheme=scheme)
    resize(browser, size)
    open_lab(browser, lab_file)
    for tab in TABS:
        show_tab(browser, tab)
        assert accessibility_violations(browser) == []
