"""Self-contained HTML pages: a probe with each head in detail, the difference of two models, and curves over training."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2.utils import htmlsafe_json_dumps

from marginlens.data.tokens import TokenDataset
from marginlens.errors import require
from marginlens.lab import permalink
from marginlens.lab.presets import state_of
from marginlens.lab.problem_files import LabProblem
from marginlens.pages import data_address
from marginlens.pages import render as render_template
from marginlens.papers import BIBLIOGRAPHY
from marginlens.probe.difference import TOTAL_VARIATION, ProbeDifference
from marginlens.probe.findings import answers, findings, main_results, training_findings
from marginlens.probe.heads.plane import QueryPlane
from marginlens.probe.heads.preferences import PreferenceGraph
from marginlens.probe.measures import BESIDE, HEAD_KINDS, MAX_MARGIN_GROUPS, MEASURES, Measure
from marginlens.probe.monitor.alarms import WITHDRAWN, Alarm, alarm_summary
from marginlens.probe.result import JSON_DIGITS, CheckpointCurves, Example, ProbeResult, evenly
from marginlens.result import counted, jsonable
from marginlens.typing import ArrayLike, Figure, FloatArray
from marginlens.words import text, texts

_MIN_RELATIVE_RANGE = 0.1  # of the largest number: a smaller range of a measure is not spread over all colours
_PAGE_MEASURES = (  # what the page shows of a head, the most telling first: the first twelve that have numbers
    *(kind.measure for kind in HEAD_KINDS.values() if kind.measure),
    "relative_nnz",
    "margin_median",
    "correlation",
    "correlation_random_head",
    "negligible_share",
    "tied_share",
    "frobenius",
    "learned_sink_share",
    "sink_share",
    "top_probability",
)
# All light enough for dark letters.
KIND_COLOURS = {
    "previous": "#8fc1ea",
    "next": "#9adfd0",
    "first": "#f2d48a",
    "same": "#eeb0cd",
    "separator": "#c9b6ee",
    "content": "#a9d694",
    "even": "#dcd8d0",
}
MAX_NAMED_HEADS = 12  # of a layer in a notebook: cells of more heads have colours only
MAX_NUMBERS = 12  # of a head on the page; probe.json and `to_frame` have all
_INCH, _FRAME = 70.0, 4.0  # pixels of an inch of a graph's layout, and around the whole
_ROWS = 12  # heads in the table of those that changed most
_MAX_POINTS = 120  # of a head's curve on the page: more cannot be told apart, and 144 heads have many

# The texts that scripts of the pages write, by the beginnings of their codes.
_SCRIPT_TEXTS = ("probe_page.", "head_kind_share.")
# The measures that are drawn first, if they were taken.
MAIN = ("relative_nnz", "first_relative_nnz", "frobenius", "margin_median", "correlation", "margin_ratio")


def _render(template: str, data: Mapping[str, object], **words: Any) -> str:
    """Render a page by its template, with what its script draws as JSON that no text in it can end, and no browser reads as markup."""
    plain, script_texts = (
        htmlsafe_json_dumps(values, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        for values in (data, {code: entry["en"] for code, entry in texts().items() if code.startswith(_SCRIPT_TEXTS)})
    )
    named = {"back": "", "introduction": (), "folded": "", **words}
    return render_template("marginlens.probe.page", template, data=plain, words=script_texts, **named)


def _grid_data(result: ProbeResult | ProbeDifference | CheckpointCurves) -> dict[str, Any]:
    """Return the numbers of layers and heads, and the names of layers."""
    names = [result.layer_name(layer) for layer in range(result.n_layers)]
    return {"layers": result.n_layers, "layerNames": names, "heads": result.n_heads}


def _measure_data(measure: Measure, values: FloatArray, digits: int = JSON_DIGITS) -> dict[str, Any]:
    """Return a measure in words, and its numbers."""
    words = {name: getattr(measure, name) for name in ("name", "title", "group", "says", "label")}
    return {**words, "percent": measure.is_share, "values": jsonable(values, digits)}


# ---- a probe


def probe_page(
    result: ProbeResult,
    *,
    introduction: Sequence[str] = (),
    back: str = "",
    lab: str = "",
) -> str:
    """Write the result of a probe as the text of a self-contained HTML page.

    Args:
        introduction: sentences above the findings, e.g. on the source of the inputs.

        back: the address of the page above this one, linked at the top.

        lab: the address of a page that `marginlens.lab.write_lab` wrote, such as lab.html, to which heads and sentences are
            linked.
    """
    facts = [
        result.size_words,
        f"{counted(result.n_inputs, 'input')}, {counted(result.n_queries, 'query', 'queries')}",
        text("probe_fact.visible", n_tokens=result.mean_tokens),
        *([text("probe_fact.seconds", seconds=result.seconds)] if np.isfinite(result.seconds) else []),
    ]
    return _render(
        "heads.html",
        page_data(result, lab),
        title=text("probe_title.heads", model=result.model),
        facts=facts,
        back=back,
        main_results=main_results(result),
        kinds=[
            (kind.title, kind.says, found) for name, kind in HEAD_KINDS.items() if (found := _heads_of(result, name))
        ],
        introduction=introduction,
        answers=answers(result),
        findings=findings(result),
        folded=text("probe_about.folded"),
        notes=result.notes,
    )


def notebook_view(result: ProbeResult) -> str:
    """Write the main results and the kinds of all heads as HTML for a notebook."""
    kinds, beside = result.kinds, np.where(result.kinds_beside == "content", "", result.kinds_beside)
    shown = {*kinds.ravel().tolist(), *beside.ravel().tolist()}
    return render_template(
        "marginlens.probe.page",
        "notebook.html",
        main_results=main_results(result),
        n_heads=result.n_heads,
        rows=[
            (
                result.layer_name(layer),
                [
                    (result.head_name(layer, k), *pair)
                    for k, pair in enumerate(zip(kinds[layer], beside[layer], strict=True))
                ],
            )
            for layer in range(result.n_layers)
        ],
        has_words=result.n_heads <= MAX_NAMED_HEADS,
        says=text("probe_page.kinds_beside" if beside.any() else "probe_page.kinds"),
        legend=[(name, kind.says) for name, kind in HEAD_KINDS.items() if name in shown],
        colours=KIND_COLOURS,
        account=repr(result),
    ).strip()


def _heads_of(result: ProbeResult, kind: str) -> list[str]:
    """Return the names of the heads of a kind."""
    return [result.head_name(layer, head) for layer, head in np.argwhere(result.kinds == kind).tolist()]


def page_measures(result: ProbeResult) -> list[Measure]:
    """Return the measures that the page shows, in their order."""
    known = {measure.name for measure in result.shown}
    chosen = [name for name in _PAGE_MEASURES if name in known][:MAX_NUMBERS]
    return [measure for measure in result.shown if measure.name in chosen]


def page_data(result: ProbeResult, lab: str = "") -> dict[str, Any]:
    """Return everything that the page draws, as plain values; attention maps as bytes from 0 to 255, and images as PNG, in base64."""
    edges, counts = result.margins.histogram()
    return {
        "model": result.model,
        **_grid_data(result),
        "measures": [
            {**_measure_data(measure, result[measure.name]), "range": _range(result, measure)}
            for measure in page_measures(result)
        ],
        "kinds": result.kinds.tolist(),
        "beside": {
            f"{layer}.{head}": [
                kind,
                jsonable(result[BESIDE[kind]][layer, head], JSON_DIGITS) if kind in BESIDE else None,
            ]
            for (layer, head), kind in np.ndenumerate(result.kinds_beside)
            if kind
        },
        "kindWords": {
            name: [kind.title, kind.says, kind.measure, KIND_COLOURS[name]] for name, kind in HEAD_KINDS.items()
        },
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
    """Return the ends of a measure's colours: its smallest and largest number, or those of all measures that it is compared with."""
    kin = next((name for name in MAX_MARGIN_GROUPS if measure.name.startswith(name)), measure.name)
    shown = [known.name for known in result.shown if known.name.startswith(kin) and kin in MAX_MARGIN_GROUPS] or [
        measure.name
    ]
    values = np.concatenate([result[name].ravel() for name in shown])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    least = _MIN_RELATIVE_RANGE * max(abs(low), abs(high))
    if high - low < least:  # equal up to noise: one colour, not the full contrast
        low, high = (low + high - least) / 2.0, (low + high + least) / 2.0
    return [float(f"{low:.6g}"), float(f"{high:.6g}")]


def lab_problem(plane: QueryPlane, names: Sequence[str] | None = None) -> LabProblem:
    """Turn a head's choice at one query into a problem of the lab: the selected token has score 1, all others 0, p starts as the query.

    Keys are shortened and the query is lengthened by the same factor, which changes no logit and brings both into one picture.
    `names` are the names of the sentence's tokens.
    """
    factor = float(f"{np.sqrt(np.abs(plane.keys).max()):.4g}")
    keys = np.array([[float(f"{number / factor:.4g}") for number in key] for key in plane.keys.tolist()])
    data = TokenDataset([np.column_stack([keys, np.eye(len(keys))[0]])], [1.0], K=[keys])
    words = None if names is None else [[names[token] for token in plane.tokens]]
    return LabProblem(data, [0.0, 0.0, 1.0], [factor, 0.0], words=words)


def _lab_link(plane: QueryPlane, names: Sequence[str], queries: Sequence[str]) -> str:
    """Return the hash of the lab's address that shows the whole problem, below a note that its scores are assumed.

    `names` are the tokens that the head attends to, `queries` those that it attends with.
    """
    problem = lab_problem(plane, names)
    query, selected = queries[plane.query], names[int(plane.tokens[0])]
    view = {"half": round(1.2 * float(problem.start[0]), 3)}
    note = text("probe_lab.assumed_scores", selected=selected, query=query)
    return permalink({**state_of(problem), "note": note, "view": view})


def _example(example: Example, lab: str) -> dict[str, Any]:
    """Return one input. If its tokens are patches, of which there are many, each map has its own largest value for 255."""
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
                lab + _lab_link(plane, example.attended_tokens(layer), example.query_tokens(layer)),
            ]
            for (layer, head), plane in example.planes.items()
            if lab
        },
    }


def _png(image: npt.NDArray[np.uint8]) -> str:
    """Encode an image as an address that holds it: grey if it has one channel, the first three as red, green and blue if it has more."""
    from PIL import Image

    stream = BytesIO()
    channels = image[..., 0] if image.shape[-1] < 3 else image[..., :3]
    Image.fromarray(np.ascontiguousarray(channels)).save(stream, format="PNG", optimize=True)
    return data_address(stream.getvalue(), "image/png")


def graph_drawing(preferences: PreferenceGraph) -> dict[str, Any]:
    """Return the layout of a head's preferences in pixels, which the page's script paints.

    Returns:
        `size`: width and height. `boxes`: left, top, width, height, kind, and whether there is a heading. `arrows` and `inner`:
            points x, y, x, y, …; inner arrows are inside a cycle. `names`: x and y of the middle, and the text.
    """
    from marginlens.graphs.picture import Lettering, layered_layout

    lettering = Lettering(7.5 / _INCH, 16.0 / _INCH, 0.0, max_letters=16, max_ring_letters=16, max_width=500.0 / _INCH)
    layout = layered_layout(preferences.graph, dict(enumerate(preferences.names)), lettering)

    def pixels(inches: ArrayLike, offset: float = _FRAME) -> list[int]:
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


# ---- the difference of two models


def difference_page(difference: ProbeDifference) -> str:
    """Write the difference of two models as the text of a self-contained HTML page."""
    probed, against = difference.probed, difference.against
    return _render(
        "difference.html",
        difference_data(difference),
        title=text("probe_title.difference", model=probed.model, against=against.model),
        facts=[
            f"{probed.family}, {difference.size_words}",
            f"{counted(probed.n_inputs, 'input')}, {counted(probed.n_queries, 'query', 'queries')}",
        ],
        findings=difference.findings(),
        notes=difference.notes,
        names={"probed": probed.model, "against": against.model},
        columns=list(difference.rows(1)[0]) if difference.changed_heads(1) else [],
        rows=[[_cell(value) for value in row.values()] for row in difference.rows(_ROWS)],
        addresses=[f"#L{layer}H{head}" for layer, head in difference.changed_heads(_ROWS)],
    )


def difference_data(difference: ProbeDifference) -> dict[str, Any]:
    """Return everything that the page draws, as plain values; colours are scaled to the largest modulus of a measure."""
    measures = []
    for measure in difference.shown:
        name, is_distance = measure.name, measure.name == TOTAL_VARIATION.name
        both = {
            of: None if is_distance else jsonable(result[name], JSON_DIGITS)
            for of, result in (("probed", difference.probed), ("against", difference.against))
        }
        largest = float(f"{np.nanmax(np.abs(difference[name])):.6g}")
        measures.append(
            {**_measure_data(measure, difference[name]), "distance": is_distance, "largest": largest, **both}
        )
    return {
        "probed": difference.probed.model,
        "against": difference.against.model,
        **_grid_data(difference),
        "measures": measures,
        "start": list((difference.changed_heads(1) or [(0, 0)])[0]),
    }


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# ---- curves over training


def checkpoint_page(curves: CheckpointCurves, alarms: Sequence[Alarm] | None = None) -> str:
    """Write curves over training as the text of a self-contained HTML page.

    Args:
        alarms: the alarms of a monitored run, shown at the top, with frames around their heads.
    """
    main = [name for name in MAIN if name in _drawn(curves)]
    others = [name for name in _drawn(curves) if name not in MAIN]
    paper = BIBLIOGRAPHY["A"]
    kind = "checkpoint" if alarms is None else "measurement"
    return _render(
        "checkpoints.html",
        _curve_data(curves, alarms),
        title=text("probe_title.checkpoints"),
        facts=[
            curves.model,
            f"{counted(len(curves.names), kind)}, {curves.names[0]} to {curves.names[-1]}",
            counted(curves.n_inputs, "input"),
        ],
        introduction=() if alarms is None or alarms else (text("alarm.none"),),
        alarms=alarm_summary(alarms or ()),
        withdrawn=[note for note in curves.notes if note.code == WITHDRAWN],
        findings=training_findings(curves),
        folded="" if alarms is None else text("probe_about.folded_trends"),
        notes=[note for note in curves.notes if note.code != WITHDRAWN],
        about=[
            text("probe_about.means"),
            *([text("probe_about.baselines")] if "correlation" in main else []),
            text("probe_about.paper", authors=", ".join(paper.authors), title=paper.title, year=paper.year),
        ],
        figures=[_embedded(curves, main, 2), _embedded(curves, others, 3)],
        has_trend=curves.can_have_trend,
        columns=[_panel_title(name) for name in main],
        rows={
            curves.layer_name(layer): [curves.change(name, layer) for name in main] for layer in range(curves.n_layers)
        },
    )


def _curve_data(curves: CheckpointCurves, alarms: Sequence[Alarm] | None) -> dict[str, Any]:
    """Return the curves of every head as plain values, and which heads have an alarm."""
    return {
        **_grid_data(curves),
        "measures": [_curve_measure(curves, measure) for measure in curves.shown],
        "axis": "checkpoint" if alarms is None else "optimizer step",
        "alarms": [[alarm.layer, head] for alarm in alarms or () for head in alarm.heads],
    }


def _curve_measure(curves: CheckpointCurves, measure: Measure) -> dict[str, Any]:
    """Return one measure at the steps that have it; a long run shows some of them, evenly spread."""
    values = curves[measure.name]
    known = np.flatnonzero(np.isfinite(values).any(axis=(1, 2)))
    places = known[evenly(len(known), _MAX_POINTS)]
    low, high = float(np.nanmin(values[places])), float(np.nanmax(values[places]))
    if 0.0 <= low < 0.5 * high:  # a scale from zero, unless the numbers are far from it
        low = 0.0
    steps, ends = jsonable(curves.steps[places], 9), jsonable(np.array([low, high]), 4)
    return {**_measure_data(measure, values[places], 4), "steps": steps, "range": ends}


def _drawn(curves: CheckpointCurves) -> list[str]:
    """Return the measures with a panel: a baseline is drawn in the panel of its measure."""
    names = [measure.name for measure in curves.shown]
    return [name for name in names if name in MAX_MARGIN_GROUPS or not name.startswith(tuple(MAX_MARGIN_GROUPS))]


def _panel_title(name: str) -> str:
    """Return the title of a measure's panel: a longer one for those that are drawn first."""
    if name in (*MAIN, "low_ratio"):
        return text(f"panel.{name}")
    measure = next(measure for measure in MEASURES if measure.name == name)
    return f"{measure.group}: {measure.label}"


def _embedded(curves: CheckpointCurves, names: list[str], columns: int) -> dict[str, str]:
    """Draw a figure with one panel for each measure; return an address that holds it, and what it shows in words."""
    words = text("probe_about.panels", n_checkpoints=len(curves.names), n_measures=len(names))
    from marginlens.plotting import svg

    return {"address": data_address(svg(draw_curves(curves, names, columns)), "image/svg+xml"), "words": words}


def draw_curves(curves: CheckpointCurves, names: Sequence[str] | None = None, columns: int = 2) -> Figure:
    """Draw a panel for each of these measures, `columns` side by side, with one legend; by default the main ones."""
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
            curves.plot(axes, measure=name).set_title(_panel_title(name))
        pairs = (pair for axes in panels for pair in zip(*axes.get_legend_handles_labels(), strict=True))
        signs = {label: handle for handle, label in pairs}
        shown = sorted(signs, key=lambda label: label.startswith("baseline"))  # layers first
        n_columns = min(len(shown), 2 * columns + 1)
        figure.legend([signs[label] for label in shown], shown, loc="outside lower center", ncols=n_columns)
    return figure
