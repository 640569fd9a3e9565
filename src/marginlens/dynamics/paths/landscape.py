"""The risk around many points at once, in logarithms: how far it is above selecting tokens outright, its slope and its curvature."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data import TokenDataset
from marginlens.directions import length
from marginlens.losses.margin import (
    VISIBLE,
    Exponential,
    Logistic,
    Loss,
    SignedLog,
    as_loss,
    compiled_code,
    slope_of,
    value_of,
)
from marginlens.risk.attention import ExcessRisk
from marginlens.risk.heads import LinearHead, TorchHead, as_head
from marginlens.risk.softmax import Attended, attend, centred_keys, probabilities

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_SPAN = 1e-12  # singular values of the keys, relative to the largest, below which a direction is no part of their span
_SLOPE_STEP = 1e-5  # margins by which ℓ' or log|ℓ'| is differentiated
_GRID = 2_001  # margins at which a loss is asked for its sign
_DIRECT = 1e-4  # a nonlinear head's change that plain subtraction gives to twelve digits
_GAUSS = np.polynomial.legendre.leggauss(5)
_NODES, _WEIGHTS = 0.5 * (1.0 + _GAUSS[0]), 0.5 * _GAUSS[1]  # on [0, 1]


@dataclass(frozen=True)
class View:
    """The risk at points (batch,) to second order, up to the factor exp(`log_unit`) of each.

    Attributes:
        selected: (batch, n_inputs) the largest logits. gradient: (batch, r). hessian: (batch, r, r).
        size: (batch,) the gradient's length if no two of its terms cancelled.
        log_size: (batch,) logarithm of the excess risk over the selected tokens if no two of its terms cancelled. log_unit: (batch,).
    """

    selected: IntArray
    gradient: FloatArray
    hessian: FloatArray
    size: FloatArray
    log_size: FloatArray
    log_unit: FloatArray

    def only(self, which: npt.NDArray[np.bool_]) -> View:
        """The same for some of the points."""
        return View(*(getattr(self, one.name)[which] for one in fields(self)))


class Landscape:
    """The risk of one problem in coordinates c of the span of its key differences, p = `basis` c with ‖p‖ = ‖c‖.

    No part of p outside that span changes the risk. With an axis the span holds it too, and one direction more where there is room:
    a point in a cone may need length that the risk does not feel.
    """

    def __init__(self, data: TokenDataset, v: Any, loss: Loss, axis: FloatArray | None = None) -> None:
        self.data, self.loss = data, as_loss(loss)
        centred = centred_keys(data)  # (n_inputs, n_tokens, d_key)
        self.basis = _orthonormal(centred[data.mask], axis)  # (d_key, r)
        self.keys = centred @ self.basis
        self.reach = float(np.max(length(self.keys)))
        self._head = as_head(data, v)

    @property
    def is_linear(self) -> bool:
        """Whether the head is a vector v, so that no token's score depends on the attention."""
        return isinstance(self._head, LinearHead)

    @cached_property
    def is_positive(self) -> bool:
        """Whether no risk is negative: then the smaller the logarithm of a risk, the better. False where it is not known."""
        if isinstance(self.loss, Logistic | Exponential) and compiled_code(self.loss) >= 0:
            return True
        if not isinstance(self._head, LinearHead):
            return False
        scores = self._head.scores[self.data.mask]
        return bool(np.all(value_of(self.loss, np.linspace(scores.min(), scores.max(), _GRID)) >= 0.0))

    def token_margins(self) -> FloatArray:
        """Y f of selecting one token outright, for each token of each input, (n_inputs, n_tokens); -inf where there is no token."""
        if isinstance(self._head, LinearHead):
            return np.asarray(self._head.scores)
        values = _value_and_slope(self._head.psi, self.data.X)[0]  # type: ignore[attr-defined]
        return np.where(self.data.mask, self.data.y[:, None] * values, -np.inf)

    def best_tokens(self) -> IntArray:
        """The highest-scoring token of each input under a linear head, (n_inputs,)."""
        return np.argmax(self._head.scores, axis=-1)  # type: ignore[attr-defined]

    def logits(self, c: FloatArray) -> FloatArray:
        """Attention logits at points (batch, r), (batch, n_inputs, n_tokens)."""
        return np.einsum("itr,br->bit", self.keys, c)

    def selected(self, c: FloatArray) -> IntArray:
        """The largest logit of each input at points (batch, r)."""
        return np.argmax(np.where(self.data.mask, self.logits(c), -np.inf), axis=-1)

    def excess(self, c: FloatArray, alpha: IntArray) -> ExcessRisk:
        r"""Risk at points (batch, r) less that of selecting `alpha` (batch, n_inputs) outright, exact at any norm."""
        top, log_delta, sign = self._shortfall(self.logits(c), alpha)
        rise = self.loss.signed_log_rise(top, log_delta, sign)
        sign = np.where(sign == 0.0, 0.0, rise.sign)
        logs = np.where(sign == 0.0, -np.inf, rise.log)
        largest = np.max(logs, axis=-1)
        safe = np.where(np.isfinite(largest), largest, 0.0)
        total = np.sum(sign * np.exp(logs - safe[:, None]), axis=-1) / self.data.n_inputs
        with np.errstate(divide="ignore"):
            return ExcessRisk(np.sign(total), safe + np.log(np.abs(total)))

    def log_risk(self, c: FloatArray) -> FloatArray:
        """Logarithm of the risk at points (batch, r); nan where a loss is not positive. Losses that underflow fall like their slopes."""
        margin = self._attend(self.logits(c))[1]
        value = value_of(self.loss, margin)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(np.abs(value) > VISIBLE, np.log(value), slope_of(self.loss, margin).log)
            return np.asarray(np.logaddexp.reduce(logs, axis=-1)) - np.log(self.data.n_inputs)

    def view(self, c: FloatArray) -> View:
        r"""Gradient and second derivative of the risk at points (batch, r).

        .. math:: \nabla^2 L = \tfrac1n \sum_i \ell''_i \nabla f_i \nabla f_i^\top
            + \ell'_i \sum_t s_{it} (\gamma_{it} - f_i)(k_{it} - \bar k_i)(k_{it} - \bar k_i)^\top, \quad \bar k_i = \sum_t s_{it} k_{it}

        Exact for a linear head; for a nonlinear one the curvature of ψ is left out, which saturation makes negligible.
        """
        at, margin = self._attend(self.logits(c))
        slope = slope_of(self.loss, margin)  # (batch, n_inputs)
        value = np.where(at.gap == 0.0, -at.shortfall[..., None], at.gap - at.delta[..., None])
        with np.errstate(divide="ignore", invalid="ignore"):
            pull = at.log_s + np.log(np.abs(value)) + np.where(at.gap == 0.0, at.log_unit[..., None], 0.0)
        nothing = (value == 0.0) | ~self.data.mask
        pull = np.where(nothing, -np.inf, pull)  # log s_t |γ_t - f|, the selected token included
        logs = pull + slope.log[..., None]
        unit = np.max(logs, axis=(-2, -1))
        unit = np.where(np.isfinite(unit), unit, 0.0)
        weight = -slope.sign[..., None] * np.sign(value) * np.exp(logs - unit[:, None, None]) / self.data.n_inputs
        chosen = self.keys[np.arange(self.data.n_inputs), at.alpha]  # (batch, n_inputs, r)
        away = np.where(self.data.mask[..., None], self.keys - chosen[..., None, :], 0.0)
        gradient = np.einsum("bit,bitr->br", weight, away)
        size = np.einsum("bit,bit->b", np.abs(weight), np.linalg.norm(away, axis=-1))
        drift = np.einsum("bit,bitr->bir", np.exp(at.log_s), away)  # k̄ - k_α
        spread = away - drift[..., None, :]
        flat = spread.reshape(len(c), weight[0].size, spread.shape[-1])
        hessian = np.matmul(np.swapaxes(flat * weight.reshape(len(c), -1, 1), -1, -2), flat)
        largest = np.max(pull, axis=-1)
        pulls = np.isfinite(largest)  # false for an input whose tokens all score the same, or that has one token only
        largest = np.where(pulls, largest, 0.0)
        own = np.einsum("bit,bitr->bir", np.sign(value) * np.exp(pull - largest[..., None]), away)  # -∇f_i, own scale
        factor, scale = self._curvature(margin, slope)
        bend = factor * np.exp(np.where(pulls, 2.0 * largest + scale - unit[:, None], -np.inf))
        bend /= self.data.n_inputs
        hessian += np.matmul(np.swapaxes(own * bend[..., None], -1, -2), own)
        with np.errstate(divide="ignore"):
            terms = at.log_s + np.log(np.abs(at.gap)) + slope.log[..., None]
            log_size = unit + np.log(np.sum(np.exp(terms - unit[:, None, None]), axis=(-2, -1)) / self.data.n_inputs)
        return View(at.alpha, gradient, hessian, size, log_size, unit)

    def _curvature(self, margin: FloatArray, slope: SignedLog) -> tuple[FloatArray, FloatArray]:
        """ℓ'' as a factor and the logarithm of its scale, each (batch, n_inputs), by central differences.

        They are those of log|ℓ'| for the losses that decrease, which is as exact far out as anywhere, and those of ℓ' for a loss of
        one's own, whose ℓ' may vanish.
        """
        ahead, behind = (slope_of(self.loss, margin + h) for h in (_SLOPE_STEP, -_SLOPE_STEP))
        if compiled_code(self.loss) >= 0:
            return (behind.log - ahead.log) / (2.0 * _SLOPE_STEP), slope.log
        scale = np.maximum(ahead.log, behind.log)
        scale = np.where(scale == -np.inf, 0.0, scale)
        change = ahead.sign * np.exp(ahead.log - scale) - behind.sign * np.exp(behind.log - scale)
        return change / (2.0 * _SLOPE_STEP), scale

    def _attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        if isinstance(self._head, TorchHead):
            return TorchHead(self.data.repeat(len(logits)), self._head.psi).attend(logits)
        at = self._relative(logits)
        return at, at.margin

    def _relative(self, logits: FloatArray, alpha: IntArray | None = None) -> Attended:
        """Attention under a linear head relative to `alpha`, by default the largest logits."""
        scores = self._head.scores  # type: ignore[attr-defined]
        return attend(logits, np.broadcast_to(scores, logits.shape), self.data.mask, alpha)

    def _shortfall(self, logits: FloatArray, alpha: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The margin of selecting `alpha`, and log|δ| and the sign of how far the output falls short of it, each (batch, n_inputs)."""
        if isinstance(self._head, LinearHead):
            at = self._relative(logits, alpha)
            top, direct = at.top_score, at.delta
        else:
            scores, top, direct = self._mean_scores(logits, alpha)
            at = attend(logits, scores, self.data.mask, alpha)
        with np.errstate(divide="ignore"):
            log_delta, sign = np.log(np.abs(at.shortfall)) + at.log_unit, np.sign(at.shortfall)
            if not self.is_linear:
                plain = np.abs(direct) > _DIRECT
                log_delta = np.where(plain, np.log(np.abs(direct)), log_delta)
                sign = np.where(plain, np.sign(direct), sign)
        return top, log_delta, sign

    def _mean_scores(self, logits: FloatArray, alpha: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Scores under ∇ψ averaged from the selected tokens to the attention output, the margin there, and the plain change."""
        psi, X, y = self._head.psi, self.data.X, self.data.y  # type: ignore[attr-defined]
        chosen = X[np.arange(self.data.n_inputs), alpha]  # (batch, n_inputs, d_model)
        step = np.einsum("bit,bitd->bid", probabilities(logits, self.data.mask), X - chosen[..., None, :])
        mean = np.zeros_like(step)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            mean += weight * _value_and_slope(psi, chosen + node * step)[1]
        scores = np.einsum("itd,bid->bit", X, mean) * y[:, None]
        before, after = (y * _value_and_slope(psi, z)[0] for z in (chosen, chosen + step))
        return np.where(self.data.mask, scores, -np.inf), before, before - after


def _value_and_slope(psi: Any, z: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ψ and ∇ψ at points (…, d_model)."""
    import torch

    features = torch.tensor(z.reshape(-1, z.shape[-1]), dtype=torch.float64, requires_grad=True)
    output = psi(features)
    (slope,) = torch.autograd.grad(output.sum(), features)
    return output.detach().numpy().reshape(z.shape[:-1]), slope.numpy().reshape(z.shape)


def _orthonormal(rows: FloatArray, axis: FloatArray | None) -> FloatArray:
    """Orthonormal columns (d, r) that span the rows (m, d); with an axis (d,) also that and one direction more."""
    _, singular, directions = np.linalg.svd(rows, full_matrices=axis is not None)
    rank = int(np.sum(singular > _SPAN * max(float(singular[0]), np.finfo(float).tiny)))
    if axis is None or rank == len(directions):
        return np.ascontiguousarray(directions[:rank].T)
    rest = directions[rank:]
    across = rest @ axis
    turn = np.linalg.qr(np.column_stack([across, np.eye(len(rest))]))[
        0
    ]  # its first column is ±across, or any where that is zero
    return np.ascontiguousarray(np.concatenate([directions[:rank], turn[:, :2].T @ rest]).T)
