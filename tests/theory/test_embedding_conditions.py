"""What paper B's theorem and lemmas about the flow ask for: each condition bracketed, and what its proof needs beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import root

from marginlens.data.labelled import LabelledSequences
from marginlens.dynamics.flow import UntilNorm
from marginlens.embeddings import Parameters, embedding_flow, first_step, initial_parameters, loss_and_gradients
from marginlens.errors import InputError
from marginlens.status import Status
from marginlens.theory import check_class_window, check_lemma_13, check_theorem_5, decisive_tokens, selected_tokens
from marginlens_papers.lemmas.embedding_limits import check_lemma_19, check_missed_tokens
from marginlens_papers.lemmas.feasible_selections import feasible_selections
from marginlens_papers.lemmas.random_data import balanced_sequences
from marginlens_papers.lemmas.selection_slopes import directional_slope
from random_problems import started
from tolerances import ROUNDING

SMALL = LabelledSequences([[0, 2, 3], [2, 3, 1], [0, 3, 2], [1, 2, 3]], [1, -1, 1, -1])
RAGGED = LabelledSequences([[0, 2, 2], [0, 3], [1, 2], [1, 2, 3]], [1, 1, -1, -1])


def by_name(verdict, start):
    (found,) = [check for check in verdict.conditions if check.name.startswith(start)]
    return found


@pytest.mark.statement("B Thm 5", "B Assumption 4")
def test_where_lengths_differ_what_the_step_moves_decides():
    verdict = check_theorem_5(RAGGED, rate=10.0, d_model=512)
    assert verdict.conditions[0].holds  # by positions every sequence holds one decisive token among irrelevant ones
    still = by_name(verdict, "irrelevant tokens stay")
    assert not still.holds
    assert "lengths are 2 to 3, so the step moves token" in still.sentence
    assert still.numbers["largest_share"] == pytest.approx(1 / 24)
    step = first_step(started(0, RAGGED, 50_000), 1.0, RAGGED)
    moved = np.abs((step.after.E - step.start.E) @ step.start.v)
    np.testing.assert_allclose(moved[2:], 0.5 / 24, atol=0.01)
    even = by_name(check_theorem_5(SMALL, rate=10.0, d_model=512), "irrelevant tokens stay")
    assert even.holds
    assert "all sequences have 3 tokens, so the step leaves irrelevant tokens" in even.sentence
    mirrored = LabelledSequences([[0, 2, 2], [0, 3], [1, 2, 2], [1, 3]], [1, 1, -1, -1])
    assert by_name(check_theorem_5(mirrored, rate=10.0, d_model=512), "irrelevant tokens stay").holds


@pytest.mark.statement("B Lemma 13")
def test_the_premises_of_divergence_can_be_met():
    data = balanced_sequences(8, 4, 2, 4, 0)
    step = first_step(started(0, data, 512), 20.0, data)
    assert check_lemma_13(step).applies
    assert "with probability 0.95 ‖p‖ grows without end" in str(check_lemma_13(step))
    narrow = check_lemma_13(first_step(started(0, data, 255), 20.0, data))
    assert [check.name for check in narrow.conditions if not check.holds] == ["d ≥ 256"]
    few = LabelledSequences([[0], [1]], [1, -1])
    assert not check_lemma_13(first_step(started(0, few, 512), 1.0, few)).applies  # nothing beside the decisive tokens
    equal = first_step(Parameters(np.ones((8, 512)) / 16.0, np.zeros(512), np.eye(512)[0]), 1.0, data)
    assert not by_name(check_lemma_13(equal), "E has full rank").holds


def with_scores(scores, p=None):
    """Orthonormal embeddings with one more coordinate, along v, that holds the scores, as after a step too small to matter."""
    size = len(scores)
    E = np.hstack([np.eye(size), np.reshape(scores, (-1, 1))])
    return Parameters(E, np.zeros(size + 1) if p is None else p, np.eye(size + 1)[size])


@pytest.mark.statement("B Lemma 13")
def test_scores_that_lead_keep_every_point_from_being_stationary():
    rng = np.random.default_rng(13)
    leading = 0
    for _ in range(30):
        data = balanced_sequences(6, 3, 1, 4, rng)
        model = with_scores(rng.normal(size=6))
        lead = by_name(check_lemma_13(first_step(model, 1e-9, data)), "γ_s > γ_j")
        s = int(lead.sentence.split("token ")[1].split()[0])
        across = np.linalg.pinv(model.E) @ np.eye(6)[s]  # the proof's direction: 1 on s and 0 on every other token
        slopes = [directional_slope(replace(model, p=3.0 * rng.normal(size=7)), across, data) for _ in range(20)]
        assert min(slopes) > 0.0 or not lead.holds
        leading += lead.holds
    assert 10 <= leading <= 25


@pytest.mark.statement("B Lemma 13")
def test_without_a_score_that_leads_a_finite_point_can_be_stationary():
    data = LabelledSequences([[0, 2], [0, 3], [1, 2], [1, 3]], [1, 1, -1, -1])
    model = with_scores([0.0, 0.0, -1.0, 1.0])  # pulled 0 over 2 over 1 over 3 over 0, in a circle
    near = np.linalg.pinv(model.E) @ [1.03, -0.49, -0.31, 1.21]
    at = root(lambda p: loss_and_gradients(model.E, p, model.v, data)[1].p, near, method="lm", tol=1e-15).x
    step = first_step(replace(model, p=at), 1e-9, data)
    verdict = check_lemma_13(step)
    lead = by_name(verdict, "γ_s > γ_j")
    assert (lead.holds, lead.numbers["lead"]) == (False, pytest.approx(-1.0))
    assert verdict.conditions[0].holds
    assert by_name(verdict, "E has full rank").holds
    run = embedding_flow(replace(model, p=at), data, until=UntilNorm(60.0))
    assert run.status is Status.STATIONARY
    assert run.norm < 10.0


@pytest.mark.statement("B Lemma 14")
def test_a_loss_too_small_to_miss_a_token_leads_every_sequence_to_its_own():
    rng = np.random.default_rng(14)
    certain, missed_otherwise = 0, 0
    for k in range(24):
        data = balanced_sequences(6, 3, 1, 3, rng)
        d, rate = ((16, 3.0), (16, 30.0), (2048, 3.0), (2048, 300.0))[k % 4]
        step = first_step(initial_parameters(5, d, rng, np.float64), rate, data)
        check = check_missed_tokens(step)
        E = step.after.E
        run = embedding_flow(step.after, data, until=UntilNorm(100.0), tolerance=1e-5)
        if run.status is not Status.COMPLETED:
            continue
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
        assert check.numbers["least"] == pytest.approx(min(leaves))
        assert check.numbers["least_of_a_class"] >= check.numbers["least"] * (1.0 - ROUNDING)
    assert certain >= 5
    assert missed_otherwise >= 3
    single = LabelledSequences([[0], [1]], [1, -1])
    assert check_missed_tokens(first_step(started(0, single, 8), 1.0, single)).holds  # nothing else to select


@pytest.mark.statement("B Lemma 19", "B' Lemma 4.5")
def test_lemma_19_has_widths_of_its_own():
    data = SMALL
    start = started(3, data, 512)
    side = np.eye(512)[0] * 3.0
    tilted = Parameters(start.E + np.outer([1, 1, -1, -1], side), start.p, start.v)
    step = first_step(tilted, 30.0, data)
    verdict = check_lemma_19(step)
    lead = feasible_selections(step.after.E, data, required=decisive_tokens(data)).margin_lead(decisive_tokens(data))
    assert lead > 0.0
    assert by_name(verdict, "‖p̂‖").numbers["mu"] == pytest.approx(lead)
    margin, rate = by_name(verdict, "d ≥ (2816"), by_name(verdict, "d ≥ (2η₀")
    n, T = 4, 3
    assert 10 ** margin.numbers["log10_least"] == pytest.approx((2816 * T * n**2 * 61.0 / lead) ** 4)
    asked = (60.0 * (n * math.sqrt(2 * math.log(16 / 0.05)) + 44 * n)) ** 4
    assert 10 ** rate.numbers["log10_least"] == pytest.approx(asked)
    earlier = (8 * T * (1 - lead) / (lead * 30.0)) ** 4
    assert 10 ** margin.numbers["earlier_log10_least"] == pytest.approx(earlier)
    assert not margin.holds
    assert not rate.holds
    assert not verdict.applies
    names = [check.name for check in verdict.conditions]
    # Eq. (10) is a premise
    assert all(check.name in names for check in check_theorem_5(data, rate=30.0, d_model=512).conditions)
    plain = check_lemma_19(first_step(start, 30.0, data))
    assert not by_name(plain, "‖p̂‖").holds
    assert by_name(plain, "d ≥ (2816").numbers["log10_least"] == math.inf
    small = check_lemma_19(first_step(Parameters(tilted.E, start.p, start.v), 1e-6, data))
    assert by_name(small, "d ≥ (2η₀").holds  # bracketed: a step so small that 512 is enough


@pytest.mark.statement("B Lemma 19")
def test_a_wider_margin_alone_does_not_move_the_flow():
    rng = np.random.default_rng(3)
    data = balanced_sequences(4, 3, 1, 2, rng)
    start = initial_parameters(4, 64, rng, np.float64)
    u = rng.normal(size=64)
    u /= np.linalg.norm(u)
    step = first_step(Parameters(start.E + 3 * np.outer([1, 1, -1, -1], u), start.p, start.v), 10.0, data)
    lead = by_name(check_lemma_19(step), "‖p̂‖")
    assert lead.holds
    assert lead.numbers["mu"] > 0.6
    end = embedding_flow(step.after, data, until=UntilNorm(500.0)).final
    assert [ids.tolist() for ids in selected_tokens(step.after.E, end, data)] == [[2], [0], [1], [0]]


@pytest.mark.statement("X T5")
def test_the_window_of_lost_classes_has_two_ends_and_opens_for_short_sequences_by_many_decisive_tokens():
    data = balanced_sequences(20, 30, 1, 40, 0)
    outside = [check_class_window(data, rate=rate).holds for rate in (10, 100, 200, 400, 700, 3000, 1e4)]
    assert outside == [True, True, False, False, False, True, True]
    check = check_class_window(data, rate=200.0)
    assert check.numbers["moved"] == pytest.approx(100.0 / 60)  # (η₀/2)/(2T)
    assert check.numbers["gain"] == pytest.approx((100.0 / 60) ** 2)
    assert check.numbers["largest_moved"] == pytest.approx(2.5 * math.log(60))
    q = np.linspace(1 / 30, 1, 100_001)[:-1]  # the growth by brute force
    slope = q * (1 - q) / (1 + np.exp(100.0 / 60 * q))
    assert check.numbers["growth"] == pytest.approx(2 * (100.0 / 60) ** 2 * np.log(slope.max() / slope[0]), rel=1e-6)
    rates = np.geomspace(1, 1e5, 40)
    for T in (2, 4, 6):
        lonely = balanced_sequences(20, T, 1, 10, 0)
        assert all(check_class_window(lonely, rate=rate).holds for rate in rates)
    many = balanced_sequences(60, 5, 30, 100, 0)
    assert not all(check_class_window(many, rate=rate).holds for rate in rates)
    assert check_class_window(balanced_sequences(20, 30, 5, 40, 0), rate=500.0).numbers["gain"] == pytest.approx(
        5 * (250.0 / 300) ** 2  # five tokens a class gain as much along v at a fifth of the square of their scores
    )
    with pytest.raises(InputError, match="one decisive token among irrelevant ones"):
        check_class_window([[0, 1], [0, 0]], [1, -1], rate=1.0)
