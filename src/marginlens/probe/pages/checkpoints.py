"""Curves over the checkpoints of a training run: their figure, and an HTML page with what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from marginlens.pages import data_address, render
from marginlens.papers import BIBLIOGRAPHY
from marginlens.plotting.files import svg
from marginlens.plotting.style import ACCENTS, PATH, SEQUENCE, STYLE
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.measures import MEASURES, QUANTITIES, SETTINGS
from marginlens.probe.pages.checkpoint_findings import MIN_CHECKPOINTS, change, training_findings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
MAIN = {  # what is drawn first, and the words above it
    "relative_nnz": "nnz/T, all queries",
    "first_relative_nnz": "nnz/T, query of the first token",
    "frobenius": "Frobenius norm of W",
    "margin_median": "median logit margin of the selection",
    "correlation": "correlation of W with the max-margin W",
    "margin_ratio": "smallest margin over the best",
}
_WORDS = {
    **{one.name: f"{one.group}: {one.label}" for one in MEASURES},
    "low_ratio": "5% margin over the best",
    **MAIN,
}
_WIDE, _HIGH = 5.2, 3.4  # inches of a panel with what stands around it
_LEFT, _TOP, _BELOW = 0.75, 0.4, 0.6  # inches beside, above and below its axes
_HEADROOM = 1.08  # the upper end of an axis over the largest number on it, so that no curve lies on the frame
_BASELINE_CURVES = tuple(
    (ending, f"baseline: {title}", colour, dashes)
    for (ending, (title, _)), colour, dashes in zip(
        list(SETTINGS.items())[1:], (ACCENTS[0], ACCENTS[3], PATH), ((4, 2), (1, 1.5), (6, 2, 1, 2)), strict=True
    )
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
    words = f"Curves over {len(curves.names)} checkpoints, one panel for each of {len(names)} measures"
    return _Panels(data_address(svg(draw_curves(curves, names, columns)), "image/svg+xml"), words)


def _is_baseline(name: str) -> bool:
    return any(name == quantity + ending for quantity in QUANTITIES for ending in SETTINGS if ending)


# ---- the figure


def draw_curves(curves: CheckpointCurves, names: Sequence[str], columns: int = 2) -> Figure:
    """A panel for each of these measures; a baseline, which is no panel of its own, is its mean over layers.

    Of the baselines of a margin only that of random heads is drawn: the others miss selections, so that they lie far below zero.

    Args:
        names: of the measures; of the max-margin part those at the head's own selections, such as correlation.
        columns: panels side by side.
    """
    n_rows, n_signs = -(-len(names) // columns), curves.n_layers + 3
    across = 2 * columns + 1
    foot = 0.3 + 0.22 * -(-n_signs // across)
    width, height = _WIDE * columns, _HIGH * n_rows + foot
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        for k, name in enumerate(names):
            left, top = _WIDE * (k % columns) + _LEFT, height - _HIGH * (k // columns) - _TOP
            size = (_WIDE - _LEFT - 0.2, _HIGH - _TOP - _BELOW)
            axes = figure.add_axes((left / width, (top - size[1]) / height, size[0] / width, size[1] / height))
            _panel(axes, curves, name)
        found = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes)
        signs = {label: handle for pairs in found for handle, label in pairs}
        shown = sorted(signs, key=lambda label: label.startswith("baseline"))  # layers first
        figure.legend([signs[one] for one in shown], shown, loc="lower center", ncols=min(len(shown), across))
    return figure


def _panel(axes: Axes, curves: CheckpointCurves, name: str) -> None:
    colours = mpl.colormaps[SEQUENCE](np.linspace(0.0, 0.86, curves.n_layers))
    for layer, curve in enumerate(curves.by_layer(name).T):
        look: dict[str, Any] = {"color": colours[layer], "marker": "o", "markersize": 3.5}
        axes.plot(curves.steps, curve, label=f"layer {layer}", **look)
    if name in QUANTITIES:
        for ending, label, colour, dashes in _BASELINE_CURVES if name == "correlation" else _BASELINE_CURVES[-1:]:
            means = _mean_over_layers(curves, name + ending)
            axes.plot(curves.steps, means, label=label, color=colour, linestyle=(0, dashes), linewidth=1.6)
    rank = curves.trend(name)[-1]
    enough = np.isfinite(rank) and len(curves.names) >= MIN_CHECKPOINTS
    said = f" · last layer: rank correlation {rank:.2f}".replace("-", "−") if enough else ""
    axes.set(xlabel=f"checkpoint{said}", title=_WORDS[name])
    axes.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))
    shown = np.concatenate([line.get_ydata() for line in axes.lines])
    if np.nanmin(shown) >= 0.0 and np.nanmax(shown) > 0.0:
        axes.set_ylim(0.0, _HEADROOM * np.nanmax(shown))


def _mean_over_layers(curves: CheckpointCurves, name: str) -> Any:
    """(n_checkpoints,) the mean of a measure over all heads that have it."""
    values = curves.measures[name].reshape(len(curves.names), -1)
    return np.array([np.mean(one[np.isfinite(one)]) if np.isfinite(one).any() else np.nan for one in values])
