"""The difference of two models as one HTML page: a heat map over layers and heads for every measure, and each head close up."""

from __future__ import annotations

from typing import Any

import numpy as np
from jinja2.utils import htmlsafe_json_dumps

from marginlens.pages import render
from marginlens.probe.difference import TOTAL_VARIATION, ProbeDifference
from marginlens.probe.result import JSON_DIGITS, Measure
from marginlens.result import counted, jsonable

_ROWS = 12  # heads in the table of those that changed most


def difference_page(difference: ProbeDifference) -> str:
    """The page's text."""
    probed, against = difference.probed, difference.against
    return render(
        "marginlens.probe.page",
        "difference.html",
        title=f"{probed.model} against {against.model}",
        facts=[
            f"{probed.family}, {difference.size_words}",
            f"{counted(probed.n_inputs, 'input')}, {counted(probed.n_queries, 'query', 'queries')}",
        ],
        back="",
        introduction=(),
        findings=difference.sentences(),
        notes=difference.notes,
        names={"probed": probed.model, "against": against.model},
        columns=list(difference.rows(1)[0]) if difference.changed_heads(1) else [],
        rows=[[_cell(value) for value in row.values()] for row in difference.rows(_ROWS)],
        addresses=[f"#L{layer}H{head}" for layer, head in difference.changed_heads(_ROWS)],
        data=htmlsafe_json_dumps(page_data(difference), ensure_ascii=True, allow_nan=False, separators=(",", ":")),
    )


def page_data(difference: ProbeDifference) -> dict[str, Any]:
    """Everything that the page draws, as plain values."""
    return {
        "probed": difference.probed.model,
        "against": difference.against.model,
        "layers": difference.n_layers,
        "layerNames": [difference.probed.layer_name(layer) for layer in range(difference.n_layers)],
        "heads": difference.n_heads,
        "measures": [_measure_data(difference, measure) for measure in difference.shown],
        "start": list(difference.changed_heads(1)[0]) if difference.changed_heads(1) else [0, 0],
    }


def _measure_data(difference: ProbeDifference, measure: Measure) -> dict[str, Any]:
    """A measure's differences, what both models have, and the largest modulus, which the colours are scaled to."""
    is_distance = measure.name == TOTAL_VARIATION.name
    largest = float(np.nanmax(np.abs(difference[measure.name])))
    return {
        **measure._asdict(),
        "label": measure.label,
        "percent": measure.is_share,
        "distance": is_distance,
        "largest": float(f"{largest:.6g}"),
        "values": jsonable(difference[measure.name], JSON_DIGITS),
        "probed": None if is_distance else jsonable(difference.probed[measure.name], JSON_DIGITS),
        "against": None if is_distance else jsonable(difference.against[measure.name], JSON_DIGITS),
    }


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
