"""The conditions of X Theorem 2 in intervals; see the end of docs/proofs/attraction.md. It shares no code with the search for minima."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from marginlens.losses.margin import Exponential, Logistic, Loss
from marginlens.theory.intervals import Exact, Proving, slope_in

if TYPE_CHECKING:
    from flint import arb

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
    n, m = proof.data.n_inputs, range(proof.data.d_key)
    inputs = [_derivatives(proving, proof, tokens) for tokens in _tokens(proving, proof)]
    third = proving.sum(each.third for each in inputs) / n
    gradient = [proving.sum(each.gradient[k] for each in inputs) / n for k in m]
    curvature, radius = proving.real(proof.curvature), proving.real(proof.radius)
    shift = curvature + radius * third
    matrix = [[proving.sum(each.hessian[max(k, j)][min(k, j)] for each in inputs) / n for j in m] for k in m]
    for k in m:
        matrix[k][k] -= shift
    upper, _ = proving.eliminated("minimum.convex", matrix)
    proving.demand("minimum.convex", curvature, curvature + proving.smallest(upper[k][k] for k in m))
    size = proving.root(proving.dot(gradient, gradient))
    proving.demand("minimum.inside", proving.real(proof.tolerance) + 2 * size / curvature, radius)


class _Tokens(NamedTuple):
    """The tokens of an input, in exact numbers."""

    gamma: list[Any]
    gaps: list[Any]  # between the largest logit and each
    rows: list[list[Any]]  # keys less the key of the largest logit
    square: list[Any]  # of the distances of all pairs of keys
    best: int


def _tokens(proving: Proving, proof: MinimumCertificate) -> list[_Tokens]:
    data, inputs = proof.data, []
    point, head = Exact.of(proof.point), Exact.of(proof.head)
    for i, count in enumerate(data.lengths.tolist()):
        keys, scores = Exact.of(data.K[i, :count]), Exact.of(data.X[i, :count]) @ head
        logits = keys @ point
        best = max(range(count), key=lambda t: logits.whole[t, 0])
        gamma = [int(data.y[i]) * score for [score] in proving.numbers(scores)]
        gaps = [gap for [gap] in proving.numbers(logits.differences((best, t) for t in range(count)))]
        rows = proving.numbers(keys.differences((t, best) for t in range(count)))
        gram, power = (keys @ keys.T).whole.tolist(), 2 * keys.power
        pairs = ((s, t) for s in range(count) for t in range(s))
        square = [proving.number(gram[s][s] + gram[t][t] - 2 * gram[s][t], power) for s, t in pairs]
        inputs.append(_Tokens(gamma, gaps, rows, square, best))
    return inputs


class _Derivatives(NamedTuple):
    """Derivatives of the loss of one input at the point, and a bound on third derivatives along unit vectors in the ball."""

    gradient: list[Any]
    hessian: list[list[Any]]  # the lower triangle
    third: Any


def _derivatives(proving: Proving, proof: MinimumCertificate, tokens: _Tokens) -> _Derivatives:
    gamma, rows = tokens.gamma, tokens.rows
    every, m = range(len(gamma)), range(proof.data.d_key)
    weights = [proving.exp(-gap) for gap in tokens.gaps]
    mass = proving.sum(weights)
    shares = [weight / mass for weight in weights]
    mean = proving.dot(shares, gamma)
    [centre] = proving.product([shares], rows)
    moved = [[rows[t][k] - centre[k] for k in m] for t in every]
    pull = [shares[t] * (gamma[t] - mean) for t in every]
    pulled = [[pull[t] * moved[t][k] for t in every] for k in m]
    slopes = [proving.sum(pulled[k]) for k in m]
    bent = proving.product(pulled, moved)
    first, second = _loss_derivatives(proving, proof.loss, mean)
    hessian = [[first * bent[k][j] + second * slopes[k] * slopes[j] for j in range(k + 1)] for k in m]

    away = [proving.root(proving.dot(row, row)) for row in rows]
    radius = proving.real(proof.radius)
    near = proving.sum(proving.exp(away[t] * radius - tokens.gaps[t]) for t in every if t != tokens.best)
    # A share is at most one.
    eps = near if near < 1 else proving.real(1)
    D = proving.root(proving.largest(tokens.square))
    span = proving.largest(gamma) - proving.smallest(gamma)
    bounds = _loss_bounds(proving, proof.loss, proving.smallest(gamma))
    slope = 2 * eps * span * D
    slope2, D3 = proving.square(slope), proving.square(D) * D
    third = bounds[0] * 7 / 2 * eps * span * D3 + 3 * bounds[1] * slope2 * D + bounds[2] * slope2 * slope
    return _Derivatives([first * slope for slope in slopes], hessian, third)


def _loss_derivatives(proving: Proving, loss: Loss, margin: arb) -> tuple[Any, Any]:
    """Return ℓ' and ℓ'' at a margin."""
    slope = slope_in(proving, loss, margin)
    if type(loss) is Logistic:
        return -slope, slope * (1 - slope)
    return -slope, slope if type(loss) is Exponential else proving.real(0)


def _loss_bounds(proving: Proving, loss: Loss, low: arb) -> tuple[Any, Any, Any]:
    """Bound |ℓ'|, |ℓ''| and |ℓ'''| for margins from `low` on."""
    slope = slope_in(proving, loss, low)
    if type(loss) is Logistic:
        return slope, proving.real(1) / 4, proving.real(1) / 10
    return (slope,) * 3 if type(loss) is Exponential else (slope, proving.real(0), proving.real(0))
