"""ATT-SVM': every global minimum, against brute force over all choices, with an account of every choice."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

import tolerances
from marginlens.data import TokenDataset
from marginlens.svm import SetSolution, Status, att_svm, least_distance, set_svm
from refusals import refused

# the example in one dimension: two optimal tokens around one that is not
LINE = TokenDataset([[[1.0], [-1.0], [0.0]]], [1])


def problem(seed: int) -> tuple[TokenDataset, list[list[int]]]:
    """n <= 3 inputs of 2 to 5 tokens, up to 3 of them optimal, in few dimensions so that some choices are infeasible."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 4)), int(rng.integers(1, 6))
    lengths = rng.integers(2, 6, size=n)
    X = [rng.normal(size=(length, d)) for length in lengths]
    if seed % 4 == 0:  # whole numbers: several choices then share a minimum
        X = [np.round(2.0 * x) for x in X]
    sets = [rng.permutation(length)[: rng.integers(1, min(3, length) + 1)].tolist() for length in lengths]
    return TokenDataset(X, np.ones(n)), sets


def brute_force(data: TokenDataset, sets: list[list[int]]) -> tuple[float, np.ndarray]:
    """The smallest norm over all choices and the distinct points that attain it, one convex problem per choice."""
    points = []
    for choice in product(*sets):
        rows = [
            data.K[i, alpha] - data.K[i, t]
            for i, alpha in enumerate(choice)
            for t in range(data.lengths[i])
            if t not in sets[i]
        ]
        points.append(least_distance(np.array(rows).reshape(-1, data.d_key), np.ones(len(rows))).x)
    norms = np.linalg.norm(points, axis=1)
    if np.isnan(norms).all():
        return np.inf, np.empty((0, data.d_key))
    best = np.nanmin(norms)
    attained = np.array(points)[norms <= best * (1.0 + tolerances.SVM_ORACLE)]
    return best, np.unique(np.round(attained, 6), axis=0)


def check_account(found: SetSolution) -> None:
    """Every choice is accounted for, what was discarded is longer, and each solution proves itself."""
    assert found.n_covered == found.n_choices
    assert found.gap == pytest.approx(0.0, abs=tolerances.SVM_ORACLE, rel=0.0)
    for one in found.solutions:
        assert one.kkt_residual() <= max(tolerances.SVM_KKT, one.rounding_floor())
        assert found.runner_up > np.linalg.norm(one.x) or found.status is Status.TRIVIAL


@pytest.mark.statement("A ATT-SVM'")
def test_the_example_on_the_line_has_two_solutions() -> None:
    found = set_svm(LINE, [[0, 1]])
    assert sorted(found.points[:, 0]) == pytest.approx([-1.0, 1.0], abs=tolerances.ROUNDING, rel=0.0)
    assert found.margin == pytest.approx(1.0, rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)
    assert sorted(found.choices[:, 0]) == [0, 1]
    check_account(found)


@pytest.mark.statement("A ATT-SVM'")
def test_brute_force_finds_the_same_minima() -> None:
    kinds = set()
    for seed in range(60):
        data, sets = problem(seed)
        best, points = brute_force(data, sets)
        found = set_svm(data, sets)
        kinds.add(found.status)
        check_account(found)
        if np.isinf(best):
            assert found.status is Status.INFEASIBLE
            assert (found.solutions, found.margin) == ((), 0.0)
            continue
        assert found.status is (Status.OPTIMAL if best > 0.0 else Status.TRIVIAL)
        np.testing.assert_allclose(np.linalg.norm(found.points, axis=1), best, rtol=tolerances.SVM_ORACLE, atol=0.0)
        assert len(found.points) == len(points)
        apart = np.linalg.norm(found.points[:, None] - points[None], axis=-1)
        assert apart.min(axis=0).max() <= tolerances.LISTED_POINT
        assert apart.min(axis=1).max() <= tolerances.LISTED_POINT
    assert {Status.OPTIMAL, Status.INFEASIBLE} <= kinds


@pytest.mark.parametrize(("excess", "expected"), [(1e-12, [-1.0, 1.0]), (1e-7, [1.0])])
def test_norms_tie_only_within_rounding(excess: float, expected: list[float]) -> None:
    found = set_svm(TokenDataset([[[1.0 + excess], [-1.0], [0.0]]], [1]), [[0, 1]])
    assert sorted(np.sign(found.points[:, 0])) == expected
    check_account(found)


def test_a_choice_undecided_by_rounding_is_undecided_in_all() -> None:
    """Rows u and 1e-13 w - u: no vector and no contradiction are proved, so no other choice is proved the shortest."""
    u, w, other = np.random.default_rng(3).normal(size=(3, 6))
    nothing, nearly = np.zeros(6), 1e-13 * w - u
    alone = set_svm(TokenDataset([[u, nothing], [nearly, nothing]], [1, 1]), [[0], [0]])
    assert alone.status is Status.INACCURATE
    assert alone.n_covered < alone.n_choices == 1
    found = set_svm(TokenDataset([[u, nothing], [nearly, nothing, other]], [1, 1]), [[0], [0, 2]])
    assert found.status is Status.INACCURATE
    assert found.choices.tolist() == [[0, 2]]
    assert found.solutions[0].status is Status.OPTIMAL
    assert 0.0 < found.gap < 1.0
    assert found.lower_bound <= np.linalg.norm(att_svm(TokenDataset([[u, nothing]], [1]), [0]).x) * (
        1.0 + tolerances.ROUNDING
    )


@pytest.mark.statement("A ATT-SVM'")
def test_singletons_are_the_convex_problem() -> None:
    rng = np.random.default_rng(0)
    data = TokenDataset(rng.normal(size=(3, 4, 9)), np.ones(3))
    found = set_svm(data, [[1], [3], [0]])
    np.testing.assert_allclose(found.points[0], att_svm(data, [1, 3, 0]).x, rtol=tolerances.SVM_ORACLE, atol=0.0)
    assert found.n_choices == 1


@pytest.mark.statement("A ATT-SVM'")
def test_symmetric_problems_list_every_corner() -> None:
    """Input i has the optimal tokens ±e_i around 0: the minima are the corners (±1, …, ±1)."""
    n = 6
    X = np.stack([np.eye(n), -np.eye(n), np.zeros((n, n))], axis=1)
    found = set_svm(TokenDataset(X, np.ones(n)), [[0, 1]] * n)
    assert found.margin == pytest.approx(1.0 / np.sqrt(n), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING)
    assert {tuple(np.round(p).astype(int)) for p in found.points} == set(product((-1, 1), repeat=n))
    check_account(found)


@pytest.mark.parametrize(("n", "ways", "T", "d"), [(20, 2, 4, 30), (10, 4, 6, 12)])
def test_a_million_choices_are_solved_completely(n: int, ways: int, T: int, d: int) -> None:
    rng = np.random.default_rng(3)
    data = TokenDataset(rng.normal(size=(n, T, d)), np.ones(n))
    found = set_svm(data, [list(range(ways))] * n)
    assert found.n_choices == ways**n == 2**20
    assert found.status is Status.OPTIMAL
    check_account(found)
    logits = data.K @ found.points[0]
    clear = logits[:, :ways].max(axis=1) - logits[:, ways:].max(axis=1)
    assert clear.min() == pytest.approx(1.0, rel=tolerances.SVM_ORACLE, abs=tolerances.ROUNDING)
    assert found.explored < found.n_choices / 10
    for _ in range(20):  # no exchange of three tokens is shorter
        choice = found.choices[0].copy()
        choice[rng.choice(n, 3, replace=False)] = rng.integers(ways, size=3)
        rows = (data.K[np.arange(n), choice][:, None] - data.K[:, ways:]).reshape(-1, d)
        norm = np.linalg.norm(least_distance(rows, np.ones(len(rows))).x)
        assert not norm < (1.0 - tolerances.SVM_ORACLE) / found.margin


def test_too_many_choices_are_refused_unless_a_gap_is_given() -> None:
    rng = np.random.default_rng(4)
    data = TokenDataset(rng.normal(size=(40, 3, 60)), np.ones(40))
    sets = [[0, 1]] * 40
    with refused("selected"):
        set_svm(data, sets)
    found = set_svm(data, sets, max_problems=300)
    assert found.status is Status.MAX_PROBLEMS
    assert found.n_covered < found.n_choices
    assert 0.0 < found.gap < 1.0
    assert found.lower_bound < np.linalg.norm(found.points[0])
    logits = data.K @ found.points[0]
    assert (logits[:, :2].max(axis=1) - logits[:, 2]).min() == pytest.approx(
        1.0, rel=tolerances.SVM_ORACLE, abs=tolerances.ROUNDING
    )
    longer = set_svm(data, sets, max_problems=3000)
    assert longer.gap < found.gap
    assert repr(longer).startswith("SetSolution(MAX_PROBLEMS, 1 solution, margin=")
