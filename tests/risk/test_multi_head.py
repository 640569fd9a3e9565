"""Several heads and self-attention as risks: one head is plain attention, and each goes to its own margin."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics.loops import StepwiseLoop, loop_of
from marginlens.errors import InputError
from marginlens.risk import MultiHeadRisk
from tolerances import ROUNDING

SHARE = 0.99  # of its best margin that a head has after the steps below


def data_of(n_problems=2, n_inputs=4, n_tokens=5, d=6, seed=0):
    return ml.data.sphere_tokens(n_problems, n_inputs, n_tokens, d, seed)


def three_heads():
    return MultiHeadRisk(*data_of(), 3)


def test_adam_is_exact_for_heads_of_different_scale():
    """Its means have one scale in the compiled loop, which heads of their own need not share."""
    risk = three_heads()
    assert isinstance(loop_of(risk, ml.Adam(0.1)), StepwiseLoop)
    assert np.isfinite(ml.descend(risk, optimizer=ml.Adam(0.1), n_steps=50).final).all()


def test_signs_of_a_saturated_head_are_kept():
    data, v = data_of(d=30)
    risk = MultiHeadRisk(data[0], v[0], 2)
    start = np.zeros((2, 30))
    start[0] = 3000.0 * ml.att_svm(data[0], data[0].optimal(v[0])).x  # gradients below 1e-800
    run = ml.descend(risk, optimizer=ml.SignDescent(0.1), n_steps=1, start=start)
    np.testing.assert_allclose(np.abs(run.final - start), 0.1, rtol=1e-6, atol=0.0)


def test_one_head_equals_plain_attention():
    data, v = data_of()
    one = ml.descend(MultiHeadRisk(data, v, 1), optimizer=ml.NormalizedGD(0.5), n_steps=200)
    plain = ml.descend(data, v, optimizer=ml.NormalizedGD(0.5), n_steps=200)
    np.testing.assert_allclose(one.final[:, 0], plain.final, rtol=0.0, atol=1e-9)


def test_only_heads_with_equal_starts_stay_equal():
    data, v = data_of()
    risk = MultiHeadRisk(data, v, 3)
    alike = ml.descend(risk, optimizer=ml.NormalizedGD(0.5), n_steps=300).final
    np.testing.assert_allclose(alike, np.broadcast_to(alike[:, :1], alike.shape), rtol=0.0, atol=1e-9)
    start = np.random.default_rng(1).normal(size=(2, 3, 6))
    apart = ml.descend(risk, optimizer=ml.NormalizedGD(0.5), n_steps=300, start=start).final
    assert np.abs(apart[:, 0] - apart[:, 1]).max() > 0.1


@pytest.mark.statement("X H1")
def test_every_head_reaches_its_margin_direction():
    data, v = data_of(n_problems=4, d=30)
    risk = MultiHeadRisk(data, v, 2)
    start = 3.0 * np.random.default_rng(4).normal(size=(4, 2, 30))
    run = ml.descend(risk, optimizer=ml.SteepestDescent(ml.MaxRow(), 0.3), n_steps=20_000, start=start)
    selected = risk.by_head(run.selected)
    for problem in range(4):
        for head in range(2):
            best = ml.att_svm(data[problem], selected[problem, :, head])
            p = run.final[problem, head]
            margin = risk[problem].token_margins(run.final[problem])[:, head].min() / np.linalg.norm(p)
            assert margin > SHARE * best.margin
    bracket = run[0].bracket(ml.MaxRow())
    assert bracket.lower <= bracket.upper
    assert bracket.upper / bracket.lower < 1.05


def test_excess_risk_is_relative_to_selected_tokens():
    risk = three_heads()[0]
    x = 2.0 * np.random.default_rng(5).normal(size=risk.shape)
    excess = risk.excess(x)
    scores = risk.data.scores(risk.head)
    chosen = risk.by_head(risk.select(x))
    outright = np.mean(np.take_along_axis(scores, chosen, axis=1), axis=1)
    reference = np.mean(np.logaddexp(0.0, -outright))
    assert float(excess.sign * np.exp(excess.log)) == pytest.approx(
        float(risk.value(x)) - reference, rel=1e-9, abs=ROUNDING
    )


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda data, v: MultiHeadRisk(data, v, 0), "heads"),
        (lambda data, v: MultiHeadRisk(data, v, np.zeros((4, 2, 3))), "heads"),
        (lambda data, v: MultiHeadRisk(data, lambda x: x, 2), "head"),
        (lambda data, v: MultiHeadRisk(data.with_keys(2.0 * data.X), v, 2), "data"),
    ],
)
def test_invalid_multi_head_problems_are_refused(make, argument):
    with pytest.raises(InputError) as refused:
        make(*(part[0] for part in data_of()))
    assert refused.value.argument == argument


def test_no_theorem_is_cited_for_several_heads():
    prediction = ml.predict(three_heads()[0], optimizer=ml.NormalizedGD(0.1))
    assert prediction.direction is None
    assert not any(verdict.applies for verdict in prediction.verdicts)
