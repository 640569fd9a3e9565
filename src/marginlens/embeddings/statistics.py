"""Statistics of token counts: signed frequencies, posterior differences, kinds of tokens, and Assumption 4."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.papers import implements
from marginlens.result import Displayed, Tabular, axes_for, table
from marginlens.result.palette import LOCAL
from marginlens.typing import ArrayLike, Axes, BoolArray, FloatArray, IntArray

# Offending sequences that a message names.
_NAMED = 5


@implements("B", "Definition 1")
class TokenKind(IntEnum):
    """The relation of a token to the label; the sign of the value is the sign of α_s."""

    COMPLETELY_NEGATIVE = -2
    NEGATIVE = -1
    IRRELEVANT = 0
    POSITIVE = 1
    COMPLETELY_POSITIVE = 2


@dataclass(frozen=True, repr=False)
class TokenStatistics(Displayed, Tabular):
    """Counts of every token by label; arrays of shape (n_vocabulary,), indexed by token id.

    `in_positive` and `in_negative` count occurrences in sequences with label +1 and -1; `n_positions` is the total length of
    all sequences.

    `to_frame()` has one row per token: token, count, in_positive, in_negative, alpha, posterior_difference, kind.
    """

    in_positive: IntArray
    in_negative: IntArray
    n_positions: int
    quantities = "{count:#} tokens, {n_positions} positions, kinds: {_kinds:tally}"

    @property
    def count(self) -> IntArray:
        """The number of occurrences of each token."""
        return self.in_positive + self.in_negative

    @property
    @implements("B", "Eq. (3)")
    def alpha(self) -> FloatArray:
        """The average signed frequency α_s, occurrences in positive less those in negative sequences over all positions."""
        return (self.in_positive - self.in_negative) / self.n_positions

    @property
    @implements("B", "Eq. (37)")
    def posterior_difference(self) -> FloatArray:
        """The share of a token's occurrences in positive sequences less the share in negative ones; nan if it never occurs."""
        count = self.count
        undefined = np.full(len(count), np.nan)
        return np.divide(self.in_positive - self.in_negative, count, out=undefined, where=count > 0)

    @property
    def kind(self) -> IntArray:
        """The `TokenKind` of each token, decided in whole numbers; a token that never occurs is irrelevant (α_s = 0)."""
        completely = (self.in_positive == 0) | (self.in_negative == 0)
        return np.sign(self.in_positive - self.in_negative) * np.where(completely, 2, 1)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the posterior difference of every token over its number of occurrences, and return the axes. Decisive tokens lie
        at the right, far from zero.
        """
        ax = axes_for(ax)
        occurs = self.count > 0
        ax.semilogx(self.count[occurs], self.posterior_difference[occurs], ".", color=LOCAL, alpha=0.4)
        ax.set(xlabel="occurrences", ylabel="posterior difference", ylim=(-1.08, 1.08))
        return ax

    def _kinds(self) -> list[str]:
        return [TokenKind(kind).name.lower().replace("_", " ") for kind in self.kind]

    _columns = table("token", "count", "in_positive", "in_negative", "alpha", "posterior_difference", kind="_kinds")


def token_statistics(sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None) -> TokenStatistics:
    r"""Count how often each token occurs under each label, in one pass over the positions.

    .. math:: \alpha_s = \frac{1}{\sum_i T_i} \sum_i y_i \sum_{t=1}^{T_i} 1_{x_{it} = s}

    Args:
        sequences: token-id lists, an array (n_samples, n_tokens), or `LabelledSequences`, which hold their labels. If lengths
            differ, the paper's nT is the number of all positions, so a long sequence counts more than a short one.

        y: (n_samples,) labels -1 or +1.

    Returns:
        `alpha`, `posterior_difference`, `count` and `kind`, indexed by token id; `alpha * n_positions` are whole numbers.
    """
    data = as_labelled(sequences, y)
    count = np.bincount(data.tokens, minlength=data.n_vocabulary)
    positive = np.bincount(data.tokens[np.repeat(data.y > 0, data.lengths)], minlength=data.n_vocabulary)
    return TokenStatistics(positive, count - positive, len(data.tokens))


@dataclass(frozen=True, repr=False)
class SingleDecisiveToken(Displayed, Tabular):
    """The check of Assumption 4: every sequence holds one token that decides its label, and all its other tokens are irrelevant.

    `decisive` (n_samples,) counts the positions of each sequence with a completely positive or completely negative token,
    `misleading` those with a token that is relevant but not completely so. The label need not be checked: a completely positive
    token occurs only under the label +1.

    `to_frame()` has one row per sequence: sequence, decisive, misleading, holds.
    """

    decisive: IntArray
    misleading: IntArray
    quantities = "{why}"

    @property
    def offending(self) -> IntArray:
        """The sequences that break the assumption."""
        return np.flatnonzero(~self.fulfilled)

    @property
    def fulfilled(self) -> BoolArray:
        """The sequences that obey the assumption, (n_samples,) booleans."""
        return (self.decisive == 1) & (self.misleading == 0)

    @property
    def holds(self) -> bool:
        """True if all sequences obey the assumption."""
        return bool(self.fulfilled.all())

    @property
    def why(self) -> str:
        """One sentence with the first sequences that break the assumption."""
        if self.holds:
            return f"Assumption 4 holds for all {len(self.decisive)} sequences."
        listed = [
            f"sequence {i} has {self.decisive[i]} decisive and {self.misleading[i]} other relevant positions"
            for i in self.offending[:_NAMED]
        ]
        more = ", …" if len(self.offending) > _NAMED else ""
        return f"Assumption 4 fails for {len(self.offending)} of {len(self.decisive)} sequences: {'; '.join(listed)}{more}."

    _columns = table("sequence", "decisive", "misleading", holds="fulfilled")


@implements("B", "Assumption 4")
def check_assumption_4(
    sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None
) -> SingleDecisiveToken:
    """Check whether each sequence holds a single completely positive or negative token and otherwise irrelevant tokens.

    Args:
        sequences: as in `token_statistics`.

        y: as in `token_statistics`.

    Returns:
        The verdict, with the indices of the sequences that break the assumption as `offending`, and counts of positions for
        each sequence.
    """
    data = as_labelled(sequences, y)
    size = np.abs(token_statistics(data).kind)[data.tokens]
    return SingleDecisiveToken(_per_sequence(size == 2, data), _per_sequence(size == 1, data))


def _per_sequence(positions: BoolArray, data: LabelledSequences) -> IntArray:
    return np.add.reduceat(positions.astype(np.int64), data.offsets[:-1])
