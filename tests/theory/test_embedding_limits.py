"""Theorem 5 of paper B and the lemmas about its limit: conditions bracketed, with their numbers, and what the flow selects."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import root

from marginlens.data.labelled import LabelledSequences
from marginlens.dynamics.flow import UntilNorm
from marginlens.embeddings import Parameters, embedding_flow, first_step, initial_parameters, loss_and_gradients
from marginlens.status import Status
from marginlens.theory import (
    check_class_window,
    check_lemma_13,
    check_theorem_5,
    decisive_tokens,
    predict_embedding_limit,
    selected_tokens,
)
from marginlens.words import Fact
from marginlens_papers.claims.b.embedding_limits import (
    all_selecting_directions,
    check_lemma_19,
    check_missed_tokens,
    decisive_margin,
    remaining_selections,
    tightest_slack,
)
from marginlens_papers.claims.b.feasible_selections import feasible_selections
from marginlens_papers.claims.b.selection_slopes import directional_slope
from marginlens_papers.claims.random_data import balanced_sequences
from random_problems import started
from refusals import refused
from tolerances import CONDITIONED, DIRECTION_ON_RANDOM_DATA, ROUNDING, SIX_DIGITS

SMALL = LabelledSequences([[0, 2, 3], [2, 3, 1], [0, 3, 2], [1, 2, 3]], [1, -1, 1, -1])


@pytest.mark.statement("B Eq. (10)", "B Thm 5")
def test_conditions_are_bracketed():
    least = 4.0 * 4**2 * 3**2
    holds = [check_theorem_5(SMALL, rate=rate, d_model=2048).conditions[1].holds for rate in (least, 0.99 * least)]
    assert holds == [True, False]
    bound = (2.0 * math.log(4**2 / 0.05)) ** 2  # 133.1
    pairs = [check_theorem_5(SMALL, rate=1.0, d_model=d).conditions[3] for d in (math.ceil(bound), math.floor(bound))]
    assert [check.holds for check in pairs] == [True, False]
    assert pairs[0].numbers["least"] == pytest.approx(bound, rel=SIX_DIGITS, abs=ROUNDING)
    assert [check_theorem_5(SMALL, rate=1.0, d_model=d).conditions[2].holds for d in (256, 255)] == [True, False]
    assert [check_theorem_5(SMALL, rate=1.0, d_model=d).conditions[5].holds for d in (7, 6)] == [True, False]


@pytest.mark.statement("B Eq. (10)")
def test_the_required_width_is_astronomical():
    for rate in (10.0, 100.0, 576.0):
        verdict = check_theorem_5(SMALL, rate=rate, d_model=2**40)
        power = verdict.conditions[4]
        assert not power.holds
        assert power.numbers["log10_least"] == pytest.approx(
            8.0 * math.log10(88.0 * rate**2 + 111.0 * rate + 2.0), rel=SIX_DIGITS, abs=ROUNDING
        )
        assert not verdict.applies
    verdict = check_theorem_5(SMALL, rate=576.0, d_model=2048)
    assert verdict.conclusion.numbers["probability"] == pytest.approx(0.95, rel=SIX_DIGITS, abs=ROUNDING)
    assert verdict.conditions[1].numbers == {"least": 576.0, "rate": 576.0, "n_samples": 4, "length": 3}
    assert [check.code for check in verdict.failed] == ["embedding.width_rate"]


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
    assert found.details.correlation > DIRECTION_ON_RANDOM_DATA
    far = predict_embedding_limit(started(seed, data, 2048), rate, data, until=UntilNorm(5000.0))
    assert 1.0 - far.details.correlation < 0.02 * (1.0 - found.details.correlation)  # the distance falls like 1/‖p‖
    assert not found.verdicts[0].applies
    assert found.why.startswith("Expected, not certain")


@pytest.mark.statement("B Thm 5", "B Eq. (7)")
@pytest.mark.parametrize("seed", [9, 23])
def test_balanced_tied_tokens_give_the_limit_of_the_ties(seed):
    data = balanced_sequences(12, 6, 2, 5, seed)
    found = predict_embedding_limit(started(seed, data, 64), 1.0, data, until=UntilNorm(3000.0))
    assert found.details.run.status is Status.TIED
    assert found.details.tied
    assert max(map(len, found.details.selection)) > 1
    assert found.details.run.norm < 200.0
    assert str(Fact("embedding.tied")) in found.why
    assert found.details.correlation > 0.99  # at so small a norm
    E, v = found.details.step.after.E, found.details.step.after.v
    kept = [
        ids[np.isin(ids, chosen)]
        for (ids, _), chosen in zip(map(data.__getitem__, range(12)), found.details.selection, strict=True)
    ]
    left = loss_and_gradients(Parameters(E, found.details.run.final, v), LabelledSequences(kept, data.y))[1].p
    one = loss_and_gradients(
        Parameters(E, found.details.run.final, v),
        LabelledSequences([max(kept, key=lambda ids: len(set(ids.tolist())))], [1.0]),
    )[1].p
    assert np.linalg.norm(left) < 1e-7 * np.linalg.norm(one)  # among the tied tokens alone this is a minimum
    apart = [np.ptp(E[ids] @ found.details.run.final) for ids in found.details.selection]
    assert 0.01 < max(apart) < 8.0  # they tie in direction, at a finite distance


@pytest.mark.statement("B Thm 5", "X T5")
def test_a_class_is_lost_for_the_predicted_window_of_steps():
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
        assert (fine.details.lost, fine.details.warning) == ((), None)
    assert not lost.details.window.holds
    assert len(lost.details.lost) == 1
    assert not lost.details.selects_important
    assert not lost.details.selects_every_sequence
    assert lost.details.divergence.applies
    assert lost.details.warning.code == "embedding.class_lost"
    assert lost.details.warning.numbers["case"] == "inside"
    assert str(lost.details.warning) in str(lost)
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
    assert lucky.details.warning.code == "embedding.in_window"


@pytest.mark.statement("B Lemma 14")
def test_selecting_everywhere_is_more_than_selecting_somewhere():
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
def test_one_irrelevant_token_disturbs_the_decisive_ones():
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
    assert short.numbers["norm"] == pytest.approx(np.linalg.norm(solution.x), rel=SIX_DIGITS, abs=ROUNDING)
    assert short.numbers["bound"] == 32.0
    assert tightest_slack(solution) < CONDITIONED
    longer = 1.01 * solution.x
    assert np.min(solution.rows @ longer) > 1.0  # any feasible p without a tight constraint can be shortened
    _, long = decisive_margin(1e-2 * E, data)
    assert not long.holds


@pytest.mark.statement("B Lemma 6")
@pytest.mark.parametrize("seed", range(3))
def test_selecting_everything_has_no_gradient(seed):
    data = balanced_sequences(6, 3, 2, 3, seed)
    found = predict_embedding_limit(started(seed, data, 256), 100.0, data)
    E, v = found.details.step.after.E, found.details.step.after.v
    ties = all_selecting_directions(E, data)
    for ids in (data[i][0] for i in range(len(data))):
        np.testing.assert_allclose(np.ptp(ties @ E[ids].T, axis=1), 0.0, rtol=0.0, atol=CONDITIONED)
    for p in (found.details.step.after.p, 0.3 * np.random.default_rng(seed).standard_normal(256)):
        own = abs(directional_slope(Parameters(E, p, v), found.details.solution.x, data))
        for q in ties:
            assert abs(directional_slope(Parameters(E, p, v), q, data)) < CONDITIONED * own
    moved = ties @ (found.details.run.final - found.details.step.after.p)
    np.testing.assert_allclose(moved, 0.0, rtol=0.0, atol=CONDITIONED * 500.0)
    assert any(len(ids) < len(np.unique(data[i][0])) for i, ids in enumerate(found.details.selection))


@pytest.mark.statement("B Eq. (8)")
@pytest.mark.parametrize("size", [1.0, 1e6, 1e-6])
def test_logits_tie_only_up_to_rounding(size):
    rounding = 2.0**-40
    near, apart = (np.array([[1.0], [1.0 - share * rounding]]) for share in (0.5, 2.0))
    assert selected_tokens(size * near, [3.0], [[0, 1]])[0].tolist() == [0, 1]
    assert selected_tokens(size * apart, [3.0], [[0, 1]])[0].tolist() == [0]


@pytest.mark.statement("B Lemma 19")
@pytest.mark.parametrize("seed", range(3))
def test_the_flow_reaches_decisive_tokens_of_widest_margin(seed):
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


# ---- what the theorem and its lemmas ask for


RAGGED = LabelledSequences([[0, 2, 2], [0, 3], [1, 2], [1, 2, 3]], [1, 1, -1, -1])


def by_code(verdict, code):
    (found,) = [check for check in verdict.conditions if check.code == f"embedding.{code}"]
    return found


@pytest.mark.statement("B Thm 5", "B Assumption 4")
def test_for_ragged_lengths_the_moved_scores_decide():
    verdict = check_theorem_5(RAGGED, rate=10.0, d_model=512)
    assert verdict.conditions[0].holds  # by positions every sequence holds one decisive token among irrelevant ones
    still = by_code(verdict, "irrelevant_tokens")
    assert not still.holds
    assert (still.numbers["shortest"], still.numbers["longest"]) == (2, 3)
    assert still.numbers["largest_share"] == pytest.approx(1 / 24, rel=SIX_DIGITS, abs=ROUNDING)
    step = first_step(started(0, RAGGED, 50_000), 1.0, RAGGED)
    moved = np.abs((step.after.E - step.start.E) @ step.start.v)
    np.testing.assert_allclose(moved[2:], 0.5 / 24, rtol=0.0, atol=0.01)
    even = by_code(check_theorem_5(SMALL, rate=10.0, d_model=512), "irrelevant_tokens")
    assert even.holds
    assert (even.numbers["shortest"], even.numbers["longest"]) == (3, 3)
    mirrored = LabelledSequences([[0, 2, 2], [0, 3], [1, 2, 2], [1, 3]], [1, 1, -1, -1])
    assert by_code(check_theorem_5(mirrored, rate=10.0, d_model=512), "irrelevant_tokens").holds


@pytest.mark.statement("B Lemma 13")
def test_the_premises_of_divergence_can_be_met():
    data = balanced_sequences(8, 4, 2, 4, 0)
    step = first_step(started(0, data, 512), 20.0, data)
    assert check_lemma_13(step).applies
    assert check_lemma_13(step).conclusion.code == "embedding.lemma_13"
    narrow = check_lemma_13(first_step(started(0, data, 255), 20.0, data))
    assert [check.code for check in narrow.conditions if not check.holds] == ["embedding.width_256"]
    few = LabelledSequences([[0], [1]], [1, -1])
    assert not check_lemma_13(first_step(started(0, few, 512), 1.0, few)).applies  # nothing beside the decisive tokens
    equal = first_step(Parameters(np.ones((8, 512)) / 16.0, np.zeros(512), np.eye(512)[0]), 1.0, data)
    assert not by_code(check_lemma_13(equal), "full_rank").holds


def with_scores(scores, p=None):
    """Orthonormal embeddings with one more coordinate, along v, that holds the scores, as after a step too small to matter."""
    size = len(scores)
    E = np.hstack([np.eye(size), np.reshape(scores, (-1, 1))])
    return Parameters(E, np.zeros(size + 1) if p is None else p, np.eye(size + 1)[size])


@pytest.mark.statement("B Lemma 13")
def test_leading_scores_exclude_stationary_points():
    rng = np.random.default_rng(13)
    leading = 0
    for _ in range(30):
        data = balanced_sequences(6, 3, 1, 4, rng)
        model = with_scores(rng.normal(size=6))
        lead = by_code(check_lemma_13(first_step(model, 1e-9, data)), "leading_score")
        s = lead.numbers["token"]
        across = np.linalg.pinv(model.E) @ np.eye(6)[s]  # the proof's direction: 1 on s and 0 on every other token
        slopes = [directional_slope(replace(model, p=3.0 * rng.normal(size=7)), across, data) for _ in range(20)]
        assert min(slopes) > 0.0 or not lead.holds
        leading += lead.holds
    assert 10 <= leading <= 25


@pytest.mark.statement("B Lemma 13")
def test_without_a_leading_score_a_stationary_point_exists():
    data = LabelledSequences([[0, 2], [0, 3], [1, 2], [1, 3]], [1, 1, -1, -1])
    model = with_scores([0.0, 0.0, -1.0, 1.0])  # pulled 0 over 2 over 1 over 3 over 0, in a circle
    near = np.linalg.pinv(model.E) @ [1.03, -0.49, -0.31, 1.21]
    at = root(lambda p: loss_and_gradients(Parameters(model.E, p, model.v), data)[1].p, near, method="lm", tol=1e-15).x
    step = first_step(replace(model, p=at), 1e-9, data)
    verdict = check_lemma_13(step)
    lead = by_code(verdict, "leading_score")
    assert (lead.holds, lead.numbers["lead"]) == (False, pytest.approx(-1.0, rel=SIX_DIGITS, abs=ROUNDING))
    assert verdict.conditions[0].holds
    assert by_code(verdict, "full_rank").holds
    run = embedding_flow(replace(model, p=at), data, until=UntilNorm(60.0))
    assert run.status is Status.STATIONARY
    assert run.norm < 10.0


@pytest.mark.statement("B Lemma 14")
def test_a_small_loss_selects_the_token_of_every_sequence():
    rng = np.random.default_rng(14)
    certain, missed_otherwise = 0, 0
    for k in range(24):
        data = balanced_sequences(6, 3, 1, 3, rng)
        d, rate = ((16, 3.0), (16, 30.0), (2048, 3.0), (2048, 300.0))[k % 4]
        step = first_step(initial_parameters(5, d, rng, np.float64), rate, data)
        check = check_missed_tokens(step)
        E = step.after.E
        run = embedding_flow(step.after, data, until=UntilNorm(100.0), tolerance=1e-5)
        assert run.status is Status.COMPLETED
        chosen = selected_tokens(E, run.final, data)
        right = all(own[0] in ids for own, ids in zip(decisive_tokens(data), chosen, strict=True))
        certain += check.holds
        assert right or not check.holds
        missed_otherwise += not right
        # the right-hand side by the paper's words: all attention of one sequence on its best other token, of all others on their best
        scores = E @ step.after.v
        best = np.array([max(y * scores[ids]) for ids, y in map(data.__getitem__, range(6))])
        other = [
            max(y * scores[s] for s in ids if s != own[0])
            for (ids, y), own in zip(map(data.__getitem__, range(6)), decisive_tokens(data), strict=True)
        ]
        leaves = [np.mean(np.log1p(np.exp(-np.where(np.arange(6) == i, other[i], best)))) for i in range(6)]
        assert check.numbers["least"] == pytest.approx(min(leaves), rel=SIX_DIGITS, abs=ROUNDING)
        assert check.numbers["least_of_a_class"] >= check.numbers["least"] * (1.0 - ROUNDING)
    assert certain >= 5
    assert missed_otherwise >= 3
    single = LabelledSequences([[0], [1]], [1, -1])
    assert check_missed_tokens(first_step(started(0, single, 8), 1.0, single)).holds  # nothing else to select


@pytest.mark.statement("B Lemma 19", "B' Lemma 4.5")
def test_lemma_19_has_its_own_widths():
    data = SMALL
    start = started(3, data, 512)
    side = np.eye(512)[0] * 3.0
    tilted = Parameters(start.E + np.outer([1, 1, -1, -1], side), start.p, start.v)
    step = first_step(tilted, 30.0, data)
    verdict = check_lemma_19(step)
    lead = feasible_selections(step.after.E, data, required=decisive_tokens(data)).margin_lead(decisive_tokens(data))
    assert lead > 0.0
    assert by_code(verdict, "margin_lead").numbers["mu"] == pytest.approx(lead, rel=SIX_DIGITS, abs=ROUNDING)
    margin, rate = by_code(verdict, "width_margin"), by_code(verdict, "width_steps")
    n, T = 4, 3
    assert 10 ** margin.numbers["log10_least"] == pytest.approx(
        (2816 * T * n**2 * 61.0 / lead) ** 4, rel=SIX_DIGITS, abs=ROUNDING
    )
    asked = (60.0 * (n * math.sqrt(2 * math.log(16 / 0.05)) + 44 * n)) ** 4
    assert 10 ** rate.numbers["log10_least"] == pytest.approx(asked, rel=SIX_DIGITS, abs=ROUNDING)
    earlier = (8 * T * (1 - lead) / (lead * 30.0)) ** 4
    assert 10 ** margin.numbers["earlier_log10_least"] == pytest.approx(earlier, rel=SIX_DIGITS, abs=ROUNDING)
    assert not margin.holds
    assert not rate.holds
    assert not verdict.applies
    codes = [check.code for check in verdict.conditions]
    # Eq. (10) is a premise
    assert all(check.code in codes for check in check_theorem_5(data, rate=30.0, d_model=512).conditions)
    plain = check_lemma_19(first_step(start, 30.0, data))
    assert not by_code(plain, "margin_lead").holds
    assert by_code(plain, "width_margin").numbers["log10_least"] == math.inf
    small = check_lemma_19(first_step(Parameters(tilted.E, start.p, start.v), 1e-6, data))
    assert by_code(small, "width_steps").holds  # bracketed: a step so small that 512 is enough


@pytest.mark.statement("B Lemma 19")
def test_a_wider_margin_alone_does_not_move_the_flow():
    rng = np.random.default_rng(3)
    data = balanced_sequences(4, 3, 1, 2, rng)
    start = initial_parameters(4, 64, rng, np.float64)
    u = rng.normal(size=64)
    u /= np.linalg.norm(u)
    step = first_step(Parameters(start.E + 3 * np.outer([1, 1, -1, -1], u), start.p, start.v), 10.0, data)
    lead = by_code(check_lemma_19(step), "margin_lead")
    assert lead.holds
    assert lead.numbers["mu"] > 0.6
    end = embedding_flow(step.after, data, until=UntilNorm(500.0)).final
    assert [ids.tolist() for ids in selected_tokens(step.after.E, end, data)] == [[2], [0], [1], [0]]


@pytest.mark.statement("X T5")
def test_the_window_of_lost_classes_has_two_ends():
    data = balanced_sequences(20, 30, 1, 40, 0)
    outside = [check_class_window(data, rate=rate).holds for rate in (10, 100, 200, 400, 700, 3000, 1e4)]
    assert outside == [True, True, False, False, False, True, True]
    check = check_class_window(data, rate=200.0)
    assert check.numbers["moved"] == pytest.approx(100.0 / 60, rel=SIX_DIGITS, abs=ROUNDING)  # (η₀/2)/(2T)
    assert check.numbers["gain"] == pytest.approx((100.0 / 60) ** 2, rel=SIX_DIGITS, abs=ROUNDING)
    assert check.numbers["largest_moved"] == pytest.approx(2.5 * math.log(60), rel=SIX_DIGITS, abs=ROUNDING)
    q = np.linspace(1 / 30, 1, 100_001)[:-1]  # the growth by brute force
    slope = q * (1 - q) / (1 + np.exp(100.0 / 60 * q))
    assert check.numbers["growth"] == pytest.approx(
        2 * (100.0 / 60) ** 2 * np.log(slope.max() / slope[0]), rel=1e-6, abs=ROUNDING
    )
    rates = np.geomspace(1, 1e5, 40)
    for T in (2, 4, 6):
        lonely = balanced_sequences(20, T, 1, 10, 0)
        assert all(check_class_window(lonely, rate=rate).holds for rate in rates)
    many = balanced_sequences(60, 5, 30, 100, 0)
    assert not all(check_class_window(many, rate=rate).holds for rate in rates)
    # five tokens a class gain as much along v at a fifth of the square of their scores
    gain = check_class_window(balanced_sequences(20, 30, 5, 40, 0), rate=500.0).numbers["gain"]
    assert gain == pytest.approx(5 * (250.0 / 300) ** 2, rel=SIX_DIGITS, abs=ROUNDING)
    with refused("sequences"):
        check_class_window([[0, 1], [0, 0]], [1, -1], rate=1.0)
