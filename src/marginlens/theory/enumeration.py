"""All locally optimal selections of one problem, found level by level without looking at every combination of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, prod
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset
from marginlens.errors import reject, whole_number
from marginlens.papers import implements
from marginlens.svm import Status, att_svm
from marginlens.theory.optimality import TokenOptimality, token_optimality
from marginlens.theory.problem import one_problem

_NUMBERS_AT_ONCE = 4_000_000  # entries of the constraint matrices that one batch of problems may hold


@dataclass(frozen=True, repr=False, eq=False)
class LocalOptima:
    """All locally optimal max-margin directions of one problem, widest margin first.

    Attributes:
        selections: (n_found, n_inputs) the locally optimal α. directions: (n_found, d_key) p^mm(α) as unit vectors; zero where
            no input has two tokens, because then there is nothing to separate.
        margins: (n_found,) 1/‖p^mm(α)‖. score_gaps: (n_found,) smallest γ_α - γ_t over the neighbours of α.
        is_global: (n_found,) whether α attains the highest score of every input.
        n_solved: hard-margin problems solved. n_brute_force: how many selections there are.
    """

    selections: IntArray
    directions: FloatArray
    margins: FloatArray
    score_gaps: FloatArray
    is_global: BoolArray
    n_solved: int
    n_brute_force: int

    def __len__(self) -> int:
        return len(self.selections)

    def __repr__(self) -> str:
        return (
            f"LocalOptima({len(self)} found, {int(self.is_global.sum())} global, "
            f"{self.n_solved} problems solved for {self.n_brute_force} selections)"
        )


@implements("A", "P^mm")
def locally_optimal_directions(data: TokenDataset, v: Any, *, max_problems: int = 100_000) -> LocalOptima:
    r"""Every locally optimal max-margin direction of one problem.

    .. math:: \mathcal P^{mm} = \Big\{ \frac{p^{mm}(\alpha)}{\|p^{mm}(\alpha)\|} : \alpha \text{ is locally optimal} \Big\}

    A selection of some inputs that no p makes is dropped with all its extensions. At most
    :math:`2\sum_{k<r}\binom{m-1}{k}` selections survive, the number of regions into which the m planes
    :math:`(k_{it} - k_{i\tau})^\top p = 0` cut a space of r dimensions, so few dimensions make many inputs affordable.

    Args:
        data: one problem. v: head (d_model,).
        max_problems: the most hard-margin problems that may have to be solved; beyond it nothing is started.
    Returns:
        A `LocalOptima`. Check an entry with `token_optimality(data, v, selection)`, the list with brute force.
    """
    one_problem(data).head(v)
    whole_number(max_problems, "max_problems", at_least=1)
    lengths = data.lengths
    candidates = [_separable(data, i) for i in range(data.n_inputs)]
    order = np.argsort([len(one) for one in candidates], kind="stable")
    worst = int(lengths.sum()) + _worst_case([len(candidates[i]) for i in order], lengths[order], data.d_key)
    if worst > max_problems:
        raise reject(
            "data",
            f"a problem whose enumeration solves at most max_problems = {max_problems} hard-margin problems",
            f"n = {data.n_inputs} inputs of up to T = {data.n_tokens} tokens with up to {worst} problems to solve",
            f"Raise max_problems to {worst}, or ask token_optimality about single selections.",
        )
    n_solved = int(lengths.sum())
    frontier = np.zeros((1, 0), dtype=np.int64)
    for depth in range(1, data.n_inputs):
        frontier = _extend(frontier, candidates[order[depth - 1]])
        if depth > 1:
            n_solved += len(frontier)
            frontier = frontier[_feasible(data.take_inputs(order[:depth]), frontier)]
    last = _extend(frontier, candidates[order[-1]])
    complete = np.empty_like(last)
    complete[:, order] = last
    return _collect(data, v, complete, n_solved + len(complete))


def _collect(data: TokenDataset, v: Any, complete: IntArray, n_solved: int) -> LocalOptima:
    """The locally optimal ones among complete selections, sorted."""
    parts: list[tuple[Any, ...]] = []
    for chunk in _chunks(data, complete):
        found: TokenOptimality = token_optimality(data.repeat(len(chunk)), v, chunk)
        keep = found.is_locally_optimal
        fields = (chunk, found.direction, found.margin, found.score_gap, found.is_globally_optimal)
        parts.append(tuple(values[keep] for values in fields))
    empty = (complete[:0], np.empty((0, data.d_key)), np.empty(0), np.empty(0), np.empty(0, dtype=np.bool_))
    selections, directions, margins, gaps, is_global = (
        np.concatenate(values) for values in zip(empty, *parts, strict=True)
    )
    rank = np.lexsort((*selections.T[::-1], -margins))
    n_selections = prod(int(length) for length in data.lengths)
    return LocalOptima(
        selections[rank], directions[rank], margins[rank], gaps[rank], is_global[rank], n_solved, n_selections
    )


def _separable(data: TokenDataset, i: int) -> IntArray:
    """Tokens of input i that some p selects within that input."""
    every = np.arange(data.lengths[i])[:, None]
    return every[_feasible(data.take_inputs([i]), every), 0]


def _feasible(data: TokenDataset, selections: IntArray) -> BoolArray:
    """Which selections are not proved infeasible, solved in batches."""
    status = [att_svm(data.repeat(len(chunk)), chunk).status for chunk in _chunks(data, selections)]
    return np.array([one is not Status.INFEASIBLE for part in status for one in part], dtype=np.bool_)


def _extend(frontier: IntArray, tokens: IntArray) -> IntArray:
    """Every partial selection followed by every token of one more input."""
    return np.concatenate([np.repeat(frontier, len(tokens), axis=0), np.tile(tokens, len(frontier))[:, None]], axis=1)


def _chunks(data: TokenDataset, selections: IntArray) -> list[IntArray]:
    size = max(1, _NUMBERS_AT_ONCE // (data.n_inputs * data.n_tokens * max(data.d_key, data.d_model)))
    return [selections[k : k + size] for k in range(0, len(selections), size)]


def _worst_case(counts: list[int], lengths: IntArray, d_key: int) -> int:
    """Problems that the levels can have to solve, from how many candidates and how many feasible selections there can be."""
    total, partial, planes, rank = (counts[0] if len(counts) == 1 else 0), 1, 0, 0
    for depth in range(1, len(counts)):
        planes += int(lengths[depth - 1]) * (int(lengths[depth - 1]) - 1) // 2
        rank = min(d_key, rank + int(lengths[depth - 1]) - 1)
        partial = min(partial * counts[depth - 1], _regions(planes, rank))
        total += partial * counts[depth]
    return total


def _regions(planes: int, dimensions: int) -> int:
    """The most regions into which planes through the origin cut a space."""
    if planes == 0:
        return 1
    return 2 * sum(comb(planes - 1, k) for k in range(min(dimensions, planes)))
