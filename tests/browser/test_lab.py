"""The lab from end to end, opened from its file in a real browser: move, undo, share, read it anywhere, and ask nobody for anything."""

from __future__ import annotations

import pytest

from browser_page import (
    PHONE,
    accessibility_violations,
    background_brightness,
    console_errors,
    lab_link,
    lab_state,
    open_lab,
    overflowing,
    predicted_limits,
    prefer,
    resize,
    settle,
)

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


def test_it_opens_from_its_file_with_a_prediction(lab, lab_file):
    assert lab.current_url.startswith("file://")
    assert len(predicted_limits(lab)) == 2  # of Figure 1(b)
    assert lab.execute_script("return lab.firstPrediction") > 0
    assert lab_file.stat().st_size <= 400_000


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


def test_the_address_brings_back_the_state(lab, lab_file):
    choose_example(lab, "A-F1a")
    show_tab(lab, "text")
    link, state = lab_link(lab), lab_state(lab)
    assert link.startswith(lab_file.as_uri() + "#1.")
    open_lab(lab, lab_file, link.removeprefix(lab_file.as_uri()))
    assert lab_state(lab) == state
    open_lab(lab, lab_file)
    assert lab_state(lab) != state


@pytest.mark.parametrize(("fragment", "sentence"), [("#7.abc", "another version"), ("#1.abc", "damaged")])
def test_a_link_that_cannot_be_read_is_refused_in_a_sentence(browser, lab_file, fragment, sentence):
    open_lab(browser, lab_file, fragment)
    assert sentence in browser.find_element("id", "message").text
    assert lab_state(browser)["preset"] == "A-F1b"


# ---- for every reader


@pytest.mark.parametrize("size", [NARROWEST, PHONE, PROJECTOR], ids=["narrowest", "phone", "projector"])
def test_nothing_sticks_out_at_any_width(browser, lab_file, size):
    resize(browser, size)
    open_lab(browser, lab_file)
    for tab in TABS:
        show_tab(browser, tab)
        assert overflowing(browser) == []


def test_the_reader_chooses_light_or_dark_and_a_switch_overrules(browser, lab_file):
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


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_lab_is_accessible(browser, lab_file, axe, scheme, tab):
    prefer(browser, color_scheme=scheme)
    open_lab(browser, lab_file)
    show_tab(browser, tab)
    assert accessibility_violations(browser) == []


@pytest.mark.parametrize("tab", TABS)
def test_the_lab_is_accessible_on_a_phone(browser, lab_file, axe, tab):
    resize(browser, PHONE)
    open_lab(browser, lab_file)
    show_tab(browser, tab)
    assert accessibility_violations(browser) == []
