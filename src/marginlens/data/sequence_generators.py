"""Random next-token data by protocol, and the example of paper C's Figure 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from marginlens.data.generators import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import InputError, array_of_any, reject, whole_number
from marginlens.papers import implements

_DRAWS = 10_000  # datasets that are drawn before a rare kind is given up


@implements("C", "App. D")
def acyclic_sequences(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any) -> SequenceDataset:
    r"""Random sequences whose label is their token of highest priority under one random order: the data of C's Figure 3.

    .. math:: e_k \sim \mathrm{Unif}(S^{d-1}), \quad x_{it} \sim \mathrm{Unif}[K], \quad y_i = \arg\max_{x \in X_i} \pi(x)

    Args:
        n_vocabulary: K. d_model: d. n_samples: n. n_tokens: T, the length of every sequence.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A dataset whose priority graphs are all acyclic.
    """
    sizes = _sizes(n_vocabulary, d_model, n_samples, n_tokens)
    generator = as_generator(rng)
    return ordered_sequences(generator.permutation(sizes[0]), d_model, n_samples, n_tokens, generator)


def ordered_sequences(order: Any, d_model: int, n_samples: int, n_tokens: int, rng: Any) -> SequenceDataset:
    """Random sequences whose label is their first token in a given order.

    Args:
        order: (n_vocabulary,) every id once, highest priority first.
    Returns:
        What `acyclic_sequences` gives, with this order in place of a random one.
    """
    ids = array_of_any(order, "order", "every id from 0 to n_vocabulary - 1 once, highest priority first")
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not np.array_equal(np.sort(ids), np.arange(len(ids))):
        raise reject("order", "every id from 0 to n_vocabulary - 1 once, highest priority first", f"{order!r}")
    K, d, n, T = _sizes(len(ids), d_model, n_samples, n_tokens)
    generator = as_generator(rng)
    E = _unit_rows(K, d, generator)
    sequences = generator.integers(K, size=(n, T))
    rank = np.argsort(ids)
    return SequenceDataset(sequences, _first_by(rank[sequences], sequences), E)


@implements("C", "App. D")
def cyclic_sequences(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any) -> SequenceDataset:
    r"""Random sequences with random labels, at least two tokens of which are of equal priority: the data of C's Figure 4.

    .. math:: e_k \sim \mathrm{Unif}(S^{d-1}), \quad x_{it} \sim \mathrm{Unif}[K], \quad y_i \sim \mathrm{Unif}\{x_{i1}, \dots, x_{iT}\}

    A label is uniform among the different tokens of its own sequence: the text draws it from the whole vocabulary, and Assumption 2
    asks for one that the sequence holds. Sequences and labels are drawn again until some component has two tokens.

    Args:
        n_vocabulary: K. d_model: d. n_samples: n. n_tokens: T, the length of every sequence.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A dataset with at least one component of two or more tokens.
    """
    K, d, n, T = _sizes(n_vocabulary, d_model, n_samples, n_tokens)
    _check_can_be_cyclic(K, n, T)
    generator = as_generator(rng)

    def draw() -> tuple[IntArray, IntArray]:
        sequences = generator.integers(K, size=(n, T))
        rank = np.argsort(generator.random((n, K)), axis=1)  # an order for each sequence
        return sequences, _first_by(np.take_along_axis(rank, sequences, axis=1), sequences)

    return _redrawn(_unit_rows(K, d, generator), draw, cyclic=True)


@implements("C", "App. D")
def random_sequences(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any) -> SequenceDataset:
    """Random sequences, each labelled by one of its different tokens at random: any dataset, cyclic or not. C's Figures 5 and 6."""
    K, d, n, T = _sizes(n_vocabulary, d_model, n_samples, n_tokens)
    generator = as_generator(rng)
    E = _unit_rows(K, d, generator)
    sequences = generator.integers(K, size=(n, T))
    return SequenceDataset(sequences, [generator.choice(np.unique(one)) for one in sequences], E)


@implements("C", "App. D")
def acyclic_sequences_as_coded(
    n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any
) -> SequenceDataset:
    """Acyclic data as the authors' code makes them: no token twice in a sequence, random labels, drawn again until no tokens tie.

    Args and Returns as in `acyclic_sequences`; a sequence cannot be longer than the vocabulary is large. Labels need not follow one
    order: every last token has its own.
    """
    return _as_coded(_sizes(n_vocabulary, d_model, n_samples, n_tokens), rng, cyclic=False)


@implements("C", "App. D")
def cyclic_sequences_as_coded(
    n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any
) -> SequenceDataset:
    """Cyclic data as the authors' code makes them: no token twice in a sequence, random labels, drawn again until some tokens tie.

    Args and Returns as in `cyclic_sequences`; a sequence cannot be longer than the vocabulary is large.
    """
    sizes = _sizes(n_vocabulary, d_model, n_samples, n_tokens)
    _check_can_be_cyclic(sizes[0], sizes[2], sizes[3])
    return _as_coded(sizes, rng, cyclic=True)


@implements("C", "Fig 2")
def figure_2() -> SequenceDataset:
    """Seven sequences over four tokens with all that the text says of C's Figure 2; the sequences themselves are ours.

    Samples 1 to 3 end in e_1 and rank all four tokens: e_4, e_2, e_3, e_1. Samples 4 to 7 end in e_2 and leave e_1, e_2 and e_3
    equal, above e_4. The last sample has O = {3} and R = {1, 3}. Ids count from 0, so e_1 is token 0; embeddings are unit vectors.
    """
    sequences = [[2, 4, 1], [3, 2, 1], [1, 3, 1], [3, 1, 2], [1, 4, 2], [2, 3, 2], [1, 4, 2]]
    labels = [4, 2, 3, 3, 1, 2, 2]
    return SequenceDataset(np.array(sequences) - 1, np.array(labels) - 1, np.eye(4))


def _as_coded(sizes: tuple[int, int, int, int], rng: Any, *, cyclic: bool) -> SequenceDataset:
    K, d, n, T = sizes
    if T > K:
        raise reject("n_tokens", f"at most n_vocabulary = {K}, as no token occurs twice in a sequence", T)
    generator = as_generator(rng)

    def draw() -> tuple[IntArray, IntArray]:
        sequences = np.argsort(generator.random((n, K)), axis=1)[:, :T]
        return sequences, sequences[np.arange(n), generator.integers(T, size=n)]

    return _redrawn(_unit_rows(K, d, generator), draw, cyclic=cyclic)


def _redrawn(E: FloatArray, draw: Callable[[], tuple[IntArray, IntArray]], *, cyclic: bool) -> SequenceDataset:
    """The first drawn dataset that is cyclic, or that is not."""
    for _ in range(_DRAWS):
        sequences, labels = draw()
        if _some_tie(sequences, labels, len(E)) is cyclic:
            return SequenceDataset(sequences, labels, E)
    kind = "with tokens of equal priority" if cyclic else "without tokens of equal priority"
    sizes = f"n_samples = {len(labels)} and n_tokens = {sequences.shape[1]} over {len(E)} tokens"
    raise InputError(f"None of {_DRAWS} random datasets with {sizes} is {kind}; choose sizes that make one likely.")


def _some_tie(sequences: IntArray, labels: IntArray, n_vocabulary: int) -> bool:
    """Whether, for some last token, two tokens lead to each other by edges from label to token."""
    size = n_vocabulary**2  # a node for each last token and token
    heads = np.repeat(sequences[:, -1] * n_vocabulary + labels, sequences.shape[1])
    tails = (sequences[:, -1:] * n_vocabulary + sequences).reshape(-1)
    edges = coo_array((np.ones(len(heads)), (heads, tails)), shape=(size, size))
    n_components, _ = connected_components(edges, connection="strong")
    return bool(n_components < size)


def _sizes(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int) -> tuple[int, int, int, int]:
    return (
        whole_number(n_vocabulary, "n_vocabulary", at_least=1),
        whole_number(d_model, "d_model", at_least=1),
        whole_number(n_samples, "n_samples", at_least=1),
        whole_number(n_tokens, "n_tokens", at_least=1),
    )


def _check_can_be_cyclic(n_vocabulary: int, n_samples: int, n_tokens: int) -> None:
    """A tie takes two sequences, each with two tokens."""
    for name, size in (("n_vocabulary", n_vocabulary), ("n_samples", n_samples), ("n_tokens", n_tokens)):
        if size < 2:
            raise reject(name, "at least 2, for tokens of equal priority to be possible", size)


def _first_by(rank: IntArray, sequences: IntArray) -> IntArray:
    """(n_samples,) the token of the smallest rank in each sequence."""
    return sequences[np.arange(len(sequences)), np.argmin(rank, axis=1)]


def _unit_rows(count: int, width: int, generator: np.random.Generator) -> FloatArray:
    rows = generator.standard_normal((count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
