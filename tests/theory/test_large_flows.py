"""Flows of problems with many tokens: what is left out of a leg changes no answer, and distances of many rows are the largest."""

from __future__ import annotations

import numpy as np
import pytest

import marginlens as ml
from marginlens.arithmetic.directions import length
from marginlens.dynamics.flow import FlowRun, field_of
from marginlens.theory.attraction import tubes_at
from marginlens.theory.live_tokens import LiveFlow, leads_at, may_be_proved
from marginlens.theory.optimality import largest_distance
from marginlens.theory.scored_tokens import ScoredTokens


def bags_with_markers(n_bags=6, n_patches=300, width=8, seed=11):
    """Noise, in which positive bags have a patch far along one axis and negative bags one along another."""
    rng = np.random.default_rng(seed)
    patches = 0.3 * rng.standard_normal((n_bags, n_patches, width))
    labels = np.arange(n_bags) % 2
    patches[np.arange(n_bags), rng.integers(n_patches, size=n_bags), 1 - labels] += 4.0
    return ml.data.bags(patches, labels), np.eye(width)[0] - np.eye(width)[1]


def test_the_end_of_a_large_flow_is_that_of_steps_and_proved_over_all_rows():
    data, head = bags_with_markers()
    outcome = ml.predict_limit(data, head, max_problems=1).outcome
    run = ml.descend(data, head, optimizer=ml.NormalizedGD(0.2), n_steps=4000)
    assert outcome.selected.tolist() == run.selected.tolist()
    assert outcome.certificate is not None
    assert outcome.certificate.verify().applies
    assert len(ml.att_svm(data, outcome.selected).rows) == 6 * 299
    assert ml.correlation(outcome.direction, ml.att_svm(data, outcome.selected).x) > 1.0 - 1e-9


def test_legs_without_negligible_tokens_go_where_all_tokens_go():
    data, head = bags_with_markers(seed=12)
    problem = ScoredTokens(data, head)
    field = field_of(problem.risk)
    every, some = FlowRun(field, np.zeros(8)), LiveFlow(problem, field, np.zeros(8))
    n_left_out = []
    for way in (4.0, 12.0, 28.0, 60.0, 300.0, 900.0):
        n_left_out.append(int(np.sum(~some._live(1.5))))
        every.follow(way)
        some.follow(way)
        assert length(every.point - some.point) < 1e-3 * length(every.point)
    assert n_left_out[0] == 0
    assert n_left_out[-1] > 1000


def test_a_leg_in_which_a_token_catches_up_is_followed_with_all_tokens():
    data, head = bags_with_markers(seed=13)
    problem = ScoredTokens(data, head)
    field = field_of(problem.risk)
    # Attention starts far along a direction that training leaves.
    start = 60.0 * np.eye(8)[5]
    every, some = FlowRun(field, start), LiveFlow(problem, field, start)
    assert not some._live(1.5).all()
    every.follow(300.0)
    some.follow(300.0)
    assert (
        leads_at(problem, every.point).argmin(axis=1).tolist() == leads_at(problem, some.point).argmin(axis=1).tolist()
    )


@pytest.mark.parametrize("seed", range(6))
def test_no_tube_is_proved_where_an_input_attends_to_others_as_much(seed):
    data, heads = ml.data.sphere_tokens(1, 3, 5, 4, seed)
    problem = ScoredTokens(data[0], heads[0])
    run = ml.descend(data[0], heads[0], n_steps=60, optimizer=ml.NormalizedGD(0.5), record=ml.Record(1))
    for point in run.saved["x"][1:]:
        if not may_be_proved(problem, point):
            assert tubes_at(problem.as_batch(), point[None], None).missing[0] != 0


@pytest.mark.parametrize("scale", [1.0, 1e80, 1e-80])
def test_the_largest_distance_of_many_rows_is_that_of_all_pairs(scale):
    rng = np.random.default_rng(21)
    rows, mask = scale * rng.standard_normal((3, 130, 5)), rng.random((3, 130)) < 0.8
    pairs = np.where(mask[:, :, None] & mask[:, None], length(rows[:, :, None] - rows[:, None]), 0.0)
    assert largest_distance(rows, mask) == pairs.max()
    assert largest_distance(np.ones((2, 100, 3)), np.ones((2, 100), dtype=bool)) == 0.0
