"""Labelled sequences of token ids, which paper B's classifier with trained embeddings reads, and their embedded tokens."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from marginlens.data.sequences import flat_sequences
from marginlens.data.tokens import FloatArray, IntArray, TokenDataset
from marginlens.errors import float_array, real_array, reject, whole_number
from marginlens.papers import implements


class LabelledSequences:
    r"""Token-id sequences :math:`(X_i, y_i)_{i=1}^n` with labels -1 or +1; lengths may differ.

    Args:
        sequences: one list of ids per sample, or an array (n_samples, n_tokens).
        y: (n_samples,) labels, each -1 or +1.
        n_vocabulary: how many tokens there are; one more than the largest id by default.

    All sequences lie in one array: `tokens` (n_positions,) with sample i at `offsets[i]:offsets[i + 1]`. `len(data)` is the number of
    samples and `data[i]` a pair (ids, label).
    """

    def __init__(self, sequences: Any, y: Any, n_vocabulary: int | None = None) -> None:
        if isinstance(sequences, LabelledSequences):
            raise reject("sequences", "token-id lists", "LabelledSequences, which hold their labels already")
        self.tokens, self.offsets = flat_sequences(sequences)
        largest = int(self.tokens.max())
        size = largest + 1 if n_vocabulary is None else whole_number(n_vocabulary, "n_vocabulary", at_least=1)
        outside = (self.tokens < 0) | (self.tokens >= size)
        if outside.any():
            position = int(np.argmax(outside))
            i = int(np.searchsorted(self.offsets, position, side="right")) - 1
            where = f"id {self.tokens[position]} at position {position - self.offsets[i]} of sample {i}"
            raise reject("sequences", f"ids from 0 to {size - 1}", where)
        self.n_vocabulary = size
        self.y = _labels(y, len(self.offsets) - 1)

    @classmethod
    def of_positions(cls, tokens: IntArray, offsets: IntArray, y: FloatArray, n_vocabulary: int) -> LabelledSequences:
        """A dataset from arrays already in its own form, which are neither checked nor copied."""
        one = object.__new__(cls)
        one.tokens, one.offsets, one.y, one.n_vocabulary = tokens, offsets, y, n_vocabulary
        return one

    @property
    def lengths(self) -> IntArray:
        """(n_samples,) tokens of each sequence."""
        return np.diff(self.offsets)

    @property
    def fingerprint(self) -> str:
        """A hash that any change of a token, a label, a length or the vocabulary changes."""
        digest = hashlib.sha256()
        for array in (self.tokens.astype(np.int32), self.offsets.astype(np.int64), self.y.astype(np.int8)):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(str(self.n_vocabulary).encode())
        return digest.hexdigest()

    @property
    def sample(self) -> IntArray:
        """(n_positions,) the sample that each position belongs to."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> tuple[IntArray, float]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of a dataset with {len(self)}")
        i = index % len(self)
        return self.tokens[self.offsets[i] : self.offsets[i + 1]], float(self.y[i])

    def subset(self, samples: Any) -> LabelledSequences:
        """The samples with these indices, or that this boolean mask or slice leaves, in this order."""
        try:
            index = samples if isinstance(samples, slice) or np.size(samples) else np.empty(0, dtype=np.int64)
            chosen = np.arange(len(self))[index if isinstance(index, slice) else np.asarray(index)]
        except (IndexError, TypeError, ValueError, RuntimeError) as problem:
            raise reject(
                "samples", f"indices of the {len(self)} samples, a mask or a slice", repr(samples)
            ) from problem
        if chosen.ndim != 1:
            raise reject("samples", "indices along one axis", repr(samples))
        lengths = self.lengths[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        place = np.arange(offsets[-1]) + np.repeat(self.offsets[chosen] - offsets[:-1], lengths)
        return LabelledSequences.of_positions(self.tokens[place], offsets, self.y[chosen], self.n_vocabulary)

    def __repr__(self) -> str:
        positive = int(np.sum(self.y > 0))
        size = f"{len(self)} sequences ({positive} positive), {len(self.tokens)} positions"
        return f"LabelledSequences({size}, {self.n_vocabulary} tokens)"


def as_labelled(sequences: Any, y: Any = None) -> LabelledSequences:
    """Labelled sequences from themselves, or from token-id lists and labels."""
    if isinstance(sequences, LabelledSequences):
        if y is not None:
            raise reject("y", "left out when the sequences hold their labels", "both")
        return sequences
    return LabelledSequences(sequences, y)


def _labels(y: Any, n_samples: int) -> FloatArray:
    expected = f"labels, each -1 or +1, of shape ({n_samples},)"
    labels = float_array(y, "y", expected)
    if labels.shape != (n_samples,):
        raise reject("y", expected, f"shape {labels.shape}")
    wrong = ~np.isin(labels, (-1.0, 1.0))
    if wrong.any():
        raise reject("y", expected, f"the label {labels[wrong][0]:g} of sample {int(np.argmax(wrong))}")
    return labels


@implements("B", "Eq. (1)")
def embedding_tokens(E: Any, sequences: Any, y: Any = None) -> TokenDataset:
    r"""The token dataset whose inputs are the embedded sequences; a token that occurs twice is two rows.

    .. math:: X_i = K_i = E_{X_i} = [E_{x_{i1}}, \dots, E_{x_{iT_i}}]^\top

    Args:
        E: embeddings (n_vocabulary, d_model). sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        A dataset of n_samples inputs. With the head v its risk as a function of p is the loss of Eq. (2) with E fixed, so that
        `gradient_flow(embedding_tokens(E, sequences, y), v, start=p)` is the flow of Eq. (7).
    """
    data, table = as_labelled(sequences, y), real_array(E, "E", ("n_vocabulary", "d_model"))
    if len(table) < data.n_vocabulary:
        raise reject("E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(table)} rows")
    rows = table[data.tokens]  # (n_positions, d_model)
    if (data.lengths == data.lengths[0]).all():
        return TokenDataset(rows.reshape(len(data), -1, table.shape[1]), data.y)
    return TokenDataset(np.split(rows, data.offsets[1:-1]), data.y)
