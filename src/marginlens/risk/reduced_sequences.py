r"""A next-token problem in the coordinates that matter: logits are entries of the table E W Eᵀ, tokens are counted, samples merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, repr=False, eq=False)
class ReducedProblem:
    r"""Samples as sets of different tokens with multiplicities, equal samples merged.

    Attention sees a sequence only through how often each token occurs: with m occurrences of token x the softmax gives it
    :math:`m\, e^{M_{xk}} / \sum`, where :math:`M = E W E^\top` and k is the last token.

    Attributes:
        E: (n_vocabulary, d_model). queries: (n_queries,) the different last tokens, increasing.
        column: (n_samples,) which query each merged sample has. labels: (n_samples,). share: (n_samples,) the fraction of the
            original samples behind each, adding up to one.
        tokens: (n_entries,) the different tokens of each sample, increasing, sample i at offsets[i]:offsets[i + 1].
        log_counts: (n_entries,) log of how often each occurs. merged: (n_original,) the merged sample of each original one.
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

    def __repr__(self) -> str:
        return f"ReducedProblem({len(self.labels)} samples, {len(self.tokens)} entries, {len(self.queries)} queries)"

    @property
    def sample(self) -> IntArray:
        """(n_entries,) the merged sample of each entry."""
        return np.repeat(np.arange(len(self.labels)), np.diff(self.offsets))

    @property
    def is_label(self) -> BoolArray:
        """(n_entries,) whether an entry is its sample's label."""
        return self.tokens == np.repeat(self.labels, np.diff(self.offsets))

    def table(self, W: FloatArray) -> FloatArray:
        """(n_vocabulary, n_queries) the logits e_xᵀ W e_k of a weight matrix."""
        return self.E @ (W @ self.E[self.queries].T)

    def lift(self, weights: FloatArray) -> FloatArray:
        """(d_model, d_model) the matrix Σ weights[x, q] e_x e_kᵀ: the transpose of `table`."""
        return self.E.T @ weights @ self.E[self.queries]

    def logits(self, table: FloatArray) -> FloatArray:
        """(n_entries,) logits of each entry, multiplicity included."""
        return table[self.tokens, self.column[self.sample]] + self.log_counts


def reduce_sequences(ds: SequenceDataset) -> ReducedProblem:
    """The reduced problem of a dataset, in time linear in its positions up to sorting."""
    K, sample = ds.n_vocabulary, ds.sample
    keys, counts = np.unique(sample * K + ds.tokens, return_counts=True)
    owner, tokens = keys // K, keys % K
    offsets = np.searchsorted(owner, np.arange(len(ds) + 1))
    queries, column = np.unique(ds.last, return_inverse=True)
    merged = _merged(column.reshape(-1), ds.labels, tokens * (int(counts.max()) + 1) + counts, offsets)
    first = np.unique(merged, return_index=True)[1]
    kept = np.isin(owner, first)
    renumbered = np.argsort(np.argsort(first))[merged]  # by first appearance
    first = np.sort(first)
    lengths = np.diff(offsets)[first]
    return ReducedProblem(
        E=ds.E,
        queries=queries,
        column=column.reshape(-1)[first],
        labels=ds.labels[first],
        share=np.bincount(renumbered, minlength=len(first)) / len(ds),
        tokens=tokens[kept],
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        log_counts=np.log(counts[kept]),
        merged=renumbered,
    )


def _merged(column: IntArray, labels: IntArray, entries: IntArray, offsets: IntArray) -> IntArray:
    """(n_samples,) a number per sample that is equal exactly for samples with the same query, label and counted tokens."""
    lengths = np.diff(offsets)
    merged = np.empty(len(labels), dtype=np.int64)
    numbered = 0
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        table = entries[offsets[rows][:, None] + np.arange(length)]
        _, group = np.unique(np.column_stack([column[rows], labels[rows], table]), axis=0, return_inverse=True)
        merged[rows] = group.reshape(-1) + numbered
        numbered += int(group.max()) + 1
    return merged
