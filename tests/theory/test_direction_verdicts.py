"""Theorems 4 and 7 for a given direction, Lemmas 9 and 10: cases, competitors and radii, held against risks in long decimals."""

from decimal import Decimal

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import attention, decimals, dot, long_decimals
from marginlens import Exponential, Logistic, att_svm
from marginlens.data import scored_tokens
from marginlens.dynamics import Cone
from marginlens.theory import directional_margin, locally_optimal_directions
from marginlens_papers.lemmas.direction_cases import (
    DirectionCase,
    check_neighbour_count,
    judge_direction,
    undercut_radius,
)
from random_problems import ragged_problem
from tolerances import ROUNDING

DIGITS = 320
LONGEST = 150.0  # norm up to which risks differ within these digits
BEYOND = 1.0 + 1e-6  # just past a radius


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
def test_what_is_near_a_direction_outside_p_mm_is_beaten_from_the_given_norm_on():
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
def test_the_cases_of_the_proof_and_their_competitors_by_hand():
    data, v = scored_tokens([[(0.0, 1.0), (0.0, 0.0), (1.0, 0.0)]], [[1.0, 0.0, 0.5]])
    wide = judge_direction(data, v, Cone([-0.6, 0.8], 0.1, 1.0))  # selects (0, 1), but leans
    assert wide.case is DirectionCase.A1
    best = np.array([0.0, 1.0])  # p^mm: the token (0, 1) leads both others by one
    mixed = np.array([-0.6, 0.8]) + 0.05 * best
    assert wide.competitor == pytest.approx(mixed / np.linalg.norm(mixed), abs=ROUNDING)
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
def test_the_radius_of_lemma_9_is_needed_and_batches_are_loops():
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
    rng = np.random.default_rng(2)
    for _ in range(20):
        data, _ = ragged_problem(rng, 3, 4, 3)
        q = att_svm(data, [int(rng.integers(length)) for length in data.lengths]).x  # as many neighbours as can be
        if not np.isfinite(q).all() or not q.any():
            continue
        found = check_neighbour_count(data, q)
        assert found
        assert found.numbers["neighbours"] == directional_margin(data, q).neighbours.sum() <= 3
    square, _ = scored_tokens([[(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.0, -1.0)]], [[1.0, 0.0, 0.0, 0.0]])
    crowded = check_neighbour_count(square, [1.0, 0.0])  # three neighbours on one line
    assert not crowded
    assert "3 directional neighbours in 2 dimensions" in str(crowded)
