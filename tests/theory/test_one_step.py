"""Initial embeddings, the first step on all of them, and the slope along a direction, each against its statement."""

import math
from dataclasses import replace

import numpy as np
import pytest

from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings.models import Parameters, initial_parameters, loss_and_gradients
from marginlens.embeddings.one_step import first_step, mean_signed_share
from marginlens.embeddings.statistics import token_statistics
from marginlens_papers.claims.b import first_step_bounds as lemmas
from marginlens_papers.claims.b.selection_slopes import directional_slope
from marginlens_papers.claims.random_data import balanced_sequences
from random_problems import ragged_labelled, started
from refusals import refused
from tolerances import CONDITIONED, FINITE_DIFFERENCE, ROUNDING, SIX_DIGITS

DELTA = 0.05


def uniform(seed, n=40, T=8, vocabulary=20):
    rng = np.random.default_rng(seed)
    return LabelledSequences(rng.integers(vocabulary, size=(n, T)), rng.choice([-1.0, 1.0], size=n), vocabulary)


def ragged(seed):
    return ragged_labelled(np.random.default_rng(seed), 30, 12, 8)


def start_of(data, d, seed=0):
    return started(seed, data, d)


def reference_loss(E, p, v, data):
    """Eq. (2) with a row per position."""
    losses = []
    for i in range(len(data)):
        ids, y = data[i]
        logits = E[ids] @ p
        q = np.exp(logits - logits.max())
        losses.append(np.logaddexp(0.0, -y * (q / q.sum()) @ (E[ids] @ v)))
    return float(np.mean(losses))


@pytest.mark.statement("B Eq. (14)")
def test_initial_embeddings_are_as_concentrated_as_promised():
    failures = 0
    for seed in range(300):
        start = initial_parameters(10, 256, np.random.default_rng(seed), np.float64)
        products, norms = lemmas.initial_concentration(start, 0.5)
        everything = np.concatenate([start.E @ start.v, start.E @ start.p, [start.p @ start.v]])
        assert products.value == pytest.approx(np.abs(everything).max(), rel=SIX_DIGITS, abs=ROUNDING)
        assert norms.value == pytest.approx(
            max(np.linalg.norm(start.E, axis=1).max(), np.linalg.norm(start.p)), rel=SIX_DIGITS, abs=ROUNDING
        )
        assert products.bound == pytest.approx(math.sqrt(2 * math.log(100 / 0.5) / 256), rel=SIX_DIGITS, abs=ROUNDING)
        failures += not (products.holds and norms.holds)
    assert 0 < failures < 0.5 * 300  # the bound is sharp enough to be broken at δ = 1/2
    longer = Parameters(3.0 * start.E, start.p, start.v)
    assert not lemmas.initial_concentration(longer, DELTA)[1].holds


@pytest.mark.statement("B Eq. (14)", "B' Eq. (22)")
@pytest.mark.parametrize(("size", "delta"), [(2, 0.05), (20, 0.05), (20, 0.5), (5, 0.2)])
def test_concentration_is_promised_from_a_width_on_and_kept_there(size, delta):
    for question in (lemmas.initial_concentration, lemmas.initial_orthogonality):
        start = initial_parameters(size, 7, np.random.default_rng(0), np.float64)
        needed = round(10 ** question(start, delta)[0].log10_width_needed)
        assert 1 < needed < 40
        failures = {}
        for d in (needed, needed - 1):
            drawn = [initial_parameters(size, d, np.random.default_rng([size, d, k]), np.float64) for k in range(400)]
            found = [[*lemmas.initial_concentration(one, delta), *question(one, delta)] for one in drawn]
            assert found[0][-1].promised == found[0][-2].promised == (d == needed)
            failures[d] = np.mean([not all(part.holds for part in one) for one in found])
        assert failures[needed] <= delta + 3.0 * math.sqrt(delta * (1.0 - delta) / 400)


@pytest.mark.statement("B Eq. (14)")
def test_concentration_is_not_promised_where_it_is_false():
    line = [initial_parameters(20, 1, np.random.default_rng(k), np.float64) for k in range(100)]
    norms = [lemmas.initial_concentration(start, 0.05)[1] for start in line]
    assert not norms[0].promised
    assert np.mean([not one.holds for one in norms]) > 0.4
    single = [lemmas.initial_concentration(initial_parameters(1, 256, k, np.float64), 0.5) for k in range(400)]
    assert not any(one.promised for one in single[0])
    assert single[0][0].log10_width_needed == math.inf
    assert np.mean([not one[0].holds for one in single]) > 0.5


@pytest.mark.statement("B' Eq. (22)")
def test_pairs_and_short_embeddings_are_measured():
    start = Parameters(np.array([[0.4, 0.0], [0.3, 3.0]]), np.zeros(2), np.array([1.0, 0.0]))
    pairs, short = lemmas.initial_orthogonality(start, 0.05)
    assert pairs.value == pytest.approx(0.12, rel=SIX_DIGITS, abs=ROUNDING)
    assert short.value == pytest.approx(2.5, rel=SIX_DIGITS, abs=ROUNDING)
    assert not short.holds


@pytest.mark.statement("B Lemma 2", "B Lemma 11", "B Lemma 12")
def test_only_tokens_that_occur_count():
    data = LabelledSequences([[0, 2], [1, 2]], [1, -1], 1000)
    start = initial_parameters(1000, 300, np.random.default_rng(0), np.float64)
    longer = Parameters(np.concatenate([start.E[:3], 10.0 * start.E[3:]]), start.p, start.v)
    step = first_step(longer, 1.0, data)
    few = LabelledSequences([[0, 2], [1, 2]], [1, -1])
    same = first_step(Parameters(start.E[:3], start.p, start.v), 1.0, few)
    for question in (lemmas.first_step_errors, lemmas.first_step_loss):
        # sums of other lengths
        assert question(step, DELTA).value == pytest.approx(question(same, DELTA).value, rel=1e-12, abs=ROUNDING)
        assert question(step, DELTA).log10_width_needed == question(same, DELTA).log10_width_needed
    for ours, expected in zip(lemmas.first_step_norms(step, DELTA), lemmas.first_step_norms(same, DELTA), strict=True):
        assert ours.value == pytest.approx(expected.value, rel=1e-12, abs=ROUNDING)
    assert lemmas.first_step_errors(step, DELTA).promised


@pytest.mark.statement("B Eq. (4)")
def test_a_step_follows_the_negative_gradient():
    data = ragged(1)
    start = start_of(data, 5)
    step = first_step(start, 0.7, data)
    rng = np.random.default_rng(2)
    for _ in range(5):
        dE, dp = rng.normal(size=start.E.shape), rng.normal(size=5)
        h = 1e-5
        ahead = reference_loss(start.E + h * dE, start.p + h * dp, start.v, data)
        behind = reference_loss(start.E - h * dE, start.p - h * dp, start.v, data)
        moved = np.sum(dE * (step.after.E - start.E)) + dp @ (step.after.p - start.p)
        assert abs(-0.7 * (ahead - behind) / (2 * h) - moved) < FINITE_DIFFERENCE
    assert step.loss_before == pytest.approx(
        reference_loss(start.E, start.p, start.v, data), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert step.loss_after == pytest.approx(
        reference_loss(step.after.E, step.after.p, start.v, data), rel=SIX_DIGITS, abs=ROUNDING
    )


@pytest.mark.statement("B Eq. (5)", "B Lemma 2")
@pytest.mark.parametrize("make", [uniform, ragged, lambda seed: balanced_sequences(20, 6, 3, 8, seed)])
def test_the_parts_of_a_step_add_up_and_the_errors_are_below_the_bound(make):
    data = make(3)
    for d in (16, 256, 4096):
        step = first_step(start_of(data, d, seed=d), 10.0, data)
        E = step.start.E + 0.5 * step.rate * np.outer(step.alpha, step.start.v) + step.error_E
        assert np.abs(E - step.after.E).max() < ROUNDING
        assert np.abs(step.start.p + step.error_p - step.after.p).max() < ROUNDING
        found = lemmas.first_step_errors(step, DELTA)
        assert found.holds
        assert found.value == pytest.approx(
            max(*np.linalg.norm(step.error_E, axis=1), np.linalg.norm(step.error_p)), rel=SIX_DIGITS, abs=ROUNDING
        )


@pytest.mark.statement("B Lemma 2", "B Eq. (6)")
def test_errors_shrink_with_the_root_of_the_width_and_grow_with_the_rate():
    data = uniform(4)
    widths = np.array([64, 256, 1024, 4096, 16384])
    mean = [np.mean([first_step(start_of(data, d, k), 1.0, data).errors.max() for k in range(8)]) for d in widths]
    exponent = np.polyfit(np.log(widths), np.log(mean), 1)[0]
    assert -0.58 < exponent < -0.42  # the bound has -1/4
    one, ten = (lemmas.first_step_errors(first_step(start_of(data, 64), rate, data), DELTA) for rate in (1.0, 10.0))
    assert ten.value == pytest.approx(10.0 * one.value, rel=SIX_DIGITS, abs=ROUNDING)
    assert (
        ten.bound
        == pytest.approx(10.0 * one.bound, rel=SIX_DIGITS, abs=ROUNDING)
        == pytest.approx(110.0 * 64**-0.25, rel=SIX_DIGITS, abs=ROUNDING)
    )


@pytest.mark.statement("B Eq. (5)")
def test_the_step_weighs_ragged_sequences_equally():
    data = LabelledSequences([[0], [0, 1, 1, 2]], [1, -1])
    assert mean_signed_share(data) == pytest.approx([0.375, -0.25, -0.125], rel=SIX_DIGITS, abs=ROUNDING)
    assert token_statistics(data).alpha == pytest.approx([0.0, -0.4, -0.2], rel=SIX_DIGITS, abs=ROUNDING)
    step = first_step(start_of(data, 200_000), 1.0, data)
    moved = (step.after.E - step.start.E) @ step.start.v
    assert np.abs(moved - 0.5 * mean_signed_share(data)).max() < 0.01 < 0.18 < abs(moved[0])
    wider = first_step(start_of(uniform(5, vocabulary=25), 16), 2.0, uniform(5))  # five tokens that never occur
    assert np.array_equal(wider.alpha, [*mean_signed_share(uniform(5)), *np.zeros(5)])
    assert wider.errors[20:25].tolist() == [0.0] * 5
    even = uniform(5)
    assert np.abs(mean_signed_share(even) - token_statistics(even).alpha).max() < ROUNDING


@pytest.mark.statement("B Lemma 11")
@pytest.mark.parametrize("rate", [0.01, 1.0, 100.0])
def test_norms_after_the_step_are_bounded(rate):
    data = uniform(6)
    for seed in range(20):
        embeddings, query = lemmas.first_step_norms(first_step(start_of(data, 512, seed), rate, data), DELTA)
        assert embeddings.promised
        assert embeddings.holds
        assert query.holds
    assert embeddings.bound == pytest.approx(2.0 + 4.0 * rate, rel=SIX_DIGITS, abs=ROUNDING)
    assert query.bound == pytest.approx(2.0 + 11.0 * rate * 512**-0.25, rel=SIX_DIGITS, abs=ROUNDING)
    one_token = LabelledSequences([[0]] * 4, [1] * 4)
    start = start_of(one_token, 256)
    embeddings, _ = lemmas.first_step_norms(first_step(start, 1e4, one_token), DELTA)
    assert embeddings.value == pytest.approx(
        np.linalg.norm(first_step(start, 1e4, one_token).after.E), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert 0.1 * embeddings.bound < embeddings.value  # a token that fills every sequence comes near it


@pytest.mark.statement("B Lemma 12")
def test_the_loss_after_a_step_is_bounded_for_feasible_widths():
    data = balanced_sequences(20, 5, 3, 6, 7)
    step = first_step(start_of(data, 2048), 0.005, data)
    found = lemmas.first_step_loss(step, DELTA)
    assert found.promised
    assert found.holds
    T = 5
    exponents = [
        -sum(0.0025 * y * step.alpha[s] for s in ids) / T + 1 / 0.11 for ids, y in map(data.__getitem__, range(20))
    ]
    assert found.bound == pytest.approx(np.mean(np.log1p(np.exp(exponents))), rel=SIX_DIGITS, abs=ROUNDING)
    uneven = first_step(start_of(ragged(7), 64), 3.0, ragged(7))
    means = [y * uneven.alpha[ids].mean() for ids, y in map(ragged(7).__getitem__, range(30))]
    assert lemmas.first_step_loss(uneven, DELTA).bound == pytest.approx(
        np.mean(np.log1p(np.exp(1 / 66 - 1.5 * np.array(means)))), rel=SIX_DIGITS, abs=ROUNDING
    )
    large = lemmas.first_step_loss(first_step(start_of(data, 2048), 10.0, data), DELTA)
    assert not large.promised
    assert large.log10_width_needed == pytest.approx(8 * math.log10(8800 + 1110 + 2), rel=SIX_DIGITS, abs=ROUNDING)
    assert not lemmas.first_step_loss(
        replace(step, rate=1e4, after=step.start), DELTA
    ).holds  # a step that was not taken


@pytest.mark.statement("B Lemma 8")
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_the_slope_along_a_direction_equals_the_gradients(scale):
    data = ragged(8)
    start = start_of(data, 7)
    model = Parameters(scale * start.E, scale * start.p, scale * start.v)
    gradient = loss_and_gradients(model, data)[1].p
    for seed in range(5):
        direction = np.random.default_rng(seed).normal(size=7)
        slope = directional_slope(model, direction, data)
        assert abs(slope + direction @ gradient) <= ROUNDING * np.linalg.norm(gradient) * np.linalg.norm(direction)


@pytest.mark.statement("B Lemma 8")
def test_the_slope_is_the_papers_double_sum_and_survives_saturation():
    E, v = np.array([[1.0, 0.5], [0.0, -0.25], [-1.0, 1.0]]), np.array([0.0, 1.0])
    ids, direction = [0, 1, 1, 2], np.array([0.3, -0.7])
    for norm in (1.0, 30.0):
        p = np.array([norm, 0.0])
        logits, b, moved = (E[ids] @ one for one in (p, v, direction))
        q = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
        total = sum((moved[i] - moved[j]) * q[i] * q[j] * -(b[i] - b[j]) for i, j in pairs) / (1 + np.exp(-q @ b))
        assert directional_slope(Parameters(E, p, v), direction, [ids], [-1]) == pytest.approx(
            total, rel=CONDITIONED, abs=0.0
        )
    p = np.array([60.0, 0.0])
    gap = directional_slope(Parameters(E, p, v), direction, [ids], [1])
    expected = 2.0 * math.exp(-60.0) * (-0.05 - 0.175) * 0.75 / (1.0 + math.exp(0.5))
    assert gap == pytest.approx(expected, rel=CONDITIONED, abs=0.0)  # where means of logits would cancel at 1e-16
    slope = -direction @ loss_and_gradients(Parameters(E, p, v), [ids], [1])[1].p
    assert slope == pytest.approx(expected, rel=CONDITIONED, abs=0.0)


@pytest.mark.statement("B Lemma 7", "B Lemma 8")
def test_gradients_of_saturated_sequences_are_accurate():
    E, p, head = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.0, 0.5]), np.array([1.0, 2.0])
    q = 1.0 / (1.0 + math.exp(-0.5))  # of token 1
    for scale in (40.0, 200.0):
        g = math.exp(-scale * (1.0 + q))  # 1 / (1 + e^f) up to e^-f
        found = loss_and_gradients(Parameters(E, p, scale * head), [[0, 1]], [1])[1]
        assert found.p[1] == pytest.approx(-g * scale * q * (1.0 - q), rel=CONDITIONED, abs=0.0)
        assert found.v[1] == pytest.approx(-g * q, rel=CONDITIONED, abs=0.0)
        slope = directional_slope(Parameters(E, p, scale * head), [0.0, 1.0], [[0, 1]], [1])
        assert slope == pytest.approx(-found.p[1], rel=CONDITIONED, abs=0.0)


def test_required_widths_are_computed_and_printed():
    assert lemmas.log10_width(10, 0.1) == pytest.approx(math.log10(256), rel=SIX_DIGITS, abs=ROUNDING)
    assert lemmas.log10_width(10_000, 1e-6) == pytest.approx(
        2 * math.log10(2 * math.log(1e14)), rel=SIX_DIGITS, abs=ROUNDING
    )
    assert lemmas.log10_width(10, 0.1, 0.005) == pytest.approx(
        8 * math.log10(88 * 0.005**2 + 0.555 + 2), rel=SIX_DIGITS, abs=ROUNDING
    )
    found = lemmas.ProvedBound("B Eq. (6)", 0.5, 0.25, 100, 2.4)
    assert found.looseness == 0.5
    at = lemmas.ProvedBound("B Eq. (6)", 0.25, 0.25, 256, lemmas.log10_width(10, 0.1))
    assert (at.holds, at.promised) == (True, True)
    assert (at._replace(value=0.2501).holds, at._replace(width=255).promised) == (False, False)
    data = uniform(9)
    assert repr(first_step(start_of(data, 16), 2.0, data)).startswith(
        "FirstStep(20 tokens, d=16, rate=2, largest error 0."
    )
    for delta in (0, 1):
        with refused("delta"):
            lemmas.log10_width(10, delta)
    with refused("rate"):
        first_step(start_of(data, 16), -1.0, data)
    with refused("model.E"):
        directional_slope(Parameters(np.ones((3, 2)), np.ones(2), np.ones(2)), np.ones(2), data)
