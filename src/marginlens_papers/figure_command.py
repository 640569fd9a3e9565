"""`marginlens text figure`: every token's products with p and v against what its occurrences say about the label."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from marginlens.cli._deferred import errors, files, np
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import argument, option, refuse_options

if TYPE_CHECKING:
    from marginlens_papers.embeddings.token_panels import TokenPoints


@command(folder="{source}", path="{source}")
def figure(
    source: Annotated[
        Path, argument("MODEL_OR_RESULT", "A model's folder, a folder of a training run, or a kept run (.json).")
    ],
    plot: Annotated[Path, option("OUT.png", "Draw it there, as .png, .svg or .pdf.")],
    names: Annotated[int, option("N", "Tokens to name in each panel.")] = 12,
    label: Annotated[
        str | None,
        option("LABEL", "Draw what tokens say for this class; a model of more than two needs it.", name="--class"),
    ] = None,
) -> Answer:
    """Draw every token's products with p and v against what its occurrences say about the label.

    Examples:
        marginlens text figure model --plot tokens.png
        marginlens text figure model --class sports --plot sports.pdf --names 20
        marginlens text figure run --plot embeddings.svg
    """
    from marginlens.plotting.files import FIGURE_SUFFIXES, write_figure
    from marginlens_papers.embeddings.token_panels import draw_tokens

    errors.whole_number(names, "names", at_least=0)
    files.check_place(plot, "plot", FIGURE_SUFFIXES)
    points, title = _read_points(source, label)
    write_figure(plot, draw_tokens(points, title=title, n_names=names))
    columns = zip(points.names or [""] * len(points.a), points.a, points.b, points.count, strict=True)
    named = [{"token": name, "a": a, "b": b, "count": count} for name, a, b, count in columns]
    return Answer({"title": title, "tokens": named, "plot": str(plot)}, written=[plot])


def _read_points(source: Path, label: str | None) -> tuple[TokenPoints, str]:
    """The tokens of a model, a training run or a kept run, and what to call them."""
    from marginlens.text.classifier import SETTINGS_FILE, AttentionTextClassifier
    from marginlens_papers.archive import read_run
    from marginlens_papers.embeddings.token_panels import TokenPoints
    from marginlens_papers.embeddings.train import TABLE

    if (source / SETTINGS_FILE).is_file():
        model = AttentionTextClassifier.load(source)
        return _model_points(model, label), f"What each token says to the classifier in {source.resolve().name!r}"
    refuse_options("unless a model is drawn", label=label)
    if (source / TABLE).is_file():
        return _read_table(source / TABLE), f"Tokens of the run {source.resolve().name}"
    if source.is_file() and source.suffix.lower() == ".json":
        run = read_run(source)
        known = run.statistics
        return TokenPoints.of(known.posterior_difference, run.a, run.b, known.count, run.names), run.summary
    got = f"{str(source)!r}, which is {'something else' if source.exists() else 'not there'}"
    raise errors.reject("source", "a model's folder, a folder of a training run, or a kept run (.json)", got)


def _model_points(model: Any, label: str | None) -> TokenPoints:
    """The tokens of a model, as they speak for a class: the second one of two unless another is asked for."""
    from marginlens_papers.embeddings.token_panels import TokenPoints

    classes = [str(name) for name in model.classes_]
    if label is None and len(classes) > 2:
        raise errors.reject("label", f"given for a model of {len(classes)} classes, one of {_listed(classes)}", "none")
    if label is not None and label not in classes:
        raise errors.reject("label", f"one of {_listed(classes)}", repr(label))
    k = 1 if label is None else classes.index(label)
    votes = (1.0 if k else -1.0) * model.b_ if model.b_.ndim == 1 else model.b_[:, k]
    known = model.statistics_of(model.classes_[k])
    points = TokenPoints.of(known.posterior_difference, model.a_, votes, known.count, model.tokens_.names)
    others = f"texts of class {classes[1 - k]!r}" if len(classes) == 2 else "texts of other classes"
    return replace(points, classes=(others, f"texts of class {classes[k]!r}"))


def _listed(classes: list[str]) -> str:
    return ", ".join(map(repr, classes[:12])) + (", ..." if len(classes) > 12 else "")


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
