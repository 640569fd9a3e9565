"""Sharing from the lab in a real browser: the copied script runs, files come back as saved, pictures, films and pages open."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from browser_page import (
    accessibility_violations,
    apply,
    lab_state,
    open_lab,
    path_ends,
    predicted_limits,
    press,
    settle,
    wait_for,
)
from marginlens.lab import preset, write_lab
from tolerances import ROUNDING

DOWNLOAD_SECONDS = 40.0


def share(browser, label):
    """Choose an entry of the share menu."""
    browser.find_element("xpath", "//button[.='Share']").click()
    browser.find_element("xpath", f"//*[@role='menuitem'][starts-with(., '{label}')]").click()
    settle(browser)


def message(browser):
    return browser.find_element("id", "message").text


@pytest.fixture
def clipboard(browser):
    """A browser whose clipboard pages may write, and what is in it."""
    permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    browser.execute_cdp_cmd("Browser.grantPermissions", permissions)
    return lambda: browser.execute_async_script("navigator.clipboard.readText().then(arguments[0])")


@pytest.fixture
def downloads(lab, tmp_path):
    """The folder that the lab's files are saved into, and a way to wait for one of them."""
    lab.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})

    def wait_for(ending):
        end = time.monotonic() + DOWNLOAD_SECONDS
        while time.monotonic() < end:
            found = [path for path in tmp_path.glob(f"*.{ending}") if path.stat().st_size > 0]
            if found:
                return found[0]
            time.sleep(0.05)
        raise AssertionError(f"no file *.{ending} in {[path.name for path in tmp_path.iterdir()]}")

    return wait_for


# ---- the script


def test_the_copied_script_computes_what_the_page_shows(lab, clipboard):
    apply(lab, "(state) => ({ ...state, starts: [[0.5, -1.5], [-0.5, 1]], problem: { ...state.problem, steps: 300 } })")
    lab.execute_script("lab.runs().scrubTo(200)")
    settle(lab)
    share(lab, "Copy as Python")
    assert message(lab) == "The Python script is copied."
    script = clipboard()
    assert script == lab.execute_async_script("lab.pythonScript().then(arguments[0])")
    names, printed = {"__name__": "__main__"}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(script, "script", "exec"), names)
    for limit in predicted_limits(lab):
        assert f"selects {limit['selected']} with margin" in printed.getvalue()
    for run, end in zip(names["runs"], path_ends(lab), strict=True):
        assert int(run.steps_taken) == 200
        assert run.final == pytest.approx(np.array(end), rel=1e-9, abs=ROUNDING)
        assert f"selects {run.selected.tolist()}" in printed.getvalue()


def test_text_that_cannot_be_copied_is_shown_selected(lab):
    lab.execute_script(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('no')); document.execCommand = () => false;"
    )
    share(lab, "Copy link")
    field = lab.find_element("css selector", "dialog textarea")
    assert field.get_property("value") == lab.execute_async_script("lab.link().then(arguments[0])")
    assert lab.execute_script("return arguments[0].selectionEnd - arguments[0].selectionStart", field) > 20
    assert lab.find_element("css selector", "dialog[open]").accessible_name == "The link"
    press(lab, "\ue00c")
    assert lab.find_elements("css selector", "dialog") == []


# ---- files


def test_a_saved_problem_is_loaded_as_the_same_state(lab, downloads):
    apply(
        lab,
        "(state) => ({ ...state, starts: [[0.1 + 0.2, -1.5], [7, 1e-9]], view: { ...state.view, half: 60, cones: true } })",
    )
    saved = lab_state(lab)
    share(lab, "Save problem")
    path = downloads("json")
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == "marginlens-problem"
    apply(lab, "(state) => ({ ...state, starts: [[0, 0]], preset: null, view: { ...state.view, half: 3 } })")
    assert lab_state(lab) != saved
    lab.find_element("id", "problem-file").send_keys(str(path))
    lab.execute_async_script("setTimeout(arguments[0], 100)")
    settle(lab)
    assert lab_state(lab) == saved
    assert message(lab) == f"Loaded {path.name}."


def test_pictures_have_the_verdict_below(lab, downloads):
    lab.execute_script("lab.runs().scrubTo(150)")
    settle(lab)
    share(lab, "Save picture (SVG)")
    path = downloads("svg")
    assert path.name == "marginlens-A-F1b-step-150.svg"
    text = path.read_text(encoding="utf-8")
    svg = ET.fromstring(text)
    words = " ".join(str(node.text) for node in svg.findall("{*}text"))
    assert lab.find_element("id", "headline").text in words
    assert "A-F1b, step 150" in words
    assert "var(--" not in text
    assert "system-ui" not in text
    share(lab, "Save picture (PNG)")
    content = downloads("png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height / width) == (1920, pytest.approx(float(svg.attrib["height"]) / 1280, rel=1e-3, abs=0.0))


@pytest.mark.usefixtures("clipboard")
def test_a_picture_is_copied(lab):
    share(lab, "Copy picture")
    wait_for(lab, "document.getElementById('message').textContent === 'The picture is copied.'")
    types = "navigator.clipboard.read().then((items) => arguments[0](items[0].types))"
    assert lab.execute_async_script(types) == ["image/png"]


def test_a_film_shows_the_run(lab, downloads):
    apply(lab, "(state) => ({ ...state, problem: { ...state.problem, steps: 300 } })")
    share(lab, "Save film")
    path = downloads("webm")
    assert path.name.startswith("marginlens-A-F1b-changed")
    content = path.read_bytes()
    assert content[:4] == b"\x1aE\xdf\xa3"  # of Matroska, which WebM is
    assert len(content) > 20_000
    assert lab.execute_script("return lab.runs().step") == 0


def test_a_saved_page_opens_in_the_same_state(lab, downloads):
    apply(lab, "(state) => ({ ...state, starts: [[0.25, 0.5]], text: { ...state.text, source: 'a </script> b' } })")
    state = lab_state(lab)
    share(lab, "Save page")
    path = downloads("html")
    open_lab(lab, path)
    assert lab_state(lab) == state
    assert len(predicted_limits(lab)) == 2


def test_a_link_to_a_local_file_carries_a_warning(lab, clipboard):
    share(lab, "Copy link")
    assert "works only on this computer" in message(lab)
    assert "file:" not in lab.execute_async_script("lab.pythonScript().then(arguments[0])")


@pytest.mark.usefixtures("clipboard")
def test_links_use_the_public_address_if_one_is_set(browser, tmp_path):
    open_lab(browser, write_lab(tmp_path / "lab.html", preset("A-F1b"), address="https://example.org/lab.html"))
    share(browser, "Copy link")
    assert message(browser) == "The link is copied."
    assert browser.execute_async_script("lab.link().then(arguments[0])") == "https://example.org/lab.html#A-F1b"


# ---- the help


def test_the_help_is_accessible(lab, axe):
    press(lab, "?")
    assert lab.find_element("id", "help").is_displayed()
    assert accessibility_violations(lab) == []
    press(lab, "\ue00c")
    assert lab.find_elements("id", "help") == []
