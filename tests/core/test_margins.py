"""Compiled solvers of margin problems: every outcome is checked against the rows as given, by NumPy."""

import re

import numpy as np
import pytest
from scipy.linalg import block_diag

from marginlens import core
from marginlens.arithmetic.rounding import EPS
from marginlens.core.signatures import FOLDER
from marginlens.norms import L1, LInf
from marginlens.svm import solution
from marginlens.svm.solvers import batch, linear_programs
from marginlens.svm.solvers.batch import INFEASIBLE, OPTIMAL, OUT_OF_RANGE, TRIVIAL, UNVERIFIED, Solved
from marginlens.svm.solvers.least_distance import BY_BLOCK_PIVOTS, BY_DUAL_ACTIVE_SET, BY_GRAM_MATRIX
from marginlens.sweeps.on_device import TOLERANCES
from refusals import raised
from tolerances import ROUNDING

QUICK = (BY_GRAM_MATRIX, BY_BLOCK_PIVOTS)


def solved_by(method, rows, lower):
    out = Solved.empty(*rows.shape)
    core.solve_margins(0, len(rows), np.arange(len(rows)), method, rows, lower, *out)
    return out


def solved_carefully(rows, lower):
    return solved_by(BY_DUAL_ACTIVE_SET, rows, lower)


def worst_residual(A, b, x, multipliers):
    """Of feasibility, x = Aᵀλ, λ ≥ 0 and complementarity, relative to ‖x‖, rows of norm one."""
    slack = A @ x - b
    residuals = [-slack.min(), -multipliers.min(), np.abs(slack * multipliers).max(), *np.abs(multipliers @ A - x)]
    return max(residuals) / np.linalg.norm(x)


def feasible_rows(rng, count, n_rows, d):
    """(count, n_rows, d) of norm one, which a multiple of one direction satisfies."""
    rows = rng.normal(size=(count, n_rows, d))
    rows *= np.sign(rows @ rng.normal(size=d))[..., None]
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("d", [1, 2, 4, 7, 9, 16, 31, 130])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 5, 8, 17, 33, 70])
def test_each_method_finds_the_shortest_vector(n_rows, d):
    rng = np.random.default_rng(1000 * n_rows + d)
    rows = feasible_rows(rng, 4, n_rows, d)
    lower = rng.uniform(0.0, 2.0, size=(4, n_rows))
    careful = solved_carefully(rows, lower)
    assert (careful.outcome == OPTIMAL).all()
    for method in (careful, *(solved_by(quick, rows, lower) for quick in QUICK)):
        for j in np.flatnonzero(method.outcome == OPTIMAL):
            assert worst_residual(rows[j], lower[j], method.x[j], method.multipliers[j]) < 1e-9
            np.testing.assert_allclose(method.x[j], careful.x[j], rtol=1e-8, atol=1e-9 * np.abs(careful.x[j]).max())
    assert set(np.unique(solved_by(QUICK[0], rows, lower).outcome)) <= {OPTIMAL, UNVERIFIED}


@pytest.mark.parametrize(("n_rows", "d"), [(12, 3), (30, 7), (90, 20)])
def test_an_infeasible_problem_gets_a_proof(n_rows, d):
    rows = np.random.default_rng(n_rows).normal(size=(3, n_rows, d))
    found = solved_carefully(rows, np.ones((3, n_rows)))
    assert (found.outcome == INFEASIBLE).all()
    for A, weights in zip(rows, found.multipliers, strict=True):
        assert weights.min() >= 0.0
        assert weights.sum() > 0.0
        assert np.linalg.norm(weights @ A) < 1e-12 * weights.sum()


def test_trivial_problems_are_answered_without_solving():
    rows, lower = np.ones((4, 3, 5)), np.ones((4, 3))
    lower[0] = 0.0
    rows[1, 2] = 0.0
    rows[2, 1, 4] = np.nan
    rows[3, 0] = 1e-150
    for found in (*(solved_by(quick, rows, lower) for quick in QUICK), solved_carefully(rows, lower)):
        assert found.outcome.tolist() == [TRIVIAL, INFEASIBLE, OUT_OF_RANGE, OUT_OF_RANGE]
    assert found.multipliers[1].tolist() == [0.0, 0.0, 1.0]


def test_empty_problems_and_batches_are_answered():
    for shape in ((0, 4, 5), (2, 0, 5)):
        rows, lower = np.zeros(shape), np.zeros(shape[:2])
        for found in (*(solved_by(quick, rows, lower) for quick in QUICK), solved_carefully(rows, lower)):
            assert (found.outcome == TRIVIAL).all()


def test_core_tolerances_equal_pythons():
    text = (FOLDER / "margin" / "tolerances.h").read_text(encoding="utf-8")
    found = re.findall(r"([A-Z_]+) = (?:(\d+) \* EPS|([\d.e-]+))\b", text)
    declared = {name: float(number) if number else int(times) * EPS for name, times, number in found}
    shared = {name for name in declared if hasattr(batch, name) or hasattr(solution, name)}
    assert len(shared) >= 10
    for name in shared:
        assert declared[name] == getattr(batch, name, getattr(solution, name, None)), name


def test_slacks_of_neighbours_equal_the_gpus():
    text = (FOLDER / "token_optimality.h").read_text(encoding="utf-8")
    declared = {name: float(number) for name, number in re.findall(r"([A-Z_]+_SLACK_RTOL) = ([\d.e-]+);", text)}
    assert len(declared) == 2
    assert declared.items() <= TOLERANCES.items()


@pytest.mark.parametrize("d", [1, 3, 4, 8, 13, 16, 37])
def test_products_with_bilinear_rows_equal_formed_ones(d):
    rng = np.random.default_rng(d)
    X, images, weights = rng.normal(size=(9, d)), rng.normal(size=(5, d)), rng.normal(size=20)
    k, i, j = rng.integers(0, 5, 30), rng.integers(0, 9, 30), rng.integers(0, 9, 30)
    scale, chosen = rng.uniform(1.0, 2.0, 30), rng.permutation(30)[:20]
    terms, differences = (X, k, i, j, scale), (X[i] - X[j]) * scale[:, None]
    norms, sums, products = np.empty(30), np.ones((5, d)), np.empty(20)
    core.find_difference_norms(*terms, norms)
    core.add_weighted_differences(*terms, chosen, weights, sums)
    core.multiply_differences(*terms, chosen, images, products)
    expected = np.ones((5, d))
    np.add.at(expected, k[chosen], weights[:, None] * differences[chosen])
    np.testing.assert_allclose(norms, np.linalg.norm(differences, axis=1), rtol=1e-14, atol=0.0)
    np.testing.assert_allclose(sums, expected, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(products, (differences * images[k])[chosen].sum(axis=1), rtol=1e-13, atol=1e-13)
    for wrong in ((X, k + 5, i, j, scale), (X, k, i - 9, j, scale)):
        with raised(ValueError, "sizes"):
            core.multiply_differences(*wrong, chosen, images, products)


def test_products_with_blocks_equal_formed_ones():
    rng, edges = np.random.default_rng(4), np.array([0, 3, 3, 10, 11])
    blocks = [rng.normal(size=(size, size)) for size in np.diff(edges)]
    vector, out = rng.normal(size=11), np.empty(11)
    entries = np.concatenate([block.ravel() for block in blocks])
    core.multiply_blocks(edges, entries, vector, out)
    np.testing.assert_allclose(out, block_diag(*blocks) @ vector, rtol=1e-13, atol=0.0)
    with raised(ValueError, "sizes"):
        core.multiply_blocks(edges, entries[:-1].copy(), vector, out)


@pytest.mark.parametrize("is_box", [True, False])
@pytest.mark.parametrize(("n_rows", "d"), [(1, 1), (3, 2), (7, 9), (9, 16), (20, 5), (25, 40)])
def test_pivots_end_at_the_value_of_another_method(n_rows, d, is_box):
    rng = np.random.default_rng(n_rows)
    rows = feasible_rows(rng, 3, n_rows, d)
    lower, x, multipliers = rng.uniform(0.1, 1.0, size=(3, n_rows)), np.zeros((3, d)), np.ones((3, n_rows))
    problems = batch.NormBatch(rows, lower, x, multipliers, np.arange(3), (d,), 0)
    linear_programs.solve_linear_programs(problems, L1() if is_box else LInf())
    norm = 1 if is_box else np.inf
    for A, b, point, weights in zip(rows, lower, x, multipliers, strict=True):
        other, _ = linear_programs.solve_by_highs(A, b, is_box)
        point = point / (A @ point / b).min()
        assert np.linalg.norm(point, norm) == pytest.approx(np.linalg.norm(other, norm), rel=1e-9, abs=ROUNDING)
        dual = np.linalg.norm(weights @ A, np.inf if is_box else 1)
        assert b @ weights / dual == pytest.approx(np.linalg.norm(other, norm), rel=1e-9, abs=ROUNDING)


@pytest.mark.parametrize("p", [1.2, 1.75, 2.5, 4.0])
@pytest.mark.parametrize(("n_rows", "d"), [(1, 1), (3, 2), (7, 9), (16, 4), (20, 33)])
def test_both_methods_for_power_norms_close_the_bracket(n_rows, d, p):
    rng = np.random.default_rng(n_rows)
    rows = feasible_rows(rng, 3, n_rows, d)
    lower, q = rng.uniform(0.1, 1.0, size=(3, n_rows)), p / (p - 1.0)
    start = solved_carefully(rows, lower)
    values = []
    for by_newton, power in ((True, q), (False, p)):
        x, multipliers, gaps = start.x.copy(), start.multipliers.copy(), np.empty(3)
        core.solve_power_norms(0, 3, rows, lower, np.arange(3), by_newton, power, 3.0, 1.5, x, multipliers, gaps)
        norm = (np.abs(x) ** p).sum(axis=1) ** (1.0 / p)
        upper = norm / ((rows @ x[..., None])[..., 0] / lower).min(axis=1)
        g = (multipliers[:, None] @ rows)[:, 0]
        below = (lower * multipliers).sum(axis=1) / (np.abs(g) ** q).sum(axis=1) ** (1.0 / q)
        np.testing.assert_allclose(upper / below - 1.0, gaps, rtol=0.0, atol=1e-13)
        assert gaps.min() > -1e-14
        values.append((below, upper))
    assert (np.minimum(values[0][1], values[1][1]) / np.maximum(values[0][0], values[1][0]) - 1.0).max() < 1e-9


@pytest.mark.parametrize("choice", [True, False])
def test_loops_end_on_numbers_that_are_not_finite(choice):
    rows, lower, place = np.full((1, 5, 4), np.nan), np.ones((1, 5)), np.zeros(1, dtype=np.int64)
    x, weights, gaps = np.ones((1, 4)), np.ones((1, 5)), np.empty(1)
    problem = batch.NormBatch(rows, lower, 0.0 * x, weights.copy(), place, (4,), 0)
    linear_programs.solve_linear_programs(problem, L1() if choice else LInf())
    core.solve_power_norms(0, 1, rows, lower, place, choice, 3.0, 3.0, 2.0, x, weights, gaps)  # by Newton or not
    assert not gaps[0] < 1.0
