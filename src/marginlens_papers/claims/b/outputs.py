"""Outputs of both models of paper B on the distinct tokens of each sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequences import flat_sequences
from marginlens.embeddings.models import DistinctTokens, Parameters, as_parameters, distinct_tokens, scalar_gradients
from marginlens.errors import real_array
from marginlens.papers import implements
from marginlens.typing import FloatArray

LAYER_NORM_EPSILON = 1e-5  # torch's default


@implements("B", "Eq. (1)")
def one_layer_outputs(E: Any, p: Any, v: Any, sequences: Any) -> FloatArray:
    r"""The output of the one-layer model for every sequence.

    .. math:: f(X) = \mathrm{Softmax}(p^\top E_X^\top) E_X v

    Args:
        E: (n_vocabulary, d_model). p, v: (d_model,).
        sequences: one list of token ids per sequence, or `LabelledSequences`, whose labels are ignored.
    Returns:
        (n_samples,) f; its sign is the predicted label. Labels close the circle: `loss_and_gradients` gives the mean of
        log(1 + e^(-y f)).
    """
    model, pairs = _model_and_tokens(E, p, v, sequences)
    return scalar_gradients(pairs, np.arange(len(pairs)), model.E @ model.p, model.E @ model.v)[1]


@implements("B", "Eq. (36)")
def two_layer_outputs(E: Any, p: Any, v: Any, sequences: Any, gain: Any = None, bias: Any = None) -> FloatArray:
    r"""The output of the two-layer model for every sequence.

    .. math:: E'_X = \mathrm{LayerNorm}(\mathrm{Softmax}(E_X E_X^\top) E_X + E_X),\quad f(X) = \mathrm{Softmax}(p^\top E_X'^\top) E'_X v

    Repeated tokens have equal rows, so a sequence is computed by its distinct tokens, the logarithms of their counts added to the logits
    of both softmaxes.

    Args:
        E: (n_vocabulary, d_model). p, v: (d_model,).
        sequences: one list of token ids per sequence, or `LabelledSequences`, whose labels are ignored.
        gain, bias: (d_model,) of the layer norm, which has neither by default.
    Returns:
        (n_samples,) f; its sign is the predicted label.
    """
    model, pairs = _model_and_tokens(E, p, v, sequences)
    width = (model.E.shape[1],)
    g = np.ones(width) if gain is None else real_array(gain, "gain", width)
    c = np.zeros(width) if bias is None else real_array(bias, "bias", width)
    outputs = np.empty(len(pairs))
    for i in range(len(pairs)):
        of_sequence = slice(pairs.offsets[i], pairs.offsets[i + 1])
        X, log_count = model.E[pairs.token[of_sequence]], np.log(pairs.count[of_sequence])
        mixed = scipy.special.softmax(X @ X.T + log_count, axis=-1) @ X + X  # (n_distinct, d_model)
        centred = mixed - mixed.mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + LAYER_NORM_EPSILON) * g + c
        outputs[i] = scipy.special.softmax(normed @ model.p + log_count) @ (normed @ model.v)
    return outputs


def _model_and_tokens(E: Any, p: Any, v: Any, sequences: Any) -> tuple[Parameters, DistinctTokens]:
    if not isinstance(sequences, LabelledSequences):
        n_vocabulary = len(real_array(E, "E", ("n_vocabulary", "d_model")))
        sequences = LabelledSequences(sequences, np.ones(len(flat_sequences(sequences)[1]) - 1), n_vocabulary)
    return as_parameters(Parameters(E, p, v), "", sequences.n_vocabulary), distinct_tokens(sequences)
