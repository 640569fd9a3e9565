"""Token-priority graphs of a dataset or of chunks of a text, and the sequences behind them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, overload

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.errors import InputError, real_array
from marginlens.graphs.counting import count_windows, window_evidence
from marginlens.graphs.priority import Evidence, PriorityGraph, graphs_of_edges, sequence_evidence
from marginlens.papers import implements
from marginlens.typing import ArrayLike, IntArray


@overload
def priority_graphs(data: SequenceDataset, *, head: ArrayLike | None = None) -> dict[int, PriorityGraph]: ...
@overload
def priority_graphs(
    data: Iterable[ArrayLike], *, window: int, separator: int | None = None
) -> dict[int, PriorityGraph]: ...
@implements("C", "§3.1")
def priority_graphs(
    data: SequenceDataset | Iterable[ArrayLike],
    *,
    head: ArrayLike | None = None,
    window: int | None = None,
    separator: int | None = None,
) -> dict[int, PriorityGraph]:
    """Make the token-priority graph of every last token that occurs, from the labels of the data.

    For each sequence ending in k with label y, the graph of k has an edge from y to every other token of the sequence. This takes time
    linear in the number of positions. If a sequence lacks its label, its edges start at the token that `separated_tokens`
    gives. Without such a token the sequence is left out, and so is a last token that only such sequences have.

    A text that does not fit in memory can be given in chunks, whose counts are added. Its sequences are all windows of `window`
    tokens, including those across the ends of chunks, each with its next token as label. Windows that lack their next token are
    left out. Memory grows with the number of different triples of last token, label and other token, not with the text.

    Args:
        data: sequences and their labels; or an iterable of chunks, arrays (n_tokens,) of token ids that are consecutive pieces of a
            text, such as `marginlens.data.TextTokens`.

        head: C (n_vocabulary, d_model), which matters only for sequences without their label; None for C Eᵀ = I. Must be None
            for chunks.

        window: T, the number of tokens in each window of a text in chunks.

        separator: an id that separates texts in chunks and belongs to none of them, such as an end-of-text token; no window
            holds it.

    Returns:
        A dictionary from last token to `PriorityGraph`.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> data = ml.SequenceDataset([[0, 1, 2], [2, 0, 2]], [1, 0], np.eye(3))
        >>> graph = ml.priority_graphs(data)[2]
        >>> graph
        PriorityGraph(last=2, 3 tokens, 3 edges, 3 components, 3 strict)
        >>> graph.edges.tolist()  # 0 above 2, 1 above 0, 1 above 2
        [[0, 2], [1, 0], [1, 2]]
    """
    if not isinstance(data, SequenceDataset):
        if head is not None:
            raise InputError("head", "left out for chunks, whose windows without their label are left out", "one")
        return count_windows(_chunks(data), _window(window), separator).graphs()
    _refuse_chunk_options(window, separator)
    targets = separated_tokens(data, head)
    used = np.repeat(targets >= 0, data.lengths)
    last, heads = (np.repeat(ids, data.lengths)[used] for ids in (data.last, targets))
    return graphs_of_edges(last, heads, data.tokens[used], data.n_vocabulary)


def ranking_evidence(
    data: SequenceDataset | Iterable[ArrayLike],
    graph: PriorityGraph,
    *,
    window: int | None = None,
    separator: int | None = None,
) -> Evidence:
    """Collect the sequences of a dataset, or the windows of a text in chunks, behind the strict pairs of a priority graph.

    Args:
        data: as in `priority_graphs`.

        window: as in `priority_graphs`.

        separator: as in `priority_graphs`.

        graph: one of `priority_graphs(data)`. Its `counts` count positions; here a sequence that holds a token twice counts
            once, and a sequence that lacks its label does not count.

    Returns:
        The evidence. For chunks, which are read once, `first` is the index of the window's first token among all tokens.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.graphs import ranking_evidence
        >>> data = ml.SequenceDataset([[0, 1, 2], [0, 1, 2]], [1, 1], np.eye(3))
        >>> evidence = ranking_evidence(data, ml.priority_graphs(data)[2])
        >>> evidence.pairs.tolist(), evidence.samples.tolist()
        ([[1, 0], [1, 2]], [2, 2])
    """
    if not isinstance(data, SequenceDataset):
        return window_evidence(_chunks(data), graph, _window(window), separator)
    _refuse_chunk_options(window, separator)
    return sequence_evidence(data, graph)


def _chunks(data: object) -> Iterable[Any]:
    """Return the chunks of a text if they are iterable."""
    if not isinstance(data, Iterable) or isinstance(data, str | bytes):
        raise InputError("data", "a SequenceDataset, or chunks of token ids", type(data).__name__)
    return data


def _window(window: int | None) -> int:
    if window is None:
        raise InputError("window", "given for chunks of a text, the tokens of each window", "none")
    return window


def _refuse_chunk_options(window: int | None, separator: int | None) -> None:
    for argument, value in (("window", window), ("separator", separator)):
        if value is not None:
            raise InputError(argument, "left out unless the data are chunks of a text", repr(value))


@implements("C", "Assumption 2")
def separated_tokens(data: SequenceDataset, head: ArrayLike | None = None) -> IntArray:
    r"""Find the token of each sequence to separate from its others: the label, or the token that serves the label best.

    .. math:: \hat y_i = y_i \ \text{if}\ y_i \in X_i, \qquad \hat y_i = \arg\max_{x \in X_i} c_{y_i}^\top e_x \ \text{otherwise}

    This is the remark after Assumption 2, for losses that decrease in the label's output. Under C Eᵀ = I, all tokens of a
    sequence without its label have the same output; the sample then has no gradient, and its entry is -1.

    Args:
        data: the sequences with their labels.

        head: C of shape (n_vocabulary, d_model), or None for C Eᵀ = I. The smallest id counts if scores are equal up to rounding.

    Returns:
        (n_samples,) tokens, -1 if there is none.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.graphs import separated_tokens
        >>> data = ml.SequenceDataset([[0, 1], [0, 1]], [1, 2], np.eye(3), unrealizable="keep")
        >>> separated_tokens(data)
        array([ 1, -1])
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
