"""Selections of vocabulary tokens (paper B): ranks, local optimality, all feasible ones, and slopes of the loss along directions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.directions import length
from marginlens.embeddings.models import Parameters, as_parameters, distinct_tokens
from marginlens.errors import array_of_any, real_array, real_number, reject, whole_number
from marginlens.papers import implements, uses
from marginlens.result import Result, Tabular, axes_for
from marginlens.result.drawing import draw_bars, draw_interval
from marginlens.result.palette import GLOBAL, LOCAL, NEITHER
from marginlens.status import Status
from marginlens.svm import MarginSolution, least_distance
from marginlens.svm.vocabulary import selection_pairs, token_lists, vocabulary_svm
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

Selection = tuple[IntArray, ...]  # the token ids selected in each sequence, ascending

_TIE_RTOL = (
    2.0**-40
)  # logits that differ by less, relative to the larger of both Σ_j |E_sj p_j|, tie: what rounding leaves
_NUMBERS_AT_ONCE = 4_000_000  # entries of the constraint matrices that one batch of problems may hold


@dataclass(frozen=True, repr=False, eq=False)
class TokenRanks(Result, Tabular):
    """The tokens of each sequence by their logits: the largest, the second largest, and those below; ids ascending.

    `to_frame()` has one row per sequence: sequence, selected, secondary, below.
    """

    selected: Selection
    secondary: Selection
    below: Selection

    def plot(self, ax: Any = None) -> Any:
        """Draw how many tokens of every sequence are selected, second, and below. Returns the axes."""
        ax = axes_for(ax)
        bottom = np.zeros(len(self.selected))
        for name, parts, colour in (
            ("selected", self.selected, GLOBAL),
            ("second", self.secondary, LOCAL),
            ("below", self.below, NEITHER),
        ):
            sizes = np.array([len(ids) for ids in parts])
            ax.bar(np.arange(len(sizes)), sizes, bottom=bottom, color=colour, width=0.9, label=name)
            bottom = bottom + sizes
        ax.legend()
        ax.set(xlabel="sequence", ylabel="different tokens")
        return ax

    def _columns(self) -> dict[str, Any]:
        columns = {"selected": self.selected, "secondary": self.secondary, "below": self.below}
        return {"sequence": np.arange(len(self.selected)), **columns}


@implements("B", "Definition 15")
@uses(
    "B",
    {
        "Eq. (20)": "The second selection, its attribute secondary.",
        "Eq. (21)": "The tokens below both, its attribute below.",
    },
)
def token_ranks(E: ArrayLike, p: ArrayLike, sequences: Any, *, tie: float | None = None) -> TokenRanks:
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
    rounding = (
        np.abs(table) @ np.abs(query) * _TIE_RTOL
    )  # what a sum of products can lose: Σ_j |E_sj p_j|, not ‖E_s‖‖p‖
    widths = rounding if tie is None else np.full(len(table), given)  # (n_vocabulary,)
    logits = table @ query
    parts = [_ranks(np.unique(ids), logits, widths) for ids in token_lists(sequences, len(table))]
    return TokenRanks(*(tuple(ranked) for ranked in zip(*parts, strict=True)))


@implements("B", "Eq. (8)")
def selected_tokens(E: ArrayLike, p: ArrayLike, sequences: Any, *, tie: float | None = None) -> Selection:
    r"""The tokens that p selects in each sequence, those of the largest logit.

    .. math:: \mathcal S_X(p) = \{\hat s : \hat s = \arg\max_{s \in X} p^\top E_s\}

    Args:
        E, p, sequences, tie: as `token_ranks` takes them.
    Returns:
        One ascending array of token ids for each sequence, as `vocabulary_svm` takes them.
    """
    return token_ranks(E, p, sequences, tie=tie).selected


@implements("B", "Eq. (8)")
def equivalent_directions(E: ArrayLike, p: ArrayLike, q: Any, sequences: Any, *, tie: float | None = None) -> bool:
    r"""Whether two directions select the same tokens in every sequence, :math:`p \approx q`."""
    both = [selected_tokens(E, direction, sequences, tie=tie) for direction in (p, q)]
    return all(np.array_equal(mine, other) for mine, other in zip(*both, strict=True))


@dataclass(frozen=True, repr=False, eq=False)
class LocalOptimality(Result, Tabular):
    """Whether a direction is locally optimal: `gaps` (n_samples,) the smallest sum of score differences in each sequence.

    A sequence without a secondary selection has the gap inf.

    `to_frame()` has one row per sequence: sequence, gap.
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

    def plot(self, ax: Any = None) -> Any:
        """Draw the gaps of the sequences in order: the direction is locally optimal where all are above zero. Returns the axes."""
        ax = axes_for(ax)
        gaps = np.sort(self.gaps[np.isfinite(self.gaps)])
        ax.plot(np.arange(len(gaps)), gaps, ".", color=LOCAL)
        ax.axhline(0.0, color=GLOBAL, linewidth=1.0)
        ax.set(xlabel="sequence, in order of its gap", ylabel="smallest sum of score differences")
        return ax

    def _columns(self) -> dict[str, Any]:
        return {"sequence": np.arange(len(self.gaps)), "gap": self.gaps}


@implements("B", "Definition 16")
def local_optimality(
    E: ArrayLike, p: ArrayLike, head: Any, sequences: Any, y: ArrayLike | None = None, *, tie: float | None = None
) -> LocalOptimality:
    r"""Whether the selected positions of every sequence together score more than the secondary ones.

    .. math:: \sum_{i \in \mathcal S_X(p)} (\gamma_i - \gamma_j) \ge \mu > 0 \quad \text{for all } j \in \mathcal S^2_X(p),\ (X, y),
        \qquad \gamma_i = y E_{x_i}^\top v

    The sum runs over positions, as in Lemma 8: a token that occurs twice counts twice.

    Args:
        E: embeddings (n_vocabulary, d_model). p, head: (d_model,). sequences, y: labelled sequences, or token-id lists and their labels.
        tie: as `token_ranks` takes it.
    """
    data = as_labelled(sequences, y)
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    score = table @ real_array(head, "v", (table.shape[1],))
    ranks = token_ranks(table, p, data, tie=tie)
    gaps = np.full(len(data), np.inf)
    for i, (first, second) in enumerate(zip(ranks.selected, ranks.secondary, strict=True)):
        ids, label = data[i]
        chosen = ids[np.isin(ids, first)]
        sums = np.sum(label * (score[chosen][:, None] - score[second]), axis=0)
        gaps[i] = np.min(sums, initial=np.inf)
    return LocalOptimality(gaps)


@dataclass(frozen=True, repr=False, eq=False)
class FeasibleSelections(Result, Tabular):
    """All selections that some p makes, widest margin first.

    Attributes:
        selections: one per class of equivalent directions, each with the ids selected in every sequence.
        margins: (n_found,) 1/‖p̂‖ of its max-margin problem; inf for the selection of everything, which p = 0 makes.
        directions: (n_found, d_model) p̂/‖p̂‖, zero for the selection of everything.
        n_solved: max-margin problems solved.
        n_undecided: problems that double precision can neither solve nor prove infeasible; their selections are left out.

    `to_frame()` has one row per selection: selection (ids of each sequence), margin, direction.
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
        wanted = _id_sets(selection, "selection", len(self.selections[0]))
        same = (all(map(np.array_equal, wanted, listed)) for listed in self.selections)
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
        text = f"{len(self)} selections, widest margin {widest}, {self.n_solved} problems solved{left_out}"
        return f"FeasibleSelections({text})"

    def plot(self, ax: Any = None) -> Any:
        """Draw the margins of the selections. Returns the axes."""
        ax = axes_for(ax)
        known = np.flatnonzero(np.isfinite(self.margins))
        names = [" | ".join(",".join(map(str, ids)) for ids in self.selections[k])[:24] for k in known]
        draw_bars(ax, names, self.margins[known], "margin", ylabel="tokens selected in each sequence")
        return ax

    def _columns(self) -> dict[str, Any]:
        listed = [[ids.tolist() for ids in selection] for selection in self.selections]
        return {"selection": listed, "margin": self.margins, "direction": self.directions}


@implements("B", "Lemma 19")
def feasible_selections(
    E: ArrayLike, sequences: Any, *, required: Any = None, max_problems: int = 20_000
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
    order = np.flatnonzero(margins > 0.0)
    order = order[np.argsort(-margins[order], kind="stable")]
    place = [distinct.index(key) for key in keys]
    selections = tuple(tuple(found[k][j] for j in place) for k in order)
    norms = np.linalg.norm(x[order], axis=1, keepdims=True)
    directions = x[order] / np.where(norms == 0.0, 1.0, norms)
    return FeasibleSelections(selections, margins[order], directions, len(found), undecided)


def _ranks(ids: IntArray, logits: FloatArray, widths: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    groups, left = [], ids
    for _ in range(2):
        top = left[np.argmax(logits[left])] if len(left) else -1
        first = logits[left] >= logits[top] - np.maximum(widths[left], widths[top])
        groups.append(left[first])
        left = left[~first]
    return groups[0], groups[1], left


def _id_sets(given: Any, argument: str, n_sequences: int) -> list[IntArray]:
    """The different ids of each list, ascending; refused where there is not one list of ids for each sequence."""
    expected = f"one list of token ids for each of the {n_sequences} sequences"
    if isinstance(given, str | bytes) or not isinstance(given, Iterable) or getattr(given, "ndim", 2) < 1:
        raise reject(argument, expected, repr(given))
    lists = [array_of_any(ids, argument, expected) for ids in given]
    if len(lists) != n_sequences or any(ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu") for ids in lists):
        raise reject(argument, expected, f"{len(lists)} lists of shapes {[ids.shape for ids in lists[:3]]}")
    return [np.unique(ids) for ids in lists]


def _required(required: Any, sets: list[IntArray]) -> list[list[int]]:
    if required is None:
        return [[] for _ in sets]
    lists = [ids.tolist() for ids in _id_sets(required, "required", len(sets))]
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
        solved = least_distance(rows, lower, equalities=ties)
        feasible = np.array([status in (Status.OPTIMAL, Status.TRIVIAL) for status in solved.status])
        undecided += sum(status is Status.INACCURATE for status in solved.status)
        margins[first : first + len(part)] = np.where(feasible, solved.margin, 0.0)
        x[first : first + len(part)] = np.where(feasible[:, None], np.nan_to_num(solved.x), 0.0)
    return margins, x @ basis.T, undecided


# ---- slopes of the loss along directions: Lemmas 9, 10, 17 and 18


@dataclass(frozen=True, repr=False, eq=False)
class WeightBounds(Result, Tabular):
    """The softmax weight of every position between its bounds, as logarithms, each (n_positions,), sequence after sequence.

    `to_frame()` has one row per position: position, log_lower, log_weight, log_upper.
    """

    log_weight: FloatArray
    log_lower: FloatArray
    log_upper: FloatArray

    def plot(self, ax: Any = None) -> Any:
        """Draw the weight of every position between its bounds, in logarithms and in order. Returns the axes."""
        ax = axes_for(ax)
        order = np.argsort(self.log_weight, kind="stable")
        x = np.arange(len(order))
        ax.fill_between(
            x, self.log_lower[order], self.log_upper[order], color=LOCAL, alpha=0.2, label="between the bounds"
        )
        ax.plot(x, self.log_weight[order], color=GLOBAL, label="weight")
        ax.legend()
        ax.set(xlabel="position, in order of its weight", ylabel="log of the softmax weight")
        return ax

    def _columns(self) -> dict[str, Any]:
        numbers = {"log_lower": self.log_lower, "log_weight": self.log_weight, "log_upper": self.log_upper}
        return {"position": np.arange(len(self.log_weight)), **numbers}


@implements("B", "Lemma 10")
def softmax_weight_bounds(E: ArrayLike, p: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> WeightBounds:
    r"""The softmax weight of each position beside what the gap τ of its logit to the selected ones says.

    .. math:: \frac1T \le q_{i_*} \le 1, \qquad \frac{1}{T e^{\tau}} \le q_j \le \frac{1}{1 + e^{\tau}}, \quad
        \tau = p^\top (E_{x_{i_*}} - E_{x_j}),\ x_{i_*} \in \mathcal S_X(p),\ x_j \notin \mathcal S_X(p)

    Args:
        E: embeddings (n_vocabulary, d_model). p: (d_model,). sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        Logarithms, exact at any norm: `log_lower <= log_weight <= log_upper` up to rounding.
    """
    data, table = as_labelled(sequences, y), real_array(E, "E", ("n_vocabulary", "d_model"))
    logits = table @ real_array(p, "p", (table.shape[1],))
    selected = token_ranks(table, p, data).selected
    weight, lower, upper = np.empty((3, len(data.tokens)))
    for i in range(len(data)):
        part = slice(data.offsets[i], data.offsets[i + 1])
        ids = data.tokens[part]
        a, T = logits[ids], len(ids)
        gap = a.max() - a
        chosen = np.isin(ids, selected[i])
        weight[part] = -gap - np.log(np.sum(np.exp(-gap)))
        lower[part] = np.where(chosen, 0.0, -gap) - np.log(T)
        upper[part] = np.where(chosen, 0.0, -np.logaddexp(0.0, gap))
    return WeightBounds(weight, lower, upper)


# ---- Lemma 17


@dataclass(frozen=True, repr=False, eq=False)
class DominantSlope(Result):
    r"""How much of the slope along a direction the first and second selections make up, and Lemma 17's bound on the rest.

    Attributes:
        ratio: the slope over its part (B0). log_bound: logarithm of (T + T²) C₃ C₄ e^(−τ₁R), which |ratio − 1| does not exceed.
        tau_1: the smallest gap between first, second and further tokens along p/‖p‖. tau_2: the smallest lead along the direction.
        mu: of local optimality. C_3, C_4: the constants of Eqs (23) and (25).
    """

    ratio: float
    log_bound: float
    tau_1: float
    tau_2: float
    mu: float
    C_3: float
    C_4: float

    @property
    def applies(self) -> bool:
        """Whether p is locally optimal and all gaps are positive, as the lemma asks."""
        return self.mu > 0.0 and self.tau_1 > 0.0 and self.tau_2 > 0.0

    @property
    def holds(self) -> bool:
        """Whether the bound is true here."""
        return abs(self.ratio - 1.0) <= np.exp(min(self.log_bound, 700.0))

    def plot(self, ax: Any = None) -> Any:
        """Draw how far the ratio is from one beside the bound of the lemma, in logarithms. Returns the axes."""
        ax = axes_for(ax)
        distance = float(np.log(max(abs(self.ratio - 1.0), 1e-300)))
        draw_interval(ax, [("|ratio − 1|", distance), ("bound", self.log_bound)], "logarithm")
        return ax


@implements("B", "Lemma 17")
@uses(
    "B",
    {
        "Eq. (22)": "The gaps τ₁ between first, second and further tokens along p/‖p‖, its attribute tau_1.",
        "Eq. (23)": "The constant C₃ = 2‖p̂‖ max‖E_s‖/τ₂, its attribute C_3.",
        "Eq. (24)": "The weights of further tokens beside those of second ones, at most e^(−τ₁R).",
        "Eq. (25)": "The constant C₄ = 2T max‖E_s‖/μ, its attribute C_4.",
    },
)
def dominant_slope(
    model: Parameters, direction: ArrayLike, sequences: Any, y: ArrayLike | None = None
) -> DominantSlope:
    r"""How the slope along a direction compares with the part that the selected tokens and the second ones make up.

    .. math:: -\hat p^\top \nabla_p L(E, p) = (1 + \epsilon)\, \hat{\mathbb E}\Big[
        \sum_{i \in \mathcal S_X(p)} \sum_{j \in \mathcal S^2_X(p)} (\hat a_i - \hat a_j)\, h_{ij} \Big],
        \quad |\epsilon| \le (T + T^2)\, C_3 C_4\, e^{-\tau_1 R}, \quad
        h_{ij} = g\, q_i q_j (\gamma_i - \gamma_j),\ R = \|p\|

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,), v of unit norm. direction: p̂ (d_model,), which selects what p selects.
        sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        A `DominantSlope`; slopes are formed relative to their largest term, so the ratio is exact at any norm.
    """
    E, p, v, data = _problem(model, sequences, y)
    moved = real_array(direction, "direction", (E.shape[1],))
    if not equivalent_directions(E, p, moved, data):
        raise reject("direction", "one that selects in every sequence the tokens that p selects", "another selection")
    ranks, radius = token_ranks(E, p, data), float(length(p))
    terms = _PairTerms(E, p, v, data)
    along = E @ moved
    ratio = terms.slope(along).over(terms.slope(along, ranks))
    T, longest = int(data.lengths.max()), float(np.max(length(E[np.unique(data.tokens)])))
    tau_1 = _smallest_gap(E @ p / radius, ranks, both=True)
    tau_2 = _smallest_gap(along, ranks, both=False)
    mu = local_optimality(E, p, v, data).mu
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        C_3, C_4 = 2.0 * float(length(moved)) * longest / np.float64(tau_2), 2.0 * T * longest / np.float64(mu)
        bound = np.log((T + T**2) * C_3 * C_4) - tau_1 * radius
    return DominantSlope(ratio, float(bound), tau_1, tau_2, mu, float(C_3), float(C_4))


# ---- Lemmas 9 and 18


@implements("B", "Lemma 9")
@uses("B", {"Eq. (15)": "The comparison of two slopes; what comes back is the smallest ε for which it holds."})
def slope_deficit(model: Parameters, direction: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> float:
    r"""By which share the loss falls more slowly along a direction than along p itself, the smallest ε of Eq. (15).

    .. math:: -\frac{\hat p^\top}{\|\hat p\|} \nabla_p L(E, p) \ge -(1 - \epsilon) \frac{p^\top}{\|p\|} \nabla_p L(E, p)

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,). direction: p̂ (d_model,). sequences, y: labelled sequences, or ids and labels.
    Returns:
        ε, negative where it falls faster along the direction; nan where it does not fall along p.
    """
    E, p, v, data = _problem(model, sequences, y)
    moved = real_array(direction, "direction", (E.shape[1],))
    terms = _PairTerms(E, p, v, data)
    along_p, other = terms.slope(E @ p), terms.slope(E @ moved)
    if not along_p.mantissa > 0.0:
        return float("nan")
    return 1.0 - other.over(along_p) * float(length(p)) / float(length(moved))


@implements("B", "Lemma 9")
def convergence_bound(points: Any, direction: ArrayLike, deficits: Any) -> FloatArray:
    r"""The cosine with a direction that a gradient flow must have reached, from how the slopes compared on its way.

    .. math:: \frac{\hat p^\top p_t}{\|\hat p\| \|p_t\|} \ge (1 - \epsilon) \Big(1 - \frac{\|p_{\bar t}\|}{\|p_t\|}\Big)
        + \frac{\hat p^\top p_{\bar t}}{\|\hat p\| \|p_t\|}, \quad \epsilon = \max_{[\bar t, t]} \epsilon(p)

    With ‖p_t‖ → ∞ and ε → 0 the right-hand side tends to one: so a limit, if there is one, is p̂.

    Args:
        points: (n_points, d_model) along a flow, the first being p at time t̄, close enough to each other that none of the largest ε is
            missed. direction: p̂ (d_model,). deficits: (n_points,) `slope_deficit` at each.
    Returns:
        (n_points,) the right-hand side, a lower bound on the cosine at each point.
    """
    path = real_array(points, "points", ("n_points", "d_model"))
    along = real_array(direction, "direction", (path.shape[1],))
    worst = np.maximum.accumulate(real_array(deficits, "deficits", (len(path),)))
    norms = np.asarray(length(path))
    return (1.0 - worst) * (1.0 - norms[0] / norms) + float(along @ path[0]) / float(length(along)) / norms


@dataclass(frozen=True, repr=False, eq=False)
class OwnMaxMargin(Result):
    r"""What Lemma 18 compares at p: the slope along the max-margin direction of p's own selection, and that along p.

    Attributes:
        solution: p̂, the max-margin solution of what p selects. ratio: the slope along p̂/‖p̂‖ over that along p/‖p‖.
        least: what the ratio is at least, up to terms that vanish as ‖p‖ grows: one over the margin of p scaled to the length of p̂.
        C_5: Eq. (27)'s bound on g(X')/g(X) for two sequences. odds: the largest such ratio.
    """

    solution: MarginSolution
    ratio: float
    least: float
    C_5: float
    odds: float

    def plot(self, ax: Any = None) -> Any:
        """Draw the ratio of the slopes beside what it is at least, far out. Returns the axes."""
        ax = axes_for(ax)
        draw_interval(ax, [("ratio of the slopes", self.ratio), ("at least, far out", self.least)], "ratio")
        return ax


@implements("B", "Lemma 18")
@uses(
    "B",
    {
        "Eq. (26)": "The comparison of the slopes along p̂ and along p scaled to its length, its attribute ratio.",
        "Eq. (27)": "The bound C₅ on how differently two sequences weigh, its attribute C_5, with the outputs at hand for η₀.",
    },
)
def own_max_margin(model: Parameters, sequences: Any, y: ArrayLike | None = None) -> OwnMaxMargin:
    r"""How much faster the loss falls along the max-margin direction of what p selects than along p, far out.

    .. math:: \frac{-\hat p^\top \nabla_p L(E, p)}{-\bar p^\top \nabla_p L(E, p)} \ \gtrsim\ \frac{1}{\min \bar p^\top (E_s - E_{s'})} > 1,
        \quad \hat p \in \mathcal P_*(p),\ \bar p = \|\hat p\| \frac{p}{\|p\|}

    Where p's direction is not that of p̂ its margin is below one, so the flow turns towards p̂: by Lemma 9 no other direction is a limit.

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,), p locally optimal. sequences, y: labelled sequences, or ids and labels.
    Returns:
        An `OwnMaxMargin`; the inequality is asymptotic, with errors that fall like e^(−τ‖p‖/‖p̂‖).
    """
    E, p, v, data = _problem(model, sequences, y)
    ranks = token_ranks(E, p, data)
    solution = vocabulary_svm(E, data, ranks.selected)
    if solution.status is not Status.OPTIMAL:
        raise reject("model.p", "a vector that selects some tokens and leaves others", solution.status.value)
    terms = _PairTerms(E, p, v, data)
    scale = float(length(solution.x)) / float(length(p))
    ratio = terms.slope(E @ solution.x).over(terms.slope(E @ p)) / scale
    least = 1.0 / (scale * _smallest_gap(E @ p, ranks, both=False))
    bound = 1.0 + float(np.exp(min(terms.margins.max(), 700.0)))
    odds = float(np.exp(terms.log_g.max() - terms.log_g.min()))
    return OwnMaxMargin(solution, ratio, least, bound, odds)


# ---- parts


class _Slope(NamedTuple):
    """A slope as `mantissa` · e^`log_scale`, which no norm of p makes underflow."""

    mantissa: float
    log_scale: float

    def over(self, other: _Slope) -> float:
        """The ratio of two slopes; nan where the other is zero."""
        if other.mantissa == 0.0:
            return float("nan")
        return self.mantissa / other.mantissa * float(np.exp(self.log_scale - other.log_scale))


class _PairTerms:
    """The sum over pairs of tokens that a slope is (Lemma 8), from logarithms of its weights."""

    def __init__(self, E: FloatArray, p: FloatArray, v: FloatArray, data: LabelledSequences) -> None:
        self.pairs = distinct_tokens(data)
        self.scores, logits = E @ v, E @ p
        self.log_q: list[FloatArray] = []
        self.margins = np.empty(len(self.pairs))  # y f
        for i in range(len(self.pairs)):
            token, count = self._tokens(i)
            weights = logits[token] - logits[token].max() + np.log(count)
            self.log_q.append(weights - np.logaddexp.reduce(weights))
            self.margins[i] = float(self.pairs.y[i]) * float(np.exp(self.log_q[i]) @ self.scores[token])
        self.log_g = -np.logaddexp(0.0, self.margins)  # g = 1 / (1 + e^{y f})

    def _tokens(self, i: int) -> tuple[Any, Any]:
        part = slice(self.pairs.offsets[i], self.pairs.offsets[i + 1])
        return self.pairs.token[part], self.pairs.count[part]

    def slope(self, along: FloatArray, ranks: TokenRanks | None = None) -> _Slope:
        """-p̂ᵀ∇L, `along` being E p̂; with ranks only the part of selected tokens with second ones."""
        logs, values = [np.zeros(0)], [np.zeros(0)]
        for i in range(len(self.pairs)):
            token, _ = self._tokens(i)
            upper, lower = np.triu_indices(len(token), k=1)
            apart = along[token][upper] - along[token][lower]
            apart[np.abs(apart) <= _TIE_RTOL * np.abs(along[token]).max()] = 0.0  # ties, up to rounding
            score = float(self.pairs.y[i]) * (self.scores[token][upper] - self.scores[token][lower])
            value = apart * score
            if ranks is not None:
                first, second = np.isin(token, ranks.selected[i]), np.isin(token, ranks.secondary[i])
                counted = (first[upper] & second[lower]) | (second[upper] & first[lower])
                value = np.where(counted, value, 0.0)
            logs.append(np.where(value == 0.0, -np.inf, self.log_q[i][upper] + self.log_q[i][lower] + self.log_g[i]))
            values.append(value / len(self.pairs))
        weight = np.concatenate(logs)
        scale = float(np.max(weight, initial=-np.inf))
        if not np.isfinite(scale):
            return _Slope(0.0, 0.0)
        return _Slope(float(np.exp(weight - scale) @ np.concatenate(values)), scale)


def _smallest_gap(logits: FloatArray, ranks: TokenRanks, *, both: bool) -> float:
    """The smallest lead of selected tokens over all others; with `both` over second ones, and of these over the rest."""
    gaps = [np.inf]
    for first, second, below in zip(ranks.selected, ranks.secondary, ranks.below, strict=True):
        if len(second):
            gaps.append(float(logits[first].min() - logits[second].max()))
        if len(below):
            above = second if both else first
            gaps.append(float(logits[above].min() - logits[below].max()))
    return min(gaps)


def _problem(model: Parameters, sequences: Any, y: Any) -> tuple[FloatArray, FloatArray, FloatArray, LabelledSequences]:
    data = as_labelled(sequences, y)
    E = real_array(as_parameters(model, "model").E, "model.E", ("n_vocabulary", "d_model"))
    if len(E) < data.n_vocabulary:
        raise reject("model.E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(E)} rows")
    shape = (E.shape[1],)
    return E, real_array(model.p, "model.p", shape), real_array(model.v, "model.v", shape), data
