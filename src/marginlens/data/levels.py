"""Labelled sequences by protocol: paper B's K-level data, and data in which one token of each sequence decides its label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.data.generators import as_generator
from marginlens.data.labelled import LabelledSequences
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import float_array, real_number, reject, whole_number
from marginlens.papers import implements

_FIGURE_2 = (0.45, 0.35, 0.3, 0.25, 0.2, 0.1, 0.05, 0.02)


@implements("B", "Eq. (33)", "Eq. (34)", "Eq. (35)")
@dataclass(frozen=True)
class Levels:
    r"""The K-level law of tokens given a label; its defaults are those of B's Figure 2, 2,048 tokens in 8 levels.

    .. math:: p(s|y) = \frac{1-\tilde\delta}{|\tilde S|}\ (s \in \tilde S),\quad
        \frac{\tilde\delta(1-\delta_k)}{\sum_k |S_k^y|}\ (s \in S_k^y),\quad
        \frac{\tilde\delta\,\delta_k}{\sum_k |S_k^{-y}|}\ (s \in S_k^{-y})

    Args:
        deltas: (n_levels,) δ_k, the chance of the opposite label where a token of level k stands; each between 0 and 1.
        sizes: (n_levels,) tokens of each level and sign; 4 + 2^k for level k = 1, 2, … by default, so that the parts add up to 2,048.
        n_irrelevant: tokens that say nothing. share: δ~, the chance that a position holds a token of some level.

    Ids count the irrelevant tokens first, then for each level its positive and its negative tokens. The third row has δ~ where the paper
    prints δ: only so do the chances add up to one.
    """

    deltas: tuple[float, ...] = _FIGURE_2
    sizes: tuple[int, ...] = ()
    n_irrelevant: int = 964
    share: float = 0.05

    def __post_init__(self) -> None:
        deltas = tuple(np.atleast_1d(float_array(self.deltas, "deltas", "numbers from 0 to 1")).reshape(-1).tolist())
        if not deltas or not all(0.0 <= one <= 1.0 for one in deltas):
            raise reject("deltas", "at least one number, each from 0 to 1", self.deltas)
        if not isinstance(self.sizes, Sequence | np.ndarray) or getattr(self.sizes, "ndim", 1) != 1:
            raise reject("sizes", "whole numbers, one for each level", repr(self.sizes))
        sizes = tuple(self.sizes) or tuple(4 + 2 ** (k + 1) for k in range(len(deltas)))
        if len(sizes) != len(deltas):
            raise reject("sizes", f"one size for each of the {len(deltas)} levels", f"{len(sizes)} sizes")
        object.__setattr__(self, "deltas", deltas)
        object.__setattr__(self, "sizes", tuple(whole_number(one, "sizes", at_least=1) for one in sizes))
        whole_number(self.n_irrelevant, "n_irrelevant", at_least=0)
        expected = "between 0 and 1, and 1 exactly when there are no irrelevant tokens"
        share = real_number(self.share, "share", expected)
        if not 0.0 < share <= 1.0 or (share < 1.0) != (self.n_irrelevant > 0):
            raise reject("share", expected, f"{self.share} with {self.n_irrelevant} irrelevant tokens")

    @property
    def n_vocabulary(self) -> int:
        """All tokens, |S|."""
        return self.n_irrelevant + 2 * sum(self.sizes)

    @cached_property
    def level(self) -> IntArray:
        """(n_vocabulary,) the level of each token, from 1; 0 for irrelevant tokens."""
        relevant = np.repeat(np.arange(1, len(self.sizes) + 1), 2 * np.array(self.sizes))
        return np.concatenate([np.zeros(self.n_irrelevant, dtype=np.int64), relevant])

    @cached_property
    def sign(self) -> IntArray:
        """(n_vocabulary,) +1 for positive tokens, -1 for negative ones, 0 for irrelevant ones."""
        relevant = [np.repeat([1, -1], size) for size in self.sizes]
        return np.concatenate([np.zeros(self.n_irrelevant, dtype=np.int64), *relevant])

    def chances(self, y: int) -> FloatArray:
        """(n_vocabulary,) p(s|y) of Eq. (34)."""
        if not isinstance(y, int | float | np.number) or y not in (-1, 1):
            raise reject("y", "a label, -1 or +1", repr(y))
        delta = np.concatenate([[0.5], self.deltas])[self.level]
        relevant = self.share * np.where(self.sign == y, 1.0 - delta, delta) / sum(self.sizes)
        return np.where(self.sign == 0, (1.0 - self.share) / max(self.n_irrelevant, 1), relevant)

    @cached_property
    def posterior_difference(self) -> FloatArray:
        """(n_vocabulary,) p(+1|s) - p(-1|s) under Eq. (35), when both labels are equally likely."""
        delta = np.concatenate([[0.5], self.deltas])[self.level]
        return self.sign * (1.0 - 2.0 * delta)

    def __repr__(self) -> str:
        return f"Levels({len(self.deltas)} levels of {sum(self.sizes)} + {sum(self.sizes)} tokens, {self.n_irrelevant} irrelevant)"


@implements("B", "Eq. (34)")
def level_sequences(n_samples: int, n_tokens: int, rng: Any, levels: Levels | None = None) -> LabelledSequences:
    r"""Sequences of the K-level model: a fair label, then every token independently from p(s|y).

    .. math:: y_i \sim \mathrm{Unif}\{-1, +1\}, \quad x_{it} \sim p(\cdot | y_i)

    Args:
        n_samples: n. n_tokens: T, the length of every sequence (256 in Figure 2).
        rng: a `numpy.random.Generator`, or a whole number to seed one.
        levels: the law; that of Figure 2 by default.
    Returns:
        Labelled sequences whose ids are those of `levels`; check them with `token_statistics`.
    """
    n, T = whole_number(n_samples, "n_samples", at_least=1), whole_number(n_tokens, "n_tokens", at_least=1)
    law, generator = Levels() if levels is None else levels, as_generator(rng)
    if not isinstance(law, Levels):
        raise reject("levels", "Levels or None", repr(levels))
    y = generator.choice([-1.0, 1.0], size=n)
    tokens = np.empty((n, T), dtype=np.int64)
    for label in (-1, 1):
        edges = np.cumsum(law.chances(label))
        drawn = generator.random((int(np.sum(y == label)), T)) * edges[-1]
        tokens[y == label] = np.minimum(np.searchsorted(edges, drawn, side="right"), law.n_vocabulary - 1)
    return LabelledSequences.of_positions(tokens.reshape(-1), np.arange(0, n * T + 1, T), y, law.n_vocabulary)


@implements("B", "Assumption 4")
def balanced_sequences(
    n_samples: int, n_tokens: int, n_important: int, n_irrelevant: int, rng: Any
) -> LabelledSequences:
    r"""Random sequences with one token that decides the label, all others being irrelevant to the count.

    .. math:: \alpha_s = 0 \ (s\ \text{irrelevant}), \quad
        |\{t : x_{it}\ \text{completely positive}\}| = 1_{y_i = 1}, \quad |\{t : x_{it}\ \text{completely negative}\}| = 1_{y_i = -1}

    Half of the labels are +1. The irrelevant tokens of the positive sequences are dealt out again, in random order, to the negative ones.

    Args:
        n_samples: n, even. n_tokens: T ≥ 2, the length of every sequence.
        n_important: completely positive tokens, ids 0 to `n_important` - 1, and as many completely negative ones, the next ids.
        n_irrelevant: irrelevant tokens, the last ids. rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        Labelled sequences in which every id occurs; `check_assumption_4` accepts them.
    """
    n, T = whole_number(n_samples, "n_samples", at_least=2), whole_number(n_tokens, "n_tokens", at_least=2)
    important = whole_number(n_important, "n_important", at_least=1)
    irrelevant = whole_number(n_irrelevant, "n_irrelevant", at_least=1)
    half = n // 2
    if n % 2:
        raise reject("n_samples", "even, so that tokens can balance", n)
    if important > half:
        raise reject("n_important", f"at most n_samples / 2 = {half}, as every token occurs", important)
    if irrelevant > half * (T - 1):
        raise reject(
            "n_irrelevant", f"at most {half * (T - 1)}, the positions they have in positive sequences", irrelevant
        )
    generator = as_generator(rng)
    dealt = np.concatenate([np.arange(irrelevant), generator.integers(irrelevant, size=half * (T - 1) - irrelevant)])
    rest = [generator.permutation(dealt).reshape(half, T - 1) + 2 * important for _ in range(2)]
    decisive = [generator.permutation(np.arange(half) % important) + side * important for side in range(2)]
    tokens = np.concatenate([np.column_stack(both) for both in zip(decisive, rest, strict=True)])
    place = generator.integers(T, size=n)  # the decisive token trades places with one of its sequence
    rows = np.arange(n)
    tokens[rows, 0], tokens[rows, place] = tokens[rows, place].copy(), tokens[rows, 0].copy()
    order = generator.permutation(n)
    y = np.repeat([1.0, -1.0], half)[order]
    return LabelledSequences.of_positions(
        tokens[order].reshape(-1).astype(np.int64), np.arange(0, n * T + 1, T), y, 2 * important + irrelevant
    )
