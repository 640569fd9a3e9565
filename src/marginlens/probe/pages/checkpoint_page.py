"""Curves over checkpoints as one HTML page that needs nothing else: what they say, the figures, and where each layer began and ended."""

from __future__ import annotations

from base64 import b64encode
from html import escape

import numpy as np

from marginlens.papers import BIBLIOGRAPHY
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.measures import QUANTITIES, SETTINGS
from marginlens.probe.pages.checkpoint_figure import MAIN, draw_curves
from marginlens.probe.pages.checkpoint_words import MIN_CHECKPOINTS, change, training_findings
from marginlens.probe.pages.page_shell import paragraphs, seen, whole_page

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
    main = [one.name for one in curves.shown if one.name in MAIN]
    others = [one.name for one in curves.shown if one.name not in MAIN and not _is_baseline(one.name)]
    has_margins = "correlation" in main
    paper = BIBLIOGRAPHY["A"]
    about = paragraphs(
        [
            _MEANS,
            *([_BASELINES] if has_margins else []),
            f"Paper A is {paper.authors}: {paper.title} ({paper.year}).",
        ]
    )
    body = (
        f"{seen(training_findings(curves), curves.notes)}"
        f'<section class="curves">\n<h2>Over training</h2>\n{about}{_figure(curves, main, 2)}</section>\n'
        f'<section class="curves">\n<h2>Every layer, first → last checkpoint</h2>\n'
        f"<p>Means over the heads of a layer{_in_brackets(curves)}.</p>\n"
        f"{_table(curves, main)}</section>\n"
        f'<section class="curves">\n<h2>The other measures</h2>\n{_figure(curves, others, 3)}</section>\n</main>\n'
    )
    facts = [
        curves.model,
        f"{len(curves.names)} checkpoints, {curves.names[0]} to {curves.names[-1]}",
        f"{curves.n_inputs:,} inputs",
    ]
    return whole_page("What attention heads select over training", facts, body)


def _in_brackets(curves: CheckpointCurves) -> str:
    return "; in brackets the rank correlation with the step" if len(curves.names) >= MIN_CHECKPOINTS else ""


def _is_baseline(name: str) -> bool:
    return any(name == one + ending for one in QUANTITIES for ending in SETTINGS if ending)


def _figure(curves: CheckpointCurves, names: list[str], columns: int) -> str:
    from marginlens.report.figures import svg

    drawing = b64encode(svg(draw_curves(curves, names, columns))).decode("ascii")
    words = f"Curves over {len(curves.names)} checkpoints, one panel for each of {len(names)} measures"
    return f'<figure><img src="data:image/svg+xml;base64,{drawing}" alt="{escape(words, quote=True)}"></figure>\n'


def _table(curves: CheckpointCurves, names: list[str]) -> str:
    heads = "".join(f'<th scope="col">{escape(MAIN[name])}</th>' for name in names)
    rows = "".join(
        f'<tr><th scope="row">{layer}</th>{"".join(f"<td>{escape(change(curves, name, layer))}</td>" for name in names)}</tr>\n'
        for layer in np.arange(curves.n_layers).tolist()
    )
    return (
        '<div class="scroll"><table class="rows ends">\n'
        f'<thead><tr><th scope="col">layer</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n'
    )
