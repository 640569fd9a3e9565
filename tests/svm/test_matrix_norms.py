"""Margin problems in the spectral, nuclear and max-row norm: another solver, and what the norms imply beyond the contract of all norms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tolerances
from marginlens.data import SequenceDataset, TokenDataset
from marginlens.graphs import priority_graphs
from marginlens.norms import L1, Frobenius, LInf, Lp, MaxRow, Nuclear, Spectral
from marginlens.svm import MarginSolution, Status, att_svm, graph_svm
from random_examples import examples

MATRIX_NORMS = (Spectral(), Nuclear(), MaxRow())
GAP = 1e-8  # the promised bracket of matrix norms


def problem(
    seed: int, n: int = 4, T: int = 4, d: int = 5, d_query: int = 5
) -> tuple[TokenDataset, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    data = TokenDataset(rng.standard_normal((n, T, d)), np.ones(n))
    return data, rng.integers(T, size=n), rng.standard_normal((n, d_query))


def optimum(solution: MarginSolution) -> float:
    assert solution.status is Status.OPTIMAL
    bracket = solution.bracket()
    assert 0.0 < bracket.lower <= bracket.upper * (1.0 + tolerances.ROUNDING)
    assert bracket.gap <= GAP
    return float(bracket.upper)


@pytest.mark.statement("D W-SVM")
@given(seed=st.integers(0, 10**6), norm=st.sampled_from(MATRIX_NORMS), d_query=st.integers(3, 6))
@examples(25)
def test_brackets_hold_and_bound_every_other_solution(seed: int, norm: object, d_query: int) -> None:
    """W satisfies its rows; the Frobenius solution is no shorter than the lower bound, and W no shorter in its norm than it."""
    data, selected, z = problem(seed, n=3, T=3, d_query=d_query)
    solution = att_svm(data, selected, norm=norm, query=z)
    euclidean = att_svm(data, selected, norm=Frobenius(), query=z)
    smallest = optimum(solution)
    assert (solution.rows @ solution.x.ravel() >= 1.0 - tolerances.ROUNDING).all()
    assert norm.value(euclidean.x) >= smallest * (1.0 - GAP)
    assert np.linalg.norm(solution.x) >= np.linalg.norm(euclidean.x) * (1.0 - GAP)


@pytest.mark.parametrize("norm", MATRIX_NORMS, ids=repr)
def test_solutions_agree_with_a_conic_solver(norm: object) -> None:
    cvxpy = pytest.importorskip("cvxpy")
    for seed in range(2):
        data, selected, z = problem(seed)
        solution = att_svm(data, selected, norm=norm, query=z)
        W = cvxpy.Variable(solution.x.shape)
        sizes = {Spectral: cvxpy.sigma_max, Nuclear: cvxpy.normNuc, MaxRow: lambda V: cvxpy.max(cvxpy.norm(V, axis=1))}
        size = sizes[type(norm)](W)
        other = cvxpy.Problem(cvxpy.Minimize(size), [solution.rows @ cvxpy.vec(W, order="C") >= 1.0])
        other.solve(solver=cvxpy.CLARABEL)
        assert optimum(solution) == pytest.approx(
            other.value, rel=tolerances.SVM_INTERIOR_POINT, abs=tolerances.ROUNDING
        )


@pytest.mark.parametrize("norm", [Spectral(), Nuclear()], ids=repr)
def test_a_matrix_of_rank_one_has_the_euclidean_solution(norm: object) -> None:
    """One query, and one coordinate of either side: every norm of singular values is the Euclidean one."""
    data, selected, z = problem(3, d=12)
    for query in (z[0], z[:, :1]):
        euclidean = att_svm(data, selected, norm=Frobenius(), query=query)
        solution = att_svm(data, selected, norm=norm, query=query)
        assert solution.status is euclidean.status is Status.OPTIMAL
        np.testing.assert_allclose(
            solution.x, euclidean.x, rtol=0.0, atol=tolerances.ROUNDING * np.abs(euclidean.x).max()
        )
        assert solution.rank() == 1


@pytest.mark.parametrize("norm", MATRIX_NORMS, ids=repr)
def test_rotations_and_scales_do_not_matter(norm: object) -> None:
    """Tokens and queries (for max-row, tokens alone) in another basis, and in another unit."""
    data, selected, z = problem(5)
    rng = np.random.default_rng(5)
    R, Q = (np.linalg.qr(rng.standard_normal((5, 5)))[0] for _ in range(2))
    if isinstance(norm, MaxRow):
        Q = np.eye(5)
    turned = TokenDataset(1e-3 * data.X @ R, data.y)
    first = optimum(att_svm(data, selected, norm=norm, query=z))
    second = optimum(att_svm(turned, selected, norm=norm, query=100.0 * z @ Q))
    assert second == pytest.approx(10.0 * first, rel=2 * GAP, abs=tolerances.ROUNDING)


def test_the_nuclear_solution_has_small_rank() -> None:
    """At most the number of inputs, and at most that of the spectral one."""
    for seed in range(5):
        data, selected, z = problem(seed, n=3, d=6, d_query=6)
        nuclear, spectral = (att_svm(data, selected, norm=norm, query=z) for norm in (Nuclear(), Spectral()))
        assert 1 <= nuclear.rank() <= spectral.rank() <= 3


def test_every_norm_is_smallest_at_its_own_solution() -> None:
    data, selected, z = problem(8)
    norms = (*MATRIX_NORMS, Frobenius(), L1(), LInf(), Lp(3.0))
    solutions = [att_svm(data, selected, norm=norm, query=z) for norm in norms]
    for norm, solution in zip(norms, solutions, strict=True):
        assert norm.value(solution.x) <= min(norm.value(other.x) for other in solutions) * (1.0 + GAP)


@pytest.mark.parametrize("norm", MATRIX_NORMS, ids=repr)
def test_infeasible_and_ragged_inputs_in_a_batch_are_solved(norm: object) -> None:
    rng = np.random.default_rng(2)
    X, selected, z = rng.standard_normal((3, 4, 4, 5)), rng.integers(4, size=(3, 4)), rng.standard_normal((3, 4, 5))
    X[1, 0, :] = X[1, 0, 0]  # tokens that no W tells apart
    batch = att_svm(TokenDataset(X, np.ones((3, 4))), selected, norm=norm, query=z)
    assert batch.status[1] is Status.INFEASIBLE
    assert batch.rank()[1] == -1
    assert (batch.bracket().gap[[0, 2]] <= GAP).all()
    short = TokenDataset([X[0, 0], X[0, 1, :1], X[0, 2, :2]], np.ones(3))
    assert optimum(att_svm(short, [0, 0, 1], norm=norm, query=z[0, :3])) > 0.0
    single_tokens = att_svm(TokenDataset(X[0, :, :1], np.ones(4)), np.zeros(4, dtype=int), norm=norm, query=z[0])
    assert single_tokens.status is Status.TRIVIAL


@pytest.mark.parametrize("norm", [Spectral(), Nuclear()], ids=repr)
def test_graph_svm_keeps_its_ties(norm: object) -> None:
    """Equal priorities have equal logits to rounding, and the multipliers of ties are part of the proof."""
    rng = np.random.default_rng(0)
    E = rng.standard_normal((5, 6))
    data = SequenceDataset([[0, 1, 2], [1, 0, 2], [3, 4, 2], [0, 3, 2], [2, 0, 4]], [0, 1, 3, 0, 2], E)
    solution = graph_svm(data, priority_graphs(data), norm=norm)
    assert len(solution.tied) > 0
    optimum(solution)
    assert np.abs(solution.equalities.apply(solution.x)).max() <= tolerances.ROUNDING * np.linalg.norm(solution.x)
