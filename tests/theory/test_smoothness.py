"""Equation (6) and Lemma 6: the risk is L_p-smooth, and plain descent with steps up to 1/L_p never climbs."""

import warnings

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import gaussian_tokens, sphere_tokens
from marginlens.theory import smoothness
from marginlens.theory.scored_tokens import ScoredTokens
from random_problems import problem, ragged_problem
from refusals import refused
from tolerances import CONDITIONED, ROUNDING, SIX_DIGITS

LOSSES = [ml.Logistic(), ml.Exponential(), ml.CorrelationLoss()]


def observed(data, v, loss, rng, n_pairs=400):
    """The largest ‖∇L(p) - ∇L(q)‖/‖p - q‖ over close pairs of points."""
    p = rng.standard_normal((n_pairs, data.d_key)) * rng.uniform(0, 3, (n_pairs, 1))
    q = p + 1e-4 * rng.standard_normal(p.shape)
    many = data.repeat(n_pairs)
    change = ml.AttentionRisk(many, v, loss).gradient(p).value() - ml.AttentionRisk(many, v, loss).gradient(q).value()
    return np.max(np.linalg.norm(change, axis=-1) / np.linalg.norm(p - q, axis=-1))


@pytest.mark.statement("A Eq. (6)", "A Lemma 6")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", range(4))
def test_gradients_change_no_faster_than_either_constant_allows(loss, seed):
    rng = np.random.default_rng(seed)
    data, v = (ragged_problem if seed % 2 else problem)(rng, 2, 4, 3)
    found = smoothness(data, v, loss)
    assert 0.0 < observed(data, v, loss, rng) <= found.from_keys <= found.from_weights == found.L_p


@pytest.mark.statement("A Eq. (6)")
def test_smoothness_equals_its_formula():
    data, v = gaussian_tokens(3, 2, 4, 3, 5)
    found = smoothness(data, v)
    for j in range(3):
        M0, M1, head = found.M0[j], found.M1[j], np.linalg.norm(v[j])
        W = np.linalg.svd(data.W, compute_uv=False)[0]
        X = [np.linalg.svd(tokens, compute_uv=False)[0] for tokens in data.X[j]]
        L_p = np.mean([M0 * head**2 * W**2 * x**4 + 3 * M1 * head * W**2 * x**3 for x in X])
        assert found.from_weights[j] == pytest.approx(L_p, rel=ROUNDING, abs=ROUNDING)
        scores = data[j].scores(v[j])
        K = [np.linalg.svd(keys, compute_uv=False)[0] for keys in data.K[j]]
        g = np.linalg.norm(scores, axis=-1)
        assert found.from_keys[j] == pytest.approx(
            np.mean([(M0 * a**2 + 3 * M1 * a) * k**2 for a, k in zip(g, K, strict=True)]), rel=SIX_DIGITS, abs=ROUNDING
        )
        u = np.linspace(scores.min(), scores.max(), 2001)
        slope = -1 / (1 + np.exp(u))
        assert pytest.approx(np.abs(slope).max(), rel=ROUNDING, abs=ROUNDING) == M1
        assert pytest.approx(np.max(np.abs(np.diff(slope) / np.diff(u))), rel=1e-5, abs=ROUNDING) == M0


@pytest.mark.statement("A Eq. (6)")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_slopes_ignore_padding(sign):
    data, scores = ml.TokenDataset([[[1.0], [2.0]], [[4.0]]], [1, 1]), sign * np.array([1.0, 4.0])
    largest, smallest = np.exp(ScoredTokens(data, [sign], ml.Exponential()).log_slopes)
    assert [largest, smallest] == pytest.approx(
        [np.exp(-scores.min()), np.exp(-scores.max())], rel=ROUNDING, abs=ROUNDING
    )
    assert largest == smoothness(data, [sign], ml.Exponential()).M1


@pytest.mark.statement("A Lemma 6")
def test_keys_without_a_matrix_use_the_sharper_line():
    rng = np.random.default_rng(0)
    data, v = ragged_problem(rng, 3, 4, 3, d_key=2)
    found = smoothness(data, v)
    assert np.isnan(found.from_weights)
    assert found.L_p == found.from_keys
    assert observed(data, v, ml.Logistic(), rng) <= found.L_p


@pytest.mark.statement("A Lemma 6")
@pytest.mark.parametrize("loss", LOSSES)
def test_descent_with_the_largest_step_never_climbs_and_with_a_huge_one_does(loss):
    data, v = sphere_tokens(8, 3, 4, 3, 2)
    record = ml.Record(keep=("risk",))
    largest = 1.0 / np.max(smoothness(data, v, loss).from_keys)
    run = ml.descend(data, v, loss=loss, optimizer=ml.GradientDescent(largest), n_steps=100, record=record)
    assert np.diff(run.saved["risk"], axis=-1).max() <= ROUNDING
    assert np.ptp(run.saved["risk"], axis=-1).min() > 1e-3
    wild = ml.descend(data, v, loss=loss, optimizer=ml.GradientDescent(300.0), n_steps=50, record=record)
    assert np.diff(wild.saved["risk"], axis=-1).max() > 1e-3


def test_a_problem_without_choice_is_flat():
    nothing = smoothness(ml.TokenDataset(np.zeros((1, 2, 3)), [1]), np.ones(3))
    assert nothing.L_p == 0.0
    assert nothing.largest_step == np.inf


@pytest.mark.statement("A Eq. (6)")
@pytest.mark.parametrize("scale", [1e100, 1e155, 1e200, 1e300])
def test_constants_of_large_keys_and_tokens_are_those_of_small_ones_scaled(scale):
    rng = np.random.default_rng(3)
    X, K, v = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3, 4)), rng.normal(size=4)
    W = rng.normal(size=(4, 4))
    near, weights = (
        smoothness(data, v) for data in (ml.TokenDataset(X, [1, -1], K=K), ml.TokenDataset(X, [1, -1], W=W))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        far = smoothness(ml.TokenDataset(X, [1, -1], K=scale * K), v)
        far_weights = smoothness(ml.TokenDataset(X, [1, -1], W=scale * W), v)
        both = smoothness(ml.TokenDataset(scale * X, [1, -1], K=K), v / scale)  # the same scores
        assert far.largest_step == pytest.approx(near.largest_step / scale / scale, rel=CONDITIONED, abs=ROUNDING)
    assert far.log_L_p == pytest.approx(near.log_L_p + 2 * np.log(scale), rel=ROUNDING, abs=ROUNDING)
    assert far_weights.log_L_p == pytest.approx(weights.log_L_p + 2 * np.log(scale), rel=ROUNDING, abs=ROUNDING)
    assert both.L_p == pytest.approx(near.L_p, rel=CONDITIONED, abs=ROUNDING)
    assert far.L_p == pytest.approx(
        near.L_p * scale * scale, rel=CONDITIONED, abs=ROUNDING
    )  # infinite on both sides beyond 1e154


@pytest.mark.statement("A Def 1")
@pytest.mark.parametrize("scale", [1e90, 1e155, 1e290])
def test_large_tokens_train_without_warning(scale):
    rng = np.random.default_rng(1)
    X, v = rng.normal(size=(2, 3, 3)), np.ones(3)
    near, data = ml.TokenDataset(X, [1, -1]), ml.TokenDataset(scale * X, [1, -1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(data.scores(v), near.scores(v) * scale, rtol=ROUNDING, atol=0.0)
        assert ml.descend(data, v, n_steps=5).status is ml.Status.COMPLETED
        assert np.isfinite(ml.AttentionRisk(data, v).gradient(np.ones(3)).log_norm)
        if scale < 1e100:
            assert ml.predict_limit(data, v).why
            margins = [ml.token_optimality(problem, v, data.optimal(v)).solution.margin for problem in (near, data)]
            assert margins[1] == pytest.approx(scale * margins[0], rel=CONDITIONED, abs=ROUNDING)
        else:
            for ask in (ml.predict_limit, lambda data, v: ml.token_optimality(data, v, data.optimal(v))):
                with refused("data"):
                    ask(data, v)


def test_overflowing_terms_of_a_finite_score_are_handled():
    data = ml.TokenDataset([[[2.0**1000, 2.0**1000, 2.0**960], [1.0, 1.0, 1.0]]], [1])
    v = np.array([2.0**40, -(2.0**40), 2.0**41])  # products of 2^1040, which cancel
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(data.scores(v), [[2.0**1001, 2.0**41]], rtol=ROUNDING, atol=0.0)
        assert data.optimal(v).tolist() == [0]
        for ask in (smoothness, ml.predict_limit, ml.descend):
            with refused("head"):
                ask(data, np.full(3, 2.0**40))
