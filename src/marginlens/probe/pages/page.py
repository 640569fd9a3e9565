"""A probe as one HTML page that needs nothing else: a heat map over layers and heads for every measure, and each head close up."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from marginlens.data.tokens import FloatArray
from marginlens.pages import data_address, render
from marginlens.probe.measures import QUANTITIES, Measure
from marginlens.probe.pages.findings import findings
from marginlens.probe.pages.graph_drawing import graph_drawing
from marginlens.probe.result import Example, ProbeResult, plain

_MIN_RELATIVE_RANGE = 0.1  # of the largest number: a smaller range of a measure is not spread over all colours


def probe_page(result: ProbeResult, *, introduction: Sequence[str] = (), back: str = "") -> str:
    """The page's text.

    Args:
        introduction: sentences that stand above what the numbers say, e.g. on where the inputs come from.
        back: address of the page that this one belongs to, linked at the top.
    """
    return render(
        "marginlens.probe.pages",
        "heads.html",
        title=f"What the attention heads of {result.model} select",
        facts=_facts(result),
        back=back,
        introduction=introduction,
        findings=findings(result),
        notes=result.notes,
        data=_embedded(page_data(result)),
    )


def page_data(result: ProbeResult) -> dict[str, Any]:
    """Everything that the page draws, as plain values; attention maps as bytes from 0 to 255, and images as PNG, in base64."""
    edges, counts = result.margins.histogram()
    return {
        "model": result.model,
        "layers": result.n_layers,
        "heads": result.n_heads,
        "measures": [_measure(result, one) for one in result.measures],
        "margins": {"edges": plain(edges), "counts": counts.tolist()},
        "examples": [_example(one) for one in result.examples],
        "preferences": {
            f"{layer}.{head}": [[one.preferred, one.over, one.wins, one.losses, one.met] for one in rows]
            for (layer, head), rows in result.preferences.items()
        },
        "graphs": {f"{layer}.{head}": graph_drawing(one) for (layer, head), one in result.graphs.items()},
    }


def _measure(result: ProbeResult, measure: Measure) -> dict[str, Any]:
    values = result.measure(measure.name)
    return {
        "name": measure.name,
        "title": measure.title,
        "label": measure.label,
        "group": measure.group,
        "says": measure.says,
        "percent": measure.name.endswith("_share"),
        "range": list(_range(result, measure.name, values)),
        "values": plain(values),
    }


def _range(result: ProbeResult, name: str, values: FloatArray) -> tuple[float, float]:
    """The ends of a measure's colours: its own smallest and largest number, or those of all it is to be compared with."""
    family = next((one for one in QUANTITIES if name.startswith(one)), None)
    shown = [result.measure(one.name) for one in result.measures if family and one.name.startswith(family)] or [values]
    together = np.concatenate([one.ravel() for one in shown])
    low, high = (float(np.nanquantile(together, share)) for share in (0.0, 1.0))
    least = _MIN_RELATIVE_RANGE * max(abs(low), abs(high))
    if high - low < least:  # equal up to noise: one colour, not the full contrast
        low, high = (low + high - least) / 2.0, (low + high + least) / 2.0
    return float(f"{low:.6g}"), float(f"{high:.6g}")


def _example(example: Example) -> dict[str, Any]:
    """One input; where its tokens are patches, of which there are many, each map has its own largest value for 255."""
    peaks = np.ones(example.attention.shape[:3])
    if example.grid is not None:
        peaks = np.maximum(example.attention.max(axis=-1), np.finfo(np.float32).tiny).astype(float)
    levels = np.clip(np.rint(255.0 * example.attention / peaks[..., None]), 0, 255).astype(np.uint8)
    return {
        "name": example.name,
        "tokens": list(example.tokens),
        "queries": example.queries.tolist(),
        "grid": None if example.grid is None else list(example.grid),
        "image": None if example.image is None else _png(example.image),
        "maps": b64encode(levels.tobytes()).decode("ascii"),
        "peaks": None if example.grid is None else plain(peaks[..., 0]),
        "selected": example.selected.tolist(),
        "margins": [[[None if one is None else float(f"{one:.3g}") for one in row] for row in layer]
                    for layer in plain(example.margins)],
    }  # fmt: skip


def _png(image: npt.NDArray[np.uint8]) -> str:
    """An image as an address that holds it: grey where it has one channel, the first three as red, green and blue where it has more."""
    from PIL import Image

    stream = BytesIO()
    channels = image[..., 0] if image.shape[-1] < 3 else image[..., :3]
    Image.fromarray(np.ascontiguousarray(channels)).save(stream, format="PNG", optimize=True)
    return data_address(stream.getvalue(), "image/png")


def _embedded(data: Any) -> Markup:
    """JSON that no text in it can end, and no browser reads as markup."""
    return htmlsafe_json_dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _facts(result: ProbeResult) -> list[str]:
    facts = [
        f"{result.n_layers} layers of {result.n_heads} heads",
        f"{result.n_inputs:,} inputs, {result.n_queries:,} queries",
        f"{result.mean_tokens:.1f} visible tokens on average",
    ]
    return [*facts, f"{result.seconds:.0f} s of computing"] if np.isfinite(result.seconds) else facts
