"""Proofs that steepest descent in any norm selects its tokens for ever, found at points of a run: X Theorem 4."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from scipy.special import softmax

from marginlens import core
from marginlens.losses.margin import slope_of
from marginlens.norms import L2, Norm
from marginlens.optimizers import NormalizedGD, SteepestDescent
from marginlens.optimizers.protocol import Optimizer
from marginlens.optimizers.schedules import PowerDecay, size_at
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.svm.solvers.least_distance import shortest_above
from marginlens.theory.any_norm_conditions import KNOWN_NORMS
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_certificate import SteepestCertificate
from marginlens.theory.steepest_memory import Memory, no_memory, remembered
from marginlens.theory.unproved_steps import steps_of
from marginlens.theory.vertex_steps import NO_VERTICES, VertexSteps, has_few_vertices, vertex_steps
from marginlens.typing import BoolArray, FloatArray, IntArray
from marginlens.words import Fact

TOLERANCE = 1e-6  # radius of the ball around a point that a proof has to hold, relative to the point's norm
ROOM = 1e-9  # by which stated numbers stay inside what the theorem allows, because both are computed in doubles
NEAR = 1e-7  # slack up to which a row is on the margin
CARRIES = 1e-9  # multipliers, relative to the largest, below which a row carries nothing of the margin
WORTH = 0.01  # loss to the length of steps, relative to γ, from which on a sharper bound is worth its time
KEPT = 0.98  # share of the largest rate that other rows have to stay below, so that errors at the point leave room


class Lacking(IntEnum):
    """The condition of X Theorem 4 that a point fails."""

    NOTHING = 0
    INFEASIBLE = 1
    SUPPORT_SCORES_HIGHER = 2
    STEPS_TOO_LONG = 3
    OUTRUN = 4
    WEIGHTS_TOO_LARGE = 5
    ROUNDING_DECIDES = 6
    REMEMBERS_TOO_MUCH = 7


def lacking_fact(lacking: Lacking) -> Fact:
    """State the condition that a point fails, as a clause."""
    return Fact(f"outcome.lacking.{lacking.name.lower()}")


class SteepestSteps(NamedTuple):
    """The steps of an optimizer from a point on, as X Theorem 4 sees them.

    Attributes:
        norm: in which they are steepest.
        longest: a bound on their length.
        limit: a bound on their length in the limit.
        momentum: β of the running sum of gradients for which they are steepest.
    """

    norm: Norm
    longest: float
    limit: float
    momentum: float = 0.0


def steepest_steps(optimizer: Optimizer, taken: int = 0) -> SteepestSteps | None:
    """Return what the theorem needs of the steps after `taken` ones; None if it does not cover them.

    It covers normalised steps in a norm of this library, with or without momentum, of constant length or falling like a power of
    at most one of the number of the step; not weight decay.
    """
    steps = steps_of(optimizer)
    if steps.kind not in (SteepestDescent, NormalizedGD) or steps.weight_decay > 0.0:
        return None
    norm = L2() if steps.kind is NormalizedGD else steps.norm
    if norm is None or type(norm) not in KNOWN_NORMS or steps.size is None or steps.power is None or steps.power > 1.0:
        return None
    falls = isinstance(steps.size, PowerDecay) and steps.power > 0.0
    longest = size_at(steps.size, taken)
    return SteepestSteps(norm, longest, 0.0 if falls else longest, steps.momentum)


class Rows(NamedTuple):
    """Rows r = (i, t) of a selection of one problem, for the inputs whose output depends on p.

    Attributes:
        selected: (n_inputs,) α.
        tokens: (n_rows, 2) input and token.
        a: (n_rows, d_key) k_α - k_t.
        delta: (n_rows,) Δ_r.
        log_slope: (n_rows,) log c_i^∞.
        near: (n_rows,) whether rounding decides which of the two tokens scores higher.
    """

    selected: IntArray
    tokens: IntArray
    a: FloatArray
    delta: FloatArray
    log_slope: FloatArray
    near: BoolArray


def rows_of(problem: ScoredTokens, selected: IntArray) -> Rows:
    """Compute the rows of a selection of one problem."""
    data = problem.data
    difference, near = problem.sharp_differences(selected)
    is_row = data.mask & problem.dependent[:, None] & (np.arange(data.n_tokens) != selected[:, None])
    tokens = np.argwhere(is_row)
    i, t = tokens.T
    chosen = problem.scores[np.arange(data.n_inputs), selected]
    log_slope = slope_of(problem.loss, chosen).log - np.log(data.n_inputs)
    return Rows(selected, tokens, data.K[i, selected[i]] - data.K[i, t], difference[is_row], log_slope[i], near[is_row])


class Plan(NamedTuple):
    """What the theorem needs of a selection in a norm, wherever the point is.

    Attributes:
        lacking: `NOTHING` if a proof can begin at some point.
        rows: the rows of the selection.
        leading: (n_rows,) 𝒢.
        gamma: a lower bound on γ.
        high: an upper bound on γ.
        longest, widest: D and D₂.
        witness, weights: p̂ and π.
        multipliers: (n_others, n_leading) μ.
        rest: (n_others,) ‖v_r‖_*.
        sizes: (n_others,) ‖a_r‖_*.
        turns: what a step does at each vertex of the unit ball, if that is needed; no vertices otherwise.
        rate: at which steps lower log F where gradients have no errors.
    """

    lacking: Lacking
    rows: Rows
    leading: BoolArray
    gamma: float = 0.0
    high: float = 0.0
    longest: float = 0.0
    widest: float = 0.0
    witness: FloatArray = np.empty(0)
    weights: FloatArray = np.empty(0)
    multipliers: FloatArray = np.empty((0, 0))
    rest: FloatArray = np.empty(0)
    sizes: FloatArray = np.empty(0)
    turns: VertexSteps = NO_VERTICES
    rate: float = 0.0

    @property
    def log_limit(self) -> FloatArray:
        """Log C_r^∞ of leading rows."""
        return np.asarray(self.rows.log_slope[self.leading] + np.log(self.rows.delta[self.leading]))


def plan_for(problem: ScoredTokens, selected: IntArray, steps: SteepestSteps, shape: tuple[int, ...]) -> Plan:
    """Choose the leading rows of a selection, and compare all others with them.

    Leading rows are those on the margin, and those that score lower and come too close to the margin for the comparison. If a
    row that scores higher comes too close, all rows that score lower lead.
    """
    rows = rows_of(problem, selected)
    leading = np.zeros(len(rows.a), dtype=bool)
    if not len(rows.a):
        return Plan(Lacking.INFEASIBLE, rows, leading)
    every = _widest_margin(rows.a, steps.norm, shape)
    if every.status is Status.INFEASIBLE:
        return Plan(Lacking.INFEASIBLE, rows, leading)
    lead, carried = rows.a @ every.x.ravel(), every.multipliers
    carries = carried > CARRIES * carried.max()
    forward = rows.delta > 0.0
    if (carries & ~forward).any():
        return Plan(Lacking.SUPPORT_SCORES_HIGHER, rows, leading)
    leading = (carries | (lead <= lead.min() * (1.0 + NEAR))) & forward
    while True:
        if problem.undecided.any() or rows.near[leading].any():
            return Plan(Lacking.ROUNDING_DECIDES, rows, leading)
        plan = _with_leading(rows, leading, steps, shape)
        if plan.lacking is not Lacking.OUTRUN:
            return plan
        others = np.flatnonzero(~leading)
        mass = plan.multipliers.sum(axis=1) - 1.0
        fails = others[plan.rest >= KEPT * plan.rate * mass]
        joining = fails[forward[fails]] if forward[fails].any() else others[forward[others]]
        if not len(joining):
            return plan
        leading = leading.copy()
        leading[joining] = True


def _numbers(plan: Plan, steps: SteepestSteps, steepness: float = 0.0, radius: float = 0.0) -> Any:
    """Return the numbers that the core judges a place by."""
    numbers = (plan.gamma, plan.longest, plan.widest, steps.longest, steps.momentum, steepness, radius)
    return np.array(numbers, dtype=core.struct_type("SteepestNumbers"))


def _with_rate(plan: Plan, steps: SteepestSteps) -> Plan:
    """Add the rate at which steps lower log F: by Hoeffding's lemma, or at each vertex."""
    rate = np.empty(1)
    core.find_least_fall(_numbers(plan, steps), plan.turns.values, plan.turns.slopes, 0.0, rate)
    return plan._replace(rate=float(rate[0]))


def _widest_margin(a: FloatArray, norm: Norm, shape: tuple[int, ...]) -> MarginSolution:
    return shortest_above(a.reshape(len(a), *shape), np.ones(len(a)), norm=norm)


def _with_leading(rows: Rows, leading: BoolArray, steps: SteepestSteps, shape: tuple[int, ...]) -> Plan:
    """Compute γ, D and D₂ for leading rows, and the comparison of every other row with them."""
    a, norm = rows.a[leading], steps.norm
    best = _widest_margin(a, norm, shape)
    if best.status is Status.INFEASIBLE:
        return Plan(Lacking.INFEASIBLE, rows, leading)
    size = norm.value(best.x) * (1.0 + ROOM)
    witness, weights = best.x.ravel() / size, np.maximum(best.multipliers, 0.0)
    weights = weights / weights.sum()
    others = np.flatnonzero(~leading)
    multipliers, rest = _comparisons(a, rows.a[others], norm, shape)
    pairs = np.triu_indices(len(a), 1)
    widest = max((norm.dual(row.reshape(shape)) for row in a[pairs[0]] - a[pairs[1]]), default=0.0)
    plan = Plan(
        Lacking.NOTHING,
        rows,
        leading,
        gamma=float(np.min(a @ witness)),
        high=norm.dual((weights @ a).reshape(shape)),
        longest=max(norm.dual(row.reshape(shape)) for row in a),
        widest=widest,
        witness=witness,
        weights=weights,
        multipliers=multipliers,
        rest=rest,
        sizes=np.array([norm.dual(row.reshape(shape)) for row in rows.a[others]]),
    )
    plan = _judged(_with_rate(plan, steps), steps)
    lost = steps.longest * plan.widest**2 / 8.0
    is_sharper = lost > WORTH * plan.gamma and steps.momentum == 0.0 and has_few_vertices(norm, a.shape[1])
    if plan.lacking is Lacking.NOTHING or not is_sharper:
        return plan
    mass = multipliers.sum(axis=1) - 1.0
    needed = float(np.max(np.divide(rest, KEPT * mass, out=np.full_like(rest, np.inf), where=mass > 0.0), initial=0.0))
    turning = _with_rate(plan._replace(turns=vertex_steps(a, norm, plan.gamma, steps.longest, needed)), steps)
    return _judged(turning._replace(lacking=Lacking.NOTHING), steps) if turning.rate > plan.rate else plan


def _judged(plan: Plan, steps: SteepestSteps) -> Plan:
    """Add what is lacking wherever the point is: a positive rate, or one at which other rows stay behind."""
    if not plan.rate > 0.0:
        return plan._replace(lacking=Lacking.REMEMBERS_TOO_MUCH if steps.momentum > 0.0 else Lacking.STEPS_TOO_LONG)
    outrun = bool((plan.rest >= KEPT * plan.rate * (plan.multipliers.sum(axis=1) - 1.0)).any())
    return plan._replace(lacking=Lacking.OUTRUN) if outrun else plan


def _comparisons(
    leading: FloatArray, others: FloatArray, norm: Norm, shape: tuple[int, ...]
) -> tuple[FloatArray, FloatArray]:
    """Compare rows with leading ones by the convex problem of the proof: μ (n_others, n_leading) and ‖v‖_* (n_others,)."""
    n, m = len(others), len(leading)
    if not n:
        return np.empty((0, m)), np.empty(0)
    beyond = np.broadcast_to(leading, (n, *leading.shape))
    rows = np.concatenate([beyond, leading - others[:, None]], axis=1)
    lower = np.concatenate([np.ones((n, m)), np.zeros((n, m))], axis=1)
    solved = shortest_above(rows.reshape(n, 2 * m, *shape), lower, norm=norm)
    found = np.asarray(solved.multipliers)
    if solved.certificate is not None:
        # Along no direction is the row behind every leading one: the proof of that compares them without a rest.
        found = np.where(np.isnan(found), np.asarray(solved.certificate), found)
    found = np.maximum(np.nan_to_num(found), 0.0)
    ahead, behind = found[:, :m], found[:, m:]
    total = behind.sum(axis=1, keepdims=True)
    multipliers = np.divide(ahead + behind, total, out=np.zeros_like(ahead), where=total > 0.0)
    rests = others - multipliers @ leading
    return multipliers, np.array([norm.dual(row.reshape(shape)) for row in rests])


class Place(NamedTuple):
    """What the theorem says at a point: the rate g, and what is lacking if it is not positive enough."""

    lacking: Lacking
    rate: float
    tolerance: float


def place_at(
    plan: Plan,
    point: FloatArray,
    steps: SteepestSteps,
    steepness: float,
    shape: tuple[int, ...],
    memory: Memory | None = None,
) -> Place:
    """Compute the rate of Eq. (11) at a point.

    Args:
        plan: the plan of the tokens that lead at the point.

        point: (d_key,).

        steps: the steps from the point on.

        steepness: Λ of the loss.

        shape: the shape of the weights in the norm.

        memory: the running sum of gradients before the first step; none by default.
    """
    tolerance = TOLERANCE * float(steps.norm.value(point.reshape(shape)))
    if plan.lacking is not Lacking.NOTHING:
        return Place(plan.lacking, 0.0, tolerance)
    rows, leading, turns = plan.rows, plan.leading, plan.turns
    a, inputs = rows.a[leading], np.ascontiguousarray(rows.tokens[:, 0])
    past = remembered(
        memory, a, softmax(plan.log_limit - a @ point), lambda row: float(steps.norm.dual(row.reshape(shape)))
    )
    rate = np.empty(1)
    core.find_steepest_rate(
        rows=rows.a,
        delta=rows.delta,
        log_slope=rows.log_slope,
        input=inputs,
        leading=leading,
        multipliers=plan.multipliers,
        rest=plan.rest,
        sizes=plan.sizes,
        values=turns.values,
        slopes=turns.slopes,
        remembered=np.array(past),
        numbers=_numbers(plan, steps, steepness, tolerance),
        point=point,
        others=np.empty(int(inputs.max()) + 1),
        rate=rate,
    )
    lacking = Lacking.NOTHING if rate[0] > 0.0 else Lacking.WEIGHTS_TOO_LARGE
    return Place(lacking, float(rate[0]), tolerance)


def certificate_at(
    problem: ScoredTokens,
    point: FloatArray,
    plan: Plan,
    place: Place,
    steps: SteepestSteps,
    shape: tuple[int, ...],
    memory: Memory | None = None,
) -> SteepestCertificate:
    """Make the certificate of a place at which nothing is lacking."""
    past = memory or no_memory(len(point), int(plan.leading.sum()))
    in_limit = plan.rate if steps.limit > 0.0 else plan.gamma
    return SteepestCertificate(
        data=problem.data,
        head=problem.head,
        loss=problem.loss,
        point=point,
        tolerance=place.tolerance,
        selected=plan.rows.selected,
        steepest_in=steps.norm,
        shape=shape,
        longest=steps.longest,
        limit=steps.limit,
        leading=plan.rows.tokens[plan.leading],
        witness=plan.witness,
        weights=plan.weights,
        multipliers=plan.multipliers,
        turns=plan.turns.duals.reshape(-1, 1 + len(point)),
        momentum=steps.momentum,
        memory=past.total,
        remembered=past.weights,
        rate=place.rate,
        low=in_limit - ROOM * plan.gamma,
        high=plan.high * (1.0 + ROOM),
    )
