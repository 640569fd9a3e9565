"""Max-margin problems of selected vocabulary entries: the shortest p under which every sequence selects exactly its listed tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequences import check_ids, flat_sequences
from marginlens.errors import InputError, index_array, real_array
from marginlens.papers import implements
from marginlens.result import Result, Tabular, table
from marginlens.svm.solution import MarginSolution
from marginlens.svm.solvers.least_distance import least_distance
from marginlens.typing import ArrayLike, FloatArray, IntArray
from marginlens.words import Fact

# Up to this the closed form meets all equations, and its multipliers make it up.
CLOSED_FORM_RTOL = 1e-9
# Singular values of the rows below this share of the largest count as zero.
_SPAN_RTOL = 1e-12


@implements("B", "Eq. (9)", "Lemma 3")
def vocabulary_svm(
    E: ArrayLike, sequences: LabelledSequences | Iterable[ArrayLike], selected: ArrayLike
) -> MarginSolution:
    r"""Find the shortest p under which the selected tokens of every sequence tie, and beat its other tokens by at least one.

    .. math:: \min_{p \in \mathcal P} \|p\| \ \text{s.t.}\ p^\top (E_s - E_{s'}) \ge 1,\quad
        s \in \mathcal S_X,\ s' \in X \setminus \mathcal S_X,\ X \in \mathcal X_n, \qquad
        \mathcal P = \{p : p^\top E_s = p^\top E_{\hat s},\ s, \hat s \in \mathcal S_X\}

    Args:
        E: embeddings (n_vocabulary, d_model).

        sequences: token-id lists, an array (n_samples, n_tokens), or `LabelledSequences`.

        selected: `selected[i]` lists the token ids selected in sequence i, at least one of its own.

    Returns:
        A solution whose `multipliers[r] >= 0` belongs to `pairs[r]` = (i, s, s'), where i is the first sequence in which the
        selected s represents its ties and s' is not selected; p = sum_r multipliers[r] * rows[r] + equality_multipliers @
        equalities. It is unique, zero if everything is selected, and INFEASIBLE with a Farkas vector if no p makes the
        selection. `kkt_residual()` and `certificate_residual()` check it.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> solution = ml.vocabulary_svm(np.eye(3), [[0, 1, 2], [1, 2]], [[0, 1], [1]])
        >>> print(solution.x.round(3))
        [ 0.333  0.333 -0.667]
    """
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    problem = selection_pairs(*position_lists(table, sequences, selected))
    rows, ties = problem.rows(table)
    return least_distance(rows, np.ones(len(rows)), equalities=ties if len(ties) else None, pairs=problem.pairs)


@dataclass(frozen=True, repr=False, eq=False)
class ClosedForm(Result, Tabular):
    r"""The candidate :math:`p = M^\dagger 1` for the max-margin solution of a selection, and the residuals that decide whether
    it is the solution.

    Attributes:
        x: (d_model,) the shortest p for which all constraints would be equalities, in the sense of least squares.

        multipliers: (n_rows,) the λ >= 0 that come closest to reproducing x, for the rows of `vocabulary_svm`.

        equation_residual: ‖M p - 1‖ divided by the square root of the number of rows; 0 if all constraints can hold with equality.

        multiplier_residual: ‖p - Mᵀλ - Cᵀμ‖ / ‖p‖ for the best λ >= 0 and any μ of the ties C; 0 if the candidate is optimal.

    `to_frame()` has one row per constraint: row, multiplier.
    """

    x: FloatArray
    multipliers: FloatArray
    equation_residual: float
    multiplier_residual: float
    quantities = "{certified:certified|refused}, norm={x:norm}"

    _columns = table("row", multiplier="multipliers")

    @property
    def certified(self) -> bool:
        """True if it solves the problem: all equations hold, and nonnegative multipliers prove it the shortest."""
        return self.equation_residual <= CLOSED_FORM_RTOL and self.multiplier_residual <= CLOSED_FORM_RTOL

    @property
    def why(self) -> Fact:
        """The residual that decides, in words."""
        if self.equation_residual > CLOSED_FORM_RTOL:
            return Fact("closed_form.no_equality", {"residual": self.equation_residual})
        if self.multiplier_residual > CLOSED_FORM_RTOL:
            return Fact("closed_form.negative_multiplier", {"residual": self.multiplier_residual})
        return Fact("closed_form.certified")


@implements("B", "Lemma 3")
def closed_form_candidate(
    E: ArrayLike, sequences: LabelledSequences | Iterable[ArrayLike], selected: ArrayLike
) -> ClosedForm:
    r"""Compute the closed form that the paper gives for the max-margin solution, and check whether it is the solution.

    .. math:: p = M^\dagger 1 \quad \text{solves Eq. (9) if and only if} \quad
        M p = 1 \ \text{and}\ p = M^\top \lambda + C^\top \mu \ \text{for some}\ \lambda \ge 0

    App. D.2, and Lemma 4.2 of the earlier version, treat every constraint as an equality, which complementary slackness does
    not imply. M has a row :math:`E_s - E_{s'}` for each selected s and other s' of a sequence; C has the differences of tokens
    selected together.

    Args:
        E: as in `vocabulary_svm`.

        sequences: as in `vocabulary_svm`.

        selected: as in `vocabulary_svm`.

    Returns:
        A `ClosedForm`. `vocabulary_svm` finds the same p if and only if it is `certified`.

    Examples:
        >>> import numpy as np
        >>> from marginlens.svm import closed_form_candidate
        >>> candidate = closed_form_candidate(np.eye(3), [[0, 1, 2]], [[0]])
        >>> candidate.certified
        True
        >>> print(candidate.x.round(3))
        [ 0.667 -0.333 -0.333]
    """
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    rows, ties = selection_pairs(*position_lists(table, sequences, selected)).rows(table)
    if not len(rows):
        return ClosedForm(np.zeros(table.shape[1]), np.zeros(0), 0.0, 0.0)
    every, wanted = np.concatenate([rows, ties]), np.repeat([1.0, 0.0], [len(rows), len(ties)])
    p, _, _, values = np.linalg.lstsq(every, wanted, rcond=_SPAN_RTOL)
    norm, largest = float(length(p)), float(values[0])
    equation_residual = float(np.linalg.norm(every @ p - wanted) / np.sqrt(len(rows)))
    if norm * largest <= CLOSED_FORM_RTOL:
        # The rows contradict each other and cancel, or tokens have the same embedding.
        return ClosedForm(p, np.zeros(len(rows)), equation_residual, 1.0)
    signed = np.concatenate([every, -ties])
    weights, multiplier_residual = scipy.optimize.nnls(signed.T / largest, p / norm, maxiter=50 * len(signed))
    return ClosedForm(p, weights[: len(rows)] * norm / largest, equation_residual, float(multiplier_residual))


class SelectionPairs(NamedTuple):
    """The constraints of a selection, by tokens: `pairs` (n_rows, 3) as (sequence, s, s') with s above s', and `ties` (n_ties, 2)."""

    pairs: IntArray
    ties: IntArray

    def rows(self, E: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Compute the differences of embeddings for every pair and every tie."""
        return E[self.pairs[:, 1]] - E[self.pairs[:, 2]], E[self.ties[:, 0]] - E[self.ties[:, 1]]


def selection_pairs(sequences: list[IntArray], selection: list[IntArray]) -> SelectionPairs:
    """List the constraints of a selection, each pair of tokens once; the first selected token of a sequence represents its ties."""
    strict: dict[tuple[int, int], int] = {}
    tied: dict[tuple[int, int], None] = {}
    for i, (tokens, chosen) in enumerate(zip(sequences, selection, strict=True)):
        first, *others = chosen.tolist()
        for s in others:
            tied.setdefault((first, s))
        for s in sorted(set(tokens.tolist()) - set(chosen.tolist())):
            strict.setdefault((first, s), i)
    pairs = np.array([(i, s, other) for (s, other), i in strict.items()], dtype=np.int64).reshape(-1, 3)
    return SelectionPairs(pairs, np.array(list(tied), dtype=np.int64).reshape(-1, 2))


def token_lists(sequences: LabelledSequences | Iterable[ArrayLike], n_vocabulary: int) -> list[IntArray]:
    """Return the ids of every sequence, checked to have an embedding."""
    if isinstance(sequences, LabelledSequences):
        tokens, offsets = sequences.tokens, sequences.offsets
    else:
        tokens, offsets = flat_sequences(sequences)
    check_ids(tokens, offsets, n_vocabulary)
    return np.split(np.asarray(tokens, dtype=np.int64), offsets[1:-1])


def position_lists(
    table: FloatArray, sequences: LabelledSequences | Iterable[ArrayLike], selected: object
) -> tuple[list[IntArray], list[IntArray]]:
    """Return the ids of every sequence and those selected in it, checked."""
    lists = token_lists(sequences, len(table))
    expected = f"one list of token ids for each of the {len(lists)} sequences"
    if isinstance(selected, str) or not isinstance(selected, Iterable) or getattr(selected, "ndim", 1) == 0:
        raise InputError("selected", expected, type(selected).__name__)
    chosen = []
    for i, given in enumerate(selected):
        wanted = f"a list of the token ids selected in sequence {i}, at least one"
        ids = np.unique(index_array(given, f"selected[{i}]", wanted, (-1,)))
        if not len(ids):
            raise InputError(f"selected[{i}]", wanted, "none")
        chosen.append(ids)
    if len(chosen) != len(lists):
        raise InputError("selected", expected, f"{len(chosen)} lists")
    for i, (tokens, ids) in enumerate(zip(lists, chosen, strict=True)):
        outside = np.setdiff1d(ids, tokens)
        if len(outside):
            raise InputError(
                f"selected[{i}]", f"tokens of sequence {i}", f"token {outside[0]}, which is not among them"
            )
    return lists, chosen
