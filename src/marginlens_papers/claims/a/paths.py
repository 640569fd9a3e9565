"""A Thms 1 and 4: global and local regularisation paths converge to max-margin directions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.arithmetic.directions import unit
from marginlens.data import figure_1b, sphere_tokens
from marginlens.theory import LocalOptima, directional_margin, globally_optimal_direction
from marginlens.typing import Axes, Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a.general_position import check_distinct_scores, check_general_position

GLOBAL_SEED = 5
GLOBAL_SCALES = 10.0 ** np.arange(6)  # R · margin
FITTED = 3  # from this scale on


class A_T1(Claim):
    labels = ("A Thm 1", "A Eq. (2)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow the path of every problem and measure its distance to the best direction."""
        seeds, widths = (range(1, 50, 2), range(2, 51, 2)) if effort is Effort.PAPER else (range(4), (2, 12, 25, 50))
        progress.expect(len(widths) + 1)
        distance, corr, residual, margins = [], [], [], []
        for j, d in zip(seeds, widths, strict=True):
            data, v, direction, margin = _separable(d, np.random.default_rng([GLOBAL_SEED, j]))
            path = ml.path(data, GLOBAL_SCALES / margin, head=v, restarts=1, rng=j)
            distance.append(path.distance(direction))
            corr.append(path.correlation(direction))
            residual.append(path.kkt_residual())
            margins.append(margin)
            progress.advance()
        distances = np.stack(distance)  # (n_problems, n_radii)
        slopes = np.polyfit(np.log(GLOBAL_SCALES[FITTED:]), np.log(distances[:, FITTED:]).T, 1)[0]
        planar = _global_planar()
        progress.advance()
        numbers = {
            "smallest_corr_at_largest_radius": float(np.min(np.stack(corr)[:, -1])),
            "smallest_corr_at_1000_over_margin": float(np.min(np.stack(corr)[:, FITTED])),
            "slowest_slope": float(slopes.max()),
            "median_slope": float(np.median(slopes)),
            "steepest_slope": float(slopes.min()),
            "largest_distance_at_the_end": float(distances[:, -1].max()),
            "distance_grows": float(np.sum(~(np.diff(distances, axis=1) <= 0.0))),
            "largest_kkt_residual": float(np.max(residual)),
            "problems": float(len(widths)),
        }
        measured = (
            f"In all {len(widths)} problems the correlation with the best direction is at least "
            f"{numbers['smallest_corr_at_1000_over_margin']:.5f} at R = 1e3/margin and "
            f"1 - {1.0 - numbers['smallest_corr_at_largest_radius']:.0e} at 1e5/margin. The distance of p̄(R)/R to it falls with R, with "
            f"slopes from {slopes.max():.3f} to {slopes.min():.3f} (median {np.median(slopes):.4f}); KKT "
            f"residuals are up to {numbers['largest_kkt_residual']:.0e}."
        )
        arrays = {
            "d": np.array(widths),
            "distance": distances,
            "slopes": slopes,
            "margins": np.array(margins),
            "planar": planar,
        }
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The distance to the best direction over the radius for every problem, and one path that bends into it."""
        fig, (left, right) = ml.plotting.figure(2, width=5.4, height=4.6)
        distance, widths = finding.arrays["distance"], finding.arrays["d"]
        low, high = float(widths.min()), float(widths.max())
        shade = ml.plotting.shades(101)
        for d, line in zip(widths, distance, strict=True):
            left.loglog(GLOBAL_SCALES, line, color=shade[round(100 * (d - low) / (high - low))], lw=1.0, alpha=0.8)
        for d in (low, (low + high) / 2.0, high):
            left.plot([], [], color=shade[round(100 * (d - low) / (high - low))], label=f"d = {d:.0f}")
        guide = 30.0 / GLOBAL_SCALES[1:]
        left.loglog(GLOBAL_SCALES[1:], guide, color=ml.plotting.INK, ls="--", lw=1.3)
        left.text(GLOBAL_SCALES[3], 2.0 * guide[2], "slope −1", ha="left", va="bottom")
        left.set(xlabel="R · margin", ylabel="‖p̄(R)/R − best direction‖")
        left.set_title(f"{len(widths)} problems: the distance falls like 1/R")
        left.legend(loc="lower left")
        _draw_global_plane(right, finding.arrays["planar"])
        return {"path": fig}


def _separable(d: int, rng: np.random.Generator) -> tuple[ml.TokenDataset, Any, Any, float]:
    """A random problem whose optimal tokens one direction selects, its head, that direction and its margin."""
    while True:
        data, v = sphere_tokens(20, 3, 4, d, rng)
        found = globally_optimal_direction(data, v)
        good = np.flatnonzero(found.is_feasible & found.optimum_is_unique)
        if len(good):
            j = int(good[0])
            return data[j], v[j], found.direction[j], float(found.margin[j])


def _global_planar() -> dict[str, Any]:
    """The path of Figure 1(b)'s problem from the origin on."""
    data, v = figure_1b()
    path = ml.path(data, np.geomspace(0.1, 8.0, 16), head=v, restarts=2)
    found = globally_optimal_direction(data, v)
    return {
        "keys": data.K,
        "scores": data.scores(v),
        "direction": found.direction,
        "radii": path.radii,
        "points": path.points,
    }


def _draw_global_plane(ax: Axes, planar: dict[str, Any]) -> None:
    points, direction, radii = planar["points"], planar["direction"], planar["radii"]
    window: drawing.Window = ((-2.6, 2.6), (-0.6, 4.4))
    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    for radius in (1.0, 2.0, 3.0, 4.0):
        ax.plot(radius * np.cos(turn), radius * np.sin(turn), color=ml.plotting.FAINT, lw=1.0, zorder=1)
        ml.plotting.note_at(
            ax,
            f"R = {radius:g}",
            radius * np.array([-0.5, 0.866]),
            (0, 0),
            ha="center",
            fontsize=9,
            color=ml.plotting.PATH,
        )
    ml.plotting.ray(ax, direction, 20.0, color=ml.plotting.GLOBAL, label="best direction")
    start = points[0] / radii[0]
    ax.plot(
        *np.stack([0 * start, 20.0 * start]).T, color=ml.plotting.PATH, ls=":", lw=1.4, label="steepest descent at 0"
    )
    ax.plot(*points.T, color=ml.plotting.INK, lw=2.0, marker="o", ms=4, zorder=5, label="p̄(R)")
    drawing.scatter_tokens(ax, planar["keys"], planar["scores"])
    ax.set(xlim=window[0], ylim=window[1], aspect="equal", xlabel="p₁ and first coordinate of the keys", ylabel="p₂")
    ax.set_title("One path bends into the max-margin direction")
    ax.legend(loc="lower left", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")


LOCAL_SEED = 4
WIDTH = 1e-3  # 1 - cosine at the edge of the cones around directions that are not locally optimal
KINDS = ("max-margin, not locally optimal", "neighbour-optimal, not max-margin", "random")
LOCAL_SCALES = np.array([1e3, 1e4, 1e5])


class A_T4(Claim):
    labels = ("A Thm 4", "A Thm 7", "A Eq. (9)", "A Eq. (66)", "A P^mm")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow a local path around every direction of every problem."""
        problems = 16 if effort is Effort.PAPER else 2
        kept, left, kinds, residual, position, norms = [], [], [], [], [], []
        ends: list[Any] = []
        for j in progress.each(range(problems), more=1):
            rng = np.random.default_rng([LOCAL_SEED, j])
            data, v, optima = _problem(rng)
            position.append(bool(check_general_position(data) and check_distinct_scores(data, v)))
            for alpha in optima.selections:
                basin = ml.basin_cone(data, v, alpha)
                cone = ml.Cone(basin.p, basin.mu, basin.radius)
                path = ml.path(data, np.array([10.0, 100.0, 1e3]) * cone.radius, head=v, region=cone, restarts=2)
                distance = path.distance(basin.p)
                kept.append(bool(distance[-1] <= max(2e-2 * distance[-3], 1e-12)))
                ends.append(distance)
                residual.append(path.kkt_residual().max())
            for kind, q in _others(data, v, optima, rng):
                path = ml.path(
                    data, LOCAL_SCALES / optima.margins.min(), head=v, region=ml.Cone(q, WIDTH, 10.0), restarts=2
                )
                room = min(float(np.sqrt(2.0 * WIDTH)), float(np.min(np.linalg.norm(optima.directions - q, axis=-1))))
                left.append(bool(path.distance(q)[-1] > 0.1 * room))
                kinds.append(kind)
                norms.append(path.norm[-1] / path.radii[-1])
                residual.append(path.kkt_residual().max())
        planar = _local_planar()
        progress.advance()
        finite = np.array(norms) < 0.5
        numbers = {
            "share_of_lmm_kept": float(np.mean(kept)),
            "share_of_others_left": float(np.mean(left)),
            "share_in_general_position": float(np.mean(position)),
            "largest_distance_of_lmm_at_the_end": float(np.max([end[-1] for end in ends])),
            "largest_kkt_residual": float(np.max(residual)),
            "share_of_others_that_stay_finite": float(np.mean(finite)),
            "lmm": float(len(kept)),
            "others": float(len(left)),
            "problems": float(problems),
        }
        by_kind = ", ".join(
            f"{sum(1 for kind, gone in zip(kinds, left, strict=True) if kind == k and gone)} of {kinds.count(k)} {name}"
            for k, name in enumerate(KINDS)
        )
        measured = (
            f"In {problems} problems, {sum(position)} of them in general position, the local paths keep {sum(kept)} of {len(kept)} "
            f"locally optimal directions (distance at most {numbers['largest_distance_of_lmm_at_the_end']:.0e} at R = 1e3 R₀) and leave "
            f"{sum(left)} of {len(left)} others: {by_kind}. {int(finite.sum())} of these stop at a finite norm; the rest go to the edge "
            "of their cone or to another direction in it."
        )
        note = (
            "Theorem 4 promises that paths leave directions that are not locally optimal. That locally optimal ones are kept is "
            "Theorem 3's side of it, and holds for cones with the width and norm of Eqs (32) and (46). With a smaller norm a finite "
            "minimum just beyond it can win."
        )
        return Finding(measured, numbers, {"planar": planar}, note=note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Cones around directions of one problem in the plane, norms on a logarithmic scale, and where each local path goes."""
        fig, (ax,) = ml.plotting.figure(1, width=8.4, height=5.2)
        _draw_local_plane(ax, finding.arrays["planar"])
        return {"cones": fig}


def _problem(rng: np.random.Generator) -> tuple[ml.TokenDataset, Any, LocalOptima]:
    """A random problem with a locally optimal direction whose margin is not tiny."""
    while True:
        n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 4))
        batch, heads = sphere_tokens(1, n, T, d, rng)
        optima = ml.locally_optimal_directions(batch[0], heads[0])
        if len(optima) and optima.margins.min() > 0.02:
            return batch[0], heads[0], optima


def _others(data: ml.TokenDataset, v: Any, optima: LocalOptima, rng: np.random.Generator) -> list[tuple[int, Any]]:
    """Unit directions that are not locally optimal, each with the index of its kind."""
    every = np.array(list(product(*(range(int(length)) for length in data.lengths))))
    found = ml.token_optimality(data.repeat(len(every)), v, every)
    wrong = np.flatnonzero(found.is_feasible & ~found.is_locally_optimal)
    directions = [(0, found.direction[k]) for k in rng.permutation(wrong)[:2]]
    for axis in optima.directions[:2]:
        q = unit(axis + 0.2 * unit(rng.standard_normal(len(axis))))
        about, same = directional_margin(data, q, v), directional_margin(data, axis, v)
        if about.neighbour_optimal and np.array_equal(about.selected, same.selected):
            directions.append((1, q))
    return [*directions, (2, unit(rng.standard_normal(data.d_key)))]


def _local_planar() -> dict[str, Any]:
    """Figure 1(b)'s problem with a cone around each of its locally optimal directions and around four others."""
    data, v = figure_1b()
    optima = ml.locally_optimal_directions(data, v)
    wrong = ml.token_optimality(data, v, [2]).direction
    angles = np.radians([40.0, 140.0, -40.0])
    axes = [*optima.directions, wrong, *np.stack([np.cos(angles), np.sin(angles)], axis=-1)]
    widths = [0.004] * len(optima) + [0.02] * 4
    radii = np.geomspace(5.0, 5e3, 8)
    paths: list[ml.Path] = [
        ml.path(data, radii, head=v, region=ml.Cone(axis, mu, 5.0), restarts=1)
        for axis, mu in zip(axes, widths, strict=True)
    ]
    return {
        "axes": np.array(axes),
        "half_angles": np.array([ml.Cone(axis, mu, 5.0).half_angle for axis, mu in zip(axes, widths, strict=True)]),
        "is_global": np.concatenate([optima.is_global, np.zeros(4, dtype=bool)]),
        "is_local": np.arange(len(axes)) < len(optima),
        "points": np.stack([path.points for path in paths]),
        "floor": 5.0,
    }


def _draw_local_plane(ax: Axes, planar: dict[str, Any]) -> None:
    floor, reach = planar["floor"], 4.0

    def shrink(points: Any) -> Any:
        norm = np.linalg.norm(points, axis=-1, keepdims=True)
        return points / norm * (1.0 + np.log10(norm / floor))

    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    for k in range(4):
        ax.plot((1 + k) * np.cos(turn), (1 + k) * np.sin(turn), color=ml.plotting.FAINT, lw=1.0, zorder=0)
        place = (1 + k) * np.array([np.cos(np.radians(-82)), np.sin(np.radians(-82))])
        ml.plotting.note_at(
            ax, f"‖p‖ = {floor * 10**k:g}", place, (0, 0), ha="center", fontsize=9, color=ml.plotting.PATH
        )
    seen: set[str] = set()
    for axis, half, is_global, is_local, points in zip(
        *(planar[name] for name in ("axes", "half_angles", "is_global", "is_local", "points")), strict=True
    ):
        colour = ml.plotting.GLOBAL if is_global else ml.plotting.LOCAL if is_local else ml.plotting.PATH
        name = (
            "cone around the best direction"
            if is_global
            else "cone around a local direction"
            if is_local
            else "cone around another direction"
        )
        middle = np.arctan2(axis[1], axis[0])
        sweep = middle + np.linspace(-half, half, 40)
        arc = np.stack([np.cos(sweep), np.sin(sweep)])
        wedge = np.concatenate([arc, reach * arc[:, ::-1]], axis=1)
        ax.fill(*wedge, color=colour, alpha=0.22, lw=0, zorder=1, label=None if name in seen else name)
        seen.add(name)
        ax.plot(*np.stack([axis, reach * axis]).T, color=colour, ls=(0, (5, 3)), lw=1.2, zorder=2)
        path = shrink(points)
        ax.plot(*path.T, color=ml.plotting.INK, lw=2.0, zorder=4)
        ends_inside = np.linalg.norm(points[-1]) < 0.5 * np.linalg.norm(planar["points"], axis=-1).max()
        ax.plot(*path[-1], "X" if ends_inside else "o", ms=10, mfc=ml.plotting.INK, mec="white", zorder=5)
    ax.plot([], [], color=ml.plotting.INK, lw=2.0, label="local path p̄(R)")
    ax.plot([], [], "X", ms=9, color=ml.plotting.INK, mec="white", label="stops at a finite norm")
    ax.plot([], [], "o", ms=9, color=ml.plotting.INK, mec="white", label="goes on with R")
    ax.set(xlim=(-4.3, 4.3), ylim=(-4.3, 4.3), aspect="equal", xlabel="p₁, norms on a logarithmic scale", ylabel="p₂")
    ax.set(xticks=[], yticks=[], title="Local paths keep locally optimal axes and leave the others")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
