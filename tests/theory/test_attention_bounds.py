"""Bounds on entropy and the softmax's sensitivity: attained, and never beaten by those who try."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import entr, softmax

from marginlens.theory import attention_sensitivity, entropy_floor, head_entropy_floor
from refusals import refused
from tolerances import ROUNDING


def entropy(logits):
    return float(np.sum(entr(softmax(logits))))


@pytest.mark.statement("X E1")
@pytest.mark.parametrize("n_tokens", [2, 3, 7, 20])
@pytest.mark.parametrize("sigma", [0.0, 0.3, 2.0, 8.0])
def test_no_logits_of_this_size_have_less_entropy(n_tokens, sigma):
    floor = entropy_floor(sigma, n_tokens)
    one_ahead = np.eye(n_tokens)[0] - 1.0 / n_tokens
    assert entropy(sigma * one_ahead / np.linalg.norm(one_ahead)) == pytest.approx(floor, rel=1e-12, abs=1e-15)
    rng = np.random.default_rng(n_tokens)

    def tried(x):
        centred = x - x.mean()
        return entropy(sigma * centred / max(np.linalg.norm(centred), 1e-12))

    for _ in range(20):
        assert minimize(tried, rng.normal(size=n_tokens)).fun >= floor - 1e-9


@pytest.mark.statement("X E1")
@pytest.mark.parametrize("size", [0.01, 0.5, 2.0])
def test_the_sharpness_bound_is_never_exceeded_and_attained(size):
    rng = np.random.default_rng(3)
    W, n_tokens = size * rng.normal(size=(4, 5)), 6
    floor = head_entropy_floor(W, n_tokens, 1.5, 0.7)
    s = np.linalg.svd(W, compute_uv=False)
    attained = [
        entropy(np.where(np.arange(n_tokens) < k, 1.0, -1.0) * 1.5 * 0.7 * s[0]) for k in range(1, n_tokens)
    ]  # tokens at ±r along the image of the query
    assert min(attained) == pytest.approx(floor, rel=1e-12, abs=ROUNDING)
    assert floor >= entropy_floor(np.sqrt(n_tokens) * 1.5 * 0.7 * s[0], n_tokens) - 1e-12

    def tried(flat):
        X, z = flat[:30].reshape(6, 5), flat[30:]
        X = 1.5 * X / np.linalg.norm(X, axis=1, keepdims=True)
        return entropy(X @ W.T @ (0.7 * z / np.linalg.norm(z)))

    best = min(minimize(tried, rng.normal(size=34)).fun for _ in range(10))
    assert floor - 1e-9 <= best
    assert best < np.log(6)


def brute_force(p):
    """max ‖J d‖₁ over d in {-1, 1}^T, the corners of the ball of ℓ∞."""
    J = np.diag(p) - np.outer(p, p)
    return max(np.abs(J @ np.array(signs)).sum() for signs in product((-1.0, 1.0), repeat=len(p)))


@pytest.mark.statement("X E2")
@pytest.mark.parametrize("n_tokens", [1, 2, 5, 9])
def test_the_sensitivity_is_the_norm_of_the_derivative(n_tokens):
    rng = np.random.default_rng(n_tokens)
    for scale in (0.1, 1.0, 4.0, 30.0):
        p = softmax(scale * rng.normal(size=n_tokens))
        found = attention_sensitivity(p)
        assert found.lower == pytest.approx(brute_force(p), rel=1e-9, abs=1e-15)
        assert found.lower == found.upper
        change = rng.uniform(-1.0, 1.0, size=(200, n_tokens))
        moved = np.abs(change * p - np.outer(change @ p, p)).sum(axis=1)
        assert moved.max() <= found.upper + 1e-12


@pytest.mark.statement("X E2")
def test_bounds_of_long_inputs_bracket_closely():
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 3.0):
        p = softmax(scale * rng.normal(size=500))
        found = attention_sensitivity(p)
        assert 0.0 < found.lower <= found.upper <= 1.0
        subsets = rng.random((2000, 500)) < 0.5
        masses = subsets @ p
        assert np.max(4.0 * masses * (1.0 - masses)) <= found.upper + 1e-12
        assert found.upper - found.lower < 1e-4


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: entropy_floor(-1.0, 3), "sigma"),
        (lambda: entropy_floor(1.0, 0), "n_tokens"),
        (lambda: attention_sensitivity([0.5, 0.2]), "p"),
        (lambda: head_entropy_floor(np.eye(2), 3, np.inf), "token_norm"),
    ],
)
def test_invalid_attention_is_refused(call, argument):
    with refused(argument):
        call()
