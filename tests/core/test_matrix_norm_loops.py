"""The interior-point method of the core: norms of blocks against LAPACK, solutions by the bracket that NumPy computes from them."""

import numpy as np
import pytest

from marginlens import core
from tolerances import ROUNDING


def norms_of(matrices):
    norms = np.empty(2)
    core.norms_of_matrices(matrices, norms)
    return norms


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 1, 5), (2, 5, 1), (2, 4, 7), (1, 9, 3), (0, 2, 2), (2, 0, 3), (2, 3, 0)]
)
def test_norms_of_blocks_agree_with_lapack(shape):
    matrices = np.random.default_rng(sum(shape)).normal(size=shape)
    values = np.linalg.svd(matrices, compute_uv=False) if all(shape) else np.zeros(1)
    np.testing.assert_allclose(norms_of(matrices), [values.max(), values.sum()], rtol=1e-13, atol=0.0)


def problem(seed, n_rows, height, width, n_blocks=1, n_equalities=0):
    """Rows of norm one that some W satisfies with slack, equalities last, and the Euclidean start: W itself, and equal multipliers."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows + n_equalities, n_blocks * height * width))
    W = rng.normal(size=rows.shape[1])
    if n_equalities:
        ties = rows[n_rows:]
        W -= np.linalg.lstsq(ties, ties @ W, rcond=None)[0]
    rows[:n_rows] *= np.sign(rows[:n_rows] @ W)[:, None]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    W /= (rows[:n_rows] @ W).min()
    return rows, np.ones(n_rows), W, np.full(len(rows), 1.0 / len(rows))


@pytest.mark.parametrize(
    ("n_rows", "height", "width", "n_blocks", "n_equalities"),
    [(1, 2, 2, 1, 0), (7, 3, 4, 1, 0), (9, 4, 3, 1, 2), (12, 1, 5, 3, 0), (30, 6, 5, 1, 1)],
)
@pytest.mark.parametrize("nuclear", [False, True])
def test_solutions_close_their_brackets(n_rows, height, width, n_blocks, n_equalities, nuclear):
    if nuclear and n_blocks > 1:
        return
    rows, lower, start, multipliers = problem(n_rows, n_rows, height, width, n_blocks, n_equalities)
    x, weights = start.copy(), multipliers.copy()
    no_factors = np.empty((0, height)), np.empty((0, width))
    steps = core.solve_matrix_norm(rows, *no_factors, lower, nuclear, start, multipliers, 1e-9, x, weights)
    assert 0 < steps < 60
    blocks = x.reshape(n_blocks, height, width)
    size, dual = norms_of(blocks)[int(nuclear)], norms_of((weights @ rows).reshape(blocks.shape))[1 - int(nuclear)]
    assert (rows[:n_rows] @ x >= 1.0 - 1e-12).all()
    np.testing.assert_allclose(rows[n_rows:] @ x, 0.0, rtol=0.0, atol=1e-7)
    assert dual == pytest.approx(1.0, abs=1e-12, rel=0.0)
    assert weights[:n_rows].sum() == pytest.approx(size, rel=1e-7 if n_equalities else 2e-9, abs=ROUNDING)


def test_rows_of_rank_one_have_the_same_solution_by_their_factors():
    rng = np.random.default_rng(4)
    left, right = rng.normal(size=(15, 4)), rng.normal(size=(15, 6))
    right /= np.linalg.norm(left, axis=1, keepdims=True) * np.linalg.norm(right, axis=1, keepdims=True)
    W = rng.normal(size=24)
    rows = (left[:, :, None] * right[:, None, :]).reshape(15, 24)
    signs = np.sign(rows @ W)[:, None]
    rows, left = rows * signs, left * signs
    W /= (rows @ W).min()
    found = []
    for factors in ((left, right), (left[:0], right[:0])):
        x, weights = W.copy(), np.full(15, 0.1)
        core.solve_matrix_norm(rows, *factors, np.ones(15), True, W, np.full(15, 0.1), 1e-9, x, weights)
        found.append(norms_of(x.reshape(1, 4, 6))[1])
    assert found[0] == pytest.approx(found[1], rel=1e-8, abs=ROUNDING)
