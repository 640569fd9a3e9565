"""Definition 3, Lemmas 8 to 10 and Theorems 4 and 7: margins of directions, which of two wins, and what beats a given one."""

from decimal import Decimal

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import attention, decimals, dot, long_decimals
from marginlens import CorrelationLoss, Exponential, Logistic, TokenDataset, att_svm
from marginlens.arithmetic.directions import unit
from marginlens.data import scored_tokens, sphere_tokens
from marginlens.dynamics import Cone
from marginlens.risk import AttentionRisk
from marginlens.theory import directional_margin, locally_optimal_directions, token_optimality
from marginlens_papers.claims.a.direction_cases import (
    DirectionCase,
    check_neighbour_count,
    dominance,
    judge_direction,
    undercut_radius,
)
from random_problems import problem, ragged_problem
from tolerances import ROUNDING, SIX_DIGITS

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
    assert found.margin == pytest.approx(margins[0][0], abs=ROUNDING, rel=0.0)
    assert found.second_gap == pytest.approx(margins[1][0] - margins[0][0], abs=ROUNDING, rel=0.0)
    assert np.argwhere(found.neighbours).tolist() == [list(margins[0][1:3])]
    assert found.neighbour_optimal == margins[0][3]


@pytest.mark.statement("A Def 3")
@pytest.mark.parametrize("seed", range(10))
def test_the_neighbours_of_a_max_margin_direction_are_its_svm_neighbours(seed):
    rng = np.random.default_rng(seed)
    data, v = problem(rng, 2, 3, 5)
    found = token_optimality(data, v, data.optimal(v))
    at = directional_margin(data, found.solution.x, v)
    assert at.margin == pytest.approx(1.0, abs=ROUNDING, rel=0.0)
    np.testing.assert_array_equal(at.neighbours, found.neighbours)
    assert at.neighbour_optimal == found.is_locally_optimal


@pytest.mark.statement("A Def 3")
def test_margins_and_ties_agree_with_exact_arithmetic_at_any_scale():
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
def test_the_other_direction_can_win_below_the_radius():
    data, v, p, q = pairs_of_directions(5)
    found = dominance(data, v, p, q)
    for case in (1, 2):
        R = np.where(found.case == case, found.radius * 0.01, 1.0)[:, None]
        p_lower = AttentionRisk(data, v).excess(R * q).above(AttentionRisk(data, v).excess(R * p))
        assert (p_lower != found.p_wins)[found.case == case].any()


@pytest.mark.statement("A Lemma 8")
def test_case_1_can_need_a_radius_beyond_any_bound_in_the_margins():
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
    assert found.radius == pytest.approx(
        np.log(2 * 3 * slopes[0] * 1.0 / (slopes[1] * 0.1)) / (1.01 - 1.0), rel=SIX_DIGITS, abs=ROUNDING
    )
    R = found.radius * BEYOND
    assert AttentionRisk(data, v).excess(R * q).above(AttentionRisk(data, v).excess(R * p))


@pytest.mark.statement("A Lemma 8")
def test_cases_that_the_lemma_leaves_open_are_case_0():
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


# ---- Theorems 4 and 7 for a given direction, Lemmas 9 and 10, against risks in long decimals


DIGITS = 320
LONGEST = 150.0  # norm up to which risks differ within these digits


def decimal_risk(data, v, p=None, selected=None):
    """Mean logistic loss at p in long decimals, or of selecting tokens outright."""
    with long_decimals(DIGITS):
        total = Decimal(0)
        for i in range(data.n_inputs):
            scores = decimals(data.scores(v)[i, : data.lengths[i]])
            margin = dot(attention(data, i, p), scores) if selected is None else scores[selected[i]]
            total += (1 + (-margin).exp()).ln()
        return total / data.n_inputs


def around(rng, q, delta, radius):
    """A point of the given norm whose direction is within delta of q."""
    u = rng.standard_normal(len(q))
    u -= (u @ q) * q
    angle = 2.0 * np.arcsin(0.5 * delta * rng.uniform(0.0, 1.0))
    return radius * (np.cos(angle) * q + np.sin(angle) * u / np.linalg.norm(u))


def directions(rng):
    """Random problems with a random direction, one that two tokens of an input tie along, or a max-margin direction."""
    for k in range(24):
        data, v = ragged_problem(rng, int(rng.integers(1, 4)), 3, int(rng.integers(2, 4)))
        d = data.d_key
        q = rng.standard_normal(d)
        if k % 3 == 1 and data.lengths[0] > 1:
            apart = data.K[0, 0] - data.K[0, 1]
            q -= apart * (apart @ q) / (apart @ apart)
            q *= np.sign(q @ (data.K[0, 0] - data.K[0, data.lengths[0] - 1])) or 1.0  # so that no third token leads
        if k % 3 == 2:
            q = att_svm(data, [int(rng.integers(length)) for length in data.lengths]).x
        if np.isfinite(q).all() and np.linalg.norm(q) > 0.0 and data.lengths.max() > 1:
            yield data, v, Cone(q, 1.0, 0.5)


@pytest.mark.statement("A Thm 4", "A Thm 7", "A Eq. (67)", "A Eq. (68)")
def test_points_near_other_directions_are_beaten_beyond_the_norm():
    rng, seen = np.random.default_rng(0), dict.fromkeys(DirectionCase, 0)
    for data, v, cone in directions(rng):
        found = judge_direction(data, v, cone, max_problems=20)
        listed = locally_optimal_directions(data, v).directions
        assert found.is_locally_optimal == bool(np.any(np.linalg.norm(listed - cone.axis, axis=-1) < ROUNDING))
        assert found.verdict.conditions[-1].holds == (not found.is_locally_optimal)
        too_long = found.competitor is not None and 1.7 * found.norm_bound > LONGEST
        seen[found.case] += not too_long
        if found.competitor is None or too_long:
            continue
        assert cone.axis @ found.competitor >= 1.0 - cone.mu - ROUNDING
        assert found.norm_bound >= found.competitor_from >= cone.radius
        outright = decimal_risk(data, v, selected=found.selected)
        for stretch in (BEYOND, 1.7):
            near = decimal_risk(data, v, around(rng, cone.axis, found.delta, stretch * found.norm_bound))
            if found.case is DirectionCase.A2:
                beyond = stretch * found.competitor_from
                assert decimal_risk(data, v, beyond * found.competitor) < outright
                norms = found.competitor_from * np.geomspace(BEYOND, 30.0, 12)
                assert min(decimal_risk(data, v, norm * found.competitor) for norm in norms) < near
            else:
                assert decimal_risk(data, v, stretch * found.norm_bound * found.competitor) < near
    assert min(seen.values()) >= 2


@pytest.mark.statement("A Thm 7")
def test_the_cases_of_the_proof_agree_with_hand_computed_ones():
    data, v = scored_tokens([[(0.0, 1.0), (0.0, 0.0), (1.0, 0.0)]], [[1.0, 0.0, 0.5]])
    wide = judge_direction(data, v, Cone([-0.6, 0.8], 0.1, 1.0))  # selects (0, 1), but leans
    assert wide.case is DirectionCase.A1
    best = np.array([0.0, 1.0])  # p^mm: the token (0, 1) leads both others by one
    mixed = np.array([-0.6, 0.8]) + 0.05 * best
    assert wide.competitor == pytest.approx(mixed / np.linalg.norm(mixed), abs=ROUNDING, rel=0.0)
    assert judge_direction(data, v, Cone(best, 0.1, 1.0)).case is DirectionCase.P_MM
    tie = judge_direction(data, v, Cone([1.0, 1.0], 0.1, 1.0))  # (0, 1) and (1, 0) tie, the first scores more
    assert tie.case is DirectionCase.B
    assert tie.selected.tolist() == [0]
    assert tie.competitor[1] > tie.competitor[0]
    low = judge_direction(data, v, Cone([1.0, 0.9], 0.1, 1.0))  # selects (1, 0), and (0, 1) beside it scores more
    assert low.case is DirectionCase.A2
    assert low.selected.tolist() == [2]
    away, toward = (directional_margin(data, x).margin for x in (low.cone.axis, low.competitor))
    assert toward < away  # the better token has come nearer


@pytest.mark.statement("A Thm 4", "A Thm 7")
def test_local_paths_obey_the_verdict():
    data, v = scored_tokens([[(0.0, 1.0), (0.0, 0.0), (1.0, 0.0)]], [[1.0, 0.0, 0.5]])
    for axis in ([-0.6, 0.8], [1.0, 1.0], [1.0, 0.9]):
        cone = Cone(axis, 0.05, 1.0)
        found = judge_direction(data, v, cone)
        path = ml.path(data, [2.0 * found.norm_bound], head=v, region=cone, restarts=8)
        point, norm = path.points[-1], float(path.norm[-1])
        assert norm <= found.norm_bound or np.linalg.norm(point / norm - cone.axis) > found.delta


@pytest.mark.statement("A Lemma 9", "A Eq. (69)", "A Eq. (70)")
@pytest.mark.parametrize("loss", [Logistic(), Exponential()], ids=["Logistic", "Exponential"])
def test_better_neighbours_bring_the_risk_below_that_of_the_selected_tokens(loss):
    rng, seen = np.random.default_rng(1), 0
    for _ in range(40):
        data, v = ragged_problem(rng, 2, 4, 3)
        p = rng.standard_normal(3)
        at = directional_margin(data, p / np.linalg.norm(p), v)
        higher = [data.scores(v)[i, t] > data.scores(v)[i, at.selected[i]] for i, t in np.argwhere(at.neighbours)]
        radius = undercut_radius(data, v, p, loss)
        assert np.isfinite(radius) == (all(higher) and np.isfinite(at.margin))
        if not np.isfinite(radius) or not isinstance(loss, Logistic):
            continue
        seen += 1
        outright = decimal_risk(data, v, selected=at.selected)
        for stretch in (BEYOND, 3.0):
            norm = max(stretch * radius, 1e-3)
            assert decimal_risk(data, v, norm * p / np.linalg.norm(p)) < outright
    assert seen >= 5 or not isinstance(loss, Logistic)


@pytest.mark.statement("A Lemma 9")
def test_the_radius_of_lemma_9_is_needed_and_batches_equal_loops():
    data, v = scored_tokens([[(0.0, 0.0), (-1.0, 0.0), (-1.5, 0.0)]], [[0.0, 0.01, -10.0]])
    radius = undercut_radius(data, v, [1.0, 0.0])
    outright = decimal_risk(data, v, selected=[0])
    assert decimal_risk(data, v, [BEYOND * radius, 0.0]) < outright
    # nearer the origin the bad token outweighs the good one
    assert decimal_risk(data, v, [0.1 * radius, 0.0]) > outright
    many = undercut_radius(data.repeat(3), v, [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert many.tolist() == [radius, 0.0, np.inf]  # the second selects the worst token, along the third all tie


@pytest.mark.statement("A Lemma 10")
def test_directions_have_no_more_neighbours_than_dimensions_in_general_position():
    rng, n_checked = np.random.default_rng(2), 0
    for _ in range(20):
        data, _ = ragged_problem(rng, 3, 4, 3)
        q = att_svm(data, [int(rng.integers(length)) for length in data.lengths]).x  # as many neighbours as can be
        if not np.isfinite(q).all() or not q.any():
            continue
        found = check_neighbour_count(data, q)
        assert found
        assert found.numbers["neighbours"] == directional_margin(data, q).neighbours.sum() <= 3
        n_checked += 1
    assert n_checked >= 15
    square, _ = scored_tokens([[(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, -1.0)]], [[1.0, 0.0, 0.0, 0.0]])
    crowded = check_neighbour_count(square, [1.0, 0.0])  # three neighbours on one line
    assert not crowded
    assert (crowded.numbers["neighbours"], crowded.numbers["dimensions"]) == (3, 2)
