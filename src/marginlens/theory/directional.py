"""Directions at large norm: the tokens a direction selects, its margin, and which of two directions has the lower risk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.directions import as_scalar, length, unit
from marginlens.errors import reject
from marginlens.losses.margin import Logistic, Loss
from marginlens.papers import implements
from marginlens.theory.assumptions import Check
from marginlens.theory.problem import log_slopes, one_problem, score_differences

DIRECTION_TOLERANCE = (
    1e-12  # error of a token's margin, relative to the terms that were summed for it, that rounding can make
)
RANK_TOLERANCE = 1e-9  # smallest singular value of unit rows up to which they may be dependent


@dataclass(frozen=True, repr=False, eq=False)
class DirectionalMargin:
    """What a direction q selects and how narrowly; for a batch every field has a leading batch axis.

    Attributes:
        selected: (…, n_inputs) the tokens with the largest logit, the first where several tie.
        unique: (…) whether no other token ties with a selected one, up to rounding.
        margin: (…) Γ_q, the smallest (k_α - k_t)·q over inputs and other tokens; inf where no input has two tokens.
        neighbours: (…, n_inputs, n_tokens) the directional neighbours, the tokens that attain it, up to rounding.
        second_gap: (…) δ_q, how much larger the smallest margin of the remaining tokens is; inf where none remain.
        neighbour_optimal: (…) whether every neighbour scores below the token selected beside it; None without a head.
        margins: (…, n_inputs, n_tokens) every (k_α - k_t)·q; inf at α and where there is no token.
        blur: (…, n_inputs, n_tokens) how far rounding blurs each, `DIRECTION_TOLERANCE` :math:`\\sum_j (|k_{αj}| + |k_{tj}|)\\,|q_j|`;
            a token far away blurs no margin but its own.
    """

    selected: IntArray
    unique: Any
    margin: Any
    neighbours: BoolArray
    second_gap: Any
    neighbour_optimal: Any
    margins: FloatArray
    blur: FloatArray

    def __repr__(self) -> str:
        if self.selected.ndim == 1:
            return (
                f"DirectionalMargin({self.selected.tolist()}, unique={self.unique}, margin={self.margin:.4g}, "
                f"{int(self.neighbours.sum())} neighbours, second_gap={self.second_gap:.4g})"
            )
        return f"DirectionalMargin({len(self.selected)} directions, {int(np.sum(self.unique))} with unique tokens)"


@implements("A", "Def 3", "Eq. (59)", "Eq. (60)", "Eq. (61)", "Eq. (65)")
def directional_margin(data: TokenDataset, q: Any, v: Any = None) -> DirectionalMargin:
    r"""Tokens that a direction selects, its margin, and the neighbours that attain it.

    .. math:: \alpha_i \in \arg\max_t k_{it}^\top q, \quad
        \Gamma_q = \min_{i,\, t \ne \alpha_i} (k_{i\alpha_i} - k_{it})^\top q, \quad
        \delta_q = \min_{(i,t) \notin \mathcal M_q} (k_{i\alpha_i} - k_{it})^\top q - \Gamma_q

    Args:
        data: one problem or a batch. q: (d_key,) or (batch, d_key), not zero; margins scale with its length.
        v: head (d_model,) or (batch, d_model), for neighbour-optimality.
    Returns:
        A `DirectionalMargin`; with q = p^mm(α) its margin is 1 and its neighbours are the SVM-neighbours of α.
    """
    point = _nonzero(as_dataset(data), q, "q")
    logits = np.where(data.mask, np.einsum("...itd,...d->...it", data.K, point), -np.inf)
    selected = np.argmax(logits, axis=-1)
    ahead = np.where(data.mask, _margins(data, point, selected), np.inf)
    better = np.argmin(ahead, axis=-1)  # where keys have a large part in common, their differences decide
    is_better = np.take_along_axis(ahead, better[..., None], axis=-1)[..., 0] < 0.0
    selected = np.where(is_better, better, selected)
    chosen = selected[..., None]
    other = data.mask & (np.arange(data.n_tokens) != chosen)
    margins = np.where(other, _margins(data, point, selected), np.inf)
    terms = np.einsum("...itd,...d->...it", np.abs(data.K), DIRECTION_TOLERANCE * np.abs(point))
    blur = np.where(other, terms + np.take_along_axis(terms, chosen, axis=-1), 0.0)
    margin = np.min(margins, axis=(-2, -1))
    highest = np.min(margins + blur, axis=(-2, -1))  # which the smallest margin does not exceed
    neighbours = other & (margins - blur <= highest[..., None, None])
    unique = as_scalar(np.all(~other | (margins > blur), axis=(-2, -1)))
    rest = np.min(np.where(other & ~neighbours, margins, np.inf), axis=(-2, -1))
    optimal = None
    if v is not None:
        difference, _ = score_differences(data, v, selected)
        optimal = as_scalar(np.all(~neighbours | (difference > 0.0), axis=(-2, -1)))
    gap = np.where(np.isfinite(rest), rest - np.where(np.isfinite(margin), margin, 0.0), np.inf)
    return DirectionalMargin(selected, unique, as_scalar(margin), neighbours, as_scalar(gap), optimal, margins, blur)


def _margins(data: TokenDataset, q: FloatArray, selected: IntArray) -> FloatArray:
    """(k_α - k_t)·q of every token, (…, n_inputs, n_tokens)."""
    away = np.take_along_axis(data.K, selected[..., None, None], axis=-2) - data.K
    return np.einsum("...itd,...d->...it", away, q)


@dataclass(frozen=True, repr=False, eq=False)
class Dominance:
    """Which of two directions has the lower risk at every large norm; for a batch every field is an array (batch,).

    Attributes:
        case: 1 or 2, the case of the lemma that decides, or 0 where it decides nothing, as when the selected tokens differ.
        p_wins: whether L(R p) < L(R q) for all R beyond `radius`; the reverse holds where it is false and `case` is not 0.
        radius: a norm beyond which that is proven; inf where `case` is 0.
        margin_p, margin_q: the margins of the two unit directions.
    """

    case: Any
    p_wins: Any
    radius: Any
    margin_p: Any
    margin_q: Any

    def __repr__(self) -> str:
        if np.ndim(self.case) == 0:
            outcome = "undecided" if self.case == 0 else f"{'p' if self.p_wins else 'q'} wins beyond {self.radius:.4g}"
            return f"Dominance(case {self.case}: {outcome}, margins {self.margin_p:.4g} and {self.margin_q:.4g})"
        counts = [int(np.sum(self.case == k)) for k in (1, 2, 0)]
        return f"Dominance({len(self.case)} pairs: {counts[0]} by case 1, {counts[1]} by case 2, {counts[2]} undecided)"


@implements("A", "Lemma 8")
def dominance(data: TokenDataset, v: Any, p: Any, q: Any, loss: Loss = Logistic()) -> Dominance:  # noqa: B008
    r"""Which of two directions that select the same tokens has the lower risk at large norm, and from which norm on.

    Let q have the smaller margin, :math:`\Gamma_q < \Gamma_p`. Case 1: if q is neighbour-optimal, p wins. Case 2: if q has one
    directional neighbour and that scores above the selected token, q wins. Write g for :math:`\gamma_{i\alpha_i} - \gamma_{it}`, β for
    the nearest token of q, :math:`g^\pm` for its positive and negative parts, :math:`M_\pm` for the bounds of :math:`|\ell'|`. Since
    :math:`e^{-R\Gamma^{it}}/T \le s_{it} \le e^{-R\Gamma^{it}}`, p wins case 1 once

    .. math:: \frac{M_-}{T} g_\beta > M_+ \Big(\sum g_q^-\Big) e^{-R\delta^-_q} + M_+ \Big(\sum g_p^+\Big) e^{-R(\Gamma_p - \Gamma_q)}

    where :math:`\delta^-_q` is how much larger than Γ_q the margins of the higher-scoring tokens are. q wins case 2 once the same holds
    with :math:`|g_\beta|`, :math:`(\sum g_q^+) e^{-R\delta^+_q}` and :math:`\sum g_p^-` instead. `radius` is where each of the two terms
    on the right is half of the left. The first term is missing from the paper's case 1, which takes neighbour-optimality to bound
    every g from below although it speaks of the neighbours only; and case 1 asks nothing of p.

    Args:
        data: one problem or a batch. v: head (…, d_model). loss: any strictly decreasing `Loss`.
        p, q: (…, d_key), not zero; their unit vectors are compared. The lemma speaks of those that select the same unique tokens.
    Returns:
        A `Dominance`. Check it with `excess_risk(data, v, R * p, loss)`, which compares logarithms.
    """
    directions = [unit(_nonzero(as_dataset(data), x, name)) for x, name in ((p, "p"), (q, "q"))]
    at = [directional_margin(data, x, v) for x in directions]
    same = np.all(at[0].selected == at[1].selected, axis=-1) & at[0].unique & at[1].unique
    margins = np.stack([np.asarray(one.margin) for one in at])
    p_wider = margins[0] > margins[1]
    narrow = _Side(*(np.where(_like(p_wider, b), b, a) for a, b in zip(_parts(at[0]), _parts(at[1]), strict=True)))
    difference, other = score_differences(data, v, at[0].selected)
    nearest = np.argmin(narrow.margins.reshape(*p_wider.shape, -1), axis=-1)
    g_nearest = np.take_along_axis(difference.reshape(*p_wider.shape, -1), nearest[..., None], axis=-1)[..., 0]
    alone = np.sum(narrow.neighbours, axis=(-2, -1)) == 1
    with np.errstate(invalid="ignore"):
        apart = np.abs(margins[0] - margins[1])  # nan where no input has two tokens
    comparable = same & (apart > _margin_blur(at[0]) + _margin_blur(at[1])) & (g_nearest != 0.0)
    case = np.where(narrow.optimal, 1, np.where(alone & (g_nearest < 0.0), 2, 0))
    case = np.where(comparable, case, 0)
    # signs relative to the nearest token of the narrow direction: `against` weakens it there, `along` is what the wide one can gain
    signed = np.where(other, difference, 0.0) * _like(np.where(case == 2, -1.0, 1.0), difference)
    against, along = np.maximum(-signed, 0.0), np.maximum(signed, 0.0)
    log_most, log_least = log_slopes(data, v, loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        delay = np.min(np.where(against > 0.0, narrow.margins, np.inf), axis=(-2, -1)) - np.min(margins, axis=0)
        ratio = np.log(2.0 * data.n_tokens) + log_most - log_least - np.log(np.abs(g_nearest))
        first = (np.log(np.sum(against, axis=(-2, -1))) + ratio) / delay
        second = (np.log(np.sum(along, axis=(-2, -1))) + ratio) / apart
    radius = np.maximum(np.maximum(np.where(np.isfinite(delay), first, 0.0), second), 0.0)
    return Dominance(
        case=as_scalar(case),
        p_wins=as_scalar(np.where(case == 0, False, p_wider == (case == 1))),
        radius=as_scalar(np.where(case == 0, np.inf, radius)),
        margin_p=as_scalar(margins[0]),
        margin_q=as_scalar(margins[1]),
    )


@implements("A", "Lemma 9", "Eq. (69)", "Eq. (70)")
def undercut_radius(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""The norm from which on a direction has a lower risk than selecting its tokens outright, because its neighbours score higher.

    .. math:: L(R\, p) < L_\star = \frac1n \sum_i \ell(\gamma_{i\alpha_i}) \quad \text{once} \quad
        \frac{M_-}{T} \sum_{(i,t) \in \mathcal M_p} |g_{it}| > M_+ \Big(\sum g^+\Big) e^{-R\delta^+_p}

    for :math:`g = \gamma_{i\alpha_i} - \gamma_{it}`, negative on all directional neighbours :math:`\mathcal M_p`, and :math:`\delta^+_p`,
    by how much the margins of the lower-scoring tokens exceed that of p: at least the δ_p of Eq. (70), `DirectionalMargin.second_gap`.

    Args:
        data: one problem or a batch. v: head (…, d_model). p: (…, d_key), not zero; its unit vector is meant. loss: any decreasing `Loss`.
    Returns:
        The radius R̄ of the lemma, (…): zero where every other token scores higher, and inf where the lemma says nothing, because a
        neighbour scores lower or a token ties with a selected one. Check it with `excess_risk(data, v, R * p, loss)`.
    """
    direction = unit(_nonzero(as_dataset(data), p, "p"))
    at = directional_margin(data, direction, v)
    difference, _ = score_differences(data, v, at.selected)
    gain = np.sum(np.where(at.neighbours, np.maximum(-difference, 0.0), 0.0), axis=(-2, -1))
    applies = np.all(~at.neighbours | (difference < 0.0), axis=(-2, -1)) & at.unique & np.isfinite(at.margin)
    lower = np.maximum(difference, 0.0)
    log_most, log_least = log_slopes(data, v, loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        delay = np.min(np.where(lower > 0.0, at.margins, np.inf), axis=(-2, -1)) - at.margin
        needed = np.log(data.n_tokens) + log_most - log_least + np.log(np.sum(lower, axis=(-2, -1))) - np.log(gain)
        radius = np.maximum(np.where(np.isfinite(delay), needed / delay, 0.0), 0.0)
    return as_scalar(np.where(applies, radius, np.inf))


@implements("A", "Lemma 10")
def check_neighbour_count(data: TokenDataset, q: Any) -> Check:
    r"""Whether a direction has no more directional neighbours than there are dimensions, and independent ones.

    .. math:: |\mathcal M_q| \le d, \qquad \mathrm{rank}\,D = |\mathcal M_q|, \quad
        D \text{ with rows } k_{it} - k_{i\alpha_i},\ (i, t) \in \mathcal M_q

    So it is where keys are in general position (`check_general_position`), of which this is the part that Theorem 7's proof uses.

    Args:
        data: one problem. q: (d_key,), not zero.
    Returns:
        A `Check` with neighbours, dimensions and singular_value, the smallest one of D with unit rows.
    """
    at = directional_margin(one_problem(data), q)
    rows = (data.K - np.take_along_axis(data.K, at.selected[:, None, None], axis=1))[at.neighbours]
    count = len(rows)
    lengths = length(rows)[:, None]
    scaled = rows / np.where(lengths > 0.0, lengths, 1.0)
    smallest = float(np.min(np.linalg.svd(scaled, compute_uv=False))) if 0 < count <= data.d_key else 0.0
    if count == 0:
        smallest = np.inf
    holds = count <= data.d_key and smallest > RANK_TOLERANCE
    said = f"the direction has {count} directional neighbours in {data.d_key} dimensions"
    if 0 < count <= data.d_key:
        said += f", and the smallest singular value of their key differences is {smallest:.3g}"
    numbers = {"neighbours": float(count), "dimensions": float(data.d_key), "singular_value": smallest}
    return Check("A Lemma 10", holds, said, numbers)


@dataclass(frozen=True)
class _Side:
    """The parts of a `DirectionalMargin` that decide for the direction with the smaller margin."""

    margins: FloatArray
    neighbours: BoolArray
    optimal: BoolArray


def _parts(at: DirectionalMargin) -> tuple[FloatArray, BoolArray, Any]:
    return at.margins, at.neighbours, np.asarray(at.neighbour_optimal)


def _nonzero(data: TokenDataset, x: Any, argument: str) -> FloatArray:
    point = data.point(x, argument)
    if not np.all(np.any(point != 0.0, axis=-1)):
        raise reject(argument, "a direction, so not zero", "a zero vector")
    return point


def _margin_blur(at: DirectionalMargin) -> FloatArray:
    """How far rounding blurs the smallest margin, (…); nan where no input has two tokens."""
    with np.errstate(invalid="ignore"):
        above = np.min(at.margins + at.blur, axis=(-2, -1)) - at.margin
        below = at.margin - np.min(at.margins - at.blur, axis=(-2, -1))
    return np.asarray(np.maximum(above, below))


def _like(flags: Any, array: Any) -> Any:
    """`flags` of shape (…) with the trailing axes that broadcasting against `array` needs."""
    return np.reshape(flags, np.shape(flags) + (1,) * (np.ndim(array) - np.ndim(flags)))
