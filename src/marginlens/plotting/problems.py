"""Problems in the plane as a picture: tokens with their scores and separating lines, and beside them where descent leads, at any norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from marginlens import plotting
from marginlens.data import TokenDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import correlation
from marginlens.dynamics import descend
from marginlens.errors import InputError, reject
from marginlens.losses.margin import Logistic, Loss
from marginlens.optimizers import NormalizedGD
from marginlens.plotting.files import write_figure
from marginlens.runtime.files import check_place
from marginlens.theory import LocalOptima, locally_optimal_directions

_PANELS = 4  # problems that one figure holds side by side
_RAYS = 12  # directions that one panel shows
_MAX_SCORES, _MAX_LABELS = 16, 48  # tokens of a problem up to which each shows its score, and its index
_MAX_ENUMERATED = 2_000  # hard-margin problems solved to know all limits; a larger problem is drawn without basins
_N_ANGLES, _N_NORMS = 96, 28  # starts whose limits are painted
_REACHED = 0.95  # cosine with a direction from which a run counts as going there
_VISIBLE_SHARE = 0.02  # of the starts: fewer without a limit lie on borders between basins
_HATCHES = ("", "//", "\\\\", "xx", "..", "++", "--", "||", "oo", "**")


def check_plot(data: TokenDataset, place: Path) -> None:
    """Refuse what cannot be drawn, or cannot be written there, before anything is computed."""
    if data.d_key != 2:
        raise reject("plot", "left out unless keys have two coordinates", f"keys with d_key = {data.d_key}")
    if len(data) > _PANELS:
        raise reject("plot", f"left out for files with more than {_PANELS} problems", f"{len(data)} problems")
    if place.suffix.lower() not in (".png", ".svg"):
        raise reject("plot", "a name that ends in .png or .svg", repr(str(place)))
    check_place(place, "plot")


def draw_problems(
    place: Path,
    data: TokenDataset,
    v: Any,
    solutions: Sequence[Sequence[Mapping[str, Any]]],
    paths: FloatArray | None = None,
    loss: Loss | None = None,
) -> None:
    """Write `problem_figure` of the same arguments."""
    fig = problem_figure(data, v, solutions, paths, loss)
    write_figure(place, fig)


def problem_figure(
    data: TokenDataset,
    v: Any,
    solutions: Sequence[Sequence[Mapping[str, Any]]],
    paths: FloatArray | None = None,
    loss: Loss | None = None,
) -> Figure:
    """The picture of each problem: `solutions[j]` are its rows, `paths` (batch, n_points, 2) their training.

    Above, or at the left of a single problem, stand the tokens; below, or at the right, the plane of p at a distance of log ‖p‖ from the
    centre, so that the limit is seen beside the first steps, with the basins of normalised descent.
    """
    n_problems = len(data)
    wide = n_problems == 1
    with mpl.rc_context(plotting.STYLE):
        size = (11.4, 7.4) if wide else (4.9 * n_problems, 10.8)
        fig = Figure(figsize=size, layout="constrained")
        panels = fig.subplots(1, 2) if wide else fig.subplots(2, n_problems)
    grid = np.asarray(panels).reshape(2, n_problems)
    batch = data.as_batch()
    scores, head = batch.scores(v), batch.head(v)
    handles: dict[str, Any] = {}
    for j in range(n_problems):
        path = None if paths is None else paths[j]
        title = f"Problem {j}: " if data.is_batch else ""
        tokens, disc = grid[0, j], grid[1, j]
        _draw_tokens(tokens, batch[j], scores[j], solutions[j], f"{title}tokens" if title else "Tokens")
        handles |= _draw_disc(disc, batch[j], _Limits.of(batch[j], head[j], path, loss), path, title)
        handles = dict(zip(*reversed(tokens.get_legend_handles_labels()), strict=True)) | handles
    with mpl.rc_context(plotting.STYLE):
        columns = 4 if wide else max(2, 2 * n_problems - 1)
        fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)
    return fig


# ---- tokens


@plotting.in_style
def _draw_tokens(
    ax: Axes, data: TokenDataset, scores: FloatArray, rows: Sequence[Mapping[str, Any]], title: str
) -> None:
    """The tokens of every input with index and score, the max-margin directions, and the separating lines of the last row's direction."""
    ax.set_box_aspect(1.0)  # the window is square
    keys = [data.K[i, :length] for i, length in enumerate(data.lengths)]
    window = _window(np.concatenate(keys))
    reach = 4.0 * float(np.max(np.abs(window)))
    known = [row for row in rows if np.all(np.isfinite(row["direction"])) and np.any(row["direction"])]
    for row in known[:_RAYS]:
        plotting.ray(ax, row["direction"], reach, color=_colour(row["kind"]), label=_ray_name(row["kind"]))
    few = data.n_inputs <= len(plotting.INPUTS)
    colours = list(plotting.INPUTS) if few else plotting.shades(data.n_inputs)
    if known and few:
        _separating_lines(ax, keys, known[-1], colours, reach)
    for i, key in enumerate(keys):
        plotting.scatter_input_tokens(ax, key, scores[i, : len(key)], colours[i], 60.0)
        for at, text in zip(
            key, _labels(data, i, scores), strict=False
        ):  # inputs take turns, so that close tokens keep their labels
            offset, side = ((9.0, 7.0), "left") if i % 2 == 0 else ((-9.0, -7.0), "right")
            plotting.note_at(ax, text, at, offset, fontsize=9, color=colours[i], ha=side)
    marks: list[tuple[str, float, Any, str]] = [
        ("*", 160.0, plotting.PATH, "highest score"),
        ("o", 50.0, plotting.PATH, "other token"),
    ]
    if few and data.n_inputs > 1:
        marks += [("s", 50.0, colours[i], f"tokens of input {i}") for i in range(data.n_inputs)]
    for marker, size, colour, label in marks:
        ax.scatter([], [], marker=marker, s=size, color=[colour], edgecolor="white", label=label)
    shown = _shown(data)
    title += f"{'' if few else ', one colour per input'}{f' ({shown})' if shown else ''}"
    ax.set(
        xlim=window[0], ylim=window[1], title=title, xlabel="first coordinate of the keys", ylabel="second coordinate"
    )


def _shown(data: TokenDataset) -> str:
    """What stands beside every token."""
    total = int(data.lengths.sum())
    if total > _MAX_LABELS:
        return ""
    return "index: score" if total <= _MAX_SCORES else "index"


def _labels(data: TokenDataset, i: int, scores: FloatArray) -> list[str]:
    shown = _shown(data)
    if not shown:
        return []
    return [
        f"{t}: {scores[i, t] + 0.0:.3g}".replace("-", "−") if ":" in shown else f"{t}" for t in range(data.lengths[i])
    ]


def _separating_lines(
    ax: Axes, keys: Sequence[FloatArray], row: Mapping[str, Any], colours: Sequence[Any], reach: float
) -> None:
    """For every input the line halfway between its selected token and the other tokens, across the direction."""
    direction = np.asarray(row["direction"])
    for key, token, colour in zip(keys, np.asarray(row["selected"]).tolist(), colours, strict=False):
        if len(key) > 1:
            heights = key @ direction
            halfway = 0.5 * (heights[token] + np.max(np.delete(heights, token)))
            plotting.separating_line(ax, direction, halfway * direction, reach, color=colour)
    ax.plot([], [], color=plotting.PATH, linestyle=":", label=f"separating lines of the {_ray_name(row['kind'])}")


def _window(keys: FloatArray) -> plotting.Window:
    """A square around the origin and all keys, with room at the sides for their labels."""
    points = np.concatenate([keys, np.zeros((1, 2))])
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.68 * max(float(np.max(high - low)), 1e-12)
    x, y = 0.5 * (low + high)
    return (x - half, x + half), (y - half, y + half)


def _colour(kind: str) -> Any:
    return {"GMM": plotting.GLOBAL, "LMM": plotting.LOCAL}.get(kind, plotting.INK)


def _ray_name(kind: str) -> str:
    return f"{kind} direction" if kind in ("GMM", "LMM") else "max-margin direction"


# ---- where descent leads


class _Limits(NamedTuple):
    """The limits of normalised descent in the plane: `ends` (n_norms, n_angles) of `starts`, indices into `optima`, -1 for none of them.

    Both are None where the problem is too large to enumerate its limits. `unit` is the norm of p at which softmax begins to tell tokens
    apart, and `far` the largest norm shown.
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
        ends = [_reached(data, head, optima, norm * circle, max(0.1 * unit, norm / 60.0), loss) for norm in norms]
        return cls(optima, norms[:, None, None] * circle, np.stack(ends), unit, far)


def _reached(
    data: TokenDataset, head: FloatArray, optima: LocalOptima, starts: FloatArray, size: float, loss: Loss | None
) -> IntArray:
    """(n_starts,) the direction that each start goes to: it selects its tokens and is within a cosine of it; -1 where there is none."""
    many = data.repeat(len(starts))
    run = descend(many, head, loss=loss or Logistic(), optimizer=NormalizedGD(size), n_steps=600, start=starts)
    near = np.all(run.selected[:, None] == optima.selections, axis=-1)
    near &= np.asarray(correlation(run.final[:, None], optima.directions)) >= _REACHED
    return np.where(near.any(axis=-1), np.argmax(near, axis=-1), -1)


@plotting.in_style
def _draw_disc(ax: Axes, data: TokenDataset, limits: _Limits, path: FloatArray | None, title: str) -> dict[str, Any]:
    """The plane of p squeezed to a disc: basins, limits at the rim, rings of equal norm and the path; its entries of the legend."""
    rim = float(np.log10(1.0 + limits.far / limits.unit))
    handles: dict[str, Any] = {}
    if limits.optima is not None and limits.starts is not None and limits.ends is not None:
        names, colours = _names(limits.optima)
        looks = [
            plotting.BasinLook(plotting.TINTS[colour], colour, _HATCHES[k % 10]) for k, colour in enumerate(colours)
        ]
        plotting.log_radius_disc(ax, limits.starts, limits.ends, looks, far=limits.far, unit=limits.unit)
        for k in np.unique(limits.ends[limits.ends >= 0]).tolist():
            ground, colour, hatch = looks[k]
            handles[f"starts that go to {names[k]}"] = Patch(facecolor=ground, edgecolor=colour, hatch=hatch)
        if np.mean(limits.ends < 0) > _VISIBLE_SHARE:
            handles["starts that go to none of these"] = Patch(facecolor="white", edgecolor=plotting.PATH)
        for direction, name, colour in zip(limits.optima.directions, names, colours, strict=True):
            ax.plot(*np.outer(direction, [0.0, rim]), color=colour, linestyle=(0, (5, 3)), linewidth=1.8, zorder=4)
            plotting.rim_label(ax, direction, name, rim, colour)
    else:
        plotting.log_radius_rings(ax, limits.far, limits.unit)
    if path is not None:
        squeezed = plotting.log_radius(path, limits.unit)
        plotting.arrowed_path(ax, squeezed, color=plotting.INK, linewidth=1.8, zorder=5)
        plotting.starts(ax, squeezed[0])
        ax.plot(*squeezed[-1], marker="D", markersize=7, color=plotting.INK, markeredgecolor="white", zorder=7)
        handles["training"] = ax.plot([], [], color=plotting.INK, linewidth=1.8)[0]
        handles["start"] = ax.plot([], [], "o", markerfacecolor="white", markeredgecolor=plotting.INK)[0]
        handles["end of training"] = ax.plot([], [], "D", color=plotting.INK, markeredgecolor="white")[0]
    ax.set_title(f"{title}where descent leads" if title else "Where descent leads")
    return handles


def _names(optima: LocalOptima) -> tuple[list[str], list[Any]]:
    """Name and colour of every limit: GMM, LMM, or LMM 1, LMM 2 where there are several."""
    n_local = int(np.sum(~optima.is_global))
    names: list[str] = []
    for is_global in optima.is_global.tolist():
        number = sum(name.startswith("LMM") for name in names) + 1
        names.append("GMM" if is_global else "LMM" if n_local == 1 else f"LMM {number}")
    return names, [plotting.GLOBAL if is_global else plotting.LOCAL for is_global in optima.is_global.tolist()]
