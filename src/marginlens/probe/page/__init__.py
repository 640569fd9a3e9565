"""A probe as one HTML page that needs nothing else: a map of the kinds of heads, and each head close up with its numbers."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2.utils import htmlsafe_json_dumps

from marginlens.data.tokens import TokenDataset
from marginlens.lab import LabProblem, permalink
from marginlens.lab.presets import state_of
from marginlens.pages import data_address, render
from marginlens.probe.heads.plane import QueryPlane
from marginlens.probe.heads.preferences import PreferenceGraph
from marginlens.probe.page.answers import ABLATION_ARGUMENT, answers, not_asked
from marginlens.probe.page.findings import findings, main_result
from marginlens.probe.result import HEAD_KINDS, JSON_DIGITS, MEASURE_TITLES, Example, Measure, ProbeResult
from marginlens.result import counted, jsonable

_MIN_RELATIVE_RANGE = 0.1  # of the largest number: a smaller range of a measure is not spread over all colours
_PAGE_MEASURES = (  # what the page shows of a head, the most telling first: the first twelve that have numbers
    *(kind.measure for kind in HEAD_KINDS.values() if kind.measure),
    "relative_nnz",
    "margin_median",
    "correlation",
    "correlation_random_head",
    "output_divergence",
    "output_change",
    "negligible_share",
    "tied_share",
    "frobenius",
    "learned_sink_share",
    "sink_share",
    "top_probability",
)
MAX_NUMBERS = 12  # of a head on the page; probe.json and `to_frame` have all
_INCH, _FRAME = 70.0, 4.0  # pixels of an inch of a graph's layout, and around the whole


def probe_page(
    result: ProbeResult,
    *,
    introduction: Sequence[str] = (),
    back: str = "",
    lab: str = "",
    ablation_option: str = ABLATION_ARGUMENT,
) -> str:
    """The page's text.

    Args:
        introduction: sentences that stand above what the numbers say, e.g. on where the inputs come from.
        back: address of the page that this one belongs to, linked at the top.
        lab: address of a page that `marginlens.lab.write_lab` wrote, such as lab.html; it opens a head and a sentence there.
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
        main_result=main_result(result),
        kinds=[
            (kind.title, kind.says, found) for name, kind in HEAD_KINDS.items() if (found := _heads_of(result, name))
        ],
        introduction=introduction,
        answers=answers(result),
        findings=findings(result),
        notes=(*result.notes, *not_asked(result, ablation_option)),
        # JSON that no text in it can end, and no browser reads as markup
        data=htmlsafe_json_dumps(page_data(result, lab), ensure_ascii=True, allow_nan=False, separators=(",", ":")),
    )


def _heads_of(result: ProbeResult, kind: str) -> list[str]:
    """The names of the heads of a kind."""
    return [result.head_name(layer, head) for layer, head in np.argwhere(result.kinds == kind).tolist()]


def page_measures(result: ProbeResult) -> list[Measure]:
    """The measures that the page shows, in their order."""
    known = {measure.name for measure in result.shown}
    chosen = [name for name in _PAGE_MEASURES if name in known][:MAX_NUMBERS]
    return [measure for measure in result.shown if measure.name in chosen]


def page_data(result: ProbeResult, lab: str = "") -> dict[str, Any]:
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
            for measure in page_measures(result)
        ],
        "kinds": result.kinds.tolist(),
        "kindWords": {name: [kind.title, kind.says, kind.measure] for name, kind in HEAD_KINDS.items()},
        "sinks": {
            f"{layer}.{head}": [row.name, row.share, row.expected] for (layer, head), row in result.head_sinks.items()
        },
        "margins": {"edges": jsonable(edges, JSON_DIGITS), "counts": counts.tolist()},
        "examples": [_example(example, lab) for example in result.examples],
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


def lab_problem(plane: QueryPlane, names: Sequence[str] | None = None) -> LabProblem:
    """A head's choice at one query as a problem of the lab: the selected token has score 1, all others 0, and p starts as the query.

    Keys are shortened and the query is lengthened by one factor, which changes no logit and brings both into one picture. `names` are
    what the tokens of the sentence are called.
    """
    factor = float(f"{np.sqrt(np.abs(plane.keys).max()):.4g}")
    keys = np.array([[float(f"{number / factor:.4g}") for number in key] for key in plane.keys.tolist()])
    data = TokenDataset([np.column_stack([keys, np.eye(len(keys))[0]])], [1.0], K=[keys])
    words = None if names is None else [[names[token] for token in plane.tokens]]
    return LabProblem(data, [0.0, 0.0, 1.0], [factor, 0.0], words=words)


def _lab_link(plane: QueryPlane, names: Sequence[str]) -> str:
    """The hash of the lab's address that shows the problem, all of it."""
    problem = lab_problem(plane, names)
    return permalink({**state_of(problem), "view": {"half": round(1.2 * float(problem.start[0]), 3)}})


def _example(example: Example, lab: str) -> dict[str, Any]:
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
        "planes": {
            f"{layer}.{head}": [
                plane.query,
                plane.tokens.tolist(),
                lab + _lab_link(plane, example.attended_tokens(layer)),
            ]
            for (layer, head), plane in example.planes.items()
            if lab
        },
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
