"""Mini-batches: what a step sees, for every risk; `test_every_loop` has the loops."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import InputError
from quadratic_risk import Quadratic, risks_of_every_kind
from refusals import refused
from tolerances import ROUNDING


def problems(n_problems=3, n_inputs=5, n_tokens=4, d=6):
    data, v = ml.data.sphere_tokens(n_problems, n_inputs, n_tokens, d, 0)
    return ml.AttentionRisk(data, v)


@pytest.mark.parametrize(("n_inputs", "size"), [(6, 1), (6, 4), (7, 3), (5, 4), (1, 1)])
def test_an_epoch_sees_every_input_once(n_inputs, size):
    seen = ml.Sampling(3).inputs(0, 40, n_inputs, size)
    per_epoch = -(-n_inputs // size)
    for epoch in range(40 // per_epoch):
        rows = seen[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(rows[rows >= 0].tolist()) == list(range(n_inputs))
    assert not np.array_equal(seen, ml.Sampling(4).inputs(0, 40, n_inputs, size)) or n_inputs == 1


@pytest.mark.parametrize("replacement", [False, True])
def test_a_mini_batch_depends_on_its_step_only(replacement):
    sampling = ml.Sampling(np.random.default_rng(5), replacement)
    whole = sampling.inputs(0, 3000, 7, 2)
    for begin, end in ((0, 1), (17, 18), (511, 1030), (2999, 3000)):
        np.testing.assert_array_equal(sampling.inputs(begin, end, 7, 2), whole[begin:end])


def test_inputs_with_replacement_are_uniform_and_independent():
    seen = ml.Sampling(0, replacement=True).inputs(0, 20_000, 5, 2)
    counts = np.bincount(seen[:, 0] * 5 + seen[:, 1], minlength=25)
    expected = 800.0
    assert np.sum((counts - expected) ** 2) / expected < 52.6  # chi-square with 24 degrees: one in 1,500


@pytest.mark.parametrize("name", [*risks_of_every_kind()])
def test_every_risk_takes_mini_batches_and_resumes(name):
    risk = risks_of_every_kind()[name]
    if not hasattr(risk, "of_inputs"):
        with refused("batch_size"):
            ml.descend(risk, batch_size=1)
        return
    size = max(1, risk.n_inputs // 2)
    whole = ml.descend(risk, n_steps=12, batch_size=size, optimizer=ml.GradientDescent(0.1))
    halves = ml.descend(risk, n_steps=5, batch_size=size, optimizer=ml.GradientDescent(0.1)).resume(7)
    np.testing.assert_array_equal(whole.final, halves.final)
    parts = [risk.of_inputs(np.array([i])).value(np.ones(risk.shape)) for i in range(risk.n_inputs)]
    assert float(risk.value(np.ones(risk.shape))) == pytest.approx(np.mean(parts), rel=1e-10, abs=ROUNDING)


def test_a_full_mini_batch_gives_the_full_gradient():
    risk = problems()
    np.testing.assert_array_equal(ml.descend(risk, n_steps=20, batch_size=5).final, ml.descend(risk, n_steps=20).final)
    drawn = ml.descend(risk, n_steps=20, batch_size=5, sampling=ml.Sampling(0, replacement=True)).final
    assert not np.allclose(drawn, ml.descend(risk, n_steps=20).final, rtol=0.01, atol=0.0)


def test_an_input_without_a_gradient_does_not_end_a_run():
    X = np.zeros((2, 2, 2))
    X[0, 0] = 1.0  # the second input has two equal tokens
    run = ml.descend(ml.TokenDataset(X, [1.0, 1.0]), np.ones(2), n_steps=50, batch_size=1)
    assert run.status is ml.Status.COMPLETED
    assert run.norm > 10.0


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 6}, "batch_size"),
        ({"batch_size": 2, "sampling": 3}, "sampling"),
        ({"sampling": ml.Sampling(0)}, "sampling"),
    ],
)
def test_an_invalid_mini_batch_is_refused(given, argument):
    with pytest.raises(InputError) as refused:
        ml.descend(problems(), **given)
    assert refused.value.argument == argument


def test_a_user_risk_without_mini_batches_is_refused():
    with refused("batch_size"):
        ml.descend(Quadratic(), batch_size=1)


class OnlyProtocol:
    """An optimizer without its compiled rule, which moves step by step."""

    def __init__(self, rule):
        self.init, self.update = rule.init, rule.update


def with_dead_input(cause, rng):
    """Four inputs, of which one has a gradient of zero at every point; and its number."""
    dead = int(rng.integers(4))
    X = [rng.normal(size=(rng.integers(2, 5), 4)) for _ in range(4)]
    v = np.array([rng.normal(), 0.0, 0.0, 0.0])
    if cause == "one token":
        X[dead] = X[dead][:1]
    if cause == "one score":
        X[dead][:, 0] = X[dead][0, 0]
    if cause == "one key":
        X[dead] = rng.normal(size=(3, 4))
    K = [x + 0.0 for x in X]
    if cause == "one key":
        K[dead] = np.repeat(K[dead][:1], 3, axis=0)
    return ml.AttentionRisk(ml.TokenDataset(X, rng.choice([-1.0, 1.0], size=4), K=K), v), dead


@pytest.mark.parametrize("cause", ["one token", "one key", "one score"])
@pytest.mark.parametrize("point", ["p", "W", "factors"])
@pytest.mark.parametrize(
    "rule",
    [
        ml.Adam(0.1),
        ml.Adam(0.05, (0.0, 0.9), weight_decay=0.3),
        ml.Adam(0.1, (0.5, 0.0), eps=1e-3),
        ml.Adam(0.2, (0.9, 0.99), eps=0.1, weight_decay=0.1),
    ],
    ids=repr,
)
def test_adam_does_not_move_before_its_first_gradient(cause, point, rule):
    rng = np.random.default_rng([31, len(cause)])
    of_p, dead = with_dead_input(cause, rng)
    queries = rng.normal(size=(4, 3))
    if point != "p" and cause == "one key":  # the keys of W are its tokens
        own_keys = [keys[:n] for keys, n in zip(of_p.data.K, of_p.data.lengths, strict=True)]
        of_p = ml.AttentionRisk(ml.TokenDataset(own_keys, of_p.data.y), of_p.head)
    risk = of_p if point == "p" else of_p.as_matrix(queries) if point == "W" else of_p.as_factors(queries, 2)
    start = 0.4 * rng.normal(size=risk.shape)
    seed = next(
        seed for seed in range(500) if ml.Sampling(seed, True).inputs(0, 3, 4, 1)[:, 0].tolist()[:2] == [dead] * 2
    )
    given = {"batch_size": 1, "sampling": ml.Sampling(seed, True), "start": start}
    shrunk = (1.0 - rule.size * rule.weight_decay) ** 2
    waited = ml.descend(risk, optimizer=rule, n_steps=2, **given)
    assert waited.status is ml.Status.COMPLETED
    np.testing.assert_allclose(waited.final, shrunk * start, rtol=4 * np.finfo(float).eps, atol=0.0)
    whole = ml.descend(risk, optimizer=rule, n_steps=30, **given)
    stepwise = ml.descend(risk, optimizer=OnlyProtocol(rule), n_steps=30, **given)
    assert whole.status is ml.Status.COMPLETED
    np.testing.assert_allclose(whole.final, stepwise.final, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(waited.resume(28).final, whole.final)
    assert np.max(np.abs(whole.final - shrunk**15 * start)) > 0.01


@pytest.mark.parametrize("rule", [ml.SignDescent(0.1), ml.Adam(0.1), ml.Muon(0.1)], ids=repr)
@pytest.mark.parametrize("factor", [0.0, 1e308])
def test_a_run_that_ended_before_its_first_step_resumes_unchanged(rule, factor):
    """It stood still, where one score has no gradient, or a step or the logits of its start were too large for float64."""
    data, v = (part[0] for part in ml.data.sphere_tokens(1, 3, 4, 5, 8))
    risk = ml.AttentionRisk(data, v * (factor > 0.0)).as_matrix(np.random.default_rng(2).normal(size=(3, 4)))
    run = ml.descend(risk, optimizer=rule, n_steps=7, start=np.full(risk.shape, factor))
    assert run.status is (ml.Status.NON_FINITE if factor else ml.Status.STATIONARY)
    again = run.resume(9, record=ml.Record([8], ("x",)))
    assert again.status is run.status
    np.testing.assert_array_equal(again.final, run.final)
    np.testing.assert_array_equal(again.saved["x"][0], run.final)
