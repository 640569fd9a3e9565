"""Problems in the plane as a picture: tokens, max-margin directions, and the path of training where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes

from marginlens.data import TokenDataset
from marginlens.data.files import check_place, write_whole
from marginlens.data.tokens import FloatArray
from marginlens.errors import reject
from marginlens.experiments import drawing
from marginlens.report import figures

_PANELS = 4  # problems that one figure holds side by side
_RAYS = 12  # directions that one panel shows
_FORMS = {".png": figures.png, ".svg": figures.svg}


def check_plot(data: TokenDataset, place: Path) -> None:
    """Refuse what cannot be drawn, or cannot be written there, before anything is computed."""
    if data.d_key != 2:
        raise reject("plot", "left out unless keys have two coordinates", f"keys with d_key = {data.d_key}")
    if len(data) > _PANELS:
        raise reject("plot", f"left out for files with more than {_PANELS} problems", f"{len(data)} problems")
    if place.suffix.lower() not in _FORMS:
        raise reject("plot", "a name that ends in .png or .svg", repr(str(place)))
    check_place(place, "plot")


def draw_problems(
    place: Path,
    data: TokenDataset,
    v: Any,
    solutions: Sequence[Sequence[Mapping[str, Any]]],
    paths: FloatArray | None = None,
) -> None:
    """Write the picture of each problem side by side: `solutions[j]` are its rows, `paths` (batch, n_points, 2) their training."""
    fig, panels = drawing.figure(len(data), width=5.6 if len(data) == 1 else 4.6, height=6.8 if len(data) == 1 else 5.4)
    batch = data.as_batch()
    scores = batch.scores(v)
    for j, ax in enumerate(panels):
        path = None if paths is None else paths[j]
        title = f"Problem {j}" if data.is_batch else "Tokens and max-margin directions"
        _draw(ax, batch[j], scores[j], solutions[j], path, title)
    with mpl.rc_context(drawing.STYLE):
        handles = {
            label: handle for ax in panels for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
        }
        columns = 2 if len(data) == 1 else len(handles)
        fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    write_whole(place, _FORMS[place.suffix.lower()](fig), "plot")


@drawing.in_style
def _draw(
    ax: Axes,
    data: TokenDataset,
    scores: FloatArray,
    rows: Sequence[Mapping[str, Any]],
    path: FloatArray | None,
    title: str,
) -> None:
    ax.set_aspect("equal", adjustable="box")
    window = _window(data.K[data.mask], path)
    colours = {"GMM": drawing.GLOBAL, "LMM": drawing.LOCAL}
    named: set[str] = set()
    for row in [one for one in rows if np.all(np.isfinite(one["direction"]))][:_RAYS]:
        name = f"{row['kind']} direction" if row["kind"] in colours else "max-margin direction"
        label = None if name in named else name
        named.add(name)
        if np.any(row["direction"]):
            reach = 4.0 * float(np.max(np.abs(window)))
            drawing.ray(ax, row["direction"], reach, color=colours.get(row["kind"], drawing.INK), label=label)
    if path is not None:
        ax.plot([], [], color=drawing.PATH, linewidth=1.6, label="training")
        drawing.arrowed_path(ax, path[: len(drawing.until_it_leaves(path, window)) + 1])
        drawing.starts(ax, path[0])
    keys = [data.K[i, :length] for i, length in enumerate(data.lengths)]
    cut = [scores[i, :length] for i, length in enumerate(data.lengths)]
    few = data.n_inputs <= len(drawing.INPUTS)
    colour = list(drawing.INPUTS) if few else drawing.shades(data.n_inputs)
    for i in range(data.n_inputs):
        _tokens(ax, keys[i], cut[i], colour[i])
    title += "" if few else ", one colour per input"
    _finish(ax, window, title, colour[: data.n_inputs] if few and data.n_inputs > 1 else [], path is not None)


def _tokens(ax: Axes, keys: FloatArray, scores: FloatArray, colour: Any) -> None:
    """The tokens of one input: a star for the highest score, discs for the others."""
    best = scores == scores.max()
    look: dict[str, Any] = {"color": [colour], "edgecolor": "white", "linewidth": 0.8, "zorder": 7}
    ax.scatter(keys[~best, 0], keys[~best, 1], s=60.0, marker="o", **look)
    ax.scatter(keys[best, 0], keys[best, 1], s=240.0, marker="*", **look)


def _finish(ax: Axes, window: drawing.Window, title: str, inputs: Sequence[Any], has_path: bool) -> None:
    """Limits and names, and the marks that the legend below the panels explains."""
    marks: list[tuple[str, float, Any, str]] = [
        ("*", 160.0, drawing.PATH, "optimal token"),
        ("o", 50.0, drawing.PATH, "other token"),
    ]
    marks += [("s", 50.0, colour, f"tokens of input {i}") for i, colour in enumerate(inputs)]
    for marker, size, colour, label in marks:
        ax.scatter([], [], marker=marker, s=size, color=[colour], edgecolor="white", label=label)
    if has_path:
        ax.scatter([], [], s=30, facecolor="white", edgecolor=drawing.INK, linewidth=1.2, label="start")
    names = {"xlabel": "first coordinate of p and of the keys", "ylabel": "second coordinate"}
    ax.set(xlim=window[0], ylim=window[1], title=title, **names)


def _window(keys: FloatArray, path: FloatArray | None) -> drawing.Window:
    """A square around the origin, all keys and the start, with room at the sides; more of it where a path leads away."""
    points = np.concatenate([keys, np.zeros((1, 2)), *([] if path is None else [path[:1]])])
    low, high = points.min(axis=0), points.max(axis=0)
    half = (0.68 if path is None else 1.5) * max(float(np.max(high - low)), 1e-12)
    x, y = 0.5 * (low + high)
    return (x - half, x + half), (y - half, y + half)
