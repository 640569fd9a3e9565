"""Several next-token problems packed into flat arrays: what the compiled loop runs on, and how its results are read back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import reject
from marginlens.graphs.cyclic import CyclicSubset
from marginlens.risk.next_token_heads import Head
from marginlens.risk.reduced_sequences import ReducedProblem, reduce_sequences


@dataclass(frozen=True, repr=False, eq=False)
class SequenceBatch:
    """Independent datasets of one width, reduced together: token ids are shifted so that no two datasets share one.

    Attributes:
        datasets: the datasets. joined: all of them as one. reduced: the reduced problem of `joined`.
        keys: (n_pairs,) the pairs (query, token) that occur, as query index times n_tokens plus token, increasing.
    """

    datasets: tuple[SequenceDataset, ...]
    joined: SequenceDataset
    reduced: ReducedProblem
    keys: IntArray

    @classmethod
    def of(cls, datasets: tuple[SequenceDataset, ...]) -> SequenceBatch:
        """The batch of these datasets, which must share d_model."""
        shift = _starts([ds.n_vocabulary for ds in datasets])
        joined = CyclicSubset.of_positions(
            np.concatenate([ds.tokens + k for ds, k in zip(datasets, shift, strict=False)]),
            np.concatenate([[0], np.cumsum(np.concatenate([ds.lengths for ds in datasets]))]),
            np.concatenate([ds.labels + k for ds, k in zip(datasets, shift, strict=False)]),
            np.concatenate([ds.E for ds in datasets]),
        )
        joined.queries = np.concatenate([ds.last + k for ds, k in zip(datasets, shift, strict=False)])
        joined.samples = np.arange(len(joined))
        reduced = reduce_sequences(joined)
        return cls(
            datasets, joined, reduced, np.unique(reduced.column[reduced.sample] * len(joined.E) + reduced.tokens)
        )

    def __repr__(self) -> str:
        return f"SequenceBatch({len(self)} datasets, {len(self.reduced.labels)} samples, {len(self.keys)} pairs)"

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def d_model(self) -> int:
        """Width of an embedding."""
        return self.joined.d_model

    @cached_property
    def is_realizable(self) -> bool:
        """Whether every sequence of every dataset holds its label."""
        return bool(self.joined.is_realizable.all())

    @cached_property
    def rows(self) -> IntArray:
        """(batch + 1,) where each dataset's tokens start among all."""
        return _starts([ds.n_vocabulary for ds in self.datasets])

    @cached_property
    def token(self) -> IntArray:
        """(n_pairs,) the token of each pair."""
        return self.keys % len(self.joined.E)

    @cached_property
    def query(self) -> IntArray:
        """(n_pairs,) the index among `reduced.queries` of each pair's last token."""
        return self.keys // len(self.joined.E)

    @cached_property
    def centred(self) -> FloatArray:
        """Embeddings less the mean of their dataset: no softmax and no gradient notices, and sums keep their digits."""
        E = self.joined.E
        sums = np.add.reduceat(E, self.rows[:-1], axis=0) / np.diff(self.rows)[:, None]
        return E - np.repeat(sums, np.diff(self.rows), axis=0)

    @cached_property
    def parts(self) -> IntArray:
        """(batch + 1, 4) where each dataset's pairs, queries, merged samples and entries start."""
        reduced = self.reduced
        queries = np.searchsorted(reduced.queries, self.rows)
        samples = np.searchsorted(_problem(self.rows, reduced.labels), np.arange(len(self) + 1))
        pairs = np.searchsorted(_problem(self.rows, self.token), np.arange(len(self) + 1))
        return np.stack([pairs, queries, samples, reduced.offsets[samples]], axis=1)

    def packed(self, heads: tuple[Head, ...], whole_heads: bool) -> tuple[Any, ...]:
        """The arrays that the compiled loop takes; `whole_heads` when the loss reads all outputs and not only the label's.

        Indices are relative to their own dataset, and the label comes first among the entries of each sample.
        """
        reduced, parts = self.reduced, self.parts
        sample = reduced.sample
        entry = np.lexsort((reduced.tokens, ~reduced.is_label, sample))
        problem = np.repeat(np.arange(len(self)), np.diff(parts[:, 3]))  # of each entry
        tokens, log_count = reduced.tokens[entry], reduced.log_counts[entry]
        pair = np.searchsorted(self.keys, reduced.column[sample] * len(self.joined.E) + tokens) - parts[problem, 0]
        owner = np.repeat(np.arange(len(self)), np.diff(parts[:, 2]))  # of each sample
        sizes = np.array([len(ds) for ds in self.datasets])
        share = reduced.share * (len(self.joined) / sizes)[owner]
        token, label = tokens - self.rows[problem], reduced.labels - self.rows[owner]
        if all(head.table is None for head in heads):
            score = reduced.is_label[entry].astype(np.float64)
        else:
            cut = parts[1:-1, 3]
            pieces = zip(heads, np.split(label[sample], cut), np.split(token, cut), strict=True)
            score = np.concatenate([head.scores(labels, ids) for head, labels, ids in pieces])
        tables = [head.matrix().T.ravel() for head in heads] if whole_heads else [np.zeros(1)] * len(heads)
        starts = _starts([len(one) for one in tables])
        first = reduced.offsets[:-1] - parts[owner, 3]
        return (
            (self.centred, self.joined.E, self.token, self.query - parts[self._of_pair, 1], reduced.queries),
            (pair, log_count, score, token, np.column_stack([first, first + np.diff(reduced.offsets)]), share, label),
            np.concatenate(tables),
            np.column_stack([parts, starts, self.rows]),
        )

    @cached_property
    def _of_pair(self) -> IntArray:
        return np.repeat(np.arange(len(self)), np.diff(self.parts[:, 0]))

    # ---- reading results back

    def pair_logits(self, W: FloatArray) -> FloatArray:
        """(n_pairs,) the logits of W (batch, d_model, d_model), each up to a constant of its query."""
        E, queries = self.joined.E, self.reduced.queries
        turned = np.empty((len(queries), self.d_model))
        for b in range(len(self)):
            first, last = self.parts[b : b + 2, 1]
            turned[first:last] = E[queries[first:last]] @ W[b].T
        return np.einsum("pd,pd->p", self.centred[self.token], turned[self.query])

    @cached_property
    def _place(self) -> IntArray:
        """(n_positions,) the pair of each position of `joined`."""
        column = self.reduced.column[self.reduced.merged]  # of each sample
        return np.searchsorted(self.keys, column[self.joined.sample] * len(self.joined.E) + self.joined.tokens)

    def attention(self, pair_logits: FloatArray) -> FloatArray:
        """(batch, n_samples, n_tokens) softmax of every sequence, zero where there is no token; lengths and sizes are padded."""
        joined = self.joined
        logits, first = pair_logits[self._place], joined.offsets[:-1]
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, first), joined.lengths))
        weights /= np.repeat(np.add.reduceat(weights, first), joined.lengths)
        sizes = np.array([len(ds) for ds in self.datasets])
        padded = np.zeros((len(self), int(sizes.max()), int(joined.lengths.max())))
        start = _starts(sizes)
        problem = np.repeat(np.arange(len(self)), sizes)
        sample = joined.sample
        place = np.arange(len(joined.tokens)) - joined.offsets[sample]
        padded[problem[sample], sample - start[problem[sample]], place] = weights
        return padded

    def selected(self, attention: FloatArray) -> IntArray:
        """(batch, n_samples) the position with the most attention, -1 where there is no sample."""
        exists = np.arange(attention.shape[1]) < np.array([len(ds) for ds in self.datasets])[:, None]
        return np.where(exists, np.argmax(attention, axis=-1), -1)


def as_batch(ds: Any) -> tuple[SequenceDataset, ...]:
    """`ds` as a tuple of datasets of one width: a dataset, or a list of them."""
    if isinstance(ds, SequenceDataset):
        return (ds,)
    if not isinstance(ds, list | tuple) or len(ds) == 0 or not all(isinstance(one, SequenceDataset) for one in ds):
        wrong = (
            next((one for one in ds if not isinstance(one, SequenceDataset)), ds)
            if isinstance(ds, list | tuple)
            else ds
        )
        raise reject("ds", "a SequenceDataset or a list of at least one", _named(wrong))
    widths = [one.d_model for one in ds]
    if len(set(widths)) > 1:
        other = next(k for k, width in enumerate(widths) if width != widths[0])
        raise reject(
            "ds", "datasets of one width d_model", f"{widths[0]} at index 0 and {widths[other]} at index {other}"
        )
    return tuple(map(as_sequences, ds))


def _named(wrong: Any) -> str:
    return "an empty list" if isinstance(wrong, list | tuple) else type(wrong).__name__


def _problem(rows: IntArray, tokens: IntArray) -> IntArray:
    """The dataset that each of these shifted tokens belongs to."""
    return np.searchsorted(rows, tokens, side="right") - 1


def _starts(sizes: Any) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
