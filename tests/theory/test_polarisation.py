"""X Theorem 3: the token of the highest score wins, its leads never shrink, and every condition is needed."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.dynamics import Record
from plain_losses import OwnLogistic


def rotated(n_tokens: int, width: int, size: float, rng: np.random.Generator) -> np.ndarray:
    """Orthogonal rows of this length."""
    return size * np.linalg.qr(rng.standard_normal((width, n_tokens)))[0].T


def problem(seed: int, n_tokens: int = 5):
    rng = np.random.default_rng(seed)
    X, K = rotated(n_tokens, n_tokens + 2, 1.5, rng), rotated(n_tokens, n_tokens + 1, 0.7, rng)
    data = ml.data.TokenDataset(X[None], [rng.choice([-1.0, 1.0])], K=K[None])
    return data, 0.3 * rng.standard_normal(n_tokens + 2)


@pytest.mark.statement("X Thm 3")
@pytest.mark.parametrize(
    "optimizer", [ml.GradientDescent(0.3), ml.GradientDescent(20.0), ml.NormalizedGD(0.2)], ids=repr
)
@pytest.mark.parametrize("loss", [ml.Logistic(), ml.CorrelationLoss()], ids=lambda loss: type(loss).__name__)
def test_leads_of_the_highest_score_never_shrink_and_it_wins(optimizer, loss):
    for seed in range(2):
        data, v = problem(seed)
        start = (v, np.zeros(data.d_key))
        answer = ml.predict_limit(data, loss=loss, start=start, optimizer=optimizer)
        best = int(np.argmax(data.scores(v)[0]))
        assert answer.selected.tolist() == [best]
        assert f"token {best}" in answer.answer.ends_at
        assert answer.answer.proof == "yes, by X Thm 3"
        risk = ml.JointRisk(data, loss)
        run = ml.descend(risk, optimizer=optimizer, n_steps=600, start=start, record=Record(1))
        heads, attention = risk.split(run.saved["x"])
        for values in (data.y[0] * heads @ data.X[0].T, attention @ data.K[0].T):
            leads = np.delete(values[:, [best]] - values, best, axis=1)
            assert np.diff(leads, axis=0).min() >= -1e-12 * np.abs(leads).max()
        assert run.selected.tolist() == [best]


@pytest.mark.statement("X Thm 3")
def test_the_flow_keeps_the_order_of_all_tokens():
    data, v = problem(11, n_tokens=6)
    run = ml.descend(
        ml.JointRisk(data), optimizer=ml.GradientDescent(0.01), n_steps=20_000, start=(v, np.zeros(data.d_key))
    )
    logits = data.K[0] @ ml.JointRisk(data).split(run.final).p
    assert np.array_equal(np.argsort(logits), np.argsort(data.scores(v)[0]))


@pytest.mark.statement("X Thm 3")
@pytest.mark.parametrize(
    ("condition", "change"),
    [
        ("one input", {"inputs": 2}),
        ("orthogonal tokens", {"X": 0.5}),
        ("orthogonal keys", {"K": 0.5}),
        ("decreasing loss", {"loss": OwnLogistic()}),
        ("steps", {"optimizer": ml.Adam(0.1)}),
        ("one token leads at the start", {"p": 1.0}),
    ],
)
def test_every_condition_can_fail(condition, change):
    rng = np.random.default_rng(5)
    data, v = problem(3)
    X, K = data.X.copy(), data.K.copy()
    X += change.get("X", 0.0) * rng.standard_normal(X.shape)
    K += change.get("K", 0.0) * rng.standard_normal(K.shape)
    X, y, K = (np.repeat(array, change.get("inputs", 1), axis=0) for array in (X, data.y, K))
    data = ml.data.TokenDataset(X, y, K=K)
    p = change.get("p", 0.0) * data.K[0, int(np.argmin(data.scores(v)[0]))]
    given = {"loss": ml.Logistic(), "optimizer": ml.GradientDescent(0.1), **change}
    found = ml.predict_limit(data, loss=given["loss"], start=(v, p), optimizer=given["optimizer"])
    verdict = found.verdicts[-1]
    assert verdict.citation == "X Thm 3"
    assert [check.name for check in verdict.failed] == [condition]
    assert found.selected is None
