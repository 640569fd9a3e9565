"""Selections of vocabulary tokens (paper B): the tokens of each sequence by their logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import real_array, real_number, reject
from marginlens.papers import implements, uses
from marginlens.result import Result, Tabular, drawn, table
from marginlens.result.palette import GLOBAL, LOCAL, NEITHER
from marginlens.svm.vocabulary import token_lists
from marginlens.typing import ArrayLike, Axes, FloatArray, IntArray

Selection = tuple[IntArray, ...]  # the token ids selected in each sequence, ascending

TIE_RTOL = (
    2.0**-40
)  # logits that differ by less, relative to the larger of both Σ_j |E_sj p_j|, tie: what rounding leaves


@dataclass(frozen=True, repr=False, eq=False)
class TokenRanks(Result, Tabular):
    """The tokens of each sequence by their logits: the largest, the second largest, and those below; ids ascending.

    `to_frame()` has one row per sequence: sequence, selected, secondary, below.
    """

    selected: Selection
    secondary: Selection
    below: Selection

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw how many tokens of every sequence are selected, second, and below."""
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

    _columns = table("sequence", "selected", "secondary", "below")


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
    rounding = np.abs(table) @ np.abs(query) * TIE_RTOL  # what a sum of products can lose: Σ_j |E_sj p_j|, not ‖E_s‖‖p‖
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


def _ranks(ids: IntArray, logits: FloatArray, widths: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    groups, left = [], ids
    for _ in range(2):
        top = left[np.argmax(logits[left])] if len(left) else -1
        first = logits[left] >= logits[top] - np.maximum(widths[left], widths[top])
        groups.append(left[first])
        left = left[~first]
    return groups[0], groups[1], left
