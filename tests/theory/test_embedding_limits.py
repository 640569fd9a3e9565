"""Theorem 5 of paper B and the lemmas about its limit: conditions with their numbers, and what the flow selects."""

import math

import numpy as np
import pytest

import tolerances
from marginlens.data.labelled import LabelledSequences
from marginlens.dynamics.flow import UntilNorm
from marginlens.embeddings import Parameters, initial_parameters, loss_and_gradients
from marginlens.svm import Status
from marginlens.theory.embedding_limits import (
    check_theorem_5,
    decisive_tokens,
    predict_embedding_limit,
    selected_tokens,
)
from marginlens_papers.lemmas.embedding_limits import (
    all_selecting_directions,
    decisive_margin,
    remaining_selections,
    tightest_slack,
)
from marginlens_papers.lemmas.feasible_selections import feasible_selections
from marginlens_papers.lemmas.random_data import balanced_sequences
from marginlens_papers.lemmas.selection_slopes import directional_slope
from random_problems import started

SMALL = LabelledSequences([[0, 2, 3], [2, 3, 1], [0, 3, 2], [1, 2, 3]], [1, -1, 1, -1])


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
    assert "✓ η₀ ≥ 4n²T²: η₀ = 576, and 4n²T² = 576 for n = 4, T = 3." in text
    assert "✗ d ≥ (88η₀² + 111η₀ + 2)⁸: log₁₀ d = 3.31, and that of the bound is 59.7." in text


@pytest.mark.statement("B Thm 5")
@pytest.mark.parametrize(("seed", "rate"), [(0, 20.0), (1, 100.0), (2, 100.0), (3, 20.0)])
def test_the_flow_selects_the_decisive_tokens_with_maximum_margin(seed, rate):
    data = balanced_sequences(8, 4, 2, 4, seed)
    found = predict_embedding_limit(started(seed, data, 2048), rate, data)
    assert found.details.run.status is Status.COMPLETED
    assert found.details.run.norm >= 500.0
    assert found.details.only_important
    assert found.details.selects_important
    assert found.details.important.tolist() == [0, 1, 2, 3]
    assert all(map(np.array_equal, found.details.selection, decisive_tokens(data)))
    assert found.details.correlation > tolerances.DIRECTION_ON_RANDOM_DATA
    far = predict_embedding_limit(started(seed, data, 2048), rate, data, until=UntilNorm(5000.0))
    assert 1.0 - far.details.correlation < 0.02 * (1.0 - found.details.correlation)  # the distance falls like 1/‖p‖
    assert not found.verdicts[0].applies
    assert "Expected, not certain, for want of" in found.why
    assert "B Thm 5 does not apply" in str(found)


@pytest.mark.statement("B Thm 5", "B Eq. (7)")
@pytest.mark.parametrize("seed", [9, 23])
def test_where_tied_tokens_balance_the_limit_is_that_of_the_ties(seed):
    data = balanced_sequences(12, 6, 2, 5, seed)
    found = predict_embedding_limit(started(seed, data, 64), 1.0, data, until=UntilNorm(3000.0))
    assert found.details.run.status is Status.TIED
    assert found.details.tied
    assert max(map(len, found.details.selection)) > 1
    assert found.details.run.norm < 200.0
    assert "Tokens tie: their gradient contributions cancel" in found.why
    assert found.details.correlation > 0.99  # at so small a norm
    E, v = found.details.step.after.E, found.details.step.after.v
    kept = [
        ids[np.isin(ids, chosen)]
        for (ids, _), chosen in zip(map(data.__getitem__, range(12)), found.details.selection, strict=True)
    ]
    left = loss_and_gradients(E, found.details.run.final, v, LabelledSequences(kept, data.y))[1].p
    one = loss_and_gradients(
        E, found.details.run.final, v, LabelledSequences([max(kept, key=lambda ids: len(set(ids.tolist())))], [1.0])
    )[1].p
    assert np.linalg.norm(left) < 1e-7 * np.linalg.norm(one)  # among the tied tokens alone this is a minimum
    apart = [np.ptp(E[ids] @ found.details.run.final) for ids in found.details.selection]
    assert 0.01 < max(apart) < 8.0  # they tie in direction, at a finite distance


@pytest.mark.statement("B Thm 5", "X T5")
def test_a_class_is_lost_for_a_window_of_steps_and_the_prediction_says_so():
    rng = np.random.default_rng([20, 30, 1, 40, 2048, 0])
    data = balanced_sequences(20, 30, 1, 40, rng)
    start = initial_parameters(data.n_vocabulary, 2048, rng, np.float64)
    small, lost, large = (
        predict_embedding_limit(start, rate, data, until=UntilNorm(100.0)) for rate in (100.0, 400.0, 3000.0)
    )
    for fine in (small, large):
        assert fine.details.only_important
        assert fine.details.selects_every_sequence
        assert fine.details.window.holds
        assert (fine.details.lost, fine.details.warning) == ((), "")
    assert not lost.details.window.holds
    assert len(lost.details.lost) == 1
    assert not lost.details.selects_important
    assert not lost.details.selects_every_sequence
    assert lost.details.divergence.applies
    assert "selects its decisive token; ⟨p, v⟩ went from" in lost.details.warning
    assert "inside the window in which runs lose a class (claim X-T5: measured, not proved)" in lost.details.warning
    assert lost.details.warning in str(lost)
    assert abs(lost.details.run.final @ start.v) > 20.0 > 5.0 > abs(large.details.run.final @ start.v)
    lucky = predict_embedding_limit(start, 400.0, SMALL, until=UntilNorm(50.0))
    assert lucky.details.window.holds  # short sequences with one decisive token a class have no window
    rng = np.random.default_rng(31)
    data = balanced_sequences(72, 5, 36, 130, rng)  # with many they have
    start = initial_parameters(data.n_vocabulary, 1024, rng, np.float64)
    short = predict_embedding_limit(start, 4.0 * 5 * 36 * 1.8, data, until=UntilNorm(100.0))
    assert len(short.details.lost) == 1
    assert not short.details.window.holds
    rng = np.random.default_rng([20, 12, 1, 40, 2048, 0])
    data = balanced_sequences(20, 12, 1, 40, rng)
    start = initial_parameters(data.n_vocabulary, 2048, rng, np.float64)
    lucky = predict_embedding_limit(start, 4.0 * 12 * 5.0, data, until=UntilNorm(50.0))
    assert lucky.details.only_important
    assert "This one did not; another initialisation may." in lucky.details.warning


@pytest.mark.statement("B Lemma 14")
def test_selecting_in_every_sequence_is_more_than_selecting_somewhere():
    rng = np.random.default_rng(1)
    data = balanced_sequences(8, 4, 1, 5, rng)
    start = initial_parameters(data.n_vocabulary, 30, rng, np.float64)
    found = predict_embedding_limit(start, 3.0, data, until=UntilNorm(100.0))
    own = decisive_tokens(data)
    missed = [i for i in range(8) if own[i][0] not in found.details.selection[i]]
    assert missed == [1, 3, 6]
    assert found.details.selects_important
    assert not found.details.selects_every_sequence
    broken = predict_embedding_limit(start, 3.0, [[4, 5], [5, 4]], [1, -1], until=UntilNorm(5.0))
    assert broken.details.selects_every_sequence  # no sequence has a decisive token to miss
    assert (broken.details.lost, broken.details.window) == ((), None)


@pytest.mark.statement("B §3, one irrelevant token")
def test_one_irrelevant_token_does_not_leave_the_decisive_ones_alone():
    data = LabelledSequences([[0, 2], [1, 2]], [1, -1])
    left = remaining_selections(np.eye(3), data)
    found = {tuple(tuple(ids.tolist()) for ids in one) for one in left.selections}
    assert found == {((0,), (1,)), ((0,), (1, 2)), ((0, 2), (1,))}
    for one, direction in zip(left.selections, left.directions, strict=True):
        assert all(map(np.array_equal, selected_tokens(np.eye(3), direction, data), one))
    start = started(0, data, 256)
    # the conclusion is not false here, it does not follow
    assert predict_embedding_limit(start, 20.0, data).details.only_important


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


@pytest.mark.statement("B Lemma 6")
@pytest.mark.parametrize("seed", range(3))
def test_nothing_pulls_towards_selecting_everything(seed):
    data = balanced_sequences(6, 3, 2, 3, seed)
    found = predict_embedding_limit(started(seed, data, 256), 100.0, data)
    E, v = found.details.step.after.E, found.details.step.after.v
    ties = all_selecting_directions(E, data)
    for ids in (data[i][0] for i in range(len(data))):
        np.testing.assert_allclose(np.ptp(ties @ E[ids].T, axis=1), 0.0, atol=tolerances.CONDITIONED)
    for p in (found.details.step.after.p, 0.3 * np.random.default_rng(seed).standard_normal(256)):
        own = abs(directional_slope(Parameters(E, p, v), found.details.solution.x, data))
        for q in ties:
            assert abs(directional_slope(Parameters(E, p, v), q, data)) < tolerances.CONDITIONED * own
    moved = ties @ (found.details.run.final - found.details.step.after.p)
    np.testing.assert_allclose(moved, 0.0, atol=tolerances.CONDITIONED * 500.0)
    assert any(len(ids) < len(np.unique(data[i][0])) for i, ids in enumerate(found.details.selection))


@pytest.mark.statement("B Eq. (8)")
@pytest.mark.parametrize("size", [1.0, 1e6, 1e-6])
def test_logits_tie_up_to_rounding_and_no_further(size):
    rounding = 2.0**-40
    near, apart = (np.array([[1.0], [1.0 - share * rounding]]) for share in (0.5, 2.0))
    assert selected_tokens(size * near, [3.0], [[0, 1]])[0].tolist() == [0, 1]
    assert selected_tokens(size * apart, [3.0], [[0, 1]])[0].tolist() == [0]


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
    listed = feasible_selections(found.details.step.after.E, SMALL, required=decisive)
    assert listed.margin_lead(decisive) > 0.0
    assert all(map(np.array_equal, found.details.selection, decisive))
    assert listed.index(found.details.selection) >= 0
