"""Paper B's selections of tokens, and Lemmas 9, 10, 17 and 18: weights, slopes and what they say about the limit of the flow."""

from itertools import combinations, product

import numpy as np
import pytest

import marginlens as ml
from marginlens.data.labelled import LabelledSequences, embedding_tokens
from marginlens.embeddings import Parameters, first_step, initial_parameters
from marginlens.svm import Status
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory import decisive_tokens, selected_tokens, token_ranks
from marginlens_papers.claims.b.feasible_selections import feasible_selections
from marginlens_papers.claims.b.selection_slopes import (
    convergence_bound,
    directional_slope,
    dominant_slope,
    equivalent_directions,
    local_optimality,
    own_max_margin,
    slope_deficit,
    softmax_weight_bounds,
)
from marginlens_papers.claims.random_data import balanced_sequences
from random_problems import MAX_DRAWS, ragged_labelled
from refusals import refused
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS


@pytest.mark.statement("B Lemma 10")
@pytest.mark.parametrize("size", [0.1, 3.0, 1e4])
def test_softmax_weights_lie_between_their_bounds(size):
    rng = np.random.default_rng(10)
    for _ in range(100):
        data = ragged_labelled(rng, 8, 9, 6)
        E = np.round(2.0 * rng.normal(size=(9, 4)))  # rounded, so that tokens tie
        p = size * np.round(2.0 * rng.normal(size=4))
        found = softmax_weight_bounds(E, p, data)
        slack = ROUNDING * (1.0 + np.abs(found.log_weight))
        assert np.all(found.log_lower <= found.log_weight + slack)
        assert np.all(found.log_weight <= found.log_upper + slack)
        for i in range(len(data)):
            part = slice(data.offsets[i], data.offsets[i + 1])
            assert np.exp(found.log_weight[part]).sum() == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)


@pytest.mark.statement("B Lemma 10")
def test_the_bounds_on_weights_are_attained():
    E = np.array([[1.0], [0.0]])
    two = softmax_weight_bounds(E, [1.5], [[0, 1]], [1])
    assert two.log_weight[1] == pytest.approx(
        two.log_upper[1], rel=SIX_DIGITS, abs=ROUNDING
    )  # one other token: 1/(1 + e^τ)
    many = softmax_weight_bounds(E, [9.0], [[0, 0, 0, 0, 1]], [1])
    # 1/(4 e^τ + 1) over 1/(5 e^τ)
    assert many.log_weight[4] == pytest.approx(many.log_lower[4] + np.log(5 / 4), abs=1e-3, rel=0.0)
    even = softmax_weight_bounds(E, [9.0], [[0, 0, 0]], [1])
    np.testing.assert_allclose(even.log_weight, even.log_lower, rtol=ROUNDING, atol=0.0)  # 1/T


def random_dominance(rng):
    """Random embeddings and a direction of random levels, so that tokens tie, that is locally optimal."""
    for _ in range(MAX_DRAWS):
        data = ragged_labelled(rng, 3, 9, 6)
        E, v = rng.normal(size=(9, 12)), rng.normal(size=12)
        v /= np.linalg.norm(v)
        p = np.linalg.pinv(E) @ rng.integers(3, size=9).astype(float)
        unit = p / np.linalg.norm(p)
        if np.any(p) and local_optimality(E, unit, v, data, tie=1e-9).holds:
            chosen = selected_tokens(E, unit, data, tie=1e-9)
            if any(len(ids) < len(np.unique(data[i][0])) for i, ids in enumerate(chosen)):
                return E, unit, v, data, ml.vocabulary_svm(E, data, chosen).x
    raise AssertionError(f"none of {MAX_DRAWS} draws is locally optimal")


@pytest.mark.statement("B Lemma 17")
def test_the_first_and_second_selections_make_up_the_slope():
    rng = np.random.default_rng(17)
    sharp = []
    for _ in range(40):
        E, unit, v, data, direction = random_dominance(rng)
        for radius in (1.0, 5.0, 25.0, 125.0, 3000.0):
            found = dominant_slope(Parameters(E, radius * unit, v), direction, data)
            assert found.applies
            assert found.holds
            sharp.append(found.log_bound < -2.0)
        near = dominant_slope(Parameters(E, 25.0 * unit, v), direction, data)
        assert near.tau_2 == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)  # a max-margin direction leads by one
        longest = np.linalg.norm(E[np.unique(data.tokens)], axis=1).max()
        assert abs(near.C_3 - 2.0 * np.linalg.norm(direction) * longest) < CONDITIONED * near.C_3
    assert 0.1 < np.mean(sharp) < 0.9  # the bound says something in many cases, and nothing in others


@pytest.mark.statement("B Lemma 17")
def test_the_ratio_equals_that_of_the_papers_sums():
    rng = np.random.default_rng(171)
    E, v, p = rng.normal(size=(6, 8)), np.eye(8)[0], 2.0 * rng.normal(size=8)
    data = LabelledSequences([[0, 1, 2, 2], [3, 4, 5, 0], [1, 4, 4]], [1, -1, 1])
    part = 0.0
    for i in range(3):
        ids, y = data[i]
        a, b, along = E[ids] @ p, y * (E[ids] @ v), E[ids] @ p
        q = np.exp(a) / np.exp(a).sum()
        g = 1.0 / (1.0 + np.exp(q @ b))
        first = ids == ids[np.argmax(a)]
        second = ids == ids[~first][np.argmax(a[~first])]
        part += sum(
            (along[i] - along[j]) * g * q[i] * q[j] * (b[i] - b[j])
            for i in np.flatnonzero(first)
            for j in np.flatnonzero(second)
        )
    expected = directional_slope(Parameters(E, p, v), p, data) / (part / 3.0)
    assert dominant_slope(Parameters(E, p, v), p, data).ratio == pytest.approx(expected, rel=CONDITIONED, abs=ROUNDING)
    with refused("direction"):
        dominant_slope(Parameters(E, p, v), -p, data)


def flow_after_one_step(seed, until):
    data = balanced_sequences(8, 4, 2, 4, seed)
    start = initial_parameters(data.n_vocabulary, 256, np.random.default_rng(seed), np.float64)
    after = first_step(start, 60.0, data).after
    record = ml.Record(steps=list(range(0, int(until), 2)), keep=("x",))
    run = ml.flow(embedding_tokens(after.E, data), after.v, start=after.p, until=ml.UntilNorm(until), record=record)
    return data, after, run


@pytest.mark.statement("B Lemma 9")
@pytest.mark.parametrize("seed", range(3))
def test_comparing_slopes_bounds_the_cosine_along_a_flow(seed):
    data, after, run = flow_after_one_step(seed, 200.0)
    direction = ml.vocabulary_svm(after.E, data, selected_tokens(after.E, run.final, data)).x
    points = run.saved["x"][5:]
    deficits = np.array([slope_deficit(Parameters(after.E, p, after.v), direction, data) for p in points])
    cosine = points @ direction / np.linalg.norm(direction) / np.linalg.norm(points, axis=1)
    bound = convergence_bound(points, direction, deficits)
    assert np.all(cosine >= bound - 1e-4)  # the largest deficit between two points of the record may be a little larger
    assert bound[0] == pytest.approx(cosine[0], rel=SIX_DIGITS, abs=ROUNDING)
    assert deficits[-1] < 0.01
    wrong = after.E[data[0][0][0]]
    away = np.array([slope_deficit(Parameters(after.E, p, after.v), wrong, data) for p in points])
    assert np.min(away) > 0.2  # Eq. (15) fails for a direction that is no limit
    for p, eps in zip(points[::40], deficits[::40], strict=True):
        model = Parameters(after.E, p, after.v)
        own, other = (directional_slope(model, one / np.linalg.norm(one), data) for one in (p, direction))
        assert own > 1e-250
        assert eps == pytest.approx(1.0 - other / own, abs=CONDITIONED, rel=0.0)


@pytest.mark.statement("B Lemma 18")
@pytest.mark.parametrize("seed", range(4))
def test_the_own_max_margin_direction_has_the_larger_slope_far_out(seed):
    data, after, _ = flow_after_one_step(seed, 20.0)
    E, v = after.E, after.v
    hat = ml.vocabulary_svm(E, data, decisive_tokens(data)).x
    rng = np.random.default_rng(seed)
    ratios = []
    for _ in range(10):
        bent = hat + 0.25 * np.linalg.norm(hat) * np.linalg.pinv(E - E.mean(axis=0)) @ rng.normal(size=len(E)) / 4.0
        if not all(map(np.array_equal, selected_tokens(E, bent, data), decisive_tokens(data))):
            continue
        far = [own_max_margin(Parameters(E, radius * bent, v), data) for radius in (30.0, 300.0, 3000.0)]
        assert all(one.least > 1.0 for one in far)  # a margin below one
        assert far[-1].ratio >= far[-1].least * (1.0 - 1e-3)  # pairs almost as near fade slowly
        assert all(one.odds <= one.C_5 for one in far)
        ratios.append(far[-1].ratio)
    assert len(ratios) >= 5
    assert max(ratios) > 1.1
    at = own_max_margin(Parameters(E, 100.0 * hat, v), data)
    assert at.ratio == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)
    assert at.least == pytest.approx(1.0, rel=SIX_DIGITS, abs=ROUNDING)


# ---- which selections some direction makes, and which margin leads


@pytest.mark.statement("B Eq. (8)", "B Definition 15")
def test_selected_and_secondary_tokens_of_an_example():
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
def test_differences_orthogonal_to_p_make_no_ties():
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
    assert local_optimality(E, p, v, [[0, 1, 2]], [1]).mu == pytest.approx(0.5, rel=SIX_DIGITS, abs=ROUNDING)
    twice = local_optimality(E, p, v, [[0, 1, 1, 2]], [1])
    assert twice.mu == pytest.approx(-1.0, rel=SIX_DIGITS, abs=ROUNDING)
    assert not twice.holds
    assert local_optimality(E, p, v, [[0, 1, 2], [0, 1]], [-1, 1]).gaps.tolist() == [
        pytest.approx(-0.5, rel=SIX_DIGITS, abs=ROUNDING),
        np.inf,
    ]


@pytest.mark.statement("B Lemma 19")
@pytest.mark.parametrize(("n_vocabulary", "d", "n", "T"), [(4, 6, 3, 3), (5, 2, 3, 3), (4, 1, 2, 3), (4, 5, 4, 2)])
def test_feasible_selections_agree_with_brute_force(n_vocabulary, d, n, T):
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
    assert sum(map(np.isfinite, expected.values())) >= 2
    for key, k in ours.items():
        assert found.index(key) == k
        if np.isfinite(expected[key]):
            assert abs(found.margins[k] / expected[key] - 1.0) <= CONDITIONED
            back = selected_tokens(E, found.directions[k], sequences)
            assert all(map(np.array_equal, back, found.selections[k]))


@pytest.mark.statement("B Lemma 19")
def test_required_tokens_have_the_lead_of_the_widest_margin():
    E = np.random.default_rng(3).normal(size=(4, 400)) / 20.0
    E[0] *= 5.0  # the decisive token, after a large first step
    sequences, important = [[0, 1, 2], [0, 2, 3, 3]], [[0], [0]]
    found = feasible_selections(E, sequences, required=important)
    assert all(0 in one for some in found.selections for one in some)
    assert found.index(important) == 1
    lead = found.margin_lead(important)
    others = [one for one in range(len(found)) if one > 1]
    norms = [np.linalg.norm(vocabulary_svm(E, sequences, found.selections[k]).x) for k in (1, *others)]
    assert lead == pytest.approx(1.0 - norms[0] / min(norms[1:]), rel=SIX_DIGITS, abs=ROUNDING)
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
