"""A's hard-margin problems do what they are defined to do: bracketed at the margin, and equal to the nearest point of a hull."""

from __future__ import annotations

import numpy as np
import pytest

import tolerances
from marginlens.data import TokenDataset
from marginlens.svm import Status, att_svm, label_svm


def separable(rng: np.random.Generator, n: int, T: int, d: int) -> tuple[TokenDataset, np.ndarray]:
    data = TokenDataset(rng.normal(size=(n, T, d)), np.ones(n))
    return data, data.optimal(rng.normal(size=d))


@pytest.mark.statement("A ATT-SVM")
def test_two_tokens_have_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1, 2, 7))
    solution = att_svm(TokenDataset(X, [1]), [1])
    u = X[0, 1] - X[0, 0]
    np.testing.assert_allclose(solution.x, u / (u @ u), rtol=tolerances.ROUNDING, atol=0.0)
    np.testing.assert_allclose(solution.multipliers, [1.0 / (u @ u)], rtol=tolerances.ROUNDING, atol=0.0)
    assert solution.margin == pytest.approx(np.linalg.norm(u), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)


@pytest.mark.statement("A ATT-SVM")
def test_the_margin_is_bracketed() -> None:
    """At the margin every selected token wins by one; nothing one percent shorter does so, in any direction."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        data, selected = separable(rng, 3, 4, 5)
        p = att_svm(data, selected).x
        logits = data.K @ p
        chosen = np.take_along_axis(logits, selected[:, None], axis=1)
        others = np.where(np.arange(4) == selected[:, None], -np.inf, logits)
        assert (chosen - others.max(axis=1, keepdims=True)).min() == pytest.approx(
            1.0, rel=tolerances.SVM_ORACLE, abs=tolerances.ROUNDING
        )
        directions = p + 0.3 * np.linalg.norm(p) * rng.normal(size=(500, 5))
        shorter = 0.99 * np.linalg.norm(p) * directions / np.linalg.norm(directions, axis=1, keepdims=True)
        gaps = np.take_along_axis(data.K @ shorter.T, selected[:, None, None], axis=1) - data.K @ shorter.T
        gaps[np.arange(3), selected] = np.inf
        assert gaps.min(axis=(0, 1)).max() < 0.99 + tolerances.SVM_ORACLE


@pytest.mark.statement("A ATT-SVM")
def test_solutions_are_equivariant_to_rotation_and_scale() -> None:
    rng = np.random.default_rng(3)
    data, selected = separable(rng, 3, 5, 6)
    p = att_svm(data, selected).x
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    turned = att_svm(TokenDataset(data.X, data.y, W=3.0 * turn), selected)
    np.testing.assert_allclose(turned.x, turn @ p / 3.0, rtol=0.0, atol=tolerances.SVM_ORACLE)


@pytest.mark.statement("A ATT-SVM")
def test_overparameterised_keys_separate_every_selection() -> None:
    """With d >= n (T - 1) random keys, every choice of tokens is feasible; with far fewer, almost none is."""
    rng = np.random.default_rng(4)
    for d, expected in ((9, Status.OPTIMAL), (1, Status.INFEASIBLE)):
        data = TokenDataset(rng.normal(size=(50, 3, 4, d)), np.ones((50, 3)))
        status = att_svm(data, rng.integers(0, 4, size=(50, 3))).status
        assert sum(one is expected for one in status) >= 48


@pytest.mark.statement("A (SVM)")
def test_the_head_of_two_points_is_their_half_difference() -> None:
    solution = label_svm([[3.0, 1.0], [-1.0, 1.0]], [1, -1])
    np.testing.assert_allclose(solution.x, [0.5, -0.5], rtol=0.0, atol=tolerances.ROUNDING)
    assert solution.active.all()


@pytest.mark.statement("A (SVM)")
def test_inputs_off_the_support_set_can_be_dropped() -> None:
    rng = np.random.default_rng(5)
    R, y = rng.normal(size=(12, 4)), np.where(rng.random(12) < 0.5, -1, 1)
    R += 2.0 * y[:, None] * np.array([1.0, 0.5, 0.0, -0.5])
    R *= np.sign(R @ [1.0, 0.5, 0.0, -0.5] * y)[:, None]
    full = label_svm(R, y)
    assert 0 < full.active.sum() < 12
    kept = label_svm(R[full.active], y[full.active])
    np.testing.assert_allclose(kept.x, full.x, rtol=tolerances.SVM_ORACLE, atol=0.0)
