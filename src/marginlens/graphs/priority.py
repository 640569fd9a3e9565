"""Token-priority graphs: the ranking of tokens by the data for each last token, and the sequences behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.errors import InputError, index_array, whole_number
from marginlens.papers import implements
from marginlens.result import Displayed, Result, Tabular, table
from marginlens.typing import Axes, BoolArray, IntArray

# With more tokens, the number of an edge (last token, label, token) would have more than 64 bits.
MAX_GRAPH_TOKENS = 2**21 - 1
# Looking for implied pairs pays if there are so many strict pairs per component.
_PAIRS_PER_COMPONENT = 4
# Counting edges in a table is quicker than sorting them if there are no more possible edges than this.
_MAX_COUNT_TABLE = 50_000_000


@implements("C", "§3.1")
@dataclass(frozen=True, repr=False, eq=False)
class PriorityGraph(Displayed, Tabular):
    r"""The priorities among tokens when the last token is `last`.

    An edge :math:`i \to j` means that some sequence ending in `last` holds j and is followed by i. Tokens that reach each other
    are equal (:math:`i \asymp j`, one component). An edge is strict (:math:`i \Rightarrow j`) if no path leads back from j to
    i.

    Attributes:
        last: the last token k.

        nodes: (n_nodes,) the ids that occur in sequences ending in `last`, in increasing order.

        edges: (n_edges, 2) pairs of ids (label, other token), each pair once.

        counts: (n_edges,) the number of positions with each edge.

        component_of: (n_nodes,) the component of each node; components are numbered so that every edge leads to the same or a
            higher number, so 0 has the highest priority.

    `to_frame()` has one row per edge: last, above, below, count, strict.
    """

    last: int
    nodes: IntArray
    edges: IntArray
    counts: IntArray
    component_of: IntArray
    quantities = "last={last}, {nodes:#} tokens, {edges:#} edges, {n_components} components, {strict:#} strict"

    @property
    def n_components(self) -> int:
        """The number of strongly connected components, N_k."""
        return int(self.component_of.max(initial=-1)) + 1

    @cached_property
    def components(self) -> tuple[IntArray, ...]:
        """The strongly connected components as arrays of ids, highest priority first."""
        order = np.argsort(self.component_of, kind="stable")
        sizes = np.bincount(self.component_of, minlength=self.n_components)
        return tuple(np.split(self.nodes[order], np.cumsum(sizes)[:-1])) if len(order) else ()

    @cached_property
    def strict(self) -> IntArray:
        """The pairs i ⇒ j, (n_strict, 2): edges from one component to another."""
        return self.edges[~self._inside]

    @cached_property
    def tied(self) -> IntArray:
        """The pairs i ≍ j of the same component, (n_tied, 2), each once with i < j. Their number grows with the squares of the
        components' sizes.
        """
        pairs = []
        for members in self.components:
            first, second = np.triu_indices(len(members), k=1)
            pairs.append(np.stack([members[first], members[second]], axis=1))
        return np.concatenate(pairs) if pairs else np.empty((0, 2), dtype=np.int64)

    @cached_property
    def is_acyclic(self) -> bool:
        """True if every component is a single token."""
        return self.n_components == len(self.nodes)

    def component(self, token: int) -> int:
        """Find the component of a token, -1 for a token that the graph does not hold."""
        if isinstance(token, bool) or not isinstance(token, int | np.integer):
            raise InputError("token", "a whole number, the id of a token", repr(token))
        return int(self.components_of(np.array([token]))[0])

    def components_of(self, tokens: IntArray) -> IntArray:
        """Find the component of each token, -1 if the graph does not hold it."""
        ids = index_array(tokens, "tokens", "whole numbers, ids of tokens")
        place = np.searchsorted(self.nodes, ids)
        # The entry appended at the end stands for nodes beyond the last one.
        nodes, component_of = np.append(self.nodes, -1), np.append(self.component_of, -1)
        return np.where(nodes[place] == ids, component_of[place], -1)

    def reaches(self, i: int, j: int) -> bool:
        """Check whether a path of edges leads from token i to token j (a token reaches itself)."""
        upper, lower = self.component(i), self.component(j)
        return min(upper, lower) >= 0 and (upper == lower or bool(component_order(self).reach[upper, lower]))

    @property
    def levels(self) -> IntArray:
        """The number of components in the longest chain above each component, (n_components,)."""
        return component_levels(self)

    @property
    def reduced_order(self) -> BoolArray:
        """The pairs of components with a strict edge between them that no longer chain implies, (n_components, n_components) booleans."""
        return reduced_order(self)

    @property
    def _inside(self) -> BoolArray:
        """The edges inside a component, (n_edges,) booleans."""
        ends = self.component_of[np.searchsorted(self.nodes, self.edges)]
        return ends[:, 0] == ends[:, 1]

    def plot(self, ax: Axes | None = None, names: Sequence[str] | Mapping[int, str] | None = None) -> Axes:
        """Draw the graph, highest priority on top: boxes of tokens of equal priority, and arrows to strictly lower ones. Returns the axes.

        Args:
            ax: axes to draw on; by default a new figure as large as the graph needs.

            names: the name of each token by id, a list or a dictionary; ids by default.
        """
        from marginlens.graphs.picture import draw_graph

        return draw_graph(self, ax, names)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph in types that `json.dumps` takes."""
        arrays = {name: getattr(self, name).tolist() for name in ("nodes", "edges", "counts", "component_of")}
        return {"last": int(self.last), **arrays}

    def _columns(self) -> dict[str, Any]:
        edges = self.edges.reshape(-1, 2)
        return {
            "last": np.full(len(edges), self.last),
            "above": edges[:, 0],
            "below": edges[:, 1],
            "count": self.counts,
            "strict": ~self._inside,
        }


def graphs_of_edges(last: IntArray, head: IntArray, tail: IntArray, n_vocabulary: int) -> dict[int, PriorityGraph]:
    """Make the graphs with the listed edges head → tail and the last token of each; an edge to itself only names a node.

    Args:
        last: (n_edges,) the last token of each edge.

        head: (n_edges,) the token of higher priority.

        tail: (n_edges,) the token of lower priority.

        n_vocabulary: number of tokens.

    Returns:
        A dictionary from last token to its `PriorityGraph`.

    Examples:
        >>> from marginlens.graphs import graphs_of_edges
        >>> graph = graphs_of_edges([2, 2, 2], [0, 1, 0], [1, 0, 2], 3)[2]
        >>> graph.component_of.tolist(), graph.is_acyclic  # tokens 0 and 1 reach each other
        ([0, 0, 1], False)
    """
    K = whole_number(n_vocabulary, "n_vocabulary", at_least=1)
    if K > MAX_GRAPH_TOKENS:
        raise InputError(
            "n_vocabulary", f"at most {MAX_GRAPH_TOKENS} tokens", K, "Number the tokens that occur from 0 on."
        )
    expected = f"a list of ids from 0 to {K - 1}"
    named = (("last", last), ("head", head), ("tail", tail))
    last, head, tail = (index_array(ids, name, expected, (-1,), below=K) for name, ids in named)
    if not len(last) == len(head) == len(tail):
        raise InputError("tail", "as long as 'last' and 'head'", f"{len(last)}, {len(head)} and {len(tail)} ids")
    arrays = graph_arrays(*counted_keys((last * K + head) * K + tail, K**3), K)
    return {int(k): arrays.graph(place) for place, k in enumerate(arrays.last)}


class GraphArrays(NamedTuple):
    """Priority graphs side by side.

    Attributes:
        last: (n_graphs,) last tokens, increasing.

        node_offsets: (n_graphs + 1,) the index of the first node of each graph.

        edge_offsets: (n_graphs + 1,) the index of the first edge of each graph.

        nodes: (n_nodes,) as in `PriorityGraph`.

        component_of: (n_nodes,) as in `PriorityGraph`.

        edges: (n_edges, 2) as in `PriorityGraph`.

        counts: (n_edges,) as in `PriorityGraph`.
    """

    last: IntArray
    node_offsets: IntArray
    edge_offsets: IntArray
    nodes: IntArray
    component_of: IntArray
    edges: IntArray
    counts: IntArray

    def graph(self, place: int) -> PriorityGraph:
        """Return the graph of `last[place]`."""
        of_nodes, of_edges = (slice(*offsets[place : place + 2]) for offsets in (self.node_offsets, self.edge_offsets))
        nodes, ranks = (np.asarray(array[of_nodes], dtype=np.int64) for array in (self.nodes, self.component_of))
        edges, counts = (np.asarray(array[of_edges], dtype=np.int64) for array in (self.edges, self.counts))
        return PriorityGraph(int(self.last[place]), nodes, edges, counts, ranks)


def graph_arrays(keys: IntArray, counts: IntArray, n_vocabulary: int) -> GraphArrays:
    """Make the graphs of counted edges, whose numbers `keys` = (last · K + head) · K + tail (n_keys,) are distinct and increasing."""
    K = n_vocabulary
    k, i, j = keys // (K * K), keys // K % K, keys % K
    # The tokens of all graphs side by side.
    nodes = _distinct(np.concatenate([k * K + i, k * K + j]))
    proper = i != j
    heads, tails = np.searchsorted(nodes, (k * K + i)[proper]), np.searchsorted(nodes, (k * K + j)[proper])
    edges, counts, k = np.stack([i, j], axis=1)[proper], counts[proper], k[proper]
    last = nodes // K
    queries = _distinct(last)
    rank, _ = _ranks(heads, tails, np.searchsorted(queries, last))
    of_nodes, of_edges = (np.append(np.searchsorted(x, queries), len(x)) for x in (last, k))
    return GraphArrays(queries, of_nodes, of_edges, nodes % K, rank, edges, counts)


@implements("C", "Def 2")
def is_acyclic(graphs: Mapping[int, PriorityGraph]) -> bool:
    """Check whether all graphs are acyclic, which makes the dataset acyclic.

    Examples:
        >>> import marginlens as ml
        >>> ml.graphs.is_acyclic(ml.priority_graphs(ml.data.figure_2()))
        False
    """
    return all(graph.is_acyclic for graph in as_graphs(graphs).values())


def as_graph(graph: object) -> PriorityGraph:
    """Return `graph` if it is a priority graph, otherwise raise."""
    if not isinstance(graph, PriorityGraph):
        raise InputError("graph", "a PriorityGraph", type(graph).__name__)
    return graph


def as_graphs(graphs: object, n_vocabulary: int | None = None) -> Mapping[int, PriorityGraph]:
    """Return `graphs` if they are priority graphs by last token, of ids below `n_vocabulary` if that is given; otherwise raise."""
    expected = "a mapping from last tokens to PriorityGraph objects"
    if not isinstance(graphs, Mapping):
        raise InputError("graphs", expected, type(graphs).__name__)
    for last, graph in graphs.items():
        if not isinstance(graph, PriorityGraph):
            raise InputError("graphs", expected, type(graph).__name__)
        if isinstance(last, bool) or not isinstance(last, int | np.integer):
            raise InputError("graphs", expected, f"the key {last!r}")
        if graph.last != last:
            raise InputError("graphs", expected, f"the graph of last token {graph.last} at {last}")
        ids = (int(last), *graph.nodes.tolist())
        if n_vocabulary is not None and not 0 <= min(ids) <= max(ids) < n_vocabulary:
            wanted = f"graphs of tokens 0 to {n_vocabulary - 1}, one for each row of E"
            raise InputError("graphs", wanted, f"a graph of last token {last}")
    return graphs


def counted_keys(keys: IntArray, n_possible: int) -> tuple[IntArray, IntArray]:
    """Count how often each distinct key occurs, in increasing order; the array of keys may be sorted in place."""
    if n_possible <= _MAX_COUNT_TABLE and n_possible <= 64 * len(keys) + 100_000:
        table = np.bincount(keys, minlength=n_possible)
        present = np.flatnonzero(table)
        return present, table[present]
    keys.sort()
    counts = np.empty(len(keys), dtype=np.int64)
    n = core.count_keys(keys, counts)
    return keys[:n].copy(), counts[:n].copy()


def _distinct(values: IntArray) -> IntArray:
    """Return the distinct values in increasing order; sorting takes a tenth of the time of the hash table of `np.unique`."""
    ordered = np.sort(values)
    return ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0]


def _ranks(heads: IntArray, tails: IntArray, graph: IntArray) -> tuple[IntArray, IntArray]:
    """Return the strong component of each node, (n_nodes,), and the length of the longest chain of edges that leads to it.
    Components are numbered from 0 in each graph along the edges, ties by the smallest token.

    Args:
        heads: (n_edges,) the first node of each edge.

        tails: (n_edges,) the second node of each edge.

        graph: (n_nodes,) the graph of each node, from 0 and increasing.
    """
    ranks, levels = np.empty_like(graph), np.empty_like(graph)
    core.rank_components(heads, tails, graph, ranks, levels)
    return ranks, levels


def reduced_order(graph: PriorityGraph) -> BoolArray:
    """Return the pairs of components (n_components, n_components) with a strict edge between them that no longer chain implies."""
    direct, reach = component_order(graph)
    above, below = direct.any(axis=1), direct.any(axis=0)
    upper, middle, lower = np.flatnonzero(above), np.flatnonzero(above & below), np.flatnonzero(below)
    steps = direct[np.ix_(upper, middle)].astype(np.float64) @ reach[np.ix_(middle, lower)].astype(np.float64)
    direct[np.ix_(upper, lower)] &= steps == 0.0
    return direct


class ComponentOrder(NamedTuple):
    """The strict order of components; each array is (n_components, n_components).

    Attributes:
        direct: whether a strict edge leads from one component (row) to another (column).

        reach: whether a chain of such edges does. Two components are not compared by the data if neither reaches the other.
    """

    direct: BoolArray
    reach: BoolArray


def component_order(graph: PriorityGraph) -> ComponentOrder:
    """Return the strict order of the components of a graph: by an edge, and by chains of edges."""
    count = as_graph(graph).n_components
    direct = np.zeros((count, count), dtype=bool)
    ends = _ends(graph)
    direct[ends[:, 0], ends[:, 1]] = True
    above = direct.any(axis=1)
    reach = direct.copy()
    # Edges lead to higher numbers.
    for part in np.flatnonzero(above)[::-1]:
        reach[part] |= reach[direct[part] & above].any(axis=0)
    return ComponentOrder(direct, reach)


def component_levels(graph: PriorityGraph) -> IntArray:
    """Return the number of components in the longest chain above each component, (n_components,)."""
    upper, lower = _ends(as_graph(graph)).T
    return _ranks(upper, lower, np.zeros(graph.n_components, dtype=np.int64))[1]


def sufficient_pairs(graph: PriorityGraph) -> IntArray:
    r"""Return indices into `graph.strict` of pairs that imply the others: one for any two components and, if there are many,
    none of a chain.

    The Graph-SVM of these pairs has the same solution. Tokens of a component have equal logits, so one pair between two
    components implies all others. A chain :math:`i \Rightarrow j \Rightarrow l` with margins of at least one gives :math:`i
    \Rightarrow l` a margin of two.
    """
    count, ends = graph.n_components, _ends(graph)
    many = len(ends) > _PAIRS_PER_COMPONENT * count
    if graph.is_acyclic and not many:
        return np.arange(len(ends))
    first = np.sort(np.unique(ends[:, 0] * count + ends[:, 1], return_index=True)[1])
    return first[reduced_order(graph)[ends[first, 0], ends[first, 1]]] if many else first


def _ends(graph: PriorityGraph) -> IntArray:
    """Return the components of the strict edges, (n_strict, 2)."""
    return graph.component_of[np.searchsorted(graph.nodes, graph.strict)].reshape(-1, 2)


@dataclass(frozen=True, repr=False, eq=False)
class Evidence(Result, Tabular):
    """The sequences behind the strict pairs i ⇒ j of one graph.

    Attributes:
        pairs: (n_strict, 2) the pairs, as in `graph.strict`.

        samples: (n_strict,) the number of sequences that end in the graph's last token, hold j and are followed by i.

        first: (n_strict,) the index of the first of them.

        components: (n_ordered, 2) the components with a strict pair between them.

        component_samples: (n_ordered,) the number of sequences whose label is in the first component and that hold a token of
            the second.

    `to_frame()` has one row per strict pair: above, below, sequences, first (the index of the first of them).
    """

    pairs: IntArray
    samples: IntArray
    first: IntArray
    components: IntArray
    component_samples: IntArray
    quantities = "{pairs:#} pairs of tokens, {components:#} of components"

    _columns = table("", above="pairs.T[0]", below="pairs.T[1]", sequences="samples", first="first")


def sequence_evidence(data: SequenceDataset, graph: PriorityGraph) -> Evidence:
    """Find the sequences of a dataset behind the strict pairs of one of its priority graphs."""
    as_sequences(data)
    last, K = as_graph(graph).last, data.n_vocabulary
    ending = np.flatnonzero(data.last == last)
    ending = ending[data.take(ending).is_realizable]
    part = data.take(ending)
    # Each token once in each sequence.
    present = np.unique(part.sample * K + part.tokens)
    head, tail = part.labels[present // K], present % K
    sample = ending[present // K]
    if not np.isin(np.concatenate([head, tail]), graph.nodes).all():
        raise InputError(
            "graph", "one of the priority graphs of these sequences", f"that of last token {last} of others"
        )
    upper, lower = (graph.component_of[np.searchsorted(graph.nodes, ids)] for ids in (head, tail))
    strict = upper != lower
    sample, head, tail, upper, lower = (ids[strict] for ids in (sample, head, tail, upper, lower))
    _, first, counts = np.unique(head * K + tail, return_index=True, return_counts=True)
    N = graph.n_components
    ordered = np.unique(np.stack([upper * N + lower, sample], axis=1), axis=0)[:, 0]
    keys, times = np.unique(ordered, return_counts=True)
    return Evidence(
        pairs=np.stack([head[first], tail[first]], axis=1),
        samples=counts,
        first=sample[first],
        components=np.stack([keys // N, keys % N], axis=1),
        component_samples=times,
    )


def summed_evidence(parts: Sequence[Evidence]) -> Evidence:
    """Join the evidence of all parts, each of other sequences; the earlier parts come first."""

    def total(pairs: list[IntArray], counts: list[IntArray]) -> tuple[IntArray, IntArray, IntArray]:
        different, first, place = np.unique(np.concatenate(pairs), axis=0, return_index=True, return_inverse=True)
        summed = np.bincount(place.reshape(-1), np.concatenate(counts), len(different)).astype(np.int64)
        return different, summed, first

    pairs, samples, first = total([part.pairs for part in parts], [part.samples for part in parts])
    places = np.concatenate([part.first for part in parts])[first]
    components, times, _ = total([part.components for part in parts], [part.component_samples for part in parts])
    return Evidence(pairs, samples, places, components, times)
