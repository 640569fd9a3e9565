"""The import contract of pyproject.toml: it holds, and a planted import against the floors breaks it, also inside a function."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lint(source):
    """Check the package below `source` against the contract."""
    command = [
        str(Path(sys.executable).with_name("lint-imports")),
        "--no-cache",
        "--config",
        str(ROOT / "pyproject.toml"),
    ]
    path = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, cwd=source, env=path, capture_output=True, text=True)


@pytest.fixture
def copied(tmp_path):
    """The sources of the library in a folder of their own."""
    for package in ("marginlens", "marginlens_papers"):
        ignored = shutil.ignore_patterns("*.nb[ic]", "*.json")
        shutil.copytree(ROOT / "src" / package, tmp_path / package, ignore=ignored)
    return tmp_path


def test_folders_import_only_what_lies_below_them():
    done = lint(ROOT / "src")
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "planted",
    ["from marginlens.svm import att_svm", "def later():\n    from marginlens.svm import att_svm"],
    ids=["at the top", "inside a function"],
)
def test_a_planted_cycle_is_found(copied, planted):
    with (copied / "marginlens" / "data" / "tokens.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{planted}\n")
    done = lint(copied)
    assert done.returncode == 1
    assert "marginlens.data is not allowed to import marginlens.svm" in done.stdout


def test_the_library_may_not_import_the_papers(copied):
    with (copied / "marginlens" / "cli" / "solve.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef later():\n    from marginlens_papers.report import ledger\n")
    done = lint(copied)
    assert done.returncode == 1
    assert "The library never imports what the papers claim BROKEN" in done.stdout


def test_a_folder_without_a_floor_is_found(copied):
    (copied / "marginlens" / "somewhere.py").write_text('"""New."""\n', encoding="utf-8")
    done = lint(copied)
    assert done.returncode == 1
    assert "somewhere" in done.stdout
