"""All selections of paper B's vocabulary that some p makes, each with its max-margin solution."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from marginlens.errors import InputError, array_of_any, real_array, whole_number
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.status import Status
from marginlens.svm import least_distance
from marginlens.svm.solution import MarginSolution
from marginlens.svm.vocabulary import position_lists, selection_pairs, token_lists
from marginlens.theory.embedding_limits import Selection
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

_NUMBERS_AT_ONCE = 4_000_000  # entries of the constraint matrices that one batch of problems may hold


@dataclass(frozen=True, repr=False, eq=False)
class FeasibleSelections(Described):
    """All selections that some p makes, widest margin first.

    Attributes:
        selections: one per class of equivalent directions, each with the ids selected in every sequence.
        margins: (n_found,) 1/‖p̂‖ of its max-margin problem; inf for the selection of everything, which p = 0 makes.
        directions: (n_found, d_model) p̂/‖p̂‖, zero for the selection of everything.
        n_solved: max-margin problems solved.
        n_undecided: problems that double precision can neither solve nor prove infeasible; their selections are left out.
    """

    selections: tuple[Selection, ...]
    margins: FloatArray
    directions: FloatArray
    n_solved: int
    n_undecided: int = 0
    quantities = "{self:#} selections, {n_solved} problems solved, {n_undecided} undecided"

    def __len__(self) -> int:
        return len(self.selections)

    def index(self, selection: Any) -> int:
        """The index of a selection in the list; -1 if no p makes it."""
        wanted = _id_sets(selection, "selection", len(self.selections[0]))
        same = (all(map(np.array_equal, wanted, listed)) for listed in self.selections)
        return next((k for k, equal in enumerate(same) if equal), -1)

    @implements("B", "Lemma 19")
    def margin_lead(self, selection: Any) -> float:
        r"""By which share ‖p̂‖ is shorter than the solution of any other selection, that of everything (Lemma 6) left out.

        .. math:: \mu = \max \{ \mu : \|\hat p\| \le (1 - \mu) \|\hat p'\| \text{ for all other } \hat p' \}

        Positive if `selection` has the widest margin; nan if no p makes it. That alone does not decide where a flow goes: Lemma 19 also
        asks for Eq. (10) and two more widths, which `check_lemma_19` compares; at small d flows mostly go elsewhere (claim B-L6).
        """
        k = self.index(selection)
        rivals = np.isfinite(self.margins) & (np.arange(len(self)) != k)
        if k < 0 or not np.isfinite(self.margins[k]):
            return float("nan")
        return 1.0 - float(np.max(self.margins[rivals], initial=0.0)) / float(self.margins[k])


@implements("B", "Lemma 19")
def feasible_selections(
    E: ArrayLike, sequences: Any, *, required: Any = None, max_problems: int = 20_000
) -> FeasibleSelections:
    r"""Every selection of tokens that some p makes, with its max-margin direction; for small vocabularies.

    .. math:: \{ (\mathcal S_X(p))_{X \in \mathcal X_n} : p \in \mathbb R^d \}

    Selections whose comparisons contradict each other are never formed; if embeddings are linearly independent, no others are
    infeasible. Sequences with the same tokens select alike and count once.

    Args:
        E: embeddings (n_vocabulary, d_model). sequences: token-id lists, an array, or `LabelledSequences`.
        required: ids that must be selected in each sequence, one list each (Theorem 5: the decisive tokens); none by default.
        max_problems: the most max-margin problems that may have to be solved; beyond it none is.
    Returns:
        A `FeasibleSelections`; check an entry with `vocabulary_svm(E, sequences, selection)`.
    """
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    whole_number(max_problems, "max_problems", at_least=1)
    sets = [np.unique(ids) for ids in token_lists(sequences, len(table))]
    needed = _required(required, sets)
    keys = [(tuple(ids.tolist()), tuple(must)) for ids, must in zip(sets, needed, strict=True)]
    distinct = sorted(set(keys), key=lambda key: (len(key[0]) - len(key[1]), key))
    found = _consistent(distinct, len(table), max_problems)
    if found is None:
        raise InputError(
            "sequences",
            f"so few and short that at most max_problems = {max_problems} selections are consistent",
            f"{len(distinct)} different sequences of up to {max(map(len, sets))} tokens with more",
            "Raise max_problems, or ask vocabulary_svm about single selections.",
        )
    lists = [np.array(tokens) for tokens, _ in distinct]
    margins, x, undecided = _solve(table, lists, found)
    order = np.flatnonzero(margins > 0.0)
    order = order[np.argsort(-margins[order], kind="stable")]
    place = [distinct.index(key) for key in keys]
    selections = tuple(tuple(found[k][j] for j in place) for k in order)
    norms = np.linalg.norm(x[order], axis=1, keepdims=True)
    directions = x[order] / np.where(norms == 0.0, 1.0, norms)
    return FeasibleSelections(selections, margins[order], directions, len(found), undecided)


def _id_sets(given: Any, argument: str, n_sequences: int) -> list[IntArray]:
    """The different ids of each list, ascending; refused unless there is one list of ids for each sequence."""
    expected = f"one list of token ids for each of the {n_sequences} sequences"
    if isinstance(given, str | bytes) or not isinstance(given, Iterable) or getattr(given, "ndim", 2) < 1:
        raise InputError(argument, expected, repr(given))
    lists = [array_of_any(ids, argument, expected) for ids in given]
    if len(lists) != n_sequences or any(ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu") for ids in lists):
        raise InputError(argument, expected, f"{len(lists)} lists of shapes {[ids.shape for ids in lists[:3]]}")
    return [np.unique(ids) for ids in lists]


def _required(required: Any, sets: list[IntArray]) -> list[list[int]]:
    if required is None:
        return [[] for _ in sets]
    lists = [ids.tolist() for ids in _id_sets(required, "required", len(sets))]
    for i, (must, ids) in enumerate(zip(lists, sets, strict=True)):
        strange = set(must) - set(ids.tolist())
        if strange:
            raise InputError(
                f"required[{i}]", f"tokens of sequence {i}", f"token {min(strange)}, which is not among them"
            )
    return lists


def _consistent(distinct: list[tuple[Any, Any]], n_vocabulary: int, max_problems: int) -> list[Selection] | None:
    """Every selection whose comparisons contradict no others, or None if there are more than `max_problems`."""
    identity = np.eye(n_vocabulary, dtype=bool)
    frontier: list[tuple[Selection, BoolArray, BoolArray]] = [((), identity, np.zeros_like(identity))]
    for tokens, must in distinct:
        free = [s for s in tokens if s not in must]
        subsets = [
            sorted([*must, *more])
            for size in range(0 if must else 1, len(free) + 1)
            for more in combinations(free, size)
        ]
        extended = []
        for chosen, at_least, above in frontier:
            for subset in subsets:
                order = _added(at_least, above, subset, [s for s in tokens if s not in subset])
                if order is not None:
                    extended.append(((*chosen, np.array(subset)), *order))
                if len(extended) > max_problems:
                    return None
        frontier = extended
    return [chosen for chosen, _, _ in frontier]


def _added(
    at_least: BoolArray, above: BoolArray, selected: list[int], others: list[int]
) -> tuple[BoolArray, BoolArray] | None:
    """The order with the logits of `selected` equal and above `others`: all pairs s ≥ s', and stated s > s'; None if contradictory."""
    reach, strict = at_least.copy(), above.copy()
    reach[np.ix_(selected, selected + others)] = True
    strict[np.ix_(selected, others)] = True
    for k in selected + others:  # every new chain passes one of them
        reach |= reach[:, k : k + 1] & reach[k]
    return None if np.any(strict & reach.T) else (reach, strict)


def _solve(E: FloatArray, lists: list[IntArray], found: list[Selection]) -> tuple[FloatArray, FloatArray, int]:
    """(n_found,) margins and (n_found, d_model) solutions of the max-margin problems, and how many are undecided; else margin 0."""
    basis = np.linalg.qr(E.T)[0] if E.shape[1] > len(E) else np.eye(E.shape[1])
    problems = [selection_pairs(lists, list(selection)) for selection in found]
    n_rows, n_ties = (max(1, *(len(getattr(problem, kind)) for problem in problems)) for kind in ("pairs", "ties"))
    margins, x, undecided = np.zeros(len(found)), np.zeros((len(found), basis.shape[1])), 0
    size = max(1, _NUMBERS_AT_ONCE // ((n_rows + n_ties) * basis.shape[1]))
    for first in range(0, len(found), size):
        part = problems[first : first + size]
        rows, lower = np.zeros((len(part), n_rows, basis.shape[1])), np.zeros((len(part), n_rows))
        ties = np.zeros((len(part), n_ties, basis.shape[1]))
        for k, problem in enumerate(part):  # differences first, then the rotation, which keeps their digits
            rows[k, : len(problem.pairs)] = (E[problem.pairs[:, 1]] - E[problem.pairs[:, 2]]) @ basis
            lower[k, : len(problem.pairs)] = 1.0
            ties[k, : len(problem.ties)] = (E[problem.ties[:, 0]] - E[problem.ties[:, 1]]) @ basis
        # a tie as two inequalities: many problems are then solved at once
        both_ways = np.concatenate([rows, ties, -ties], axis=1)
        bounds = np.concatenate([lower, np.zeros((len(part), 2 * n_ties))], axis=1)
        solved = [(np.arange(first, first + len(part)), least_distance(both_ways, bounds))]
        unproved = np.flatnonzero(solved[0][1].status == Status.INACCURATE)
        if len(unproved):
            solved.append(
                (first + unproved, least_distance(rows[unproved], lower[unproved], equalities=ties[unproved]))
            )
        for place, solution in solved:
            feasible = np.array([status in (Status.OPTIMAL, Status.TRIVIAL) for status in solution.status])
            margins[place] = np.where(feasible, solution.margin, 0.0)
            x[place] = np.where(feasible[:, None], np.nan_to_num(solution.x), 0.0)
        undecided += int(np.sum(solved[-1][1].status == Status.INACCURATE))
    return margins, x @ basis.T, undecided


@implements("B", "Eq. (18)")
def untied_vocabulary_svm(E: ArrayLike, sequences: Any, selected: ArrayLike) -> MarginSolution:
    r"""Shortest p under which each selected token of a sequence beats its other tokens by at least one, tied with each other or not.

    .. math:: \min \|p\| \ \text{s.t.}\ p^\top (E_s - E_{s'}) \ge 1,\quad
        s \in \mathcal S_X,\ s' \in X \setminus \mathcal S_X,\ X \in \mathcal X_n

    The paper writes Eq. (9) so, but it is another problem if two tokens are selected together: it leaves out that they tie, so its
    solution may select only one of them, and is never longer than that of `vocabulary_svm`, which keeps the ties.

    Args:
        E, sequences, selected: as `vocabulary_svm` takes them.
    Returns:
        A solution with `pairs` and `multipliers` as `vocabulary_svm` gives them, and no equalities.
    """
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    lists, chosen = position_lists(table, sequences, selected)
    strict = {
        (s, other): i
        for i, (tokens, ids) in reversed(list(enumerate(zip(lists, chosen, strict=True))))
        for s in ids.tolist()
        for other in sorted(set(tokens.tolist()) - set(ids.tolist()))
    }
    pairs = np.array([(i, s, other) for (s, other), i in strict.items()], dtype=np.int64).reshape(-1, 3)
    return least_distance(table[pairs[:, 1]] - table[pairs[:, 2]], np.ones(len(pairs)), pairs=pairs)
