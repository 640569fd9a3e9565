"""A Thm 8: with several optimal tokens per input, or a network as head, paths reach the global minima of a nonconvex problem."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data import scored_tokens
from marginlens.svm import SetSolution
from marginlens.typing import Axes, Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a.mixing import check_mixing, distance_to_set
from marginlens_papers.claims.random_data import label_mixing, monotone_mixing

DISAGREE = 1e-8  # relative difference of norms, or of points, that counts as another solution
EXACT = 1e-10  # distances below are rounding, which grows with the radius and reaches 1e-11 at the largest
FARTHEST = 1e4  # the last radius times the margin


class A_T8(Claim):
    labels = ("A Thm 8", "A ATT-SVM'", "A Assumption D", "A Lemma 14", "A Eq. (83)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """The example, the solver against brute force, the assumption, and paths under both kinds of head."""
        full = effort is Effort.PAPER
        n_random, n_linear, n_network = (200, 10, 3) if full else (40, 1, 1)
        radii = np.geomspace(3.0, FARTHEST, 8 if full else 4)
        has_torch = find_spec("torch") is not None
        heads = [label_mixing] * n_linear + [monotone_mixing] * (n_network if has_torch else 0)
        progress.expect(n_random + len(heads) + 1)
        disagreements = [_disagrees(np.random.default_rng(seed)) for seed in _counted(n_random, progress)]
        paths, checks, small, large = [], [], [], []
        for seed, make in enumerate(heads):
            data, head, sets, found = _problem(make, seed)
            checks.append(check_mixing(data, head, sets).holds)
            small += [not check_mixing(data, head, wrong).holds for wrong in _too_small(data, sets, found)]
            large += [not check_mixing(data, head, wrong).holds for wrong in _too_large(data, sets, found)]
            path = ml.path(data, radii / found.margin, head=head, restarts=8 if full else 4, rng=seed)
            paths.append(found.margin * distance_to_set(path.points, found, path.radii))
            progress.advance()
        distances = np.array(paths)
        slopes = np.array([_last_slope(radii, distance) for distance in distances])
        line = ml.set_svm(ml.TokenDataset([[[1.0], [-1.0], [0.0]]], [1]), [[0, 1]])
        planar = _planar(25 if full else 7)
        progress.advance()
        is_network = np.array([make is monotone_mixing for make in heads])
        numbers = {
            "line_error": float(np.max(np.abs(np.sort(line.points[:, 0]) - [-1.0, 1.0]))),
            "brute_force_disagreements": float(sum(disagreements)),
            "random_sets": float(n_random),
            "assumption_d_failures": float(len(checks) - sum(checks)),
            "small_sets_refuted": float(np.mean(small)),
            "large_sets_refuted": float(np.mean(large)),
            "small_sets": float(len(small)),
            "large_sets": float(len(large)),
            "largest_final_distance": float(distances[:, -1].max()),
            "shallowest_slope": float(slopes.max()),
            "median_slope": float(np.median(slopes)),
            "paths": float(len(heads)),
            "all_near_from": float(np.append(radii, np.inf)[1 + max(np.nonzero(distances > 0.1)[1], default=-1)]),
        }
        named = {"linear head": distances[~is_network, -1], "network": distances[is_network, -1]}
        reached = " and ".join(
            f"{ends.max():.1e} ({name}, {len(ends)} path{'s' if len(ends) > 1 else ''})"
            for name, ends in named.items()
            if len(ends)
        )
        measured = (
            f"The line has {len(line.solutions)} solutions, {{−1, 1}} to {numbers['line_error']:.0e}; {int(sum(disagreements))} of "
            f"{n_random} random sets differ from brute force. Assumption D holds on {sum(checks)} of {len(checks)} problems; it is "
            f"refuted for {sum(small)} of {len(small)} sets with an optimal token left out and {sum(large)} of {len(large)} with one "
            f"token too many. At R = 10⁴/Ξ paths are within {reached} of the solution set, relative to its norm, and from R = "
            f"{numbers['all_near_from']:.0f}/Ξ on all are within 10%; at the end the distance falls like R to the power "
            f"{numbers['median_slope']:.2f} (shallowest {numbers['shallowest_slope']:.2f})."
        )
        note = "" if has_torch else "Without torch the nonlinear head was left out."
        arrays = {"radii": radii, "distances": distances, "is_network": is_network, "planar": planar}
        return Finding(measured, numbers, arrays, note=note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """A nonconvex feasible set with the path bending into one of its two nearest points, and the distance against the radius."""
        fig, (left, right) = ml.plotting.figure(2, width=6.0, height=5.2)
        _draw_plane(fig, left, finding.arrays["planar"])
        radii, distances = finding.arrays["radii"], finding.arrays["distances"]
        for is_network, colour, name in (
            (False, ml.plotting.ACCENTS[1], "linear head, mixed labels"),
            (True, ml.plotting.ACCENTS[3], "network head"),
        ):
            chosen = distances[finding.arrays["is_network"] == is_network]
            for k, chosen_row in enumerate(chosen):
                right.loglog(
                    radii, chosen_row, "o-", ms=4, lw=1.4, color=colour, alpha=0.8, label=name if k == 0 else None
                )
        guide = 3.0 / radii
        right.loglog(radii, guide, color=ml.plotting.INK, lw=1.2, ls="--", label="3/(ΞR)")
        right.set(xlabel="radius, ΞR", ylabel="distance to the solution set, relative to its norm")
        floor = 1e-7
        right.set_ylim(floor, 4.0)
        gone = int(np.sum(distances.min(axis=1) < floor))
        if gone:
            below = f"{gone} below this range:\nexponentially fast arrival"
            right.text(0.98, 0.98, below, transform=right.transAxes, ha="right", va="top", fontsize=9)
        right.set_title("Paths under two kinds of head")
        right.legend(loc="lower left")
        return {"sets": fig}


def _counted(count: int, progress: Progress) -> Any:
    for k in range(count):
        yield k
        progress.advance()


def _disagrees(rng: np.random.Generator) -> bool:
    """Whether branch and bound and trying all choices find different minima on a random problem."""
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 6)), int(rng.integers(1, 6))
    data = ml.TokenDataset(rng.standard_normal((n, T, d)), np.ones(n))
    sets = [rng.permutation(T)[: rng.integers(1, min(3, T) + 1)] for _ in range(n)]
    found = ml.set_svm(data, sets)
    points = []
    for choice in product(*sets):
        rows = [data.K[i, a] - np.delete(data.K[i], sets[i], axis=0) for i, a in enumerate(choice)]
        stacked = np.concatenate(rows)
        points.append(ml.least_distance(stacked, np.ones(len(stacked))).x)
    norms = np.nan_to_num(np.linalg.norm(points, axis=1), nan=np.inf)
    best = float(norms.min())
    if not np.isfinite(best) or best == 0.0:
        return len(found.solutions) != (0 if best else 1)
    attained = np.array(points)[norms <= best * (1.0 + DISAGREE)]
    apart = np.linalg.norm(attained[:, None] - found.points[None], axis=-1)
    return bool(max(apart.min(axis=0).max(), apart.min(axis=1).max()) > DISAGREE * best)


def _problem(make: Any, seed: int) -> tuple[ml.TokenDataset, Any, Any, SetSolution]:
    """A random problem whose optimal sets some p separates."""
    rng = np.random.default_rng(seed)
    while True:
        n, T, d = int(rng.integers(2, 4)), int(rng.integers(3, 6)), int(rng.integers(3, 7))
        data, head, sets = make(n, T, 2, d, rng)
        found = ml.set_svm(data, sets)
        if found.solutions and found.margin > 0.05:
            return data, head, sets, found


def _too_small(data: ml.TokenDataset, sets: Any, found: SetSolution) -> list[list[list[int]]]:
    """Sets of the tokens that the solution selects, if other optimal tokens can be selected too; no such sets otherwise.

    Along the direction of the others the risk falls as low as anything while they count as non-optimal, so Assumption D is false.
    """
    kept = found.choices[0].tolist()
    others = [choice for choice in product(*(tokens.tolist() for tokens in sets)) if list(choice) != kept]
    selectable = any(ml.att_svm(data, list(choice)).status is ml.Status.OPTIMAL for choice in others)
    return [[[token] for token in kept]] if selectable else []


def _too_large(data: ml.TokenDataset, sets: Any, found: SetSolution) -> list[list[list[int]]]:
    """The sets with one token too many in the first input that has one which can be selected together with the solution's; else none.

    Along that direction only tokens of the sets are left while the risk stays above the lowest, so Assumption D is false.
    """
    for i, own in enumerate(sets):
        for token in np.setdiff1d(np.arange(data.lengths[i]), own).tolist():
            selection = found.choices[0].copy()
            selection[i] = token
            if ml.att_svm(data, selection).status is ml.Status.OPTIMAL:
                return [[[*tokens.tolist(), token] if k == i else tokens.tolist() for k, tokens in enumerate(sets)]]
    return []


def _last_slope(radii: FloatArray, distance: FloatArray) -> float:
    """d log distance / d log R between the last radius above rounding and the one before; some paths arrive exponentially fast."""
    last = max(int(np.flatnonzero(distance > EXACT)[-1]), 1)
    return float(np.log(distance[last] / distance[last - 1]) / np.log(radii[last] / radii[last - 1]))


def _planar(n_radii: int) -> dict[str, Any]:
    """A problem in the plane that is its own mirror image and has two solutions; its path, and the region in which the constraints hold."""
    keys = np.array(
        [[(0.5, 0.8), (0.5, -0.8), (0.2, 0.0), (-0.4, 0.0)], [(0.9, 0.25), (0.9, -0.25), (0.35, 0.0), (0.0, 0.0)]]
    )
    scores = np.array([[1.0, 1.0, 0.0, 0.0]] * 2)
    sets = [[0, 1]] * 2
    data, v = scored_tokens(keys, scores)
    found = ml.set_svm(data, sets)
    radii = np.geomspace(0.3, 1e3, n_radii) / found.margin
    path = ml.path(data, radii, head=v, restarts=4)
    reach = 1.75 / found.margin
    axis = np.linspace(-reach, reach, 241)
    logits = np.einsum("itd,yxd->yxit", keys, np.stack(np.meshgrid(axis, axis), axis=-1))
    clear = np.min(logits[..., :2].max(axis=-1) - logits[..., 2:].max(axis=-1), axis=-1)
    return {
        "keys": keys,
        "scores": scores,
        "solutions": found.points,
        "margin": found.margin,
        "scaled_radii": radii * found.margin,
        "path": path.points / (found.margin * radii)[:, None],
        "axis": axis,
        "clear": clear,
    }


def _draw_plane(fig: Figure, ax: Axes, planar: dict[str, Any]) -> None:
    from matplotlib.colors import LogNorm

    axis, norm, path = planar["axis"], 1.0 / planar["margin"], planar["path"]
    tint = ml.plotting.TINTS[ml.plotting.LOCAL]
    ax.contourf(axis, axis, planar["clear"], levels=[1.0, np.inf], colors=[tint], zorder=0)
    ax.contour(axis, axis, planar["clear"], levels=[1.0], colors=[ml.plotting.LOCAL], linewidths=1.2, zorder=1)
    ax.fill([], [], color=tint, ec=ml.plotting.LOCAL, lw=1.2, label="where the constraints hold")
    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    ax.plot(
        norm * np.cos(turn), norm * np.sin(turn), color=ml.plotting.INK, lw=1.0, ls=":", zorder=1, label="‖p‖ = 1/Ξ"
    )
    drawing.scatter_tokens(ax, planar["keys"], planar["scores"], size=45.0)
    seen = ax.scatter(
        path[:, 0],
        path[:, 1],
        c=planar["scaled_radii"],
        norm=LogNorm(),
        cmap=ml.plotting.SEQUENCE,
        s=46,
        edgecolor="white",
        linewidth=0.6,
        zorder=8,
        label="path, p̄(R)/(ΞR)",
    )
    ring: dict[str, Any] = {"facecolor": "none", "edgecolor": ml.plotting.GLOBAL, "linewidth": 2.2, "zorder": 9}
    ax.scatter(planar["solutions"][:, 0], planar["solutions"][:, 1], s=210, label="global minima", **ring)
    for marker, size, name in (("*", 150.0, "optimal token"), ("o", 45.0, "other token")):
        ax.scatter([], [], marker=marker, s=size, color=ml.plotting.PATH, edgecolor="white", label=name)
    fig.colorbar(seen, ax=ax, label="radius, ΞR", shrink=0.85)
    ax.set(
        xlim=(-1.6, 2.8), ylim=(-2.2, 2.2), aspect="equal", xlabel="p₁ and first coordinate of the keys", ylabel="p₂"
    )
    ax.set_title("Two solutions: the path may take either")
    ax.legend(loc="lower left", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")
