"""The cyclic part of a dataset: what is left when every token of lower priority than the label is removed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable
from marginlens.data.tokens import BoolArray, IntArray
from marginlens.errors import reject
from marginlens.graphs.priority import PriorityGraph, as_graphs, priority_graphs
from marginlens.papers import implements


@implements("C", "Eq. (4)")
def tied_positions(ds: SequenceDataset, graphs: Mapping[int, PriorityGraph] | None = None) -> BoolArray:
    """(n_positions,) whether a position's token is the label or in the label's component: the sets R_i.

    Args:
        graphs: the priority graphs of the data, made when not given.
    """
    check_realizable(as_sequences(ds))
    graphs = priority_graphs(ds) if graphs is None else graphs
    rank = position_ranks(ds, graphs)
    of_label = np.maximum.reduceat(np.where(ds.is_label, rank, -1), ds.offsets[:-1])
    return rank == np.repeat(of_label, ds.lengths)


def position_ranks(ds: SequenceDataset, graphs: Mapping[int, PriorityGraph]) -> IntArray:
    """(n_positions,) the component of every position's token in the graph of its last token, 0 the highest priority."""
    table, column = component_table(as_graphs(graphs, as_sequences(ds).n_vocabulary), ds.n_vocabulary)
    place = np.repeat(column[ds.last], ds.lengths)
    rank = table[ds.tokens, place] if table.shape[1] else np.full(len(ds.tokens), -1)
    unknown = (rank < 0) | (place < 0)
    if unknown.any():
        position = int(np.argmax(unknown))
        i = int(ds.sample[position])
        raise reject(
            "graphs",
            "graphs of these sequences",
            f"none with token {ds.tokens[position]} for last token {ds.last[i]} (sample {i})",
            "Make them with priority_graphs(ds) or pseudo_graphs(ds, W, threshold).",
        )
    return rank


def component_table(graphs: Mapping[int, PriorityGraph], n_vocabulary: int) -> tuple[IntArray, IntArray]:
    """Every graph's components side by side.

    Returns:
        A table (n_vocabulary, n_graphs) with the component of each token, -1 where a graph lacks it, and (n_vocabulary,) the
        column of each last token, -1 where it has no graph.
    """
    table = np.full((n_vocabulary, len(graphs)), -1, dtype=np.int64)
    column = np.full(n_vocabulary, -1, dtype=np.int64)
    for place, (last, graph) in enumerate(graphs.items()):
        table[graph.nodes, place] = graph.component_of
        column[last] = place
    return table, column


@implements("C", "Def 1", "Eq. (5)")
def cyclic_subset(ds: SequenceDataset, graphs: Mapping[int, PriorityGraph] | None = None) -> CyclicSubset:
    r"""The cyclic subdataset: samples of :math:`\mathcal I`, without the tokens that their label strictly dominates.

    A sample stays when it holds two different tokens of its label's component. Its query is still the last token of the whole
    sequence, which need not survive the removal: `queries` holds it and `last` gives it.

    Returns:
        A `CyclicSubset`, without any sample where the data are acyclic.
    """
    graphs = priority_graphs(as_sequences(ds)) if graphs is None else graphs
    kept = tied_positions(ds, graphs)
    other = kept & ~ds.is_label
    chosen = np.logical_or.reduceat(other, ds.offsets[:-1])
    kept &= np.repeat(chosen, ds.lengths)
    lengths = np.add.reduceat(kept.astype(np.int64), ds.offsets[:-1])[chosen]
    return CyclicSubset.of_sample(ds, kept, lengths, np.flatnonzero(chosen))


class CyclicSubset(SequenceDataset):
    """A subdataset whose sequences may have lost their last token: `queries` holds it, `samples` the indices in the whole data."""

    queries: IntArray
    samples: IntArray

    @classmethod
    def of_sample(cls, ds: SequenceDataset, kept: BoolArray, lengths: IntArray, samples: IntArray) -> CyclicSubset:
        """The positions `kept` (n_positions,) of the samples `samples`, with `lengths` of what is left of each."""
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        one = cls.of_positions(ds.tokens[kept], offsets, ds.labels[samples], ds.E)
        one.queries, one.samples = ds.last[samples], samples
        return one

    def take(self, samples: IntArray) -> CyclicSubset:
        """Some samples (n_taken,), by their indices, as a subset of their own."""
        chosen = super().take(samples)
        chosen.queries, chosen.samples = self.queries[samples], self.samples[samples]
        return chosen

    @property
    def last(self) -> IntArray:
        """(n_samples,) the last token of each whole sequence."""
        return self.queries
