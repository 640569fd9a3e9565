"""The basins of attention in the plane: the risk, every locally optimal direction, its cone, and which starts flow to which limit."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter

import marginlens as ml
from marginlens.data import basin_example, figure_1b
from marginlens.data.random_tokens import scored_tokens
from marginlens.result.palette import ACCENTS
from marginlens.theory import LocalOptima
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import Axes, Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing

SEED = 6076  # at which the search over seeds begins
STEP = 0.1
NEAR_1B, NEAR_RANDOM = 4.0, 6.0  # half the sides of the square windows around the origin
REACHED = 0.99
FENCE_POINTS = 720
_COLOURS = (ACCENTS[1], ACCENTS[2], ACCENTS[4], ACCENTS[3])  # locally optimal directions, by margin
_HATCHES = ("////", "....", "\\\\\\\\", "++")


class X_B(Claim):
    labels = ("A Fig 1(b)", "A Def 2", "A Thm 3")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Descend from grids of starts on both problems and say where each start ends."""
        paper = effort is Effort.PAPER
        side, n_steps, rings = (70, 5000, (100, 50)) if paper else (24, 2000, (24, 12))
        progress.expect(5)
        (data, v), (other, w) = figure_1b(), basin_example()
        progress.advance()
        seconds, first = _timed(data, v, side, NEAR_1B, n_steps)
        progress.advance()
        _, second = _timed(other, w, side, NEAR_RANDOM, 2000)
        progress.advance()
        shown = {}
        for name, problem, head, plane in (("figure_1b", data, v, first), ("random", other, w, second)):
            shown[name] = _surroundings(problem, head, plane, rings)
            progress.advance()
        numbers: dict[str, float] = {}
        for name, parts in shown.items():
            ends = np.concatenate([parts["plane"].ends.ravel(), parts["disc"].ends.ravel()])
            numbers[f"share_accounted_{name}"] = float(np.mean(ends >= 0))
            found = len(parts["optima"])
            numbers[f"finite_minimum_{name}"] = float(np.mean(parts["plane"].ends == found))
            numbers[f"directions_with_starts_{name}"] = float(
                np.sum(np.bincount(ends[ends >= 0], minlength=found)[:found] > 0)
            )
        numbers["starts_times_steps"], numbers["seconds"] = float(side**2 * n_steps), seconds
        return Finding(_sentence(numbers, shown), numbers, {"shown": shown})

    # ---- the picture

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """For each problem the risk near the origin with paths, and the whole plane with basins and cones."""
        titles = {"figure_1b": "Figure 1(b)'s problem", "random": "A random problem, n = 2, T = 4"}
        return {name: _picture(parts, titles[name]) for name, parts in finding.arrays["shown"].items()}


@dataclass(frozen=True)
class Basins:
    """Where starts (…, 2) of one problem end: the index of a locally optimal direction, their number for a finite minimum, or -1."""

    starts: FloatArray
    ends: IntArray

    def __repr__(self) -> str:
        return f"Basins({self.ends.size} starts, {int(np.sum(self.ends < 0))} unaccounted for)"


def _sentence(numbers: dict[str, float], shown: dict[str, Any]) -> str:
    total = sum(parts[grid].ends.size for parts in shown.values() for grid in ("plane", "disc"))
    share = min(numbers["share_accounted_figure_1b"], numbers["share_accounted_random"])
    first = shown["figure_1b"]
    k = int(np.argmin(first["optima"].is_global))
    local, width = np.mean(first["plane"].ends == k), 2.0 * np.degrees(np.arccos(1.0 - first["cones"][k].mu))
    return (
        f"{100 * share:.2f}% of {total:,} starts are accounted for. Of those in the window [-{NEAR_1B:g}, {NEAR_1B:g}]² around the "
        f"origin of Figure 1(b)'s problem, which is wider than the figure, {100 * local:.0f}% flow to the locally optimal direction, "
        f"although its cone is only {width:.1f}° wide; in the random problem {numbers['directions_with_starts_random']:.0f} directions "
        f"and a finite minimum ({100 * numbers['finite_minimum_random']:.0f}% of the window) share the plane. "
        f"{numbers['starts_times_steps']:,.0f} steps took {numbers['seconds']:.1f} s."
    )


def random_problem(seed: int) -> tuple[ml.TokenDataset, FloatArray]:
    """The first problem from `seed` on in which the best direction, two local ones and a finite minimum all attract starts.

    From `SEED` on it is `data.basin_example()`.
    """
    grid = square_of_starts(10, 6.0).reshape(-1, 2)
    while True:
        rng = np.random.default_rng([seed, 2, 4])
        keys, scores = rng.standard_normal((2, 4, 2)).round(2), rng.uniform(0.0, 1.0, (2, 4)).round(2)
        data, v = scored_tokens(keys, scores)
        optima = ml.locally_optimal_directions(data, v)
        if len(optima) >= 3 and optima.is_global.any() and optima.margins.min() >= 0.15:
            run = ml.descend(data.repeat(len(grid)), v, optimizer=ml.NormalizedGD(0.3), n_steps=1000, start=grid)
            shares = np.bincount(_ends(data, v, optima, run) + 1, minlength=len(optima) + 2) / len(grid)
            if np.all(shares[1:] > 0.05):
                return data, v
        seed += 1


# ---- where starts end
def square_of_starts(side: int, half: float) -> FloatArray:
    """Starts (side, side, 2) at the centres of a grid over [-half, half]²."""
    line = (np.arange(side) + 0.5) / side * 2.0 * half - half
    return np.stack(np.meshgrid(line, line), axis=-1)


def _timed(data: ml.TokenDataset, v: Any, side: int, half: float, n_steps: int) -> tuple[float, Basins]:
    starts = square_of_starts(side, half)
    ml.descend(data.repeat(1), v, n_steps=1)  # compiled by now
    begin = perf_counter()
    found = basins_of(data, v, starts, STEP, n_steps)
    return perf_counter() - begin, found


def basins_of(data: ml.TokenDataset, v: Any, starts: FloatArray, step: float, n_steps: int) -> Basins:
    """Where normalised descent from starts (…, 2) ends: by short steps, or by long ones and 200 short ones after them."""
    flat = starts.reshape(-1, 2)
    run = ml.descend(data.repeat(len(flat)), v, optimizer=ml.NormalizedGD(step), n_steps=n_steps, start=flat)
    if step > STEP:  # long steps to cover the distance, short ones to settle
        run = ml.descend(data.repeat(len(flat)), v, optimizer=ml.NormalizedGD(STEP), n_steps=200, start=run.final)
    return Basins(starts, _ends(data, v, ml.locally_optimal_directions(data, v), run).reshape(starts.shape[:-1]))


def _ends(data: ml.TokenDataset, v: Any, optima: LocalOptima, run: ml.Trajectory) -> IntArray:
    """The index of the direction each run has reached, the number of directions if it is fenced in, else -1; (n_starts,)."""
    same = np.all(run.selected[:, None] == optima.selections, axis=-1)
    near = same & (np.asarray(ml.correlation(run.final[:, None], optima.directions)) >= REACHED)
    ends = np.where(near.any(axis=-1), np.argmax(near, axis=-1), -1)
    for k in np.flatnonzero(ends < 0):
        if ends[k] < 0:
            fence = _fence(data, v, run.final[k])
            if fence is not None:
                radius, height = fence
                inside = np.linalg.norm(run.final - run.final[k], axis=-1) < radius
                lower = np.asarray(ml.AttentionRisk(data.repeat(len(ends)), v).value(run.final)) < height
                ends[(ends < 0) & inside & lower] = len(optima)
    return ends.astype(np.int64)


def _fence(data: ml.TokenDataset, v: Any, end: FloatArray) -> tuple[float, float] | None:
    """The radius of a circle around `end`, and a height above the risk at `end` that no point of the circle falls below; or None.

    Between neighbouring evaluations the risk changes by at most its Lipschitz constant times half their distance, so the height is
    proved: a finite minimum lies inside, and descent that never raises the risk cannot leave from a lower point.
    """
    angles = 2.0 * np.pi * np.arange(FENCE_POINTS) / FENCE_POINTS
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    for radius in np.geomspace(4.0 * STEP, 3.0, 12):
        heights = ml.AttentionRisk(data.repeat(FENCE_POINTS), v).value(end + radius * circle)
        proved = float(np.min(heights)) - _steepest(data, v) * np.pi * radius / FENCE_POINTS
        if proved > float(ml.AttentionRisk(data, v).value(end)):
            return float(radius), proved
    return None


def _steepest(data: ml.TokenDataset, v: Any) -> float:
    """A bound on the norm of the risk's gradient: slopes times half the range of scores times half the diameter of keys, on average."""
    scores = data.scores(v)
    ranges = np.max(scores, axis=-1) - np.min(np.where(data.mask, scores, np.inf), axis=-1)
    widths = np.max(np.linalg.norm(data.K[:, :, None] - data.K[:, None], axis=-1), axis=(-2, -1))
    return float(np.exp(ScoredTokens(data, v).log_slopes[0])) * float(np.mean(ranges * widths)) / 4.0


def _surroundings(data: ml.TokenDataset, v: Any, plane: Basins, rings: tuple[int, int]) -> dict[str, Any]:
    """What is drawn for one problem: basins near and far, risk, directions, cones and a few paths."""
    optima = ml.locally_optimal_directions(data, v)
    cones = [ml.basin_cone(data, v, selection) for selection in optima.selections]
    far = 3.0 * max(cone.radius for cone in cones)
    n_angles, n_norms = rings
    angles = 2.0 * np.pi * np.arange(n_angles) / n_angles
    norms = np.expm1(np.linspace(0.0, np.log1p(far), n_norms + 1)[1:])
    grid = norms[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)  # (n_norms, n_angles, 2)
    near = norms <= 20.0
    parts = [
        basins_of(data, v, grid[near], STEP, 2000).ends,
        basins_of(data, v, grid[~near], far / 200.0, 2500).ends,
    ]
    fine = square_of_starts(240, float(np.max(np.abs(plane.starts))))
    heights = ml.AttentionRisk(data.repeat(240**2), v).value(fine.reshape(-1, 2)).reshape(240, 240)
    picked = _paths(plane)
    run = ml.descend(
        data.repeat(len(picked)),
        v,
        optimizer=ml.NormalizedGD(STEP / 2),
        n_steps=int(24 * far),
        start=picked,
        record=ml.Record(1),
    )
    return {
        "optima": optima,
        "cones": cones,
        "far": far,
        "plane": plane,
        "disc": Basins(grid, np.concatenate(parts)),
        "fine": fine,
        "heights": heights,
        "paths": run.saved["x"],
        "minima": run.final[_ends(data, v, optima, run) == len(optima)],
    }


def _paths(plane: Basins) -> FloatArray:
    """A few starts of every basin, spread out: each next one as far as possible from those before."""
    picked: list[FloatArray] = []
    for k in np.unique(plane.ends):
        in_basin = plane.starts[plane.ends == k]
        inside = in_basin[np.max(np.abs(in_basin), axis=-1) < 0.75 * np.max(np.abs(plane.starts))]
        for _ in range(4):
            distance = np.min(
                [np.linalg.norm(inside - start, axis=-1) for start in picked] or [np.zeros(len(inside))], axis=0
            )
            picked.append(inside[int(np.argmax(distance))])
    return np.array(picked)


def _picture(parts: dict[str, Any], title: str) -> Figure:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    fig, (left, right) = ml.plotting.figure(2, width=6.6, height=7.5)
    names, colours, hatches = _key(parts["optima"])
    _landscape(fig, left, parts, names, colours)
    left.set_title(f"{title}: the risk, and paths of descent")
    _disc(right, parts, names, colours, hatches)
    present = np.unique(np.concatenate([parts["plane"].ends.ravel(), parts["disc"].ends.ravel()]))
    handles: list[Any] = [
        Patch(
            facecolor=_tint(colours[k]), edgecolor=colours[k], hatch=hatches[k], label=f"starts that end at {names[k]}"
        )
        for k in present
        if k >= 0
    ]
    handles += [
        Patch(facecolor=ml.plotting.PATH, edgecolor="white", label="cone of Theorem 3, to scale"),
        Line2D(
            [], [], color="white", lw=2.0, path_effects=_outline(3.4, ml.plotting.INK), label="border between basins"
        ),
        Line2D([], [], color=ml.plotting.INK, lw=1.6, label="descent"),
        Line2D([], [], marker="o", ls="", mfc="white", mec=ml.plotting.INK, label="start"),
    ]
    if len(parts["minima"]):
        handles.append(
            Line2D([], [], marker="P", ls="", ms=10, mfc=ml.plotting.PATH, mec="white", label="finite minimum")
        )
    fig.legend(handles=handles, loc="outside lower center", ncol=3, handlelength=2.6, handleheight=1.4)
    return fig


def _key(optima: LocalOptima) -> tuple[list[str], list[str], list[str]]:
    """Name, colour and hatch of every direction and, last, of a finite minimum."""
    names, colours, hatches, k = [], [], [], 0
    single_local = np.sum(~optima.is_global) == 1
    for is_global in optima.is_global:
        local = "the local direction" if single_local else f"local direction {k + 1}"
        names.append("the best direction" if is_global else local)
        colours.append(ml.plotting.GLOBAL if is_global else _COLOURS[k % len(_COLOURS)])
        hatches.append("" if is_global else _HATCHES[k % len(_HATCHES)])
        k += not is_global
    return [*names, "a finite minimum"], [*colours, ml.plotting.PATH], [*hatches, "xxxx"]


def _tint(colour: str, strength: float = 0.28) -> tuple[float, float, float]:
    parts = [int(colour[k : k + 2], 16) / 255.0 for k in (1, 3, 5)]
    red, green, blue = (1.0 - strength * (1.0 - part) for part in parts)
    return red, green, blue


def _landscape(fig: Figure, ax: Axes, parts: dict[str, Any], names: list[str], colours: list[str]) -> None:
    fine, heights, plane = parts["fine"], parts["heights"], parts["plane"]
    x, y, half = fine[0, :, 0], fine[:, 0, 1], float(np.max(np.abs(plane.starts)))
    levels = np.linspace(heights.min(), heights.max(), 28)
    filled = ax.contourf(x, y, heights, levels=levels, cmap="cividis", zorder=0)
    ax.contour(x, y, heights, levels=levels[::3], colors="white", linewidths=0.5, alpha=0.45, zorder=1)
    bar = fig.colorbar(filled, ax=ax, location="left", shrink=0.8, pad=0.02, format="%.2f")
    bar.set_label("risk L(p)")
    for k in np.unique(plane.ends)[1:]:  # every border but the first basin's, which the others share
        inside = gaussian_filter((plane.ends == k).astype(float), 0.012 * len(plane.ends))
        x, y = plane.starts[0, :, 0], plane.starts[:, 0, 1]
        border = ax.contour(x, y, inside, levels=[0.5], colors="white", linewidths=2.0, zorder=2)
        border.set_path_effects(_outline(3.4, ml.plotting.INK))
    for direction, name, colour in zip(parts["optima"].directions, names, colours, strict=False):
        ax.plot(*np.outer(direction, [0.0, 3.0 * half]), color=colour, lw=3.0, zorder=3, path_effects=_outline(5.0))
        place = 0.8 * half * direction / np.max(np.abs(direction))
        ml.plotting.note_at(ax, _brief(name), place, (0.0, 0.0), color=colour, weight="bold", ha="center")
    window: drawing.Window = ((-half, half), (-half, half))
    for path in parts["paths"]:
        inside_path = drawing.until_it_leaves(path, window)
        ml.plotting.arrowed_path(
            ax, inside_path, arrows=2, linewidth=1.5, zorder=4, color=ml.plotting.INK, path_effects=_outline(3.2)
        )
    ml.plotting.starts(ax, parts["paths"][:, 0])
    _mark_minima(ax, parts["minima"])
    ax.grid(visible=False)
    ax.set(xlim=window[0], ylim=window[1], aspect="equal", xlabel="p₁", ylabel="p₂")


def _mark_minima(ax: Axes, points: FloatArray) -> None:
    ax.plot(*points[:1].T, "P", ms=11, mfc=ml.plotting.PATH, mec="white", mew=1.3, zorder=8)


def _outline(width: float, colour: str = "white") -> list[Any]:
    from matplotlib import patheffects

    return [patheffects.Stroke(linewidth=width, foreground=colour), patheffects.Normal()]


def _disc(ax: Axes, parts: dict[str, Any], names: list[str], colours: list[str], hatches: list[str]) -> None:
    from marginlens.plotting.plane import BasinLook, log_radius, log_radius_disc, rim_label

    disc, rim = parts["disc"], float(np.log10(1.0 + parts["far"]))
    looks = [
        BasinLook(_tint(colour), _tint(colour, 0.6), hatch) for colour, hatch in zip(colours, hatches, strict=True)
    ]
    log_radius_disc(ax, disc.starts, disc.ends, looks, far=parts["far"])
    for k, cone in enumerate(parts["cones"]):
        axis, width = np.arctan2(cone.p[1], cone.p[0]), np.arccos(1.0 - cone.mu)
        sweep, begin = axis + np.linspace(-width, width, 30), np.log10(1.0 + cone.radius)
        edge = np.stack([np.cos(sweep), np.sin(sweep)])
        ax.fill(*np.concatenate([begin * edge, rim * edge[:, ::-1]], axis=1), color=colours[k], lw=0.0, zorder=5)
        tip = np.array([np.cos(axis), np.sin(axis)])
        ax.plot(*np.outer(tip, [0.0, begin]), color=colours[k], lw=1.6, ls=(0, (5, 3)), zorder=4)
        rim_label(ax, tip, _brief(names[k]), rim, colours[k])
    for path in parts["paths"]:
        path = path[np.linalg.norm(path, axis=-1) <= parts["far"]]
        ax.plot(*log_radius(path).T, color=ml.plotting.INK, lw=0.9, alpha=0.8, zorder=3)
    begins = log_radius(parts["paths"][:, 0])
    ml.plotting.starts(ax, begins, s=14)
    _mark_minima(ax, log_radius(parts["minima"]))
    ax.set_title("The whole plane: basins and cones")


def _brief(name: str) -> str:
    return name.removeprefix("the ").replace(" direction", "")
