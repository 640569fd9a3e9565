"""ATT-SVM': the shortest p under which some token of each input's optimal set beats all tokens outside the set."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import scipy

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, index_array, whole_number
from marginlens.papers import implements
from marginlens.result import Result, Tabular
from marginlens.svm.solution import MarginSolution, Status
from marginlens.svm.solvers.branch_and_bound import Alternatives, SearchTree, branch_and_bound
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.typing import FloatArray, IntArray

# With more choices, a search that may have to visit all of them needs `max_problems`.
MAX_CHOICES = 10_000_000
# Distance, relative to the norm, up to which two minima are one.
SAME_MINIMUM_RTOL = 1e-6


@dataclass(frozen=True, repr=False, eq=False)
class SetSolution(Result, Tabular):
    r"""All global minima of ATT-SVM', and why there are no others.

    Every choice of one token per set is accounted for: by a proof that no p makes it, by a lower bound above the optimum, or by
    a solution that is the only vector of its norm for all choices that agree with it on a few inputs. `n_covered == n_choices`
    means that no choice is missing, and `runner_up > 1/margin` that everything discarded by its bound is longer.

    Attributes:
        solutions: one `MarginSolution` per global minimum, with the rows k_α - k_β of its choice; empty if the problem is infeasible.

        choices: (n_solutions, n_inputs) the token of each optimal set with the largest logit: the choice that the solution proves.

        status: a `Status`.

        lower_bound: no feasible p is shorter.

        runner_up: the smallest bound among discarded choices, inf if none were. A choice that agrees with a solution on those
            few inputs may be shorter than this, but is longer than the solution.

        explored: the number of convex problems solved.

        n_choices: the number of complete choices.

        n_covered: how many of them are accounted for.

    `to_frame()` has one row per global minimum: solution, choice (the token of each input), margin, x.
    """

    solutions: tuple[MarginSolution, ...]
    choices: IntArray
    status: Status
    lower_bound: float
    runner_up: float
    explored: int
    n_choices: int
    n_covered: int
    quantities = (
        "{status.name}, {solutions:# solution|solutions}, margin={margin:.6g}, gap={gap:.2g}, "
        "{explored} problems solved for {n_choices} choices"
    )

    @property
    def margin(self) -> float:
        r""":math:`\Xi = 1/\|p^{mm}\|`: zero if the problem is infeasible, infinite if p = 0 is enough."""
        return float(self.solutions[0].margin) if self.solutions else 0.0

    @property
    def gap(self) -> float:
        """The largest amount by which a feasible p could be shorter than the solution, relative to its norm: 0 once the search
        is complete.
        """
        if not self.solutions or self.status is Status.TRIVIAL:
            return 0.0 if self.status in (Status.TRIVIAL, Status.INFEASIBLE) else float("inf")
        return max(0.0, 1.0 - self.lower_bound * self.margin)

    @property
    def points(self) -> FloatArray:
        """The set G^mm, as an array (n_solutions, d_key)."""
        width = self.solutions[0].x.shape[-1] if self.solutions else 0
        return np.array([solution.x for solution in self.solutions]).reshape(len(self.solutions), width)

    def _columns(self) -> dict[str, Any]:
        margins = [float(solution.margin) for solution in self.solutions]
        return {"solution": np.arange(len(margins)), "choice": self.choices, "margin": margins, "x": self.points}


@implements("A", "ATT-SVM'", "Thm 8")
def set_svm(data: TokenDataset, selected: object, *, max_problems: int | None = None) -> SetSolution:
    r"""Find every shortest p under which, in each input, some optimal token beats all non-optimal tokens by at least one.

    .. math:: \min_p \|p\| \ \text{s.t.}\ \max_{\alpha \in O_i} \min_{\beta \notin O_i} p^\top (k_{i\alpha} - k_{i\beta}) \ge 1,
        \quad i \in [n]

    The problem is not convex: it is solved exactly by branch and bound over the tokens α_i that attain the maximum.

    Args:
        data: one problem with keys `data.K` of shape (n_inputs, n_tokens, d_key).

        selected: one list of token indices per input, the set O_i; an input whose tokens are all optimal constrains nothing.

        max_problems: the number of convex problems after which to stop with the best solution so far and its gap. By default
            the search is complete, and refused in advance if there are more than ten million choices.

    Returns:
        A `SetSolution`. Check each of its `solutions` with `kkt_residual()`, and the list with `n_covered` and `runner_up`. If the sets
        are singletons, compare with `att_svm`.

    Examples:
        >>> import marginlens as ml
        >>> data, head = ml.data.figure_1b()
        >>> solution = ml.set_svm(data, [[0, 1]])
        >>> solution.choices.tolist(), round(solution.margin, 3)
        ([[0]], 1.005)
    """
    if as_dataset(data).is_batch:
        raise InputError("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    sets = as_optimal_sets(data, selected)
    binding = [i for i in range(data.n_inputs) if len(sets[i]) < data.lengths[i]]
    n_choices = prod(len(sets[i]) for i in binding)
    if max_problems is not None:
        whole_number(max_problems, "max_problems", at_least=1)
    elif n_choices > MAX_CHOICES:
        raise InputError(
            "selected",
            f"sets with at most {MAX_CHOICES} choices of one token each",
            f"{float(n_choices):.3g} choices",
            "Give max_problems, the convex problems to solve at most, for the best solution found with its gap.",
        )
    if not binding:
        choices = np.array([tokens[:1] for tokens in sets]).reshape(1, -1)
        return SetSolution(_proved(data, sets, choices), choices, Status.TRIVIAL, 0.0, np.inf, 0, 1, 1)
    problem = _alternatives(data, sets, binding)
    if not problem.allowed.any(axis=1).all():
        return SetSolution((), _no_choice(data), Status.INFEASIBLE, np.inf, np.inf, 0, n_choices, n_choices)
    search = branch_and_bound(problem, sys.maxsize if max_problems is None else max_problems)
    return _finish(data, sets, search, (n_choices, problem.n_choices))


def as_optimal_sets(data: TokenDataset, selected: Any) -> tuple[IntArray, ...]:
    """Check sets of token indices and return one sorted array per input."""
    many = isinstance(selected, Sequence | np.ndarray) and getattr(selected, "ndim", 1) > 0
    if isinstance(selected, str) or not many:
        raise InputError("selected", "one list of token indices per input", type(selected).__name__)
    if len(selected) != data.n_inputs:
        raise InputError("selected", f"one list of token indices per input, {data.n_inputs} in all", len(selected))
    return tuple(
        _token_set(given, length, f"selected[{i}]")
        for i, (given, length) in enumerate(zip(selected, data.lengths.tolist(), strict=True))
    )


def _token_set(given: object, length: int, argument: str) -> IntArray:
    expected = f"different token indices from 0 to {length - 1}, at least one"
    indices = index_array(list(given) if isinstance(given, set | frozenset) else given, argument, expected, (-1,))
    values, counts = np.unique(indices, return_counts=True)
    wrong = (values < 0) | (values >= length) | (counts > 1)
    if wrong.any() or not len(values):
        got = (
            f"index {values[wrong][0]}" + " more than once" * int(counts[wrong][0] > 1)
            if len(values)
            else "an empty set"
        )
        raise InputError(argument, expected, got)
    return values


def _alternatives(data: TokenDataset, sets: tuple[IntArray, ...], binding: list[int]) -> Alternatives:
    """Form the rows k_α - k_β of every α in O_i and β outside, padded to one size, in coordinates of the space that they span."""
    n_ways = max(len(sets[i]) for i in binding)
    n_rows = max(int(data.lengths[i]) - len(sets[i]) for i in binding)
    keys = _in_their_span(data)
    rows = np.zeros((len(binding), n_ways, n_rows, keys.shape[-1]))
    lower, allowed = np.zeros(rows.shape[:3]), np.zeros(rows.shape[:2], dtype=np.bool_)
    for k, i in enumerate(binding):
        inside, outside = keys[i, sets[i]], keys[i, _outside(data, sets, i)]
        rows[k, : len(inside), : len(outside)] = inside[:, None] - outside[None]
        lower[k, : len(inside), : len(outside)] = 1.0
        same_key = (data.K[i, sets[i]][:, None] == data.K[i, _outside(data, sets, i)]).all(axis=-1)
        # No p separates a token from one with the same key.
        allowed[k, : len(inside)] = ~same_key.any(axis=-1)
    return Alternatives(rows, lower, allowed)


def _in_their_span(data: TokenDataset) -> FloatArray:
    """Subtract the first key of each input, and rotate the rest into as few coordinates as they need, if that saves any."""
    differences = np.where(data.mask[..., None], data.K - data.K[:, :1], 0.0)
    flat = differences.reshape(-1, data.d_key)
    if data.d_key <= len(flat):
        return differences
    basis = np.linalg.qr(flat.T)[0]  # (d_key, n_inputs n_tokens)
    return (flat @ basis).reshape(*differences.shape[:-1], -1)


def _outside(data: TokenDataset, sets: tuple[IntArray, ...], i: int) -> IntArray:
    return np.setdiff1d(np.arange(data.lengths[i]), sets[i])


def _no_choice(data: TokenDataset) -> IntArray:
    return np.empty((0, data.n_inputs), dtype=np.int64)


def _finish(data: TokenDataset, sets: tuple[IntArray, ...], search: SearchTree, counts: tuple[int, int]) -> SetSolution:
    """Collect the distinct minima with their proofs, and the status that the account of the search allows."""
    n_choices, n_possible = counts
    choices = _distinct_choices(data, sets, search)
    solutions = _proved(data, sets, choices)
    status: Status = Status.OPTIMAL if solutions else Status.INFEASIBLE
    if search.open:
        status = Status.MAX_PROBLEMS
    elif search.n_covered < n_possible or any(solution.status is not Status.OPTIMAL for solution in solutions):
        status = Status.INACCURATE
    covered = search.n_covered + n_choices - n_possible
    bounds = search.lower_bound, search.runner_up
    return SetSolution(solutions, choices, status, *bounds, search.explored, n_choices, covered)


def _distinct_choices(data: TokenDataset, sets: tuple[IntArray, ...], search: SearchTree) -> IntArray:
    """Find the tokens that each point of the search selects, once for points that coincide, (n_solutions, n_inputs)."""
    found = search.points
    if not len(found):
        return _no_choice(data)
    near = scipy.spatial.cKDTree(found).query_pairs(SAME_MINIMUM_RTOL * search.best, output_type="ndarray")
    ties = scipy.sparse.coo_array((np.ones(len(near)), near.T), shape=(len(found),) * 2)
    _, component = scipy.sparse.csgraph.connected_components(ties, directed=False)
    _, first = np.unique(component, return_index=True)
    keys, points = _in_their_span(data), found[first]
    chosen = [tokens[np.argmax(keys[i, tokens] @ points.T, axis=0)] for i, tokens in enumerate(sets)]
    return np.unique(np.stack(chosen, axis=1), axis=0)


def _proved(data: TokenDataset, sets: tuple[IntArray, ...], choices: IntArray) -> tuple[MarginSolution, ...]:
    """Solve the convex problem of each choice of tokens (n_choices, n_inputs); the multipliers prove its solution."""
    pairs = [(i, int(t)) for i in range(data.n_inputs) for t in _outside(data, sets, i)]
    i, other = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    named = np.stack(np.broadcast_arrays(i, choices[:, i], other), axis=-1)  # (n_choices, n_rows, 3)
    rows = data.K[i, choices[:, i]] - data.K[i, other]
    if not len(choices):
        return ()
    solution = least_distance(rows, np.ones(rows.shape[:2]), pairs=named)
    return tuple(solution[k] for k in range(len(choices)))
