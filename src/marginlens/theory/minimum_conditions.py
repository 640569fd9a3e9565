"""The conditions of X Theorem 2 in intervals; see the end of docs/proofs/attraction.md. It shares no code with the search for minima."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from marginlens.losses.margin import Exponential, Logistic, Loss
from marginlens.theory.intervals import Exact, Proving, slope_in

if TYPE_CHECKING:
    from mpmath.ctx_iv import MPIntervalContext, ivmpf

    from marginlens.theory.checks import Check
    from marginlens.theory.finite_minimum import MinimumCertificate


def minimum_conditions(proof: MinimumCertificate) -> list[Check]:
    """Check the theorem's conditions on a certificate whose fields are valid, up to the first inequality that does not hold."""
    proving = Proving()
    with proving.until_refuted():
        _check(proving, proof)
    return proving.checks


def _check(proving: Proving, proof: MinimumCertificate) -> None:
    """Check that λ_min(∇²L(p_0)) - r M is at least the curvature m, and that δ + 2‖∇L(p_0)‖/m is at most r."""
    iv, n, m = proving.iv, proof.data.n_inputs, range(proof.data.d_key)
    inputs = [_derivatives(proving, proof, tokens) for tokens in _tokens(proving, proof)]
    third = proving.sum(each.third for each in inputs) / n
    gradient = [proving.sum(each.gradient[k] for each in inputs) / n for k in m]
    curvature, radius = iv.mpf(proof.curvature), iv.mpf(proof.radius)
    shift = curvature + radius * third
    matrix = [[proving.sum(each.hessian[max(k, j)][min(k, j)] for each in inputs) / n for j in m] for k in m]
    for k in m:
        matrix[k][k] -= shift
    upper, _ = proving.eliminated("minimum.convex", matrix)
    proving.demand("minimum.convex", curvature, curvature + proving.smallest(upper[k][k] for k in m))
    size = iv.sqrt(proving.dot(gradient, gradient))
    proving.demand("minimum.inside", iv.mpf(proof.tolerance) + 2 * size / curvature, radius)


class _Tokens(NamedTuple):
    """The tokens of an input, in exact numbers."""

    gamma: list[Any]
    gaps: list[Any]  # between the largest logit and each
    rows: list[list[Any]]  # keys less the key of the largest logit
    square: list[Any]  # of the distances of all pairs of keys
    best: int


def _tokens(proving: Proving, proof: MinimumCertificate) -> list[_Tokens]:
    data, found = proof.data, []
    keys, scores = Exact.of(data.K), Exact.of(data.X) @ Exact.of(proof.head)
    logits = keys @ Exact.of(proof.point)
    for i, count in enumerate(data.lengths.tolist()):
        best = max(range(count), key=lambda t: logits.whole[i, t])
        gamma = [int(data.y[i]) * proving.number(scores, i, t) for t in range(count)]
        gaps = [proving.number(Exact(logits.whole[i, best] - logits.whole[i, t], logits.power)) for t in range(count)]
        differences = Exact(keys.whole[i, :count] - keys.whole[i, best], keys.power)
        rows = [[proving.number(differences, t, k) for k in range(data.d_key)] for t in range(count)]
        pairs = (keys.whole[i, s] - keys.whole[i, t] for s in range(count) for t in range(s))
        square = [proving.number(Exact(pair @ pair, 2 * keys.power)) for pair in pairs]
        found.append(_Tokens(gamma, gaps, rows, square, best))
    return found


class _Derivatives(NamedTuple):
    """Derivatives of the loss of one input at the point, and a bound on third derivatives along unit vectors in the ball."""

    gradient: list[Any]
    hessian: list[list[Any]]  # the lower triangle
    third: Any


def _derivatives(proving: Proving, proof: MinimumCertificate, tokens: _Tokens) -> _Derivatives:
    iv, gamma, rows = proving.iv, tokens.gamma, tokens.rows
    every, m = range(len(gamma)), range(proof.data.d_key)
    weights = [iv.exp(-gap) for gap in tokens.gaps]
    mass = proving.sum(weights)
    shares = [weight / mass for weight in weights]
    mean = proving.dot(shares, gamma)
    centre = [proving.sum(shares[t] * rows[t][k] for t in every) for k in m]
    moved = [[rows[t][k] - centre[k] for k in m] for t in every]
    pull = [shares[t] * (gamma[t] - mean) for t in every]
    pulled = [[pull[t] * moved[t][k] for t in every] for k in m]
    slopes = [proving.sum(pulled[k]) for k in m]
    bent = [[proving.sum(pulled[k][t] * moved[t][j] for t in every) for j in range(k + 1)] for k in m]
    first, second = _loss_derivatives(iv, proof.loss, mean)
    hessian = [[first * bent[k][j] + second * slopes[k] * slopes[j] for j in range(k + 1)] for k in m]

    away = [iv.sqrt(proving.dot(row, row)) for row in rows]
    radius = iv.mpf(proof.radius)
    near = proving.sum(iv.exp(away[t] * radius - tokens.gaps[t]) for t in every if t != tokens.best)
    eps, D = iv.mpf(min(near.b, 1)), iv.sqrt(proving.largest(tokens.square))
    span = proving.largest(gamma) - proving.smallest(gamma)
    bounds = _loss_bounds(iv, proof.loss, proving.smallest(gamma))
    slope = 2 * eps * span * D
    third = bounds[0] * 7 / 2 * eps * span * D**3 + 3 * bounds[1] * slope**2 * D + bounds[2] * slope**3
    return _Derivatives([first * slope for slope in slopes], hessian, third)


def _loss_derivatives(iv: MPIntervalContext, loss: Loss, margin: ivmpf) -> tuple[Any, Any]:
    """Return ℓ' and ℓ'' at a margin."""
    slope = slope_in(iv, loss, margin)
    if type(loss) is Logistic:
        return -slope, slope * (1 - slope)
    return -slope, slope if type(loss) is Exponential else iv.mpf(0)


def _loss_bounds(iv: MPIntervalContext, loss: Loss, low: ivmpf) -> tuple[Any, Any, Any]:
    """Bound |ℓ'|, |ℓ''| and |ℓ'''| for margins from `low` on."""
    slope = slope_in(iv, loss, low)
    if type(loss) is Logistic:
        return slope, iv.mpf(1) / 4, iv.mpf(1) / 10
    return (slope,) * 3 if type(loss) is Exponential else (slope, iv.mpf(0), iv.mpf(0))
