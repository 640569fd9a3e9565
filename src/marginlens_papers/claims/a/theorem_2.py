"""A Thm 2 and Fig 8: one input leads to the globally optimal direction; two inputs are enough for a second limit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import marginlens as ml
from marginlens.arithmetic.directions import unit
from marginlens.data import figure_1b, figure_8, scored_tokens
from marginlens.theory import check_assumption_b, globally_optimal_direction, smoothness
from marginlens.theory.bias_table import ON_P
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run
from marginlens_papers.claims import drawing
from marginlens_papers.claims.drawing import Limit, Note, Plane, gaps_and_norms, paths_in_plane, starts_that_select

STARTS = np.array([(0.0, -1.0), (1.0, -1.0)])
SEARCH_SEED = 8
FAR, NEAR = 1000.0, 100.0  # how far out the search starts, with two inputs and with one
REACHED = 0.998  # the correlation at which a run from far out counts as having reached a direction
LEAD = 10.0  # the difference between the inputs' logits that is ample there
WINDOW: drawing.Window = ((-2.7, 2.9), (-2.45, 2.85))


class A_F8(Claim):
    labels = ("A Fig 8", "A Thm 2", "A Assumption B", "A Def 2")
    runs = (Run(ON_P, ml.NormalizedGD(0.1)), Run(ON_P, ml.GradientDescent(1.0)))

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Certify the two directions of Figure 8's data, descend to both, shade the starts, and search for more such data."""
        full = effort is Effort.PAPER
        n_steps, n_grid, n_problems, n_controls = (100_000, 151, 1000, 250) if full else (10_000, 31, 200, 40)
        progress.expect(4)
        data, v = figure_8()
        every = ml.locally_optimal_directions(data, v)
        best, local = ml.token_optimality(data, v, [0, 0]), ml.token_optimality(data, v, [0, 1])
        limits = np.stack([best.direction, local.direction])
        runs = data.repeat(len(STARTS))
        record = ml.Record(ml.plotting.recorded_steps(n_steps))
        run = ml.descend(runs, v, optimizer=ml.NormalizedGD(0.1), n_steps=n_steps, start=STARTS, record=record)
        progress.advance()
        step = ml.GradientDescent(smoothness(data, v).largest_step)
        plain = ml.descend(runs, v, optimizer=step, n_steps=10 * n_steps, start=STARTS)
        progress.advance()
        reaches_local = starts_that_select(data, v, WINDOW, n_grid, 500, (1, 1))
        progress.advance()
        rng = np.random.default_rng(SEARCH_SEED)
        alone = _with_one_input(n_controls, rng)
        pairs = _with_two_inputs(n_problems, n_controls, rng)
        progress.advance()
        points = run.saved["x"]
        gap = drawing.misalignment(points, limits[:, None])
        plain_corr = np.asarray(ml.correlation(plain.final, limits))
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
            **_numbers_of_search(alone, pairs),
        }
        measured = (
            f"Of the {every.n_brute_force} selections {len(every)} are locally optimal: the best direction ({best.solution.x[0]:g}, "
            f"{best.solution.x[1]:g}) and a local one ({local.solution.x[0]:g}, {local.solution.x[1]:g}). From (0, -1) the correlation "
            f"with the best direction ends at 1 - {gap[0, -1]:.0e}, from (1, -1) with the local one at 1 - {gap[1, -1]:.0e} (NGD, "
            f"{n_steps:,} steps); GD with step $1/L_p$ = {step.size:.2f}: {plain_corr[0]:.4f} and {plain_corr[1]:.4f} after "
            f"{10 * n_steps:,} steps. Of {n_problems:,} random problems with n = T = 2, {len(set(pairs.problem.tolist()))} have a second "
            "locally optimal direction; "
            f"{100 * numbers['share_reached']:.1f}% of these directions are reached, {100 * numbers['share_reached_with_a_lead']:.0f}% "
            f"where the lower token is ahead of the other input by {LEAD:.0f} logits or more at the start. "
            f"Of {pairs.kept.size:,} directions whose tokens are not locally optimal, {int(np.sum(pairs.kept))} are kept. "
            f"With n = 1, {100 * np.mean(alone):.0f}% of {len(alone):,} starts along another token's direction end at the best direction."
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
        return Finding(measured, numbers, arrays, assumption_met=bool(numbers["assumption_b"]))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Both paths over the shaded starts; distance from each run's limit; norm."""
        at = finding.arrays
        names, colours, key = ("best", "local"), (ml.plotting.GLOBAL, ml.plotting.LOCAL), at["keys"]
        limits = [Limit(*limit) for limit in zip(names, at["limits"], ([0, 0], [0, 1]), colours, strict=True)]
        notes = [Note("γ = 1", key[0, 0], (10, 13)), Note("γ = 0", key[0, 1], (8, -11))]
        notes += [Note("γ = 1", key[1, 0], (-15, 0), "right"), Note("γ = 0", key[1, 1], (-11, 0), "right")]
        look = Plane(WINDOW, "Shaded by the limit that a start leads to")
        fig, plane, upper, lower = paths_in_plane(at, limits, notes, look)
        square: dict[str, Any] = {"s": 110, "marker": "s", "edgecolor": "white", "linewidth": 0.8, "zorder": 8}
        plane.scatter(*key[1, 1], color=ml.plotting.INPUTS[1], **square)
        labels = [
            f"from {drawing.point(*start)} to the {name} direction" for start, name in zip(STARTS, names, strict=True)
        ]
        looks = [{"color": colour, "label": label} for colour, label in zip(colours, labels, strict=True)]
        gaps_and_norms(upper, lower, at, looks)
        upper.set(title="Two starts, two limits …")
        upper.legend(loc="lower left")
        lower.set(title="… and both norms diverge")
        return {"paths": fig}


class TwoInputs(NamedTuple):
    """What descent from far out along directions other than the best direction leads to, in random problems of two inputs with two tokens.

    Attributes:
        problem: (n_local,) the problem of each locally optimal direction. reached: (n_local,) whether descent keeps to it.
        lead: (n_local,) by how many logits one input is ahead of the other at the start.
        kept: (n_others,) of each direction that is not locally optimal, whether descent keeps to it.
    """

    problem: npt.NDArray[np.int64]
    reached: npt.NDArray[np.bool_]
    lead: FloatArray
    kept: npt.NDArray[np.bool_]


def _with_one_input(n_problems: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Of each start along another token's direction, in random problems of one input, whether descent ends at the best direction."""
    data, head, others = search(1, 4, n_problems, rng)
    best = globally_optimal_direction(data, head)
    return _reaches(_ends(data, head, others, NEAR), best.direction[others.problem])


def _with_two_inputs(n_problems: int, n_controls: int, rng: np.random.Generator) -> TwoInputs:
    """Descend along the directions of random problems; along those that are not locally optimal in the first `n_controls` only."""
    data, head, every = search(2, 2, n_problems, rng)
    local = every.only(every.is_local)
    reached, lead = _reached(data, head, local)
    others = every.only(~every.is_local & (every.problem < n_controls))
    run = _ends(data, head, others, FAR)
    kept = _reaches(run, others.direction) & np.all(run.selected == others.selected, axis=-1)
    return TwoInputs(local.problem, reached, lead, kept)


def _numbers_of_search(alone: npt.NDArray[np.bool_], pairs: TwoInputs) -> dict[str, float]:
    """The numbers of the claim that random problems give, with one input and with two."""
    return {
        "found_with_two_inputs": float(len(pairs.problem)),
        "kept_without_local_optimality": float(np.sum(pairs.kept)),
        "tried_without_local_optimality": float(pairs.kept.size),
        "share_to_the_gmm_with_one_input": float(np.mean(alone)),
        "tried_with_one_input": float(len(alone)),
        "share_reached": float(np.mean(pairs.reached)),
        "share_reached_with_a_lead": float(np.mean(pairs.reached[pairs.lead >= LEAD])),
        "largest_lead_of_unreached": float(np.max(pairs.lead[~pairs.reached], initial=0.0)),
    }


@dataclass(frozen=True)
class Directions:
    """Max-margin directions of selections other than the optimal one: their problems, directions, tokens and kinds."""

    problem: npt.NDArray[np.int64]
    direction: FloatArray
    selected: npt.NDArray[np.int64]
    is_local: npt.NDArray[np.bool_]

    def only(self, which: npt.NDArray[np.bool_]) -> Directions:
        """These directions at the places where `which` is true."""
        return Directions(*(getattr(self, field.name)[which] for field in fields(self)))


def search(
    n_inputs: int, n_tokens: int, n_problems: int, rng: np.random.Generator
) -> tuple[ml.TokenDataset, FloatArray, Directions]:
    """Random problems in the plane, whose token 0 of each input scores 1 and all others 0, and their directions but the best one."""
    keys = unit(rng.standard_normal((n_problems, n_inputs, n_tokens, 2)))
    scores = np.zeros(keys.shape[:-1])
    scores[..., 0] = 1.0
    data, v = scored_tokens(keys, scores)
    problems, directions, selections, local = [], [], [], []
    for alpha in list(product(range(n_tokens), repeat=n_inputs))[1:]:
        found = ml.token_optimality(data, v, np.array(alpha))
        feasible = np.flatnonzero(found.is_feasible)
        problems.append(feasible)
        directions.append(found.direction[feasible])
        selections.append(np.tile(alpha, (len(feasible), 1)))
        local.append(found.is_locally_optimal[feasible])
    parts = (np.concatenate(part) for part in (problems, directions, selections, local))
    return data, v, Directions(*parts)


def _ends(data: ml.TokenDataset, v: FloatArray, found: Directions, far: float) -> ml.Trajectory:
    """Descent from far out along each direction, 2,000 long: twice the distance of the farthest start."""
    some = ml.TokenDataset(data.X[found.problem], data.y[found.problem], K=data.K[found.problem])
    return ml.descend(some, v, optimizer=ml.NormalizedGD(0.4), n_steps=5000, start=far * found.direction)


def _reaches(run: ml.Trajectory, direction: FloatArray) -> npt.NDArray[np.bool_]:
    """Whether each run ends along a direction, at correlation .998: from norm 100 across it, an angle of .05 is left at norm 2,000."""
    return np.asarray(ml.correlation(run.final, direction)) >= REACHED


def _reached(data: ml.TokenDataset, v: FloatArray, found: Directions) -> tuple[Any, FloatArray]:
    """Whether descent from far out along each direction keeps to it, and by how many logits one input leads the other at the start."""
    some = ml.TokenDataset(data.X[found.problem], data.y[found.problem], K=data.K[found.problem])
    run = ml.descend(some, v, optimizer=ml.NormalizedGD(0.1), n_steps=20_000, start=FAR * found.direction)
    margins = np.abs(np.einsum("bid,bd->bi", some.K[:, :, 0] - some.K[:, :, 1], FAR * found.direction))
    return np.asarray(ml.correlation(run.final, found.direction)) >= 0.999, np.ptp(margins, axis=-1)


SEED = 2_2
DENSE = 200  # first steps, all of which are kept


class A_T2(Claim):
    labels = ("A Thm 2", "A Lemma 6", "A Assumption B", "A Eq. (6)")
    runs = (Run(ON_P, ml.GradientDescent(1.0)),)  # of size 1/L_p

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Descend with steps 1/L_p on random problems and compare risk, norm and direction with the theorem; then break its conditions."""
        n_steps, n_problems, n_starts = (1_000_000, 12, 3) if effort is Effort.PAPER else (100_000, 3, 2)
        rng = np.random.default_rng(SEED)
        steps = np.array(ml.plotting.recorded_steps(n_steps, dense=DENSE))
        runs = []
        for _ in progress.each(range(n_problems), more=1):
            data, v = _problem(rng)
            start = unit(rng.standard_normal((n_starts, data.d_key))) * rng.uniform(0.0, 3.0, (n_starts, 1))
            runs.append(_run(data, v, start, steps))
        numbers = {
            "assumption_b": float(all(run["assumption_b"] for run in runs)),
            "rises_of_the_risk": float(sum(run["rises"] for run in runs)),
            "largest_share_of_the_bound_on_squared_gradients": float(
                max(np.max(run["gradient_share"]) for run in runs)
            ),
            "smallest_growth_over_predicted": float(min(np.min(run["growth"]) for run in runs)),
            "largest_growth_over_predicted": float(max(np.max(run["growth"]) for run in runs)),
            "largest_growth_across_over_along": float(max(np.max(run["across"]) for run in runs)),
            "falls_of_the_correlation_in_the_last_decade": float(sum(run["falls"] for run in runs)),
            "smallest_corr": float(1.0 - max(np.max(run["gap"][:, -1]) for run in runs)),
            "corr_without_assumption_b": _correlation_with_gmm(*figure_1b(), (0.0, -1.5), n_steps),
            "corr_with_two_inputs": _correlation_with_gmm(*figure_8(), (1.0, -1.0), n_steps),
        }
        progress.advance()
        norms = np.concatenate([run["norm"][:, -1] for run in runs])
        measured = (
            f"{n_problems} problems × {n_starts} starts, {n_steps:,} steps of $1/L_p$: {numbers['rises_of_the_risk']:.0f} rises of the "
            f"risk; the squared gradients use at most {numbers['largest_share_of_the_bound_on_squared_gradients']:.2f} of their bound; "
            f"norms end at {norms.min():.1f} … {norms.max():.1f}, growing by {numbers['smallest_growth_over_predicted']:.3f} … "
            f"{numbers['largest_growth_over_predicted']:.3f} of log 10 over the margin in the last decade, and what is across the limit "
            f"by at most {numbers['largest_growth_across_over_along']:.3f} of that; correlations rise to {numbers['smallest_corr']:.4f} "
            f"or more. Controls: {numbers['corr_without_assumption_b']:.3f} without Assumption B, {numbers['corr_with_two_inputs']:.3f} "
            "with two inputs."
        )
        arrays = {"runs": runs, "steps": steps}
        return Finding(measured, numbers, arrays, assumption_met=bool(numbers["assumption_b"]))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Norm and distance of the direction from its limit over the steps, on a logarithmic axis."""
        fig, axes = ml.plotting.figure(2, width=5.0, height=4.0)
        steps, runs = finding.arrays["steps"], finding.arrays["runs"]
        for colour, run in zip(ml.plotting.shades(len(runs)), runs, strict=True):
            for norm, gap in zip(run["norm"], run["gap"], strict=True):
                axes[0].semilogx(steps[1:], norm[1:], color=colour, lw=1.2)
                axes[1].loglog(steps[1:], gap[1:], color=colour, lw=1.2)
        titles = ("The norm grows like log t", "The direction converges like 1/(log t)²")
        for ax, title, label in zip(axes, titles, ("‖p‖", "1 − correlation with the best direction"), strict=True):
            ax.set(xlabel="step of size $1/L_p$", ylabel=label, title=title)
        return {"curves": fig}


def _problem(rng: np.random.Generator) -> tuple[ml.TokenDataset, FloatArray]:
    """One input on the sphere whose optimal token can be separated by a margin of at least .4."""
    while True:
        T, d = int(rng.integers(3, 6)), int(rng.integers(2, 5))
        data, v = scored_tokens(unit(rng.standard_normal((1, T, d))), [[1.0] + [0.0] * (T - 1)])
        best = globally_optimal_direction(data, v)
        if best.is_feasible and best.margin >= 0.4:
            return data, v


def _run(data: ml.TokenDataset, v: Any, start: FloatArray, steps: npt.NDArray[np.int64]) -> dict[str, Any]:
    eta = float(smoothness(data, v).largest_step)
    best = globally_optimal_direction(data, v)
    many = data.repeat(len(start))
    run = ml.descend(
        many,
        v,
        optimizer=ml.GradientDescent(eta),
        n_steps=int(steps[-1]),
        start=start,
        record=ml.Record(steps.tolist()),
    )
    points = run.saved["x"]  # (n_starts, n_kept, d_key)
    norm = np.linalg.norm(points, axis=-1)
    height = log_excess(data, v, points, best.selected)
    gap = drawing.misalignment(points, best.direction)
    decade = steps >= steps[-1] // 10
    first = int(np.flatnonzero(decade)[0])
    across = norm * np.sin(
        np.minimum(np.sqrt(2.0 * gap), np.pi / 2)
    )  # the length of what is not along the limit, for small angles
    values = ml.AttentionRisk(many, v).value(points[:, 0]) - ml.AttentionRisk(many, v).value(points[:, DENSE])
    early = points[:, :DENSE].reshape(-1, data.d_key)
    log_norm = ml.AttentionRisk(data.repeat(len(early)), v).gradient(early).log_norm.reshape(len(start), DENSE)
    squares = np.sum(np.exp(2.0 * log_norm), axis=1)
    return {
        "assumption_b": bool(check_assumption_b(data, v)),
        "rises": int(np.sum(np.diff(height, axis=1) >= 0.0)),
        "gradient_share": squares * eta / (2.0 * values),
        "growth": (norm[:, -1] - norm[:, first]) * best.margin / np.log(steps[-1] / steps[first]),
        "across": (across[:, -1] - across[:, first]) / (norm[:, -1] - norm[:, first]),
        "falls": int(np.sum(np.diff(gap[:, decade], axis=1) > 0.0)),
        "gap": gap,
        "norm": norm,
    }


def log_excess(data: ml.TokenDataset, v: Any, points: FloatArray, selected: Any) -> FloatArray:
    """Logarithm of the risk above that of selecting the given tokens, at points (n_runs, n_kept, d_key)."""
    flat = points.reshape(-1, points.shape[-1])
    chosen = np.broadcast_to(selected, (len(flat), data.n_inputs))
    return np.asarray(ml.AttentionRisk(data.repeat(len(flat)), v).excess(flat, chosen).log).reshape(points.shape[:-1])


def _correlation_with_gmm(data: ml.TokenDataset, v: FloatArray, start: tuple[float, float], n_steps: int) -> float:
    """The correlation with the best direction at which plain descent with step 1/L_p from a start ends."""
    step = ml.GradientDescent(float(smoothness(data, v).largest_step))
    run = ml.descend(data, v, optimizer=step, n_steps=n_steps, start=start)
    return float(ml.correlation(run.final, globally_optimal_direction(data, v).direction))
