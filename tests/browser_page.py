"""What tests do with a page in a real browser: open it, resize it, darken it, drag in it, and read what it logged and asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marginlens.lab.problem_files import LabProblem

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver
    from selenium.webdriver.remote.webelement import WebElement

AXE = Path(__file__).parents[1] / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
PHONE, DESKTOP = (390, 844), (1280, 900)  # CSS pixels
LOCAL_SCHEMES = ("file:", "blob:", "data:", "about:", "chrome:")
STYLED = """
    location.protocol === "file:" && document.readyState === "complete" && (
      !document.querySelector("style, link[rel~=stylesheet]")
      || getComputedStyle(document.body).backgroundColor !== "rgba(0, 0, 0, 0)")
"""  # of a file that the driver calls loaded, its style sheets may not be in force yet: the background that all of ours set is transparent
POLL_SECONDS = 0.02


def open_page(browser: WebDriver, path: Path, fragment: str = "") -> None:
    """Load a file afresh, also where only what follows its # differs from the page that is open, and wait for its style sheets."""
    browser.get("about:blank")
    browser.get(path.as_uri() + fragment)
    wait_for(browser, STYLED)


def wait_for(browser: WebDriver, condition: str) -> None:
    """Wait until a JavaScript expression holds, for as long as a script may take; the page may change meanwhile."""
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, browser.timeouts.script, POLL_SECONDS).until(
        lambda page: page.execute_script(f"return Boolean({condition})"), f"this did not come true: {condition}"
    )


def resize(browser: WebDriver, size: tuple[int, int]) -> None:
    """A viewport of this size; up to the width of a tablet it is a touch screen's."""
    width, height = size
    mobile = width < 760
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": mobile})


def prefer(browser: WebDriver, **media: str) -> None:
    """Media features that the reader prefers, e.g. `color_scheme="dark"`, `reduced_motion="reduce"`."""
    features = [{"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in media.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def settle(browser: WebDriver) -> None:
    """Wait until the page has drawn what it was asked to draw: two animation frames, and in the lab until every view has followed."""
    browser.execute_async_script(
        """
        const done = arguments[0];
        const look = () => (window.lab?.frames?.().isBehind ? requestAnimationFrame(look) : done());
        requestAnimationFrame(() => requestAnimationFrame(look));
        """
    )


def reveal(browser: WebDriver, selector: str) -> None:
    """Show the panel of the lab that holds what a selector names first, and open what it is folded in."""
    browser.execute_script(
        """
        const panel = document.querySelector(arguments[0])?.closest(".panel");
        if (panel?.hidden) document.querySelector(`[aria-controls="${panel.id}"]`).click();
        for (let node = document.querySelector(arguments[0]); node; node = node.parentElement)
          if (node.matches("details")) node.open = true;
        """,
        selector,
    )


def press(browser: WebDriver, *keys: str, modifier: str | None = None) -> None:
    """Press keys one after the other, wherever the focus is; all of them while a modifier is held, if there is one."""
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(browser)
    if modifier is None:
        for key in keys:
            chain = chain.send_keys(key)
    else:
        chain = chain.key_down(modifier).send_keys(*keys).key_up(modifier)
    chain.perform()
    settle(browser)


def type_into(browser: WebDriver, field: WebElement, text: str) -> None:
    """Write over what a field holds and leave it, as a person does."""
    from selenium.webdriver.common.keys import Keys

    field.send_keys(Keys.CONTROL + "a" + Keys.NULL + text + Keys.TAB)
    settle(browser)


def drag(browser: WebDriver, element: WebElement, by: tuple[int, int], n_moves: int = 5) -> None:
    """Press the mouse on the middle of an element, move it in steps by so many pixels, and let go."""
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(browser, duration=10).move_to_element(element).click_and_hold()
    for k in range(n_moves):
        x, y = (length * (k + 1) // n_moves - length * k // n_moves for length in by)
        chain = chain.move_by_offset(x, y)
    chain.release().perform()
    settle(browser)


def console_errors(browser: WebDriver) -> list[str]:
    """What the console logged as an error since it was last read."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def network_requests(browser: WebDriver) -> list[str]:
    """Addresses other than local ones that the page asked for since they were last read."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    sockets = [event["params"]["url"] for event in events if event["method"] == "Network.webSocketCreated"]
    return [address for address in sent + sockets if not address.startswith(LOCAL_SCHEMES)]


def overflowing(browser: WebDriver) -> list[str]:
    """What sticks out of the viewport to the side; empty where the page does not scroll sideways."""
    return browser.execute_script(
        """
        const root = document.documentElement, width = root.clientWidth;
        if (root.scrollWidth <= width) return [];
        const outside = [...document.body.querySelectorAll("*")].filter((node) => node.getBoundingClientRect().right > width + 0.5);
        return [`${root.scrollWidth} > ${width}`, ...outside.map((node) => `${node.tagName} ${node.id} ${node.getAttribute("class")}`)];
        """
    )


def background_brightness(browser: WebDriver) -> float:
    """Of the page's background, from 0 for black to 1 for white."""
    channels = browser.execute_script(
        "return getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number)"
    )
    return sum(channels) / (3 * 255)


def accessibility_violations(browser: WebDriver) -> list[str]:
    """Violations of WCAG 2.2 AA that axe-core finds: rule, elements and what is wrong with them.

    It does not fetch style sheets a second time, which a page opened from a file may not; what they do to the page it sees all the same.
    """
    browser.execute_script(AXE.read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = browser.execute_async_script(
        """
        const done = arguments[arguments.length - 1];
        const runOnly = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
        axe.run(document, { runOnly, resultTypes: ["violations"], preload: false }).then((report) => done(report.violations));
        """
    )
    return [
        f"{violation['id']}: {' '.join(node['target'][-1:])}: {node['failureSummary']}"
        for violation in found
        for node in violation["nodes"]
    ]


@contextmanager
def without_script(browser: WebDriver) -> Iterator[None]:
    """A browser that runs no scripts of the pages it opens meanwhile."""
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


# ---- the lab


def open_lab(browser: WebDriver, path: Path, fragment: str = "") -> None:
    """Load the lab and wait until it is ready."""
    open_page(browser, path, fragment)
    browser.execute_script("return window.lab.ready")  # a promise, which the driver waits for
    settle(browser)


def lab_state(browser: WebDriver) -> dict[str, Any]:
    """The state of the lab that is open."""
    return browser.execute_script("return window.lab.state()")


def lab_link(browser: WebDriver) -> str:
    """The address of what the lab shows."""
    return browser.execute_script("return window.lab.link()")


def predicted_limits(browser: WebDriver) -> list[dict[str, Any]]:
    """What the lab predicts: selected tokens, direction and margin of every limit."""
    return browser.execute_script(
        """
        return window.lab.analysis().limits.map(({ selected, direction, margin, isGlobal }) =>
          ({ selected: Array.from(selected), direction: Array.from(direction), margin, isGlobal }));
        """
    )


def problem_of(state: dict[str, Any]) -> LabProblem:
    """The problem that the lab shows, as Python reads it, with the chosen start."""
    start = state["starts"][state["chosen"]["start"] or 0]
    return LabProblem.from_dict({"format": "marginlens-problem", "version": 1, **state["problem"], "start": start})


def apply(browser: WebDriver, change: str, *given: Any) -> None:
    """Change the lab's state by the text of a function of the state; `given` are its `arguments`."""
    browser.execute_script(f"lab.store.apply('test', {change})", *given)
    settle(browser)


def undo(browser: WebDriver) -> None:
    browser.execute_script("lab.store.undo()")
    settle(browser)


def handle(browser: WebDriver, name: str) -> WebElement:
    """What can be moved in the lab's plane, e.g. "token:0:2" for the third token of the first input, "start:0" or "head"."""
    return browser.find_element("css selector", f"#plane [data-handle='{name}']")


def path_ends(browser: WebDriver) -> list[list[float]]:
    """Where the lab's runs stand at the step that is shown, start by start."""
    return browser.execute_script("return window.lab.runs().paths.map((path) => Array.from(path.now.point))")
