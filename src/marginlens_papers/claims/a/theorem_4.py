"""A Thms 4 and 7: the regularisation path inside a narrow cone stays with its axis only if that is locally optimal."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, figure_1b, sphere_tokens
from marginlens.directions import unit
from marginlens.dynamics import Cone, Path, regularization_path
from marginlens.theory import (
    LocalOptima,
    basin_cone,
    check_distinct_scores,
    check_general_position,
    directional_margin,
    locally_optimal_directions,
    token_optimality,
)
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-T4"
LABELS = ("A Thm 4", "A Thm 7", "A Eq. (9)", "A Eq. (66)", "A P^mm")
TITLE = "Local paths keep the locally optimal directions and leave every other"
STATEMENT = (
    "With distinct scores and keys in general position, the point of smallest risk inside a cone around q, however narrow, can "
    "converge in direction to q as the norm limit grows only if q is a locally optimal max-margin direction."
)
PROTOCOL = (
    "Random sphere problems (d = 2 or 3, n ≤ 3, T ≤ 4), all with distinct scores and keys in general position, which is checked. "
    "Axes: every locally optimal direction, with the width and the smallest norm R₀ of A Eqs (32) and (46); and three kinds of others "
    "with cones of 1 - cosine ≤ .001 and R₀ = 10: max-margin directions of selections that are not locally optimal, directions beside "
    "a locally optimal one that select the same tokens and are neighbour-optimal, and random ones. Norms reach 1e3 R₀ and 1e5/margin. "
    "An axis is kept if ‖p̄(R)/R - q‖ falls like 1/R over two decades, and left if it stays above a tenth of the cone's width or of "
    "the distance to the nearest locally optimal direction."
)
PAPER_VALUE = "–"
EXPECTED = {
    "share_of_lmm_kept": Bound(low=1.0),
    "share_of_others_left": Bound(low=1.0),
    "share_in_general_position": Bound(low=1.0),
    "largest_kkt_residual": Bound(high=1e-6),
    "lmm": Bound(low=3),
    "others": Bound(low=6),
}
SEED = 4
WIDTH = 1e-3  # 1 - cosine at the edge of the cones around directions that are not locally optimal
KINDS = ("max-margin, not locally optimal", "neighbour-optimal, not max-margin", "random")
SCALES = np.array([1e3, 1e4, 1e5])


def compute(effort: Effort, progress: Progress) -> Finding:
    """Follow a local path around every direction of every problem."""
    problems = 16 if effort is Effort.PAPER else 2
    progress.expect(problems + 1)
    kept, left, kinds, residual, position, norms = [], [], [], [], [], []
    ends: list[Any] = []
    for j in range(problems):
        rng = np.random.default_rng([SEED, j])
        data, v, optima = _problem(rng)
        position.append(check_general_position(data).holds and check_distinct_scores(data, v).holds)
        for alpha in optima.selections:
            basin = basin_cone(data, v, alpha)
            cone = Cone(basin.p, basin.mu, basin.radius)
            path = regularization_path(data, v, np.array([10.0, 100.0, 1e3]) * cone.radius, cone=cone, restarts=2)
            distance = path.distance(basin.p)
            kept.append(bool(distance[-1] <= max(2e-2 * distance[-3], 1e-12)))
            ends.append(distance)
            residual.append(path.kkt_residual().max())
        for kind, q in _others(data, v, optima, rng):
            path = regularization_path(data, v, SCALES / optima.margins.min(), cone=Cone(q, WIDTH, 10.0), restarts=2)
            room = min(float(np.sqrt(2.0 * WIDTH)), float(np.min(np.linalg.norm(optima.directions - q, axis=-1))))
            left.append(bool(path.distance(q)[-1] > 0.1 * room))
            kinds.append(kind)
            norms.append(path.norm[-1] / path.radii[-1])
            residual.append(path.kkt_residual().max())
        progress.advance()
    planar = _planar()
    progress.advance()
    finite = np.array(norms) < 0.5
    numbers = {
        "share_of_lmm_kept": float(np.mean(kept)),
        "share_of_others_left": float(np.mean(left)),
        "share_in_general_position": float(np.mean(position)),
        "largest_distance_of_lmm_at_the_end": float(np.max([one[-1] for one in ends])),
        "largest_kkt_residual": float(np.max(residual)),
        "share_of_others_that_stay_finite": float(np.mean(finite)),
        "lmm": float(len(kept)),
        "others": float(len(left)),
        "problems": float(problems),
    }
    by_kind = ", ".join(
        f"{sum(1 for one, gone in zip(kinds, left, strict=True) if one == k and gone)} of {kinds.count(k)} {name}"
        for k, name in enumerate(KINDS)
    )
    measured = (
        f"In {problems} problems, {sum(position)} of them in general position, the local paths keep {sum(kept)} of {len(kept)} locally "
        f"optimal directions (distance at most {numbers['largest_distance_of_lmm_at_the_end']:.0e} at R = 1e3 R₀) and leave {sum(left)} of "
        f"{len(left)} others: {by_kind}. {int(finite.sum())} of these stop at a finite norm; the rest go to the edge of their cone or to "
        "another direction in it."
    )
    note = (
        "Theorem 4 promises that paths leave directions that are not locally optimal; that locally optimal ones are kept is "
        "Theorem 3's side of it, and holds for cones with the width and norm of Eqs (32) and (46). With a smaller norm a finite "
        "minimum just beyond it can win."
    )
    return Finding(measured, numbers, {"planar": planar}, note=note)


def _problem(rng: np.random.Generator) -> tuple[TokenDataset, Any, LocalOptima]:
    """A random problem with a locally optimal direction whose margin is not tiny."""
    while True:
        n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 4))
        batch, heads = sphere_tokens(1, n, T, d, rng)
        optima = locally_optimal_directions(batch[0], heads[0])
        if len(optima) and optima.margins.min() > 0.02:
            return batch[0], heads[0], optima


def _others(data: TokenDataset, v: Any, optima: LocalOptima, rng: np.random.Generator) -> list[tuple[int, Any]]:
    """Unit directions that are not locally optimal, each with the index of its kind."""
    every = np.array(list(product(*(range(int(length)) for length in data.lengths))))
    found = token_optimality(data.repeat(len(every)), v, every)
    wrong = np.flatnonzero(found.is_feasible & ~found.is_locally_optimal)
    directions = [(0, found.direction[k]) for k in rng.permutation(wrong)[:2]]
    for axis in optima.directions[:2]:
        q = unit(axis + 0.2 * unit(rng.standard_normal(len(axis))))
        about, same = directional_margin(data, q, v), directional_margin(data, axis, v)
        if about.neighbour_optimal and np.array_equal(about.selected, same.selected):
            directions.append((1, q))
    return [*directions, (2, unit(rng.standard_normal(data.d_key)))]


def _planar() -> dict[str, Any]:
    """Figure 1(b)'s problem with a cone around each of its locally optimal directions and around four others."""
    data, v = figure_1b()
    optima = locally_optimal_directions(data, v)
    wrong = token_optimality(data, v, [2]).direction
    angles = np.radians([40.0, 140.0, -40.0])
    axes = [*optima.directions, wrong, *np.stack([np.cos(angles), np.sin(angles)], axis=-1)]
    widths = [0.004] * len(optima) + [0.02] * 4
    radii = np.geomspace(5.0, 5e3, 8)
    paths: list[Path] = [
        regularization_path(data, v, radii, cone=Cone(axis, mu, 5.0), restarts=1)
        for axis, mu in zip(axes, widths, strict=True)
    ]
    return {
        "axes": np.array(axes),
        "half_angles": np.array([Cone(axis, mu, 5.0).half_angle for axis, mu in zip(axes, widths, strict=True)]),
        "is_global": np.concatenate([optima.is_global, np.zeros(4, dtype=bool)]),
        "is_local": np.arange(len(axes)) < len(optima),
        "points": np.stack([path.points for path in paths]),
        "floor": 5.0,
    }


def draw(finding: Finding) -> dict[str, Figure]:
    """Cones around directions of one problem in the plane, norms on a logarithmic scale, and where each local path goes."""
    fig, (ax,) = plotting.figure(1, width=8.4, height=5.2)
    _draw_plane(ax, finding.arrays["planar"])
    return {"cones": fig}


def _draw_plane(ax: Axes, planar: dict[str, Any]) -> None:
    floor, reach = planar["floor"], 4.0

    def shrink(points: Any) -> Any:
        norm = np.linalg.norm(points, axis=-1, keepdims=True)
        return points / norm * (1.0 + np.log10(norm / floor))

    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    for k in range(4):
        ax.plot((1 + k) * np.cos(turn), (1 + k) * np.sin(turn), color=plotting.FAINT, lw=1.0, zorder=0)
        place = (1 + k) * np.array([np.cos(np.radians(-82)), np.sin(np.radians(-82))])
        plotting.note_at(ax, f"‖p‖ = {floor * 10**k:g}", place, (0, 0), ha="center", fontsize=9, color=plotting.PATH)
    seen: set[str] = set()
    for axis, half, is_global, is_local, points in zip(
        *(planar[name] for name in ("axes", "half_angles", "is_global", "is_local", "points")), strict=True
    ):
        colour = plotting.GLOBAL if is_global else plotting.LOCAL if is_local else plotting.PATH
        name = (
            "cone around the GMM"
            if is_global
            else "cone around an LMM"
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
        ax.plot(*path.T, color=plotting.INK, lw=2.0, zorder=4)
        ends_inside = np.linalg.norm(points[-1]) < 0.5 * np.linalg.norm(planar["points"], axis=-1).max()
        ax.plot(*path[-1], "X" if ends_inside else "o", ms=10, mfc=plotting.INK, mec="white", zorder=5)
    ax.plot([], [], color=plotting.INK, lw=2.0, label="local path p̄(R)")
    ax.plot([], [], "X", ms=9, color=plotting.INK, mec="white", label="stops at a finite norm")
    ax.plot([], [], "o", ms=9, color=plotting.INK, mec="white", label="goes on with R")
    ax.set(xlim=(-4.3, 4.3), ylim=(-4.3, 4.3), aspect="equal", xlabel="p₁, norms on a logarithmic scale", ylabel="p₂")
    ax.set(xticks=[], yticks=[])
    ax.set_title("Local paths keep locally optimal axes and leave the others")
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
