"""Samples whose label is not in their sequence: risk, gradient and descent against autograd, and the remark after C Assumption 2."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.graphs import separated_tokens
from marginlens.losses import SquaredProbability
from plain_losses import Decay, Linear
from sequence_autograd import autograd
from tolerances import CONDITIONED, ROUNDING

LOSSES = (ml.LogLoss(), ml.SquaredLoss(), ml.CrossEntropy(), SquaredProbability())


def mixed(seed, d_model=5):
    """Sequences of which about half lack their label, and a head with positive scores."""
    rng = np.random.default_rng(seed)
    E, C = rng.uniform(0.1, 1.0, size=(6, d_model)), rng.uniform(0.1, 1.0, size=(6, d_model))
    sequences = [rng.integers(0, 6, size=rng.integers(2, 6)).tolist() for _ in range(12)]
    ds = ml.SequenceDataset(sequences, rng.integers(0, 6, size=12), E, unrealizable="keep")
    assert 0 < len(ds.unrealizable) < len(ds)
    return ds, C, rng.normal(size=(d_model, d_model))


@pytest.mark.parametrize("loss", [*LOSSES, Decay()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("seed", range(4))
def test_risk_gradient_and_descent_agree_with_autograd(loss, seed):
    ds, C, W = mixed(seed)
    risk, gradient = autograd(ds, W, C, type(loss).__name__)
    assert ml.NextTokenRisk(ds, head=C, loss=loss).value(W) == pytest.approx(risk, abs=ROUNDING, rel=0.0)
    np.testing.assert_allclose(
        ml.NextTokenRisk(ds, head=C, loss=loss).gradient(W).value(), gradient, rtol=0.0, atol=ROUNDING
    )
    run = ml.descend(ds, head=C, loss=loss, optimizer=ml.GradientDescent(0.5), n_steps=20, start=W)
    for _ in range(20):
        W = W - 0.5 * autograd(ds, W, C, type(loss).__name__)[1]
    np.testing.assert_allclose(run.final, W, rtol=0.0, atol=CONDITIONED)


@pytest.mark.statement("C Assumption 2")
@pytest.mark.parametrize("loss", [ml.SquaredLoss(), Decay(), Linear()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("seed", range(4))
def test_unrealizable_samples_under_the_identity_head_have_no_gradient(loss, seed):
    """The remark after C Assumption 2: with C Eᵀ = I and a loss of the label's output they play no role in optimising W."""
    ds, _, W = mixed(seed, d_model=6)
    alone = ds.take(ds.unrealizable)
    assert not ml.NextTokenRisk(alone, loss=loss).gradient(W).value().any()
    part = ds.realizable()
    together, others = (ml.NextTokenRisk(data, loss=loss).gradient(W).value() for data in (ds, part))
    np.testing.assert_allclose(together, others * len(part) / len(ds), rtol=0.0, atol=ROUNDING)
    run = ml.descend(ds, loss=loss, n_steps=200)
    np.testing.assert_allclose(run.final, ml.descend(part, loss=loss, n_steps=200).final, rtol=0.0, atol=CONDITIONED)


@pytest.mark.statement("C Assumption 2")
def test_a_loss_of_all_outputs_or_another_head_moves_unrealizable_samples():
    ds, C, W = mixed(0, d_model=6)
    alone = ds.take(ds.unrealizable)
    assert np.abs(ml.NextTokenRisk(alone, loss=ml.CrossEntropy()).gradient(W).value()).max() > 1e-3
    assert np.abs(ml.NextTokenRisk(alone, head=C, loss=ml.SquaredLoss()).gradient(W).value()).max() > 1e-3


def test_the_log_loss_under_the_identity_head_is_infinite():
    ds, _, W = mixed(1)
    assert ml.NextTokenRisk(ds).value(W) == np.inf
    assert np.isnan(ml.NextTokenRisk(ds).gradient(W).value()).all()
    assert ml.descend(ds, n_steps=5).status is ml.Status.NON_FINITE
    batch = ml.descend([ds.realizable(), ds], n_steps=5)  # the others of a batch go on
    assert batch.status.tolist() == [ml.Status.COMPLETED, ml.Status.NON_FINITE]
    np.testing.assert_allclose(batch.final[0], ml.descend(ds.realizable(), n_steps=5).final, rtol=0.0, atol=ROUNDING)


@pytest.mark.statement("C Assumption 2")
@pytest.mark.parametrize("seed", range(2))
def test_attention_selects_the_token_best_for_the_label(seed):
    """ŷ ≠ y is selected, and W grows along the Graph-SVM that separates ŷ."""
    rng = np.random.default_rng(seed)
    E, C = np.eye(5), rng.uniform(0.2, 1.0, size=(5, 5))
    ds = ml.SequenceDataset([[0, 1, 2], [1, 3, 4]], [4, 0], E, unrealizable="keep")
    best = separated_tokens(ds, C)
    for i in range(2):
        ids, y = ds[i]
        assert best[i] == max(ids.tolist(), key=lambda x, y=y: C[y, x])
    graphs = ml.priority_graphs(ds, head=C)
    solution = ml.graph_svm(E, graphs)
    run = ml.descend(ds, head=C, loss=Linear(), optimizer=ml.NormalizedGD(0.1), n_steps=1000)
    assert [int(ds[i][0][run.selected[i]]) for i in range(2)] == best.tolist()
    assert ml.correlation(run.final, solution.x, axes=2) > 0.99


def test_samples_without_a_better_token_are_left_out_of_the_graphs():
    ds = ml.SequenceDataset([[0, 1], [1, 2], [0, 2]], [0, 0, 1], np.eye(3), unrealizable="keep")
    assert separated_tokens(ds).tolist() == [0, -1, -1]
    assert separated_tokens(ds, np.ones((3, 3))).tolist() == [0, -1, -1]
    assert {last: graph.strict.tolist() for last, graph in ml.priority_graphs(ds).items()} == {1: [[0, 1]]}
    part = ds.realizable()
    assert (len(part), part.dropped.tolist()) == (1, [1, 2])


@pytest.mark.statement("C Assumption 2")
def test_the_prediction_lists_missing_conditions():
    ds = ml.SequenceDataset([[0, 1], [1, 2], [0, 2]], [0, 0, 1], np.eye(3), unrealizable="keep")
    C = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])

    def condition(**options):
        found = ml.predict_limit(ds, **options)
        checks = [
            check for verdict in found.verdicts for check in verdict.conditions if check.code == "next_token.realizable"
        ]
        assert not any(verdict.applies for verdict in found.verdicts)
        assert not any(check.holds for check in checks)
        return checks[0].numbers, found

    def consequence(**options):
        return condition(**options)[0]["consequence"].numbers

    numbers, found = condition()
    assert [numbers[name] for name in ("lacking", "n_samples", "sample")] == [2, 3, 1]
    assert consequence()["case"] == "log"
    assert found.details.targets.tolist() == [0, -1, -1]
    np.testing.assert_allclose(
        found.details.priority.x, ml.predict_limit(ds.realizable()).details.priority.x, rtol=0.0, atol=ROUNDING
    )
    assert consequence(loss=Linear())["case"] == "constant"
    assert consequence(loss=ml.CrossEntropy())["case"] == "no_token"
    numbers, found = condition(head=C, loss=Linear())
    assert numbers["consequence"].numbers == {"token": 2, "sample": 1, "left_out": 0, "case": "replaced"}
    assert found.details.targets.tolist() == [0, 2, 2]
