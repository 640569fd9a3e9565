"""Random sequence datasets by protocol: acyclic, cyclic and ordered sequences of paper C, and the K-level data of paper B."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from marginlens.data.labelled import LabelledSequences
from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.errors import InputError, array_of_any, float_array, real_number, whole_number
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray, IntArray, Seed

# Datasets that are drawn before a rare kind is given up.
_MAX_DRAWS = 10_000


@implements("C", "App. D")
def acyclic_sequences(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Seed) -> SequenceDataset:
    r"""Draw random sequences whose label is their token of highest priority under one random order: the data of C's Figure 3.

    .. math:: e_k \sim \mathrm{Unif}(S^{d-1}), \quad x_{it} \sim \mathrm{Unif}[K], \quad y_i = \arg\max_{x \in X_i} \pi(x)

    Args:
        n_vocabulary: K.

        d_model: d.

        n_samples: n.

        n_tokens: T, the length of every sequence.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

    Returns:
        A dataset whose priority graphs are all acyclic.
    """
    sizes = checked_sizes(n_vocabulary, d_model, n_samples, n_tokens)
    generator = as_generator(rng)
    return ordered_sequences(generator.permutation(sizes[0]), d_model, n_samples, n_tokens, generator)


def ordered_sequences(order: ArrayLike, d_model: int, n_samples: int, n_tokens: int, rng: Seed) -> SequenceDataset:
    """Draw random sequences whose label is their first token in a given order.

    Args:
        order: (n_vocabulary,) every id once, highest priority first.

    Returns:
        A dataset as from `acyclic_sequences`, with this order instead of a random one.
    """
    ids = array_of_any(order, "order", "every id from 0 to n_vocabulary - 1 once, highest priority first")
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not np.array_equal(np.sort(ids), np.arange(len(ids))):
        raise InputError("order", "every id from 0 to n_vocabulary - 1 once, highest priority first", f"{order!r}")
    K, d, n, T = checked_sizes(len(ids), d_model, n_samples, n_tokens)
    generator = as_generator(rng)
    E = unit_rows(K, d, generator)
    sequences = generator.integers(K, size=(n, T))
    rank = np.argsort(ids)
    return SequenceDataset(sequences, _first_by(rank[sequences], sequences), E)


@implements("C", "App. D")
def cyclic_sequences(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Seed) -> SequenceDataset:
    r"""Draw random sequences with random labels until at least two tokens have equal priority: the data of C's Figure 4.

    .. math:: e_k \sim \mathrm{Unif}(S^{d-1}), \quad x_{it} \sim \mathrm{Unif}[K], \quad y_i \sim \mathrm{Unif}\{x_{i1}, \dots, x_{iT}\}

    A label is uniform among the different tokens of its own sequence. The paper's text draws it from the whole vocabulary, but
    Assumption 2 requires a label that the sequence holds. Sequences and labels are drawn again until some component has two
    tokens.

    Args:
        n_vocabulary: K.

        d_model: d.

        n_samples: n.

        n_tokens: T, the length of every sequence.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

    Returns:
        A dataset with at least one component of two or more tokens.
    """
    K, d, n, T = checked_sizes(n_vocabulary, d_model, n_samples, n_tokens)
    check_can_be_cyclic(K, n, T)
    generator = as_generator(rng)

    def draw() -> tuple[IntArray, IntArray]:
        sequences = generator.integers(K, size=(n, T))
        # An order for each sequence.
        rank = np.argsort(generator.random((n, K)), axis=1)
        return sequences, _first_by(np.take_along_axis(rank, sequences, axis=1), sequences)

    return redrawn(unit_rows(K, d, generator), draw, cyclic=True)


def redrawn(E: FloatArray, draw: Callable[[], tuple[IntArray, IntArray]], *, cyclic: bool) -> SequenceDataset:
    """Draw until a dataset is cyclic, or until it is not."""
    for _ in range(_MAX_DRAWS):
        sequences, labels = draw()
        if _some_tie(sequences, labels, len(E)) is cyclic:
            return SequenceDataset(sequences, labels, E)
    kind = "with tokens of equal priority" if cyclic else "without tokens of equal priority"
    sizes = f"n_samples = {len(labels)} and n_tokens = {sequences.shape[1]} over {len(E)} tokens"
    raise InputError("n_samples", f"so that random datasets are likely {kind}", f"none of {_MAX_DRAWS} with {sizes}")


def _some_tie(sequences: IntArray, labels: IntArray, n_vocabulary: int) -> bool:
    """Return whether, for some last token, two tokens lead to each other by edges from label to token."""
    # A node for each last token and token.
    size = n_vocabulary**2
    heads = np.repeat(sequences[:, -1] * n_vocabulary + labels, sequences.shape[1])
    tails = (sequences[:, -1:] * n_vocabulary + sequences).reshape(-1)
    edges = scipy.sparse.coo_array((np.ones(len(heads)), (heads, tails)), shape=(size, size))
    n_components, _ = scipy.sparse.csgraph.connected_components(edges, connection="strong")
    return bool(n_components < size)


def checked_sizes(*sizes: int) -> tuple[int, ...]:
    names = ("n_vocabulary", "d_model", "n_samples", "n_tokens")
    return tuple(whole_number(size, name, at_least=1) for size, name in zip(sizes, names, strict=True))


def check_can_be_cyclic(n_vocabulary: int, n_samples: int, n_tokens: int) -> None:
    """Raise unless a tie is possible, which takes two sequences with two tokens each."""
    for name, size in (("n_vocabulary", n_vocabulary), ("n_samples", n_samples), ("n_tokens", n_tokens)):
        if size < 2:
            raise InputError(name, "at least 2, for tokens of equal priority to be possible", size)


def _first_by(rank: IntArray, sequences: IntArray) -> IntArray:
    """Return the token of the smallest rank in each sequence (n_samples,)."""
    return sequences[np.arange(len(sequences)), np.argmin(rank, axis=1)]


def unit_rows(count: int, width: int, generator: np.random.Generator) -> FloatArray:
    rows = generator.standard_normal((count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


_FIGURE_2 = (0.45, 0.35, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02)


@implements("B", "Eq. (33)", "Eq. (34)", "Eq. (35)")
@dataclass(frozen=True)
class Levels:
    r"""The K-level law of tokens given a label; its defaults are those of B's Figure 2, 2,048 tokens in 8 levels.

    .. math:: p(s|y) = \frac{1-\tilde\delta}{|\tilde S|}\ (s \in \tilde S),\quad
        \frac{\tilde\delta(1-\delta_k)}{\sum_k |S_k^y|}\ (s \in S_k^y),\quad
        \frac{\tilde\delta\,\delta_k}{\sum_k |S_k^{-y}|}\ (s \in S_k^{-y})

    Args:
        deltas: (n_levels,) δ_k, the chance of the opposite label given a token of level k; each between 0 and 1.

        sizes: (n_levels,) the number of tokens of each level and sign; by default 4 + 2^k for level k = 1, 2, …, which makes
            2,048 in all.

        n_irrelevant: the number of tokens that carry no information about the label.

        share: δ~, the probability that a position holds a token of some level.

    Ids count the irrelevant tokens first, then for each level its positive and its negative tokens. The third formula has δ~
    instead of the paper's δ; otherwise the probabilities would not add up to one.
    """

    deltas: tuple[float, ...] = _FIGURE_2
    sizes: tuple[int, ...] = ()
    n_irrelevant: int = 964
    share: float = 0.05

    def __post_init__(self) -> None:
        deltas = tuple(np.atleast_1d(float_array(self.deltas, "deltas", "numbers from 0 to 1")).reshape(-1).tolist())
        if not deltas or not all(0.0 <= delta <= 1.0 for delta in deltas):
            raise InputError("deltas", "at least one number, each from 0 to 1", self.deltas)
        if not isinstance(self.sizes, Sequence | np.ndarray) or getattr(self.sizes, "ndim", 1) != 1:
            raise InputError("sizes", "whole numbers, one for each level", repr(self.sizes))
        sizes = tuple(self.sizes) or tuple(4 + 2 ** (k + 1) for k in range(len(deltas)))
        if len(sizes) != len(deltas):
            raise InputError("sizes", f"one size for each of the {len(deltas)} levels", f"{len(sizes)} sizes")
        object.__setattr__(self, "deltas", deltas)
        object.__setattr__(self, "sizes", tuple(whole_number(size, "sizes", at_least=1) for size in sizes))
        whole_number(self.n_irrelevant, "n_irrelevant", at_least=0)
        expected = "between 0 and 1, and 1 exactly when there are no irrelevant tokens"
        share = real_number(self.share, "share", expected)
        if not 0.0 < share <= 1.0 or (share < 1.0) != (self.n_irrelevant > 0):
            raise InputError("share", expected, f"{self.share} with {self.n_irrelevant} irrelevant tokens")

    @property
    def n_vocabulary(self) -> int:
        """The size of S, the set of all tokens."""
        return self.n_irrelevant + 2 * sum(self.sizes)

    @cached_property
    def level(self) -> IntArray:
        """The level of each token, from 1, (n_vocabulary,); 0 for irrelevant tokens."""
        relevant = np.repeat(np.arange(1, len(self.sizes) + 1), 2 * np.array(self.sizes))
        return np.concatenate([np.zeros(self.n_irrelevant, dtype=np.int64), relevant])

    @cached_property
    def sign(self) -> IntArray:
        """The sign of each token, (n_vocabulary,): +1 if positive, -1 if negative, 0 if irrelevant."""
        relevant = [np.repeat([1, -1], size) for size in self.sizes]
        return np.concatenate([np.zeros(self.n_irrelevant, dtype=np.int64), *relevant])

    def chances(self, y: int) -> FloatArray:
        """Return p(s|y) of Eq. (34) for every token, (n_vocabulary,)."""
        if not isinstance(y, int | float | np.number) or y not in (-1, 1):
            raise InputError("y", "a label, -1 or +1", repr(y))
        delta = np.concatenate([[0.5], self.deltas])[self.level]
        relevant = self.share * np.where(self.sign == y, 1.0 - delta, delta) / sum(self.sizes)
        return np.where(self.sign == 0, (1.0 - self.share) / max(self.n_irrelevant, 1), relevant)

    @cached_property
    def posterior_difference(self) -> FloatArray:
        """The difference p(+1|s) - p(-1|s) of each token under Eq. (35), (n_vocabulary,), if both labels are equally likely."""
        delta = np.concatenate([[0.5], self.deltas])[self.level]
        return self.sign * (1.0 - 2.0 * delta)

    def __repr__(self) -> str:
        return f"Levels({len(self.deltas)} levels of {sum(self.sizes)} + {sum(self.sizes)} tokens, {self.n_irrelevant} irrelevant)"


@implements("B", "Eq. (34)")
def level_sequences(n_samples: int, n_tokens: int, rng: Seed, levels: Levels | None = None) -> LabelledSequences:
    r"""Draw sequences of the K-level model: a fair label, then every token independently from p(s|y).

    .. math:: y_i \sim \mathrm{Unif}\{-1, +1\}, \quad x_{it} \sim p(\cdot | y_i)

    Args:
        n_samples: n.

        n_tokens: T, the length of every sequence (256 in Figure 2).

        rng: a `numpy.random.Generator`, or a whole number to seed one.

        levels: the law; that of Figure 2 by default.

    Returns:
        Labelled sequences whose ids are those of `levels`; check them with `token_statistics`.
    """
    n, T = whole_number(n_samples, "n_samples", at_least=1), whole_number(n_tokens, "n_tokens", at_least=1)
    law, generator = Levels() if levels is None else levels, as_generator(rng)
    if not isinstance(law, Levels):
        raise InputError("levels", "Levels or None", repr(levels))
    y = generator.choice([-1.0, 1.0], size=n)
    tokens = np.empty((n, T), dtype=np.int64)
    for label in (-1, 1):
        edges = np.cumsum(law.chances(label))
        drawn = generator.random((int(np.sum(y == label)), T)) * edges[-1]
        tokens[y == label] = np.minimum(np.searchsorted(edges, drawn, side="right"), law.n_vocabulary - 1)
    return LabelledSequences.of_positions(tokens.reshape(-1), np.arange(0, n * T + 1, T), y, law.n_vocabulary)
