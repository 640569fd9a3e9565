"""A headless Chromium for tests of pages: the system's, with a profile of its own and without network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from marginlens.errors import InputError

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

CHROMIUM_NAMES, DRIVER_NAME = ("chromium", "chromium-browser", "google-chrome"), "chromedriver"
WINDOW_SIZE = (1280, 900)  # CSS pixels
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # which a container may forbid; only pages of our own are opened
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--force-device-scale-factor=1",
    "--lang=en",
)


def missing_browser() -> str | None:
    """A sentence that says what is missing to drive a browser, or None."""
    if _browser_path() is None or shutil.which(DRIVER_NAME) is None:
        return "no Chromium with its driver was found (Debian's packages chromium and chromium-driver)"
    if find_spec("selenium") is None:
        return "the package selenium is not installed (pip install '.[dev]' brings it)"
    return None


def _browser_path() -> str | None:
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


@contextmanager
def open_browser(profile: Path, *, with_requests: bool = False) -> Iterator[WebDriver]:
    """A browser until the end of the `with` block; nothing is downloaded, neither by it nor by its driver.

    Args:
        profile: an empty folder for what the browser stores.
        with_requests: whether its performance log lists every request, which takes time.
    """
    if missing := missing_browser():
        raise InputError(f"A browser is needed, and {missing}.")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(_browser_path())
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}", f"--window-size={WINDOW_SIZE[0]},{WINDOW_SIZE[1]}"):
        options.add_argument(argument)
    logs = {"browser": "ALL", **({"performance": "ALL"} if with_requests else {})}
    options.set_capability("goog:loggingPrefs", logs)
    driver = Chrome(options=options, service=Service(shutil.which(DRIVER_NAME)))
    try:
        yield driver
    finally:
        driver.quit()
