"""Weight decay and momentum: every optimizer takes them, and torch takes the same steps."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import InputError
from marginlens.testing import check_optimizer
from quadratic_risk import optimizers_of_every_kind


@pytest.mark.parametrize(
    "optimizer",
    [
        *optimizers_of_every_kind(weight_decay=0.3),
        ml.optimizers.Blockwise,
    ],
    ids=repr,
)
def test_optimizers_with_decay_keep_their_contract(optimizer):
    if optimizer is ml.optimizers.Blockwise:
        data, _ = ml.data.sphere_tokens(2, 2, 3, 4, 0)
        by_part = optimizer(ml.NormalizedGD(0.1, weight_decay=0.5))
        run = ml.descend(ml.JointRisk(data), optimizer=by_part, n_steps=400, start=(np.full(4, 3.0), np.full(4, 3.0)))
        assert np.all(np.linalg.norm(run.final.reshape(2, 2, 4), axis=-1) <= 2.0 + 1e-9)
        return
    check_optimizer(optimizer)


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (ml.Adam(0.05, eps=1e-8, weight_decay=0.2), "AdamW", {"lr": 0.05, "weight_decay": 0.2}),
        (ml.GradientDescent(0.3, momentum=0.9), "SGD", {"lr": 0.3, "momentum": 0.9}),
        (ml.GradientDescent(0.3, weight_decay=0.2), "SGD", {"lr": 0.3, "weight_decay": 0.2}),
    ],
    ids=repr,
)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_torch_takes_the_same_steps(ours, theirs, settings, batch_size):
    torch = pytest.importorskip("torch")
    data, v = (part[0] for part in ml.data.sphere_tokens(1, 5, 4, 6, 0))
    p = torch.ones(6, dtype=torch.float64, requires_grad=True)
    rule = getattr(torch.optim, theirs)([p], **settings)
    X, y = torch.tensor(data.X), torch.tensor(data.y)
    for row in ml.Sampling(0).inputs(0, 100, 5, batch_size or 5):
        seen = row[row >= 0]
        rule.zero_grad()
        output = torch.einsum("it,itd,d->i", torch.softmax(X[seen] @ p, dim=-1), X[seen], torch.tensor(v)) * y[seen]
        torch.nn.functional.softplus(-output).mean().backward()
        rule.step()
    run = ml.descend(data, v, optimizer=ours, n_steps=100, start=np.ones(6), batch_size=batch_size)
    np.testing.assert_allclose(run.final, p.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", [ml.L1(), ml.L2(), ml.LInf(), ml.Lp(3)], ids=repr)
def test_decayed_steps_stay_in_the_ball_of_their_norm(norm):
    """Steps of Frank and Wolfe: (1 - ηλ) x - η s is a mean of x and a point of the ball of radius 1/λ."""
    data, v = ml.data.sphere_tokens(5, 4, 5, 6, 0)
    decayed = ml.descend(data, v, optimizer=ml.SteepestDescent(norm, 0.05, weight_decay=0.1), n_steps=2000).final
    free = ml.descend(data, v, optimizer=ml.SteepestDescent(norm, 0.05), n_steps=2000).final
    assert max(norm.value(x) for x in decayed) <= 10.0 * (1.0 + 1e-9)
    assert min(norm.value(x) for x in free) > 20.0


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: ml.Adam(0.1, weight_decay=-1.0), "weight_decay"),
        (lambda: ml.SignDescent(0.5, weight_decay=3.0), "weight_decay"),
        (lambda: ml.NormalizedGD(0.1, momentum=1.0), "momentum"),
    ],
)
def test_invalid_decay_is_refused(make, argument):
    with pytest.raises(InputError) as refused:
        make()
    assert refused.value.argument == argument


def test_predictions_cite_no_theorem_for_decayed_steps():
    data, v = ml.data.figure_1b()
    start = [200_000.0, 0.0]
    assert ml.predict_limit(data, v, start=start, optimizer=ml.GradientDescent(1e-9)).direction is not None
    for rule in (
        ml.GradientDescent(1e-9, weight_decay=0.1),
        ml.GradientDescent(1e-9, momentum=0.9),
        ml.NormalizedGD(0.1, weight_decay=0.1),
    ):
        prediction = ml.predict_limit(data, v, start=start, optimizer=rule)
        assert prediction.direction is None
        assert prediction.bias.norm is None
        assert prediction.bias.proved == ()
    ball = ml.predict_limit(data, v, optimizer=ml.SignDescent(0.1, weight_decay=0.1)).bias
    assert "ball of radius 1/λ = 10" in str(ball)
    assert "weight decay 0.1" in str(ball.optimizer)
    memory = ml.predict_limit(data, v, optimizer=ml.NormalizedGD(0.1, momentum=0.9)).bias
    assert memory.conditions[0].name == "memory"
    with pytest.raises(InputError):
        ml.certify(data, v, start, optimizer=ml.NormalizedGD(0.1, momentum=0.9))
