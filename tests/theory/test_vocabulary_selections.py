"""Selections of vocabulary entries: which tokens a direction selects, which selections some direction makes, and which margin leads."""

from itertools import combinations, product

import numpy as np
import pytest

from marginlens.svm import Status
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.embedding_limits import selected_tokens, token_ranks
from marginlens_papers.lemmas.feasible_selections import feasible_selections
from marginlens_papers.lemmas.selection_slopes import equivalent_directions, local_optimality
from tolerances import CONDITIONED, ROUNDING


@pytest.mark.statement("B Eq. (8)", "B Definition 15")
def test_selected_and_secondary_tokens_of_a_written_example():
    E = np.array([[3.0], [1.0], [3.0], [2.0], [-1.0]])
    ranks = token_ranks(E, [2.0], [[0, 1, 2, 3, 4, 0], [1, 4], [3]])
    assert [one.tolist() for one in ranks.selected] == [[0, 2], [1], [3]]
    assert [one.tolist() for one in ranks.secondary] == [[3], [4], []]
    assert [one.tolist() for one in ranks.below] == [[1, 4], [], []]
    wide = selected_tokens(E, [2.0], [[0, 1, 3]], tie=2.5)
    assert wide[0].tolist() == [0, 3]
    assert equivalent_directions(E, [1.0], [7.0], [[0, 1], [1, 4]])
    assert not equivalent_directions(E, [1.0], [-1.0], [[0, 1], [1, 4]])


@pytest.mark.statement("B Eq. (8)")
def test_what_is_orthogonal_to_p_makes_no_ties():
    rng = np.random.default_rng(5)
    # two long columns that p does not see
    E = np.column_stack([rng.normal(size=(6, 3)), 1e14 * rng.normal(size=(6, 2))])
    p = np.array([1.0, -2.0, 0.5, 0.0, 0.0])
    sequences = [[0, 1, 2], [3, 4, 5], [0, 5]]
    short = [ids.tolist() for ids in selected_tokens(E[:, :3], p[:3], sequences)]
    assert [ids.tolist() for ids in selected_tokens(E, p, sequences)] == short
    assert all(len(ids) == 1 for ids in short)
    rounded = np.array([[0.1, 0.2, -0.3], [0.0, 0.0, 0.0]])  # 0.1 + 0.2 − 0.3 is not 0 in float64, but ties with it
    assert selected_tokens(rounded, np.ones(3), [[0, 1]])[0].tolist() == [0, 1]


@pytest.mark.statement("B Definition 16")
def test_local_optimality_sums_over_selected_positions():
    E = np.array([[3.0, 2.0], [3.0, -1.5], [1.0, 0.0]])
    p, v = [1.0, 0.0], [0.0, 1.0]
    assert local_optimality(E, p, v, [[0, 1, 2]], [1]).mu == pytest.approx(0.5)
    twice = local_optimality(E, p, v, [[0, 1, 1, 2]], [1])
    assert twice.mu == pytest.approx(-1.0)
    assert not twice.holds
    assert local_optimality(E, p, v, [[0, 1, 2], [0, 1]], [-1, 1]).gaps.tolist() == [pytest.approx(-0.5), np.inf]


@pytest.mark.statement("B Lemma 19")
@pytest.mark.parametrize(("n_vocabulary", "d", "n", "T"), [(4, 6, 3, 3), (5, 2, 3, 3), (4, 1, 2, 3), (4, 5, 4, 2)])
def test_feasible_selections_are_those_of_brute_force(n_vocabulary, d, n, T):
    rng = np.random.default_rng([n_vocabulary, d])
    E = rng.normal(size=(n_vocabulary, d))
    sequences = [rng.permutation(n_vocabulary)[:T] for _ in range(n)]
    found = feasible_selections(E, sequences)
    subsets = [[sorted(one) for k in range(1, T + 1) for one in combinations(ids.tolist(), k)] for ids in sequences]
    expected = {}
    for choice in product(*subsets):
        solution = vocabulary_svm(E, sequences, choice)
        assert solution.status is not Status.INACCURATE
        if solution.status is not Status.INFEASIBLE:
            expected[tuple(map(tuple, choice))] = solution.margin
    ours = {tuple(tuple(one.tolist()) for one in some): k for k, some in enumerate(found.selections)}
    assert ours.keys() == expected.keys()
    if d >= n_vocabulary:
        assert found.n_solved == len(expected)
    assert np.all(np.diff(found.margins[1:]) <= 0)
    for key, k in ours.items():
        assert found.index(key) == k
        if np.isfinite(expected[key]):
            assert abs(found.margins[k] / expected[key] - 1.0) <= CONDITIONED
            back = selected_tokens(E, found.directions[k], sequences)
            assert all(map(np.array_equal, back, found.selections[k]))


@pytest.mark.statement("B Lemma 19")
def test_required_tokens_and_the_lead_of_the_widest_margin():
    E = np.random.default_rng(3).normal(size=(4, 400)) / 20.0
    E[0] *= 5.0  # the decisive token, after a large first step
    sequences, important = [[0, 1, 2], [0, 2, 3, 3]], [[0], [0]]
    found = feasible_selections(E, sequences, required=important)
    assert all(0 in one for some in found.selections for one in some)
    assert found.index(important) == 1
    lead = found.margin_lead(important)
    others = [one for one in range(len(found)) if one > 1]
    norms = [np.linalg.norm(vocabulary_svm(E, sequences, found.selections[k]).x) for k in (1, *others)]
    assert lead == pytest.approx(1.0 - norms[0] / min(norms[1:]))
    assert 0.0 < lead < 1.0
    assert found.margin_lead(found.selections[-1]) < 0.0
    assert np.isnan(found.margin_lead([[1], [0]]))
    assert found.index([[0, 1, 2], [0, 2, 3]]) == 0
    assert np.isinf(found.margins[0])
    assert np.isnan(found.margin_lead(found.selections[0]))


@pytest.mark.statement("B Lemma 19")
def test_two_decisive_tokens_of_alike_embeddings_do_not_lead():
    E = np.eye(3)  # tokens 0 and 1 decide, token 2 is irrelevant: tying it with one of them costs nothing
    found = feasible_selections(E, [[0, 2], [1, 2]], required=[[0], [1]])
    assert abs(found.margin_lead([[0], [1]])) <= ROUNDING
    more = feasible_selections(np.eye(4), [[0, 2, 3], [1, 2, 3]], required=[[0], [1]])
    assert more.margin_lead([[0], [1]]) < 0.0
