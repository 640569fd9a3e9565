"""Whether keys are in general position: Theorem 7's two conditions, by enumeration where that is affordable, by sampling elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import FloatArray, IntArray, TokenDataset
from marginlens.errors import whole_number
from marginlens.papers import implements
from marginlens.theory.assumptions import Check
from marginlens.theory.problem import one_problem

GENERAL_POSITION_TOLERANCE = (
    1e-9  # relative singular value or distance up to which rounding may hide a degenerate position
)
_AT_ONCE = 4096  # matrices that are decomposed together
Row = tuple[int, int, int]  # input, selected token, other token


@implements("A", "Thm 7")
def check_general_position(data: TokenDataset, *, max_problems: int = 50_000, rng: Any = 0) -> Check:
    r"""Whether key differences to one selected token per input are as independent as their number allows.

    .. math:: \mathrm{rank}\, \bar K = d \ \text{for all } \bar K \in \mathbb R^{d \times d}, \qquad
        \mathbf 1 \notin \mathrm{range}\, \bar K \ \text{for all } \bar K \in \mathbb R^{(d+1) \times d},
        \qquad \text{rows } k_{it} - k_{i\alpha_i}

    A matrix takes all its rows of one input from the same selected token; rows from several would be dependent whatever the keys.
    Where all rows together are fewer than d they must be independent, which is what the proof uses.

    Args:
        data: one problem.
        max_problems: the most matrices of each kind that are looked at; `matrix_count` says beforehand how many there are.
        rng: for the sample that is taken where there are more: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `Check` with singular_value, the smallest one met of a matrix with unit rows; distance, the smallest one met from the
        normalised vector of ones to a range (inf where there are too few rows); looked_at and matrices. A sample can only refute,
        and the sentence says when it was one.
    """
    one_problem(data)
    whole_number(max_problems, "max_problems", at_least=1)
    generator, counts = as_generator(rng), matrix_count(data)
    n_rows = min(data.d_key, _all_rows(data)), data.d_key + 1
    met, looked_at = [np.inf, np.inf], 0
    for kind, (count, height) in enumerate(zip(counts, n_rows, strict=True)):
        if count == 0:
            continue
        matrices = (
            _every(data, height, kind == 1) if count <= max_problems else _sample(data, height, max_problems, generator)
        )
        for chunk in _chunks(matrices):
            looked_at += len(chunk)
            met[kind] = min(met[kind], _distance_of_ones(data, chunk) if kind else _singular_value(data, chunk))
    how = f"all {looked_at}" if max(counts) <= max_problems else f"a sample of {looked_at} of the {sum(counts)}"
    sentence = f"in {how} matrices of key differences the smallest singular value is {met[0]:.3g}"
    if np.isfinite(met[1]):
        sentence += f" and ones stay {met[1]:.3g} away from the range"
    numbers = {"singular_value": met[0], "distance": met[1], "looked_at": looked_at, "matrices": sum(counts)}
    holds = min(met) > GENERAL_POSITION_TOLERANCE
    return Check("general position", holds, sentence, {name: float(value) for name, value in numbers.items()})


def matrix_count(data: TokenDataset) -> tuple[int, int]:
    """How many matrices the two conditions speak of: whose rank is asked for, and whose range must not hold the vector of ones.

    The rank depends on which tokens of an input are compared and not on which of them is the selected one, so these are counted once.
    """
    lengths, n_rows = [int(length) for length in one_problem(data).lengths], _all_rows(data)
    square = _coefficient([[comb(T, k + 1) if k else 1 for k in range(T)] for T in lengths], min(data.d_key, n_rows))
    tall = _coefficient([[T * comb(T - 1, k) if k else 1 for k in range(T)] for T in lengths], data.d_key + 1)
    return (square if n_rows else 0), tall


def _all_rows(data: TokenDataset) -> int:
    """Key differences to one selection."""
    return int(np.sum(data.lengths - 1))


def _coefficient(factors: list[list[int]], power: int) -> int:
    """The coefficient of x^power in a product of polynomials."""
    product = [1]
    for factor in factors:
        grown = [0] * (len(product) + len(factor) - 1)
        for a, left in enumerate(product):
            for b, right in enumerate(factor):
                grown[a + b] += left * right
        product = grown
    return product[power] if power < len(product) else 0


def _every(data: TokenDataset, height: int, each_selection: bool, first: int = 0) -> Iterator[list[Row]]:
    """Every set of `height` rows from the inputs `first` on; with `each_selection`, for every token that may be the selected one."""
    if height == 0:
        yield []
        return
    if first == data.n_inputs:
        return
    T = int(data.lengths[first])
    for k in range(min(height, T - 1) + 1):
        for rest in _every(data, height - k, each_selection, first + 1):
            if k == 0:
                yield rest
                continue
            for tokens in combinations(range(T), k + 1):
                for chosen in tokens if each_selection else tokens[:1]:
                    yield [*((first, chosen, t) for t in tokens if t != chosen), *rest]


def _sample(data: TokenDataset, height: int, count: int, generator: np.random.Generator) -> Iterator[list[Row]]:
    """`count` random sets of `height` rows, each from a random selection."""
    for _ in range(count):
        alpha = [int(generator.integers(length)) for length in data.lengths]
        rows = [(i, alpha[i], t) for i in range(data.n_inputs) for t in range(int(data.lengths[i])) if t != alpha[i]]
        yield [rows[k] for k in generator.choice(len(rows), size=height, replace=False)]


def _chunks(matrices: Iterator[list[Row]]) -> Iterator[IntArray]:
    """The matrices in arrays (count, height, 3)."""
    waiting: list[list[Row]] = []
    for one in matrices:
        waiting.append(one)
        if len(waiting) == _AT_ONCE:
            yield np.array(waiting)
            waiting = []
    if waiting:
        yield np.array(waiting)


def _rows(data: TokenDataset, names: IntArray) -> FloatArray:
    """Key differences (count, height, d_key)."""
    return data.K[names[..., 0], names[..., 2]] - data.K[names[..., 0], names[..., 1]]


def _singular_value(data: TokenDataset, names: IntArray) -> float:
    """The smallest singular value of the matrices with their rows normalised; zero where a row is."""
    rows = _rows(data, names)
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return float(np.min(np.linalg.svd(rows / np.where(length > 0.0, length, 1.0), compute_uv=False)))


def _distance_of_ones(data: TokenDataset, names: IntArray) -> float:
    """The smallest distance from the normalised vector of ones to the range of a matrix."""
    left, singular, _ = np.linalg.svd(_rows(data, names), full_matrices=False)
    counts = singular > GENERAL_POSITION_TOLERANCE * np.maximum(singular[:, :1], np.finfo(float).tiny)
    ones = np.full(names.shape[1], 1.0 / np.sqrt(names.shape[1]))
    along = np.where(counts, np.einsum("bmk,m->bk", left, ones), 0.0)
    return float(np.min(np.linalg.norm(ones - np.einsum("bmk,bk->bm", left, along), axis=-1)))
