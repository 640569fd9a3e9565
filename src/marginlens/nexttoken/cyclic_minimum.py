"""Minimisation of a cyclic risk over S_cyc by Newton's method, or numerical evidence that the risk has no minimum."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from marginlens.graphs.cyclic import pseudo_graphs
from marginlens.graphs.priority import PriorityGraph
from marginlens.graphs.subspace import cyclic_subspace
from marginlens.nexttoken.cyclic_risk import CyclicRisk, RiskPoint
from marginlens.svm.graph import graph_svm
from marginlens.svm.solution import Status
from marginlens.typing import FloatArray, IntArray
from marginlens.words import Fact

NEWTON_MAX_STEPS = 400
# A Newton step this small in logits is the last: the next would be of the order of its square.
LAST_STEP_RTOL = 1e-8
# The risk falls for ever if the gradient is below this and Newton's step above RUNAWAY_STEP.
RUNAWAY_GRADIENT = 1e-11
RUNAWAY_STEP = 1e-3
# Change of the risk, relative to it, that rounding may hide.
RISK_ROUNDOFF_RTOL = 1e-12
# Hessian products for one step.
MAX_HESSIAN_PRODUCTS = 2_000
# Curvature, by logits, whose sign rounding may decide at a stationary point.
CURVATURE_ATOL = 1e-12
# Slopes and curvatures, by logits, that are rounding of a risk of order one.
FLAT_ATOL = 1e-14
# Attention below this at a point that runs away belongs to tokens that lose all of it. Each is tried.
ATTENTION_THRESHOLDS = (1e-6, 1e-4, 1e-3)
# Logit gaps at which the slope along the direction is computed.
LOGIT_GAPS = (7.0, 8.0, 9.0, 10.0, 11.0, 12.0)
# At this gap e^-gap is below rounding, so the risk there is its limit.
LIMIT_GAP = 60.0
# The limit may be this much above the lowest risk, which a gradient of 1e-11 still leaves above its limit.
LIMIT_RTOL = 1e-9
# Tokens that a sentence lists.
MAX_LISTED_TOKENS = 8


@dataclass(frozen=True)
class Minimised:
    """The end of a minimisation.

    Attributes:
        W: (d_model, d_model) the last point.

        converged: whether Newton's step vanished there at positive curvature.

        steps: number of steps.

        flat: number of directions of S_cyc along which slope and curvature were rounding at the end.
    """

    W: FloatArray
    converged: bool
    steps: int
    flat: int = 0


def minimise(risk: CyclicRisk, start: FloatArray) -> Minimised:
    """Find a minimum of the risk over S_cyc from `start` (d_model, d_model), which lies in S_cyc."""
    if risk.is_likelihood and risk.space.independent:
        return _by_component(risk, risk.space.centre(risk.space.cells(start)))
    return _in_basis(risk, start) if risk.is_small else _by_products(risk, start)


def _by_component(risk: CyclicRisk, cells: FloatArray) -> Minimised:
    """Take damped Newton steps for each component separately: independent embeddings leave every logit free, and the risk is convex."""
    steps = risk.minimise_by_component(cells)
    return Minimised(risk.weights(risk.space.centre(cells)), steps >= 0, max(steps, 0))


def _in_basis(risk: CyclicRisk, start: FloatArray) -> Minimised:
    """Take Newton steps in a trust region with whole spectra, in orthonormal coordinates of S_cyc.

    Steps have no part along eigenvectors whose slope and curvature are both rounding: there the risk is flat, or has run out.
    """
    T = risk.table
    z = risk.coordinates(start)
    # The most by which a unit step moves a logit.
    unit = float(np.linalg.norm(T, axis=1).max(initial=1e-300))
    # Every component may move by 4 at once, and their steps are orthogonal.
    widest = 4.0 / unit * float(np.sqrt(risk.space.n_groups))
    radius, point, converged, n, flat = 2.0 / unit, risk.at(T @ z), False, 0, 0
    while n < NEWTON_MAX_STEPS and not converged:
        n += 1
        g = T.T @ point.gradient
        values, vectors = np.linalg.eigh(T.T @ (point.hessian() @ T))
        along = vectors.T @ g
        live = (np.abs(values) > FLAT_ATOL * unit**2) | (np.abs(along) > FLAT_ATOL * unit)
        idle, flat = vectors[:, ~live], int(np.sum(~live))
        values, vectors, along = values[live], vectors[:, live], along[live]
        if (values > 0.0).all():
            newton = -vectors @ (along / values)
            size = float(np.abs(T @ newton).max())
            if size <= LAST_STEP_RTOL * (1.0 + np.abs(T @ z).max()):
                ahead = np.linalg.norm(T.T @ risk.at(T @ (z + newton)).gradient)
                last = z + newton if ahead < np.linalg.norm(g) else z
                lower = _lower_along(risk, last, idle / unit)
                z, converged = (last, True) if lower is None else (lower, False)
                point = risk.at(T @ z)
                continue
            if np.linalg.norm(g) <= RUNAWAY_GRADIENT * unit and size > RUNAWAY_STEP:
                break
        step = vectors @ _minimum_in_ball(values, along, radius)
        trial = risk.at(T @ (z + step))
        promised = float(g @ step + 0.5 * np.sum(values * (vectors.T @ step) ** 2))
        steepness = (float(np.linalg.norm(T.T @ at.gradient)) for at in (point, trial))
        ratio = _decrease_ratio((point.value, trial.value, promised), *steepness)
        z, radius, moved = _next_radius(ratio, z, step, radius, widest)
        point = trial if moved else point
        if radius * unit < 1e-13:
            # No step helps: the point is stationary, or the risk differs from its limit only by rounding.
            noise = vectors[:, np.abs(values) <= CURVATURE_ATOL * unit**2]
            stationary = (
                np.linalg.norm(g) <= RUNAWAY_GRADIENT * unit and values.min(initial=0.0) >= -CURVATURE_ATOL * unit**2
            )
            converged = bool(stationary) and _lower_along(risk, z, np.hstack([idle, noise]) / unit) is None
            flat += noise.shape[1]
            break
    return Minimised(risk.matrix(z), converged, n, flat)


def _lower_along(risk: CyclicRisk, z: FloatArray, idle: FloatArray) -> FloatArray | None:
    """Find a point of lower risk along a direction of `idle` (rank, n_idle), in which neither slope nor curvature decides."""
    value = risk.at(risk.table @ z).value
    for vector in idle.T:
        for length in (1.0, -1.0, 0.1, -0.1):
            if risk.at(risk.table @ (z + length * vector)).value < value - 1e-12 * max(1.0, abs(value)):
                return np.asarray(z + length * vector)
    return None


def _decrease_ratio(values: tuple[float, float, float], steepness: float, ahead: float) -> float:
    """Compute the share of the promised decrease that a step reached; if rounding hides it, ±1 by whether the gradient's norm falls."""
    before, after, promised = values
    if not (np.isfinite(after) and np.isfinite(ahead)):
        return -1.0
    if abs(promised) <= RISK_ROUNDOFF_RTOL * abs(before) and abs(after - before) <= RISK_ROUNDOFF_RTOL * abs(before):
        return 1.0 if ahead < steepness else -1.0
    return (before - after) / -promised if promised < 0.0 else -1.0


def _next_radius(
    ratio: float, z: FloatArray, step: FloatArray, radius: float, widest: float
) -> tuple[FloatArray, float, bool]:
    """Take or reject a step by its share of the promised decrease, and set the next radius."""
    size = float(np.linalg.norm(step))
    if ratio < 0.1:
        return z, 0.25 * size, False
    wider = min(2.0 * radius, widest) if ratio > 0.7 and size > 0.9 * radius else radius
    return z + step, wider, True


def _minimum_in_ball(values: FloatArray, along: FloatArray, radius: float) -> FloatArray:
    """Minimise a quadratic with eigenvalues `values` and slopes `along` in a ball, in the eigenvectors' coordinates."""
    lowest = float(values[0])
    if lowest > 0.0:
        newton = -along / values
        if np.linalg.norm(newton) <= radius:
            return newton
    scale = max(float(np.abs(values).max()), float(np.abs(along).max()) / radius)
    low, high = max(0.0, -lowest), max(0.0, -lowest) + float(np.linalg.norm(along)) / radius + scale
    floor = low + 1e-12 * scale
    if np.linalg.norm(along / (values + floor)) < radius:
        # The hard case: the slope has no part along the lowest eigenvector, so the step takes the rest of its length there.
        step = -along / (values + floor)
        step[0] += np.copysign(np.sqrt(radius**2 - float(step @ step)), step[0])
        return step
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.linalg.norm(along / (values + max(middle, floor))) > radius else (low, middle)
    return -along / (values + max(high, floor))


def _by_products(risk: CyclicRisk, start: FloatArray) -> Minimised:
    """Take Newton steps with conjugate gradients in a trust region, on W itself; gradients lie in S_cyc, so steps do too."""
    space, W = risk.space, start
    unit = space.reach
    radius, point, converged, n = 2.0 / unit, risk.at(space.cells(W)), False, 0
    while n < NEWTON_MAX_STEPS and not converged:
        n += 1
        g = space.lift(point.gradient)
        size = float(np.linalg.norm(g))
        step, hessian_step, inside = _steihaug(risk, point, g, radius)
        moved = float(np.abs(space.centre(space.cells(step))).max())
        if inside and moved <= LAST_STEP_RTOL * (1.0 + np.abs(space.centre(space.cells(W))).max()):
            ahead = np.linalg.norm(space.lift(risk.at(space.cells(W + step)).gradient))
            W, converged = (W + step if ahead < size else W), True
            break
        if size <= RUNAWAY_GRADIENT and moved > RUNAWAY_STEP:
            break
        trial = risk.at(space.cells(W + step))
        promised = float(np.sum(g * step) + 0.5 * np.sum(step * hessian_step))
        ratio = _decrease_ratio(
            (point.value, trial.value, promised), size, float(np.linalg.norm(space.lift(trial.gradient)))
        )
        W, radius, taken = _next_radius(ratio, W, step, radius, 200.0 / unit)
        point = trial if taken else point
        if radius * unit < 1e-13:
            break
    return Minimised(W, converged, n)


def _steihaug(risk: CyclicRisk, point: RiskPoint, g: FloatArray, radius: float) -> tuple[FloatArray, FloatArray, bool]:
    """Compute Steihaug's step and its Hessian product: conjugate gradients until solved, at the boundary, or along negative curvature."""
    space = risk.space
    step, hessian_step = np.zeros_like(g), np.zeros_like(g)
    residual, direction = -g, -g
    goal = min(0.1, np.sqrt(np.linalg.norm(g))) * np.linalg.norm(g)
    size = float(np.sum(residual * residual))
    if size == 0.0:
        return step, hessian_step, True
    for _ in range(min(4 * g.size, MAX_HESSIAN_PRODUCTS)):
        product = space.lift(point.product(space.cells(direction)))
        curvature = float(np.sum(direction * product))
        length = size / curvature if curvature > 0.0 else np.inf
        further = step + length * direction if np.isfinite(length) else direction
        if not np.isfinite(length) or np.linalg.norm(further) >= radius:
            a, b, c = (float(np.sum(x * y)) for x, y in ((direction, direction), (step, direction), (step, step)))
            length = (-b + np.sqrt(b * b + a * (radius**2 - c))) / a
            return step + length * direction, hessian_step + length * product, False
        step, hessian_step, residual = further, hessian_step + length * product, residual - length * product
        next_size = float(np.sum(residual * residual))
        if np.sqrt(next_size) <= goal:
            break
        direction, size = residual + next_size / size * direction, next_size
    return step, hessian_step, True


@dataclass(frozen=True)
class Runaway:
    """Numerical evidence that the risk has no finite minimum in the direction of a run.

    Attributes:
        direction: (d_model, d_model) a matrix in S_cyc that puts each token that keeps attention at least one above each that loses it.

        base: (d_model, d_model) the finite part: base + R direction is a minimising sequence.

        limit: the risk that it falls to.

        fact: the last token, the component and how its tokens separate.
    """

    direction: FloatArray
    base: FloatArray
    limit: float
    fact: Fact


def runaway(risk: CyclicRisk, W: FloatArray) -> Runaway | None:
    """Find the order that the point W has run towards, with evidence that the risk has no minimum; None without such evidence.

    Tokens whose attention has faded at W are put strictly below those that keep it. The Graph-SVM of that selection gives a direction,
    and the part of W outside the ties of that selection gives another. A direction counts if the risk falls along it at every gap of
    `LOGIT_GAPS`, down to no more than the lowest risk of the run.
    """
    proofs = [proof for proof in (_certified(risk, W, faded) for faded in ATTENTION_THRESHOLDS) if proof is not None]
    return min(proofs, key=lambda proof: proof.limit, default=None)


def _certified(risk: CyclicRisk, W: FloatArray, faded: float) -> Runaway | None:
    """Certify the order in which attention below `faded` counts as none."""
    space = risk.space
    attention = risk.subset.attention(W)
    if attention.min() > faded or np.minimum.reduce(np.maximum.reduceat(attention, risk.subset.offsets[:-1])) <= faded:
        return None
    graphs = pseudo_graphs(risk.subset, W, faded)
    base = cyclic_subspace(space.E, graphs).project(W)
    pairs = [(int(k), int(i), int(j)) for k, graph in graphs.items() for i, j in graph.strict]
    if not pairs:
        return None
    k, i, j = np.array(pairs).T
    gaps = np.sum((space.E[i] - space.E[j]) @ (W - base) * space.E[k], axis=1)
    candidates = [(W - base) / gaps.min()] if gaps.min() > 0.0 else []
    if risk.is_small:
        solution = graph_svm(space.E, graphs)
        candidates = [np.asarray(solution.x)] * (solution.status is Status.OPTIMAL) + candidates
    lowest = risk.at(space.cells(W)).value
    for direction in candidates:
        limit = _limit(risk, base, direction, lowest)
        if limit is not None:
            return Runaway(direction, base, limit, _separation(risk, graphs, limit))
    return None


def _limit(risk: CyclicRisk, base: FloatArray, direction: FloatArray, lowest: float) -> float | None:
    """Compute the limit of the risk along base + R direction, if it falls at every gap and to no more than `lowest`."""
    space = risk.space
    towards, finite = space.cells(direction), space.cells(base)
    points = [risk.at(finite + height * towards) for height in LOGIT_GAPS]
    slopes = np.array([float(point.gradient @ towards) for point in points])
    limit = risk.at(finite + LIMIT_GAP * towards).value
    falls = bool((slopes < 0.0).all()) and all(a.value > b.value for a, b in pairwise(points))
    return limit if falls and limit <= lowest + LIMIT_RTOL * max(1.0, abs(lowest)) else None


def _separation(risk: CyclicRisk, graphs: dict[int, PriorityGraph], limit: float) -> Fact:
    """State which component separates, and how."""
    space, separated = risk.space, []
    for block in risk.blocks:
        last, members = int(space.queries[space.columns[block.start]]), space.tokens[block]
        ranks = graphs[last].components_of(members)
        if np.ptp(ranks) > 0:
            separated.append((last, [members[ranks == rank] for rank in np.unique(ranks)]))
    last, levels = separated[0]
    numbers = {
        "last": last,
        "component": _listed(np.sort(np.concatenate(levels))),
        "order": " > ".join(_listed(level) for level in levels[:4]),
        "limit": limit,
        "more": len(separated) - 1,
    }
    return Fact("correction.runaway", numbers if len(separated) == 1 else {**numbers, "case": "more"})


def _listed(tokens: IntArray) -> str:
    shown = ", ".join(map(str, tokens[:MAX_LISTED_TOKENS].tolist()))
    return f"[{shown}, …]" if len(tokens) > MAX_LISTED_TOKENS else f"[{shown}]"
