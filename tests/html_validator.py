"""The faults of HTML pages that html-validate finds, in what is written and in what the scripts of a page make of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tolerances import HANGING

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

VALIDATOR = Path(__file__).parents[1] / "build/browser/node_modules/html-validate/bin/html-validate.mjs"
RULES = {"root": True, "extends": ["html-validate:standard"]}  # what the standard demands, not how a page is formatted


def markup_faults(pages: Iterable[Path], folder: Path) -> list[str]:
    """Where pages break the rules of HTML; `folder` is for the settings."""
    settings = folder / "html-validate.json"
    settings.write_text(json.dumps(RULES), encoding="utf-8")
    command = ["node", str(VALIDATOR), "--config", str(settings), "--formatter", "json", *map(str, pages)]
    report = folder / "html-validate-report.json"  # of what is written to a pipe, node may lose the end
    with report.open("wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, timeout=HANGING)
    assert done.returncode in (0, 1), done.stderr
    return [
        f"{Path(page['filePath']).name}:{fault['line']}: {fault['ruleId']}: {fault['message']} {fault.get('selector') or ''}"
        for page in json.loads(report.read_text(encoding="utf-8"))
        for fault in page["messages"]
    ]


def write_shown(browser: WebDriver, path: Path) -> Path:
    """Write the page that is open as its scripts have made it."""
    shown = browser.execute_script("return document.documentElement.outerHTML")
    path.write_text(f"<!doctype html>\n{shown}\n", encoding="utf-8")
    return path
