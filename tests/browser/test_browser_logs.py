"""The controls of this folder: a page that logs an error, asks the network, sticks out, cannot be read or lacks its style is caught."""

from __future__ import annotations

import pytest

from browser_page import (
    accessibility_violations,
    background_brightness,
    console_errors,
    network_requests,
    open_page,
    overflowing,
)
from tolerances import ROUNDING, SIX_DIGITS


def opened(browser, folder, body):
    path = folder / "page.html"
    path.write_text(f"<!doctype html><html lang=en><title>A page</title><body><main>{body}</main>", encoding="utf-8")
    open_page(browser, path)
    return browser


def test_errors_of_scripts_are_seen(browser, tmp_path):
    opened(browser, tmp_path, "<script>setTimeout(() => { throw new Error('broken'); })</script>")
    browser.execute_async_script("setTimeout(arguments[0])")
    assert "broken" in " ".join(console_errors(browser))
    opened(browser, tmp_path, "<script>console.error('said')</script>")
    assert "said" in " ".join(console_errors(browser))


def test_requests_are_seen(browser, tmp_path):
    opened(
        browser,
        tmp_path,
        "<img alt='' src='http://elsewhere.invalid/a.png'><img alt='' src='data:image/gif;base64,R0lGOD'>",
    )
    browser.execute_async_script("fetch('https://elsewhere.invalid/b').catch(() => arguments[0]())")
    assert network_requests(browser) == ["http://elsewhere.invalid/a.png", "https://elsewhere.invalid/b"]
    console_errors(browser)


def test_overflowing_elements_are_reported(browser, tmp_path):
    opened(browser, tmp_path, "<p>short</p><p id='wide' style='width: 3000px'>wide</p>")
    assert any("P wide" in name for name in overflowing(browser))


def test_low_contrast_elements_are_reported(browser, tmp_path, axe):
    opened(browser, tmp_path, "<h1>A page</h1><p style='color: #ccc'>pale</p>")
    (violation,) = accessibility_violations(browser)
    assert violation.startswith("color-contrast: p:")


LATE = """<style id=sheet media=print>body { background: rgb(51 51 51) }</style>
<script>addEventListener("load", () => setTimeout(() => { sheet.media = "all"; }, 300))</script>"""


def test_a_page_is_open_when_its_style_is_in_force(browser, tmp_path):
    opened(browser, tmp_path, LATE)
    assert background_brightness(browser) == pytest.approx(0.2, rel=SIX_DIGITS, abs=ROUNDING)


def test_a_page_whose_style_never_comes_is_refused(browser, tmp_path):
    from selenium.common.exceptions import TimeoutException

    allowed = browser.timeouts.script
    browser.set_script_timeout(0.4)
    try:
        with pytest.raises(TimeoutException, match="did not come true"):
            opened(browser, tmp_path, LATE.replace('"all"', '"print"'))
    finally:
        browser.set_script_timeout(allowed)
