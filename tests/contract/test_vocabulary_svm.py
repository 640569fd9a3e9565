"""The max-margin problem of a selection of tokens: its proof, other solvers, the closed form, and the list of all selections."""

from itertools import combinations

import numpy as np
import pytest
import scipy.linalg
from scipy.optimize import minimize

from marginlens.svm import Status
from marginlens.svm.vocabulary import closed_form_candidate, vocabulary_svm
from marginlens.theory.embedding_limits import selected_tokens
from marginlens_papers.claims.b.feasible_selections import feasible_selections, untied_vocabulary_svm
from tolerances import CONDITIONED, ROUNDING, SLSQP_POINT, SVM_FARKAS, SVM_KKT, SVM_ORACLE


def random_selection(rng, n_vocabulary=6, d=10, n=3, T=4):
    """Embeddings, sequences, and a selection that some p makes, often with ties."""
    E = rng.normal(size=(n_vocabulary, d)) / np.sqrt(d)
    sequences = rng.integers(n_vocabulary, size=(n, T))
    level = rng.integers(0, 3, size=n_vocabulary)
    return E, sequences, [np.unique(ids[level[ids] == level[ids].max()]) for ids in sequences]


def all_constraints(E, sequences, selection):
    """Rows of Eq. (9) as it is written, one for every selected and other token of every sequence, and those of the ties."""
    rows, ties = [], [np.zeros(E.shape[1])]
    for ids, chosen in zip(sequences, selection, strict=True):
        rows += [E[s] - E[other] for s in chosen for other in set(ids) - set(chosen)]
        ties += [E[s] - E[t] for s, t in combinations(chosen, 2)]
    return np.array(rows), np.array(ties)


@pytest.mark.statement("B Eq. (9)", "B Lemma 3")
@pytest.mark.parametrize("seed", range(36, 48))
def test_the_solution_is_proved_and_equals_slsqps(seed):
    E, sequences, selection = random_selection(np.random.default_rng(seed), d=10 if seed % 3 else 40)
    solution = vocabulary_svm(E, sequences, selection)
    rows, ties = all_constraints(E, sequences, selection)
    independent = ties[scipy.linalg.qr(ties.T, pivoting=True)[2][: np.linalg.matrix_rank(ties)]]
    assert solution.status is Status.OPTIMAL
    assert solution.kkt_residual() <= SVM_KKT
    assert np.min(rows @ solution.x) >= 1.0 - ROUNDING
    assert np.abs(ties @ solution.x).max() <= ROUNDING
    found = minimize(
        lambda p: 0.5 * p @ p,
        np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0],
        jac=lambda p: p,
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": lambda p: rows @ p - 1.0, "jac": lambda p: rows},
            # SLSQP refuses dependent equalities
            {"type": "eq", "fun": lambda p: independent @ p, "jac": lambda p: independent},
        ][: 2 if len(independent) else 1],
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert np.linalg.norm(found.x - solution.x) <= SLSQP_POINT * np.linalg.norm(solution.x)


@pytest.mark.statement("B Eq. (9)")
def test_tokens_selected_together_are_tied_by_equalities():
    E = np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 0.0]])
    solution = vocabulary_svm(E, [[0, 1, 2]], [[0, 1]])
    assert np.allclose(solution.x, [1.0, -1.0], rtol=0, atol=ROUNDING)
    assert solution.pairs.tolist() == [[0, 0, 2]]
    assert selected_tokens(E, solution.x, [[0, 1, 2]])[0].tolist() == [0, 1]
    alone = vocabulary_svm(E, [[0, 1, 2]], [[0]])
    assert alone.margin < vocabulary_svm(E, [[0, 2]], [[0]]).margin


@pytest.mark.statement("B Eq. (18)", "B Eq. (9)")
def test_without_ties_the_solution_differs():
    E = np.array([[1.0, 0.0], [2.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(vocabulary_svm(E, [[0, 1, 2]], [[0, 1]]).x, [1.0, -1.0], rtol=0.0, atol=ROUNDING)
    loose = untied_vocabulary_svm(E, [[0, 1, 2]], [[0, 1]])
    np.testing.assert_allclose(loose.x, [1.0, 0.0], rtol=0.0, atol=ROUNDING)
    assert [ids.tolist() for ids in selected_tokens(E, loose.x, [[0, 1, 2]])] == [[1]]
    rng = np.random.default_rng(18)
    n_solved, n_single = 0, 0
    for _ in range(20):
        E, sequences, level = rng.normal(size=(7, 9)), rng.integers(7, size=(4, 4)), rng.integers(3, size=7)
        chosen = [np.unique(ids[level[ids] == level[ids].max()]) for ids in sequences]
        tied, loose = vocabulary_svm(E, sequences, chosen), untied_vocabulary_svm(E, sequences, chosen)
        if loose.status is Status.TRIVIAL:
            assert tied.status is Status.TRIVIAL
            continue
        n_solved += 1
        assert loose.kkt_residual() < SVM_KKT
        assert np.linalg.norm(loose.x) <= np.linalg.norm(tied.x) * (1.0 + ROUNDING)
        if all(len(ids) == 1 for ids in chosen):
            n_single += 1
            np.testing.assert_allclose(loose.x, tied.x, rtol=0.0, atol=SVM_ORACLE)
        for ids, mine in zip(sequences, chosen, strict=True):
            others = np.setdiff1d(ids, mine)
            assert not len(others) or np.min(E[mine] @ loose.x) >= np.max(E[others] @ loose.x) + 1.0 - SVM_ORACLE
    assert n_solved >= 15
    assert n_single >= 2


@pytest.mark.statement("B Lemma 3")
@pytest.mark.parametrize("d", [5, 50])
def test_contradictory_selections_are_proved_infeasible(d):
    E = np.random.default_rng(0).normal(size=(3, d))
    solution = vocabulary_svm(E, [[0, 1], [0, 1, 2]], [[0], [1, 2]])
    assert solution.status is Status.INFEASIBLE
    assert solution.certificate_residual() <= SVM_FARKAS


@pytest.mark.statement("B Lemma 3")
def test_the_closed_form_is_certified_iff_it_is_the_solution():
    rng = np.random.default_rng(2)
    outcomes, n_negative = [], 0
    for k in range(150):
        problem = random_selection(rng, d=10 if k % 2 else 30)
        solution, candidate = vocabulary_svm(*problem), closed_form_candidate(*problem)
        if solution.status is Status.TRIVIAL:
            continue
        size = np.linalg.norm(solution.x)
        same = np.linalg.norm(solution.x - candidate.x) <= CONDITIONED * size
        assert same == candidate.certified, candidate.why
        if not same and candidate.equation_residual <= ROUNDING:
            n_negative += 1
            assert np.linalg.norm(candidate.x) > size
            assert candidate.why.code == "closed_form.negative_multiplier"
        if same:  # all rows are tight: λ adds up to ‖p‖²
            assert candidate.multipliers.sum() == pytest.approx(size**2, rel=CONDITIONED, abs=ROUNDING)
        outcomes.append(same)
    assert 0.2 < np.mean(outcomes) < 0.8
    assert n_negative >= 20


@pytest.mark.statement("B Eq. (9)", "B Lemma 19")
@pytest.mark.parametrize("d", [2, 4, 30])
def test_equal_tokens_are_infeasible_at_any_width(d):
    for seed in range(20):
        E = np.random.default_rng(seed).normal(size=(4, d))
        E[3] = E[0]
        sequences, selection = [[0, 1, 3], [1, 2]], [[0], [2]]
        solution = vocabulary_svm(E, sequences, selection)
        assert solution.status is Status.INFEASIBLE
        assert solution.certificate_residual() <= SVM_FARKAS
        assert not closed_form_candidate(E, sequences, selection).certified
        found = feasible_selections(E, sequences)
        assert all((0 in chosen[0]) == (3 in chosen[0]) for chosen in found.selections)
    assert not closed_form_candidate(np.ones((2, d)), [[0, 1]], [[0]]).certified


@pytest.mark.statement("B Lemma 3")
@pytest.mark.parametrize("scale", [1e-80, 1e80])
def test_the_verdict_on_the_closed_form_does_not_depend_on_the_scale(scale):
    verdicts = set()
    for seed in range(36, 48):
        E, sequences, selection = random_selection(np.random.default_rng(seed), n=2)
        one, other = (closed_form_candidate(E * factor, sequences, selection) for factor in (1.0, scale))
        assert one.certified is other.certified
        np.testing.assert_allclose(other.x * scale, one.x, rtol=0.0, atol=CONDITIONED * np.linalg.norm(one.x))
        assert repr(other).endswith(f"norm={np.linalg.norm(other.x * scale) / scale:.6g})")
        verdicts.add(one.certified)
    assert verdicts == {True, False}
