"""The site of this checkout, built once for all tests of a session without running the gallery, and the browser that opens it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from browser.conftest import axe, browser, session_browser, validator  # noqa: F401  fixtures that tests of this folder take
from fake_claims import fake_claim
from marginlens_papers.claim import Finding
from marginlens_papers.report import reproduce
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
    write_report(checkout / "report")
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


def write_report(folder: Path) -> None:
    """A report of two claims, one with a figure that is too large as an SVG, with files of an earlier report beside its figures."""
    steps = np.random.default_rng(21).normal(size=(2, 4000))

    def heavy(found: Finding) -> dict[str, Figure]:
        figure = Figure(figsize=(6, 3))
        figure.add_subplot().plot(*steps, lw=0.3)
        return {"walk": figure}

    reproduce([fake_claim("A-F1b"), fake_claim("A-F9", draw=heavy)], folder)
    for name in ("A-F1b-correlation.png", "A-F9-walk.svg"):
        (folder / "figures" / name).write_bytes(b"of an earlier version")
    np.savez(folder / "numbers.npz", steps=steps)
