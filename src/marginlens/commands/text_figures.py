"""The work behind `marginlens text figure`: tokens from a model, a training run or a kept run, drawn in two panels."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from marginlens.data.files import write_whole
from marginlens.embeddings.picture import TokenPoints, draw_tokens
from marginlens.embeddings.results import TABLE
from marginlens.embeddings.saving import FACTS
from marginlens.errors import reject

_EXPECTED = "a model's folder, a folder of a training run, or a kept run (.json)"


def draw(source: Path, plot: Path, n_names: int) -> None:
    """Write the picture of the tokens that a place holds."""
    from marginlens.report import figures

    points, title = read_points(source)
    fig = draw_tokens(points, title=title, n_names=n_names)
    write_whole(plot, (figures.svg if plot.suffix.lower() == ".svg" else figures.png)(fig), "plot")


def read_points(source: Path) -> tuple[TokenPoints, str]:
    """The tokens that a place holds, and what to call them."""
    if (source / FACTS).is_file():
        from marginlens.embeddings.classifier import AttentionTextClassifier

        model = AttentionTextClassifier.load(source)
        known = model.statistics_
        points = TokenPoints.of(known.posterior_difference, model.a_, model.b_, known.count, model.tokens_.names)
        negative, positive = (str(name) for name in model.classes_)
        points = replace(points, classes=(f"texts of class {negative!r}", f"texts of class {positive!r}"))
        return points, f"What each token says to the classifier in {source.resolve().name!r}"
    if (source / TABLE).is_file():
        return _table(source / TABLE), f"Tokens of the run {source.resolve().name}"
    if source.is_file() and source.suffix.lower() == ".json":
        from marginlens.embeddings.keeping import read_kept

        run = read_kept(source)
        known = run.statistics
        return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, run.names), run.told
    got = f"{str(source)!r}, which is {'something else' if source.exists() else 'not there'}"
    raise reject("source", _EXPECTED, got)


def _table(place: Path) -> TokenPoints:
    try:
        with place.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        names_of = ("posterior_difference", "a", "b")
        difference, a, b = (np.array([float(row[name]) for row in rows]) for name in names_of)
        count = np.array([int(row["count"]) for row in rows])
        names = [row["token"] for row in rows]
    except OSError as problem:
        raise reject("source", _EXPECTED, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except (ValueError, KeyError, TypeError, csv.Error) as problem:
        raise reject("source", _EXPECTED, f"{str(place)!r}, which cannot be read") from problem
    return TokenPoints.of(difference, a, b, count, names if any(names) else None)
