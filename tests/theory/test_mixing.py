"""Several optimal tokens per input: Assumption D, the constants of Lemma 14, and the distance of paths to the solution set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import marginlens as ml
import tolerances
from marginlens.data import TokenDataset, scored_tokens
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic
from marginlens.risk import AttentionRisk, softmax
from marginlens.svm import Status, att_svm, set_svm
from marginlens.theory import mixing_constants
from marginlens_papers.claims.a.mixing import check_mixing, distance_to_set, log_nonoptimality
from marginlens_papers.claims.random_data import label_mixing, monotone_mixing

LOSSES = [Logistic(), Exponential(), CorrelationLoss()]


def nonoptimal(sets: Any, n_tokens: int) -> np.ndarray:
    return np.array([~np.isin(np.arange(n_tokens), one) for one in sets])


@pytest.mark.statement("A Lemma 14", "A Eq. (85)")
def test_constants_equal_their_formulas() -> None:
    """With the slope one everywhere, and an input shorter than the other."""
    data = TokenDataset([[[2.0], [2.0], [1.0], [-3.0]], [[1.0], [0.25]]], [1, 1])
    found = mixing_constants(data, [1.0], [[0, 1], [0]], CorrelationLoss())
    assert (found.epsilon, found.C) == (0.5, 3.0)
    assert (np.exp(found.log_C_plus), np.exp(found.log_C_minus)) == pytest.approx(
        (5.0, 0.25), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING
    )
    assert found.nu.tolist() == [2.0, 1.0]
    assert found.shift.tolist() == [0.0, 0.0]
    assert found.rho(0.5) == pytest.approx(-6.0 * np.log(20.0), rel=tolerances.ROUNDING, abs=tolerances.ROUNDING)
    assert mixing_constants(TokenDataset([[[2.0], [-1.0]]], [1]), [1.0], [[0]]).epsilon == 1.5


@pytest.mark.statement("A Lemma 14", "A Assumption D")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("lowered", [False, True])
def test_excess_risk_is_nonoptimality_up_to_constant_factors(loss: Any, lowered: bool) -> None:
    """C₋ q ≤ L - L⋆ ≤ C₊ q at any norm, with logarithms from two modules that share no formula.

    Scores of any sign are shifted, and compared as given; an input whose tokens all score the same bounds nothing.
    """
    for seed in range(5):
        data, v, sets = label_mixing(3, 5, 2, 6, seed)
        if lowered:
            scores = data.scores(v) - np.array([0.0, 1.5, 2.0])[:, None]
            keys = np.concatenate([data.K, data.K[:1]])
            data, v = scored_tokens(keys, np.concatenate([scores, np.full((1, 5), -4.0)]))
            sets = (*sets, range(5))
        constants = mixing_constants(data, v, sets, loss)
        rng = np.random.default_rng(seed)
        points = rng.normal(size=(400, 6)) * 10.0 ** rng.uniform(-1, 3, size=(400, 1))
        above = AttentionRisk(data.repeat(400), v, loss).excess(points, np.array([one[0] for one in sets]))
        assert np.all(above.sign > 0)
        offset = above.log - log_nonoptimality(data, points, sets)
        assert np.all(offset >= constants.log_C_minus - tolerances.CONDITIONED)
        assert np.all(offset <= constants.log_C_plus + tolerances.CONDITIONED)
        if lowered:
            assert constants.nu[2] < 0.0
            assert constants.shift[0] == constants.shift[3] == 0.0
            assert constants.shift[2] == -scores[2].min()
            assert constants.rho(0.1) < 0.0
    nothing = mixing_constants(data, 0.0 * v, [range(5)] * len(sets), loss)
    assert nothing.rho(0.1) == 0.0  # nothing can be mixed in


@pytest.mark.statement("A Eq. (85)")
def test_the_contribution_of_other_tokens_is_bounded() -> None:
    """Z_i = Σ_{t ∉ O_i} s_t γ_t, from the plain softmax, at many p; the upper bound is attained for some p up to ten per cent."""
    data, v, sets = label_mixing(3, 5, 2, 8, 1)
    constants, outside = mixing_constants(data, v, sets), nonoptimal(sets, 5)
    points = np.random.default_rng(1).normal(size=(3000, 8)) * 6.0
    s = softmax(data.repeat(3000), points)
    q = np.sum(s * outside, axis=-1)
    Z = np.sum(s * outside * data.scores(v), axis=-1)
    ceiling = (1.0 - constants.epsilon) * constants.nu * q
    assert np.all(ceiling + tolerances.ROUNDING >= Z)
    assert np.all(-constants.C * q.max(axis=-1, keepdims=True) - tolerances.ROUNDING <= Z)
    assert np.max(Z / ceiling) > 0.9


@pytest.mark.statement("A Assumption D")
def test_nonoptimality_is_the_softmax_share_beyond_underflow() -> None:
    data, _, sets = label_mixing(3, 5, 2, 6, 2)
    points = np.random.default_rng(2).normal(size=(50, 6))
    plain = np.sum(softmax(data.repeat(50), points) * nonoptimal(sets, 5), axis=-1).max(axis=-1)
    np.testing.assert_allclose(
        log_nonoptimality(data, points, sets), np.log(plain), rtol=tolerances.HIGH_PRECISION, atol=0.0
    )
    line = TokenDataset([[[1.0], [0.0]]], [1])
    assert log_nonoptimality(line, [1e5], [[0]]) == -1e5
    assert log_nonoptimality(line, [-40.0], [[0]]) == pytest.approx(
        -np.exp(-40.0), rel=tolerances.HIGH_PRECISION, abs=0.0
    )
    assert log_nonoptimality(line, [3.0], [[0, 1]]) == -np.inf


@pytest.mark.statement("A Assumption D", "A Lemma 14")
@pytest.mark.parametrize("delta", [0.05, 0.5, 2.0])
def test_linear_label_mixing_satisfies_assumption_d_with_the_lemmas_rho(delta: float) -> None:
    for seed in range(4):
        data, v, sets = label_mixing(3, 5, 2, 6, seed)
        found = check_mixing(data, v, sets, delta=delta, rng=seed)
        assert found.holds
        assert mixing_constants(data, v, sets).rho(delta) <= found.rho <= 0.0
        assert found.n_pairs > 1000
        assert found.depth < -100.0


@pytest.mark.statement("A Assumption D")
@pytest.mark.parametrize("change", ["one left out", "one too many"])
def test_wrong_sets_have_a_counter_example_at_every_depth(change: str) -> None:
    data, v, sets = label_mixing(2, 4, 2, 6, 0)
    extra = [int(np.flatnonzero(row)[0]) for row in nonoptimal(sets, 4)]
    wrong = [one[:1] if change == "one left out" else np.append(one, t) for one, t in zip(sets, extra, strict=True)]
    found = check_mixing(data, v, wrong)
    assert not found.holds
    assert found.suppressible
    np.testing.assert_allclose(found.deeper, [-1e5, -1e6, -1e7], rtol=0.01, atol=0.0)
    reference = np.array([one[0] for one in sets])
    for scale in (1.0, 30.0, 1e4):
        p, other = scale * found.counterexample
        log_q = log_nonoptimality(data, scale * found.counterexample, wrong)
        assert log_q[0] <= (1.0 + found.delta) * log_q[1]
        assert log_q[0] < -100.0
        assert not AttentionRisk(data, v).excess(other, reference).above(AttentionRisk(data, v).excess(p, reference))


@pytest.mark.statement("A Assumption D")
@pytest.mark.parametrize("sizes", [(1, 5, 12), (2, 5, 12), (3, 6, 30), (2, 4, 5)], ids=str)
def test_every_wrong_set_is_refuted_and_no_right_one_whatever_the_seed(sizes: tuple[int, int, int]) -> None:
    """Tokens left out are as good as those left in, and both can be selected: the pair of the two directions contradicts every ρ."""
    n, T, d = sizes
    for seed in range(2):
        data, v, sets = label_mixing(n, T, 2, d, seed)
        first, second = (att_svm(data, [one[k] for one in sets]) for k in (0, 1))
        assert first.status is second.status is Status.OPTIMAL
        extra = [np.append(one, np.setdiff1d(np.arange(T), one)[0]) for one in sets]
        for rng in (0, 1):
            right = check_mixing(data, v, sets, rng=rng)
            assert right.holds
            assert right.rho >= mixing_constants(data, v, sets).rho(0.1)
            assert not check_mixing(data, v, extra, rng=rng).holds
            assert not check_mixing(data, v, [one[:1] for one in sets], rng=rng).holds
        p, other = 1e3 * first.x, 1e4 * second.x
        wrong, reference = [one[:1] for one in sets], [one[0] for one in sets]
        assert log_nonoptimality(data, p, wrong) < -900.0 < -1.0 < log_nonoptimality(data, other, wrong)
        assert AttentionRisk(data, v).excess(p, reference).above(AttentionRisk(data, v).excess(other, reference))


@pytest.mark.statement("A Assumption D")
def test_assumption_d_is_empty_if_no_p_suppresses_the_others() -> None:
    between, v = scored_tokens([[[1.0], [-1.0], [0.0]]], [[0.0, 0.0, 1.0]])  # no p selects the middle token
    found = check_mixing(between, v, [[2]])
    assert found.holds
    assert not found.suppressible
    assert found.depth > -2.0


@pytest.mark.statement("A Eq. (83)")
def test_the_networks_risk_is_the_formula_and_assumption_d_holds() -> None:
    pytest.importorskip("torch")
    data, network, sets = monotone_mixing(3, 5, 2, 6, 4)
    p = np.random.default_rng(4).normal(size=6)
    z = np.einsum("it,itd->id", softmax(data, p), data.X)
    assert AttentionRisk(data, network).value(p) == pytest.approx(
        np.mean(np.logaddexp(0.0, -data.y * network(z))), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )
    best = [data.X[i, one] for i, one in enumerate(sets)]
    assert all((x == x[0]).all() for x in best)
    for i, one in enumerate(sets):
        others = np.setdiff1d(np.arange(5), one)
        assert np.all(data.y[i] * (best[i][0] - data.X[i, others]) > 0.0)
    assert check_mixing(data, network, sets).holds
    assert not check_mixing(data, network, [one[:1] for one in sets]).holds


@pytest.mark.statement("A Thm 8")
def test_paths_reach_the_solution_set() -> None:
    for seed in (0, 1):
        data, v, sets = label_mixing(3, 4, 2, 5, seed)
        found = set_svm(data, sets)
        radii = np.array([10.0, 100.0, 10000.0]) / found.margin
        path = ml.path(data, radii, head=v, restarts=6, rng=seed)
        distance = found.margin * distance_to_set(path.points, found, radii)
        assert np.all(np.diff(distance) < 0.0)
        assert distance[-1] < tolerances.PATH_IN_THE_SET


@pytest.mark.statement("A Thm 8")
def test_distance_to_a_set_in_closed_form() -> None:
    corners = np.array([[2.0, 0.0], [0.0, 2.0]])
    assert distance_to_set([3.0, 0.0], corners) == 0.0
    assert distance_to_set([-1.0, 0.0], corners) == pytest.approx(
        2.0 * np.sqrt(2.0), rel=tolerances.SIX_DIGITS, abs=tolerances.ROUNDING
    )
    np.testing.assert_allclose(
        distance_to_set([[1.0, 0.0], [0.0, 5.0]], corners, [2.0, 5.0]), [1.0, 0.0], rtol=0.0, atol=tolerances.ROUNDING
    )
