"""Mini-batches: what a step sees, for every risk; `test_every_loop` has the loops."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import InputError
from quadratic_risk import Quadratic, risks_of_every_kind


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
def test_what_a_step_sees_depends_on_its_number_alone(replacement):
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
def test_every_risk_takes_mini_batches_and_goes_on_where_it_stopped(name):
    risk = risks_of_every_kind()[name]
    if not hasattr(risk, "of_inputs"):
        with pytest.raises(InputError, match="of_inputs"):
            ml.descend(risk, batch_size=1)
        return
    size = max(1, risk.n_inputs // 2)
    whole = ml.descend(risk, n_steps=12, batch_size=size, optimizer=ml.GradientDescent(0.1))
    halves = ml.descend(risk, n_steps=5, batch_size=size, optimizer=ml.GradientDescent(0.1)).resume(7)
    np.testing.assert_array_equal(whole.final, halves.final)
    parts = [risk.of_inputs(np.array([i])).value(np.ones(risk.shape)) for i in range(risk.n_inputs)]
    assert float(risk.value(np.ones(risk.shape))) == pytest.approx(np.mean(parts), rel=1e-10)


def test_all_inputs_at_once_are_the_whole_gradient():
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
def test_what_is_no_mini_batch_is_refused(given, argument):
    with pytest.raises(InputError) as refused:
        ml.descend(problems(), **given)
    assert refused.value.argument == argument


def test_a_risk_of_ones_own_says_what_it_lacks():
    with pytest.raises(InputError, match="of_inputs"):
        ml.descend(Quadratic(), batch_size=1)
