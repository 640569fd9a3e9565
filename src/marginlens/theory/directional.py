"""Directions at large norm: directional margins and neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import as_scalar
from marginlens.errors import reject
from marginlens.papers import implements
from marginlens.result import Result, Tabular, drawn
from marginlens.result.drawing import draw_bars, draw_histogram
from marginlens.result.palette import GLOBAL, NEITHER
from marginlens.theory.optimality import score_differences
from marginlens.typing import Axes, BoolArray, FloatArray, IntArray

DIRECTION_RTOL = (
    1e-12  # error of a token's margin, relative to the terms that were summed for it, that rounding can make
)
SAME_DIRECTION_ATOL = 1e-9  # distance of unit vectors up to which two directions are one


@dataclass(frozen=True, repr=False, eq=False)
class DirectionalMargin(Result, Tabular):
    """What a direction q selects and how narrowly; for a batch every field has a leading batch axis.

    Attributes:
        selected: (…, n_inputs) the tokens with the largest logit, the first where several tie.
        unique: (…) whether no other token ties with a selected one, up to rounding.
        margin: (…) Γ_q, the smallest (k_α - k_t)·q over inputs and other tokens; inf where no input has two tokens.
        neighbours: (…, n_inputs, n_tokens) the directional neighbours, the tokens that attain it, up to rounding.
        second_gap: (…) δ_q, how much larger the smallest margin of the remaining tokens is; inf where none remain.
        neighbour_optimal: (…) whether every neighbour scores below the token selected beside it; None without a head.
        margins: (…, n_inputs, n_tokens) every (k_α - k_t)·q; inf at α and where there is no token.
        blur: (…, n_inputs, n_tokens) how far rounding blurs each, `DIRECTION_RTOL` :math:`\\sum_j (|k_{αj}| + |k_{tj}|)\\,|q_j|`;
            a token far away blurs no margin but its own.

    `to_frame()` has one row per token that is not selected: problem (of a batch), input, selected, other, margin, neighbour.
    """

    selected: IntArray
    unique: Any
    margin: Any
    neighbours: BoolArray
    second_gap: Any
    neighbour_optimal: Any
    margins: FloatArray
    blur: FloatArray

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw by how much every other token is behind, neighbours in red; for a batch how the margins are spread."""
        if self.selected.ndim == 2:
            draw_histogram(ax, self.margin, "margin")
            return
        at = np.argwhere(np.isfinite(self.margins))
        names = [f"{i}: {self.selected[i]} over {t}" for i, t in at.tolist()]
        colours = np.where(self.neighbours[tuple(at.T)], GLOBAL, NEITHER)
        draw_bars(
            ax, names, self.margins[tuple(at.T)], "logit margin", colours=colours, ylabel="input: selected over other"
        )

    def _columns(self) -> dict[str, Any]:
        at = np.argwhere(np.isfinite(self.margins))
        place = tuple(at.T)
        columns = {"problem": at[:, 0]} if self.selected.ndim == 2 else {}
        columns |= {"input": at[:, -2], "selected": self.selected[place[:-1]], "other": at[:, -1]}
        return columns | {"margin": self.margins[place], "neighbour": self.neighbours[place]}


@implements("A", "Def 3", "Eq. (59)", "Eq. (60)", "Eq. (61)", "Eq. (65)")
def directional_margin(data: TokenDataset, q: Any, head: Any = None) -> DirectionalMargin:
    r"""Tokens that a direction selects, its margin, and the neighbours that attain it.

    .. math:: \alpha_i \in \arg\max_t k_{it}^\top q, \quad
        \Gamma_q = \min_{i,\, t \ne \alpha_i} (k_{i\alpha_i} - k_{it})^\top q, \quad
        \delta_q = \min_{(i,t) \notin \mathcal M_q} (k_{i\alpha_i} - k_{it})^\top q - \Gamma_q

    Args:
        data: one problem or a batch. q: (d_key,) or (batch, d_key), not zero; margins scale with its length.
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
        difference, _ = score_differences(data, head, selected)
        optimal = as_scalar(np.all(~neighbours | (difference > 0.0), axis=(-2, -1)))
    gap = np.where(np.isfinite(rest), rest - np.where(np.isfinite(margin), margin, 0.0), np.inf)
    return DirectionalMargin(selected, unique, as_scalar(margin), neighbours, as_scalar(gap), optimal, margins, blur)


def _margins(data: TokenDataset, q: FloatArray, selected: IntArray) -> FloatArray:
    """(k_α - k_t)·q of every token, (…, n_inputs, n_tokens)."""
    away = np.take_along_axis(data.K, selected[..., None, None], axis=-2) - data.K
    return np.einsum("...itd,...d->...it", away, q)


def as_direction(data: TokenDataset, x: Any, argument: str) -> FloatArray:
    point = data.point(x, argument)
    if not np.all(np.any(point != 0.0, axis=-1)):
        raise reject(argument, "a direction, so not zero", "a zero vector")
    return point
