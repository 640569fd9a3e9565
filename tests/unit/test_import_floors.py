"""The import contract of pyproject.toml, which `make lint` checks: imports planted against the floors break it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLANTED = {
    "marginlens/data/tokens.py": "from marginlens.svm import att_svm",
    "marginlens/graphs/export.py": "def later():\n    from marginlens.theory import predict_limit",
    "marginlens/cli/solve.py": "def later():\n    from marginlens_papers.report import ledger",
    "marginlens/somewhere.py": '"""A folder without a floor."""',
}
FOUND = (
    "marginlens.data is not allowed to import marginlens.svm",
    "marginlens.graphs is not allowed to import marginlens.theory",
    "The library never imports what the papers claim BROKEN",
    "somewhere",
)


def test_planted_imports_are_found(tmp_path):
    for package in ("marginlens", "marginlens_papers"):
        ignored = shutil.ignore_patterns("*.nb[ic]", "*.json")
        shutil.copytree(ROOT / "src" / package, tmp_path / package, ignore=ignored)
    for path, lines in PLANTED.items():
        with (tmp_path / path).open("a", encoding="utf-8") as file:
            file.write(f"\n\n{lines}\n")
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=path, capture_output=True, text=True)
    assert done.returncode == 1
    assert [sentence for sentence in FOUND if sentence not in done.stdout] == []
