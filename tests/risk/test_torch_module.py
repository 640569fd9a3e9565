"""A torch module of a user's own as a risk."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import InputError
from marginlens.risk import from_torch
from marginlens.testing import check_risk
from tolerances import ROUNDING

torch = pytest.importorskip("torch")


class OneLayer(torch.nn.Module):
    """The attention of the library, as a torch user writes it."""

    def __init__(self, risk):
        super().__init__()
        self.X, self.y, self.v = (torch.tensor(part) for part in (risk.data.X, risk.data.y, risk.head))
        self.p = torch.nn.Parameter(torch.zeros(risk.data.d_key))

    def attention(self):
        return torch.softmax(self.X @ self.p, dim=-1)

    def forward(self):
        return self.y * torch.einsum("it,itd,d->i", self.attention(), self.X, self.v)


def losses(module, inputs=None):
    output = module()
    return torch.nn.functional.softplus(-(output if inputs is None else output[inputs])).mean()


def pair(**options):
    data, v = ml.data.sphere_tokens(1, 4, 5, 20, 0)
    risk = ml.AttentionRisk(data[0], v[0])
    module = OneLayer(risk)
    return risk, from_torch(module, losses, select=lambda one: one.attention().argmax(dim=-1), **options)


def test_the_contract_of_risks_is_kept():
    check_risk(pair()[1])
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x = torch.randn(10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check_risk(from_torch(network, lambda net: (net(x) ** 2).mean()))


@pytest.mark.parametrize(
    "optimizer", [ml.GradientDescent(1.0), ml.SignDescent(0.05, 0.9), ml.Adam(0.05, weight_decay=0.1)], ids=repr
)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_module_runs_equal_the_librarys(optimizer, batch_size):
    own, risk = pair(n_inputs=4)
    runs = [ml.descend(one, optimizer=optimizer, n_steps=60, batch_size=batch_size) for one in (own, risk)]
    np.testing.assert_allclose(runs[1].final, runs[0].final, rtol=0.0, atol=1e-9)
    np.testing.assert_array_equal(runs[1].selected, runs[0].selected)
    risk.load(runs[1].final)
    assert losses(risk.module).item() == pytest.approx(float(own.value(runs[0].final)), rel=1e-12, abs=ROUNDING)


def test_noise_flags_gradients_lost_by_autograd():
    own, risk = pair()
    direction = ml.att_svm(own.data, own.data.optimal(own.head)).x
    errors = {}
    for scale in (1.0, 20.0, 30.0, 45.0):
        exact, found = own.gradient(scale * direction).value(), risk.gradient(scale * direction).value()
        errors[scale] = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
        assert 0.05 * errors[scale] < risk.noise(scale * direction) < 1e3 * errors[scale] + 1e-14
    assert errors[1.0] < 1e-14  # all digits
    assert errors[45.0] > 1.0  # none: gradients of e^-46 are differences of numbers of order one
    assert risk.noise(1e4 * direction) == np.inf


def test_a_path_of_a_module_equals_the_risks():
    own, risk = pair()
    ours, theirs = (ml.path(one, [0.5, 2.0]) for one in (own, risk))
    np.testing.assert_allclose(theirs.points, ours.points, rtol=0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: from_torch(3, losses), "module"),
        (lambda: from_torch(torch.nn.Linear(1, 1), 3), "loss"),
        (lambda: from_torch(torch.nn.Tanh(), losses), "module"),
        (lambda: ml.descend(pair()[1], batch_size=2), "batch_size"),
    ],
)
def test_an_invalid_module_is_refused(make, argument):
    with pytest.raises(InputError) as refused:
        make()
    assert refused.value.argument == argument
