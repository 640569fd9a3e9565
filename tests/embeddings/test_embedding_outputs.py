"""Outputs of both models on new sequences: against torch on the paper's formulas, and against what training computes."""

import numpy as np
import pytest
import torch

from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings import initial_parameters, loss_and_gradients
from marginlens_papers.embeddings import TrainingSettings, evaluate, train_embeddings
from marginlens_papers.embeddings.outputs import one_layer_outputs, two_layer_outputs
from random_problems import ragged_labelled
from sequence_autograd import written_out
from tolerances import ROUNDING

FLOAT32 = 1e-4  # how far outputs of sizes about one may be apart in single precision
MODELS = {1: one_layer_outputs, 2: two_layer_outputs}


def ragged(seed, n=25):
    """Lists of tokens, and labels."""
    data = ragged_labelled(np.random.default_rng(seed), n, 12, 15)
    return [data[i][0].tolist() for i in range(n)], data.y


@pytest.mark.statement("B Eq. (1)", "B Eq. (36)")
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("d", "scale"), [(2, 1.0), (9, 3.0), (40, 6.0)])
def test_outputs_are_the_papers_formulas(layers, d, scale):
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
    found = evaluate(one_layer_outputs(start.E, start.p, start.v, sequences), y)
    assert found.loss == pytest.approx(loss_and_gradients(start, sequences, y)[0], abs=ROUNDING)


@pytest.mark.parametrize("layers", [1, 2])
def test_a_trained_run_gives_outputs_for_sequences_it_has_not_seen(layers):
    (seen, y), (new, labels) = ragged(1, 60), ragged(2, 20)
    data, held_out = LabelledSequences(seen, y, 12), LabelledSequences(new, labels, 12)
    run = train_embeddings(data, TrainingSettings(layers, 8, 3, 16, learning_rate=0.05), held_out=held_out)
    found = evaluate(run.outputs(new), labels)
    assert found.loss == pytest.approx(run.held_out_loss, abs=FLOAT32)
    assert found.accuracy == run.held_out_accuracy
    assert evaluate(run.outputs(data), data) == pytest.approx((run.loss, run.accuracy), abs=FLOAT32)


def test_the_order_and_the_labels_of_a_sequence_do_not_matter():
    start = initial_parameters(5, 4, 1, np.float64)
    model = start.E, start.p, start.v
    for outputs in MODELS.values():
        one, other, half = outputs(*model, [[0, 3, 3, 1], [3, 1, 0, 3], [0, 3, 1]])
        assert one == pytest.approx(other, abs=ROUNDING)
        assert abs(one - half) > ROUNDING
        labelled = [LabelledSequences([[0, 3, 3, 1]], [y], 5) for y in (-1, 1)]
        assert [float(outputs(*model, data)[0]) for data in labelled] == pytest.approx([one, one], abs=ROUNDING)
