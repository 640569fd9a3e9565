"""Curves over the checkpoints of a training run: their figure, and an HTML page with what they say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps

from marginlens.errors import require
from marginlens.pages import data_address, render
from marginlens.papers import BIBLIOGRAPHY
from marginlens.probe.monitor.alarms import Alarm, alarm_summary
from marginlens.probe.page.findings import change, training_findings
from marginlens.probe.result import MEASURE_TITLES, MEASURES, CheckpointCurves, Measure
from marginlens.result import counted, jsonable
from marginlens.typing import Figure

_MAX_POINTS = 120  # of a head's curve on the page: more cannot be told apart, and 144 heads have many

_MEANS = (
    "Every line is the mean over the heads of one layer. nnz/T is the soft count of attended tokens over the number of visible "
    "ones: 1 is even attention, 1/T is one token. W is the combined key-query matrix of a head."
)
_BASELINES = (
    "The max-margin W of a head is the shortest one that makes the head's own selections by a logit margin of 1. Dashed is the "
    "mean over random heads: random weights at the selections that they make themselves."
)
MAIN = {  # what is drawn first, and the words above it
    "relative_nnz": "nnz/T, all queries",
    "first_relative_nnz": "nnz/T, query of the first token",
    "frobenius": "Frobenius norm of W",
    "margin_median": "median logit margin of the selection",
    "correlation": "correlation of W with the max-margin W",
    "margin_ratio": "smallest margin over the best",
}
_TITLES = {measure.name: f"{measure.group}: {measure.label}" for measure in MEASURES}
_TITLES |= {"low_ratio": "5% margin over the best", **MAIN}


def checkpoint_page(curves: CheckpointCurves, alarms: Sequence[Alarm] | None = None) -> str:
    """The page's text.

    Args:
        alarms: of a run that a monitor watched; they stand on top, and their heads are framed.
    """
    main = [name for name in MAIN if name in _drawn(curves)]
    others = [name for name in _drawn(curves) if name not in MAIN]
    paper = BIBLIOGRAPHY["A"]
    kind = "checkpoint" if alarms is None else "measurement"
    return render(
        "marginlens.probe.page",
        "checkpoints.html",
        title="What attention heads select over training",
        facts=[
            curves.model,
            f"{counted(len(curves.names), kind)}, {curves.names[0]} to {curves.names[-1]}",
            counted(curves.n_inputs, "input"),
        ],
        back="",
        introduction=() if alarms is None or alarms else ("No alarm was raised.",),
        alarms=alarm_summary(alarms or ()),
        findings=training_findings(curves),
        notes=curves.notes,
        about=[
            _MEANS,
            *([_BASELINES] if "correlation" in main else []),
            f"Paper A is {paper.authors}: {paper.title} ({paper.year}).",
        ],
        figures=[_embedded(curves, main, 2), _embedded(curves, others, 3)],
        has_trend=curves.can_have_trend,
        columns=[MAIN[name] for name in main],
        rows={
            curves.layer_name(layer): [change(curves, name, layer) for name in main] for layer in range(curves.n_layers)
        },
        data=htmlsafe_json_dumps(_page_data(curves, alarms), ensure_ascii=True, allow_nan=False),
    )


def _page_data(curves: CheckpointCurves, alarms: Sequence[Alarm] | None) -> dict[str, Any]:
    """The curves of every head as plain values, and which heads have an alarm."""
    return {
        "layers": curves.n_layers,
        "layerNames": [curves.layer_name(layer) for layer in range(curves.n_layers)],
        "heads": curves.n_heads,
        "measures": [_measure_data(curves, measure) for measure in curves.shown],
        "axis": "checkpoint" if alarms is None else "optimizer step",
        "alarms": [[alarm.layer, head] for alarm in alarms or () for head in alarm.heads or (None,)],
    }


def _measure_data(curves: CheckpointCurves, measure: Measure) -> dict[str, Any]:
    """One measure at the steps that have it, of which a long run shows some, evenly spread."""
    values = curves[measure.name]
    known = np.flatnonzero(np.isfinite(values).any(axis=(1, 2)))
    spread = np.linspace(0, len(known) - 1, min(_MAX_POINTS, len(known))).round().astype(int)
    places = known[np.unique(spread)]
    low, high = float(np.nanmin(values[places])), float(np.nanmax(values[places]))
    if 0.0 <= low < 0.5 * high:  # a scale from zero, unless the numbers are far from it
        low = 0.0
    return {
        **measure._asdict(),
        "label": measure.label,
        "percent": measure.name.endswith("_share"),
        "steps": jsonable(curves.steps[places], 9),
        "range": jsonable(np.array([low, high]), 4),
        "values": jsonable(values[places], 4),
    }


def _drawn(curves: CheckpointCurves) -> list[str]:
    """The measures with a panel: a baseline stands in the panel of what it is a baseline of."""
    names = [measure.name for measure in curves.shown]
    return [name for name in names if name in MEASURE_TITLES or not name.startswith(tuple(MEASURE_TITLES))]


def _embedded(curves: CheckpointCurves, names: list[str], columns: int) -> dict[str, str]:
    """A figure with one panel for each measure, as an address that holds it, and what it shows in words."""
    words = f"Curves over {counted(len(curves.names), 'checkpoint')}, one panel for each of {counted(len(names), 'measure')}"
    from marginlens.plotting import svg

    return {"address": data_address(svg(draw_curves(curves, names, columns)), "image/svg+xml"), "words": words}


def draw_curves(curves: CheckpointCurves, names: Sequence[str] | None = None, columns: int = 2) -> Figure:
    """A panel for each of these measures, `columns` side by side, with one legend; by default the main ones."""
    require("matplotlib", "plot", "A figure")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from marginlens.plotting import STYLE

    chosen = [name for name in MAIN if name in _drawn(curves)] if names is None else names
    n_rows = -(-len(chosen) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * columns, 3.4 * n_rows + 0.5), layout="constrained")
        panels = [figure.add_subplot(n_rows, columns, k + 1) for k in range(len(chosen))]
        for axes, name in zip(panels, chosen, strict=True):
            curves.plot(axes, measure=name).set_title(_TITLES[name])
        pairs = (pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True))
        signs = {label: handle for handle, label in pairs}
        shown = sorted(signs, key=lambda label: label.startswith("baseline"))  # layers first
        n_columns = min(len(shown), 2 * columns + 1)
        figure.legend([signs[label] for label in shown], shown, loc="outside lower center", ncols=n_columns)
    return figure
