"""Which tokens a direction selects in every sequence, whether it does so locally optimally, and all selections that there are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from marginlens.data.labelled import as_labelled
from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.errors import array_of_any, real_array, real_number, reject, whole_number
from marginlens.papers import implements, uses
from marginlens.svm import Status, least_distance
from marginlens.svm.vocabulary import SelectionPairs, selection_pairs, token_lists

Selection = tuple[IntArray, ...]  # the token ids selected in each sequence, ascending

_TIE = (
    2.0**-40
)  # logits closer than this times the longer of both ‖E_s‖‖p‖ count as equal: what rounding leaves of ties
_NUMBERS_AT_ONCE = 4_000_000  # entries of the constraint matrices that one batch of problems may hold


@dataclass(frozen=True, repr=False)
class TokenRanks:
    """The tokens of each sequence by their logits: the largest, the second largest, and those below; ids ascending."""

    selected: Selection
    secondary: Selection
    below: Selection

    def __repr__(self) -> str:
        sizes = [sum(map(len, some)) for some in (self.selected, self.secondary, self.below)]
        return (
            f"TokenRanks({len(self.selected)} sequences: {sizes[0]} selected, {sizes[1]} secondary, {sizes[2]} below)"
        )


@implements("B", "Definition 15")
@uses(
    "B",
    {
        "Eq. (20)": "The second selection, its attribute secondary.",
        "Eq. (21)": "The tokens below both, its attribute below.",
    },
)
def token_ranks(E: Any, p: Any, sequences: Any, *, tie: float | None = None) -> TokenRanks:
    r"""The selected tokens of every sequence, its secondary selection, and the rest.

    .. math:: \mathcal S_X(p) = \arg\max_{s \in X} p^\top E_s,\quad \mathcal S^2_X(p) = \arg\max_{s \in X \setminus \mathcal S_X(p)}
        p^\top E_s,\quad \mathcal S^<_X(p) = X \setminus (\mathcal S_X(p) \cup \mathcal S^2_X(p))

    Args:
        E: embeddings (n_vocabulary, d_model). p: (d_model,). sequences: token-id lists, an array, or `LabelledSequences`.
        tie: logits that differ from the largest by at most this count as equal; by default what rounding leaves of the two logits that
            are compared, however long the embeddings of other tokens are.
    Returns:
        A `TokenRanks` with one array of ids for each sequence; the latter two may be empty.
    """
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    query = real_array(p, "p", (table.shape[1],))
    given = 0.0 if tie is None else real_number(tie, "tie", "a number of at least 0")
    if not given >= 0.0:
        raise reject("tie", "a number of at least 0", tie)
    rounding = np.linalg.norm(table, axis=1) * np.linalg.norm(query) * _TIE
    widths = rounding if tie is None else np.full(len(table), given)  # (n_vocabulary,)
    logits = table @ query
    parts = [_ranks(np.unique(ids), logits, widths) for ids in token_lists(sequences, len(table))]
    return TokenRanks(*(tuple(some) for some in zip(*parts, strict=True)))


@implements("B", "Eq. (8)")
def selected_tokens(E: Any, p: Any, sequences: Any, *, tie: float | None = None) -> Selection:
    r"""The tokens that p selects in each sequence, those of the largest logit.

    .. math:: \mathcal S_X(p) = \{\hat s : \hat s = \arg\max_{s \in X} p^\top E_s\}

    Args:
        E, p, sequences, tie: as `token_ranks` takes them.
    Returns:
        One ascending array of token ids for each sequence, as `vocabulary_svm` takes them.
    """
    return token_ranks(E, p, sequences, tie=tie).selected


@implements("B", "Eq. (8)")
def equivalent_directions(E: Any, p: Any, q: Any, sequences: Any, *, tie: float | None = None) -> bool:
    r"""Whether two directions select the same tokens in every sequence, :math:`p \approx q`."""
    both = [selected_tokens(E, one, sequences, tie=tie) for one in (p, q)]
    return all(np.array_equal(mine, other) for mine, other in zip(*both, strict=True))


@dataclass(frozen=True, repr=False)
class LocalOptimality:
    """Whether a direction is locally optimal: `gaps` (n_samples,) the smallest sum of score differences in each sequence.

    A sequence without a secondary selection has the gap inf.
    """

    gaps: FloatArray

    @property
    def mu(self) -> float:
        """The largest constant μ that serves for all sequences."""
        return float(self.gaps.min())

    @property
    def holds(self) -> bool:
        """Whether μ > 0."""
        return self.mu > 0.0

    def __repr__(self) -> str:
        return f"LocalOptimality({'holds' if self.holds else 'fails'}, mu={self.mu:.6g}, {len(self.gaps)} sequences)"


@implements("B", "Definition 16")
def local_optimality(
    E: Any, p: Any, v: Any, sequences: Any, y: Any = None, *, tie: float | None = None
) -> LocalOptimality:
    r"""Whether the selected positions of every sequence together score more than the secondary ones.

    .. math:: \sum_{i \in \mathcal S_X(p)} (\gamma_i - \gamma_j) \ge \mu > 0 \quad \text{for all } j \in \mathcal S^2_X(p),\ (X, y),
        \qquad \gamma_i = y E_{x_i}^\top v

    The sum runs over positions, as in Lemma 8: a token that occurs twice counts twice.

    Args:
        E: embeddings (n_vocabulary, d_model). p, v: (d_model,). sequences, y: labelled sequences, or token-id lists and their labels.
        tie: as `token_ranks` takes it.
    """
    data = as_labelled(sequences, y)
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    score = table @ real_array(v, "v", (table.shape[1],))
    ranks = token_ranks(table, p, data, tie=tie)
    gaps = np.full(len(data), np.inf)
    for i, (first, second) in enumerate(zip(ranks.selected, ranks.secondary, strict=True)):
        ids, label = data[i]
        chosen = ids[np.isin(ids, first)]
        sums = np.sum(label * (score[chosen][:, None] - score[second]), axis=0)
        gaps[i] = np.min(sums, initial=np.inf)
    return LocalOptimality(gaps)


@dataclass(frozen=True, repr=False, eq=False)
class FeasibleSelections:
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

    def __len__(self) -> int:
        return len(self.selections)

    def index(self, selection: Any) -> int:
        """The place of a selection in the list; -1 where no p makes it."""
        wanted = _one_list_each(selection, "selection", len(self.selections[0]))
        same = (all(map(np.array_equal, wanted, one)) for one in self.selections)
        return next((k for k, equal in enumerate(same) if equal), -1)

    @implements("B", "Lemma 19")
    def margin_lead(self, selection: Any) -> float:
        r"""By which share ‖p̂‖ is shorter than the solution of any other selection, that of everything (Lemma 6) left out.

        .. math:: \mu = \max \{ \mu : \|\hat p\| \le (1 - \mu) \|\hat p'\| \text{ for all other } \hat p' \}

        Positive where `selection` has the widest margin; nan where no p makes it. That alone does not say where a flow goes: Lemma 19 asks
        for Eq. (10) and two widths besides, which `check_lemma_19` compares; at small d flows mostly go elsewhere (claim B-L6).
        """
        k = self.index(selection)
        rivals = np.isfinite(self.margins) & (np.arange(len(self)) != k)
        if k < 0 or not np.isfinite(self.margins[k]):
            return float("nan")
        return 1.0 - float(np.max(self.margins[rivals], initial=0.0)) / float(self.margins[k])

    def __repr__(self) -> str:
        finite = self.margins[np.isfinite(self.margins)]
        widest = f"{finite.max():.6g}" if len(finite) else "none"
        left_out = f", {self.n_undecided} undecided" if self.n_undecided else ""
        told = f"{len(self)} selections, widest margin {widest}, {self.n_solved} problems solved{left_out}"
        return f"FeasibleSelections({told})"


@implements("B", "Lemma 19")
def feasible_selections(
    E: Any, sequences: Any, *, required: Any = None, max_problems: int = 20_000
) -> FeasibleSelections:
    r"""Every selection of tokens that some p makes, with its max-margin direction; for small vocabularies.

    .. math:: \{ (\mathcal S_X(p))_{X \in \mathcal X_n} : p \in \mathbb R^d \}

    Selections whose comparisons contradict each other are never formed; where embeddings are linearly independent, no others are
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
        raise reject(
            "sequences",
            f"so few and short that at most max_problems = {max_problems} selections are consistent",
            f"{len(distinct)} different sequences of up to {max(map(len, sets))} tokens with more",
            "Raise max_problems, or ask vocabulary_svm about single selections.",
        )
    lists = [np.array(tokens) for tokens, _ in distinct]
    margins, x, undecided = _solve(table, lists, found)
    kept = np.flatnonzero(margins > 0.0)
    kept = kept[np.argsort(-margins[kept], kind="stable")]
    place = [distinct.index(key) for key in keys]
    selections = tuple(tuple(found[k][j] for j in place) for k in kept)
    norms = np.linalg.norm(x[kept], axis=1, keepdims=True)
    directions = x[kept] / np.where(norms == 0.0, 1.0, norms)
    return FeasibleSelections(selections, margins[kept], directions, len(found), undecided)


def _ranks(ids: IntArray, logits: FloatArray, widths: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    groups, left = [], ids
    for _ in range(2):
        top = left[np.argmax(logits[left])] if len(left) else -1
        first = logits[left] >= logits[top] - np.maximum(widths[left], widths[top])
        groups.append(left[first])
        left = left[~first]
    return groups[0], groups[1], left


def _id_lists(given: Any, argument: str) -> list[IntArray]:
    expected = "one list of token ids for each sequence"
    if isinstance(given, str | bytes) or not isinstance(given, Iterable) or getattr(given, "ndim", 2) < 1:
        raise reject(argument, expected, repr(given))
    lists = [array_of_any(one, argument, expected) for one in given]
    for one in lists:
        if one.ndim != 1 or (one.size and one.dtype.kind not in "iu"):
            raise reject(argument, expected, f"shape {one.shape} with dtype {one.dtype}")
    return lists


def _one_list_each(given: Any, argument: str, n_sequences: int) -> list[IntArray]:
    """The different ids of each list, ascending; refused where the lists are not as many as the sequences."""
    lists = [np.unique(one) for one in _id_lists(given, argument)]
    if len(lists) != n_sequences:
        raise reject(argument, f"one list of token ids for each of the {n_sequences} sequences", f"{len(lists)} lists")
    return lists


def _required(required: Any, sets: list[IntArray]) -> list[list[int]]:
    if required is None:
        return [[] for _ in sets]
    lists = [one.tolist() for one in _one_list_each(required, "required", len(sets))]
    for i, (must, ids) in enumerate(zip(lists, sets, strict=True)):
        strange = set(must) - set(ids.tolist())
        if strange:
            raise reject(f"required[{i}]", f"tokens of sequence {i}", f"token {min(strange)}, which is not among them")
    return lists


def _consistent(distinct: list[tuple[Any, Any]], n_vocabulary: int, max_problems: int) -> list[Selection] | None:
    """Every selection whose comparisons contradict no others, or None where there are more than `max_problems`."""
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
    problems = [selection_pairs(lists, list(one)) for one in found]
    compared, differences = _differences(E, problems, basis)
    n_rows = max(1, *(len(one.pairs) for one in problems))
    n_ties = max(1, *(len(one.ties) for one in problems))
    d = basis.shape[1]
    margins, x, undecided = np.zeros(len(found)), np.zeros((len(found), d)), 0
    size = max(1, _NUMBERS_AT_ONCE // ((n_rows + n_ties) * d))
    for first in range(0, len(found), size):
        some = problems[first : first + size]
        rows, floor = np.zeros((len(some), n_rows, d)), np.zeros((len(some), n_rows))
        ties = np.zeros((len(some), n_ties, d))
        for k, one in enumerate(some):
            rows[k, : len(one.pairs)] = differences[np.searchsorted(compared, _key(E, one.pairs[:, 1:]))]
            floor[k, : len(one.pairs)] = 1.0
            ties[k, : len(one.ties)] = differences[np.searchsorted(compared, _key(E, one.ties))]
        solved = least_distance(rows, floor, equalities=ties)
        feasible = np.array([one in (Status.OPTIMAL, Status.TRIVIAL) for one in solved.status])
        undecided += sum(one is Status.INACCURATE for one in solved.status)
        margins[first : first + len(some)] = np.where(feasible, solved.margin, 0.0)
        x[first : first + len(some)] = np.where(feasible[:, None], np.nan_to_num(solved.x), 0.0)
    return margins, x @ basis.T, undecided


def _key(E: FloatArray, pairs: IntArray) -> IntArray:
    """(n_pairs,) one number for each pair of tokens."""
    return pairs[:, 0] * len(E) + pairs[:, 1]


def _differences(E: FloatArray, problems: list[SelectionPairs], basis: FloatArray) -> tuple[IntArray, FloatArray]:
    """The keys of all pairs that are compared, and their differences in coordinates of the span: taken first, rotated then."""
    keys = [_key(E, some) for one in problems for some in (one.pairs[:, 1:], one.ties)]
    compared = np.unique(np.concatenate(keys))
    upper, lower = np.divmod(compared, len(E))
    return compared, (E[upper] - E[lower]) @ basis
