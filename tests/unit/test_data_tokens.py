"""Token datasets: shapes, raggedness, batches, and one sentence for each thing that cannot be used."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import real_array

RNG = np.random.default_rng


def test_shapes_keys_and_repr():
    X = RNG(0).normal(size=(3, 4, 5))
    W = RNG(1).normal(size=(2, 5))
    data = ml.TokenDataset(X, [1, -1, 1], W=W)
    assert (data.n_inputs, data.n_tokens, data.d_model, data.d_key) == (3, 4, 5, 2)
    assert np.allclose(data.K[1, 2], W @ X[1, 2])
    assert repr(data) == "TokenDataset(3 inputs × 4 tokens, d_model=5, d_key=2)"
    assert np.array_equal(ml.TokenDataset(X, [1, -1, 1]).K, X)


@pytest.mark.statement("A Eq. (5)", "A Def 1")
def test_scores_and_optimal_tokens():
    X = RNG(2).normal(size=(6, 3, 4, 5))
    y = RNG(3).choice([-1, 1], size=(6, 3))
    v = RNG(4).normal(size=(6, 5))
    data = ml.TokenDataset(X, y)
    scores = data.scores(v)
    for b, i, t in np.ndindex(6, 3, 4):
        assert scores[b, i, t] == pytest.approx(y[b, i] * X[b, i, t] @ v[b], rel=1e-13)
    assert np.array_equal(data.optimal(v), scores.argmax(-1))
    assert np.allclose(data[2].scores(v[2]), scores[2])


def test_ragged_inputs_are_masked_everywhere():
    parts = [RNG(0).normal(size=(2, 3)), RNG(1).normal(size=(4, 3)), RNG(2).normal(size=(1, 3))]
    data = ml.TokenDataset(parts, [1, -1, 1])
    assert data.lengths.tolist() == [2, 4, 1]
    assert np.array_equal(data.mask.sum(-1), data.lengths)
    v = np.ones(3)
    assert np.all(data.scores(v)[~data.mask] == -np.inf)
    assert data.optimal(-v)[2] == 0
    assert "up to 4 tokens" in repr(data)
    batch = ml.TokenDataset([parts, parts[::-1]], [[1, -1, 1], [1, 1, 1]])
    assert batch.is_batch
    assert np.array_equal(batch[0].X[0, :2], parts[0])
    assert batch[1].lengths.tolist() == [1, 4, 2]


def test_cpu_tensors_are_arrays_too():
    torch = pytest.importorskip("torch")
    data = ml.TokenDataset(torch.ones(2, 3, 4), torch.tensor([1, -1]))
    assert data.scores(torch.ones(4)).shape == (2, 3)


def test_repeat_shares_one_problem():
    data, _ = ml.data.figure_1b()
    many = data.repeat(7)
    assert len(many) == 7
    assert many.K.strides[0] == 0
    with pytest.raises(ml.InputError, match="'data' argument must be one problem; got a batch of 7"):
        many.repeat(2)
    with pytest.raises(IndexError, match="index 9 of a batch of 7 problems"):
        many[9]


GOOD = np.ones((2, 3, 4))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ({"X": np.ones((3, 4)), "y": [1, 1]}),
            r"'X' argument must be of shape \(n_inputs, n_tokens, d_model\).*got shape \(3, 4\)",
        ),
        (
            ({"X": np.where(GOOD > 0, np.nan, 0), "y": [1, 1]}),
            r"'X' argument must be finite numbers; got nan at index \(0, 0, 0\)",
        ),
        (({"X": [], "y": []}), "'X' argument must be at least one input; got an empty dataset"),
        (
            ({"X": np.ones((0, 3, 4)), "y": []}),
            r"'X' argument must be at least one problem, input.*got shape \(0, 3, 4\)",
        ),
        (({"X": GOOD, "y": [1, 0]}), r"'y' argument must be labels, each -1 or \+1, of shape \(2,\); got the label 0"),
        (({"X": GOOD, "y": [1]}), r"'y' argument must be labels.*got shape \(1,\)"),
        (({"X": GOOD, "y": ["a", "b"]}), r"'y' argument must be labels.*got \['a', 'b'\]"),
        (
            ({"X": GOOD, "y": [1, 1], "K": np.ones((2, 4, 4))}),
            r"'K' argument must be keys for tokens of shape \(2, 3\)",
        ),
        (
            ({"X": GOOD, "y": [1, 1], "W": np.ones((3, 3))}),
            r"'W' argument must be .* shape \(d_key, 4\); got shape \(3, 3\)",
        ),
        (({"X": GOOD, "y": [1, 1], "W": np.eye(4), "K": GOOD}), "'K' argument must be left out when W is given"),
        (({"X": [np.ones((2, 3)), np.ones((2, 4))], "y": [1, 1]}), "'X' argument must be tokens of one width"),
        (({"X": [np.ones((2, 3)), np.ones(3)], "y": [1, 1]}), r"'X\[1\]' argument must be an array of shape"),
        (({"X": "tokens", "y": [1, 1]}), "'X' argument must be real numbers of shape.*got 'tokens'"),
        (
            ({"X": GOOD + 1j, "y": [1, 1]}),
            "'X' argument must be real numbers of .*; got shape .* with dtype complex128",
        ),
        (
            ({"X": [GOOD[0] + 1j, GOOD[1][:2]], "y": [1, 1]}),
            r"'X\[0\]' argument must be real numbers .* dtype complex128",
        ),
        (
            ({"X": GOOD * 1e200, "y": [1, 1], "W": 1e200 * np.eye(4)}),
            "'W' argument must be small enough .* up to 1e\\+200",
        ),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    with pytest.raises(ml.InputError, match=sentence):
        ml.TokenDataset(**arguments)


def test_bad_heads_points_and_selections():
    data = ml.TokenDataset(GOOD, [1, -1])
    with pytest.raises(ml.InputError, match=r"'v' argument must be .*shape \(4,\); got shape \(3,\)"):
        data.scores(np.ones(3))
    with pytest.raises(ml.InputError, match=r"'v' argument must be .*shape \(4,\); got \[\[1\], \[1, 2\]\]"):
        data.scores([[1], [1, 2]])
    with pytest.raises(ml.InputError, match=r"'start' argument must be .*; got inf at index \(1,\)"):
        data.point([0, np.inf, 0, 0], "start")
    with pytest.raises(
        ml.InputError, match="'selected' argument must be token indices from 0 to 2 for input 1; got index 3"
    ):
        data.selection([0, 3])
    with pytest.raises(ml.InputError, match=r"'selected' argument must be whole numbers of shape \(2,\)"):
        data.selection([0.5, 1.0])
    with pytest.raises(ml.InputError, match=r"'selected' argument must be .*; got lists of different lengths"):
        data.selection([0, [1, 2]])


def test_lists_that_do_not_fit_together_are_told_apart():
    two, three, wide = np.ones((2, 2)), np.ones((3, 2)), np.ones((2, 3))
    with pytest.raises(
        ml.InputError, match=r"'X' argument must be problems with the same number of inputs; got \[2, 1\]"
    ):
        ml.TokenDataset([[two, three], [two]], [[1, 1], [1, 1]])
    with pytest.raises(ml.InputError, match=r"'X' argument must be tokens of one width; got widths \[2, 3\]"):
        ml.TokenDataset([[two, two], [wide, wide]], [[1, 1], [1, 1]])
    with pytest.raises(ml.InputError, match=r"'K' argument must be keys for tokens of shape \(2, 3\)"):
        ml.TokenDataset([two, three], [1, 1], K=[three, two])  # as many keys, but of other inputs
    with pytest.raises(ml.InputError, match="token indices from 0 to 1 for input 0; got index 2"):
        ml.TokenDataset([two, three], [1, 1]).selection([2, 2])


def test_tensors_that_require_a_gradient_are_refused():
    torch = pytest.importorskip("torch")
    tokens, labels = torch.ones(2, 3, 4, requires_grad=True), torch.ones(2, requires_grad=True)
    with pytest.raises(
        ml.InputError, match=r"'X' argument must be real numbers .*; got a tensor that requires a gradient"
    ):
        ml.TokenDataset(tokens, [1, 1])
    with pytest.raises(ml.InputError, match=r"'y' argument must be labels.*got a tensor that requires a gradient"):
        ml.TokenDataset(GOOD, labels)


@pytest.mark.statement("A App. E")
def test_sphere_tokens_follow_the_protocol():
    data, v = ml.data.sphere_tokens(200, 4, 6, 7, np.random.default_rng(0))
    assert np.allclose(np.linalg.norm(data.X, axis=-1), 1)
    assert np.allclose(np.linalg.norm(v, axis=-1), 1)
    assert abs(data.y.mean()) < 0.15
    assert np.abs(data.X.mean(axis=(0, 1, 2))).max() < 0.03
    again, _ = ml.data.sphere_tokens(200, 4, 6, 7, 0)
    assert np.array_equal(again.X, data.X)
    with pytest.raises(ml.InputError, match="'n_tokens' argument must be a whole number of at least 1; got 0"):
        ml.data.sphere_tokens(1, 1, 0, 2, 0)
    with pytest.raises(ml.InputError, match=r"'rng' argument must be a numpy.random.Generator or a whole number"):
        ml.data.sphere_tokens(1, 1, 1, 2, None)


def test_scored_tokens_have_the_scores_asked_for():
    keys, scores = RNG(0).normal(size=(3, 4, 2)), RNG(1).normal(size=(3, 4))
    data, v = ml.data.scored_tokens(keys, scores, y=[1, -1, 1])
    assert np.allclose(data.scores(v), scores)
    assert np.array_equal(data.K, keys)
    with pytest.raises(ml.InputError, match=r"'scores' argument must be one number per key, shape \(3, 4\)"):
        ml.data.scored_tokens(keys, scores[:2])


@pytest.mark.parametrize("value", [np.array([1.0, 2.0 + 1.0j]), [1j, 0.0]])
def test_complex_numbers_are_refused_and_lose_no_part_in_silence(value):
    with pytest.raises(ml.InputError, match="'v' argument must be an array of finite numbers of shape"):
        real_array(value, "v", ("d",))
