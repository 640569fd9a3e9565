"""`marginlens figure`: every token's products with p and v against what its occurrences say about the label."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from marginlens.cli._deferred import errors, files, np
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument, option

if TYPE_CHECKING:
    from marginlens_papers.embeddings.token_panels import TokenPoints


@command(folder="{source}", path="{source}")
def figure(
    source: Annotated[Path, argument("RUN", "Folder of a run of `marginlens embeddings`, or a kept run (.json).")],
    plot: Annotated[Path, option("OUT.png", "Draw it there, as .png, .svg or .pdf.")],
    names: Annotated[int, option("N", "Tokens to name in each panel.")] = 12,
) -> Answer:
    """Draw every token's products with p and v against what its occurrences say about the label.

    Examples:
        marginlens figure run --plot tokens.svg --names 20
    """
    from marginlens.plotting.files import FIGURE_SUFFIXES, write_figure
    from marginlens_papers.embeddings.token_panels import draw_tokens

    errors.whole_number(names, "names", at_least=0)
    files.check_place(plot, "plot", FIGURE_SUFFIXES)
    points, title = _read_points(source)
    write_figure(plot, draw_tokens(points, title=title, n_names=names))
    columns = zip(points.names or [""] * len(points.a), points.a, points.b, points.count, strict=True)
    named = [{"token": name, "a": a, "b": b, "count": count} for name, a, b, count in columns]
    return Answer({"title": title, "tokens": named, "plot": str(plot)}, written=[plot])


def _read_points(source: Path) -> tuple[TokenPoints, str]:
    """The tokens of a training run or a kept run, and what to call them."""
    from marginlens_papers.archive import read_run
    from marginlens_papers.embeddings.token_panels import TokenPoints
    from marginlens_papers.embeddings.train import TABLE

    if (source / TABLE).is_file():
        return _read_table(source / TABLE), f"Tokens of the run {source.resolve().name}"
    if source.is_file() and source.suffix.lower() == ".json":
        run = read_run(source)
        known = run.statistics
        return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, run.names), run.summary
    got = f"{str(source)!r}, which is {'something else' if source.exists() else 'not there'}"
    raise errors.reject("source", "a folder of a training run, or a kept run (.json)", got)


def _read_table(path: Path) -> TokenPoints:
    from marginlens_papers.embeddings.token_panels import TokenPoints

    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        difference, a, b = ([float(row[name]) for row in rows] for name in ("posterior_difference", "a", "b"))
        count = np.array([int(row["count"]) for row in rows])
        names = [row["token"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as problem:
        raise errors.reject("source", "a folder of a training run", f"{str(path)!r}, which cannot be read") from problem
    return TokenPoints.of(difference, a, b, count, names if any(names) else None)
