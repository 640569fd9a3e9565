"""Token datasets: shapes, scores, raggedness, slices and equality."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import marginlens as ml
from random_examples import examples
from refusals import refused
from tolerances import ROUNDING

RNG = np.random.default_rng


@st.composite
def ragged(draw):
    """A ragged dataset of one to four inputs with keys of their own, and a head."""
    rng = RNG(draw(st.integers(0, 2**32 - 1)))
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    X, K = ([rng.standard_normal((n, width)) for n in lengths] for width in (3, 2))
    return ml.TokenDataset(X, rng.choice([-1.0, 1.0], size=len(lengths)), K=K), rng.standard_normal(3)


def test_shapes_keys_and_repr():
    X, W = RNG(0).normal(size=(3, 4, 5)), RNG(1).normal(size=(2, 5))
    data = ml.TokenDataset(X, [1, -1, 1], W=W)
    assert (data.n_inputs, data.n_tokens, data.d_model, data.d_key) == (3, 4, 5, 2)
    np.testing.assert_allclose(data.K[1, 2], W @ X[1, 2], rtol=0.0, atol=ROUNDING)
    assert repr(data) == "TokenDataset(3 inputs × 4 tokens, d_model=5, d_key=2)"
    assert np.array_equal(ml.TokenDataset(X, [1, -1, 1]).K, X)


@pytest.mark.statement("A Eq. (5)", "A Def 1")
def test_scores_and_optimal_tokens():
    X, y, v = RNG(2).normal(size=(6, 3, 4, 5)), RNG(3).choice([-1, 1], size=(6, 3)), RNG(4).normal(size=(6, 5))
    data = ml.TokenDataset(X, y)
    scores = data.scores(v)
    for b, i, t in np.ndindex(6, 3, 4):
        assert scores[b, i, t] == pytest.approx(y[b, i] * X[b, i, t] @ v[b], rel=1e-13, abs=ROUNDING)
    assert np.array_equal(data.optimal(v), scores.argmax(-1))


@examples(25)
@given(ragged(), st.randoms(use_true_random=False))
def test_tokens_and_inputs_can_come_in_any_order(problem, random):
    data, v = problem
    inputs = random.sample(range(data.n_inputs), data.n_inputs)
    orders = [random.sample(range(n), n) for n in data.lengths.tolist()]
    shuffled = ml.TokenDataset(
        [data.X[i, orders[i]] for i in inputs], data.y[inputs], K=[data.K[i, orders[i]] for i in inputs]
    )
    for place, i in enumerate(inputs):
        np.testing.assert_allclose(
            shuffled.scores(v)[place, : len(orders[i])], data.scores(v)[i, orders[i]], rtol=0.0, atol=ROUNDING
        )
    assert np.all(data.scores(v)[~data.mask] == -np.inf)
    assert np.array_equal(data.take_inputs(inputs).lengths, shuffled.lengths)


@examples(25)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.data())
def test_slices_of_a_batch_are_its_problems(n_problems, seed, draw):
    data, v = ml.data.sphere_tokens(n_problems, 2, 3, 4, seed)
    numbers = draw.draw(st.lists(st.integers(0, n_problems - 1), min_size=1))
    part = data[numbers]
    assert part.is_batch
    assert len(part) == len(numbers)
    for place, j in enumerate(numbers):
        assert part[place] == data[j]
        assert not data[j].is_batch
        np.testing.assert_allclose(part.scores(v[numbers])[place], data[j].scores(v[j]), rtol=0.0, atol=ROUNDING)
    mask = np.isin(np.arange(n_problems), numbers)
    assert data[mask] == data[np.unique(numbers)]
    assert data[:] == data
    assert data[:1] != data[0]


def test_lists_of_problems_are_ragged_batches():
    parts = [RNG(i).normal(size=(n, 3)) for i, n in enumerate((2, 4, 1))]
    batch = ml.TokenDataset([parts, parts[::-1]], [[1, -1, 1], [1, 1, 1]])
    assert batch.is_batch
    assert np.array_equal(batch[0].X[0, :2], parts[0])
    assert batch[1].lengths.tolist() == [1, 4, 2]
    assert "up to 4 tokens" in repr(batch)


def test_repeat_shares_one_problem():
    data, _ = ml.data.figure_1b()
    many = data.repeat(7)
    assert len(many) == 7
    assert many.K.strides[0] == 0
    assert many[6] == data
    with refused("data"):
        many.repeat(2)


def test_cpu_tensors_are_arrays_unless_they_require_a_gradient():
    torch = pytest.importorskip("torch")
    data = ml.TokenDataset(torch.ones(2, 3, 4), torch.tensor([1, -1]))
    assert data.scores(torch.ones(4)).shape == (2, 3)
    with refused("X"):
        ml.TokenDataset(torch.ones(2, 3, 4, requires_grad=True), [1, 1])
