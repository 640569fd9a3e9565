"""Which sequences say that one token stands above another: how many, and the first of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.data.tokens import IntArray
from marginlens.errors import reject
from marginlens.graphs.priority import PriorityGraph, as_graph


@dataclass(frozen=True, repr=False, eq=False)
class Evidence:
    """The sequences behind the strict pairs i ⇒ j of one graph.

    Attributes:
        pairs: (n_strict, 2) the pairs, as in `graph.strict`. samples: (n_strict,) how many sequences end in the graph's last token, hold j
            and are followed by i. first: (n_strict,) the index of the first of them.
        components: (n_ordered, 2) the components with a strict pair between them. component_samples: (n_ordered,) how many sequences
            have their label in the first and hold a token of the second, each counted once.
    """

    pairs: IntArray
    samples: IntArray
    first: IntArray
    components: IntArray
    component_samples: IntArray

    def __repr__(self) -> str:
        return f"Evidence({len(self.pairs)} strict pairs, {len(self.components)} ordered pairs of components)"


def ranking_evidence(ds: SequenceDataset, graph: PriorityGraph) -> Evidence:
    """The sequences of a dataset that put tokens strictly above others in one of its priority graphs.

    Args:
        graph: one of `priority_graphs(ds)`. Its `counts` are positions; here a sequence that holds a token twice counts once, and one
            that lacks its label does not count.
    """
    as_sequences(ds)
    last, K = as_graph(graph).last, ds.n_vocabulary
    ending = np.flatnonzero(ds.last == last)
    ending = ending[ds.take(ending).is_realizable]
    part = ds.take(ending)
    held = np.unique(part.sample * K + part.tokens)  # each token once in each sequence
    head, tail = part.labels[held // K], held % K
    sample = ending[held // K]
    if not np.isin(np.concatenate([head, tail]), graph.nodes).all():
        raise reject("graph", "one of the priority graphs of these sequences", f"that of last token {last} of others")
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
