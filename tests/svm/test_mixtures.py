"""Attention that mixes several tokens of an input: the direction and the finite part of p and W, against oracles and a training run."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize

import marginlens as ml
import tolerances
from margin_oracles import by_quadprog
from marginlens.svm import Status, att_svm, mixture_svm

SETS = [[0, 2], [1], [0, 1, 3]]


def problem(seed: int, d: int = 8) -> tuple[ml.TokenDataset, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = ml.TokenDataset(rng.standard_normal((3, 4, d)), np.ones(3))
    s = np.zeros((3, 4))
    for i, tokens in enumerate(SETS):
        s[i, tokens] = rng.dirichlet(np.ones(len(tokens)))
    return data, s, rng.standard_normal((3, d))


def attention(data: ml.TokenDataset, x: np.ndarray, z: np.ndarray | None) -> np.ndarray:
    logits = data.X @ x if z is None else np.einsum("itd,qd,iq->it", data.X, x, z)
    weights = np.exp(logits + data.offsets - (logits + data.offsets).max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.statement("D SVMeq")
@pytest.mark.parametrize("of_matrix", [False, True], ids=["p", "W"])
@pytest.mark.parametrize("seed", range(5))
def test_direction_and_finite_part_are_those_of_other_solvers(of_matrix, seed):
    """Every pair of a token inside and one outside is a row here, and neighbours inside a set are equal: other rows than the library's."""
    data, s, z = problem(seed)

    def row(i, t, u):
        k = data.X[i, t] - data.X[i, u]
        return np.outer(z[i], k).ravel() if of_matrix else k

    inside = [(i, t, u) for i, tokens in enumerate(SETS) for t, u in pairwise(tokens)]
    across = [(i, t, u) for i, tokens in enumerate(SETS) for t in tokens for u in set(range(4)) - set(tokens)]
    C, A = (np.array([row(*pair) for pair in pairs]) for pairs in (inside, across))
    found = mixture_svm(data, SETS, s, query=z if of_matrix else None)
    oracle = by_quadprog(A, np.ones(len(A)), C)
    assert (oracle is None) == (found.status is Status.INFEASIBLE)
    if of_matrix:  # separable because there are more unknowns than rows
        assert oracle is not None
    if oracle is not None:
        error = np.abs(found.x.ravel() - oracle).max()
        assert error <= tolerances.SVM_ORACLE * np.linalg.norm(oracle)
        assert found.kkt_residual() <= tolerances.SVM_KKT
    goals = np.array([np.log(s[i, t] / s[i, u]) for i, t, u in inside])
    shortest = minimize(
        lambda x: x @ x / 2.0,
        np.zeros(C.shape[1]),
        jac=lambda x: x,
        constraints={"type": "eq", "fun": lambda x: C @ x - goals, "jac": lambda x: C},
        method="SLSQP",
        options={"ftol": 1e-15},
    )
    assert np.abs(found.finite.ravel() - shortest.x).max() <= tolerances.SVM_INTERIOR_POINT


@pytest.mark.statement("D SVMeq")
@pytest.mark.parametrize("norm", [ml.L2(), ml.Nuclear()], ids=["Frobenius", "Nuclear"])
def test_attention_of_finite_part_and_direction_has_the_given_limit(norm):
    """W^fin + R W^dir has s on the sets in the limit, and 1 - s on them falls like e^(-R)."""
    data, s, z = problem(0)
    limit = mixture_svm(data, SETS, s, query=z, norm=norm)
    assert limit.status is Status.OPTIMAL
    assert limit.residual <= tolerances.CONDITIONED
    np.testing.assert_allclose(attention(data, limit.at(40.0), z), s, rtol=0.0, atol=tolerances.CONDITIONED)
    outside = [1.0 - attention(data, limit.at(R), z)[s > 0].sum() / 3 for R in (8.0, 9.0)]
    assert np.log(outside[0] / outside[1]) == pytest.approx(1.0, rel=0.05, abs=tolerances.ROUNDING)
    wrong = attention(data, 40.0 * limit.x, z)  # without the finite part every set has equal weights
    assert np.abs(wrong - s).max() > 0.01
    equal = mixture_svm(data, SETS, query=z, norm=norm)
    assert not equal.finite.any()
    np.testing.assert_array_equal(equal.x, limit.x)


def test_offsets_of_logits_move_the_finite_part_alone():
    data, s, z = problem(3)
    offsets = np.random.default_rng(4).normal(size=(3, 4))
    moved = ml.TokenDataset(data.X, np.ones(3), offsets=offsets)
    limit = mixture_svm(moved, SETS, 5.0 * s, query=z)  # a common factor changes nothing
    np.testing.assert_allclose(attention(moved, limit.at(40.0), z), s, rtol=0.0, atol=tolerances.CONDITIONED)
    np.testing.assert_array_equal(limit.x, mixture_svm(data, SETS, s, query=z).x)


@pytest.mark.statement("D SVMeq")
def test_a_matrix_is_decomposed_and_a_solution_survives_its_file(tmp_path):
    data, s, z = problem(1)
    limit = mixture_svm(data, SETS, s, query=z)
    W = limit.at(7.0)
    parts = limit.split(W)
    np.testing.assert_allclose(parts.finite + parts.growing, W, rtol=0.0, atol=tolerances.ROUNDING * np.abs(W).max())
    assert limit.finite_error(W) <= tolerances.CONDITIONED
    assert limit.correlation(W) == pytest.approx(1.0, abs=tolerances.ROUNDING, rel=0.0)
    limit.save(tmp_path / "mixture.npz")
    read = ml.MarginSolution.load(tmp_path / "mixture.npz")
    assert isinstance(read, ml.svm.MixtureSolution)
    np.testing.assert_array_equal(read.at(2.0), limit.at(2.0))


@pytest.mark.statement("D SVMeq", "D W-SVM")
def test_single_tokens_equal_att_svm():
    data, _, z = problem(2)
    limit = mixture_svm(data, [[0], [1], [3]], query=z)
    assert not limit.finite.any()
    np.testing.assert_array_equal(limit.x, att_svm(data, [0, 1, 3], query=z).x)


@pytest.mark.statement("D SVMeq")
def test_equations_that_contradict_each_other_and_sets_that_no_p_separates_are_told():
    """Two inputs with the same two keys cannot have different shares; a token between those of its set is never below both."""
    keys = [[[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]] * 2
    found = mixture_svm(ml.TokenDataset(keys, [1, 1]), [[0, 1], [0, 1]], [[0.7, 0.3, 0.0], [0.2, 0.8, 0.0]])
    assert found.residual > 0.5
    between = ml.TokenDataset([[[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]], [1])
    found = mixture_svm(between, [[0, 1]])
    assert found.status is Status.INFEASIBLE
    assert found.certificate_residual() <= tolerances.SVM_FARKAS


@pytest.mark.statement("D SVMeq")
@pytest.mark.parametrize("seed", [0, 1])
def test_descent_with_a_nonlinear_head_tends_to_the_mixture(seed):
    """ψ(z) = 1 - 4 z_0² - z_1 is largest at a mixture of the first input's tokens 0 and 1, and at token 2 of the second."""
    sets, share = [[0, 1], [2]], 0.7
    rng = np.random.default_rng([13, seed])
    K, X = rng.standard_normal((2, 4, 6)), np.zeros((2, 4, 2))
    X[:, :, 1] = rng.uniform(0.5, 1.0, (2, 4))
    X[0, :2], X[1, 2] = [[1.0 - share, 0.0], [-share, 0.0]], 0.0
    limit = mixture_svm(ml.TokenDataset(X, [1, 1], K=K), sets, [[share, 1.0 - share, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    assert limit.status is Status.OPTIMAL
    p, seen = np.zeros(6), []
    for step in range(40_000):
        logits = K @ p
        s = np.exp(logits - logits.max(axis=1, keepdims=True))
        s /= s.sum(axis=1, keepdims=True)
        z = np.einsum("it,itd->id", s, X)
        slope = -1.0 / (1.0 + np.exp(1.0 - 4.0 * z[:, 0] ** 2 - z[:, 1])) / 2.0  # of log(1 + e^-ψ)
        scores = -8.0 * z[:, :1] * X[:, :, 0] - X[:, :, 1]
        pull = s * (scores - np.sum(s * scores, axis=1, keepdims=True))
        p = p - 2.0 * np.einsum("i,it,itd->d", slope, pull, K)
        if step in (100, 39_999):
            seen.append((1.0 - limit.correlation(p), limit.finite_error(p)))
    (early, early_error), (late, late_error) = seen
    assert late < 0.02
    assert late < 0.6 * early
    assert late_error < 1e-3
    assert late_error < early_error
    # the control: the direction that selects one token of each set
    assert ml.correlation(p, att_svm(ml.TokenDataset(X, [1, 1], K=K), [0, 2]).x) < 0.9
