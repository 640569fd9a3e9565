"""The cyclic part of a dataset, and pseudo-graphs, which hold the priorities in trained weights instead of those in labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable
from marginlens.errors import InputError, real_number
from marginlens.graphs.from_data import priority_graphs
from marginlens.graphs.priority import PriorityGraph, as_graphs, graphs_of_edges
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace
from marginlens.papers import implements
from marginlens.status import Case
from marginlens.typing import ArrayLike, BoolArray, IntArray


@implements("C", "Eq. (4)")
def tied_positions(data: SequenceDataset, graphs: Mapping[int, PriorityGraph] | None = None) -> BoolArray:
    """Mark the positions whose token is the label or in the label's component: the sets R_i.

    Args:
        data: the sequences with their labels.

        graphs: the priority graphs of the data; computed by default.

    Returns:
        Booleans (n_positions,).

    Examples:
        >>> import marginlens as ml
        >>> from marginlens.graphs import tied_positions
        >>> data = ml.data.figure_2()
        >>> tied_positions(data)[data.offsets[6] :]  # tokens 0, 3, 1 of the last sequence, with label 1
        array([ True, False,  True])
    """
    check_realizable(as_sequences(data))
    graphs = priority_graphs(data) if graphs is None else graphs
    rank = position_ranks(data, graphs)
    of_label = np.maximum.reduceat(np.where(data.is_label, rank, -1), data.offsets[:-1])
    return rank == np.repeat(of_label, data.lengths)


def position_ranks(data: SequenceDataset, graphs: Mapping[int, PriorityGraph]) -> IntArray:
    """Return the component of every position's token in the graph of its last token, (n_positions,), 0 for the highest priority."""
    table, column = component_table(as_graphs(graphs, as_sequences(data).n_vocabulary), data.n_vocabulary)
    place = np.repeat(column[data.last], data.lengths)
    rank = table[data.tokens, place] if table.shape[1] else np.full(len(data.tokens), -1)
    unknown = (rank < 0) | (place < 0)
    if unknown.any():
        position = int(np.argmax(unknown))
        i = int(data.sample[position])
        raise InputError(
            "graphs",
            "graphs of these sequences",
            f"none with token {data.tokens[position]} for last token {data.last[i]} (sample {i})",
            "Make them with priority_graphs(data) or pseudo_graphs(data, W, threshold).",
        )
    return rank


def component_table(graphs: Mapping[int, PriorityGraph], n_vocabulary: int) -> tuple[IntArray, IntArray]:
    """Return the components of all graphs side by side.

    Returns:
        A table (n_vocabulary, n_graphs) with the component of each token, -1 if a graph lacks it, and (n_vocabulary,) the
        column of each last token, -1 if it has no graph.
    """
    table = np.full((n_vocabulary, len(graphs)), -1, dtype=np.int64)
    column = np.full(n_vocabulary, -1, dtype=np.int64)
    for place, (last, graph) in enumerate(graphs.items()):
        table[graph.nodes, place] = graph.component_of
        column[last] = place
    return table, column


@implements("C", "Def 1", "Eq. (5)")
def cyclic_subset(data: SequenceDataset, graphs: Mapping[int, PriorityGraph] | None = None) -> CyclicSubset:
    r"""Take the cyclic subdataset: the samples of :math:`\mathcal I`, without the tokens that their label strictly dominates.

    A sample stays if it holds two different tokens of its label's component. Its query is still the last token of the whole sequence,
    even if that token is removed: `queries` and `last` hold it.

    Args:
        data: the sequences with their labels.

        graphs: the priority graphs of the data; computed by default.

    Returns:
        A `CyclicSubset`, without any sample if the data are acyclic.

    Examples:
        >>> import marginlens as ml
        >>> subset = ml.cyclic_subset(ml.data.figure_2())
        >>> len(subset), subset.samples.tolist()
        (4, [3, 4, 5, 6])
    """
    graphs = priority_graphs(as_sequences(data)) if graphs is None else graphs
    tied = tied_positions(data, graphs)
    several = np.logical_or.reduceat(tied & ~data.is_label, data.offsets[:-1])
    return CyclicSubset.of_positions_in(data, tied, several)


class CyclicSubset(SequenceDataset):
    """A subdataset whose sequences may have lost their last token: `queries` holds these tokens, and `samples` the indices in
    the whole data.
    """

    queries: IntArray
    samples: IntArray

    @classmethod
    def of_positions_in(cls, data: SequenceDataset, inside: BoolArray, chosen: BoolArray) -> CyclicSubset:
        """Make a subset of the positions `inside` (n_positions,) of the samples `chosen` (n_samples,)."""
        samples, inside = np.flatnonzero(chosen), inside & np.repeat(chosen, data.lengths)
        lengths = np.add.reduceat(inside.astype(np.int64), data.offsets[:-1])[chosen]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        subset = cls.of_positions(data.tokens[inside], offsets, data.labels[samples], data.E)
        subset.queries, subset.samples = data.last[samples], samples
        return subset

    def take(self, samples: IntArray) -> CyclicSubset:
        """Take some samples (n_taken,), by their indices, as a subset."""
        chosen = super().take(samples)
        chosen.queries, chosen.samples = self.queries[samples], self.samples[samples]
        return chosen

    def arrays(self) -> dict[str, Any]:
        """Raise, because a file cannot hold a subset, whose last tokens may be missing from its sequences."""
        raise InputError("data", "a SequenceDataset", "a CyclicSubset", "Save the whole data.")

    @property
    def last(self) -> IntArray:
        """The last token of each whole sequence, (n_samples,)."""
        return self.queries


def selected_positions(data: SequenceDataset, W: ArrayLike, threshold: float) -> BoolArray:
    r"""Mark the positions (n_positions,) that attention selects: :math:`s_{it} > ` `threshold` at the weights W.

    Each position counts separately: if a token occurs three times, each occurrence has a third of the token's attention.

    Args:
        W: (d_model, d_model) key-query weights.

        threshold: at least 0 and below 1. The paper's s > 0 is s > .01 in its authors' code.
    """
    limit = real_number(threshold, "threshold", "a number from 0 up to below 1", lambda number: 0.0 <= number < 1.0)
    chosen = np.asarray(as_sequences(data).attention(W) > limit)
    empty = ~np.logical_or.reduceat(chosen, data.offsets[:-1])
    if empty.any():
        i = int(np.argmax(empty))
        remedy = f"A threshold below 1/{int(data.lengths.max())} always selects."
        raise InputError(
            "threshold",
            "below the largest attention weight of every sample",
            f"{limit:g}, which sample {i} never exceeds",
            remedy,
        )
    return chosen


@implements("C", "§6")
def pseudo_graphs(data: SequenceDataset, W: ArrayLike, threshold: float) -> dict[int, PriorityGraph]:
    r"""Make the graphs of the tokens that W selects: every selected token of a sequence has an edge to every other token of the sequence.

    .. math:: x_{t_1} \to x_{t_2} \in \mathcal G^{(k)} \ \text{if}\ s_{t_1} > \epsilon,\quad s = \mathbb S(X W \bar x),\ \bar x = e_k

    Args:
        W: (d_model, d_model) trained weights.

        threshold: ε, at least 0 and below 1, applied to each position separately.

    Returns:
        A dictionary from last token to `PriorityGraph`, for `graph_svm` and `cyclic_correction`. Tokens that a sequence selects
        together are tied.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.graphs import pseudo_graphs
        >>> data = ml.SequenceDataset([[0, 1, 2]], [1], np.eye(3))
        >>> W = np.zeros((3, 3))
        >>> W[0, 2] = 9.0  # selects token 0 after token 2
        >>> pseudo_graphs(data, W, 0.01)[2].strict.tolist()
        [[0, 1], [0, 2]]
    """
    chosen = selected_positions(data, W, threshold)
    K, sample = data.n_vocabulary, data.sample
    # Each selected token of a sample once.
    heads = np.unique(sample[chosen] * K + data.tokens[chosen])
    owner, head = heads // K, heads % K
    lengths = data.lengths[owner]
    ends = np.cumsum(lengths)
    tail = data.tokens[np.arange(ends[-1]) + np.repeat(data.offsets[owner] - (ends - lengths), lengths)]
    return graphs_of_edges(np.repeat(data.last[owner], lengths), np.repeat(head, lengths), tail, K)


@implements("C", "§6")
def leading_subset(data: SequenceDataset, graphs: Mapping[int, PriorityGraph]) -> CyclicSubset:
    r"""Keep only the tokens of highest priority in the given graphs, in every sequence.

    For the data's own priority graphs these are the tokens tied with the label, and the result is `cyclic_subset`; for pseudo-graphs
    they are the tokens tied with the selected ones. Labels stay even if their tokens are removed. A sample stays if it keeps
    two different tokens.

    Args:
        graphs: graphs by last token that hold every token of every sequence with this last token.

    Returns:
        A `CyclicSubset`, without any sample if none keeps two different tokens.

    Examples:
        >>> import marginlens as ml
        >>> from marginlens.graphs import leading_subset
        >>> data = ml.data.figure_2()
        >>> leading_subset(data, ml.priority_graphs(data)) == ml.cyclic_subset(data)
        True
    """
    rank = position_ranks(data, graphs)
    starts = data.offsets[:-1]
    leading = rank == np.repeat(np.minimum.reduceat(rank, starts), data.lengths)
    lowest = np.minimum.reduceat(np.where(leading, data.tokens, data.n_vocabulary), starts)
    highest = np.maximum.reduceat(np.where(leading, data.tokens, -1), starts)
    return CyclicSubset.of_positions_in(data, leading, lowest < highest)


class LocalRule(Case):
    """Rule for the tokens that a sequence keeps in the local cyclic subset of C §6; the value is the code of its sentence.

    For the data's own priority graphs both rules are `cyclic_subset`. The paper defers "a rigorous definition of local" W^cyc.
    """

    LABELS_COMPONENT = "local_rule.labels_component"
    SELECTED_COMPONENT = "local_rule.selected_component"


@implements("C", "§6")
def local_subset(data: SequenceDataset, graphs: Mapping[int, PriorityGraph], rule: LocalRule) -> CyclicSubset:
    """Take the local cyclic subset: the tokens that every sequence keeps in the given pseudo-graphs, by either rule.

    Args:
        graphs: `pseudo_graphs(data, W, threshold)`.

        rule: `LocalRule.LABELS_COMPONENT` or `LocalRule.SELECTED_COMPONENT`.

    Returns:
        A `CyclicSubset`, without any sample if none keeps two different tokens. By the label's component, every label is kept;
        by the selected component, a label may be missing from its own sample.
    """
    by_label = as_local_rule(rule) is LocalRule.LABELS_COMPONENT
    return cyclic_subset(data, graphs) if by_label else leading_subset(data, graphs)


@implements("C", "§6")
def local_subspace(graphs: Mapping[int, PriorityGraph], subset: CyclicSubset) -> CyclicSubspace:
    r"""Compute the local S_cyc: the span of Definition 3 over the components that samples of a local subset keep tokens of.

    By `LocalRule.SELECTED_COMPONENT` these are all components of several tokens, and the span is `cyclic_subspace(E, graphs)`: every edge
    inside a component comes from a sequence that selects its head. By `LocalRule.LABELS_COMPONENT` they are the components of the
    labels, as in the authors' code; ties among tokens that no label belongs to do not count.

    Args:
        graphs: the graphs that the subset was made with.

        subset: the subset from `local_subset`.
    """
    last, component = subset.last[subset.sample], position_ranks(subset, graphs)
    met = {(int(k), int(part)) for k, part in zip(last, component, strict=True)}
    chains = [
        # A cycle through the members of a component.
        (k, members[t], members[t - 1])
        for k, number in sorted(met)
        for members in [graphs[k].components[number]]
        for t in range(len(members))
    ]
    last, head, tail = np.array(chains, dtype=np.int64).reshape(-1, 3).T
    return cyclic_subspace(subset.E, graphs_of_edges(last, head, tail, subset.n_vocabulary))


def as_local_rule(rule: object) -> LocalRule:
    """Return `rule` if it is a `LocalRule`, otherwise raise."""
    if not isinstance(rule, LocalRule):
        raise InputError("rule", "LocalRule.LABELS_COMPONENT or LocalRule.SELECTED_COMPONENT", repr(rule))
    return rule
