"""Labelled sequences of token ids, which paper B's classifier with trained embeddings reads, and their embedded tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from marginlens.data.sequences import FlatSequences, check_ids, flat_sequences
from marginlens.data.tokens import TokenDataset, sign_labels
from marginlens.errors import InputError, real_array, whole_number
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray, IntArray


class LabelledSequences(FlatSequences):
    r"""Token-id sequences :math:`(X_i, y_i)_{i=1}^n` with labels -1 or +1; lengths may differ.

    Args:
        sequences: one list of ids per sample, or an array (n_samples, n_tokens).

        y: (n_samples,) labels, each -1 or +1.

        n_vocabulary: the number of tokens; by default one more than the largest id.

    `data[i]` is a pair (ids, label), and `data[:4]` a dataset.
    """

    LABELS = "y"

    def __init__(
        self, sequences: LabelledSequences | Iterable[ArrayLike], y: Any, n_vocabulary: int | None = None
    ) -> None:
        if isinstance(sequences, LabelledSequences):
            raise InputError("sequences", "token-id lists", "LabelledSequences, which hold their labels already")
        self.tokens, self.offsets = flat_sequences(sequences)
        largest = int(self.tokens.max())
        size = largest + 1 if n_vocabulary is None else whole_number(n_vocabulary, "n_vocabulary", at_least=1)
        check_ids(self.tokens, self.offsets, size)
        self.n_vocabulary = size
        self.y = sign_labels(y, (len(self.offsets) - 1,))

    @classmethod
    def of_positions(cls, tokens: IntArray, offsets: IntArray, y: FloatArray, n_vocabulary: int) -> LabelledSequences:
        """Make a dataset from arrays already in its own form, which are neither checked nor copied."""
        data = object.__new__(cls)
        data.tokens, data.offsets, data.y, data.n_vocabulary = tokens, offsets, y, n_vocabulary
        return data

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of a file by name: tokens, offsets, y, and as names of the tokens their numbers."""
        names = np.arange(self.n_vocabulary).astype(str)
        labels = self.y.astype(np.int8)
        return {"tokens": self.tokens.astype(np.int32), "offsets": self.offsets, "y": labels, "names": names}

    @property
    def fingerprint(self) -> str:
        """A hash that changes with any token, label, length or the vocabulary."""
        digest = hashlib.sha256()
        for array in (self.tokens.astype(np.int32), self.offsets.astype(np.int64), self.y.astype(np.int8)):
            digest.update(np.ascontiguousarray(array).data)
        digest.update(str(self.n_vocabulary).encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        positive = int(np.sum(self.y > 0))
        size = f"{len(self)} sequences ({positive} positive), {len(self.tokens)} positions"
        return f"LabelledSequences({size}, {self.n_vocabulary} tokens)"


def as_labelled(sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None) -> LabelledSequences:
    """Return labelled sequences as they are, or make them from token-id lists and labels."""
    if isinstance(sequences, LabelledSequences):
        if y is not None:
            raise InputError("y", "left out when the sequences hold their labels", "both")
        return sequences
    return LabelledSequences(sequences, y)


@implements("B", "Eq. (1)")
def embedding_tokens(
    E: ArrayLike, sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None
) -> TokenDataset:
    r"""Make the token dataset whose inputs are the embedded sequences; a token that occurs twice is two rows.

    .. math:: X_i = K_i = E_{X_i} = [E_{x_{i1}}, \dots, E_{x_{iT_i}}]^\top

    Args:
        E: embeddings (n_vocabulary, d_model).

        sequences: labelled sequences, or token-id lists.

        y: the labels of token-id lists; must be left out for labelled sequences.

    Returns:
        A dataset of n_samples inputs. With the head v, its risk as a function of p is the loss of Eq. (2) with E fixed; hence
        `flow(embedding_tokens(E, sequences, y), v, start=p)` is the flow of Eq. (7).
    """
    data, table = as_labelled(sequences, y), real_array(E, "E", ("n_vocabulary", "d_model"))
    if len(table) < data.n_vocabulary:
        raise InputError("E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(table)} rows")
    rows = table[data.tokens]  # (n_positions, d_model)
    if (data.lengths == data.lengths[0]).all():
        return TokenDataset(rows.reshape(len(data), -1, table.shape[1]), data.y)
    return TokenDataset(np.split(rows, data.offsets[1:-1]), data.y)
