"""Theorems 4 and 7 ask for scores without ties and keys in general position; Lemmas 2 and 11 build a separator from the head."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, islice
from math import comb
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, whole_number
from marginlens.papers import implements
from marginlens.theory.assumptions import strict_optimum
from marginlens.theory.checks import Check
from marginlens.theory.optimality import one_problem
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import FloatArray

GENERAL_POSITION_RTOL = 1e-9  # singular value or distance up to which rounding may hide a degenerate position
_MATRICES_AT_ONCE = 4096  # that are decomposed together


@implements("A", "Thm 4")
def check_distinct_scores(data: TokenDataset, head: Any) -> Check | Any:
    r"""Whether no two tokens of an input score the same.

    .. math:: \gamma_{it} \ne \gamma_{i\tau} \quad \text{for all } t \ne \tau

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """
    return ScoredTokens(data, head).each(_distinct_scores)


def _distinct_scores(problem: ScoredTokens) -> Check:
    scores, blur = np.where(problem.data.mask, problem.scores, np.inf), problem.blur
    order = np.argsort(scores, axis=-1, kind="stable")
    scores, blur = np.take_along_axis(scores, order, axis=-1), np.take_along_axis(blur, order, axis=-1)
    with np.errstate(invalid="ignore"):
        steps = np.diff(scores, axis=-1)
    real = np.isfinite(steps)
    gap = float(np.min(steps[real], initial=np.inf))
    holds = bool(np.all(steps[real] > (blur[..., 1:] + blur[..., :-1])[real]))
    return Check("claim.distinct_scores", holds, {"smallest_gap": gap})


@implements("A", "Thm 7")
def check_general_position(data: TokenDataset, *, max_problems: int = 50_000, rng: Any = 0) -> Check:
    r"""Whether key differences to one selected token per input are as independent as their number allows.

    .. math:: \mathrm{rank}\, \bar K = d \ \text{for all } \bar K \in \mathbb R^{d \times d}, \qquad
        \mathbf 1 \notin \mathrm{range}\, \bar K \ \text{for all } \bar K \in \mathbb R^{(d+1) \times d},
        \qquad \text{rows } k_{it} - k_{i\alpha_i}

    A matrix takes all its rows of one input from the same selected token; rows from several would be dependent whatever the keys.
    If all rows together are fewer than d, they must be independent, which is what the proof uses. The rank depends on which tokens of
    an input are compared and not on which of them is the selected one, so these are counted once.

    Args:
        data: one problem.
        max_problems: the largest number of matrices of each kind that are examined.
        rng: for the sample that is taken if there are more: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `Check` with singular_value, the smallest one met of a matrix with unit rows; distance, the smallest one met from the
        normalised vector of ones to a range (inf if there are too few rows); looked_at and matrices. A sample can only refute,
        and the sentence says when it was one.
    """
    lengths = [int(n) for n in one_problem(data).lengths]
    whole_number(max_problems, "max_problems", at_least=1)
    generator, n_rows = as_generator(rng), sum(lengths) - len(lengths)
    heights = min(data.d_key, n_rows), data.d_key + 1
    square = (
        _coefficient([[comb(T, k + 1) if k else 1 for k in range(T)] for T in lengths], heights[0]) if n_rows else 0
    )
    tall = _coefficient([[T * comb(T - 1, k) if k else 1 for k in range(T)] for T in lengths], heights[1])
    smallest, looked_at, counts = [np.inf, np.inf], 0, (square, tall)
    for kind, (count, height, measure) in enumerate(
        zip(counts, heights, (_singular_value, _distance_of_ones), strict=True)
    ):
        if count == 0:
            continue
        listed = (
            _every(lengths, height, kind == 1)
            if count <= max_problems
            else _sample(lengths, height, max_problems, generator)
        )
        while chunk := list(islice(listed, _MATRICES_AT_ONCE)):
            names = np.array(chunk)  # (count, height, 3): input, selected token, other token
            looked_at += len(names)
            smallest[kind] = min(
                smallest[kind], measure(data.K[names[..., 0], names[..., 2]] - data.K[names[..., 0], names[..., 1]])
            )
    how = "all" if max(counts) <= max_problems else "sample"
    numbers = {
        "case": f"{how}_with_ones" if np.isfinite(smallest[1]) else how,
        "singular_value": float(smallest[0]),
        "distance": float(smallest[1]),
        "looked_at": float(looked_at),
        "matrices": float(sum(counts)),
    }
    return Check("claim.general_position", min(smallest) > GENERAL_POSITION_RTOL, numbers)


def _coefficient(factors: list[list[int]], power: int) -> int:
    """The coefficient of x^power in a product of polynomials, in whole numbers of any size."""
    product = np.array([1], dtype=object)
    for factor in factors:
        product = np.convolve(product, np.array(factor, dtype=object))
    return int(product[power]) if power < len(product) else 0


def _every(
    lengths: list[int], height: int, each_selection: bool, first: int = 0
) -> Iterator[list[tuple[int, int, int]]]:
    """Every set of `height` rows from the inputs `first` on; with `each_selection`, for every token that may be the selected one."""
    if height == 0:
        yield []
    elif first < len(lengths):
        T = lengths[first]
        for k in range(min(height, T - 1) + 1):
            for rest in _every(lengths, height - k, each_selection, first + 1):
                if k == 0:
                    yield rest
                    continue
                for tokens in combinations(range(T), k + 1):
                    for chosen in tokens if each_selection else tokens[:1]:
                        yield [*((first, chosen, t) for t in tokens if t != chosen), *rest]


def _sample(
    lengths: list[int], height: int, count: int, generator: np.random.Generator
) -> Iterator[list[tuple[int, int, int]]]:
    """`count` random sets of `height` rows, each from a random selection."""
    for _ in range(count):
        alpha = [int(generator.integers(T)) for T in lengths]
        rows = [(i, alpha[i], t) for i, T in enumerate(lengths) for t in range(T) if t != alpha[i]]
        yield [rows[k] for k in generator.choice(len(rows), size=height, replace=False)]


def _singular_value(rows: FloatArray) -> float:
    """The smallest singular value of matrices (count, height, d_key) with their rows normalised; zero if a row is."""
    size = np.linalg.norm(rows, axis=-1, keepdims=True)
    return float(np.min(np.linalg.svd(rows / np.where(size > 0.0, size, 1.0), compute_uv=False)))


def _distance_of_ones(rows: FloatArray) -> float:
    """The smallest distance from the normalised vector of ones to the range of matrices (count, height, d_key)."""
    left, singular, _ = np.linalg.svd(rows, full_matrices=False)
    counts = singular > GENERAL_POSITION_RTOL * np.maximum(singular[:, :1], np.finfo(float).tiny)
    ones = np.full(rows.shape[1], 1.0 / np.sqrt(rows.shape[1]))
    along = np.where(counts, np.einsum("bmk,m->bk", left, ones), 0.0)
    return float(np.min(np.linalg.norm(ones - np.einsum("bmk,bk->bm", left, along), axis=-1)))


# ---- a direction made from the head


_HEAD_RANGE_RTOL = 1e-9  # how much of v, relative to its length, may lie outside the range of Wᵀ
_PSEUDO_INVERSE_RTOL = 1e-12  # singular values of W below this share of the largest count as zero


class Separator(NamedTuple):
    """A direction that selects every optimal token, built from the head.

    Attributes:
        p: (d_key,) the separator; nan if a tie leaves it undefined, zero if no input has two tokens.
        margin: the smallest (k_opt - k_t)·p, recomputed from the keys; at least 1 up to rounding when every condition holds.
        conditions: positive labels, a strict optimum, and v in the range of Wᵀ, each a `Check`.
    """

    p: FloatArray
    margin: float
    conditions: tuple[Check, ...]

    @property
    def applies(self) -> bool:
        """Whether the lemma's conditions all hold."""
        return all(self.conditions)


@implements("A", "Lemma 2", "Lemma 11")
def constructive_separator(data: TokenDataset, head: Any) -> Separator | Any:
    r"""A direction that selects every optimal token when all labels are +1 and the head lies in the range of Wᵀ.

    .. math:: p = \underline\gamma^{-1} (W^\top)^\dagger v, \quad
        \underline\gamma = \min_{i,\, t \ne \mathrm{opt}_i} \gamma_{i\,\mathrm{opt}_i} - \gamma_{it}
        \quad\Rightarrow\quad (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1

    Args:
        data: one problem or a batch whose keys come from a matrix W, square or not; full rank puts every v in its range.
        head: v (d_model,) or (batch, d_model).
    Returns:
        A `Separator`, whose `margin` is the check; a list of them for a batch. `att_svm` gives the shortest such p.
    """
    return ScoredTokens(data, head).each(_separator)


def _separator(problem: ScoredTokens) -> Separator:
    data = problem.data
    if data.W is None:
        raise InputError("data", "a dataset made with W, because the separator is read off W", "keys K given outright")
    W, v = np.asarray(data.W), problem.head
    direction = np.linalg.pinv(W.T, rcond=_PSEUDO_INVERSE_RTOL) @ v
    norm = float(np.linalg.norm(v))
    outside = float(np.linalg.norm(W.T @ direction - v)) / norm if norm > 0.0 else 0.0
    gaps, other = problem.differences(problem.optimal)
    smallest = float(np.min(gaps[other], initial=np.inf))
    p, margin = np.full_like(direction, np.nan), float("nan")
    if smallest > 0.0:
        p = direction / smallest
        chosen = np.take_along_axis(data.K, problem.optimal[:, None, None], axis=-2)
        margin = float(np.min(np.where(other, (chosen - data.K) @ p, np.inf)))
    negative = int(np.sum(data.y < 0.0))
    conditions = (
        Check("claim.positive_labels", negative == 0, {"negative": negative, "n_inputs": data.n_inputs}),
        strict_optimum(problem),
        Check("claim.head_in_range", outside <= _HEAD_RANGE_RTOL, {"outside": outside}),
    )
    return Separator(p, margin, conditions)
