"""Scatter plots of tokens: products with p and with v against the posterior difference, with informative tokens named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import real_array, reject
from marginlens.plotting.style import GLOBAL, INK, LOCAL, NEITHER, STYLE

FREQUENT_COUNT = 200  # occurrences from which a token may be named by default, or
LEAN_DEVIATIONS = 4.0  # standard deviations by which it leans to one class, in however few occurrences
_SIGNS = {
    1: ("more in {}", ("#F4BFA6", "#D95A26", "#8E2A04")),
    -1: ("more in {}", ("#B5D3EC", "#3587C4", "#0A4470")),
    0: ("as much in both", ("#D9DCDF", NEITHER, "#5B6168")),
}
_SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))  # of a point where its name may stand
_LABEL_DISTANCES = (5.0, 12.0, 22.0, 34.0)  # points between a token and its name
_LABEL_PADDING = 1.5  # pixels that stay free around a name


@dataclass(frozen=True, repr=False, eq=False)
class TokenPoints:
    """What the panels show of each token, arrays (n_tokens,): posterior difference, ⟨E_s,p⟩ as `a`, ⟨E_s,v⟩ as `b`, and its count.

    `classes` are what sequences of label −1 and of label +1 are called.
    """

    posterior_difference: FloatArray
    a: FloatArray
    b: FloatArray
    count: IntArray
    names: Sequence[str] | None = None
    classes: tuple[str, str] = ("negative sequences", "positive sequences")

    @classmethod
    def of(
        cls, posterior_difference: Any, a: Any, b: Any, count: Any, names: Sequence[str] | None = None
    ) -> TokenPoints:
        """Checked points; tokens that never occur, whose posterior difference is NaN, are left out."""
        occur = np.asarray(count)
        if occur.ndim != 1 or occur.dtype.kind not in "iu" or not (occur > 0).any():
            raise reject(
                "count", "(n_tokens,) whole numbers, some above zero", f"shape {occur.shape} with dtype {occur.dtype}"
            )
        if names is not None and len(names) != len(occur):
            raise reject("names", f"one for each of {len(occur)} tokens", len(names))
        seen = np.flatnonzero(occur > 0)
        given = {"posterior_difference": posterior_difference, "a": a, "b": b}
        for name, values in given.items():
            if np.shape(values) != occur.shape:
                raise reject(name, f"an array of shape {occur.shape}", f"shape {np.shape(values)}")
        columns = [real_array(np.asarray(values)[seen], name, (len(seen),)) for name, values in given.items()]
        kept = None if names is None else [names[int(s)] for s in seen]
        return cls(columns[0], columns[1], columns[2], occur[seen], kept)

    def __len__(self) -> int:
        return len(self.count)

    def __repr__(self) -> str:
        return f"TokenPoints({len(self)} tokens, {int(self.count.sum())} occurrences)"


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
        at_least: name only tokens that occur so often; by default frequent ones and those whose lean to one class is no accident.
    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        is_new = axes is None
        if axes is None:
            fig = Figure(figsize=(11.5, 5.4), layout="constrained")
            left, right = (fig.add_subplot(1, 2, k + 1) for k in range(2))
        else:
            left, right = axes
            fig = left.get_figure()  # type: ignore[assignment]
        order = np.argsort(points.count, kind="stable")  # frequent tokens on top
        for ax, values, label in ((left, points.a, "⟨E_s, p⟩: selection"), (right, points.b, "⟨E_s, v⟩: prediction")):
            _scatter(ax, points, values, order)
            ax.set(xlabel="posterior difference", ylabel=label, xlim=(-1.08, 1.08))
            ax.margins(y=0.09)
        if title:
            fig.suptitle(title) if is_new else left.set_title(title, loc="left")
        if legend:
            handles = _handles(points)
            if is_new:
                fig.legend(
                    handles=handles,
                    loc="outside lower center",
                    ncols=len(handles),
                    handletextpad=0.3,
                    columnspacing=1.4,
                )
            else:
                left.legend(handles=handles[:3], loc="best", handletextpad=0.2)
        if points.names is not None and n_names > 0:
            _annotate(fig, left, points, points.a, informative_tokens(points, points.a, n_names, at_least))
            _annotate(fig, right, points, points.b, informative_tokens(points, points.b, n_names, at_least))
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
    scores = (
        np.abs(difference) * weight,
        np.abs(values - np.median(values)) * np.sqrt(np.abs(difference)),
        points.count * 1.0,
    )
    chosen: list[int] = []
    while len(chosen) < min(n_names, len(known)):
        before = len(chosen)
        for score in scores:
            for sign in (1.0, -1.0):
                rest = [s for s in known if s not in chosen and np.sign(difference[s]) == sign]
                if rest and len(chosen) < n_names:
                    chosen.append(int(rest[int(np.argmax(score[rest]))]))
        if len(chosen) == before:
            break
    return np.array(chosen, dtype=np.int64)


def _is_word(name: str) -> bool:
    """Not a number, not a scrap, and not the inside of a word that was cut into pieces."""
    return sum(map(str.isalpha, name)) > 2 and not name.startswith("##")


# ---- parts of the picture


def _scatter(ax: Axes, points: TokenPoints, values: FloatArray, order: IntArray) -> None:
    norm, colours = _norm(points), np.empty((len(points), 4))
    sign = np.sign(points.posterior_difference).astype(int)
    for value, (_, shades) in _SIGNS.items():
        of_sign = sign == value
        colours[of_sign] = _shades(shades)(norm(points.count[of_sign].astype(float)))
    sizes = 5.0 + 19.0 * np.clip(np.asarray(norm(points.count.astype(float))), 0.0, 1.0)
    x = points.posterior_difference[order]
    ax.scatter(
        x, values[order], s=sizes[order], c=colours[order], linewidths=0, alpha=0.85, rasterized=len(points) > 3000
    )
    ax.axhline(0.0, color=INK, linewidth=0.7, zorder=0.5)
    ax.axvline(0.0, color=INK, linewidth=0.7, zorder=0.5)


def _norm(points: TokenPoints) -> LogNorm:
    low, high = float(points.count.min()), float(points.count.max())
    return LogNorm(low, max(high, 2.0 * low), clip=True)


def _shades(shades: tuple[str, ...]) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("frequency", list(shades))


def _handles(points: TokenPoints) -> list[Line2D]:
    signs_seen = set(np.sign(points.posterior_difference).astype(int).tolist())

    def dot(colour: Any, size: float, label: str) -> Line2D:
        return Line2D([], [], marker="o", linestyle="", color=colour, markersize=size, markeredgewidth=0, label=label)

    signs = [
        dot({1: GLOBAL, -1: LOCAL, 0: NEITHER}[sign], 6.0, _SIGNS[sign][0].format(points.classes[sign > 0]))
        for sign in _SIGNS
        if sign in signs_seen
    ]
    norm, greys = _norm(points), _shades(_SIGNS[0][1])
    counts = np.unique(np.geomspace(points.count.min(), points.count.max(), 3).round().astype(int))
    shades = [
        dot(greys(float(norm(n))), (5.0 + 19.0 * float(norm(n))) ** 0.5, f"{_rounded(int(n)):,} times") for n in counts
    ]
    return signs + shades


def _rounded(n: int) -> int:
    """Two leading digits."""
    step = 10 ** max(len(str(n)) - 2, 0)
    return round(n / step) * step


def _annotate(fig: Figure, ax: Axes, points: TokenPoints, values: FloatArray, chosen: IntArray) -> None:
    """Write the names where they touch neither one another nor the panel's edge, and cover as few points as possible."""
    if fig.canvas is None or not hasattr(fig.canvas, "get_renderer"):
        FigureCanvasAgg(fig)
    renderer = fig.canvas.get_renderer()  # type: ignore[attr-defined]
    fig.draw_without_rendering()
    inside = ax.get_window_extent(renderer)
    cloud = ax.transData.transform(np.column_stack([points.posterior_difference, values]))
    legend = ax.get_legend()
    taken: list[Bbox] = [] if legend is None else [legend.get_window_extent(renderer)]
    unit = fig.dpi / 72.0
    names = points.names or []
    for s in chosen:
        position = _label_position(ax, names[s], cloud[s], (inside, cloud, taken, unit), renderer)
        if position is None:
            continue
        offset, box, (horizontal, vertical) = position
        taken.append(box)
        colour = _SIGNS[int(np.sign(points.posterior_difference[s]))][1][2]
        near = max(abs(offset[0]), abs(offset[1])) <= _LABEL_DISTANCES[0]
        ax.annotate(
            names[s],
            (points.posterior_difference[s], values[s]),
            xytext=offset,
            textcoords="offset points",
            ha=horizontal,
            va=vertical,
            fontsize=9,
            color=colour,
            bbox={"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            arrowprops=None
            if near
            else {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
            zorder=4,
        )
        ax.plot(
            [points.posterior_difference[s]],
            [values[s]],
            marker="o",
            markersize=4.5,
            markerfacecolor="none",
            markeredgecolor=colour,
            markeredgewidth=0.9,
            zorder=3.5,
        )


def _label_position(ax: Axes, name: str, point: Any, around: Any, renderer: Any) -> Any:
    """The offset, box and alignment of a name that covers fewest points, nearest first; None where every place is taken."""
    inside, cloud, taken, unit = around
    probe = ax.text(0.0, 0.0, name, fontsize=9)
    size = probe.get_window_extent(renderer)
    probe.remove()
    width, height = size.width + 2.0 * _LABEL_PADDING, size.height + 2.0 * _LABEL_PADDING
    best, found = np.inf, None
    for distance in _LABEL_DISTANCES:
        for dx, dy in _SIDES:
            x, y = point[0] + dx * distance * unit, point[1] + dy * distance * unit
            left = x if dx > 0 else x - width if dx < 0 else x - width / 2
            low = y if dy > 0 else y - height if dy < 0 else y - height / 2
            box = Bbox.from_bounds(left, low, width, height)
            if left < inside.x0 or box.x1 > inside.x1 or low < inside.y0 or box.y1 > inside.y1:
                continue
            if any(box.overlaps(other) for other in taken):
                continue
            covered = np.sum(
                (cloud[:, 0] > left) & (cloud[:, 0] < box.x1) & (cloud[:, 1] > low) & (cloud[:, 1] < box.y1)
            )
            cost = float(covered) + 0.25 * distance
            if cost < best:
                horizontal = {1: "left", -1: "right", 0: "center"}[dx]
                vertical = {1: "bottom", -1: "top", 0: "center"}[dy]
                best, found = cost, ((dx * distance, dy * distance), box, (horizontal, vertical))
    return found
