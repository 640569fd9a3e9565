"""Token-id sequences with their next tokens: the data of the self-attention layer of paper C."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable
from copy import copy
from typing import Any, ClassVar, Self

import numpy as np

from marginlens.errors import InputError, batch_index, index_array, real_array
from marginlens.papers import implements
from marginlens.result import Displayed, Tabular
from marginlens.runtime.files import DATA_FORMAT, write_result
from marginlens.typing import ArrayLike, BoolArray, FloatArray, Index, IntArray

# Offending entries that a message names.
_MAX_LISTED_INDICES = 5


class FlatSequences(Displayed, Tabular):
    """Token-id sequences of different lengths in one array: `tokens` (n_positions,) with sample i at `offsets[i]:offsets[i + 1]`.

    `len(data)` is the number of samples, `data[i]` a pair (ids, label), and `data[:4]`, `data[mask]` or `data[[2, 0]]` a dataset of these
    samples. Two datasets are equal if all their arrays are.

    `to_frame()` has one row per sequence: sequence, tokens, length, label.
    """

    # The attribute with the label of each sample.
    LABELS: ClassVar[str]

    tokens: IntArray
    offsets: IntArray

    @property
    def lengths(self) -> IntArray:
        """The length of each sequence, (n_samples,)."""
        return np.diff(self.offsets)

    @property
    def sample(self) -> IntArray:
        """The sample that each position belongs to, (n_positions,)."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: Index) -> Any:
        chosen = batch_index(index, len(self), "samples")
        if isinstance(chosen, int):
            return self.tokens[self.offsets[chosen] : self.offsets[chosen + 1]], getattr(self, self.LABELS)[
                chosen
            ].item()
        return self.take(chosen)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, others = (
            {name: value for name, value in vars(data).items() if name != "dropped"} for data in (self, other)
        )
        return mine.keys() == others.keys() and all(np.array_equal(mine[name], others[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]

    def take(self, samples: IntArray) -> Self:
        """Take the samples (n_taken,) with these indices, in this order, as a dataset."""
        chosen = np.asarray(samples, dtype=np.int64)
        lengths = self.lengths[chosen]
        part = copy(self)
        part.offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        part.tokens = self.tokens[
            np.arange(part.offsets[-1]) + np.repeat(self.offsets[chosen] - part.offsets[:-1], lengths)
        ]
        setattr(part, self.LABELS, getattr(self, self.LABELS)[chosen])
        return part

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dataset to a .npz file, which `marginlens.data.load` reads."""
        write_result(path, DATA_FORMAT, self.arrays())

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """Return the arrays of a file by name."""

    def _columns(self) -> dict[str, Any]:
        rows = [self.tokens[a:b] for a, b in zip(self.offsets[:-1], self.offsets[1:], strict=True)]
        return {
            "sequence": np.arange(len(self)),
            "tokens": rows,
            "length": self.lengths,
            "label": getattr(self, self.LABELS),
        }


@implements("C", "Eq. (1)", "Assumption 2")
class SequenceDataset(FlatSequences):
    r"""Sequences of token ids, the token that follows each, and the embeddings of the vocabulary.

    .. math:: (X_i, y_i)_{i=1}^n, \quad X_i = (e_{x_{i1}}, \dots, e_{x_{iT_i}})^\top,\ y_i \in \{x_{i1}, \dots, x_{iT_i}\}

    Args:
        sequences: one list of ids per sample, of any lengths, or an array (n_samples, n_tokens).

        labels: (n_samples,) the id that follows each sequence.

        E: embeddings (n_vocabulary, d_model), with no two equal rows. Ids run from 0 to n_vocabulary - 1.

        unrealizable: what to do with samples whose label is not among their own tokens, which attention cannot output:
            "refuse" raises an error that names them, "drop" leaves them out and lists them in `dropped`, "keep" trains on them
            with the others and lists them in `unrealizable`. For such samples, under C Eᵀ = I a loss of the label's output has
            zero slope and the log-loss is infinite; with a general head attention learns to select the token whose embedding
            serves the label best.

    `data[i]` is a pair (ids, label), `data[:4]` a dataset, and `last` (n_samples,) the last token of each sequence, which is its query.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.SequenceDataset([[0, 1, 2], [1, 2]], [1, 2], np.eye(3))
        SequenceDataset(2 sequences × up to 3 of 3 tokens, d_model=3)
    """

    LABELS = "labels"

    def __init__(
        self, sequences: Iterable[ArrayLike], labels: ArrayLike, E: ArrayLike, *, unrealizable: str = "refuse"
    ) -> None:
        if not isinstance(unrealizable, str) or unrealizable not in ("refuse", "drop", "keep"):
            raise InputError("unrealizable", '"refuse", "drop" or "keep"', repr(unrealizable))
        self.E = _embeddings(E)
        tokens, offsets = flat_sequences(sequences)
        check_ids(tokens, offsets, len(self.E))
        n_samples, K = len(offsets) - 1, len(self.E)
        wanted = f"whole numbers of shape ({n_samples},): the id of one token, from 0 to {K - 1}, per sequence"
        targets = index_array(labels, "labels", wanted, (n_samples,), below=K)
        missing = ~np.logical_or.reduceat(tokens == np.repeat(targets, np.diff(offsets)), offsets[:-1])
        lacking = np.flatnonzero(missing)
        if len(lacking) and unrealizable == "refuse":
            raise reject_unrealizable(lacking, targets, 'Leave them out with `unrealizable="drop"`.')
        self.dropped: IntArray = lacking if unrealizable == "drop" else np.empty(0, dtype=np.int64)
        if len(self.dropped) == len(targets):
            raise InputError("labels", "in its own sequence for at least one sample", f"none among {len(targets)}")
        self.tokens, self.offsets, self.labels = tokens, offsets, targets
        if len(self.dropped):
            vars(self).update(vars(self.take(np.flatnonzero(~missing))) | {"dropped": self.dropped})

    @classmethod
    def of_positions(cls, tokens: IntArray, offsets: IntArray, labels: IntArray, E: FloatArray) -> Self:
        """Make a dataset from arrays already in its own form, which are neither checked nor copied."""
        data = object.__new__(cls)
        data.tokens, data.offsets, data.labels, data.E = tokens, offsets, labels, E
        data.dropped = np.empty(0, dtype=np.int64)
        return data

    def take(self, samples: IntArray) -> Self:
        """Take the samples (n_taken,) with these indices, in this order, as a dataset."""
        part = super().take(samples)
        part.dropped = np.empty(0, dtype=np.int64)
        return part

    def original_samples(self) -> IntArray:
        """Return the index (n_samples,) of each sample before some were dropped."""
        return np.delete(np.arange(len(self) + len(self.dropped)), self.dropped)

    # ---- shape

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of a file by name: padded sequences (n_samples, n_tokens), lengths, labels and E."""
        padded = np.zeros((len(self), int(self.lengths.max())), dtype=np.int64)
        padded[np.arange(padded.shape[1]) < self.lengths[:, None]] = self.tokens
        return {"sequences": padded, "lengths": self.lengths, "labels": self.labels, "E": self.E}

    @property
    def n_vocabulary(self) -> int:
        """The number of tokens, K."""
        return self.E.shape[0]

    @property
    def d_model(self) -> int:
        """Width of an embedding, d."""
        return self.E.shape[1]

    @property
    def last(self) -> IntArray:
        """The last token of each sequence, (n_samples,)."""
        return self.tokens[self.offsets[1:] - 1]

    def __repr__(self) -> str:
        longest, ragged = int(self.lengths.max(initial=0)), "up to " if len(set(self.lengths.tolist())) > 1 else ""
        dropped = f", {len(self.dropped)} unrealizable dropped" if len(self.dropped) else ""
        dropped += f", {len(self.unrealizable)} unrealizable kept" if len(self.unrealizable) else ""
        size = f"{len(self)} sequences × {ragged}{longest} of {self.n_vocabulary} tokens"
        return f"{type(self).__name__}({size}, d_model={self.d_model}{dropped})"

    # ---- what the theory reads off the data

    @property
    @implements("C", "Eq. (4)")
    def is_label(self) -> BoolArray:
        """The positions that hold their sample's label, (n_positions,) booleans: the sets O_i."""
        return self.tokens == np.repeat(self.labels, self.lengths)

    @property
    @implements("C", "Assumption 2")
    def is_realizable(self) -> BoolArray:
        """The sequences that hold their label, (n_samples,) booleans."""
        if not len(self):
            return np.zeros(0, dtype=bool)
        return np.asarray(np.logical_or.reduceat(self.is_label, self.offsets[:-1]))

    @property
    def unrealizable(self) -> IntArray:
        """The indices of the kept samples whose sequence lacks their label."""
        return np.flatnonzero(~self.is_realizable)

    def realizable(self) -> SequenceDataset:
        """Take the samples whose sequence holds their label; the dataset itself if all do."""
        with_label = np.flatnonzero(self.is_realizable)
        if len(with_label) == len(self):
            return self
        if not len(with_label):
            raise InputError("labels", "in its own sequence for at least one sample", f"none among {len(self)}")
        part = self.take(with_label)
        part.dropped = self.unrealizable
        return part

    def logits(self, W: ArrayLike) -> FloatArray:
        r"""Compute the attention logits :math:`x_{it}^\top W \bar x_i`.

        Args:
            W: (d_model, d_model) key-query weights.

        Returns:
            (n_positions,) logits.
        """
        weights = self.weights(W)
        queries = np.unique(self.last)
        table = self.E @ (weights @ self.E[queries].T)  # (n_vocabulary, n_queries)
        return table[self.tokens, np.repeat(np.searchsorted(queries, self.last), self.lengths)]

    def attention(self, W: ArrayLike) -> FloatArray:
        """Compute the softmax of the logits within each sequence.

        Args:
            W: (d_model, d_model) key-query weights.

        Returns:
            (n_positions,) attention weights.

        Examples:
            >>> import numpy as np
            >>> import marginlens as ml
            >>> data = ml.SequenceDataset([[0, 1, 2]], [1], np.eye(3))
            >>> print(data.attention(np.diag([0.0, 0.0, np.log(2.0)])).round(3))
            [0.25 0.25 0.5 ]
        """
        logits = self.logits(W)
        first = self.offsets[:-1]
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, first), self.lengths))
        return weights / np.repeat(np.add.reduceat(weights, first), self.lengths)

    def weights(self, W: ArrayLike, argument: str = "W") -> FloatArray:
        """Check that W is finite and of shape (d_model, d_model)."""
        return real_array(W, argument, (self.d_model, self.d_model))


def reject_unrealizable(lacking: IntArray, labels: IntArray, remedy: str) -> InputError:
    """Make the error about the samples `lacking` (n_lacking,), whose label is not among their own tokens."""
    i = int(lacking[0])
    return InputError(
        "labels",
        "tokens of their own sequence (C Assumption 2)",
        f"{len(lacking)} samples without their label ({_listed(lacking)}; label {labels[i]} of sample {i})",
        remedy,
    )


def check_sequence(sequence: ArrayLike, n_vocabulary: int, argument: str = "sequence") -> IntArray:
    """Check one sequence, (n_tokens,) ids from 0 to `n_vocabulary` - 1."""
    expected = f"a list of at least one id from 0 to {n_vocabulary - 1}"
    ids = index_array(sequence, argument, expected, (-1,), below=n_vocabulary)
    if not ids.size:
        raise InputError(argument, expected, "none")
    return ids


def as_sequences(data: object) -> SequenceDataset:
    """Return `data` if it is a sequence dataset, otherwise raise."""
    if not isinstance(data, SequenceDataset):
        raise InputError("data", "a SequenceDataset", type(data).__name__)
    return data


def check_realizable(data: SequenceDataset, argument: str = "data") -> SequenceDataset:
    """Return `data` if every sequence holds its label, otherwise raise."""
    lacking = data.unrealizable
    if len(lacking):
        raise InputError(
            argument,
            "realizable: every sequence with its label (C Assumption 2)",
            f"{len(lacking)} samples without theirs ({_listed(lacking)})",
            "Give data.realizable(), which leaves them out.",
        )
    return data


def _embeddings(E: ArrayLike) -> FloatArray:
    array = real_array(E, "E", ("n_vocabulary", "d_model"))
    if 0 in array.shape:
        raise InputError("E", "at least one token and one coordinate", f"shape {array.shape}")
    _, first, inverse = np.unique(array, axis=0, return_index=True, return_inverse=True)
    twins = np.flatnonzero(first[inverse.reshape(-1)] != np.arange(len(array)))
    if len(twins):
        pair = (int(first[inverse.reshape(-1)[twins[0]]]), int(twins[0]))
        raise InputError(
            "E",
            "embeddings that differ from token to token",
            f"the same row for tokens {pair[0]} and {pair[1]}",
            "No weight matrix can separate tokens that look the same.",
        )
    return array


def flat_sequences(sequences: object) -> tuple[IntArray, IntArray]:
    """Join all ids in one array, with the offset of each sequence."""
    expected = "a list of token-id lists, or an array of whole numbers (n_samples, n_tokens)"
    array = sequences if isinstance(sequences, np.ndarray) else None
    if array is None or array.dtype == object:
        if isinstance(sequences, str) or not isinstance(sequences, Iterable):
            raise InputError("sequences", expected, type(sequences).__name__)
        parts = [_ids(ids, i) for i, ids in enumerate(sequences)]
        if not parts:
            raise InputError("sequences", "at least one sequence", "an empty list")
        return np.concatenate(parts), np.concatenate([[0], np.cumsum([len(ids) for ids in parts])]).astype(np.int64)
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise InputError("sequences", expected, f"shape {array.shape} with dtype {array.dtype}")
    if array.shape[0] == 0:
        raise InputError("sequences", "at least one sequence", f"shape {array.shape}")
    if array.shape[1] == 0:
        raise InputError("sequences", "sequences of at least one token", "empty sequences (sample 0)")
    return array.astype(np.int64).reshape(-1), np.arange(0, array.size + 1, array.shape[1])


def _ids(sequence: ArrayLike, i: int) -> IntArray:
    ids = index_array(sequence, f"sequences[{i}]", "a list of whole-number token ids", (-1,))
    if not ids.size:
        raise InputError("sequences", "sequences of at least one token", f"an empty sequence (sample {i})")
    return ids


def check_ids(tokens: IntArray, offsets: IntArray, n_vocabulary: int) -> None:
    """Raise if an id is outside the vocabulary; the error names the position of the first one."""
    outside = (tokens < 0) | (tokens >= n_vocabulary)
    if outside.any():
        position = int(np.argmax(outside))
        i = int(np.searchsorted(offsets, position, side="right")) - 1
        raise InputError(
            "sequences",
            f"ids from 0 to {n_vocabulary - 1}, the tokens of the vocabulary",
            f"id {tokens[position]} at position {position - offsets[i]} of sample {i}",
        )


def _listed(indices: IntArray) -> str:
    named = ", ".join(map(str, indices[:_MAX_LISTED_INDICES]))
    return f"indices {named}" + (", …" if len(indices) > _MAX_LISTED_INDICES else "")
