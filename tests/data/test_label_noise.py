"""Flipped and soft labels."""

import numpy as np
import pytest

import marginlens as ml
from refusals import refused
from tolerances import ROUNDING, SIX_DIGITS


def test_labels_are_flipped_with_the_given_probability():
    data, _ = ml.data.sphere_tokens(50, 200, 2, 2, 0)
    noisy, flipped = ml.data.flip_labels(data, 0.2, 1)
    np.testing.assert_array_equal(noisy.y, np.where(flipped, -data.y, data.y))
    assert abs(flipped.mean() - 0.2) < 0.02  # 10,000 labels: five standard deviations
    assert noisy.X is data.X
    assert not np.array_equal(ml.data.flip_labels(data, 0.2, 2).flipped, flipped)
    np.testing.assert_array_equal(ml.data.flip_labels(data, 0.2, np.random.default_rng(1)).flipped, flipped)
    assert not ml.data.flip_labels(data[0], 0.0, 0).flipped.any()
    sequences = ml.data.LabelledSequences([[0, 1], [1, 2]], [1, -1])
    assert ml.data.flip_labels(sequences, 1.0, 0).data.y.tolist() == [-1.0, 1.0]
    assert sequences.y.tolist() == [1.0, -1.0]


def test_soft_labels_are_distributions_that_contexts_take():
    soft = ml.data.soft_labels([0, 2, 1], 3, 0.1)
    np.testing.assert_allclose(soft.sum(axis=1), 1.0, rtol=1e-14, atol=0.0)
    assert soft[1].tolist() == [0.05, 0.05, 0.9]
    np.testing.assert_array_equal(ml.data.soft_labels([0, 2, 1], 3, 0.0), np.eye(3)[[0, 2, 1]])
    contexts = ml.data.ContextDataset(np.eye(3), soft)
    assert contexts.entropy == pytest.approx(-(0.9 * np.log(0.9) + 0.1 * np.log(0.05)), rel=SIX_DIGITS, abs=ROUNDING)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda: ml.data.flip_labels(3, 0.1, 0), "data"),
        (lambda: ml.data.flip_labels(ml.data.figure_1b()[0], 1.5, 0), "share"),
        (lambda: ml.data.soft_labels([0, 3], 3, 0.1), "classes"),
        (lambda: ml.data.soft_labels([0], 1, 0.1), "n_classes"),
        (lambda: ml.data.soft_labels([0], 2, -0.1), "noise"),
    ],
)
def test_invalid_noise_is_refused(call, argument):
    with refused(argument):
        call()
