"""Next-token problems reduced to counted tokens and merged samples, and several of them packed into flat arrays for compiled loops."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.errors import InputError
from marginlens.graphs.cyclic import CyclicSubset
from marginlens.result import Described
from marginlens.risk.next_token_heads import NextTokenHead
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

_MANY_PAIRS = 500  # of a dataset, from which on its matrices are large
_GATHERED_AT_ONCE = 2**15  # entries of embeddings, which stay in the processor's cache


@dataclass(frozen=True, repr=False, eq=False)
class ReducedProblem(Described):
    r"""Samples as sets of different tokens with multiplicities, equal samples merged.

    Attention sees a sequence only through how often each token occurs: with m occurrences of token x the softmax gives it
    :math:`m\, e^{M_{xk}} / \sum`, where :math:`M = E W E^\top` and k is the last token.

    Attributes:
        E: (n_vocabulary, d_model) the embeddings.

        queries: (n_queries,) the different last tokens, in increasing order.

        column: (n_samples,) the index of each merged sample's query in `queries`.

        labels: (n_samples,) the label of each merged sample.

        share: (n_samples,) the fraction of the original samples behind each merged sample; the sum is one.

        tokens: (n_entries,) the different tokens of each sample in increasing order, sample i at offsets[i]:offsets[i + 1].

        log_counts: (n_entries,) the log of how often each occurs.

        merged: (n_original,) the merged sample of each original sample.
    """

    E: FloatArray
    queries: IntArray
    column: IntArray
    labels: IntArray
    share: FloatArray
    tokens: IntArray
    offsets: IntArray
    log_counts: FloatArray
    merged: IntArray
    quantities = "{labels:#} samples, {tokens:#} entries, {queries:#} queries"

    @property
    def sample(self) -> IntArray:
        """The merged sample of each entry, (n_entries,)."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))

    @property
    def is_label(self) -> BoolArray:
        """The entries that are their sample's label, (n_entries,) booleans."""
        return self.tokens == np.repeat(self.labels, np.diff(self.offsets))

    def table(self, W: FloatArray) -> FloatArray:
        """Return the logits e_xᵀ W e_k of a weight matrix, (n_vocabulary, n_queries)."""
        return self.E @ (W @ self.E[self.queries].T)

    def lift(self, weights: FloatArray) -> FloatArray:
        """Return the matrix Σ weights[x, q] e_x e_kᵀ, (d_model, d_model): the transpose of `table`."""
        return self.E.T @ weights @ self.E[self.queries]

    def logits(self, table: FloatArray) -> FloatArray:
        """Return the logits of each entry, multiplicity included, (n_entries,)."""
        return table[self.tokens, self.column[self.sample]] + self.log_counts

    def shares(self, W: FloatArray) -> FloatArray:
        """Return the attention of a layer with weights W on each entry, (n_entries,); the entries of a sample add up to one."""
        first, sample, logits = self.offsets[:-1], self.sample, self.logits(self.table(W))
        weight: FloatArray = np.exp(logits - np.maximum.reduceat(logits, first)[sample])
        return weight / np.add.reduceat(weight, first)[sample]


def reduce_sequences(data: SequenceDataset, *, merge: bool = True) -> ReducedProblem:
    """Reduce a dataset, in time linear in its positions up to sorting; equal samples are merged only if `merge` is True."""
    K, sample = data.n_vocabulary, data.sample
    keys, counts = np.unique(sample * K + data.tokens, return_counts=True)
    owner, tokens = keys // K, keys % K
    offsets = np.searchsorted(owner, np.arange(len(data) + 1))
    queries, column = np.unique(data.last, return_inverse=True)
    entries = tokens * (int(counts.max()) + 1) + counts
    merged = _merged(column.reshape(-1), data.labels, entries, offsets) if merge else np.arange(len(data))
    first = np.unique(merged, return_index=True)[1]
    kept = np.isin(owner, first)
    renumbered = np.argsort(np.argsort(first))[merged]  # by first appearance
    first = np.sort(first)
    lengths = np.diff(offsets)[first]
    return ReducedProblem(
        E=data.E,
        queries=queries,
        column=column.reshape(-1)[first],
        labels=data.labels[first],
        share=np.bincount(renumbered, minlength=len(first)) / len(data),
        tokens=tokens[kept],
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        log_counts=np.log(counts[kept]),
        merged=renumbered,
    )


def log_sums(values: FloatArray, offsets: IntArray) -> FloatArray:
    """Return the logarithm of the sums of e^values (…, n_entries) within each of the parts that begin at `offsets`; -inf if all
    values are.
    """
    first = offsets[:-1]
    top = np.maximum.reduceat(values, first, axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    sums = np.add.reduceat(np.exp(values - np.repeat(safe, np.diff(offsets), axis=-1)), first, axis=-1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(sums) + safe)


def _merged(column: IntArray, labels: IntArray, entries: IntArray, offsets: IntArray) -> IntArray:
    """Return a number per sample (n_samples,), equal exactly for samples with the same query, label and counted tokens."""
    lengths = np.diff(offsets)
    merged = np.empty(len(labels), dtype=np.int64)
    numbered = 0
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        table = entries[offsets[rows][:, None] + np.arange(length)]
        group = _equal_rows(np.column_stack([column[rows], labels[rows], table]))
        merged[rows] = group + numbered
        numbered += int(group.max()) + 1
    return merged


def _equal_rows(table: IntArray) -> IntArray:
    """Return a number per row (n,), equal exactly for equal rows, by a hash of each row, or by sorting if two rows share a hash."""
    factors = np.random.default_rng(0).integers(1, 2**62, size=table.shape[1])
    _, first, group = np.unique(table @ factors, return_index=True, return_inverse=True)
    if not np.array_equal(table[first[group]], table):
        group = np.unique(table, axis=0, return_inverse=True)[1]
    return group.reshape(-1)


@dataclass(frozen=True, repr=False, eq=False)
class SequenceBatch(Described):
    """Independent datasets of one width, reduced together: token ids are shifted so that no two datasets share one.

    Attributes:
        datasets: the datasets.

        joined: all of them as one.

        reduced: the reduced problem of `joined`.

        keys: (n_pairs,) the pairs (query, token) that occur, as query index times n_tokens plus token, in increasing order; for
            a large dataset in which most pairs occur, all pairs.
    """

    datasets: tuple[SequenceDataset, ...]
    joined: SequenceDataset
    reduced: ReducedProblem
    keys: IntArray
    quantities = "{self:#} datasets, {reduced.labels:#} samples, {keys:#} pairs"

    @classmethod
    def of(cls, datasets: tuple[SequenceDataset, ...]) -> SequenceBatch:
        """Make a batch of these datasets, which must share d_model."""
        shift = _starts([data.n_vocabulary for data in datasets])
        joined = CyclicSubset.of_positions(
            np.concatenate([data.tokens + k for data, k in zip(datasets, shift, strict=False)]),
            np.concatenate([[0], np.cumsum(np.concatenate([data.lengths for data in datasets]))]),
            np.concatenate([data.labels + k for data, k in zip(datasets, shift, strict=False)]),
            np.concatenate([data.E for data in datasets]),
        )
        joined.queries = np.concatenate([data.last + k for data, k in zip(datasets, shift, strict=False)])
        joined.samples = np.arange(len(joined))
        reduced = reduce_sequences(joined)
        keys = np.sort(reduced.column[reduced.sample] * len(joined.E) + reduced.tokens)
        keys = keys[np.append(True, np.diff(keys) != 0)]
        return cls(datasets, joined, reduced, _completed(keys, reduced, shift))

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def d_model(self) -> int:
        """The width of an embedding."""
        return self.joined.d_model

    @cached_property
    def is_realizable(self) -> bool:
        """True if every sequence of every dataset holds its label."""
        return bool(self.joined.is_realizable.all())

    @cached_property
    def rows(self) -> IntArray:
        """The index of each dataset's first token among all, (batch + 1,)."""
        return _starts([data.n_vocabulary for data in self.datasets])

    @cached_property
    def token(self) -> IntArray:
        """The token of each pair, (n_pairs,)."""
        return self.keys % len(self.joined.E)

    @cached_property
    def query(self) -> IntArray:
        """The index in `reduced.queries` of each pair's last token, (n_pairs,)."""
        return self.keys // len(self.joined.E)

    @cached_property
    def centred(self) -> FloatArray:
        """Embeddings less the mean of their dataset, which keeps digits in sums and changes neither the softmax nor the gradient."""
        E = self.joined.E
        sums = np.add.reduceat(E, self.rows[:-1], axis=0) / np.diff(self.rows)[:, None]
        return E - np.repeat(sums, np.diff(self.rows), axis=0)

    @cached_property
    def parts(self) -> IntArray:
        """The starts of each dataset's pairs, queries, merged samples and entries, (batch + 1, 4)."""
        reduced = self.reduced
        queries = np.searchsorted(reduced.queries, self.rows)
        samples = np.searchsorted(_problem(self.rows, reduced.labels), np.arange(len(self) + 1))
        pairs = np.searchsorted(_problem(self.rows, self.token), np.arange(len(self) + 1))
        return np.stack([pairs, queries, samples, reduced.offsets[samples]], axis=1)

    def packed(self, heads: tuple[NextTokenHead, ...], whole_heads: bool) -> tuple[Any, ...]:
        """Return the arrays that the compiled loop takes; `whole_heads` is True if the loss reads all outputs instead of only the label's.

        Indices are relative to their own dataset, and the label comes first among the entries of each sample.
        """
        reduced, parts = self.reduced, self.parts
        sample = reduced.sample
        entry = np.argsort(2 * sample + ~reduced.is_label, kind="stable")
        problem = np.repeat(np.arange(len(self)), np.diff(parts[:, 3]))  # of each entry
        tokens, log_count = reduced.tokens[entry], reduced.log_counts[entry]
        pair = np.searchsorted(self.keys, reduced.column[sample] * len(self.joined.E) + tokens) - parts[problem, 0]
        owner = np.repeat(np.arange(len(self)), np.diff(parts[:, 2]))  # of each sample
        sizes = np.array([len(data) for data in self.datasets])
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
        """Return the logits of W (batch, d_model, d_model), each up to a constant of its query, (n_pairs,)."""
        E, queries, parts, rows = self.joined.E, self.reduced.queries, self.parts, self.rows
        turned, logits = np.empty((len(queries), self.d_model)), np.empty(len(self.keys))
        for b in range(len(self)):
            first, last = parts[b : b + 2, 1]
            turned[first:last] = E[queries[first:last]] @ W[b].T
        complete = np.diff(parts[:, 0]) == np.diff(parts[:, 1]) * np.diff(rows)
        for b in np.flatnonzero(complete).tolist():
            (p0, q0), (p1, q1) = parts[b : b + 2, :2]
            logits[p0:p1] = (turned[q0:q1] @ self.centred[rows[b] : rows[b + 1]].T).ravel()
        rest, size = np.flatnonzero(~complete[self._of_pair]), max(1, _GATHERED_AT_ONCE // self.d_model)
        for chunk in (rest[k : k + size] for k in range(0, len(rest), size)):
            logits[chunk] = np.einsum("pd,pd->p", self.centred[self.token[chunk]], turned[self.query[chunk]])
        return logits

    @cached_property
    def _place(self) -> IntArray:
        """The pair of each position of `joined`, (n_positions,)."""
        column = self.reduced.column[self.reduced.merged]  # of each sample
        return np.searchsorted(self.keys, column[self.joined.sample] * len(self.joined.E) + self.joined.tokens)

    def attention(self, pair_logits: FloatArray) -> FloatArray:
        """Return the softmax of every sequence, (batch, n_samples, n_tokens), zero in padding; lengths and sizes are padded."""
        joined = self.joined
        logits, first = pair_logits[self._place], joined.offsets[:-1]
        weights = np.exp(logits - np.repeat(np.maximum.reduceat(logits, first), joined.lengths))
        weights /= np.repeat(np.add.reduceat(weights, first), joined.lengths)
        sizes = np.array([len(data) for data in self.datasets])
        padded = np.zeros((len(self), int(sizes.max()), int(joined.lengths.max())))
        start = _starts(sizes)
        problem = np.repeat(np.arange(len(self)), sizes)
        sample = joined.sample
        place = np.arange(len(joined.tokens)) - joined.offsets[sample]
        padded[problem[sample], sample - start[problem[sample]], place] = weights
        return padded

    def selected(self, attention: FloatArray) -> IntArray:
        """Return the position with the most attention, (batch, n_samples); -1 if there is no sample."""
        exists = np.arange(attention.shape[1]) < np.array([len(data) for data in self.datasets])[:, None]
        return np.where(exists, np.argmax(attention, axis=-1), -1)


def _completed(keys: IntArray, reduced: ReducedProblem, rows: IntArray) -> IntArray:
    """Return the pairs, or all pairs of a dataset if most of many occur: products of whole matrices take less time than those
    of their rows.

    Args:
        rows: (batch + 1,) the index of each dataset's first token.
    """
    n_tokens, queries = len(reduced.E), np.searchsorted(reduced.queries, rows)
    parts, pieces = np.searchsorted(keys, queries * n_tokens), []
    for b, (first, last) in enumerate(pairwise(parts)):
        n_queries, n_vocabulary = queries[b + 1] - queries[b], rows[b + 1] - rows[b]
        if last - first < max(_MANY_PAIRS, n_queries * n_vocabulary // 2):
            pieces.append(keys[first:last])
        else:
            of_query = np.arange(queries[b], queries[b + 1]) * n_tokens
            pieces.append((of_query[:, None] + np.arange(rows[b], rows[b + 1])).ravel())
    return np.concatenate(pieces)


def as_batch(data: object) -> tuple[SequenceDataset, ...]:
    """Return a dataset, or a list of datasets of one width, as a tuple."""
    if isinstance(data, SequenceDataset):
        return (data,)
    if (
        not isinstance(data, list | tuple)
        or len(data) == 0
        or not all(isinstance(one, SequenceDataset) for one in data)
    ):
        wrong = (
            next((one for one in data if not isinstance(one, SequenceDataset)), data)
            if isinstance(data, list | tuple)
            else data
        )
        raise InputError("data", "a SequenceDataset or a list of at least one", _named(wrong))
    widths = [one.d_model for one in data]
    if len(set(widths)) > 1:
        other = next(k for k, width in enumerate(widths) if width != widths[0])
        raise InputError(
            "data", "datasets of one width d_model", f"{widths[0]} at index 0 and {widths[other]} at index {other}"
        )
    return tuple(map(as_sequences, data))


def _named(wrong: object) -> str:
    return "an empty list" if isinstance(wrong, list | tuple) else type(wrong).__name__


def _problem(rows: IntArray, tokens: IntArray) -> IntArray:
    """Return the dataset that each of these shifted tokens belongs to."""
    return np.searchsorted(rows, tokens, side="right") - 1


def _starts(sizes: ArrayLike) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
