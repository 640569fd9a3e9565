"""Losses of probabilities, -log u and -2 arcsin √u: against 90 digits where float64 formulas break, compiled and in NumPy."""

import mpmath as mp
import numpy as np
import pytest

import marginlens as ml
from marginlens import core
from marginlens.dynamics.loops import StepwiseLoop, compiled_loop
from refusals import refused

LOSSES = [ml.LogProbability(), ml.ArcsineLoss()]
DIGITS = 90
BY_NAME = pytest.mark.parametrize("loss", LOSSES, ids=lambda one: type(one).__name__)
SIZES = [0.0, 2.0, 35.0, 160.0, 450.0, 1_100.0, 12_000.0]


def log_of(u, rest):
    """log u, exact for u near 1."""
    return mp.log1p(-rest) if abs(rest) < 0.5 else mp.log(u)


VALUES = {
    "LogProbability": lambda u, rest: -log_of(u, rest),
    "ArcsineLoss": lambda u, rest: -2 * mp.atan2(mp.sqrt(u), mp.sqrt(rest)),
}
SLOPES = {
    "LogProbability": lambda u, rest: -1 / u,
    "ArcsineLoss": lambda u, rest: -1 / mp.sqrt(u * rest) if u * rest else mp.mpf(0),
}
SECOND = {
    "LogProbability": lambda u, rest: 1 / u**2,
    "ArcsineLoss": lambda u, rest: (rest - u) / 2 / mp.sqrt(u * rest) ** 3 if u * rest else mp.mpf(0),
}


def exactly(values):
    return [mp.mpf(float(x)) for x in values]


def softmaxes(keys, scores, p):
    """Of each input: probabilities, scores, u and 1 - u, in the digits in force."""
    for of_input, gamma in zip(keys, scores, strict=True):
        logits = [mp.fsum(x * y for x, y in zip(exactly(key), exactly(p), strict=True)) for key in of_input]
        ratios = [mp.exp(a - max(logits)) for a in logits]
        s, gamma = [x / mp.fsum(ratios) for x in ratios], exactly(gamma)
        yield s, gamma, mp.fsum(map(mp.fmul, s, gamma)), mp.fsum(x * (1 - y) for x, y in zip(s, gamma, strict=True))


def oracle(keys, scores, p, name):
    """The value and the gradient of the risk, by sums over pairs of tokens."""
    n, value, total = len(keys), mp.mpf(0), [mp.mpf(0)] * keys.shape[-1]
    for of_input, (s, gamma, u, rest) in zip(keys, softmaxes(keys, scores, p), strict=True):
        value += VALUES[name](u, rest) / n
        for t in range(len(s)):
            for r in range(t):
                pull = SLOPES[name](u, rest) / n * s[t] * s[r] * (gamma[t] - gamma[r])
                apart = [a - b for a, b in zip(exactly(of_input[t]), exactly(of_input[r]), strict=True)]
                total = [x + pull * y for x, y in zip(total, apart, strict=True)]
    return value, total


def problem(rng, loss, kind=None, shape=None):
    """Keys and scores in the domain of a loss: right or wrong, anywhere in [0, 1], or next to its ends."""
    n, T, d = (int(rng.integers(1, 6)), int(rng.integers(2, 6)), 3) if shape is None else shape
    keys = rng.normal(size=(n, T, d))
    kind = rng.integers(4) if kind is None else kind
    choices = ([0.0, 1.0], [0.0, 0.3, 1.0], [0.0, 1e-13, 0.5, 1.0 - 2.0**-53, 1.0])
    scores = rng.uniform(size=(n, T)) if kind == 3 else rng.choice(choices[kind], (n, T))
    if isinstance(loss, ml.LogProbability):
        scores[:, 0] = np.where(scores.max(axis=1) == 0.0, 1.0, scores[:, 0])
    return keys, scores


def assert_same_direction(found, log_scale, exact, size):
    """Entries to 1e-12 of the length, and its logarithm as exact as the logits are."""
    length = mp.sqrt(mp.fsum(x * x for x in exact))
    if length == 0:
        assert not np.any(found)
        return
    own = np.linalg.norm(found)
    assert np.allclose(found / own, [float(x / length) for x in exact], rtol=0.0, atol=1e-12)
    assert abs(np.log(own) + log_scale - float(mp.log(length))) <= 1e-12 * max(1.0, size / 100.0)


@BY_NAME
@pytest.mark.parametrize("size", SIZES)
def test_values_and_gradients_are_exact_at_any_norm(loss, size):
    rng = np.random.default_rng([31, int(size)])
    for _ in range(25):
        keys, scores = problem(rng, loss)
        data, v = ml.data.scored_tokens(keys, scores)
        risk, p = ml.AttentionRisk(data, v, loss), size * rng.normal(size=3)
        with mp.workdps(DIGITS), np.errstate(all="raise", under="ignore"):
            value, exact = oracle(keys, scores, p, type(loss).__name__)
            gradient, found = risk.gradient(p), risk.value(p)
            assert abs(found - value) <= 1e-12 * max(1.0, size / 100.0) * abs(value) + 1e-300
            assert_same_direction(gradient.array, float(gradient.log_scale), exact, size)
            if value > 0:
                assert abs(risk.log_value(p) - float(mp.log(value))) <= 1e-12 * max(1.0, size / 100.0)


@BY_NAME
@pytest.mark.parametrize("size", SIZES)
def test_compiled_weights_are_exact_at_any_norm(loss, size):
    """One input at a time, and four at once."""
    rng = np.random.default_rng([32, int(size)])
    for _ in range(25):
        keys, scores = problem(rng, loss)
        data, v = ml.data.scored_tokens(keys, scores)
        (n, T), p = scores.shape, size * rng.normal(size=3)
        logits, log_scale = ml.AttentionRisk(data, v, loss).logits(p), np.empty(1)
        weights, places = np.empty((n, T)), np.empty(-(-n // 4) * 4 * T)
        with mp.workdps(DIGITS):
            exact = oracle(keys, scores, p, type(loss).__name__)[1]
        core.pair_weights(logits, scores, data.lengths, loss.code, log_scale, weights)
        assert_same_direction(np.einsum("it,itd->d", weights, keys) / n, log_scale[0], exact, size)
        core.weights_of_places(logits, scores, data.lengths, loss.code, log_scale, places)
        weights = places.reshape(-1, T, 4).swapaxes(1, 2).reshape(-1, T)
        assert not weights[n:].any()
        assert_same_direction(np.einsum("it,itd->d", weights[:n], keys) / n, log_scale[0], exact, size)


@pytest.mark.parametrize("size", [3.0, 60.0, 700.0])
def test_weights_of_inputs_far_apart_are_exact(size):
    """Logits of inputs that differ by orders of magnitude: some underflow where others have not begun to saturate."""
    rng = np.random.default_rng([33, int(size)])
    for loss in LOSSES:
        for _ in range(20):
            keys, scores = problem(rng, loss, kind=0)
            keys *= 10.0 ** rng.uniform(-2.0, 2.0, len(keys))[:, None, None]
            data, v = ml.data.scored_tokens(keys, scores)
            (n, T), p = scores.shape, size * rng.normal(size=3)
            logits, log_scale, places = ml.AttentionRisk(data, v, loss).logits(p), np.empty(1), np.empty(20 * T)
            with mp.workdps(DIGITS):
                exact = oracle(keys, scores, p, type(loss).__name__)[1]
            core.weights_of_places(
                logits, scores, data.lengths, loss.code, log_scale, places := places[: -(-n // 4) * 4 * T]
            )
            weights = places.reshape(-1, T, 4).swapaxes(1, 2).reshape(-1, T)[:n]
            assert_same_direction(np.einsum("it,itd->d", weights, keys) / n, log_scale[0], exact, 100.0 * size)


@BY_NAME
@pytest.mark.parametrize("size", [2.0, 50.0, 800.0])
def test_excess_is_exact_from_any_selection(loss, size):
    rng = np.random.default_rng([34, int(size)])
    name = type(loss).__name__
    for _ in range(25):
        keys, scores = problem(rng, loss)
        data, v = ml.data.scored_tokens(keys, scores)
        risk, p, chosen = ml.AttentionRisk(data, v, loss), size * rng.normal(size=3), rng.integers(scores.shape[1])
        for selected in (risk.select(p), np.full(len(keys), chosen)):
            rises = []
            with mp.workdps(900):  # in which values subtract
                for i, (_, gamma, u, rest) in enumerate(softmaxes(keys, scores, p)):
                    start = gamma[selected[i]]
                    if name == "LogProbability" and start == 0:
                        rises = None
                        break
                    rises.append(VALUES[name](u, rest) - VALUES[name](start, 1 - start))
                found = risk.excess(p, selected)
                if rises is None:
                    assert (found.sign, found.log) == (-1.0, np.inf)
                    continue
                total, largest = mp.fsum(rises) / len(keys), max(map(abs, rises))
                if abs(total) > largest / 1e6 and largest > mp.mpf(10) ** -800:
                    assert found.sign == mp.sign(total)
                    assert abs(found.log - float(mp.log(abs(total)))) <= 1e-9 * size


@BY_NAME
@pytest.mark.parametrize("size", [1.0, 40.0, 500.0])
def test_second_derivatives_are_exact(loss, size):
    """To rounding of their terms, which cancel in -log u if a token with score 0 leads."""
    rng = np.random.default_rng([35, int(size)])
    name = type(loss).__name__
    for _ in range(15):
        keys, scores = problem(rng, loss)
        data, v = ml.data.scored_tokens(keys, scores)
        risk, p, n = ml.AttentionRisk(data, v, loss), size * rng.normal(size=3), len(keys)
        at = risk.second_order(p[None])
        with mp.workdps(1_500):
            total, terms = mp.zeros(3), mp.mpf(0)
            for i, (s, gamma, u, rest) in enumerate(softmaxes(keys, scores, p)):
                points = [exactly(key) for key in keys[i]]
                mean = [mp.fsum(map(mp.fmul, s, column)) for column in zip(*points, strict=True)]
                away = [[a - b for a, b in zip(point, mean, strict=True)] for point in points]
                pull = [x * (y - u) for x, y in zip(s, gamma, strict=True)]
                slope = [mp.fsum(map(mp.fmul, pull, column)) for column in zip(*away, strict=True)]
                for j in range(3):
                    for k in range(3):
                        parts = (
                            SECOND[name](u, rest) * slope[j] * slope[k] / n,
                            SLOPES[name](u, rest)
                            / n
                            * mp.fsum(x * y[j] * y[k] for x, y in zip(pull, away, strict=True)),
                        )
                        total[j, k] += sum(parts)
                        terms = max(terms, *map(abs, parts))
            if terms < mp.mpf(10) ** -1_000:  # no input depends on p
                continue
            scale = mp.exp(float(at.log_scale[0]))
            error = max(abs(at.hessian[0, j, k] * scale - total[j, k]) for j in range(3) for k in range(3))
            assert error <= 1e-12 * max(1.0, size / 10.0) * terms


OPTIMIZERS = [
    ml.GradientDescent(0.7),
    ml.NormalizedGD(0.4),
    ml.SignDescent(0.1),
    ml.SignDescent(0.1, momentum=0.8),
    ml.CoordinateDescent(0.1),
    ml.SteepestDescent(ml.Lp(3.0), 0.1),
    ml.Adam(0.05),
    ml.MirrorDescent(3.0, 0.1),
]


@BY_NAME
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
def test_compiled_descents_equal_those_of_numpy(loss, optimizer):
    """From zero, and from so far out that weights underflow; inputs that are all right or all wrong are among them."""
    rng = np.random.default_rng(36)
    keys, scores = zip(*(problem(rng, loss, kind=0, shape=(5, 4, 3)) for _ in range(6)), strict=True)
    scores = np.array(scores)
    scores[0, 0] = 1.0
    if isinstance(loss, ml.ArcsineLoss):
        scores[1, 0] = 0.0
    data, v = ml.data.scored_tokens(np.array(keys), scores)
    risk = ml.AttentionRisk(data, v, loss)
    direction = rng.normal(size=(6, 3))
    for size in (0.0, 300.0, 3e3):
        start = size * direction
        loops = (compiled_loop(risk, optimizer), StepwiseLoop(risk, optimizer))
        states = [loop.begin(start.copy()) for loop in loops]
        ends = [
            loop.advance(state, (0, 40), np.array([40]), None)[:, 0] for loop, state in zip(loops, states, strict=True)
        ]
        moved = np.linalg.norm(ends[1] - start, axis=-1)
        assert np.all(np.linalg.norm(ends[0] - ends[1], axis=-1) <= 1e-9 * moved + 1e-14 * size)


@BY_NAME
def test_matrices_with_a_query_each_descend_alike(loss):
    rng = np.random.default_rng(37)
    keys, scores = problem(rng, loss, kind=0, shape=(4, 3, 5))
    keys[..., -1] = scores  # the head reads the score
    data, queries = ml.TokenDataset(keys, np.ones(4)), rng.normal(size=(4, 2))
    risk = ml.AttentionRisk(data, np.eye(5)[-1], loss).as_matrix(queries)
    for optimizer in (ml.NormalizedGD(0.3), ml.Muon(0.1)):
        loops = (compiled_loop(risk, optimizer), StepwiseLoop(risk, optimizer))
        states = [loop.begin(np.zeros((1, 2, 5))) for loop in loops]
        ends = [loop.advance(s, (0, 60), np.array([60]), None)[:, 0] for loop, s in zip(loops, states, strict=True)]
        assert np.linalg.norm(ends[0] - ends[1]) <= 1e-8 * np.linalg.norm(ends[1])


@BY_NAME
def test_the_flow_is_the_limit_of_short_steps(loss):
    rng = np.random.default_rng(38)
    keys, scores = problem(rng, loss, kind=0, shape=(4, 3, 4))
    data, v = ml.data.scored_tokens(keys, scores)
    along = ml.flow(data, v, loss=loss, until=ml.UntilLength(12.0))
    for h, bound in ((0.02, 3e-2), (0.002, 3e-3)):
        steps = ml.descend(data, v, loss=loss, optimizer=ml.NormalizedGD(h), n_steps=round(12.0 / h))
        assert np.linalg.norm(along.final - steps.final) <= bound


@BY_NAME
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.9), (0.6, 0.7), (0.05, 0.4), (0.5, 0.5), (0.0, 0.5)])
def test_constants_are_attained_on_their_interval(loss, low, high):
    found, u = loss.constants(low, high), np.unique([*np.linspace(low, high, 4_001), np.clip(0.5, low, high)])
    logs = loss.log_abs_derivative(u)
    assert found.decreasing
    assert found.log_bound == pytest.approx(logs.max(), rel=0, abs=1e-12)
    assert found.log_smallest == pytest.approx(logs.min(), rel=0, abs=1e-12)
    if high > low > 0.0:
        steepness = np.abs(np.diff(loss.derivative(u))) / np.diff(u)
        assert 0.99 * found.lipschitz <= steepness.max() <= found.lipschitz * (1 + 1e-6)
    assert (found.lipschitz == np.inf) == (low == 0.0)


def test_scores_outside_the_domain_are_refused():
    keys = np.random.default_rng(40).normal(size=(2, 3, 4))
    cases = [
        (ml.ArcsineLoss(), [[0.0, 1.0, 0.5], [1.0 + 2.0**-52, 0.0, 0.0]], "1.0000000000000002"),
        (ml.ArcsineLoss(), [[0.0, 1.0, 0.5], [-1e-30, 0.0, 0.0]], "-1e-30"),
        (ml.LogProbability(), [[0.0, 7.0, 0.5], [-0.1, 0.0, 2.0]], "-0.1"),
        (ml.LogProbability(), [[0.0, 7.0, 0.5], [0.0, 0.0, 0.0]], "none in input 1"),
    ]
    for loss, scores, words in cases:
        data, v = ml.data.scored_tokens(keys, scores)
        with refused("scores") as caught:
            ml.AttentionRisk(data, v, loss)
        assert words in str(caught.value)
    data, v = ml.data.scored_tokens(keys, [[0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    for loss in LOSSES:
        with refused("loss"):
            ml.JointRisk(data, loss)
        with refused("head"):
            ml.AttentionRisk(data, lambda z: z[:, 0], loss)
        with refused("low, high"):
            loss.constants(-0.5, 0.5)
