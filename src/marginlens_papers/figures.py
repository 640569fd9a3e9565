"""What figures of several claims share: paths and tokens in a plane, distances on a logarithmic axis, intervals of proportions."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter
from scipy.stats import beta

from marginlens.data.tokens import FloatArray
from marginlens.directions import angle
from marginlens.plotting import scatter_input_tokens, separating_line
from marginlens.plotting.style import GLOBAL, INK, INPUTS, LOCAL, PATH, STYLE, TINTS

Window = tuple[tuple[float, float], tuple[float, float]]  # the range of each axis


def misalignment(points: FloatArray, direction: FloatArray) -> FloatArray:
    """1 - cosine between points (…, d) and directions, from their angle, so that it is accurate on a logarithmic axis."""
    return np.asarray(2.0 * np.sin(0.5 * np.asarray(angle(points, direction))) ** 2)


def proportion_interval(successes: Any, trials: Any, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Clopper–Pearson interval of a proportion, elementwise: the exact one, also at 0 and at all."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tail = (1.0 - confidence) / 2.0
    low = np.where(k == 0, 0.0, beta.ppf(tail, np.maximum(k, 1e-12), n - k + 1.0))
    high = np.where(k == n, 1.0, beta.ppf(1.0 - tail, k + 1.0, np.maximum(n - k, 1e-12)))
    return low, high


def plane_and_curves(width: float = 10.4, height: float = 5.8) -> tuple[Figure, Axes, Axes, Axes]:
    """A figure with a plane for paths at the left and two panels over the steps, one above the other, at the right."""
    with mpl.rc_context(STYLE):
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
        scatter_input_tokens(ax, key, score, colour, size)


def finish_plane(ax: Axes, window: Window, title: str, legend_at: str = "lower left", *, n_inputs: int = 1) -> None:
    """Limits, names and legend of a plane in which paths and the tokens of `n_inputs` inputs stand together."""
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
    height = keys @ (normal / np.linalg.norm(normal))
    chosen = np.arange(keys.shape[1]) == np.asarray(selected)[:, None]
    above, below = height[chosen].min(), height[~chosen].max()
    if above > below:
        separating_line(ax, normal, 0.5 * (above + below) * normal / np.linalg.norm(normal), 50.0, **style)


def basins(ax: Axes, x: FloatArray, y: FloatArray, reaches_local: FloatArray) -> None:
    """Shade the starts by their limit: pale blue where `reaches_local` (len(y), len(x)) is one, pale vermilion elsewhere."""
    smooth = gaussian_filter(reaches_local, sigma=1.0)  # rounds the corners of the grid's cells
    ax.contourf(x, y, smooth, levels=[-0.5, 0.5, 1.5], colors=[TINTS[GLOBAL], TINTS[LOCAL]], zorder=0)
