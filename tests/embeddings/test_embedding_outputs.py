"""Outputs of both models on new sequences: against torch on the paper's formulas, and against what training computes."""

import numpy as np
import pytest
import torch

from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings import initial_parameters, loss_and_gradients
from marginlens_papers.claims.b.outputs import one_layer_outputs, two_layer_outputs
from random_problems import ragged_labelled
from sequence_autograd import written_out
from tolerances import ROUNDING

MODELS = {1: one_layer_outputs, 2: two_layer_outputs}


def ragged(seed, n=25):
    """Lists of tokens, and labels."""
    data = ragged_labelled(np.random.default_rng(seed), n, 12, 15)
    return [data[i][0].tolist() for i in range(n)], data.y


@pytest.mark.statement("B Eq. (1)", "B Eq. (36)")
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("d", "scale"), [(2, 1.0), (9, 3.0), (40, 6.0)])
def test_outputs_equal_the_papers_formulas(layers, d, scale):
    sequences, _ = ragged(d)
    start = initial_parameters(12, d, 1, np.float64)
    model = scale * start.E, scale * start.p, start.v
    outputs = MODELS[layers](*model, sequences)
    expected = written_out(sequences, *map(torch.from_numpy, model), layers).numpy()
    assert np.abs(outputs - expected).max() < ROUNDING


@pytest.mark.statement("B Eq. (1)", "B Eq. (2)")
def test_the_loss_of_the_outputs_is_the_loss_of_the_data():
    sequences, y = ragged(0)
    start = initial_parameters(12, 6, 1, np.float64)
    outputs = one_layer_outputs(start.E, start.p, start.v, sequences)
    loss = np.mean(np.logaddexp(0.0, -y * outputs))
    assert loss == pytest.approx(loss_and_gradients(start, sequences, y)[0], abs=ROUNDING, rel=0.0)


def test_the_order_and_the_labels_of_a_sequence_do_not_matter():
    start = initial_parameters(5, 4, 1, np.float64)
    model = start.E, start.p, start.v
    for outputs in MODELS.values():
        one, other, half = outputs(*model, [[0, 3, 3, 1], [3, 1, 0, 3], [0, 3, 1]])
        assert one == pytest.approx(other, abs=ROUNDING, rel=0.0)
        assert abs(one - half) > ROUNDING
        labelled = [LabelledSequences([[0, 3, 3, 1]], [y], 5) for y in (-1, 1)]
        assert [float(outputs(*model, data)[0]) for data in labelled] == pytest.approx(
            [one, one], abs=ROUNDING, rel=0.0
        )
