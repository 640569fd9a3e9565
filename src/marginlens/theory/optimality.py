"""Token optimality: score ties, locally and globally optimal selections, their enumeration, and margins of any direction."""

from __future__ import annotations

from dataclasses import dataclass
from math import comb, prod
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import as_scalar, length
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, n_axes, real_array, whole_number
from marginlens.papers import implements
from marginlens.result import Result, Tabular, table
from marginlens.risk.softmax import logits
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

_MAX_LOG = 700.0  # logarithms below this in modulus belong to numbers that a double holds with all its digits
_FEW_ROWS = 64  # whose distances to each other are computed one by one
_SQUARE_ERROR = 1e-9  # of a squared distance that products give, over the largest squared norm
_NUMBERS_AT_ONCE = 4_000_000  # entries of the constraint matrices that one batch of problems may hold


def one_problem(data: TokenDataset) -> TokenDataset:
    """Return `data` if it holds one problem; otherwise refuse it and say how to take one out of a batch."""
    if as_dataset(data).is_batch:
        raise InputError("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    return data


def logits_at(data: TokenDataset, p: ArrayLike) -> FloatArray:
    """Compute the logits of one problem at p (d_key,) or at points (n_points, d_key): (…, n_inputs, n_tokens)."""
    points = real_array(p, "p", (data.d_key,) if n_axes(p) == 1 else ("n_points", data.d_key))
    return logits(data.repeat(len(points)), points) if points.ndim == 2 else logits(data, points)


def largest_distance(vectors: FloatArray, mask: BoolArray) -> float:
    """Compute the largest distance between two tokens of one input, from vectors (n_inputs, n_tokens, d) and the mask of real tokens."""
    largest = 0.0
    for rows, real in zip(vectors, mask, strict=True):
        largest = _largest_distance(rows[real], largest)
    return largest


def _largest_distance(rows: FloatArray, largest: float) -> float:
    """Return the largest distance between two of the rows (n, d), or `largest` if none is larger.

    Of many rows, products find the pairs that may be farther apart than that.
    """
    if len(rows) <= _FEW_ROWS:
        return max(largest, float(length(rows[:, None] - rows).max()))
    centred = rows - rows.mean(axis=0)
    size = float(np.abs(centred).max()) or 1.0
    centred /= size
    squares, ones = np.einsum("td,td->t", centred, centred)[:, None], np.ones((len(rows), 1))
    left, right = np.hstack([-2.0 * centred, squares, ones]), np.hstack([centred, ones, squares]).T
    error = _SQUARE_ERROR * float(squares.max())
    for first in range(0, len(rows), _FEW_ROWS):
        distances = left[first : first + _FEW_ROWS] @ right[:, first:]  # squared
        least = max(float(distances.max()), (largest / size) ** 2) - error
        at = np.argwhere(distances >= least)
        for part in np.array_split(at, len(at) // _NUMBERS_AT_ONCE + 1) if len(at) else ():
            i, j = first + part.T
            largest = max(largest, float(length(rows[i] - rows[j]).max()))
    return largest


def power_text(logarithm: float) -> str:
    """Write e to a power for a sentence: to four digits if a double holds it, as e^-900 if it would be zero or infinite."""
    in_range = logarithm == -np.inf or abs(logarithm) < _MAX_LOG
    return f"{np.exp(logarithm):.4g}" if in_range else f"e^{logarithm:.4g}"


@dataclass(frozen=True, repr=False, eq=False)
class TokenOptimality(Result, Tabular):
    """The optimality of a selection α; for a batch every field has a leading batch axis.

    Attributes:
        solution: the ATT-SVM of α.
        selected: α, (…, n_inputs).
        neighbours: (…, n_inputs, n_tokens) the SVM-neighbours, tokens whose constraint is tight whatever its multiplier.
        score_gap: (…) the smallest γ_α - γ_t over neighbours t: inf if there are none, nan if α is infeasible.
        is_feasible: (…) whether some p selects α.
        is_locally_optimal: (…) whether α is feasible and scores above all its neighbours.
        is_globally_optimal: (…) whether α is feasible and attains the highest score of every input.
        optimum_is_unique: (…) whether the highest score of every input belongs to one token, whatever α is.

    `to_frame()` has one row per problem: problem, selected, optimality, margin, score_gap.
    """

    solution: MarginSolution
    selected: IntArray
    neighbours: BoolArray
    score_gap: Any
    is_feasible: Any
    is_locally_optimal: Any
    is_globally_optimal: Any
    optimum_is_unique: Any

    @property
    def direction(self) -> FloatArray:
        """The unit vector p^mm/‖p^mm‖, (…, d_key); nan if α is infeasible, zero if there is nothing to separate."""
        return self.solution.direction

    @property
    def margin(self) -> Any:
        """The margin 1/‖p^mm‖ of each problem."""
        return self.solution.margin

    def __repr__(self) -> str:
        if self.selected.ndim == 1:
            kind = self._kinds()[0]
            return f"TokenOptimality({self.selected.tolist()}, {kind}, score_gap={self.score_gap:.4g}, margin={self.margin:.4g})"
        counts = [int(np.sum(x)) for x in (self.is_feasible, self.is_locally_optimal, self.is_globally_optimal)]
        return f"TokenOptimality({len(self.selected)} problems: {counts[0]} feasible, {counts[1]} locally, {counts[2]} globally optimal)"

    def _kinds(self) -> list[str]:
        feasible, local, best = map(
            np.atleast_1d, (self.is_feasible, self.is_locally_optimal, self.is_globally_optimal)
        )
        names = ["infeasible", "globally optimal", "locally optimal"]
        kinds = np.select([~feasible, best, local], names, "not optimal")
        return [str(kind) for kind in kinds]

    def _columns(self) -> dict[str, Any]:
        kinds = self._kinds()
        numbers = {"margin": np.atleast_1d(self.margin), "score_gap": np.atleast_1d(self.score_gap)}
        return {
            "problem": np.arange(len(kinds)),
            "selected": np.atleast_2d(self.selected),
            "optimality": kinds,
            **numbers,
        }


@implements("A", "Def 2")
def token_optimality(data: TokenDataset, head: ArrayLike, selected: ArrayLike) -> TokenOptimality:
    r"""Check whether the selected tokens are locally or globally optimal, with the neighbours and the score gap that decide it.

    .. math:: \mathcal T_i = \{t : (k_{i\alpha_i} - k_{it})^\top p^{mm}(\alpha) = 1\}, \qquad
        \alpha \text{ is locally optimal} \iff \gamma_{i\alpha_i} > \gamma_{it} \ \forall t \in \mathcal T_i

    Args:
        data: one problem or a batch.
        head: v (d_model,) or (batch, d_model).
        selected: (n_inputs,) or (batch, n_inputs): the token index alpha_i of each input.
    Returns:
        A `TokenOptimality`. `solution.kkt_residual()` checks the margin behind it; `solution.certificate_residual()` checks
        infeasibility.
    """
    return optimality_of(ScoredTokens(data, head), selected)


def optimality_of(
    problem: ScoredTokens, selected: ArrayLike, solution: MarginSolution | None = None
) -> TokenOptimality:
    """Determine the optimality of a selection, with its ATT-SVM if it has been solved."""
    data, alpha = problem.data, problem.data.selection(selected)
    solution = problem.margin(alpha) if solution is None else solution
    difference, other = problem.differences(alpha)
    neighbours = _neighbours(problem, solution, alpha)
    feasible = np.array([status in (Status.OPTIMAL, Status.TRIVIAL) for status in np.atleast_1d(solution.status)])
    feasible = feasible.reshape(data.batch_shape)
    gap = np.min(np.where(neighbours, difference, np.inf), axis=(-2, -1))
    return TokenOptimality(
        solution=solution,
        selected=alpha,
        neighbours=neighbours,
        score_gap=as_scalar(np.where(feasible, gap, np.nan)),
        is_feasible=as_scalar(feasible),
        is_locally_optimal=as_scalar(feasible & (gap > 0.0)),
        is_globally_optimal=as_scalar(feasible & np.all(~other | (difference >= 0.0), axis=(-2, -1))),
        optimum_is_unique=as_scalar(_unique_optimum(problem)),
    )


@implements("A", "Def 1")
def globally_optimal_direction(data: TokenDataset, head: ArrayLike) -> TokenOptimality:
    r"""Find the globally optimal max-margin (GMM) direction, whether it exists, and whether the optimal tokens are unique.

    .. math:: p^{mm\star} = p^{mm}(\mathrm{opt}), \qquad \mathrm{opt}_i \in \arg\max_t \gamma_{it}

    Args:
        data: one problem or a batch.
        head: v (d_model,) or (batch, d_model).
    Returns:
        The optimality of opt (the first token if several tie). `direction` is the GMM direction, `is_feasible` says whether it
        exists, and `optimum_is_unique` whether another choice of opt could give another direction.
    """
    problem = ScoredTokens(data, head)
    return optimality_of(problem, problem.optimal)


def _neighbours(problem: ScoredTokens, solution: MarginSolution, alpha: IntArray) -> BoolArray:
    """Find the tokens whose constraint holds with equality, (…, n_inputs, n_tokens)."""
    data, pairs = problem.data, np.asarray(solution.pairs)
    where = np.nonzero(pairs[..., 0] >= 0)
    multipliers, found = np.zeros(data.mask.shape), np.empty(data.mask.shape, dtype=np.bool_)
    multipliers[(*where[:-1], pairs[where][:, 0], pairs[where][:, 2])] = solution.multipliers[where]
    core.find_neighbours(*problem.batched(data.K, data.lengths, alpha, solution.x, multipliers, found))
    return found


def _unique_optimum(problem: ScoredTokens) -> Any:
    """Return whether no other token ties with the highest score of its input, (…)."""
    difference, other = problem.differences(problem.optimal)
    return np.all(~other | (difference > 0.0), axis=(-2, -1))


@dataclass(frozen=True, repr=False, eq=False)
class LocalOptima(Result, Tabular):
    """All locally optimal max-margin directions of one problem, widest margin first.

    Attributes:
        selections: (n_found, n_inputs) the locally optimal α.
        directions: (n_found, d_key) p^mm(α) as unit vectors; zero if no input has two tokens, because then there is nothing to separate.
        margins: (n_found,) 1/‖p^mm(α)‖.
        score_gaps: (n_found,) smallest γ_α - γ_t over the neighbours of α.
        is_global: (n_found,) whether α attains the highest score of every input.
        n_solved: hard-margin problems solved.
        n_brute_force: how many selections there are.

    `to_frame()` has one row per direction: kind ("GMM" if globally optimal, else "LMM"), selection, margin, score_gap, direction.
    """

    selections: IntArray
    directions: FloatArray
    margins: FloatArray
    score_gaps: FloatArray
    is_global: BoolArray
    n_solved: int
    n_brute_force: int
    quantities = "{self:#} found, {is_global.sum} global, {n_solved} problems solved for {n_brute_force} selections"

    def __len__(self) -> int:
        return len(self.selections)

    def _kinds(self) -> list[str]:
        return ["GMM" if best else "LMM" for best in self.is_global]

    _columns = table(
        "", kind="_kinds", selection="selections", margin="margins", score_gap="score_gaps", direction="directions"
    )


@implements("A", "P^mm")
def locally_optimal_directions(data: TokenDataset, head: ArrayLike, *, max_problems: int = 100_000) -> LocalOptima:
    r"""Find every locally optimal max-margin direction of one problem.

    .. math:: \mathcal P^{mm} = \Big\{ \frac{p^{mm}(\alpha)}{\|p^{mm}(\alpha)\|} : \alpha \text{ is locally optimal} \Big\}

    If no p makes a partial selection, it is dropped with all its extensions. At most :math:`2\sum_{k<r}\binom{m-1}{k}`
    selections survive, the number of regions into which the m planes :math:`(k_{it} - k_{i\tau})^\top p = 0` cut a space of r
    dimensions, so in few dimensions many inputs are affordable.

    Args:
        data: one problem.

        head: v (d_model,).

        max_problems: the most hard-margin problems that may have to be solved; if there may be more, nothing is started.

    Returns:
        A `LocalOptima`. Check an entry with `token_optimality(data, head, selection)`, and the list by brute force.

    Examples:
        >>> import marginlens as ml
        >>> data, v = ml.data.figure_1b()
        >>> ml.locally_optimal_directions(data, v).selections.tolist()
        [[0], [1]]
    """
    problem = ScoredTokens(one_problem(data), head)
    return local_optima_of(problem, whole_number(max_problems, "max_problems", at_least=1))


def local_optima_of(problem: ScoredTokens, max_problems: int) -> LocalOptima:
    """Find every locally optimal max-margin direction of one problem."""
    data, lengths = problem.data, problem.data.lengths
    n_solved = int(lengths.sum())  # one for each token: whether some p selects it within its input
    if n_solved > max_problems:
        raise _too_many(data, n_solved, max_problems)
    candidates = [_separable(data, i) for i in range(data.n_inputs)]
    order = np.argsort([len(tokens) for tokens in candidates], kind="stable")
    worst = n_solved + _worst_case([len(candidates[i]) for i in order], lengths[order], data.d_key)
    if worst > max_problems:
        raise _too_many(data, worst, max_problems)
    frontier = np.zeros((1, 0), dtype=np.int64)
    for depth in range(1, data.n_inputs):
        frontier = _extend(frontier, candidates[order[depth - 1]])
        if depth > 1:
            n_solved += len(frontier)
            frontier = frontier[_feasible(data.take_inputs(order[:depth]), frontier)]
    last = _extend(frontier, candidates[order[-1]])
    complete = np.empty_like(last)
    complete[:, order] = last
    return _collect(problem, complete, n_solved + len(complete))


def _too_many(data: TokenDataset, n_problems: int, max_problems: int) -> InputError:
    """Make the error for an enumeration with too many problems to solve."""
    return InputError(
        "data",
        f"a problem whose enumeration solves at most max_problems = {max_problems} hard-margin problems",
        f"n = {data.n_inputs} inputs of up to T = {data.n_tokens} tokens with up to {n_problems} problems to solve",
        f"Raise max_problems to {n_problems}, or ask token_optimality about single selections.",
    )


def _collect(problem: ScoredTokens, complete: IntArray, n_solved: int) -> LocalOptima:
    """Keep the locally optimal selections among complete ones, sorted."""
    data = problem.data
    parts: list[tuple[Any, ...]] = []
    for chunk in _chunks(data, complete):
        found = optimality_of(problem.repeat(len(chunk)), chunk, problem.margins(chunk))
        optimal = found.is_locally_optimal
        fields = (chunk, found.direction, found.margin, found.score_gap, found.is_globally_optimal)
        parts.append(tuple(values[optimal] for values in fields))
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
    """Find the tokens of input i that some p selects within that input."""
    every = np.arange(data.lengths[i])[:, None]
    return every[_feasible(data.take_inputs([i]), every), 0]


def _feasible(data: TokenDataset, selections: IntArray) -> BoolArray:
    """Return the mask of the selections that are not proved infeasible, solved in batches."""
    status = [att_svm(data.repeat(len(chunk)), chunk).status for chunk in _chunks(data, selections)]
    return np.array([each is not Status.INFEASIBLE for part in status for each in part], dtype=np.bool_)


def _extend(frontier: IntArray, tokens: IntArray) -> IntArray:
    """Extend every partial selection by every token of one more input."""
    return np.concatenate([np.repeat(frontier, len(tokens), axis=0), np.tile(tokens, len(frontier))[:, None]], axis=1)


def _chunks(data: TokenDataset, selections: IntArray) -> list[IntArray]:
    size = max(1, _NUMBERS_AT_ONCE // (data.n_inputs * data.n_tokens * max(data.d_key, data.d_model)))
    return [selections[k : k + size] for k in range(0, len(selections), size)]


def _worst_case(counts: list[int], lengths: IntArray, d_key: int) -> int:
    """Bound the number of problems to solve at each level, from the possible numbers of candidates and feasible selections."""
    total, partial, planes, rank = (counts[0] if len(counts) == 1 else 0), 1, 0, 0
    for depth in range(1, len(counts)):
        planes += int(lengths[depth - 1]) * (int(lengths[depth - 1]) - 1) // 2
        rank = min(d_key, rank + int(lengths[depth - 1]) - 1)
        partial = min(partial * counts[depth - 1], _regions(planes, rank))
        total += partial * counts[depth]
    return total


def _regions(planes: int, dimensions: int) -> int:
    """Return the most regions into which planes through the origin can cut a space."""
    if planes == 0:
        return 1
    return 2 * sum(comb(planes - 1, k) for k in range(min(dimensions, planes)))


# ---- margins of any direction


DIRECTION_RTOL = (
    1e-12  # error of a token's margin, relative to the terms that were summed for it, that rounding can make
)
SAME_DIRECTION_ATOL = 1e-9  # distance of unit vectors up to which two directions are one


class DirectionalMargin(NamedTuple):
    """The selection of a direction q and its margin; for a batch every field has a leading batch axis.

    Attributes:
        selected: (…, n_inputs) the tokens with the largest logit, the first where several tie.
        unique: (…) whether no other token ties with a selected one, up to rounding.
        margin: (…) Γ_q, the smallest (k_α - k_t)·q over inputs and other tokens; inf if no input has two tokens.
        neighbours: (…, n_inputs, n_tokens) the directional neighbours, the tokens that attain it, up to rounding.
        second_gap: (…) δ_q, how much larger the smallest margin of the remaining tokens is; inf if none remain.
        neighbour_optimal: (…) whether every neighbour scores below the selected token of its input; None without a head.
        margins: (…, n_inputs, n_tokens) every (k_α - k_t)·q; inf at α and at padding.
        blur: (…, n_inputs, n_tokens) the rounding error of each margin, `DIRECTION_RTOL`
            :math:`\\sum_j (|k_{αj}| + |k_{tj}|)\\,|q_j|`; a distant token affects only its own margin.
    """

    selected: IntArray
    unique: Any
    margin: Any
    neighbours: BoolArray
    second_gap: Any
    neighbour_optimal: Any
    margins: FloatArray
    blur: FloatArray


@implements("A", "Def 3", "Eq. (59)", "Eq. (60)", "Eq. (61)", "Eq. (65)")
def directional_margin(data: TokenDataset, q: ArrayLike, head: ArrayLike | None = None) -> DirectionalMargin:
    r"""Find the tokens that a direction selects, its margin, and the neighbours that attain it.

    .. math:: \alpha_i \in \arg\max_t k_{it}^\top q, \quad
        \Gamma_q = \min_{i,\, t \ne \alpha_i} (k_{i\alpha_i} - k_{it})^\top q, \quad
        \delta_q = \min_{(i,t) \notin \mathcal M_q} (k_{i\alpha_i} - k_{it})^\top q - \Gamma_q

    Args:
        data: one problem or a batch.
        q: (d_key,) or (batch, d_key), not zero; margins scale with its length.
        head: v (d_model,) or (batch, d_model), for neighbour-optimality.
    Returns:
        A `DirectionalMargin`; with q = p^mm(α) its margin is 1 and its neighbours are the SVM-neighbours of α.
    """
    point = as_direction(as_dataset(data), q, "q")
    logits = np.where(data.mask, np.einsum("...itd,...d->...it", data.K, point), -np.inf)
    selected = np.argmax(logits, axis=-1)
    ahead = np.where(data.mask, _margins(data, point, selected), np.inf)
    better = np.argmin(ahead, axis=-1)  # where keys have a large part in common, their differences decide
    is_better = np.take_along_axis(ahead, better[..., None], axis=-1)[..., 0] < 0.0
    selected = np.where(is_better, better, selected)
    chosen = selected[..., None]
    other = data.mask & (np.arange(data.n_tokens) != chosen)
    margins = np.where(other, _margins(data, point, selected), np.inf)
    terms = np.einsum("...itd,...d->...it", np.abs(data.K), DIRECTION_RTOL * np.abs(point))
    blur = np.where(other, terms + np.take_along_axis(terms, chosen, axis=-1), 0.0)
    margin = np.min(margins, axis=(-2, -1))
    highest = np.min(margins + blur, axis=(-2, -1))  # which the smallest margin does not exceed
    neighbours = other & (margins - blur <= highest[..., None, None])
    unique = as_scalar(np.all(~other | (margins > blur), axis=(-2, -1)))
    rest = np.min(np.where(other & ~neighbours, margins, np.inf), axis=(-2, -1))
    optimal = None
    if head is not None:
        difference, _ = ScoredTokens(data, head).differences(selected)
        optimal = as_scalar(np.all(~neighbours | (difference > 0.0), axis=(-2, -1)))
    gap = np.where(np.isfinite(rest), rest - np.where(np.isfinite(margin), margin, 0.0), np.inf)
    return DirectionalMargin(selected, unique, as_scalar(margin), neighbours, as_scalar(gap), optimal, margins, blur)


def _margins(data: TokenDataset, q: FloatArray, selected: IntArray) -> FloatArray:
    """Compute (k_α - k_t)·q of every token, (…, n_inputs, n_tokens)."""
    away = np.take_along_axis(data.K, selected[..., None, None], axis=-2) - data.K
    return np.einsum("...itd,...d->...it", away, q)


def as_direction(data: TokenDataset, x: ArrayLike, argument: str) -> FloatArray:
    point = data.point(x, argument)
    if not np.all(np.any(point != 0.0, axis=-1)):
        raise InputError(argument, "a direction, so not zero", "a zero vector")
    return point
