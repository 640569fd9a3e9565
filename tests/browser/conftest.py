"""A browser for the whole session, clean for every test, which fails where the console shows an error or the page asks the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browser_page import AXE, DESKTOP, console_errors, network_requests, open_lab, prefer, resize
from chromium import missing_browser, open_browser
from html_validator import VALIDATOR
from tolerances import HANGING

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

REQUIRED = os.environ.get("MARGINLENS_BROWSER") == "required"


def leave_out(reason: str, fail: bool) -> None:
    """Skip the test, or fail it where browsers are required."""
    if fail:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def session_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """The browser that all tests of a session share; tests take `browser`."""
    if missing := missing_browser():
        leave_out(f"pages were not opened: {missing}", REQUIRED)
    with open_browser(tmp_path_factory.mktemp("browser-profile"), with_requests=True) as driver:
        driver.set_script_timeout(HANGING)
        yield driver


@pytest.fixture
def browser(session_browser: WebDriver) -> Iterator[WebDriver]:
    """The browser with a desktop's viewport and light colours; afterwards its console must be without errors and the network untouched."""
    session_browser.get("about:blank")
    stored = {"origin": "file://", "storageTypes": "local_storage"}
    session_browser.execute_cdp_cmd("Storage.clearDataForOrigin", stored)
    resize(session_browser, DESKTOP)
    prefer(session_browser, color_scheme="light", reduced_motion="no-preference")
    console_errors(session_browser)
    network_requests(session_browser)
    yield session_browser
    assert console_errors(session_browser) == []
    assert network_requests(session_browser) == []


def installed(path: Path, package: str) -> Path:
    """A file of a package that npm installs."""
    if not path.is_file():
        reason = f"{package} is missing, which npm install --no-save --prefix build/browser {package} brings"
        leave_out(reason, REQUIRED and shutil.which("npm") is not None)
    return path


@pytest.fixture(scope="session")
def axe() -> Path:
    """The checks of accessibility."""
    return installed(AXE, "axe-core")


@pytest.fixture(scope="session")
def validator() -> Path:
    """The checks of HTML."""
    return installed(VALIDATOR, "html-validate")


@pytest.fixture(scope="session")
def lab_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab as one file, assembled once: its first example, without the basins that would be painted beside every test."""
    from marginlens.lab import preset, write_lab

    path = tmp_path_factory.mktemp("lab") / "lab.html"
    state = preset("A-F1b").state()
    return write_lab(path, {**state, "view": {**state["view"], "basins": False}})


@pytest.fixture
def lab(browser: WebDriver, lab_file: Path) -> WebDriver:
    """The browser with the lab open as a visitor first sees it, but for the basins."""
    open_lab(browser, lab_file)
    return browser
