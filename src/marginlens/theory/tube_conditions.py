"""The conditions of X Theorem 1 in intervals: the paragraphs of docs/proofs/attraction.md in its order, letters and equation numbers.

This decides what "proved" means. It shares no code with the search for tubes, and takes nothing on trust: every number of a certificate is
compared with an interval that is computed from the data alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.optimizers import NormalizedGD
from marginlens.theory.intervals import Exact, Proving, slope_in, steepness_of

if TYPE_CHECKING:
    from marginlens.theory.assumptions import Check
    from marginlens.theory.certificate import Certificate

STATED = 1e-9  # by how much the entries of a stated direction, and a stated margin as a share of it, may differ from the exact ones
SLOW = 0.1  # share of R² up to which what a row adds is summed up; beyond it the tube grows instead
PAIRWISE_ROWS = 64  # up to which the spread of the rows is taken over all pairs


def tube_conditions(proof: Certificate) -> list[Check]:
    """What the theorem asks of a certificate whose fields are what they have to be, up to the first inequality that does not hold."""
    proving = Proving()
    with proving.until_refuted():
        rows = _rows(proving, proof)
        ray = _ray(proving, proof, rows)
        anchor = _anchor(proving, proof, rows, ray)
        bounds = _bounds(proving, proof, rows, ray, anchor)
        _tube(proving, proof, rows, ray, _forces(proving, proof, rows, ray, anchor, bounds))
    return proving.checks


class _Rows(NamedTuple):
    """Rows r = (i, t) of the inputs whose output depends on p, in exact numbers: a_r = k_α - k_t and Δ_r = γ_α - γ_t."""

    places: list[tuple[int, int]]
    input: list[int]
    a: Exact
    gram: list[list[Any]]  # a_r · a_s for all r and for s in S
    square: list[Any]  # ‖a_r‖²
    delta: list[Any]  # Δ_r
    slope: list[Any]  # c_i^∞
    support: list[int]  # S

    def __len__(self) -> int:
        return len(self.places)


def _rows(proving: Proving, proof: Certificate) -> _Rows:
    """Setting."""
    data, alpha, number = proof.data, proof.selected.tolist(), proving.number
    keys, scores = Exact.of(data.K), Exact.of(data.X) @ Exact.of(proof.head)
    gamma = Exact(scores.whole * data.y.astype(np.int64).astype(object)[:, None], scores.power)
    places: list[tuple[int, int]] = []
    for i, length in enumerate(data.lengths.tolist()):
        n_scores = len({gamma.whole[i, t] for t in range(length)})
        n_keys = len({tuple(keys.whole[i, t]) for t in range(length)})
        if n_scores > 1 and n_keys > 1:
            places += [(i, t) for t in range(length) if t != alpha[i]]
    carrying = {tuple(place) for place in proof.support.tolist()}
    support = [r for r, place in enumerate(places) if place in carrying]
    what = "an input whose output does not depend on p is among those on the margin"
    proving.require("support", len(support) == len(carrying), what)
    a = Exact(np.array([keys.whole[i, alpha[i]] - keys.whole[i, t] for i, t in places]), keys.power)
    products = Exact(a.whole @ a.whole[support].T, 2 * a.power)
    gram = [[number(products, r, s) for s in range(len(support))] for r in range(len(places))]
    square = [number(Exact(row @ row, 2 * a.power)) for row in a.whole]
    delta = [number(Exact(gamma.whole[i, alpha[i]] - gamma.whole[i, t], gamma.power)) for i, t in places]
    what = "a token on the margin scores at least as high as the selected one"
    proving.require("scores on the margin are lower", all(delta[r] > 0 for r in support), what)
    chosen = [number(gamma, i, alpha[i]) for i, _ in places]
    slope = [slope_in(proving.iv, proof.loss, score) / data.n_inputs for score in chosen]
    return _Rows(places, [i for i, _ in places], a, gram, square, delta, slope, support)


class _Ray(NamedTuple):
    """The max-margin direction p̄ by its multipliers, and every row along it and beside it."""

    solve: Callable[[list[Any]], list[Any]]  # with the Gram matrix of the support
    theta: Any
    multipliers: list[Any]  # λ_r on the support
    along: list[Any]  # a_r · p̄
    slack: list[Any]  # σ_r, 0 on the support
    wide: list[Any]  # ‖a_r^⊥‖


def _ray(proving: Proving, proof: Certificate, rows: _Rows) -> _Ray:
    """Eq. (1): p^mm = Σ μ a with a · p^mm = 1 on the support, θ = 1/‖p^mm‖ and λ = θμ."""
    S, iv = rows.support, proving.iv
    solve = proving.solver("the rows on the margin are independent", [rows.gram[s] for s in S])
    mu = solve([iv.mpf(1) for _ in S])
    proving.require("support", all(weight > 0 for weight in mu), "a multiplier on the margin is not positive")
    theta = 1 / iv.sqrt(proving.sum(mu))
    multipliers = [theta * weight for weight in mu]
    along = [theta if r in S else proving.dot(multipliers, rows.gram[r]) for r in range(len(rows))]
    slack = [iv.mpf(0) if r in S else along[r] - theta for r in range(len(rows))]
    for r, (i, t) in enumerate(rows.places):
        proving.require("beyond the margin", bool(r in S or slack[r] > 0), f"token {t} of input {i} is not beyond it")
    wide = [iv.sqrt(proving.not_negative(rows.square[r] - along[r] ** 2)) for r in range(len(rows))]
    columns = [[proving.number(rows.a, s, k) for s in S] for k in range(len(proof.direction))]
    exact = [proving.dot(multipliers, column) for column in columns]
    off = [abs(entry - iv.mpf(stated)) for entry, stated in zip(exact, proof.direction.tolist(), strict=True)]
    proving.demand("the direction is the one stated", proving.largest(off), iv.mpf(STATED))
    proving.demand("the margin is the one stated", abs(iv.mpf(proof.margin) - theta), STATED * theta)
    return _Ray(solve, theta, multipliers, along, slack, wide)


class _Anchor(NamedTuple):
    """Where the support pulls exactly along the ray."""

    level: Any  # ρ̄
    at: list[Any]  # a_r · q*


def _anchor(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray) -> _Anchor:
    """The anchor q* = Σ y a with a · q* = ρ - ρ̄ on the support, and the ball around the point as seen from its ray."""
    S, iv = rows.support, proving.iv
    rho = [iv.log(rows.slope[r] * rows.delta[r] / weight) for r, weight in zip(S, ray.multipliers, strict=True)]
    level = ray.theta * proving.dot(ray.multipliers, rho)
    y = ray.solve([value - level for value in rho])
    at = [proving.dot(y, row) for row in rows.gram]
    point = Exact.of(proof.point)
    products = rows.a @ point
    at_point = [proving.number(products, s) for s in S]
    P = proving.dot(ray.multipliers, at_point)
    beside = proving.number(point @ point) - P**2  # ‖q‖², and then ‖q - q*‖²
    square = beside - 2 * proving.dot(y, at_point) + proving.dot(y, [at[s] for s in S])
    W, tolerance = proving.not_negative(square), iv.mpf(proof.tolerance)
    proving.demand("the ball is as far along as stated", iv.mpf(proof.along), P - tolerance)
    proving.demand("the ball deviates no more than stated", iv.sqrt(W) + tolerance, iv.mpf(proof.deviation))
    return _Anchor(level, at)


class _Bounds(NamedTuple):
    """What holds in all of the tube, at x = 0; lists have an entry a row."""

    near: list[Any]  # e^(-g_r)
    others: list[Any]  # ε_i
    raised: list[Any]  # Δ_i^+
    fallen: list[Any]  # Δ_i^-
    log_more: Any  # log m₊
    log_less: Any  # -log m₋


def _bounds(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, anchor: _Anchor) -> _Bounds:
    """Bounds in the tube: Eqs (3) and (4)."""
    iv, R, P, m = proving.iv, proving.iv.mpf(proof.radius), proving.iv.mpf(proof.along), range(len(rows))
    near = [iv.exp(ray.wide[r] * R - ray.along[r] * P - anchor.at[r]) for r in m]
    members = {i: [r for r in m if rows.input[r] == i] for i in rows.input}
    share = {i: proving.sum([near[r] for r in of]) for i, of in members.items()}
    most = {i: proving.largest([iv.mpf(0), *(rows.delta[r] for r in of)]) for i, of in members.items()}
    least = {i: proving.largest([iv.mpf(0), *(-rows.delta[r] for r in of)]) for i, of in members.items()}
    others, raised, fallen = ([values[i] for i in rows.input] for values in (share, most, least))
    proving.demand("attention on other tokens", proving.largest(others), iv.mpf(1))
    lost = {r: others[r] * raised[r] / rows.delta[r] for r in rows.support}
    proving.demand("scores on the margin stay lower", proving.largest(lost.values()), iv.mpf(1))
    steep = steepness_of(iv, proof.loss)
    more = [others[r] * (steep * raised[r] + fallen[r] / rows.delta[r]) for r in rows.support]
    less = [others[r] * steep * fallen[r] - iv.log(1 - others[r]) - iv.log(1 - lost[r]) for r in rows.support]
    return _Bounds(near, others, raised, fallen, proving.largest(more), proving.largest(less))


class _Forces(NamedTuple):
    """What rows beyond the margin add to the mass or take from it."""

    forward: dict[int, Any]  # o_r
    backward: dict[int, Any]  # τ_r
    variation: Any  # μ
    sideways: Any  # e
    step: Any  # h


def _forces(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, anchor: _Anchor, bounds: _Bounds) -> _Forces:
    """Forward and backward rows, Eqs (5) to (8); e of Eq. (11); the length of a step."""
    iv, R, P, m = proving.iv, proving.iv.mpf(proof.radius), proving.iv.mpf(proof.along), range(len(rows))
    steep = steepness_of(iv, proof.loss)
    slope = [rows.slope[r] * iv.exp(steep * bounds.others[r] * bounds.raised[r]) for r in m]  # a bound on c_i
    # a bound on |Δ_r - Σ sΔ|
    worst = [abs(rows.delta[r]) + bounds.others[r] * proving.largest([bounds.raised[r], bounds.fallen[r]]) for r in m]
    beyond = [r for r in m if r not in rows.support]
    ahead = {r for r in beyond if rows.delta[r] > 0 and bounds.others[r] * bounds.raised[r] < rows.delta[r]}
    mass = {r: ray.theta * slope[r] * iv.exp(-anchor.level - ray.slack[r] * P - anchor.at[r]) for r in beyond}
    forward = {r: mass[r] * (rows.delta[r] + bounds.others[r] * bounds.fallen[r]) for r in beyond if r in ahead}
    backward = {r: mass[r] * worst[r] * iv.exp(ray.wide[r] * R + bounds.log_less) for r in beyond if r not in ahead}
    lost = proving.sum([tau * ray.along[r] for r, tau in backward.items()])
    proving.demand("tokens of higher score pull less", lost, ray.theta)
    proving.demand("progress", iv.mpf(proof.progress), ray.theta - lost)

    variation = bounds.log_more + bounds.log_less
    sideways = proving.largest([ray.wide[r] for r in rows.support]) * (iv.exp(variation) - 1) / 2
    sideways += proving.sum([o * ray.wide[r] for r, o in forward.items()]) * iv.exp(bounds.log_less)
    sideways += proving.sum([tau * ray.wide[r] for r, tau in backward.items()])

    step = iv.mpf(0 if proof.optimizer is None else proof.optimizer.size)
    if type(proof.optimizer) is not NormalizedGD:  # plain steps are η‖∇L‖ long
        step *= proving.sum([slope[r] * worst[r] * bounds.near[r] * iv.sqrt(rows.square[r]) for r in m])
    return _Forces(forward, backward, variation, sideways, step)


def _tube(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, forces: _Forces) -> None:
    """Eqs (11) to (14): how the tube grows, and that the drift fits into it."""
    iv, m, h, e = proving.iv, range(len(rows)), forces.step, forces.sideways
    R, psi, progress, growth = map(iv.mpf, (proof.radius, proof.share, proof.progress, proof.growth))
    A2 = _spread(proving, rows, ray) ** 2 / (4 * (1 - psi))
    if h * A2 <= progress:  # A² = θ'/h, which is no smaller
        grown, sideways = iv.mpf(0), h * e**2 / (progress * psi)
    else:
        grown, sideways = h**2 * A2 / 4, e**2 / (A2 * psi)
    slow = {r: o for r, o in forces.forward.items() if not o < SLOW * R**2 * ray.theta * ray.slack[r]}
    fading = {r: o for r, o in forces.forward.items() if r not in slow}
    grown += 2 * iv.log(1 + proving.sum(slow.values())) + (sideways if slow else 0)
    proving.at_most("the tube grows as fast as needed", grown / progress, growth)

    kappa = growth / (2 * R)
    ahead = proving.largest(kappa * ray.wide[r] / ray.along[r] for r in m)
    proving.demand("the tube stays ahead", ahead, iv.mpf(1))  # s_r > 0
    beside = proving.largest(kappa * ray.wide[r] / ray.slack[r] for r in forces.backward)
    proving.demand("the tube stays beside", beside, iv.mpf(1))  # d_r > 0
    s = proving.smallest(ray.along[r] - ray.wide[r] * kappa for r in m)
    decay = {r: ray.slack[r] - ray.wide[r] * kappa for r in forces.backward}
    drift = forces.variation * (1 / s + h)
    drift += proving.sum([o * (1 / ray.slack[r] + h) for r, o in fading.items()])
    for r, tau in forces.backward.items():
        d = decay[r]
        falls = d * R > kappa
        high = R + 2 * kappa / (iv.e * d)
        drift += tau * ray.wide[r] * (R / d + kappa / d**2 + h * R if falls else high * (2 / d + h))
    slowest = proving.smallest([s, *(ray.slack[r] for r in fading), *decay.values()])
    drift += 0 if slow else sideways / 2 * (1 / (2 * slowest) + h)
    proving.demand("the drift fits into the tube", iv.mpf(proof.deviation) ** 2 + 2 * drift / progress, R**2)


def _spread(proving: Proving, rows: _Rows, ray: _Ray) -> Any:
    """D: the largest distance beside the ray of two rows with Δ > 0, or a bound on it."""
    lower = [r for r in range(len(rows)) if rows.delta[r] > 0]
    if len(rows) > PAIRWISE_ROWS:
        return 2 * proving.largest(ray.wide[r] for r in lower)
    apart = []
    for r in lower:
        for s in (s for s in lower if s < r):
            between = rows.a.whole[r] - rows.a.whole[s]
            square = proving.number(Exact(between @ between, 2 * rows.a.power))
            apart.append(square - (ray.along[r] - ray.along[s]) ** 2)
    return proving.iv.sqrt(proving.not_negative(proving.largest([proving.iv.mpf(0), *apart])))
