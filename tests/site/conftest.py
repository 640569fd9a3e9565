"""The site of this checkout, built once for all tests of a session without running the gallery, and the browser that opens it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from browser.conftest import axe, browser, session_browser, validator  # noqa: F401  fixtures that tests of this folder take
from tolerances import HANGING

ROOT = Path(__file__).resolve().parents[2]
BUILT = {"api", "gallery", "sg_execution_times.rst"}  # what `make site` leaves in docs


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site. A warning of Sphinx fails the build, and with it every test here: a page that no menu leads to is one."""
    pytest.importorskip("sphinx", reason="the site needs pip install '.[site]'")
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "docs", checkout / "docs", ignore=lambda folder, names: BUILT & {*names})
    for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, checkout)  # Sphinx follows links of the file system
    for name in ("examples", "src", "tests"):
        (checkout / name).symlink_to(ROOT / name)
    output = checkout / "site"
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-j",
        "2",
        "-D",
        "plot_gallery=0",
        "docs",
        str(output),
    ]
    built = subprocess.run(
        command,
        cwd=checkout,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert built.returncode == 0, built.stderr
    return output
