"""ATT-SVM, its relaxation (A Eq. (10)) and the head's SVM: closed forms, batches, and what the problems refuse."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

import tolerances
from marginlens.data import TokenDataset
from marginlens.svm import Status, att_svm, label_svm, relaxed_svm

CORNER = TokenDataset([[[1.0, 0.0], [0.0, 0.0]], [[-1.0, 1.0], [0.0, 0.0]]], [1, 1])
ROWS, LOWER = np.ones((2, 3)), np.ones(2)


def problem(seed: int, n: int = 3, T: int = 4, d: int = 8) -> tuple[TokenDataset, np.ndarray]:
    rng = np.random.default_rng(seed)
    return TokenDataset(rng.normal(size=(n, T, d)), np.ones(n)), rng.integers(T, size=n)


@pytest.mark.statement("A Eq. (10)")
def test_a_corner_has_its_drawn_solution() -> None:
    """p₁ ≥ 1 and p₂ − p₁ ≥ 1 or 0: the second input pulls p to (1, 2) in the support set and to (1, 1) outside it."""
    np.testing.assert_allclose(relaxed_svm(CORNER, [0, 0], [0, 1]).x, [1.0, 2.0], rtol=tolerances.ROUNDING, atol=0.0)
    np.testing.assert_allclose(relaxed_svm(CORNER, [0, 0], [0]).x, [1.0, 1.0], rtol=tolerances.ROUNDING, atol=0.0)


@pytest.mark.statement("A Eq. (10)")
@pytest.mark.parametrize("support", [[0], [1, 2], [0, 1, 2]])
def test_agrees_with_nonnegative_least_squares(support: list[int]) -> None:
    for seed in range(20):
        data, selected = problem(seed)
        ours = relaxed_svm(data, selected, support)
        triples = [(i, a, t) for i, a in enumerate(selected) for t in range(data.n_tokens) if t != a]
        rows = np.array([data.K[i, a] - data.K[i, t] for i, a, t in triples])
        stacked = np.vstack([rows.T, [float(i in support) for i, _, _ in triples]])
        target = np.eye(len(stacked))[-1]
        residual = stacked @ nnls(stacked, target)[0] - target
        expected = -residual[:-1] / residual[-1]
        np.testing.assert_allclose(ours.x, expected, rtol=0.0, atol=tolerances.SVM_ORACLE * np.linalg.norm(expected))
        assert ours.kkt_residual() < tolerances.SVM_KKT


@pytest.mark.statement("A Eq. (10)")
def test_fewer_support_vectors_never_shrink_the_margin() -> None:
    data, selected = problem(1)
    everything = relaxed_svm(data, selected, range(3))
    np.testing.assert_array_equal(everything.x, att_svm(data, selected).x)
    margins = [everything.margin] + [relaxed_svm(data, selected, s).margin for s in ([0, 1], [0])]
    assert margins == sorted(margins)
    assert margins[0] < margins[-1]
    assert relaxed_svm(data, selected, []).status is Status.TRIVIAL


def test_batches_and_ragged_inputs_equal_single_problems() -> None:
    rng = np.random.default_rng(3)
    tokens = [[rng.normal(size=(length, 9)) for length in lengths] for lengths in ((4, 2, 3), (1, 4, 2))]
    batch = TokenDataset(tokens, np.ones((2, 3)))
    selected = np.array([[3, 0, 1], [0, 2, 1]])
    mask = np.array([[True, False, True], [True, True, False]])
    many = relaxed_svm(batch, selected, mask)
    for j in range(2):
        single = relaxed_svm(TokenDataset(tokens[j], np.ones(3)), selected[j], np.flatnonzero(mask[j]))
        np.testing.assert_allclose(many[j].x, single.x, rtol=0.0, atol=tolerances.SVM_DISTANCE)
        assert many.lower[j][many.pairs[j, :, 0] < 0].max() == 0.0
    for shared in ([1], [False, True, False]):
        np.testing.assert_allclose(
            relaxed_svm(batch, selected, shared)[1].x,
            relaxed_svm(batch[1], selected[1], [1]).x,
            rtol=0.0,
            atol=tolerances.SVM_DISTANCE,
        )


def test_label_svm_is_least_distance_on_signed_points() -> None:
    rng = np.random.default_rng(12)
    R, y = rng.normal(size=(4, 5, 30)), np.where(rng.random((4, 5)) < 0.5, -1.0, 1.0)
    batch = label_svm(R, y)
    for j in range(4):
        single = label_svm(R[j], y[j])
        np.testing.assert_array_equal(batch.x[j], single.x)
        np.testing.assert_allclose((R[j] @ single.x * y[j])[single.active], 1.0, rtol=tolerances.SVM_ORACLE, atol=0.0)
        assert (R[j] @ single.x * y[j] >= 1.0 - tolerances.SVM_ORACLE).all()
    np.testing.assert_array_equal(label_svm(R, y[0]).x[1], label_svm(R[1], y[0]).x)  # the same labels for all
