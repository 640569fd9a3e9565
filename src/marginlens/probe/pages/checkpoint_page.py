"""Curves over checkpoints as one HTML page that needs nothing else: what they say, the figures, and where each layer began and ended."""

from __future__ import annotations

from typing import NamedTuple

from marginlens.pages import data_address, render
from marginlens.papers import BIBLIOGRAPHY
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.measures import QUANTITIES, SETTINGS
from marginlens.probe.pages.checkpoint_figure import MAIN, draw_curves
from marginlens.probe.pages.checkpoint_words import MIN_CHECKPOINTS, change, training_findings

_MEANS = (
    "Every line is the mean over the heads of one layer. nnz/T is the soft count of attended tokens over the number of visible "
    "ones: 1 is even attention, 1/T is one token. W is the combined key-query matrix of a head."
)
_BASELINES = (
    "The max-margin W of a head is the shortest one that makes the head's own selections by a logit margin of 1. Dashed are the "
    "baselines, means over all heads: the same W at selections drawn at random, random weights at the head's selections (random W), and "
    "random weights at the selections that they make themselves (random head). Of margins only the last is drawn: the others miss some "
    "selections, which makes their smallest margin negative."
)


def checkpoint_page(curves: CheckpointCurves) -> str:
    """The page's text."""
    main = [measure.name for measure in curves.shown if measure.name in MAIN]
    others = [m.name for m in curves.shown if m.name not in MAIN and not _is_baseline(m.name)]
    paper = BIBLIOGRAPHY["A"]
    baselines = [_BASELINES] if "correlation" in main else []
    return render(
        "marginlens.probe.pages",
        "checkpoints.html",
        title="What attention heads select over training",
        facts=[
            curves.model,
            f"{len(curves.names)} checkpoints, {curves.names[0]} to {curves.names[-1]}",
            f"{curves.n_inputs:,} inputs",
        ],
        back="",
        introduction=(),
        findings=training_findings(curves),
        notes=curves.notes,
        about=[_MEANS, *baselines, f"Paper A is {paper.authors}: {paper.title} ({paper.year})."],
        main=_panels(curves, main, 2),
        has_trend=len(curves.names) >= MIN_CHECKPOINTS,
        columns=[MAIN[name] for name in main],
        rows=[[change(curves, name, layer) for name in main] for layer in range(curves.n_layers)],
        others=_panels(curves, others, 3),
    )


class _Panels(NamedTuple):
    address: str
    words: str


def _panels(curves: CheckpointCurves, names: list[str], columns: int) -> _Panels:
    """A figure with one panel for each measure, as an address that holds it, and what it shows in words."""
    from marginlens.plotting.files import svg

    words = f"Curves over {len(curves.names)} checkpoints, one panel for each of {len(names)} measures"
    return _Panels(data_address(svg(draw_curves(curves, names, columns)), "image/svg+xml"), words)


def _is_baseline(name: str) -> bool:
    return any(name == quantity + ending for quantity in QUANTITIES for ending in SETTINGS if ending)
