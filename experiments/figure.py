"""The tokens of a run of embeddings, drawn: `python -m experiments.figure RUN OUT.png`."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.embeddings.train import TABLE
from experiments.training.script import in_one_sentence
from marginlens.errors import InputError, whole_number
from marginlens.plotting.files import FIGURE_SUFFIXES, write_figure
from marginlens.runtime.files import check_place
from marginlens_papers.claims.b.embedding_runs import EmbeddingRun
from marginlens_papers.claims.b.token_panels import TokenPoints, draw_tokens
from marginlens_papers.tables import read_file, unreadable_is_refused


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw every token's products with p and v against what its occurrences say about the label."""
    parser = argparse.ArgumentParser(prog="python -m experiments.figure", description=main.__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, or its table (.json)")
    parser.add_argument("out", type=Path, metavar="OUT", help="the picture, as .png, .svg or .pdf")
    parser.add_argument("--names", type=int, default=12, metavar="N", help="tokens to name in each panel (12)")
    options = parser.parse_args(arguments)

    def draw() -> int:
        n_names = whole_number(options.names, "names", at_least=0)
        check_place(options.out, "out", FIGURE_SUFFIXES)
        points, title = _points(options.run)
        write_figure(options.out, draw_tokens(points, title=title, n_names=n_names))
        print(f"Written to {options.out}")
        return 0

    return in_one_sentence(draw)


def _points(run: Path) -> tuple[TokenPoints, str]:
    """The tokens of a run, and what to call them."""
    if (run / TABLE).is_file():
        return _read_table(run / TABLE), f"Tokens of the run {run.resolve().name}"
    if not run.is_file():
        raise InputError("run", "the folder of a training run, or its table (.json)", f"{str(run)!r}, which is neither")
    table = read_file(run, EmbeddingRun)
    difference, count = table.statistics.posterior_difference, table.statistics.count
    return TokenPoints.of(difference, table.a, table.b, count, table.names), table.summary


def _read_table(path: Path) -> TokenPoints:
    with unreadable_is_refused("run", "the folder of a training run", path), path.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
        difference, a, b = ([float(row[name]) for row in rows] for name in ("posterior_difference", "a", "b"))
        count = np.array([int(row["count"]) for row in rows])
        return TokenPoints.of(difference, a, b, count, [row["token"] for row in rows])


if __name__ == "__main__":
    sys.exit(main())
