"""Scatter plots of tokens: products with p and with v against the posterior difference, with informative tokens named."""

# ruff: noqa: E402  without matplotlib, one sentence comes first

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from marginlens.errors import InputError, real_array, require

require("matplotlib", "plot", "A figure")

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from marginlens.plotting.style import house_style
from marginlens.result import Described
from marginlens.result.palette import GLOBAL, INK, LOCAL, NEITHER
from marginlens.typing import ArrayLike, FloatArray, IntArray

FREQUENT_COUNT = 200  # occurrences from which a token may be named by default, or
LEAN_DEVIATIONS = 4.0  # standard deviations by which it leans to one class, in however few occurrences
_SHADES = {  # from rare to frequent, by the sign of the posterior difference
    1: ("#F4BFA6", "#D95A26", "#8E2A04"),
    -1: ("#B5D3EC", "#3587C4", "#0A4470"),
    0: ("#D9DCDF", NEITHER, "#5B6168"),
}
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))  # of a point where its name may stand
_LABEL_DISTANCES = (5.0, 12.0, 22.0, 34.0)  # points between a token and its name
_LABEL_PADDING = 1.5  # pixels that stay free around a name


@dataclass(frozen=True, repr=False, eq=False)
class TokenPoints(Described):
    """What the panels show of each token, arrays (n_tokens,): posterior difference, ⟨E_s,p⟩ as `a`, ⟨E_s,v⟩ as `b`, and its count.

    `classes` are what sequences of label −1 and of label +1 are called.
    """

    posterior_difference: FloatArray
    a: FloatArray
    b: FloatArray
    count: IntArray
    names: Sequence[str] | None = None
    classes: tuple[str, str] = ("negative sequences", "positive sequences")
    quantities = "{self:#} tokens, {count.sum} occurrences"

    @classmethod
    def of(
        cls, posterior_difference: Any, a: ArrayLike, b: ArrayLike, count: Any, names: Sequence[str] | None = None
    ) -> TokenPoints:
        """Checked points; tokens that never occur, whose posterior difference is NaN, are left out."""
        occur = np.asarray(count)
        if occur.ndim != 1 or occur.dtype.kind not in "iu" or not (occur > 0).any():
            got = f"shape {occur.shape} with dtype {occur.dtype}"
            raise InputError("count", "(n_tokens,) whole numbers, some above zero", got)
        if names is not None and len(names) != len(occur):
            raise InputError("names", f"one for each of {len(occur)} tokens", len(names))
        occurring = np.flatnonzero(occur > 0)
        given = {"posterior_difference": posterior_difference, "a": a, "b": b}
        for name, values in given.items():
            if np.shape(values) != occur.shape:
                raise InputError(name, f"an array of shape {occur.shape}", f"shape {np.shape(values)}")
        shape = (len(occurring),)
        columns = [real_array(np.asarray(values)[occurring], name, shape) for name, values in given.items()]
        named = None if names is None else [names[int(s)] for s in occurring]
        return cls(columns[0], columns[1], columns[2], occur[occurring], named)

    def __len__(self) -> int:
        return len(self.count)


def draw_tokens(
    points: TokenPoints,
    axes: tuple[Axes, Axes] | None = None,
    *,
    title: str = "",
    n_names: int = 12,
    at_least: int | None = None,
    legend: bool = True,
) -> Figure:
    """Two panels over the posterior difference: ⟨E_s,p⟩ at the left, ⟨E_s,v⟩ at the right; colour tells the sign, shade the frequency.

    Args:
        points: the tokens, e.g. `TokenPoints.of(run.statistics.posterior_difference, run.a, run.b, run.statistics.count, names)`.
        axes: two axes of one figure to draw on; a new figure by default.
        title: above the panels. legend: explain the colours, below the panels of a new figure, in the left panel of given axes.
        n_names: how many informative tokens to name in each panel.
        at_least: name only tokens that occur so often; by default frequent ones and those whose lean to one class is not an accident.
    Returns:
        The figure.
    """
    with mpl.rc_context(house_style()):
        if axes is None:
            fig = Figure(figsize=(11.5, 5.4), layout="constrained")
            left, right = fig.subplots(1, 2)
            if title:
                fig.suptitle(title)
        else:
            (left, right), fig = axes, axes[0].get_figure()  # type: ignore[assignment]
            left.set_title(title, loc="left")
        panels = ((left, points.a, "$⟨E_s, p⟩$: selection"), (right, points.b, "$⟨E_s, v⟩$: prediction"))
        for ax, values, label in panels:
            _scatter(ax, points, values)
            ax.set_ylabel(label)
        handles = _handles(points) if legend else []
        if handles and axes is None:
            look: dict[str, Any] = {"loc": "outside lower center", "handletextpad": 0.3, "columnspacing": 1.4}
            fig.legend(handles=handles, ncols=len(handles), **look)
        elif handles:
            left.legend(handles=handles[:3], loc="best", handletextpad=0.2)
        for ax, values, _ in panels if points.names is not None and n_names > 0 else ():
            _annotate(fig, ax, points, values, informative_tokens(points, values, n_names, at_least))
    return fig


def informative_tokens(points: TokenPoints, values: FloatArray, n_names: int, at_least: int | None = None) -> IntArray:
    """The tokens worth a name: a third of the most one-sided, a third with the largest values, the most frequent ones; both signs alike.

    They are chosen among tokens that occur `at_least` times; by default among those that are frequent or lean to one class by
    `LEAN_DEVIATIONS` standard deviations, 1/sqrt(count) each, so that deciding tokens are named in small data too.
    """
    deviations = np.abs(points.posterior_difference) * np.sqrt(points.count)
    frequent = points.count >= (FREQUENT_COUNT if at_least is None else at_least)
    known = np.flatnonzero(frequent | (deviations >= LEAN_DEVIATIONS) if at_least is None else frequent)
    if len(known) < n_names:
        known = np.argsort(-points.count, kind="stable")[: 4 * n_names]
    names = points.names or [""] * len(points)
    known = np.array([s for s in known.tolist() if _is_word(names[s])], dtype=np.int64)
    difference, weight = points.posterior_difference, np.log(points.count)
    outlying = np.abs(values - np.median(values)) * np.sqrt(np.abs(difference))
    scores = (np.abs(difference) * weight, outlying, points.count * 1.0)
    chosen: list[int] = []
    for score, sign in [(score, sign) for score in scores for sign in (1.0, -1.0)] * n_names:
        rest = known[np.sign(difference[known]) == sign]
        if len(rest) > 0 and len(chosen) < n_names:
            chosen.append(int(rest[np.argmax(score[rest])]))
            known = known[known != chosen[-1]]
    return np.array(chosen, dtype=np.int64)


def _is_word(name: str) -> bool:
    """Not a number, not a scrap, and not the inside of a word that was cut into pieces."""
    return sum(map(str.isalpha, name)) > 2 and not name.startswith("##")


# ---- parts of the picture


def _scatter(ax: Axes, points: TokenPoints, values: FloatArray) -> None:
    order = np.argsort(points.count, kind="stable")  # frequent tokens on top
    level = _frequency(points, points.count)
    sign = np.sign(points.posterior_difference).astype(int)
    colours = np.empty((len(points), 4))
    for value, shades in _SHADES.items():
        colours[sign == value] = _colours(shades)(level[sign == value])
    look: dict[str, Any] = {"linewidths": 0, "alpha": 0.85, "rasterized": len(points) > 3000}
    x = points.posterior_difference[order]
    ax.scatter(x, values[order], s=5.0 + 19.0 * level[order], c=colours[order], **look)
    ax.axhline(0.0, color=INK, linewidth=0.7, zorder=0.5)
    ax.axvline(0.0, color=INK, linewidth=0.7, zorder=0.5)
    ax.set(xlabel="posterior difference", xlim=(-1.08, 1.08))
    ax.margins(y=0.09)


def _frequency(points: TokenPoints, count: Any) -> FloatArray:
    """Counts from 0, the rarest token, to 1, the most frequent, on a logarithmic scale."""
    low, high = float(points.count.min()), float(points.count.max())
    return np.log(np.asarray(count, dtype=float) / low) / np.log(max(high / low, 2.0))


def _colours(shades: tuple[str, ...]) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("frequency", list(shades))


def _handles(points: TokenPoints) -> list[Line2D]:
    """The entries of the legend: what the signs that occur mean, and three frequencies."""
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "markeredgewidth": 0}
    negative, positive = points.classes
    meanings = {
        1: (GLOBAL, f"more in {positive}"),
        -1: (LOCAL, f"more in {negative}"),
        0: (NEITHER, "as much in both"),
    }
    occurring = set(np.sign(points.posterior_difference).astype(int).tolist())
    handles = [
        Line2D([], [], color=colour, markersize=6.0, label=label, **look)
        for sign, (colour, label) in meanings.items()
        if sign in occurring
    ]
    for count in np.unique(np.geomspace(points.count.min(), points.count.max(), 3).round().astype(int)).tolist():
        level = float(_frequency(points, count))
        rounded = round(count, 2 - len(str(count))) if count >= 100 else count  # two leading digits
        size, label = (5.0 + 19.0 * level) ** 0.5, f"{rounded:,} times" if rounded > 1 else "once"
        handles.append(Line2D([], [], color=_colours(_SHADES[0])(level), markersize=size, label=label, **look))
    return handles


def _annotate(fig: Figure, ax: Axes, points: TokenPoints, values: FloatArray, chosen: IntArray) -> None:
    """Write the names where they touch neither one another nor the panel's edge, and cover as few points as possible."""
    if fig.canvas is None or not hasattr(fig.canvas, "get_renderer"):
        FigureCanvasAgg(fig)
    renderer = fig.canvas.get_renderer()  # type: ignore[attr-defined]
    fig.draw_without_rendering()
    cloud = ax.transData.transform(np.column_stack([points.posterior_difference, values]))
    legend = ax.get_legend()
    taken: list[Bbox] = [] if legend is None else [legend.get_window_extent(renderer)]
    for s in chosen:
        at, name = (points.posterior_difference[s], values[s]), (points.names or [])[s]
        colour = _SHADES[int(np.sign(at[0]))][2]
        label = ax.text(0.0, 0.0, name, fontsize=9)
        size = label.get_window_extent(renderer)
        label.remove()
        position = _label_position(ax.get_window_extent(renderer), size, cloud, cloud[s], taken, renderer)
        if position is None:
            continue
        taken.append(position.box)
        is_near = max(map(abs, position.offset)) <= _LABEL_DISTANCES[0]
        ax.annotate(
            name, at, xytext=position.offset, textcoords="offset points", ha=position.ha, va=position.va,
            fontsize=9, color=colour, zorder=4,
            bbox={"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            arrowprops=None if is_near else {"arrowstyle": "-", "color": colour, "lw": 0.7, "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
        ring: dict[str, Any] = {"markersize": 4.5, "markeredgewidth": 0.9, "zorder": 3.5}
        ax.plot(*at, marker="o", markerfacecolor="none", markeredgecolor=colour, **ring)


class _Position(NamedTuple):
    """Where a name stands: its offset from the point in points, the box it takes in pixels, and its alignment."""

    offset: tuple[float, float]
    box: Bbox
    ha: str
    va: str


def _label_position(
    panel: Bbox, size: Bbox, cloud: FloatArray, point: FloatArray, taken: list[Bbox], renderer: Any
) -> _Position | None:
    """The position of a name that covers fewest points, nearest first; None if every place is taken."""
    width, height = size.width + 2.0 * _LABEL_PADDING, size.height + 2.0 * _LABEL_PADDING
    best, unit = None, renderer.points_to_pixels(1.0)
    lowest_cost = np.inf
    for distance in _LABEL_DISTANCES:
        for dx, dy in _SIDES:
            left = point[0] + dx * distance * unit - 0.5 * (1 - dx) * width
            low = point[1] + dy * distance * unit - 0.5 * (1 - dy) * height
            box = Bbox.from_bounds(left, low, width, height)
            is_inside = panel.x0 <= left and box.x1 <= panel.x1 and panel.y0 <= low and box.y1 <= panel.y1
            if not is_inside or any(box.overlaps(other) for other in taken):
                continue
            cost = float(np.sum(np.all((cloud > box.min) & (cloud < box.max), axis=1))) + 0.25 * distance
            if cost < lowest_cost:
                ha, va = ("right", "center", "left")[dx + 1], ("top", "center", "bottom")[dy + 1]
                lowest_cost, best = cost, _Position((dx * distance, dy * distance), box, ha, va)
    return best
