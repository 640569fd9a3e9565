r"""The linear head that turns the attention output into one number per token, ŷ = C f, given by its scores H = C Eᵀ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.errors import InputError, n_axes, real_array
from marginlens.papers import implements
from marginlens.result import Result, Tabular, table
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

_ROUNDINGS = 4.0  # a score this many roundings of its own sum away from 0 or 1 is 0 or 1
_INVERSION = 16.0  # and all of C Eᵀ is I when it is within so many roundings of a matrix inversion
_CLEARLY = 1e-10  # but not when it is visibly not


@dataclass(frozen=True, repr=False, eq=False)
class NextTokenHead:
    r"""The scores :math:`H_{yk} = c_y^\top e_k` of every token k for every label y; `table` is None if H is the identity."""

    n_vocabulary: int
    table: FloatArray | None = None

    def __repr__(self) -> str:
        return f"Head({self.n_vocabulary} tokens, {'C Eᵀ = I' if self.table is None else 'general'})"

    @implements("C", "Eq. (17)")
    def scores(self, labels: IntArray, tokens: IntArray) -> FloatArray:
        """Return c_yᵀ e_x elementwise; under Assumption 4 it is one if the token is the label and zero otherwise."""
        if self.table is None:
            return (np.asarray(labels) == np.asarray(tokens)).astype(np.float64)
        return self.table[labels, tokens]

    def matrix(self) -> FloatArray:
        """Return H, (n_vocabulary, n_vocabulary), with a row for each label and a column for each token."""
        return np.eye(self.n_vocabulary) if self.table is None else self.table


def as_head(data: SequenceDataset, head: ArrayLike | None) -> NextTokenHead:
    """Return the head of a dataset: None for C Eᵀ = I, else C of shape (n_vocabulary, d_model).

    Scores within the rounding of their own sum of 0 or 1 are taken as 0 or 1. C counts as satisfying C Eᵀ = I if it does so up
    to the rounding of a computed inverse of Eᵀ.
    """
    if head is None:
        return NextTokenHead(data.n_vocabulary)
    C = real_array(
        head,
        "head",
        (data.n_vocabulary, data.d_model),
        remedy="Leave it out for the head with C Eᵀ = I.",
    )
    table, eps = C @ data.E.T, np.finfo(float).eps
    amplified = np.linalg.norm(C, 2) * np.linalg.norm(data.E, 2)  # the condition number of E where C is its inverse
    if np.abs(table - np.eye(len(table))).max() <= min(_INVERSION * eps * amplified, _CLEARLY):
        return NextTokenHead(data.n_vocabulary)
    noise = _ROUNDINGS * eps * (np.abs(C) @ np.abs(data.E).T)
    return NextTokenHead(
        data.n_vocabulary, np.where(np.abs(table) <= noise, 0.0, np.where(np.abs(table - 1.0) <= noise, 1.0, table))
    )


def as_heads(datasets: tuple[SequenceDataset, ...], head: Any) -> tuple[NextTokenHead, ...]:
    """Return one head per dataset: None or one C for all of them, or a list with one for each."""
    if not is_listed(head):
        return tuple(as_head(data, head) for data in datasets)
    if len(head) != len(datasets):
        raise InputError(
            "head", f"one head for all datasets or a list of {len(datasets)}, one for each", f"{len(head)}"
        )
    return tuple(as_head(data, C) for data, C in zip(datasets, head, strict=True))


def is_listed(head: object) -> bool:
    """Return whether `head` holds several heads: an array with three axes, or a list of matrices and None."""
    if isinstance(head, list | tuple):
        return any(C is None or n_axes(C) == 2 for C in head)
    return n_axes(head) == 3


@dataclass(frozen=True, repr=False, eq=False)
class HeadCheck(Result, Tabular):
    r"""The scores that a head gives to each label's own token and to its closest rival.

    Attributes:
        gap: (n_vocabulary,) :math:`c_y^\top e_y - \max_{k \ne y} c_y^\top e_k`, positive if the label's own token scores
            highest; infinite if there is no other token.

        rival: (n_vocabulary,) the other token with the highest score, -1 if there is none.

        deviation: the largest entry of `|C Eᵀ - I|`.

        exists: whether some C has these scores: always for a given C; for C Eᵀ = I only if the embeddings are linearly
            independent.

    `to_frame()` has one row per label: label, gap, rival, holds.
    """

    gap: FloatArray
    rival: IntArray
    deviation: float
    exists: bool = True
    quantities = "smallest gap {gap.min:.4g}, {failing:#} labels fail Assumption 3, |C Eᵀ - I| ≤ {deviation:.1e}"

    _columns = table("label", "gap", "rival", "holds")

    @property
    def holds(self) -> BoolArray:
        """The labels whose own token alone has the highest score, (n_vocabulary,) booleans."""
        return self.gap > 0.0

    @property
    def failing(self) -> IntArray:
        """The labels y for which another token, `rival[y]`, scores as high as y or higher."""
        return np.flatnonzero(~self.holds)

    @property
    def assumption_3(self) -> bool:
        """True if every label's own token has the highest score."""
        return bool(self.holds.all())

    @property
    def assumption_4(self) -> bool:
        """True if C Eᵀ is the identity up to the rounding of its sums, for a C that exists."""
        return self.deviation == 0.0 and self.exists


@implements("C", "Assumption 3", "Assumption 4")
def check_head(data: SequenceDataset, head: ArrayLike | None = None) -> HeadCheck:
    r"""Check whether a head picks each label's own token (Assumption 3), and whether C Eᵀ is the identity (Assumption 4).

    .. math:: \arg\max_{k \in [K]} c_y^\top e_k = y \quad (y \in [K]); \qquad C E^\top = I_K

    Args:
        head: C of shape (n_vocabulary, d_model); None stands for the head of Assumption 4. Its scores, Eq. (17), are defined
            even if no such C exists; `exists` says whether one does.
    """
    table = as_head(as_sequences(data), head).matrix()
    own = np.diag(table)
    others = np.where(np.eye(len(table), dtype=bool), -np.inf, table)
    rival = np.argmax(others, axis=1)
    is_single = len(table) == 1
    return HeadCheck(
        gap=own - others[np.arange(len(table)), rival],
        rival=np.full(1, -1) if is_single else rival,
        deviation=float(np.abs(table - np.eye(len(table))).max()),
        exists=head is not None or _independent(data.E),
    )


def _independent(E: FloatArray) -> bool:
    """Return whether the rows (n_vocabulary, d_model) are linearly independent, so that C Eᵀ = I has a solution."""
    if len(E) > E.shape[1]:
        return False
    gram = E @ E.T
    if np.array_equal(gram, np.diag(np.diag(gram))):  # orthogonal rows, such as one-hot ones
        return bool(np.all(np.diag(gram) > 0.0))
    return int(np.linalg.matrix_rank(E)) == len(E)
