"""Token-priority graphs of a dataset or of a stream of windows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, overload

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.data.text_stream import TextStream
from marginlens.data.token_stream import TokenStream
from marginlens.errors import real_array, reject
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges
from marginlens.graphs.stream import StoredGraphs, stream_graphs
from marginlens.papers import implements
from marginlens.runtime.progress import ProgressCallback
from marginlens.typing import IntArray


@overload
def priority_graphs(data: SequenceDataset, *, head: Any = None) -> dict[int, PriorityGraph]: ...
@overload
def priority_graphs(
    data: TokenStream | TextStream,
    *,
    head: Any = None,
    out: str | os.PathLike[str] | None = None,
    engine: Any = None,
    progress: ProgressCallback | None = None,
) -> StoredGraphs: ...
@implements("C", "§3.1")
def priority_graphs(
    data: SequenceDataset | TokenStream | TextStream,
    *,
    head: Any = None,
    out: str | os.PathLike[str] | None = None,
    engine: Any = None,
    progress: ProgressCallback | None = None,
) -> Mapping[int, PriorityGraph]:
    """The token-priority graph of every last token that occurs, from the labels of the data.

    For each sequence ending in k with label y, the graph of k has an edge from y to every other token of the sequence. Takes time
    linear in the number of positions. Of a sequence that lacks its label, the edges come from the token that `separated_tokens` gives;
    it is left out where there is none, and so is a last token that only such sequences have.

    The windows of a `TokenStream` or `TextStream` need not fit in memory, nor their graphs: chunks of windows are counted on an engine
    and merged into files of a folder, and the graphs are those of one pass over all windows. A second call with the same folder goes on
    from what is there.

    Args:
        data: sequences and their labels, or a stream of windows.
        head: C (n_vocabulary, d_model), which matters for sequences without their label alone; None for C Eᵀ = I, as for streams.
        out: the folder for the graphs of a stream; None for a temporary one that goes with them.
        engine: where chunks of a stream are counted; None for the threads of this process.
        progress: called as `progress(done, total)` after each chunk of a stream.
    Returns:
        A mapping from last token to its `PriorityGraph`: a dictionary, or `StoredGraphs`, which read a graph when it is asked for.
    """
    if isinstance(data, TokenStream | TextStream):
        if head is not None:
            raise reject("head", "left out for a stream, whose windows without their label are left out", "one")
        return stream_graphs(data, out, engine, progress)
    for argument, value in (("out", out), ("engine", engine), ("progress", progress)):
        if value is not None:
            raise reject(argument, "left out unless the data are a stream", repr(value))
    targets = separated_tokens(data, head)
    used = np.repeat(targets >= 0, data.lengths)
    last, heads = (np.repeat(ids, data.lengths)[used] for ids in (data.last, targets))
    return graphs_of_edges(last, heads, data.tokens[used], data.n_vocabulary)


@implements("C", "Assumption 2")
def separated_tokens(data: SequenceDataset, head: Any = None) -> IntArray:
    r"""(n_samples,) the token of each sequence that is to be separated from its others: the label, or the one that serves it best.

    .. math:: \hat y_i = y_i \ \text{if}\ y_i \in X_i, \qquad \hat y_i = \arg\max_{x \in X_i} c_{y_i}^\top e_x \ \text{otherwise}

    This is the remark after Assumption 2, for losses that fall with the label's output. Under C Eᵀ = I every token of such a sequence has
    the same output, none is better than another, and the sample has no gradient: -1.

    Args:
        head: C (n_vocabulary, d_model), or None for C Eᵀ = I. The smallest id counts where several scores are equal up to rounding.
    """
    as_sequences(data)
    targets, lacking = data.labels.copy(), data.unrealizable
    if not len(lacking):
        return targets
    targets[lacking] = -1
    if head is None:
        return targets
    C = real_array(head, "head", (data.n_vocabulary, data.d_model))
    for i in lacking.tolist():
        ids, y = data[i]
        tokens = np.unique(ids)
        score = data.E[tokens] @ C[y]
        noise = 8.0 * np.finfo(float).eps * float((np.abs(data.E[tokens]) @ np.abs(C[y])).max())
        best = score >= score.max() - noise
        targets[i] = -1 if best.all() and len(tokens) > 1 else tokens[np.argmax(best)]
    return targets
