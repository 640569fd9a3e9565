"""`python -m marginlens_papers.archive.keep_vision`: put a training run into one small file, from which reports draw it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marginlens.training.script import in_one_sentence
from marginlens_papers.archive.vision import keep_run, read_kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep a run that `python -m marginlens_papers.vision.run` wrote, and say where."""
    options = _parser().parse_args(None if arguments is None else list(arguments))
    return in_one_sentence(lambda: _keep(options))


def _keep(options: Any) -> int:
    place = keep_run(options.folder, options.name, into=options.into)
    print(f"{read_kept(place)!r} is in {place}, {place.stat().st_size / 1e3:.0f} kB.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marginlens_papers.archive.keep_vision", description=main.__doc__)
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="the run's --out")
    parser.add_argument("name", metavar="NAME", help="what the run is called")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to put it (the package's own results)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
