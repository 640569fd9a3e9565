"""Match and copy: attention trained by the squared loss to return the value of one token of each input."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.losses.margin import CorrelationLoss
from marginlens.papers import implements
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.heads import Shortfall
from marginlens.risk.softmax import Attended, attend
from marginlens.typing import ArrayLike, FloatArray, IntArray


@implements("X", "M")
class CopyRisk(AttentionRisk):
    r"""The squared distance between the attended value and the value of the matching token, as a function of p.

    .. math:: L(p) = \frac1{2n} \sum_{i=1}^n \Big\| \sum_t \mathbb S(K_i p)_t\, x_{it} - x_{i m_i} \Big\|^2

    Make it by `CopyRisk.of(data, match)`. The tokens X are the values, which may have any width; the keys K decide the
    attention. With keys u_i ⊗ k_it, one query u_i for each input, p is the key-query matrix W. Labels are not used. If the loss
    vanishes along a run of gradient descent, the direction of the run tends to that of `att_svm(data, match)`.

    Distances are kept as logarithms, which keeps gradients exact however far the loss has fallen.
    """

    @classmethod
    def of(cls, data: TokenDataset, match: ArrayLike) -> CopyRisk:
        """Make the risk of one problem or a batch; match: (n_inputs,) or (batch, n_inputs), the token to copy from each input."""
        chosen = as_dataset(data).selection(match)
        centred = copy(data)
        value = np.take_along_axis(data.X, chosen[..., None, None], axis=-2)
        centred.X = np.where(data.mask[..., None], data.X - value, 0.0)
        return cls(centred, SquaredDistance(), CorrelationLoss())

    @property
    def match(self) -> IntArray:
        """The token to copy in each input, (…, n_inputs). Values are measured from it, so it is the first token with value zero."""
        return np.asarray(np.argmin(np.where(self.data.mask, np.linalg.norm(self.data.X, axis=-1), np.inf), axis=-1))

    def log_value(self, x: ArrayLike) -> FloatArray:
        """Return log L(p), (…). All of the risk is excess: it is zero if every input selects its matching token."""
        return np.asarray(self.excess(x, self.match).log)

    def smoothness(self) -> Any:
        """Return infinity: no Lipschitz constant is known."""
        return np.full(self.data.batch_shape, np.inf)[()]


class SquaredDistance:
    """The head of a `CopyRisk`: f = -½‖z‖² at the attended value z, with values measured from the one to copy."""

    def __call__(self, z: FloatArray) -> FloatArray:
        """Return -½‖z‖² of values (…, d_model)."""
        return -0.5 * np.sum(z**2, axis=-1)

    def on_data(self, data: TokenDataset) -> DistanceHead:
        """Return the head on these data, exact at any distance."""
        return DistanceHead(data)

    def __repr__(self) -> str:
        return "SquaredDistance()"


@dataclass(frozen=True)
class DistanceHead:
    """The interface of `SquaredDistance` on the data of a risk.

    At z the head behaves, to first order, like the linear head -z. Its scores are those of the unit vector -z/‖z‖, and log‖z‖
    is added to the logarithms of attention. A gradient consists of products of attention with score gaps, so nothing
    underflows.
    """

    data: TokenDataset

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Return the attention with the scores of the head linearised at z, and -½‖z‖²."""
        z, log_size = self._from(logits, None)
        at = attend(logits, -np.einsum("...itd,...id->...it", self.data.X, z), self.data.mask)
        return replace(at, log_s=at.log_s + log_size[..., None]), -0.5 * np.exp(2.0 * log_size)

    def shortfall(self, logits: FloatArray, alpha: IntArray) -> Shortfall:
        r"""Return -½‖x_α‖², and :math:`\tfrac12(\|z\|^2 - \|x_\alpha\|^2) = \tfrac12 (z - x_\alpha)^\top (z + x_\alpha)` as
        logarithm and sign.
        """
        top = self._chosen(logits, alpha)[..., 0, :]
        step, log_size = self._from(logits, alpha)
        along = np.sum(step * top, axis=-1) + 0.5 * np.exp(log_size)  # the second term may underflow beside the first
        is_match = np.all(top == 0.0, axis=-1)
        with np.errstate(divide="ignore"):
            logs = np.where(is_match, log_size - np.log(2.0), np.log(np.abs(along))) + log_size
        sign = np.where(is_match, log_size > -np.inf, np.sign(along))
        return -0.5 * np.sum(top**2, axis=-1), logs, sign

    def token_margins(self) -> FloatArray:
        """Return -½‖x_t‖² of every token."""
        return np.where(self.data.mask, -0.5 * np.sum(self.data.X**2, axis=-1), -np.inf)

    def _chosen(self, logits: FloatArray, alpha: IntArray) -> FloatArray:
        values = np.broadcast_to(self.data.X, (*logits.shape, self.data.X.shape[-1]))
        return np.take_along_axis(values, alpha[..., None, None], axis=-2)

    def _from(self, logits: FloatArray, alpha: IntArray | None) -> tuple[FloatArray, FloatArray]:
        """Return the unit vector of z - x_α, of z itself without α, and the logarithm of its length, -inf if it is zero."""
        values = self.data.X if alpha is None else self.data.X - self._chosen(logits, alpha)
        at = attend(logits, np.zeros(logits.shape), self.data.mask, alpha)
        counted = np.where(np.any(values != 0.0, axis=-1) & self.data.mask, at.log_s, -np.inf)
        largest = np.max(counted, axis=-1)
        safe = np.where(np.isfinite(largest), largest, 0.0)
        vector = np.einsum("...it,...itd->...id", np.exp(counted - safe[..., None]), values)
        size = np.linalg.norm(vector, axis=-1)
        with np.errstate(divide="ignore"):
            return vector / np.where(size > 0.0, size, 1.0)[..., None], safe + np.log(size)
