"""Both models' exact gradients, and AdamW, against torch's autograd and optimizer on sequences written out position by position."""

import numpy as np
import pytest
import torch

from experiments.embeddings.settings import TrainingSettings
from experiments.embeddings.torch_models import DeviceOneLayer, DeviceTwoLayer
from experiments.embeddings.train import ResumableOneLayer
from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings.models import Parameters, distinct_tokens, initial_parameters, loss_and_gradients
from marginlens_papers.claims.b.one_layer import batches_of
from random_problems import ragged_labelled
from sequence_autograd import written_out
from tolerances import AUTOGRAD, LOOP_AGREEMENT, ROUNDING

MODELS = {
    "compiled": (1, ResumableOneLayer, False),
    "torch": (1, DeviceOneLayer, False),
    "two layers": (2, DeviceTwoLayer, False),
    "two layers with gain and bias": (2, DeviceTwoLayer, True),
}


def ragged(seed=0, n=30, longest=20):
    return ragged_labelled(np.random.default_rng(seed), n, 15, longest)


def loss_of(data, samples, model, layers):
    outputs = outputs_of(data, samples, model, layers)
    return torch.nn.functional.softplus(-torch.from_numpy(data.y[samples]) * outputs).mean()


def outputs_of(data, samples, model, layers):
    return written_out([data[int(i)][0] for i in samples], *model[:3], layers, *model[3:])


def parameters(data, d, seed=1, scale=2.0):
    start = initial_parameters(data.n_vocabulary, d, np.random.default_rng(seed), np.float64)
    return Parameters(scale * start.E, scale * start.p, scale * start.v)


def leaves(start):
    return [torch.tensor(one, requires_grad=True) for one in (start.E, start.p, start.v)]


def copied(start):
    return Parameters(start.E.copy(), start.p.copy(), start.v.copy())


@pytest.mark.statement("B Eq. (1)", "B Eq. (2)", "B Lemma 7")
@pytest.mark.parametrize("scale", [1.0, 5.0, 60.0])
def test_closed_form_gradients_equal_autograds(scale):
    data = ragged()
    start = parameters(data, 7, scale=scale)
    theirs = leaves(start)
    expected = loss_of(data, np.arange(len(data)), theirs, 1)
    expected.backward()
    loss, ours = loss_and_gradients(start, data)
    assert abs(loss - expected.item()) < ROUNDING
    # a saturated softmax leaves autograd no p
    for name, other in zip("Epv" if scale < 60.0 else "E", theirs, strict=False):
        mine = getattr(ours, name)
        assert np.abs(mine - other.grad.numpy()).max() <= AUTOGRAD * np.abs(mine).max()


@pytest.mark.statement("B Lemma 7")
def test_the_embedding_gradient_is_the_papers_double_sum():
    data = ragged(3, n=5, longest=6)
    start = parameters(data, 4)
    expected = np.zeros_like(start.E)
    for i in range(len(data)):
        ids, y = data[i]
        X = start.E[ids]
        q = np.exp(X @ start.p) / np.exp(X @ start.p).sum()
        g = 1.0 / (1.0 + np.exp(y * (q @ X @ start.v)))
        for s in range(data.n_vocabulary):
            for k in range(len(ids)):
                pair = sum((float(ids[k] == s) - float(ids[j] == s)) * q[k] * q[j] for j in range(len(ids)) if j != k)
                expected[s] -= y * g * (pair * (X[k] @ start.v) * start.p + (ids[k] == s) * q[k] * start.v) / len(data)
    np.testing.assert_allclose(loss_and_gradients(start, data)[1].E, expected, rtol=0, atol=ROUNDING)


@pytest.mark.statement("B Eq. (36)")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("train_v", [True, False])
def test_training_equals_torchs_adamw(name, train_v):
    layers, model_class, affine = MODELS[name]
    data, rng = ragged(), np.random.default_rng(5)
    start = parameters(data, 9)
    settings = TrainingSettings(layers, 9, batch=11, weight_decay=0.01, train_v=train_v, affine=affine, dtype="float64")
    model = model_class(distinct_tokens(data), copied(start), settings)
    theirs = leaves(start)
    if affine:
        theirs += [torch.full((9,), value, dtype=torch.float64, requires_grad=True) for value in (1.0, 0.0)]
    optimizer = torch.optim.AdamW([one for k, one in enumerate(theirs) if train_v or k != 2], weight_decay=0.01)
    for rate in (0.05, 0.05, 0.005):
        order = rng.permutation(len(data))
        model.begin(order)
        total = 0.0
        optimizer.param_groups[0]["lr"] = rate
        for first, last in batches_of(len(data), 11):
            optimizer.zero_grad()
            loss = loss_of(data, order[first:last], theirs, layers)
            loss.backward()
            optimizer.step()
            total += loss.item() * (last - first)
            model.step(first, last, rate)
            assert abs(model.loss - total) < LOOP_AGREEMENT
    assert model.taken == 9
    mine = [*vars(model.parameters()).values(), *(model.layer_norm() if affine else ())]
    for one, other in zip(mine, theirs, strict=True):
        assert np.abs(one - other.detach().numpy()).max() < LOOP_AGREEMENT
    outputs = outputs_of(data, range(len(data)), theirs, layers).detach().numpy()
    assert np.abs(model.outputs() - outputs).max() < LOOP_AGREEMENT
    E, p, v = vars(model.parameters()).values()
    for mine, expected in zip(model.products(), (E @ p, E @ v), strict=True):
        assert np.abs(mine - expected).max() < ROUNDING
    assert np.array_equal(v, start.v) is not train_v


def test_missing_products_are_recomputed():
    data, settings = ragged(), TrainingSettings(d_model=9, batch=11, dtype="float64")
    model, other = (ResumableOneLayer(distinct_tokens(data), parameters(data, 9, seed), settings) for seed in (1, 2))
    model.step(0, 11, 0.05)
    other.restore({name: one.copy() for name, one in model.state().items() if name not in ("a", "b")}, model.taken)
    for mine, expected in zip(other.products(), model.products(), strict=True):
        assert np.abs(mine - expected).max() < ROUNDING


@pytest.mark.statement("B Eq. (36)")
def test_distinct_tokens_with_counts_equal_padded_sequences():
    data = LabelledSequences([[3, 3, 3, 1], [2], [0, 1, 0, 1, 0, 3, 2, 2]], [1, -1, 1])
    start = parameters(data, 5, scale=3.0)
    settings = TrainingSettings(2, 5, batch=3, dtype="float64")
    model = DeviceTwoLayer(distinct_tokens(data), copied(start), settings)
    model.epochs.lay_out(np.arange(3))
    batch = model.epochs[0]
    assert [group.token.shape for group in batch.groups] == [(2, 8), (1, 8)]
    f = torch.cat(model.gradients(batch))
    E, p, v = leaves(start)
    longest = max(data.lengths)
    tokens = torch.zeros(3, longest, dtype=torch.int64)
    mask = torch.full((3, longest), -torch.inf, dtype=torch.float64)
    for row, i in enumerate((1, 0, 2)):  # shortest first
        ids = torch.from_numpy(data[i][0])
        tokens[row, : len(ids)], mask[row, : len(ids)] = ids, 0.0
    X = E[tokens]
    X = torch.nn.functional.layer_norm(torch.softmax(X @ X.mT + mask[:, None, :], dim=-1) @ X + X, (5,))
    padded = (torch.softmax(X @ p + mask, dim=-1) * (X @ v)).sum(-1)
    assert (f - padded).abs().max() < ROUNDING
    torch.nn.functional.softplus(-torch.tensor([-1.0, 1.0, 1.0]) * padded).mean().backward()
    for name, other in zip("Epv", (E, p, v), strict=True):
        assert (model.trained[name].grad - other.grad).abs().max() <= AUTOGRAD * other.grad.abs().max()


# ---- initial values


def test_a_whole_number_seeds_the_initial_values():
    start = initial_parameters(3, 4, 0, np.float64)
    again = initial_parameters(3, 4, np.random.default_rng(0), "float64")
    assert np.array_equal(start.E, again.E)
    assert np.array_equal(start.p, again.p)
    assert np.array_equal(start.v, again.v)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_initial_values_have_the_requested_size(dtype):
    for d in (3, 400):
        start = initial_parameters(2000, d, 1, dtype, 0.25)
        assert np.linalg.norm(start.v) == pytest.approx(1.0, rel=1e-6, abs=ROUNDING)
        assert np.mean(start.E**2) * d == pytest.approx(0.25**2, rel=0.06, abs=ROUNDING)
    assert np.linalg.norm(start.p) == pytest.approx(0.25, rel=0.12, abs=ROUNDING)
    assert {one.dtype for one in vars(start).values()} == {np.dtype(dtype)}
