"""What figures draw in a plane of p and the keys: tokens, rays, separating lines, paths, basins, and the disc of log radius."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from scipy.ndimage import gaussian_filter

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.plotting.style import GLOBAL, INK, INPUTS, LOCAL, PATH, TINTS, note_at

Window = tuple[tuple[float, float], tuple[float, float]]  # the range of each axis


def until_it_leaves(points: FloatArray, window: Window) -> FloatArray:
    """The part of a path (n_points, 2) before it first leaves the window."""
    low, high = np.array(window).T
    outside = np.any((points < low) | (points > high), axis=-1)
    return points[: int(np.argmax(outside))] if outside.any() else points


def scatter_tokens(ax: Axes, keys: FloatArray, scores: FloatArray, *, size: float = 70.0) -> None:
    """Tokens (n_inputs, n_tokens, 2) in the colour of their input: a star for the highest score of each, discs for the others."""
    for colour, key, score in zip(INPUTS, keys, scores, strict=False):
        scatter_input_tokens(ax, key, score, colour, size)


def scatter_input_tokens(ax: Axes, keys: FloatArray, scores: FloatArray, colour: Any, size: float) -> None:
    """The tokens (n_tokens, 2) of one input: a star for the highest score, discs for the others."""
    best = scores == scores.max()
    look: dict[str, Any] = {"color": [colour], "edgecolor": "white", "linewidth": 0.8, "zorder": 7}
    ax.scatter(keys[~best, 0], keys[~best, 1], s=size, marker="o", **look)
    ax.scatter(keys[best, 0], keys[best, 1], s=4.2 * size, marker="*", **look)


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
    named, _ = ax.get_legend_handles_labels()
    lines = [one for one in named if one not in marks]
    ax.legend(handles=[*lines, *marks], loc=legend_at, frameon=True, framealpha=0.9, edgecolor="none")
    names = {"xlabel": "first coordinate of p and of the keys", "ylabel": "second coordinate"}
    ax.set(xlim=window[0], ylim=window[1], title=title, **names)


def point(x: float, y: float) -> str:
    """A point as text, with proper minus signs."""
    return f"({x:g}, {y:g})".replace("-", "−")


def starts(ax: Axes, points: FloatArray, **style: Any) -> None:
    """Where paths begin: small open circles."""
    look: dict[str, Any] = {"s": 30, "facecolor": "white", "edgecolor": INK, "linewidth": 1.2, "zorder": 6}
    places = np.atleast_2d(points)
    ax.scatter(places[:, 0], places[:, 1], **{**look, **style})


def ray(ax: Axes, direction: FloatArray, length: float, **style: Any) -> None:
    """A dashed half-line from the origin along `direction`."""
    tip = length * direction / np.linalg.norm(direction)
    ax.plot([0.0, tip[0]], [0.0, tip[1]], **{"linestyle": (0, (5, 3)), "linewidth": 2.2, "zorder": 3, **style})


def separating_line(ax: Axes, normal: FloatArray, through: FloatArray, length: float, **style: Any) -> None:
    """The line through a point that is perpendicular to `normal`."""
    along = np.array([-normal[1], normal[0]]) / np.linalg.norm(normal)
    ends = np.stack([through - length * along, through + length * along])
    ax.plot(ends[:, 0], ends[:, 1], **{"color": PATH, "linestyle": ":", "linewidth": 1.4, "zorder": 2, **style})


def common_separating_line(ax: Axes, keys: FloatArray, selected: Any, normal: FloatArray, **style: Any) -> None:
    """The line across `normal` halfway between all selected tokens and all others of (n_inputs, n_tokens, 2), if one separates them."""
    height = keys @ (normal / np.linalg.norm(normal))
    chosen = np.arange(keys.shape[1]) == np.asarray(selected)[:, None]
    above, below = height[chosen].min(), height[~chosen].max()
    if above > below:
        separating_line(ax, normal, 0.5 * (above + below) * normal / np.linalg.norm(normal), 50.0, **style)


def arrowed_path(ax: Axes, points: FloatArray, *, arrows: int = 3, **style: Any) -> None:
    """A trajectory (n_points, 2) with arrow heads at equal arc length, pointing forward."""
    look = {"color": PATH, "linewidth": 1.6, "zorder": 4, **style}
    ax.plot(points[:, 0], points[:, 1], **look)
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    if travelled[-1] == 0.0:
        return
    for share in (np.arange(arrows) + 1.0) / arrows:
        k = int(np.clip(np.searchsorted(travelled, share * travelled[-1]), 1, len(points) - 1))
        ax.annotate(
            "",
            xy=points[k],
            xytext=points[k - 1] if travelled[k] > travelled[k - 1] else points[max(k - 2, 0)],
            arrowprops={
                "arrowstyle": "-|>",
                "color": look["color"],
                "lw": 0.0,
                "mutation_scale": 13,
                "shrinkA": 0,
                "shrinkB": 0,
            },
            zorder=look["zorder"],
        )


def basins(ax: Axes, x: FloatArray, y: FloatArray, reaches_local: FloatArray) -> None:
    """Shade the starts by their limit: pale blue where `reaches_local` (len(y), len(x)) is one, pale vermilion elsewhere."""
    shades = [TINTS[GLOBAL], TINTS[LOCAL]]
    smooth = gaussian_filter(reaches_local, sigma=1.0)  # rounds the corners of the grid's cells
    ax.contourf(x, y, smooth, levels=[-0.5, 0.5, 1.5], colors=shades, zorder=0)


def log_radius(points: FloatArray, unit: float = 1.0) -> FloatArray:
    """Points (…, 2) with their norm r replaced by log10(1 + r/unit), which brings all of the plane into one picture."""
    norm = np.linalg.norm(points, axis=-1, keepdims=True)
    return points * np.log10(1.0 + norm / unit) / np.where(norm > 0.0, norm, 1.0)


def closed_rings(rings: Any, *, centre: bool = False) -> Any:
    """Values on rings (n_norms, n_angles, …) with the first angle repeated at the end and an innermost ring: the origin, for points."""
    inner = 0.0 * rings[:1] if centre else rings[:1]
    rings = np.concatenate([inner, rings])
    return np.concatenate([rings, rings[:, :1]], axis=1)


class BasinLook(NamedTuple):
    """How the starts that lead to one limit are painted."""

    ground: Any
    hatch_colour: Any
    hatch: str


def log_radius_disc(
    ax: Axes, starts: FloatArray, ends: IntArray, looks: Sequence[BasinLook], *, far: float, unit: float = 1.0
) -> None:
    """The plane squeezed to a disc: the basins of all limits, and circles of equal norm.

    Args:
        starts: (n_norms, n_angles, 2). ends: (n_norms, n_angles) the limit of each start, an index into `looks`; -1 where there is none.
        far: the norm at the rim. unit: the norm r = unit stands at log10(2) from the centre.
    """
    x, y = np.moveaxis(log_radius(closed_rings(starts, centre=True), unit), -1, 0)
    for k in np.unique(ends[ends >= 0]).tolist():
        inside = closed_rings(gaussian_filter((ends == k).astype(float), 0.7, mode=("nearest", "wrap")))
        ground, hatch_colour, hatch = looks[k]
        filled = ax.contourf(x, y, inside, levels=[0.5, 1.5], colors=[ground], hatches=[hatch], zorder=0)
        filled.set_edgecolor(hatch_colour)
        filled.set_linewidth(0.0)
    log_radius_rings(ax, far, unit)


def log_radius_rings(ax: Axes, far: float, unit: float = 1.0) -> None:
    """Circles of equal norm, labelled, up to the rim at norm `far`; axes without ticks."""
    rim = float(np.log10(1.0 + far / unit))
    turn = np.linspace(0.0, 2.0 * np.pi, 400)
    decades = 10.0 ** np.arange(np.floor(np.log10(unit)), np.log10(far))
    for norm in decades[:: 1 + len(decades) // 6]:
        at = float(np.log10(1.0 + norm / unit))
        ax.plot(at * np.cos(turn), at * np.sin(turn), color=INK, lw=0.7, ls=":", zorder=2)
        note_at(ax, f"‖p‖ = {norm:,.4g}", (0.0, -at), (0.0, 0.0), fontsize=9, ha="center")
    ax.plot(rim * np.cos(turn), rim * np.sin(turn), color=INK, lw=1.2, zorder=6)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.set(xlim=(-1.25 * rim, 1.25 * rim), ylim=(-1.25 * rim, 1.25 * rim), xticks=[], yticks=[])
    ax.set_box_aspect(1.0)
    ax.set(xlabel="direction of p, at a distance of log(1 + ‖p‖) from the centre")


def rim_label(ax: Axes, direction: FloatArray, name: str, rim: float, colour: Any) -> None:
    """The name of a limit just outside the rim of the disc."""
    x, y = 1.05 * rim * direction
    side = "center" if abs(direction[0]) < 0.3 else "left" if direction[0] > 0 else "right"
    ax.text(x, y, name, color=colour, weight="bold", ha=side, va="center", zorder=7)
