"""The outputs of both models of paper B on any sequences, and what loss and accuracy they give."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.data.sequences import flat_sequences
from marginlens.data.tokens import FloatArray
from marginlens.embeddings.minibatches import DistinctTokens, distinct_tokens
from marginlens.embeddings.one_layer import scalar_gradients
from marginlens.errors import real_array, reject
from marginlens.papers import implements

LAYER_NORM_EPSILON = 1e-5  # torch's default


class Evaluation(NamedTuple):
    """The mean logistic loss of some sequences, and the share whose label has the sign of the output."""

    loss: float
    accuracy: float


@implements("B", "Eq. (1)")
def one_layer_outputs(E: Any, p: Any, v: Any, sequences: Any) -> FloatArray:
    r"""The output of the one-layer model for every sequence.

    .. math:: f(X) = \mathrm{Softmax}(p^\top E_X^\top) E_X v

    Args:
        E: (n_vocabulary, d_model). p, v: (d_model,).
        sequences: one list of token ids per sequence, or `LabelledSequences`, whose labels are not looked at.
    Returns:
        (n_samples,) f; its sign is the predicted label. Labels close the circle: `loss_and_gradients` gives the mean of
        log(1 + e^(-y f)).
    """
    table, query, head, pairs = _arguments(E, p, v, sequences)
    outputs, slopes = np.empty(len(pairs)), np.zeros((2, len(table)))
    columns = (pairs.token, pairs.count, pairs.offsets, pairs.y)
    scalar_gradients(columns, np.arange(len(pairs)), (table @ query, table @ head), (slopes[0], slopes[1]), outputs)
    return outputs


@implements("B", "Eq. (36)")
def two_layer_outputs(E: Any, p: Any, v: Any, sequences: Any) -> FloatArray:
    r"""The output of the two-layer model for every sequence.

    .. math:: E'_X = \mathrm{LayerNorm}(\mathrm{Softmax}(E_X E_X^\top) E_X + E_X),\quad f(X) = \mathrm{Softmax}(p^\top E_X'^\top) E'_X v

    The layer norm has neither gain nor bias. Repeated tokens have equal rows, so a sequence is computed by its distinct tokens, the
    logarithms of their counts added to the logits of both softmaxes.

    Args:
        E: (n_vocabulary, d_model). p, v: (d_model,).
        sequences: one list of token ids per sequence, or `LabelledSequences`, whose labels are not looked at.
    Returns:
        (n_samples,) f; its sign is the predicted label.
    """
    table, query, head, pairs = _arguments(E, p, v, sequences)
    outputs = np.empty(len(pairs))
    for i in range(len(pairs)):
        of_sequence = slice(pairs.offsets[i], pairs.offsets[i + 1])
        X, log_count = table[pairs.token[of_sequence]], np.log(pairs.count[of_sequence])
        mixed = _softmax(X @ X.T + log_count) @ X + X  # (n_distinct, d_model)
        centred = mixed - mixed.mean(axis=1, keepdims=True)
        normed = centred / np.sqrt(np.mean(centred * centred, axis=1, keepdims=True) + LAYER_NORM_EPSILON)
        outputs[i] = _softmax(normed @ query + log_count) @ (normed @ head)
    return outputs


def evaluate(outputs: Any, y: Any) -> Evaluation:
    r"""The mean logistic loss :math:`\frac1n \sum_i \log(1 + e^{-y_i f_i})` and the accuracy of some outputs.

    Args:
        outputs: (n_samples,) f. y: (n_samples,) labels, each -1 or +1, or `LabelledSequences` that hold them.
    """
    f = real_array(outputs, "outputs", ("n_samples",))
    labels = y.y if isinstance(y, LabelledSequences) else real_array(y, "y", ("n_samples",))
    if not len(f) or labels.shape != f.shape or not np.isin(labels, (-1.0, 1.0)).all():
        raise reject("y", f"labels, each -1 or +1, of shape {f.shape}, of at least one output", f"shape {labels.shape}")
    margins = labels * f
    return Evaluation(float(np.mean(np.logaddexp(0.0, -margins))), float(np.mean(margins > 0.0)))


def _arguments(E: Any, p: Any, v: Any, sequences: Any) -> tuple[FloatArray, FloatArray, FloatArray, DistinctTokens]:
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    query, head = (real_array(one, name, (table.shape[1],)) for one, name in ((p, "p"), (v, "v")))
    if isinstance(sequences, LabelledSequences):
        data = as_labelled(sequences)
    else:
        data = LabelledSequences(sequences, np.ones(len(flat_sequences(sequences)[1]) - 1), len(table))
    if len(table) < data.n_vocabulary:
        raise reject("E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(table)} rows")
    return table, query, head, distinct_tokens(data)


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
