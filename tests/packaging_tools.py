"""How the sdist and the wheel are built from the files of a checkout, and nothing else that lies there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_AT_THE_TOP = {".git", ".venv", "build", "dist", "report"}  # what a build, a run or an environment leaves
_ANYWHERE = shutil.ignore_patterns("*.egg-info", "built", "__pycache__", ".*_cache", ".hypothesis")


class Distribution(NamedTuple):
    """The two files that are published."""

    sdist: Path
    wheel: Path


def build(folder: Path, root: Path = ROOT) -> Distribution:
    """Build both from a copy of the checkout, the wheel from the sdist, into `folder`/dist.

    Setuptools is that of this environment, so that nothing is asked of the network.
    """
    source, place = folder / "checkout", folder / "dist"

    def left_behind(folder: str, names: list[str]) -> set[str]:
        return {*_ANYWHERE(folder, names), *(_AT_THE_TOP if Path(folder) == root else ())}

    shutil.copytree(root, source, ignore=left_behind)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(place), str(source))
    (sdist,), (wheel,) = place.glob("*.tar.gz"), place.glob("*.whl")
    return Distribution(sdist, wheel)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
