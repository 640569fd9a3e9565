"""A Fig 8: two inputs are enough for a second limit, so that Thm 2 needs its single input."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, figure_8, scored_tokens
from marginlens.directions import correlation, unit
from marginlens.dynamics import Record, Trajectory, descend
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.theory import (
    check_assumption_b,
    globally_optimal_direction,
    locally_optimal_directions,
    smoothness,
    token_optimality,
)
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-F8"
LABELS = ("A Fig 8", "A Thm 2", "A Assumption B", "A Def 2")
TITLE = "Two inputs are enough for two limits: Theorem 2 is tight in n = 1"
STATEMENT = (
    "With n = T = d = 2 the scores satisfy Assumption B whatever they are, and yet two starts can lead to two limits: the globally optimal "
    "direction and a locally optimal one, for which one input keeps its lower token because no SVM-neighbour competes with it. So the "
    "single input in Thm 2 cannot be dropped."
)
PROTOCOL = (
    "Keys (.5, 0), (-.5, 0) and (-1, .75), (1, -.75), the first of each input with score 1, the second with 0; logistic loss; starts "
    "(0, -1) and (1, -1); NGD with step .1 for 100,000 steps, and GD with step 1/L_p as in the theorem. The paper gives no coordinates: "
    "these data are ours and satisfy every sentence about the figure. All four selections are solved and certified. A search over random "
    "problems on the circle counts locally optimal directions beside the GMM for n = T = 2; each is descended to from 1,000 times itself. "
    "Controls: from 1,000 times the direction of a selection that is not locally optimal, descent must leave it; and with n = 1, T = 4 "
    "(where no second direction can be locally optimal, by Def 2) it must reach the GMM from 100 times the direction of every other token."
)
PAPER_VALUE = "two starts, two limits; the lower token that the LMM selects has no SVM-neighbour"
STARTS = np.array([(0.0, -1.0), (1.0, -1.0)])
SEED = 8
FAR, NEAR = 1000.0, 100.0  # how far out the search starts, with two inputs and with one
REACHED = 0.998  # the correlation at which a run from far out counts as having reached a direction
LEAD = 10.0  # the difference between the inputs' logits that is ample there
EXPECTED = {
    "assumption_b": Bound(1.0, 1.0),
    "n_locally_optimal": Bound(2.0, 2.0),
    "gmm_is_global": Bound(1.0, 1.0),
    "lmm_is_local_only": Bound(1.0, 1.0),
    "neighbours_of_lower_token": Bound(0.0, 0.0),
    "kkt_residual": Bound(high=1e-12),
    "corr_gmm": Bound(low=0.999),
    "corr_lmm": Bound(low=0.999),
    "corr_gd": Bound(low=0.99),
    "found_with_two_inputs": Bound(low=1.0),
    "kept_without_local_optimality": Bound(0.0, 0.0),
    "share_to_the_gmm_with_one_input": Bound(1.0, 1.0),
    "share_reached": Bound(low=0.95),
    "share_reached_with_a_lead": Bound(1.0, 1.0),
}
WINDOW: plotting.Window = ((-2.7, 2.9), (-2.45, 2.85))
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Directions:
    """Max-margin directions of selections beside the optimal one: of which problem, where to, with which tokens, and of which kind."""

    problem: npt.NDArray[np.int64]
    direction: FloatArray
    selected: npt.NDArray[np.int64]
    is_local: npt.NDArray[np.bool_]

    def only(self, which: npt.NDArray[np.bool_]) -> Directions:
        """The same for some of them."""
        return Directions(*(getattr(self, one.name)[which] for one in fields(self)))


def compute(effort: Effort, progress: Progress) -> Finding:
    """Certify the two directions of the named data, descend to both, shade the starts, and search for more such data."""
    full = effort is Effort.PAPER
    n_steps, n_grid, n_problems, n_controls = (100_000, 151, 1000, 250) if full else (10_000, 31, 200, 40)
    progress.expect(4)
    data, v = figure_8()
    every = locally_optimal_directions(data, v)
    best, local = token_optimality(data, v, [0, 0]), token_optimality(data, v, [0, 1])
    limits = np.stack([best.direction, local.direction])
    runs = data.repeat(len(STARTS))
    record = Record(plotting.steps_to_keep(n_steps))
    run = descend(runs, v, optimizer=NormalizedGD(0.1), n_steps=n_steps, start=STARTS, record=record)
    progress.advance()
    step = GradientDescent(smoothness(data, v).largest_step)
    plain = descend(runs, v, optimizer=step, n_steps=10 * n_steps, start=STARTS)
    progress.advance()
    reaches_local = _basins(data, v, n_grid)
    progress.advance()
    rng = np.random.default_rng(SEED)
    single, single_head, others = search(1, 4, n_controls, rng)
    best_alone = globally_optimal_direction(single, single_head)
    to_gmm = _ends(single, single_head, others, NEAR)
    to_gmm_share = np.mean(_reaches(to_gmm, best_alone.direction[others.problem]))
    problems, head, every_one = search(2, 2, n_problems, rng)
    found = every_one.only(every_one.is_local)
    reached, lead = _reached(problems, head, found)
    not_local = every_one.only(~every_one.is_local & (every_one.problem < n_controls))
    left = _ends(problems, head, not_local, FAR)
    kept = _reaches(left, not_local.direction) & np.all(left.selected == not_local.selected, axis=-1)
    progress.advance()
    points = run.saved["x"]
    gap = plotting.misalignment(points, limits[:, None])
    plain_corr = np.asarray(correlation(plain.final, limits))
    numbers = {
        "assumption_b": float(bool(check_assumption_b(data, v))),
        "n_locally_optimal": float(len(every)),
        "gmm_is_global": float(best.is_globally_optimal),
        "lmm_is_local_only": float(local.is_locally_optimal and not local.is_globally_optimal),
        "neighbours_of_lower_token": float(local.neighbours[1].sum()),
        "kkt_residual": float(np.max([best.solution.kkt_residual(), local.solution.kkt_residual()])),
        "corr_gmm": float(1.0 - gap[0, -1]),
        "corr_lmm": float(1.0 - gap[1, -1]),
        "corr_gd": float(plain_corr.min()),
        "share_of_starts_to_local": float(reaches_local.mean()),
        "found_with_two_inputs": float(len(found.problem)),
        "kept_without_local_optimality": float(np.sum(kept)),
        "tried_without_local_optimality": float(kept.size),
        "share_to_the_gmm_with_one_input": float(to_gmm_share),
        "tried_with_one_input": float(len(others.problem)),
        "share_reached": float(np.mean(reached)),
        "share_reached_with_a_lead": float(np.mean(reached[lead >= LEAD])),
        "largest_lead_of_unreached": float(np.max(lead[~reached], initial=0.0)),
    }
    measured = (
        f"Of the {every.n_brute_force} selections {len(every)} are locally optimal: GMM ({best.solution.x[0]:g}, "
        f"{best.solution.x[1]:g}) and LMM ({local.solution.x[0]:g}, {local.solution.x[1]:g}). From (0, -1) the correlation with the "
        f"GMM ends at 1 - {gap[0, -1]:.0e}, from (1, -1) with the LMM at 1 - {gap[1, -1]:.0e} (NGD, {n_steps:,} steps); GD with step "
        f"1/L_p = {step.size:.2f}: {plain_corr[0]:.4f} and {plain_corr[1]:.4f} after {10 * n_steps:,} steps. Of {n_problems:,} random "
        f"problems with n = T = 2, {len(set(found.problem.tolist()))} have a second locally optimal direction; "
        f"{100 * numbers['share_reached']:.1f}% of these directions are reached, {100 * numbers['share_reached_with_a_lead']:.0f}% "
        f"where the lower token is ahead of the other input by {LEAD:.0f} logits or more at the start. Of {kept.size:,} directions whose "
        f"tokens are not locally optimal, {int(np.sum(kept))} are kept. With n = 1, {100 * to_gmm_share:.0f}% of {len(others.problem):,} "
        "starts along another token's direction end at the GMM."
    )
    arrays = {
        "keys": data.K,
        "scores": data.scores(v),
        "limits": limits,
        "steps": run.saved.steps,
        "points": points,
        "gap": gap,
        "basins": reaches_local,
    }
    return Finding(measured, numbers, arrays)


def search(
    n_inputs: int, n_tokens: int, n_problems: int, rng: np.random.Generator
) -> tuple[TokenDataset, FloatArray, Directions]:
    """Random problems in the plane, whose token 0 of each input scores 1 and all others 0, and their directions beside the GMM."""
    keys = unit(rng.standard_normal((n_problems, n_inputs, n_tokens, 2)))
    scores = np.zeros(keys.shape[:-1])
    scores[..., 0] = 1.0
    data, v = scored_tokens(keys, scores)
    problems, directions, selections, local = [], [], [], []
    for alpha in list(product(range(n_tokens), repeat=n_inputs))[1:]:
        found = token_optimality(data, v, np.array(alpha))
        feasible = np.flatnonzero(found.is_feasible)
        problems.append(feasible)
        directions.append(found.direction[feasible])
        selections.append(np.tile(alpha, (len(feasible), 1)))
        local.append(found.is_locally_optimal[feasible])
    parts = (np.concatenate(part) for part in (problems, directions, selections, local))
    return data, v, Directions(*parts)


def _ends(data: TokenDataset, v: FloatArray, found: Directions, far: float) -> Trajectory:
    """Descent from far out along each direction, 2,000 long: twice the distance of the farthest start."""
    some = TokenDataset(data.X[found.problem], data.y[found.problem], K=data.K[found.problem])
    return descend(some, v, optimizer=NormalizedGD(0.4), n_steps=5000, start=far * found.direction)


def _reaches(run: Trajectory, direction: FloatArray) -> Any:
    """Whether each run ends along a direction, at correlation .998: a start at 100 across it leaves an angle of .05 at norm 2,000."""
    return np.asarray(correlation(run.final, direction)) >= REACHED


def _reached(data: TokenDataset, v: FloatArray, found: Directions) -> tuple[Any, FloatArray]:
    """Whether descent from far out along each found direction keeps to it, and by how many logits one input leads the other at first."""
    some = TokenDataset(data.X[found.problem], data.y[found.problem], K=data.K[found.problem])
    run = descend(some, v, optimizer=NormalizedGD(0.1), n_steps=20_000, start=FAR * found.direction)
    margins = np.abs(np.einsum("bid,bd->bi", some.K[:, :, 0] - some.K[:, :, 1], FAR * found.direction))
    return np.asarray(correlation(run.final, found.direction)) >= 0.999, np.ptp(margins, axis=-1)


def _basins(data: TokenDataset, v: FloatArray, n_grid: int) -> FloatArray:
    """For a square grid of starts over the window, [row, column]: 1 where input 2 ends on its lower token, 0 where on its optimal one."""
    x, y = (np.linspace(low, high, n_grid) for low, high in WINDOW)
    start = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    run = descend(data.repeat(len(start)), v, optimizer=NormalizedGD(0.1), n_steps=500, start=start)
    return (run.selected[:, 1] == 1).astype(float).reshape(n_grid, n_grid)


def draw(finding: Finding) -> dict[str, Figure]:
    """Both paths over the shaded starts; distance from each run's limit; norm."""
    at = finding.arrays
    colours = (plotting.GLOBAL, plotting.LOCAL)
    fig, plane, upper, lower = plotting.plane_and_curves()
    x, y = (np.linspace(low, high, len(at["basins"])) for low, high in WINDOW)
    plotting.basins(plane, x, y, at["basins"])
    for colour, limit, selected, name in zip(colours, at["limits"], ([0, 0], [0, 1]), ("GMM", "LMM"), strict=True):
        plotting.ray(plane, limit, 20.0, color=colour, label=f"{name} direction")
        plotting.common_separating_line(plane, at["keys"], selected, limit, color=colour, label="its separating line")
    for path in at["points"]:
        inside = plotting.until_it_leaves(path, WINDOW)
        plotting.arrowed_path(plane, inside)
        plotting.starts(plane, inside[0])
    plotting.scatter_tokens(plane, at["keys"], at["scores"])
    square = at["keys"][1, 1]
    plane.scatter(
        square[0], square[1], s=110, marker="s", color=plotting.INPUTS[1], edgecolor="white", linewidth=0.8, zorder=8
    )
    for key, score, offset, side in (
        (at["keys"][0, 0], "1", (10, 13), "left"),
        (at["keys"][0, 1], "0", (8, -11), "left"),
        (at["keys"][1, 0], "1", (-15, 0), "right"),
        (square, "0", (-11, 0), "right"),
    ):
        plotting.note_at(plane, f"γ = {score}", key, offset, ha=side)
    plotting.finish_plane(plane, WINDOW, "Shaded by the limit that a start leads to", "lower left", n_inputs=2)
    for k, (colour, name) in enumerate(zip(colours, ("GMM", "LMM"), strict=True)):
        look = {"color": colour, "label": f"from {plotting.point(*STARTS[k])} to the {name}"}
        upper.loglog(at["steps"][1:], at["gap"][k, 1:], **look)
        lower.loglog(at["steps"][1:], np.linalg.norm(at["points"][k, 1:], axis=-1), **look)
    upper.set(ylabel="1 − correlation with limit")
    upper.set_title("Two starts, two limits …")
    upper.legend(loc="lower left")
    lower.set(xlabel="step", ylabel="‖p‖")
    lower.set_title("… and both norms diverge")
    return {"paths": fig}
