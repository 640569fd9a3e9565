"""Steepest directions of attention risks in every norm against an oracle of 80 digits, at norms of the weights up to 1e4.

The oracle differentiates the definition, diag(s) - s sᵀ and all, with so many digits that what cancels leaves 80.
"""

import mpmath
import numpy as np
import pytest

import marginlens as ml
from marginlens.norms.choice import direction_of

RTOL = 1e-10
NEWTON_STEPS = 200  # many times what a scaled Newton iteration needs
N_INPUTS, N_TOKENS, D = 3, 4, 4


def problem():
    rng = np.random.default_rng(7)
    X = rng.normal(size=(N_INPUTS, N_TOKENS, D))
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    z = rng.normal(size=(N_INPUTS, D))
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    data = ml.TokenDataset(X, [1.0, -1.0, 1.0])
    return data, rng.normal(size=D), z, rng


def digits(logits):
    """80 beyond what attention spans."""
    return 80 + int(np.ptp(logits, axis=-1).max() / 2.0)


def exact(array):
    return mpmath.matrix(np.asarray(array).tolist())


def exact_gradients(data, v, vectors):
    """(n_inputs) columns: the gradient of the logistic risk in the weights p_i of each input."""
    gradients = []
    for X, y, p in zip(data.X, data.y, vectors, strict=True):
        X, scores, logits = exact(X), exact(X) * exact(v), exact(X) * p
        powers = [mpmath.exp(logit) for logit in logits]
        s = mpmath.matrix([power / mpmath.fsum(powers) for power in powers])
        margin = mpmath.mpf(float(y)) * (s.T * scores)[0]
        slope = -mpmath.mpf(float(y)) / (1 + mpmath.exp(margin)) / len(data.y)
        gradients.append(slope * X.T * ((mpmath.diag(s) - s * s.T) * scores))
    return gradients


def exact_steepest(norm, left, right):
    """The steepest direction of Σ_i left_i right_iᵀ; `left` is [1] for a vector.

    Terms that are right to 80 digits give sums that are, but the small singular values of a sum need as many more as it spans.
    """
    if isinstance(norm, ml.Spectral):
        return exact_polar(left, right)
    with mpmath.workdps(80):
        return exact_steepest_of_sum(norm, left, right)


def exact_steepest_of_sum(norm, left, right):
    G = mpmath.matrix(len(left[0]), len(right[0]))
    for a, b in zip(left, right, strict=True):
        G += a * b.T
    flat = list(G)
    if isinstance(norm, ml.L2):
        return G / mpmath.sqrt(mpmath.fsum(g * g for g in flat))
    if isinstance(norm, ml.L1):
        k = max(range(len(flat)), key=lambda j: abs(flat[j]))
        return mpmath.matrix(G.rows, G.cols) + mpmath.matrix(
            [[mpmath.sign(G[i, j]) if i * G.cols + j == k else 0 for j in range(G.cols)] for i in range(G.rows)]
        )
    if isinstance(norm, ml.LInf):
        return G.apply(mpmath.sign)
    if isinstance(norm, ml.Lp):
        p = mpmath.mpf(norm.p)
        dual = mpmath.fsum(abs(g) ** (p / (p - 1)) for g in flat) ** ((p - 1) / p)
        return G.apply(lambda g: mpmath.sign(g) * (abs(g) / dual) ** (1 / (p - 1)))
    if isinstance(norm, ml.MaxRow):
        return mpmath.matrix([list(G[i, :] / mpmath.norm(G[i, :])) for i in range(G.rows)])
    u = G * mpmath.ones(G.cols, 1)
    for _ in range(300):  # power iteration: the largest singular value is not close to the second
        u = G * (G.T * u)
        u /= mpmath.norm(u)
    v = G.T * u
    return u * (v / mpmath.norm(v)).T


def exact_polar(left, right):
    """The polar factor by Newton's iteration."""
    (QL, RL), (QR, RR) = (mpmath.qr(columns(side), mode="skinny") for side in (left, right))
    core = RL * RR.T
    for _ in range(NEWTON_STEPS):
        inverse = (core**-1).T
        scale = mpmath.sqrt(mpmath.mnorm(inverse, "f") / mpmath.mnorm(core, "f"))
        following = (scale * core + inverse / scale) / 2
        change, core = mpmath.mnorm(following - core, "f"), following
        if change <= mpmath.mpf(10) ** -30:
            break
    assert change <= mpmath.mpf(10) ** -30
    return QL * core * QR.T


def columns(vectors):
    return mpmath.matrix([[vector[k] for vector in vectors] for k in range(len(vectors[0]))])


def compare(norm, found, exact_direction, shape):
    expected = np.array(exact_direction.tolist(), dtype=float).reshape(shape)
    assert np.abs(found - expected).max() <= RTOL * np.abs(expected).max()
    if isinstance(norm, ml.L1 | ml.LInf):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_directions_of_p_agree_with_80_digits(size):
    data, v, _, rng = problem()
    p = rng.normal(size=D)
    p *= size / np.linalg.norm(p)
    gradient = ml.AttentionRisk(data, v).gradient(p)
    with mpmath.workdps(digits(data.X @ p)):
        rights = exact_gradients(data, v, [exact(p)] * N_INPUTS)
        for norm in (ml.L1(), ml.L2(), ml.LInf(), ml.Lp(1.75), ml.Lp(3)):
            expected = exact_steepest(norm, [mpmath.matrix([1])] * N_INPUTS, rights)
            compare(norm, direction_of(norm, gradient), expected, (D,))


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
def test_directions_of_matrices_agree_with_80_digits(size):
    data, v, z, rng = problem()
    W = rng.normal(size=(D, D))
    W *= size / np.linalg.norm(W)
    gradient = ml.AttentionRisk(data, v).as_matrix(z).gradient(W)
    norms = ml.L1(), ml.LInf(), ml.Lp(1.75), ml.Lp(3), ml.Frobenius(), ml.Spectral(), ml.Nuclear(), ml.MaxRow()
    with mpmath.workdps(digits(np.einsum("itd,qd,iq->it", data.X, W, z))):
        lefts = [exact(query) for query in z]
        rights = exact_gradients(data, v, [exact(W).T * query for query in lefts])
        for norm in norms:
            compare(norm, direction_of(norm, gradient), exact_steepest(norm, lefts, rights), (D, D))
