"""One version: written in `marginlens/__init__.py`, and the same in the command, the results, the site, the citation and the changelog."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

import marginlens as ml
from marginlens.cli import app
from marginlens.runtime.versions import versions

ROOT = Path(__file__).resolve().parents[2]
RELEASE = r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?"


def test_the_version_is_the_same_everywhere():
    assert re.fullmatch(RELEASE, ml.__version__)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in settings["project"]
    assert settings["project"]["dynamic"] == ["version"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "marginlens.__version__"}
    lines = (ROOT / "src" / "marginlens" / "__init__.py").read_text(encoding="utf-8").splitlines()
    assert f'__version__ = "{ml.__version__}"' in lines  # which setuptools reads without importing it
    answer = CliRunner().invoke(app.app, ["--version"])
    assert (answer.exit_code, answer.output) == (0, f"marginlens {ml.__version__}\n")
    assert versions()["marginlens"] == ml.__version__
    assert "\nrelease = version = marginlens.__version__\n" in (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[0] == ml.__version__


def test_no_other_file_repeats_the_version():
    literal = f'"{ml.__version__}"'
    sources = [path for path in (ROOT / "src").rglob("*.py") if literal in path.read_text(encoding="utf-8")]
    assert sources == [ROOT / "src" / "marginlens" / "__init__.py"]
