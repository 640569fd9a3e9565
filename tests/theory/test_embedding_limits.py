"""Theorem 5 of paper B and the lemmas about its limit: conditions with their numbers, and what the flow selects."""

import math

import numpy as np
import pytest

import tolerances
from marginlens.data.labelled import LabelledSequences
from marginlens.data.levels import balanced_sequences
from marginlens.dynamics import DescentStatus
from marginlens.dynamics.flow import UntilNorm
from marginlens.embeddings import Parameters, initial_parameters
from marginlens.embeddings.directional import directional_slope
from marginlens.errors import InputError
from marginlens.svm import Status
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.embedding_limits import (
    all_selecting_directions,
    check_theorem_5,
    decisive_margin,
    decisive_tokens,
    predict_embedding_limit,
    tightest_slack,
)
from marginlens.theory.vocabulary_selections import feasible_selections, selected_tokens

SMALL = LabelledSequences([[0, 2, 3], [2, 3, 1], [0, 3, 2], [1, 2, 3]], [1, -1, 1, -1])


def started(seed, data, d):
    """Random initial parameters for the tokens of `data`."""
    return initial_parameters(data.n_vocabulary, d, np.random.default_rng(seed), np.float64)


@pytest.mark.statement("B Eq. (10)", "B Thm 5")
def test_conditions_are_bracketed():
    least = 4.0 * 4**2 * 3**2
    holds = [check_theorem_5(SMALL, rate=rate, d_model=2048).conditions[1].holds for rate in (least, 0.99 * least)]
    assert holds == [True, False]
    bound = (2.0 * math.log(4**2 / 0.05)) ** 2  # 133.1
    pairs = [check_theorem_5(SMALL, rate=1.0, d_model=d).conditions[3] for d in (math.ceil(bound), math.floor(bound))]
    assert [check.holds for check in pairs] == [True, False]
    assert pairs[0].numbers["least"] == pytest.approx(bound)
    assert [check_theorem_5(SMALL, rate=1.0, d_model=d).conditions[2].holds for d in (256, 255)] == [True, False]
    assert [check_theorem_5(SMALL, rate=1.0, d_model=d).conditions[5].holds for d in (7, 6)] == [True, False]


@pytest.mark.statement("B Eq. (10)")
def test_the_width_asked_for_is_beyond_any_machine():
    for rate in (10.0, 100.0, 576.0):
        verdict = check_theorem_5(SMALL, rate=rate, d_model=2**40)
        power = verdict.conditions[4]
        assert not power.holds
        assert power.numbers["log10_least"] == pytest.approx(8.0 * math.log10(88.0 * rate**2 + 111.0 * rate + 2.0))
        assert not verdict.applies
    assert "with probability 0.95 the flow diverges" in check_theorem_5(SMALL, rate=1.0, d_model=7).conclusion
    text = str(check_theorem_5(SMALL, rate=576.0, d_model=2048))
    assert "[x] η₀ ≥ 4n²T²: η₀ = 576, and 4n²T² = 576 for n = 4, T = 3." in text
    assert "[ ] d ≥ (88η₀² + 111η₀ + 2)⁸: log₁₀ d = 3.31, and that of the bound is 59.7." in text


@pytest.mark.statement("B Thm 5")
def test_with_a_rate_so_small_that_the_width_can_be_met_the_rate_is_too_small():
    verdict = check_theorem_5(SMALL, rate=1e-3, d_model=2048)  # 2.11^8 = 394
    assert verdict.conditions[4].holds
    assert [check.name for check in verdict.conditions if not check.holds] == ["η₀ ≥ 4n²T²"]


@pytest.mark.statement("B Thm 5")
def test_data_that_break_assumption_4_are_told():
    verdict = check_theorem_5([[0, 1], [0, 0]], [1, -1], rate=10.0, d_model=512)
    assert not verdict.conditions[0].holds
    assert "Assumption 4 fails for 2 of 2 sequences" in verdict.conditions[0].sentence
    with pytest.raises(InputError, match="each holds one decisive token among irrelevant ones; got Assumption 4 fails"):
        decisive_tokens([[0, 1], [0, 0]], [1, -1])


@pytest.mark.statement("B Thm 5")
@pytest.mark.parametrize(("seed", "rate"), [(0, 20.0), (1, 100.0), (2, 100.0), (3, 20.0)])
def test_the_flow_selects_the_decisive_tokens_with_maximum_margin(seed, rate):
    data = balanced_sequences(8, 4, 2, 4, seed)
    found = predict_embedding_limit(started(seed, data, 2048), rate, data)
    assert found.run.status is DescentStatus.COMPLETED
    assert found.run.norm >= 500.0
    assert found.only_important
    assert found.selects_important
    assert found.important.tolist() == [0, 1, 2, 3]
    assert all(map(np.array_equal, found.selection, decisive_tokens(data)))
    assert found.correlation > tolerances.DIRECTION_ON_RANDOM_DATA
    far = predict_embedding_limit(started(seed, data, 2048), rate, data, until=UntilNorm(5000.0))
    assert 1.0 - far.correlation < 0.02 * (1.0 - found.correlation)  # the distance falls like 1/‖p‖
    assert not found.verdict.applies
    assert "Expected, not certain, for want of" in found.why
    assert "B Thm 5 does not apply" in repr(found)


@pytest.mark.statement("B Thm 5")
def test_the_limit_is_max_margin_whatever_is_selected():
    data = balanced_sequences(12, 6, 2, 5, 0)
    for seed in (0, 2, 3, 4, 5):  # so small a step at so small a width leaves random scores in charge
        found = predict_embedding_limit(started(seed, data, 64), 1.0, data, until=UntilNorm(3000.0))
        assert not found.only_important
        assert found.solution.status is Status.OPTIMAL
        assert found.correlation > tolerances.DIRECTION_ON_RANDOM_DATA


@pytest.mark.statement("B Thm 5")
def test_where_tied_tokens_balance_no_direction_is_claimed():
    data = balanced_sequences(12, 6, 2, 5, 0)
    found = predict_embedding_limit(started(1, data, 64), 1.0, data, until=UntilNorm(3000.0))
    assert found.run.status is DescentStatus.STATIONARY
    assert found.direction is None
    assert math.isnan(found.correlation)
    assert found.why.startswith("No limit known: the flow is at a zero of the gradient")


@pytest.mark.statement("B Lemma 21", "B Lemma 20")
@pytest.mark.parametrize("seed", range(4))
def test_the_decisive_solution_is_short_and_has_a_tight_constraint(seed):
    data = balanced_sequences(8, 4, 2, 4, seed)
    E = started(seed, data, 1024).E
    solution, short = decisive_margin(E, data)
    assert short.holds
    assert short.numbers["norm"] == pytest.approx(np.linalg.norm(solution.x))
    assert short.numbers["bound"] == 32.0
    assert tightest_slack(solution) < tolerances.CONDITIONED
    longer = 1.01 * solution.x
    assert np.min(solution.rows @ longer) > 1.0  # any feasible p without a tight constraint can be shortened
    _, long = decisive_margin(1e-2 * E, data)
    assert not long.holds


@pytest.mark.statement("B Lemma 20")
def test_tightness_is_asked_of_a_solution_only():
    with pytest.raises(InputError, match="'solution' argument must be one problem with a solution other than zero"):
        tightest_slack(vocabulary_svm(np.eye(2), [[0, 1]], [[0, 1]]))


@pytest.mark.statement("B Lemma 6")
@pytest.mark.parametrize("seed", range(3))
def test_nothing_pulls_towards_selecting_everything(seed):
    data = balanced_sequences(6, 3, 2, 3, seed)
    found = predict_embedding_limit(started(seed, data, 256), 100.0, data)
    E, v = found.step.after.E, found.step.after.v
    ties = all_selecting_directions(E, data)
    for ids in (data[i][0] for i in range(len(data))):
        np.testing.assert_allclose(np.ptp(ties @ E[ids].T, axis=1), 0.0, atol=tolerances.CONDITIONED)
    for p in (found.step.after.p, 0.3 * np.random.default_rng(seed).standard_normal(256)):
        own = abs(directional_slope(Parameters(E, p, v), found.solution.x, data))
        for q in ties:
            assert abs(directional_slope(Parameters(E, p, v), q, data)) < tolerances.CONDITIONED * own
    moved = ties @ (found.run.final - found.step.after.p)
    np.testing.assert_allclose(moved, 0.0, atol=tolerances.CONDITIONED * 500.0)
    assert any(len(ids) < len(np.unique(data[i][0])) for i, ids in enumerate(found.selection))


def test_tokens_that_never_meet_may_tie_at_different_heights():
    ties = all_selecting_directions(np.eye(5), [[0, 2], [1, 3], [4, 1]], [1, -1, 1])
    np.testing.assert_allclose(ties, [[1, 0, 1, 0, 0], [0, 1, 0, 1, 1]], atol=tolerances.ROUNDING)
    with pytest.raises(InputError, match="linearly independent on the tokens that occur"):
        all_selecting_directions(np.ones((3, 4)), [[0, 1, 2]], [1])
    with pytest.raises(InputError, match="'E' argument must be at least 4 rows, one for each token; got 3 rows"):
        all_selecting_directions(np.eye(3), [[0, 3]], [1])


@pytest.mark.statement("B Eq. (8)")
@pytest.mark.parametrize("size", [1.0, 1e6, 1e-6])
def test_logits_tie_up_to_rounding_and_no_further(size):
    rounding = 2.0**-40
    near, apart = (np.array([[1.0], [1.0 - share * rounding]]) for share in (0.5, 2.0))
    assert selected_tokens(size * near, [3.0], [[0, 1]])[0].tolist() == [0, 1]
    assert selected_tokens(size * apart, [3.0], [[0, 1]])[0].tolist() == [0]


@pytest.mark.statement("B Lemma 19")
def test_selections_that_contradict_each_other_in_a_circle_are_never_solved():
    pairs = [[0, 1], [0, 2], [1, 2]]
    found = feasible_selections(np.eye(3), pairs)
    assert len(found) == found.n_solved == 13  # the ways to rank three tokens, ties included


@pytest.mark.statement("B Lemma 19")
def test_with_orthonormal_embeddings_other_selections_have_wider_margins():
    k, m = 2, 2
    decisive, E = decisive_tokens(SMALL), np.eye(4)
    own = vocabulary_svm(E, SMALL, decisive)
    assert float(own.margin) ** -2 == pytest.approx(k * m / (k + m))
    one = vocabulary_svm(E, SMALL, [[0], [1, 2, 3], [0], [1, 2, 3]])
    assert float(one.margin) ** -2 == pytest.approx(3 / 4)
    mirrored = vocabulary_svm(E, SMALL, [[2, 3]] * 4)
    np.testing.assert_allclose(mirrored.x, -own.x, atol=tolerances.CONDITIONED)
    assert feasible_selections(E, SMALL).margin_lead(decisive) < 0.0


@pytest.mark.statement("B Lemma 19")
@pytest.mark.parametrize("seed", range(3))
def test_where_the_decisive_tokens_have_the_widest_margin_the_flow_goes_there(seed):
    rng = np.random.default_rng(seed)
    start = started(seed, SMALL, 512)
    common = rng.standard_normal(512)
    common *= 3.0 / np.linalg.norm(common)
    tilted = Parameters(start.E + np.outer([1, 1, -1, -1], common), start.p, start.v)
    found = predict_embedding_limit(tilted, 30.0, SMALL)
    decisive = decisive_tokens(SMALL)
    listed = feasible_selections(found.step.after.E, SMALL, required=decisive)
    assert listed.margin_lead(decisive) > 0.0
    assert all(map(np.array_equal, found.selection, decisive))
    assert listed.index(found.selection) >= 0
