"""Drawings that claims share: paths and tokens in the plane, curves over steps with bands, levels, shares and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.stats import beta

import marginlens as ml
from marginlens.result.palette import GLOBAL, INK, INPUTS, LOCAL, PATH, TINTS
from marginlens.typing import Axes, Figure, FloatArray, IntArray

Window = tuple[tuple[float, float], tuple[float, float]]  # the range of each axis


def misalignment(points: FloatArray, direction: FloatArray) -> FloatArray:
    """1 - cosine between points (…, d) and directions, from their angle, so that it is accurate on a logarithmic axis."""
    return np.asarray(2.0 * np.sin(0.5 * np.asarray(ml.angle(points, direction))) ** 2)


def proportion_interval(successes: Any, trials: Any, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Clopper–Pearson interval of a proportion, elementwise: the exact one, also at 0 and at all."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tail = (1.0 - confidence) / 2.0
    low = np.where(k == 0, 0.0, beta.ppf(tail, np.maximum(k, 1e-12), n - k + 1.0))
    high = np.where(k == n, 1.0, beta.ppf(1.0 - tail, k + 1.0, np.maximum(n - k, 1e-12)))
    return low, high


def share_points(ax: Axes, x: Any, successes: Any, trials: Any, **style: Any) -> None:
    """The shares of successes at places x, each with its 95% interval, in the style of an `errorbar`."""
    k, n = np.atleast_1d(successes), np.asarray(trials)
    share, (low, high) = k / n, proportion_interval(k, n)
    ax.errorbar(np.atleast_1d(x), share, [share - low, high - share], **style)


def histogram(ax: Axes, values: FloatArray, bins: FloatArray, **style: Any) -> None:
    """The shares of values in each bin, as an outline; values outside all bins count in the total."""
    heights, edges = np.histogram(values, bins=bins)
    ax.stairs(heights / len(values), edges, **style)


def plane_and_curves(width: float = 10.4, height: float = 5.8) -> tuple[Figure, Axes, Axes, Axes]:
    """A figure with a plane for paths at the left and two panels over the steps, one above the other, at the right."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(ml.plotting.STYLE):
        fig = Figure(figsize=(width, height), layout="constrained")
        axes: dict[str, Axes] = fig.subplot_mosaic([["plane", "upper"], ["plane", "lower"]], width_ratios=(1.25, 1.0))
    axes["plane"].set_aspect("equal", adjustable="box")
    axes["upper"].sharex(axes["lower"])
    axes["upper"].tick_params(labelbottom=False)
    return fig, axes["plane"], axes["upper"], axes["lower"]


def until_it_leaves(points: FloatArray, window: Window) -> FloatArray:
    """The part of a path (n_points, 2) before it first leaves the window."""
    low, high = np.array(window).T
    outside = np.any((points < low) | (points > high), axis=-1)
    return points[: int(np.argmax(outside))] if outside.any() else points


def scatter_tokens(ax: Axes, keys: FloatArray, scores: FloatArray, *, size: float = 70.0) -> None:
    """Tokens (n_inputs, n_tokens, 2) in the colour of their input: a star for the highest score of each, discs for the others."""
    for colour, key, score in zip(INPUTS, keys, scores, strict=False):
        ml.plotting.scatter_input_tokens(ax, key, score, colour, size)


def finish_plane(ax: Axes, window: Window, title: str, legend_at: str = "lower left", *, n_inputs: int = 1) -> None:
    """Limits, names and legend of a plane with paths and the tokens of `n_inputs` inputs."""
    shapes = [("*", 200.0, PATH, "optimal token"), ("o", 60.0, PATH, "other token")]
    if n_inputs > 1:
        shapes += [("s", 60.0, INPUTS[i], f"tokens of input {i + 1}") for i in range(n_inputs)]
    marks = [
        ax.scatter([], [], marker=marker, s=size, color=colour, edgecolor="white", label=label)
        for marker, size, colour, label in shapes
    ]
    marks.append(ax.scatter([], [], s=30, facecolor="white", edgecolor=INK, linewidth=1.2, label="start"))
    lines = [handle for handle in ax.get_legend_handles_labels()[0] if handle not in marks]
    ax.legend(handles=[*lines, *marks], loc=legend_at, frameon=True, framealpha=0.9, edgecolor="none")
    names = {"xlabel": "first coordinate of p and of the keys", "ylabel": "second coordinate"}
    ax.set(xlim=window[0], ylim=window[1], title=title, **names)


def point(x: float, y: float) -> str:
    """A point as text, with proper minus signs."""
    return f"({x:g}, {y:g})".replace("-", "−")


def common_separating_line(ax: Axes, keys: FloatArray, selected: Any, normal: FloatArray, **style: Any) -> None:
    """The line across `normal` halfway between all selected tokens and all others of (n_inputs, n_tokens, 2), if one separates them."""
    from marginlens.plotting.plane import separating_line

    height = keys @ (normal / np.linalg.norm(normal))
    chosen = np.arange(keys.shape[1]) == np.asarray(selected)[:, None]
    above, below = height[chosen].min(), height[~chosen].max()
    if above > below:
        separating_line(ax, normal, 0.5 * (above + below) * normal / np.linalg.norm(normal), 50.0, **style)


def basins(ax: Axes, x: FloatArray, y: FloatArray, reaches_local: FloatArray) -> None:
    """Shade the starts by their limit: pale blue where `reaches_local` (len(y), len(x)) is one, pale vermilion elsewhere."""
    smooth = gaussian_filter(reaches_local, sigma=1.0)  # rounds the corners of the grid's cells
    ax.contourf(x, y, smooth, levels=[-0.5, 0.5, 1.5], colors=[TINTS[GLOBAL], TINTS[LOCAL]], zorder=0)


class Limit(NamedTuple):
    """A direction that paths in the plane may converge to, and the tokens (n_inputs,) that it selects."""

    name: str
    direction: FloatArray
    selected: Sequence[int]
    colour: str = GLOBAL


class Note(NamedTuple):
    """A text next to a point of the plane, shifted by `offset` in points."""

    text: str
    at: Any
    offset: tuple[float, float]
    side: str = "left"


def starts_that_select(
    data: ml.TokenDataset, head: Any, window: Window, n_grid: int, n_steps: int, token: tuple[int, int]
) -> FloatArray:
    """For a square grid of starts over the window, [row, column]: 1 where descent ends with this (input, token), 0 elsewhere."""
    x, y = (np.linspace(low, high, n_grid) for low, high in window)
    start = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    run = ml.descend(data.repeat(len(start)), head, optimizer=ml.NormalizedGD(0.1), n_steps=n_steps, start=start)
    return (run.selected[:, token[0]] == token[1]).astype(float).reshape(n_grid, n_grid)


class Plane(NamedTuple):
    """The panel that paths are drawn in: the range of its axes, its title, the corner of its legend, and sizes.

    Attributes:
        height: of the figure, in inches. token_size: of the tokens' marks, in points squared.
    """

    window: Window
    title: str
    legend: str = "lower left"
    height: float = 5.8
    token_size: float = 70.0


def paths_in_plane(
    at: Mapping[str, Any], limits: Sequence[Limit], notes: Sequence[Note], look: Plane, *, shaded: bool = False
) -> tuple[Figure, Axes, Axes, Axes]:
    """Paths of descent among tokens and limits in a plane, with two empty panels over the steps: 1 - correlation, and the norm.

    Args:
        at: `keys` (n_inputs, n_tokens, 2), `scores`, `points` (n_paths, n_steps, 2), and `basins` if starts are shaded by their limit.
        shaded: give each path a colour of the ordered palette instead of one for all.
    """
    fig, plane, upper, lower = plane_and_curves(height=look.height)
    if "basins" in at:
        x, y = (np.linspace(low, high, len(at["basins"])) for low, high in look.window)
        basins(plane, x, y, at["basins"])
    line = "separating line" if len(limits) == 1 else "its separating line"
    for limit in limits:
        ml.plotting.ray(plane, limit.direction, 20.0, color=limit.colour, label=f"{limit.name} direction")
        colour = ml.plotting.PATH if len(limits) == 1 else limit.colour
        common_separating_line(plane, at["keys"], limit.selected, limit.direction, color=colour, label=line)
    colours = ml.plotting.shades(len(at["points"])) if shaded else [None] * len(at["points"])
    for colour, path in zip(colours, at["points"], strict=True):
        inside = until_it_leaves(path, look.window)
        ml.plotting.arrowed_path(plane, inside, **({"color": colour} if colour else {}))
        ml.plotting.starts(plane, inside[0], **({"edgecolor": colour} if colour else {}))
    scatter_tokens(plane, at["keys"], at["scores"], size=look.token_size)
    for note in notes:
        ml.plotting.note_at(plane, note.text, note.at, note.offset, ha=note.side)
    finish_plane(plane, look.window, look.title, look.legend, n_inputs=len(at["keys"]))
    upper.set(ylabel="1 − correlation with the limit")
    lower.set(xlabel="step", ylabel="‖p‖")
    return fig, plane, upper, lower


def gaps_and_norms(upper: Axes, lower: Axes, at: Mapping[str, Any], looks: Sequence[Mapping[str, Any]]) -> None:
    """1 - correlation (`gap`) and norm of every path in `points` over the `steps` from 1 on, each with its look."""
    for gap, path, look in zip(at["gap"], at["points"], looks, strict=True):
        upper.loglog(at["steps"][1:], gap[1:], **look)
        lower.loglog(at["steps"][1:], np.linalg.norm(path[1:], axis=-1), **look)


def shaded_looks(starts: Any) -> list[dict[str, Any]]:
    """A colour of the ordered palette for each start, named by its coordinates."""
    names = [point(*start) for start in starts]
    return [
        {"color": colour, "label": name} for colour, name in zip(ml.plotting.shades(len(names)), names, strict=True)
    ]


def mean_curve(ax: Axes, steps: IntArray, values: FloatArray, label: str, **style: Any) -> None:
    """The mean over the trials of (n_trials, n_saved); trials with nan are left out."""
    known = values[~np.isnan(values).any(axis=1)]
    if len(known):
        ax.plot(steps, known.mean(axis=0), label=label, **style)


def mean_band(ax: Axes, steps: IntArray, values: FloatArray, label: str, **style: Any) -> None:
    """The mean over the trials, and a band from their 10th to their 90th percentile."""
    known = values[~np.isnan(values).any(axis=1)]
    mean_curve(ax, steps, known, label, **style)
    if len(known):
        low, high = np.percentile(known, [10, 90], axis=0)
        ax.fill_between(steps, low, high, color=style["color"], alpha=0.16, lw=0)


def level(ax: Axes, y: float, text: str, *, side: str = "left", dash: str = "--") -> None:
    """A horizontal line in ink with a text just above it, at the left or the right end of the axes."""
    ax.axhline(y, color=ml.plotting.INK, ls=dash, lw=1.2)
    end, shift = (0.0, 4) if side == "left" else (1.0, -4)
    look: dict[str, Any] = {"ha": side, "va": "bottom", "textcoords": "offset points"}
    ax.annotate(text, (end, y), (shift, 2), xycoords=ax.get_yaxis_transform(), **look)


def heat_map(
    ax: Axes, table: FloatArray, rows: Sequence[str], columns: Sequence[str], form: str, top: float = 1.0
) -> None:
    """A table as colours from 0 to `top` with its numbers written in by a format such as ".3f"; cells that are nan stay white."""
    ax.imshow(np.ma.masked_invalid(table), cmap=ml.plotting.SEQUENCE, vmin=0.0, vmax=top, aspect="auto")
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            ax.text(j, i, format(value, form), ha="center", va="center", color=INK if value > 0.6 * top else "white")
    ax.set(xticks=range(len(columns)), xticklabels=columns, yticks=range(len(rows)), yticklabels=rows)
    ax.grid(visible=False)
    ax.tick_params(length=0)


def cumulative(ax: Axes, values: FloatArray, label: str, colour: Any) -> None:
    """The share of values up to each of them, as steps."""
    ordered = np.sort(values)
    ax.step(ordered, np.arange(1, len(ordered) + 1) / len(ordered), where="post", color=colour, label=label)
