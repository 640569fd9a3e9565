"""Definition 3 and Lemma 8: directional margins, and which of two directions has the lower risk at large norm."""

import numpy as np
import pytest

from marginlens import CorrelationLoss, Exponential, Logistic, TokenDataset
from marginlens.data import scored_tokens, sphere_tokens
from marginlens.directions import unit
from marginlens.risk import AttentionRisk
from marginlens.theory import directional_margin, token_optimality
from marginlens_papers.lemmas.direction_cases import dominance
from random_problems import problem, ragged_problem
from tolerances import ROUNDING

BEYOND = 1.0 + 1e-6  # just past the radius


@pytest.mark.statement("A Def 3", "A Eq. (59)", "A Eq. (60)", "A Eq. (61)", "A Eq. (65)")
@pytest.mark.parametrize("seed", range(10))
def test_margins_agree_with_loops_over_tokens(seed):
    rng = np.random.default_rng(seed)
    data, v = ragged_problem(rng, 3, 5, 4, d_key=3)
    q = rng.standard_normal(3)
    found = directional_margin(data, q, v)
    margins, scores = [], data.scores(v)
    for i, length in enumerate(data.lengths):
        logits = data.K[i, :length] @ q
        best = int(np.argmax(logits))
        assert found.selected[i] == best
        margins += [
            ((data.K[i, best] - data.K[i, t]) @ q, i, t, scores[i, best] > scores[i, t])
            for t in range(length)
            if t != best
        ]
    margins.sort()
    assert found.unique
    assert found.margin == pytest.approx(margins[0][0], abs=ROUNDING)
    assert found.second_gap == pytest.approx(margins[1][0] - margins[0][0], abs=ROUNDING)
    assert np.argwhere(found.neighbours).tolist() == [list(margins[0][1:3])]
    assert found.neighbour_optimal == margins[0][3]


@pytest.mark.statement("A Def 3")
@pytest.mark.parametrize("seed", range(10))
def test_the_neighbours_of_a_max_margin_direction_are_its_svm_neighbours(seed):
    rng = np.random.default_rng(seed)
    data, v = problem(rng, 2, 3, 5)
    found = token_optimality(data, v, data.optimal(v))
    at = directional_margin(data, found.solution.x, v)
    assert at.margin == pytest.approx(1.0, abs=ROUNDING)
    np.testing.assert_array_equal(at.neighbours, found.neighbours)
    assert at.neighbour_optimal == found.is_locally_optimal


@pytest.mark.statement("A Def 3")
def test_margins_and_ties_agree_with_exact_arithmetic_however_far_other_tokens_are():
    """Integer keys with tokens up to 2^29 away and a common offset, whose margins are exact: ties are ties and nothing else is."""
    rng = np.random.default_rng(2)
    n_ties = 0
    for _ in range(200):
        n, T, d = (int(rng.integers(low, high)) for low, high in ((1, 4), (2, 5), (1, 4)))
        K = rng.integers(-3, 4, size=(n, T, d)) + rng.integers(-2, 3, size=(n, 1, d)) * 2.0**10
        K = K + rng.integers(-1, 2, size=(n, T, d)) * (rng.random((n, T, 1)) < 0.3) * 2.0 ** rng.integers(16, 30)
        q = rng.integers(-3, 4, size=d) / 4.0
        if not q.any():
            continue
        data, _ = scored_tokens(K, np.zeros((n, T)))
        logits = K @ q  # exact
        found = directional_margin(data, q)
        assert np.array_equal(np.take_along_axis(logits, found.selected[:, None], axis=1)[:, 0], logits.max(axis=1))
        margins = logits.max(axis=1, keepdims=True) - logits
        other = np.arange(T) != found.selected[:, None]
        assert np.array_equal(found.margins[other], margins[other])
        assert found.margin == margins[other].min()
        assert found.unique == bool(np.all(margins[other] > 0.0))
        assert np.array_equal(found.neighbours, other & (margins == found.margin))
        n_ties += int(found.neighbours.sum() > 1)
    assert n_ties >= 10


def pairs_of_directions(seed, n_problems=400):
    """Problems with two nearby directions that select the same unique tokens."""
    rng = np.random.default_rng(seed)
    data, v = sphere_tokens(n_problems, 2, 4, 3, rng)
    p = rng.standard_normal((n_problems, 3))
    q = p + 0.5 * rng.standard_normal((n_problems, 3))
    first, second = directional_margin(data, p), directional_margin(data, q)
    same = (first.selected == second.selected).all(axis=-1) & first.unique & second.unique
    X, y = data.X[same], data.y[same]
    return TokenDataset(X, y), v[same], unit(p[same]), unit(q[same])


@pytest.mark.statement("A Lemma 8")
@pytest.mark.parametrize("loss", [Logistic(), Exponential(), CorrelationLoss()])
def test_the_predicted_direction_wins_from_the_radius_on(loss):
    data, v, p, q = pairs_of_directions(5)
    found = dominance(data, v, p, q, loss)
    assert np.sum(found.case == 1) > 30
    assert np.sum(found.case == 2) > 30
    hidden = np.zeros(len(data), dtype=bool)  # case 1 although some token outside the neighbours scores higher
    at = directional_margin(data, np.where((found.margin_p > found.margin_q)[:, None], q, p), v)
    scores = data.scores(v)
    chosen = np.take_along_axis(scores, at.selected[..., None], axis=-1)
    hidden = (found.case == 1) & (scores > chosen).any(axis=(1, 2))
    assert hidden.sum() > 10
    decided = found.case > 0
    for factor in (BEYOND, 2.0, 50.0):
        R = np.where(decided, np.maximum(found.radius, 1e-3) * factor, 1.0)[:, None]
        risk_p, risk_q = AttentionRisk(data, v, loss).excess(R * p), AttentionRisk(data, v, loss).excess(R * q)
        np.testing.assert_array_equal(risk_q.above(risk_p)[decided], found.p_wins[decided])
        np.testing.assert_array_equal(risk_p.above(risk_q)[decided], ~found.p_wins[decided])


@pytest.mark.statement("A Lemma 8")
def test_far_below_the_radius_the_other_direction_can_win():
    data, v, p, q = pairs_of_directions(5)
    found = dominance(data, v, p, q)
    for case in (1, 2):
        R = np.where(found.case == case, found.radius * 0.01, 1.0)[:, None]
        p_lower = AttentionRisk(data, v).excess(R * q).above(AttentionRisk(data, v).excess(R * p))
        assert (p_lower != found.p_wins)[found.case == case].any()


@pytest.mark.statement("A Lemma 8")
def test_a_higher_score_behind_the_neighbour_delays_case_1_beyond_any_radius_in_the_margins_alone():
    # q = e1 and p = e2 select the first token; the third scores higher
    keys = [[(0.0, 0.0), (-1.0, -10.0), (-1.01, -11.0)]]
    data, v = scored_tokens(keys, [[0.0, -0.1, 1.0]])
    p, q = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    assert directional_margin(data, p, v).neighbour_optimal
    assert directional_margin(data, q, v).neighbour_optimal
    slopes = np.exp(Logistic().log_abs_derivative(np.array([-0.1, 1.0])))
    # from the margins and the neighbours' score gaps
    paper = np.log(2 * 3 * slopes[0] * 1.0 / (slopes[1] * 0.1)) / (10.0 - 1.0)
    found = dominance(data, v, p, q)
    assert found.case == 1
    assert found.p_wins
    assert 5 * paper < 5.0
    assert AttentionRisk(data, v).excess(5.0 * p).above(AttentionRisk(data, v).excess(5.0 * q))  # q still wins there
    assert found.radius == pytest.approx(np.log(2 * 3 * slopes[0] * 1.0 / (slopes[1] * 0.1)) / (1.01 - 1.0))
    R = found.radius * BEYOND
    assert AttentionRisk(data, v).excess(R * q).above(AttentionRisk(data, v).excess(R * p))


@pytest.mark.statement("A Lemma 8")
def test_what_the_lemma_leaves_open_is_case_0():
    # two neighbours, one higher, one lower
    data, v = scored_tokens([[(0.0, 0.0), (-1.0, -2.0), (-1.0, -3.0)]], [[0.0, 1.0, -1.0]])
    found = dominance(data, v, [0.0, 1.0], [1.0, 0.0])
    assert (found.case, found.radius, found.p_wins) == (0, np.inf, False)
    tie, head = scored_tokens([[(0.0, 0.0), (-1.0, -2.0)]], [[0.0, 0.0]])  # the neighbour scores the same
    assert dominance(tie, head, [0.0, 1.0], [1.0, 0.0]).case == 0
    same, head = scored_tokens([[(0.0, 0.0), (-1.0, -1.0)]], [[1.0, 0.0]])  # equal margins
    assert dominance(same, head, [0.0, 1.0], [1.0, 0.0]).case == 0
    # (1, 0) selects two tokens
    both, head = scored_tokens([[(0.0, 0.0), (0.0, -1.0), (-1.0, -2.0)]], [[1.0, 0.0, 0.0]])
    assert dominance(both, head, [0.0, 1.0], [1.0, 0.0]).case == 0
