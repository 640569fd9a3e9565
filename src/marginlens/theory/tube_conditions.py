"""The conditions of X Theorem 1 in intervals: the paragraphs of docs/proofs/attraction.md in its order, letters and equation numbers.

This module decides what "proved" means. It shares no code with the search for tubes and takes nothing on trust: every number of
a certificate is compared with an interval computed from the data alone. Letters are those of the page, and each function names
its paragraph:

    _setting   Setting: the rows
    _ray       Setting, Eq. (1): the max-margin direction
    _anchor    The anchor, and where the point is
    _bounds    Bounds in the tube, Eqs (3) and (4)
    _masses    Forward and backward rows, Eqs (5) to (7)
    _progress  Progress, Eq. (8)
    _sideways  Sideways motion, Eq. (11)
    _step      One step: its length h
    _growth    One step, Eqs (12) and (13): how the tube grows
    _drift     The theorem, Eq. (14): the drift fits into the tube
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from marginlens.losses.margin import ArcsineLoss
from marginlens.optimizers import NormalizedGD
from marginlens.theory.exact_rows import exact_rows
from marginlens.theory.intervals import Exact, Proving, steepness_in

if TYPE_CHECKING:
    from flint import arb

    from marginlens.theory.certificate import Certificate
    from marginlens.theory.checks import Check

STATED = 1e-9  # by how much the entries of a stated direction, and a stated margin as a share of it, may differ from the exact ones
SLOW = 0.1  # share of R² up to which what a row adds is summed up; beyond it the tube grows instead
SLOPE_CONDITIONS = ("tube.selected_scores", "tube.finite_slope")
PAIRWISE_ROWS = 64  # up to which the spread of the rows is taken over all pairs


def tube_conditions(proof: Certificate) -> list[Check]:
    """Check the conditions of the theorem on a certificate whose fields are valid, up to the first that does not hold."""
    proving = Proving()
    with proving.until_refuted():
        rows = _setting(proving, proof)
        ray = _ray(proving, proof, rows)
        if type(proof.loss) is ArcsineLoss:
            _steep_conditions(proving, proof, rows, ray)
            return proving.checks
        limits = [rows.c[r] * rows.delta[r] / weight for r, weight in zip(rows.support, ray.multipliers, strict=True)]
        anchor = _anchor(proving, proof, rows, ray, limits)
        bounds = _bounds(proving, proof, rows, ray, anchor)
        masses = _masses(proving, proof, rows, ray, anchor, bounds)
        _progress(proving, proof, ray, masses)
        e, h = _sideways(proving, rows, ray, bounds, masses), _step(proving, proof, rows, bounds, masses)
        growth = _growth(proving, proof, rows, ray, masses, e, h)
        _drift(proving, proof, rows, ray, bounds, masses, growth)
    return proving.checks


class _Rows(NamedTuple):
    """Rows r = (i, t) of the inputs whose output depends on p, in exact numbers: a_r = k_α - k_t and Δ_r = γ_α - γ_t."""

    tokens: list[tuple[int, int]]
    input: list[int]
    a: Exact
    gram: list[list[Any]]  # a_r · a_s for all r and for s in S
    square: list[Any]  # ‖a_r‖²
    delta: list[Any]  # Δ_r
    lead: list[Any]  # b_α - b_t
    score: list[Any]  # γ_α
    c: list[Any]  # c_i^∞
    support: list[int]  # S

    def __len__(self) -> int:
        return len(self.tokens)


def _setting(proving: Proving, proof: Certificate) -> _Rows:
    """Setting: the rows, and that the support is among them with Δ > 0."""
    rows = exact_rows(proving, proof.data, proof.head, proof.loss, proof.selected)
    tokens, a = rows.tokens, rows.a
    stated = {tuple(token) for token in proof.support.tolist()}
    S = [r for r, token in enumerate(tokens) if token in stated]
    proving.require("tube.support_rows", len(S) == len(stated))
    gram = proving.numbers(a @ a.rows(S).T)
    square = [proving.number(sum(x * x for x in row), 2 * a.power) for row in a.whole.tolist()]
    proving.require("tube.support_scores", all(rows.delta[r] > 0 for r in S))
    return _Rows(tokens, rows.input, a, gram, square, rows.delta, rows.lead, rows.score, rows.c, S)


class _Ray(NamedTuple):
    """The max-margin direction p̄ by its multipliers, and every row along it and orthogonal to it."""

    solve: Callable[[list[Any]], list[Any]]  # with the Gram matrix of the support
    theta: Any
    multipliers: list[Any]  # λ_r on the support
    along: list[Any]  # a_r · p̄
    sigma: list[Any]  # σ_r, 0 on the support
    wide: list[Any]  # ‖a_r^⊥‖


def _ray(proving: Proving, proof: Certificate, rows: _Rows) -> _Ray:
    """Setting, Eq. (1): p̄ = Σ λ a with λ > 0 on S, from p^mm = Σ λ/θ a with a · p^mm = 1 there and θ = 1/‖p^mm‖."""
    S, real = rows.support, proving.real
    solve = proving.solver("tube.independent", [rows.gram[s] for s in S])
    weights = solve([real(1) for _ in S])
    proving.require("tube.multipliers", all(weight > 0 for weight in weights))
    theta = 1 / proving.root(proving.sum(weights))
    multipliers = [theta * weight for weight in weights]
    along = [theta if r in S else proving.dot(multipliers, rows.gram[r]) for r in range(len(rows))]
    sigma = [real(0) if r in S else along[r] - theta for r in range(len(rows))]
    for r, (i, t) in enumerate(rows.tokens):
        proving.require("tube.beyond_margin", bool(r in S or sigma[r] > 0), token=t, input=i)
    wide = [proving.root(rows.square[r] - proving.square(along[r])) for r in range(len(rows))]
    [exact] = proving.product([multipliers], proving.numbers(rows.a.rows(S)))
    errors = [abs(entry - real(stated)) for entry, stated in zip(exact, proof.direction.tolist(), strict=True)]
    proving.demand("tube.direction", proving.largest(errors), real(STATED))
    proving.demand("tube.margin", abs(real(proof.margin) - theta), STATED * theta)
    return _Ray(solve, theta, multipliers, along, sigma, wide)


class _Anchor(NamedTuple):
    """The offset at which the support pulls exactly along the ray."""

    level: Any  # ρ̄
    at: list[Any]  # a_r · q* + b_α - b_t


def _anchor(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, limits: list[Any]) -> _Anchor:
    """The anchor: q* = Σ y a over S with a · q* = ρ - ρ̄ there, where ρ is the logarithm of C^∞/λ; and P and ‖q - q*‖ in the ball
    around the point.
    """
    S, real = rows.support, proving.real
    rho = [proving.log(limit) - rows.lead[r] for r, limit in zip(S, limits, strict=True)]
    level = ray.theta * proving.dot(ray.multipliers, rho)
    y = ray.solve([value - level for value in rho])
    at = [proving.dot(y, row) for row in rows.gram]
    point = Exact.of(proof.point)
    at_point = [number for [number] in proving.numbers(rows.a.rows(S) @ point)]
    P = proving.dot(ray.multipliers, at_point)
    [[square]] = proving.numbers(point.T @ point)
    W = square - proving.square(P) - 2 * proving.dot(y, at_point) + proving.dot(y, [at[s] for s in S])
    delta = real(proof.tolerance)
    proving.demand("tube.along", real(proof.along), P - delta)
    proving.demand("tube.deviation", proving.root(W) + delta, real(proof.deviation))
    return _Anchor(level, [along + lead for along, lead in zip(at, rows.lead, strict=True)])


class _Bounds(NamedTuple):
    """Bounds in all of the tube, at x = 0; lists have one entry per row."""

    gap: list[Any]  # e^(-g_r)
    epsilon: list[Any]  # ε_i
    plus: list[Any]  # Δ_i^+
    minus: list[Any]  # Δ_i^-
    steep: list[Any]  # Λ
    log_m_plus: Any  # log m₊
    minus_log_m_minus: Any  # -log m₋

    @property
    def mu(self) -> Any:
        """The quantity μ = log(m₊/m₋)."""
        return self.log_m_plus + self.minus_log_m_minus


def _shares(
    proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, anchor: _Anchor
) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Bounds in the tube: e^(-g_r) of Eq. (3), ε_i < 1, Δ_i^+ and Δ_i^-; and that the support is forward."""
    R, P_0, every = proving.real(proof.radius), proving.real(proof.along), range(len(rows))
    gap = [proving.exp(ray.wide[r] * R - ray.along[r] * P_0 - anchor.at[r]) for r in every]
    members = {i: [r for r in every if rows.input[r] == i] for i in rows.input}
    zero, delta = proving.real(0), rows.delta
    by_input = {
        i: (
            proving.sum([gap[r] for r in own]),
            proving.largest([zero, *(delta[r] for r in own)]),
            proving.largest([zero, *(-delta[r] for r in own)]),
        )
        for i, own in members.items()
    }
    epsilon, plus, minus = ([by_input[i][k] for i in rows.input] for k in range(3))
    proving.demand("tube.epsilon", proving.largest(epsilon), proving.real(1))
    lost = [epsilon[r] * plus[r] / delta[r] for r in rows.support]
    proving.demand("tube.support_forward", proving.largest(lost), proving.real(1))
    return gap, epsilon, plus, minus


def _bounds(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, anchor: _Anchor) -> _Bounds:
    """Bounds in the tube: Eq. (4) on the support."""
    gap, epsilon, plus, minus = _shares(proving, proof, rows, ray, anchor)
    delta = rows.delta
    lost = {r: epsilon[r] * plus[r] / delta[r] for r in rows.support}
    steep = steepness_in(proving, SLOPE_CONDITIONS, proof.loss, rows.score, epsilon, plus)
    more = [epsilon[r] * (steep[r] * plus[r] + minus[r] / delta[r]) for r in rows.support]
    less = [
        epsilon[r] * steep[r] * minus[r] - proving.log(1 - epsilon[r]) - proving.log(1 - lost[r]) for r in rows.support
    ]
    return _Bounds(gap, epsilon, plus, minus, steep, proving.largest(more), proving.largest(less))


class _Masses(NamedTuple):
    """The mass that rows beyond the margin add or take away, and two bounds for every row."""

    o: dict[int, Any]  # o_r of forward rows
    tau: dict[int, Any]  # τ_r of backward rows
    c: list[Any]  # c_i^∞ e^(Λ ε_i Δ_i^+), a bound on c_i
    lead: list[Any]  # |Δ_r| + ε_i max(Δ_i^+, Δ_i^-), a bound on |Δ_r - Σ sΔ|


def _masses(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, anchor: _Anchor, bounds: _Bounds) -> _Masses:
    """Forward and backward rows: o_r of Eq. (5) and, with the mass of Eq. (6), τ_r of Eq. (7)."""
    R, P_0, every = proving.real(proof.radius), proving.real(proof.along), range(len(rows))
    epsilon, delta = bounds.epsilon, rows.delta
    c = [rows.c[r] * proving.exp(bounds.steep[r] * epsilon[r] * bounds.plus[r]) for r in every]
    lead = [abs(delta[r]) + epsilon[r] * proving.largest([bounds.plus[r], bounds.minus[r]]) for r in every]
    beyond = [r for r in every if r not in rows.support]
    forward = {r for r in beyond if delta[r] > 0 and epsilon[r] * bounds.plus[r] < delta[r]}
    at_ray = {r: ray.theta * c[r] * proving.exp(-anchor.level - ray.sigma[r] * P_0 - anchor.at[r]) for r in beyond}
    o = {r: at_ray[r] * (delta[r] + epsilon[r] * bounds.minus[r]) for r in beyond if r in forward}
    tau = {
        r: at_ray[r] * lead[r] * proving.exp(ray.wide[r] * R + bounds.minus_log_m_minus)
        for r in beyond
        if r not in forward
    }
    return _Masses(o, tau, c, lead)


def _progress(proving: Proving, proof: Certificate, ray: _Ray, masses: _Masses) -> None:
    """Progress, Eq. (8): θ' = θ - Σ τ a·p̄ is positive, and no smaller than the stated number."""
    lost = proving.sum([tau * ray.along[r] for r, tau in masses.tau.items()])
    proving.demand("tube.backward", lost, ray.theta)
    proving.demand("tube.progress", proving.real(proof.progress), ray.theta - lost)


def _sideways(proving: Proving, rows: _Rows, ray: _Ray, bounds: _Bounds, masses: _Masses) -> Any:
    """Sideways motion: e of Eq. (11), which is e_0 and the pull of backward rows."""
    wide = ray.wide
    e = proving.largest([wide[r] for r in rows.support]) * (proving.exp(bounds.mu) - 1) / 2
    e += proving.sum([o * wide[r] for r, o in masses.o.items()]) * proving.exp(bounds.minus_log_m_minus)
    return e + proving.sum([tau * wide[r] for r, tau in masses.tau.items()])


def _step(proving: Proving, proof: Certificate, rows: _Rows, bounds: _Bounds, masses: _Masses) -> Any:
    """One step: its length h, 0 for the flow; plain steps are η‖∇L‖ long, by the bound after the theorem."""
    every = range(len(rows))
    h = proving.real(0 if proof.optimizer is None else proof.optimizer.size)
    if type(proof.optimizer) is NormalizedGD:
        return h
    return h * proving.sum([masses.c[r] * masses.lead[r] * bounds.gap[r] * proving.root(rows.square[r]) for r in every])


class _Growth(NamedTuple):
    """The growth of the tube, and what it leaves to the drift."""

    h: Any
    kappa: Any  # κ = K/(2R)
    sideways: Any  # e²/(A²ψ)
    slow: set[int]  # 𝒮, rows whose o_r is part of K


def _growth(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, masses: _Masses, e: arb, h: arb) -> _Growth:
    """One step, Eqs (12) and (13): K is large enough for its steps and for slow rows."""
    R, psi, progress, K = map(proving.real, (proof.radius, proof.share, proof.progress, proof.growth))
    A2 = proving.square(_spread(proving, rows, ray)) / (4 * (1 - psi))
    e2, R2 = proving.square(e), proving.square(R)
    if h * A2 <= progress:
        # The first case of Eq. (13): A² = θ'/h, which is no smaller.
        growth, sideways = proving.real(0), h * e2 / (progress * psi)
    else:
        growth, sideways = proving.square(h) * A2 / 4, e2 / (A2 * psi)
    slow = {r: o for r, o in masses.o.items() if not o < SLOW * R2 * ray.theta * ray.sigma[r]}
    growth += 2 * proving.log(1 + proving.sum(slow.values())) + (sideways if slow else 0)
    proving.at_most("tube.growth", growth / progress, K)
    return _Growth(h, K / (2 * R), sideways, set(slow))


def _drift(
    proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray, bounds: _Bounds, masses: _Masses, growth: _Growth
) -> None:
    """The theorem: s > 0, d_r > 0 on backward rows, and with I of Eq. (14) ‖q - q*‖² + 2I/θ' ≤ R²."""
    every, h, kappa = range(len(rows)), growth.h, growth.kappa
    R, progress = proving.real(proof.radius), proving.real(proof.progress)
    proving.demand("tube.ahead", proving.largest(kappa * ray.wide[r] / ray.along[r] for r in every), proving.real(1))
    aside = proving.largest(kappa * ray.wide[r] / ray.sigma[r] for r in masses.tau)
    proving.demand("tube.aside", aside, proving.real(1))
    s = proving.smallest(ray.along[r] - ray.wide[r] * kappa for r in every)
    d = {r: ray.sigma[r] - ray.wide[r] * kappa for r in masses.tau}
    fading = {r: o for r, o in masses.o.items() if r not in growth.slow}
    drift = bounds.mu * (1 / s + h)
    drift += proving.sum([o * (1 / ray.sigma[r] + h) for r, o in fading.items()])
    for r, tau in masses.tau.items():
        drift += tau * ray.wide[r] * _backward_integral(proving, R, kappa, d[r], h)
    slowest = proving.smallest([s, *(ray.sigma[r] for r in fading), *d.values()])
    drift += 0 if growth.slow else growth.sideways / 2 * (1 / (2 * slowest) + h)
    at_start = proving.square(proving.real(proof.deviation))
    proving.demand("tube.drift", at_start + 2 * drift / progress, proving.square(R))


def _backward_integral(proving: Proving, R: arb, kappa: arb, d: arb, h: arb) -> Any:
    """Compute i_r of Eq. (14)."""
    if d * R > kappa:
        return R / d + kappa / proving.square(d) + h * R
    return (R + 2 * kappa / (proving.exp(proving.real(1)) * d)) * (2 / d + h)


def _spread(proving: Proving, rows: _Rows, ray: _Ray) -> Any:
    """Compute D of Eq. (11): the largest ‖a_r^⊥ - a_s^⊥‖ of two rows with Δ > 0, or a bound on it."""
    lower = [r for r in range(len(rows)) if rows.delta[r] > 0]
    if len(rows) > PAIRWISE_ROWS:
        # No two rows are farther apart than twice the longest.
        return 2 * proving.largest(ray.wide[r] for r in lower)
    gram = (rows.a @ rows.a.T).whole.tolist()
    squares = [proving.real(0)]
    for r in lower:
        for s in (s for s in lower if s < r):
            square = proving.number(gram[r][r] + gram[s][s] - 2 * gram[r][s], 2 * rows.a.power)
            squares.append(square - proving.square(ray.along[r] - ray.along[s]))
    return proving.root(proving.largest(squares))


# ---- slopes that grow: -2 arcsin √u


def _steep_conditions(proving: Proving, proof: Certificate, rows: _Rows, ray: _Ray) -> None:
    """Slopes that grow, Eqs (15) to (20): the conditions for the arcsine, where all selected tokens score 1."""
    S, delta, real = rows.support, rows.delta, proving.real
    n, zero, one = proof.data.n_inputs, real(0), real(1)
    proving.require("tube.scores_to_one", all(bool(score == 1) for score in rows.score))
    proving.require("tube.scores_to_one", all(bool(x >= 0) and bool(x <= 1) for x in delta))
    of_row = dict(zip(S, ray.multipliers, strict=True))
    of_input = {i: proving.sum(weight for r, weight in of_row.items() if rows.input[r] == i) for i in rows.input}
    carried = {rows.input[r] for r in S}
    limits = [delta[r] / (n * n * weight * of_input[rows.input[r]]) for r, weight in of_row.items()]  # Eq. (16)
    anchor = _anchor(proving, proof, rows, ray, limits)
    gap, epsilon, plus, _ = _shares(proving, proof, rows, ray, anchor)

    R, P_0 = real(proof.radius), real(proof.along)
    K = real(proof.growth)
    kappa = K / (2 * R)
    others = [r for r in range(len(rows)) if r not in S]
    # Eq. (17): what other rows of an input with support add to its E_i, and how fast that falls
    added, rate = dict.fromkeys(carried, zero), []
    for r in others:
        i = rows.input[r]
        if i not in carried or not delta[r] > 0:
            continue
        mean = [of_row[s] / of_input[i] if rows.input[s] == i else zero for s in S]
        square = proving.dot(mean, [proving.dot(mean, rows.gram[s]) for s in S])
        square += rows.square[r] - 2 * proving.dot(mean, rows.gram[r]) - proving.square(ray.sigma[r])
        apart = proving.root(square)
        share = delta[r] / proving.square(n * of_input[i])
        added[i] += share * proving.exp(apart * R - anchor.level - ray.sigma[r] * P_0 - anchor.at[r])
        rate.append(ray.sigma[r] - apart * kappa)
    lost = [epsilon[r] * plus[r] / delta[r] for r in S]
    direct = proving.largest(
        -proving.log(1 - epsilon[r]) / 2 - proving.log(1 - part) for r, part in zip(S, lost, strict=True)
    )
    most = proving.largest(added.values())
    mu = direct + most / 2  # -log m₋
    # Eq. (18): bounds on the roots of single terms, and τ_r of rows beyond the margin
    sizes = [
        proving.largest([proving.root(delta[r]), epsilon[r] * proving.root(plus[r])]) / n for r in range(len(rows))
    ]
    at_ray = {r: (ray.wide[r] * R - anchor.level - ray.sigma[r] * P_0 - anchor.at[r]) / 2 + mu for r in others}
    tau = {r: ray.theta * sizes[r] * proving.exp(at_ray[r]) for r in others}
    masses = _Masses({}, tau, [], [])
    _progress(proving, proof, ray, masses)
    e = proving.sum(tau[r] * ray.wide[r] for r in others)
    h = real(0 if proof.optimizer is None else proof.optimizer.size)
    if type(proof.optimizer) is not NormalizedGD:
        h *= proving.sum(size * proving.root(gap[r]) * proving.root(rows.square[r]) for r, size in enumerate(sizes))
    growth = _growth(proving, proof, rows, ray, masses, e, h)
    # Eqs (19) and (20): the drift
    proving.demand("tube.ahead", proving.largest(kappa * ray.wide[r] / ray.along[r] for r in range(len(rows))), one)
    proving.demand("tube.aside", proving.largest(kappa * ray.wide[r] / ray.sigma[r] for r in others), one)
    proving.require("tube.beside_support", all(bool(fall > 0) for fall in rate))
    s = proving.smallest(ray.along[r] - ray.wide[r] * kappa for r in range(len(rows)))
    drift = 2 * direct * (1 / s + h)
    if rate:
        drift += most * (1 / proving.smallest(rate) + h)
    d = {r: (ray.sigma[r] - ray.wide[r] * kappa) / 2 for r in others}
    for r in others:
        drift += tau[r] * ray.wide[r] * _backward_integral(proving, R, kappa, d[r], h)
    if others:
        drift += growth.sideways / 2 * (1 / (2 * proving.smallest(d.values())) + h)
    at_start, progress = proving.square(real(proof.deviation)), real(proof.progress)
    proving.demand("tube.drift", at_start + 2 * drift / progress, proving.square(R))
