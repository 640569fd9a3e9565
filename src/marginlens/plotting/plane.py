"""Pictures of problems in the plane: tokens with scores and separating lines, and the limits of descent on a disc of log radius."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import scipy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from marginlens.arithmetic.directions import correlation
from marginlens.data import TokenDataset
from marginlens.dynamics import descend
from marginlens.errors import InputError
from marginlens.losses.margin import Logistic, Loss
from marginlens.optimizers import NormalizedGD
from marginlens.plotting.files import FIGURE_SUFFIXES
from marginlens.plotting.style import house_style, in_style, note_at, shades
from marginlens.result.palette import GLOBAL, INK, INPUTS, LOCAL, PATH, TINTS
from marginlens.runtime.files import check_place
from marginlens.theory import LocalOptima, locally_optimal_directions
from marginlens.typing import ArrayLike, FloatArray, IntArray
from marginlens.words import text

_MAX_PANELS = 4  # problems that one figure holds side by side
_MAX_RAYS = 12  # directions that one panel shows
_MAX_SCORES, _MAX_LABELS = 16, 48  # tokens of a problem up to which each shows its score, and its index
_MAX_ENUMERATED = 2_000  # hard-margin problems solved to know all limits; a larger problem is drawn without basins
_N_ANGLES, _N_NORMS = 96, 28  # starts whose limits are painted
_MIN_COSINE = 0.95  # with a direction, from which a run counts as going there
_VISIBLE_SHARE = 0.02  # of the starts: fewer without a limit lie on borders between basins
_HATCHES = ("", "//", "\\\\", "xx", "..", "++", "--", "||", "oo", "**")


# ---- signs that figures of planes share


def recorded_steps(n_steps: int, dense: int = 400) -> list[int]:
    """Return the steps at which a run is recorded for a figure: the first `dense` of them, then forty for each factor of ten."""
    factor = max(n_steps / dense, 1.0)
    late = np.geomspace(min(dense, n_steps), n_steps, 2 + int(40 * np.log10(factor)))
    return sorted({*range(min(dense, n_steps) + 1), *(round(float(step)) for step in late)})


def scatter_input_tokens(ax: Axes, keys: FloatArray, scores: FloatArray, colour: object, size: float) -> None:
    """Draw the tokens (n_tokens, 2) of one input: a star for the highest score, discs for the others."""
    best = scores == scores.max()
    look: dict[str, Any] = {"color": [colour], "edgecolor": "white", "linewidth": 0.8, "zorder": 7}
    ax.scatter(keys[~best, 0], keys[~best, 1], s=size, marker="o", **look)
    ax.scatter(keys[best, 0], keys[best, 1], s=4.2 * size, marker="*", **look)


def starts(ax: Axes, points: FloatArray, **style: Any) -> None:
    """Mark where paths begin, with small open circles."""
    look: dict[str, Any] = {"s": 30, "facecolor": "white", "edgecolor": INK, "linewidth": 1.2, "zorder": 6}
    x, y = np.atleast_2d(points).T
    ax.scatter(x, y, **{**look, **style})


def ray(ax: Axes, direction: FloatArray, length: float, **style: Any) -> None:
    """Draw a dashed half-line from the origin along `direction`."""
    tip = length * direction / np.linalg.norm(direction)
    ax.plot([0.0, tip[0]], [0.0, tip[1]], **{"linestyle": (0, (5, 3)), "linewidth": 2.2, "zorder": 3, **style})


def separating_line(ax: Axes, normal: FloatArray, through: FloatArray, length: float, **style: Any) -> None:
    """Draw the line through a point that is perpendicular to `normal`."""
    along = np.array([-normal[1], normal[0]]) / np.linalg.norm(normal)
    ends = np.stack([through - length * along, through + length * along])
    ax.plot(ends[:, 0], ends[:, 1], **{"color": PATH, "linestyle": ":", "linewidth": 1.4, "zorder": 2, **style})


def arrowed_path(ax: Axes, points: FloatArray, *, arrows: int = 3, **style: Any) -> None:
    """Draw a trajectory (n_points, 2) with arrow heads at equal arc length, pointing forward."""
    look = {"color": PATH, "linewidth": 1.6, "zorder": 4, **style}
    ax.plot(points[:, 0], points[:, 1], **look)
    travelled = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(points, axis=0), axis=1))])
    if travelled[-1] == 0.0:
        return
    head = {"arrowstyle": "-|>", "color": look["color"], "lw": 0.0, "mutation_scale": 13, "shrinkA": 0, "shrinkB": 0}
    for share in (np.arange(arrows) + 1.0) / arrows:
        k = int(np.clip(np.searchsorted(travelled, share * travelled[-1]), 1, len(points) - 1))
        before = points[k - 1] if travelled[k] > travelled[k - 1] else points[max(k - 2, 0)]
        ax.annotate("", xy=points[k], xytext=before, arrowprops=head, zorder=look["zorder"])


def log_radius(points: FloatArray, unit: float = 1.0) -> FloatArray:
    """Replace the norm r of points (…, 2) by log10(1 + r/unit), which brings all of the plane into one picture."""
    norm = np.linalg.norm(points, axis=-1, keepdims=True)
    return points * np.log10(1.0 + norm / unit) / np.where(norm > 0.0, norm, 1.0)


class BasinLook(NamedTuple):
    """The look of the starts that lead to one limit."""

    ground: Any
    hatch_colour: Any
    hatch: str


def log_radius_disc(
    ax: Axes, starts: FloatArray, ends: IntArray, looks: Sequence[BasinLook], *, far: float, unit: float = 1.0
) -> None:
    """Draw the plane squeezed to a disc: the basins of all limits, and circles of equal norm.

    Args:
        starts: (n_norms, n_angles, 2) the starts.

        ends: (n_norms, n_angles) the limit of each start, an index into `looks`; -1 if there is none.

        far: the norm at the rim.

        unit: the norm that is drawn at distance log10(2) from the centre.
    """

    def closed(rings: FloatArray, innermost: FloatArray) -> Any:
        """Add an innermost ring to values on rings, and repeat the first angle at the end."""
        return np.concatenate([innermost, rings])[:, [*range(rings.shape[1]), 0]]

    x, y = np.moveaxis(log_radius(closed(starts, 0.0 * starts[:1]), unit), -1, 0)
    for k in np.unique(ends[ends >= 0]).tolist():
        inside = scipy.ndimage.gaussian_filter((ends == k).astype(float), 0.7, mode=("nearest", "wrap"))
        look: dict[str, Any] = {"levels": [0.5, 1.5], "colors": [looks[k].ground], "hatches": [looks[k].hatch]}
        filled = ax.contourf(x, y, closed(inside, inside[:1]), zorder=0, **look)
        filled.set_edgecolor(looks[k].hatch_colour)
        filled.set_linewidth(0.0)
    log_radius_rings(ax, far, unit)


def log_radius_rings(ax: Axes, far: float, unit: float = 1.0) -> None:
    """Draw circles of equal norm, labelled, up to the rim at norm `far`, on axes without ticks."""
    rim = float(np.log10(1.0 + far / unit))
    angle = np.linspace(0.0, 2.0 * np.pi, 400)
    decades = 10.0 ** np.arange(np.floor(np.log10(unit)), np.log10(far))
    for norm in decades[:: 1 + len(decades) // 6]:
        radius = float(np.log10(1.0 + norm / unit))
        ax.plot(radius * np.cos(angle), radius * np.sin(angle), color=INK, lw=0.7, ls=":", zorder=2)
        note_at(ax, f"‖p‖ = {norm:,.4g}", (0.0, -radius), (0.0, 0.0), fontsize=9, ha="center")
    ax.plot(rim * np.cos(angle), rim * np.sin(angle), color=INK, lw=1.2, zorder=6)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set(xlim=(-1.25 * rim, 1.25 * rim), ylim=(-1.25 * rim, 1.25 * rim), xticks=[], yticks=[], box_aspect=1.0)
    ax.set_xlabel("direction of p, at a distance of log(1 + ‖p‖) from the centre")


def rim_label(ax: Axes, direction: FloatArray, name: str, rim: float, colour: object) -> None:
    """Write the name of a limit just outside the rim of the disc."""
    x, y = 1.05 * rim * direction
    side = "center" if abs(direction[0]) < 0.3 else "left" if direction[0] > 0 else "right"
    ax.text(x, y, name, color=colour, weight="bold", ha=side, va="center", zorder=7)


# ---- the picture of a file of problems


def check_plot(data: TokenDataset, place: Path) -> None:
    """Raise before anything is computed if the data cannot be drawn or the file cannot be written."""
    if data.d_key != 2:
        raise InputError("plot", "left out unless keys have two coordinates", f"keys with d_key = {data.d_key}")
    if len(data) > _MAX_PANELS:
        raise InputError("plot", f"left out for files with more than {_MAX_PANELS} problems", f"{len(data)} problems")
    check_place(place, "plot", FIGURE_SUFFIXES)


def problem_figure(
    data: TokenDataset,
    head: ArrayLike,
    solutions: Sequence[Sequence[Mapping[str, Any]]],
    paths: FloatArray | None = None,
    loss: Loss | None = None,
) -> Figure:
    """Draw the picture of each problem: `solutions[j]` are its rows, `paths` (batch, n_points, 2) their training.

    The tokens are drawn at the top, or at the left for a single problem. Below, or at the right, is the plane of p with the
    basins of normalised descent. Its radius is logarithmic in ‖p‖, which shows the limit and the first steps together.
    """
    n_problems = len(data)
    is_wide = n_problems == 1
    with mpl.rc_context(house_style()):
        fig = Figure(figsize=(11.4, 7.4) if is_wide else (4.9 * n_problems, 10.8), layout="constrained")
        grid = np.reshape(fig.subplots(1, 2) if is_wide else fig.subplots(2, n_problems), (2, n_problems))
    batch = data.as_batch()
    scores, heads = batch.scores(head), batch.head(head)
    handles: dict[str, Any] = {}
    for j in range(n_problems):
        path = None if paths is None else paths[j]
        title = f"Problem {j}: " if data.is_batch else ""
        _draw_tokens(grid[0, j], batch[j], scores[j], solutions[j], f"{title}tokens" if title else "Tokens")
        handles |= _draw_disc(grid[1, j], _Limits.of(batch[j], heads[j], path, loss), path, title)
        handles = dict(zip(*reversed(grid[0, j].get_legend_handles_labels()), strict=True)) | handles
    with mpl.rc_context(house_style()):
        columns = 4 if is_wide else max(2, 2 * n_problems - 1)
        fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    return fig


@in_style
def _draw_tokens(
    ax: Axes, data: TokenDataset, scores: FloatArray, rows: Sequence[Mapping[str, Any]], title: str
) -> None:
    """Draw the tokens of every input with index and score, the max-margin directions, and the separating lines of the last
    row's direction.
    """
    ax.set_box_aspect(1.0)  # the window is square
    keys = [data.K[i, :length] for i, length in enumerate(data.lengths)]
    window = _window(np.concatenate(keys))
    reach = 4.0 * float(np.max(np.abs(window)))
    known = [row for row in rows if np.all(np.isfinite(row["direction"])) and np.any(row["direction"])]
    for row in known[:_MAX_RAYS]:
        colour = {"GMM": GLOBAL, "LMM": LOCAL}.get(row["kind"], INK)
        ray(ax, row["direction"], reach, color=colour, label=_ray_name(row["kind"]))
    is_few = data.n_inputs <= len(INPUTS)
    colours = list(INPUTS) if is_few else shades(data.n_inputs)
    if known and is_few:
        _separating_lines(ax, keys, known[-1], colours, reach)
    n_tokens = int(data.lengths.sum())
    shown = "" if n_tokens > _MAX_LABELS else "index" if n_tokens > _MAX_SCORES else "index: score"
    for i, key in enumerate(keys):
        scatter_input_tokens(ax, key, scores[i, : len(key)], colours[i], 60.0)
        for t, at in enumerate(key if shown else ()):
            score = f": {scores[i, t] + 0.0:.3g}".replace("-", "−") if ":" in shown else ""
            label = f"{data.name_of(i, t)}{score}"
            # inputs take turns, so that close tokens have room for their labels
            offset, side = ((9.0, 7.0), "left") if i % 2 == 0 else ((-9.0, -7.0), "right")
            note_at(ax, label, at, offset, fontsize=9, color=colours[i], ha=side)
    marks: list[tuple[str, float, Any, str]] = [("*", 160.0, PATH, "highest score"), ("o", 50.0, PATH, "other token")]
    if is_few and data.n_inputs > 1:
        marks += [("s", 50.0, colours[i], f"tokens of input {i}") for i in range(data.n_inputs)]
    for marker, size, colour, label in marks:
        ax.scatter([], [], marker=marker, s=size, color=[colour], edgecolor="white", label=label)
    title += f"{'' if is_few else ', one colour per input'}{f' ({shown})' if shown else ''}"
    names = {"xlabel": "first coordinate of the keys", "ylabel": "second coordinate"}
    ax.set(xlim=window[0], ylim=window[1], title=title, **names)


def _separating_lines(
    ax: Axes, keys: Sequence[FloatArray], row: Mapping[str, Any], colours: Sequence[str], reach: float
) -> None:
    """Draw for every input the line halfway between its selected token and the other tokens, across the direction."""
    direction = np.asarray(row["direction"])
    for key, token, colour in zip(keys, np.asarray(row["selected"]).tolist(), colours, strict=False):
        if len(key) > 1:
            heights = key @ direction
            halfway = 0.5 * (heights[token] + np.max(np.delete(heights, token)))
            separating_line(ax, direction, halfway * direction, reach, color=colour)
    ax.plot([], [], color=PATH, linestyle=":", label=f"separating lines of the {_ray_name(row['kind'])}")


def _window(keys: FloatArray) -> FloatArray:
    """Return a square (2, 2) around the origin and all keys, with room at the sides for their labels."""
    low, high = np.minimum(keys.min(axis=0), 0.0), np.maximum(keys.max(axis=0), 0.0)
    half = 0.68 * max(float(np.max(high - low)), 1e-12)
    middle = 0.5 * (low + high)
    return np.stack([middle - half, middle + half], axis=1)


def _ray_name(kind: str) -> str:
    return f"{text('direction.kind', case=kind)} direction" if kind in ("GMM", "LMM") else "max-margin direction"


class _Limits(NamedTuple):
    """The limits of normalised descent in the plane: `ends` (n_norms, n_angles) of `starts` are indices into `optima`, -1 for none of them.

    All three are None if the problem is too large to enumerate its limits. `unit` is the norm of p at which the softmax begins
    to distinguish tokens, and `far` is the largest norm shown.
    """

    optima: LocalOptima | None
    starts: FloatArray | None
    ends: IntArray | None
    unit: float
    far: float

    @classmethod
    def of(cls, data: TokenDataset, head: FloatArray, path: FloatArray | None, loss: Loss | None) -> _Limits:
        """Descend from a grid of starts, ring by ring, with steps in proportion to the ring's norm."""
        spread = float(np.max(np.ptp(data.K[data.mask], axis=0)))
        unit = 10.0 ** np.floor(np.log10(1.0 / spread)) if spread > 0.0 else 1.0
        longest = 0.0 if path is None else float(np.max(np.linalg.norm(path, axis=-1)))
        far = max(300.0 * unit, 1.6 * longest)
        try:
            optima = locally_optimal_directions(data, head, max_problems=_MAX_ENUMERATED)
        except InputError:  # too many selections
            return cls(None, None, None, unit, far)
        angles = 2.0 * np.pi * np.arange(_N_ANGLES) / _N_ANGLES
        circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        norms = unit * np.expm1(np.linspace(0.0, np.log1p(far / unit), _N_NORMS + 1)[1:])
        many, ends = data.repeat(_N_ANGLES), []
        for norm in norms:
            step = NormalizedGD(max(0.1 * unit, norm / 60.0))
            run = descend(many, head, loss=loss or Logistic(), optimizer=step, n_steps=600, start=norm * circle)
            reached = np.all(run.selected[:, None] == optima.selections, axis=-1)
            reached &= np.asarray(correlation(run.final[:, None], optima.directions)) >= _MIN_COSINE
            ends.append(np.where(reached.any(axis=-1), np.argmax(reached, axis=-1), -1))
        return cls(optima, norms[:, None, None] * circle, np.stack(ends), unit, far)


@in_style
def _draw_disc(ax: Axes, limits: _Limits, path: FloatArray | None, title: str) -> dict[str, Any]:
    """Draw the plane of p squeezed to a disc, with basins, limits at the rim, rings of equal norm and the path; return the
    legend's entries.
    """
    rim = float(np.log10(1.0 + limits.far / limits.unit))
    handles: dict[str, Any] = {}
    if limits.optima is not None and limits.starts is not None and limits.ends is not None:
        is_global = limits.optima.is_global.tolist()
        n_local = is_global.count(False)
        names = [
            "best" if best else "local" if n_local == 1 else f"local {is_global[: k + 1].count(False)}"
            for k, best in enumerate(is_global)
        ]
        colours = [GLOBAL if best else LOCAL for best in is_global]
        looks = [BasinLook(TINTS[colour], colour, _HATCHES[k % 10]) for k, colour in enumerate(colours)]
        log_radius_disc(ax, limits.starts, limits.ends, looks, far=limits.far, unit=limits.unit)
        for k in np.unique(limits.ends[limits.ends >= 0]).tolist():
            ground, colour, hatch = looks[k]
            kind, _, number = names[k].partition(" ")
            goal = f"the {kind} direction {number}".rstrip()
            handles[f"starts that go to {goal}"] = Patch(facecolor=ground, edgecolor=colour, hatch=hatch)
        if np.mean(limits.ends < 0) > _VISIBLE_SHARE:
            handles["starts that go to none of these"] = Patch(facecolor="white", edgecolor=PATH)
        for direction, name, colour in zip(limits.optima.directions, names, colours, strict=True):
            ax.plot(*np.outer(direction, [0.0, rim]), color=colour, linestyle=(0, (5, 3)), linewidth=1.8, zorder=4)
            rim_label(ax, direction, name, rim, colour)
    else:
        log_radius_rings(ax, limits.far, limits.unit)
    if path is not None:
        squeezed = log_radius(path, limits.unit)
        arrowed_path(ax, squeezed, color=INK, linewidth=1.8, zorder=5)
        starts(ax, squeezed[0])
        ax.plot(*squeezed[-1], marker="D", markersize=7, color=INK, markeredgecolor="white", zorder=7)
        handles["training"] = ax.plot([], [], color=INK, linewidth=1.8)[0]
        handles["start"] = ax.plot([], [], "o", markerfacecolor="white", markeredgecolor=INK)[0]
        handles["end of training"] = ax.plot([], [], "D", color=INK, markeredgecolor="white")[0]
    ax.set_title(f"{title}where descent leads" if title else "Where descent leads")
    return handles
