"""Compiled solvers of margin problems: every outcome is checked against the rows as given, by NumPy."""

import re

import numpy as np
import pytest

from marginlens import core
from marginlens.core.signatures import FOLDER
from marginlens.kernels.linalg import EPS
from marginlens.svm import solution
from marginlens.svm.solvers import batch
from marginlens.svm.solvers.batch import INFEASIBLE, OPTIMAL, OUT_OF_RANGE, TRIVIAL, UNVERIFIED, Solved

QUICK = (core.solve_by_gram_matrix, core.solve_by_block_pivots)


def solved_by(door, rows, lower):
    out = Solved.empty(*rows.shape)
    door(0, len(rows), rows, lower, *out)
    return out


def solved_carefully(rows, lower):
    out = Solved.empty(*rows.shape)
    core.solve_by_dual_active_set(0, len(rows), np.arange(len(rows)), rows, lower, *out)
    return out


def worst_residual(A, b, x, multipliers):
    """Of feasibility, x = Aᵀλ, λ ≥ 0 and complementarity, relative to ‖x‖, rows of norm one."""
    slack = A @ x - b
    residuals = [-slack.min(), -multipliers.min(), np.abs(slack * multipliers).max(), *np.abs(multipliers @ A - x)]
    return max(residuals) / np.linalg.norm(x)


@pytest.mark.parametrize("d", [1, 2, 4, 7, 9, 16, 31, 130])
@pytest.mark.parametrize("n_rows", [1, 2, 3, 5, 8, 17, 33, 70])
def test_each_method_finds_the_shortest_vector(n_rows, d):
    rng = np.random.default_rng(1000 * n_rows + d)
    centre = rng.normal(size=d)
    rows = rng.normal(size=(4, n_rows, d))
    rows *= np.sign(rows @ centre)[..., None]  # so that a multiple of the centre satisfies all
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    lower = rng.uniform(0.0, 2.0, size=(4, n_rows))
    careful = solved_carefully(rows, lower)
    assert (careful.outcome == OPTIMAL).all()
    for method in (careful, *(solved_by(door, rows, lower) for door in QUICK)):
        for j in np.flatnonzero(method.outcome == OPTIMAL):
            assert worst_residual(rows[j], lower[j], method.x[j], method.multipliers[j]) < 1e-9
            np.testing.assert_allclose(method.x[j], careful.x[j], rtol=1e-8, atol=1e-9 * np.abs(careful.x[j]).max())
    assert set(np.unique(solved_by(QUICK[0], rows, lower).outcome)) <= {OPTIMAL, UNVERIFIED}


@pytest.mark.parametrize(("n_rows", "d"), [(12, 3), (30, 7), (90, 20)])
def test_what_has_no_solution_gets_a_proof(n_rows, d):
    rows = np.random.default_rng(n_rows).normal(size=(3, n_rows, d))
    found = solved_carefully(rows, np.ones((3, n_rows)))
    assert (found.outcome == INFEASIBLE).all()
    for A, weights in zip(rows, found.multipliers, strict=True):
        assert weights.min() >= 0.0
        assert weights.sum() > 0.0
        assert np.linalg.norm(weights @ A) < 1e-12 * weights.sum()


def test_what_is_known_without_solving():
    rows, lower = np.ones((4, 3, 5)), np.ones((4, 3))
    lower[0] = 0.0
    rows[1, 2] = 0.0
    rows[2, 1, 4] = np.nan
    rows[3, 0] = 1e-150
    for found in (*(solved_by(door, rows, lower) for door in QUICK), solved_carefully(rows, lower)):
        assert found.outcome.tolist() == [TRIVIAL, INFEASIBLE, OUT_OF_RANGE, OUT_OF_RANGE]
    assert found.multipliers[1].tolist() == [0.0, 0.0, 1.0]


def test_no_rows_and_no_problems():
    for shape in ((0, 4, 5), (2, 0, 5)):
        rows, lower = np.zeros(shape), np.zeros(shape[:2])
        for found in (*(solved_by(door, rows, lower) for door in QUICK), solved_carefully(rows, lower)):
            assert (found.outcome == TRIVIAL).all()


def test_tolerances_are_those_of_python():
    text = "".join(path.read_text(encoding="utf-8") for path in (FOLDER / "margin").glob("*active_set.h"))
    text += (FOLDER / "margin" / "margin_problem.h").read_text(encoding="utf-8")
    found = re.findall(r"([A-Z_]+) = (?:(\d+) \* EPS|([\d.e-]+))\b", text)
    declared = {name: float(number) if number else int(times) * EPS for name, times, number in found}
    shared = {name for name in declared if hasattr(batch, name) or hasattr(solution, name)}
    assert len(shared) >= 10
    for name in shared:
        assert declared[name] == getattr(batch, name, getattr(solution, name, None)), name
