"""A probe as one HTML page that needs nothing else: a heat map over layers and heads for every measure, and each head close up."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2.utils import htmlsafe_json_dumps

from marginlens.pages import data_address, render
from marginlens.probe.heads.preferences import PreferenceGraph
from marginlens.probe.page.answers import ABLATION_ARGUMENT, answers
from marginlens.probe.page.findings import findings
from marginlens.probe.result import JSON_DIGITS, MEASURE_TITLES, Example, Measure, ProbeResult
from marginlens.result import counted, jsonable

_MIN_RELATIVE_RANGE = 0.1  # of the largest number: a smaller range of a measure is not spread over all colours
_INCH, _FRAME = 70.0, 4.0  # pixels of an inch of a graph's layout, and around the whole


def probe_page(
    result: ProbeResult, *, introduction: Sequence[str] = (), back: str = "", ablation_option: str = ABLATION_ARGUMENT
) -> str:
    """The page's text.

    Args:
        introduction: sentences that stand above what the numbers say, e.g. on where the inputs come from.
        back: address of the page that this one belongs to, linked at the top.
        ablation_option: what to give to have heads silenced, which the page says where they were not.
    """
    facts = [
        result.size_words,
        f"{counted(result.n_inputs, 'input')}, {counted(result.n_queries, 'query', 'queries')}",
        f"{result.mean_tokens:.1f} visible tokens on average",
        *([f"{result.seconds:.0f} s of computing"] if np.isfinite(result.seconds) else []),
    ]
    return render(
        "marginlens.probe.page",
        "heads.html",
        title=f"What the attention heads of {result.model} select",
        facts=facts,
        back=back,
        introduction=introduction,
        answers=answers(result, ablation_option),
        findings=findings(result),
        notes=result.notes,  # JSON that no text in it can end, and no browser reads as markup
        data=htmlsafe_json_dumps(page_data(result), ensure_ascii=True, allow_nan=False, separators=(",", ":")),
    )


def page_data(result: ProbeResult) -> dict[str, Any]:
    """Everything that the page draws, as plain values; attention maps as bytes from 0 to 255, and images as PNG, in base64."""
    edges, counts = result.margins.histogram()
    return {
        "model": result.model,
        "layers": result.n_layers,
        "layerNames": [result.layer_name(layer) for layer in range(result.n_layers)],
        "heads": result.n_heads,
        "measures": [
            {
                **measure._asdict(),
                "label": measure.label,
                "percent": measure.is_share,
                "range": _range(result, measure),
                "values": jsonable(result[measure.name], JSON_DIGITS),
            }
            for measure in result.shown
        ],
        "sinks": {
            f"{layer}.{head}": [row.name, row.share, row.expected] for (layer, head), row in result.head_sinks.items()
        },
        "margins": {"edges": jsonable(edges, JSON_DIGITS), "counts": counts.tolist()},
        "examples": [_example(example) for example in result.examples],
        "preferences": {
            f"{layer}.{head}": [[row.preferred, row.over, row.wins, row.losses, row.met] for row in rows]
            for (layer, head), rows in result.preferences.items()
        },
        "graphs": {f"{layer}.{head}": graph_drawing(graph) for (layer, head), graph in result.graphs.items()},
    }


def _range(result: ProbeResult, measure: Measure) -> list[float]:
    """The ends of a measure's colours: its own smallest and largest number, or those of all it is to be compared with."""
    kin = next((name for name in MEASURE_TITLES if measure.name.startswith(name)), measure.name)
    shown = [known.name for known in result.shown if known.name.startswith(kin) and kin in MEASURE_TITLES] or [
        measure.name
    ]
    values = np.concatenate([result[name].ravel() for name in shown])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    least = _MIN_RELATIVE_RANGE * max(abs(low), abs(high))
    if high - low < least:  # equal up to noise: one colour, not the full contrast
        low, high = (low + high - least) / 2.0, (low + high + least) / 2.0
    return [float(f"{low:.6g}"), float(f"{high:.6g}")]


def _example(example: Example) -> dict[str, Any]:
    """One input; where its tokens are patches, of which there are many, each map has its own largest value for 255."""
    peaks = np.ones(example.attention.shape[:3])
    if example.grid is not None:
        peaks = np.maximum(example.attention.max(axis=-1), np.finfo(np.float32).tiny).astype(float)
    levels = np.clip(np.rint(255.0 * example.attention / peaks[..., None]), 0, 255).astype(np.uint8)
    return {
        **example.to_dict(),
        "grid": example.grid,
        "image": None if example.image is None else _png(example.image),
        "maps": b64encode(levels.tobytes()).decode("ascii"),
        "peaks": None if example.grid is None else jsonable(peaks[..., 0], JSON_DIGITS),
        "margins": jsonable(example.margins, 3),
    }


def _png(image: npt.NDArray[np.uint8]) -> str:
    """An image as an address that holds it: grey where it has one channel, the first three as red, green and blue where it has more."""
    from PIL import Image

    stream = BytesIO()
    channels = image[..., 0] if image.shape[-1] < 3 else image[..., :3]
    Image.fromarray(np.ascontiguousarray(channels)).save(stream, format="PNG", optimize=True)
    return data_address(stream.getvalue(), "image/png")


def graph_drawing(preferences: PreferenceGraph) -> dict[str, Any]:
    """The layout of a head's preferences in pixels, which the page's script paints.

    Returns:
        size: width and height. boxes: left, top, width, height, kind and whether words stand above its names. arrows, inner: points
        x, y, x, y, …; inner are those inside a cycle. names: x and y of the middle, and the text.
    """
    from marginlens.plotting.graphs import Lettering, layered_layout

    lettering = Lettering(7.5 / _INCH, 16.0 / _INCH, 0.0, max_letters=16, max_ring_letters=16, max_width=500.0 / _INCH)
    layout = layered_layout(preferences.graph, dict(enumerate(preferences.names)), lettering)

    def pixels(inches: Any, offset: float = _FRAME) -> list[int]:
        return [round(_INCH * float(number) + offset) for number in np.ravel(inches)]

    return {
        "size": pixels((layout.width, layout.height), 2.0 * _FRAME),
        "boxes": [
            [*pixels(box.corner), *pixels((box.width, box.height), 0.0), box.kind.name.lower(), box.has_heading]
            for box in layout.boxes
        ],
        "arrows": [pixels(points) for points in layout.arrows],
        "inner": [pixels(points) for points in layout.inner_arrows],
        "names": [[*pixels((x, y)), text] for x, y, text in layout.texts],
    }
