"""The joint risk of the head and the attention weights, with exact gradients in both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.data.tokens import TokenDataset, as_dataset, without_offsets
from marginlens.errors import InputError, n_axes
from marginlens.losses.margin import Logistic, Loss, as_loss, refuse_poles, slope_of
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.at_logits import AtLogits, TokenRisk, pairwise_gradient
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.risk.softmax import attend, logits
from marginlens.typing import ArrayLike, FloatArray, Index, IntArray


def attention_output(data: TokenDataset, log_s: FloatArray, alpha: IntArray) -> FloatArray:
    """Compute Xᵀ s as the token α less what the other tokens take away, (…, n_inputs, d_model): exact even if the softmax has saturated."""
    top = np.take_along_axis(data.X, alpha[..., None, None], axis=-2)
    s = np.where(data.mask, np.exp(log_s), 0.0)
    return top[..., 0, :] - np.einsum("...it,...itd->...id", s, np.where(data.mask[..., None], top - data.X, 0.0))


class HeadAndAttention(NamedTuple):
    """The two parts of a joint point: the head v (…, d_model) and the attention weights p (…, d_key)."""

    v: FloatArray
    p: FloatArray


@implements("A", "(ERM)")
@dataclass(frozen=True, eq=False, repr=False)
class JointRisk(TokenRisk, Described):
    r"""The training risk of head and attention weights together.

    .. math:: L(v, p) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, v^\top X_i^\top \mathbb S(K_i p)\big)

    A point is v followed by p, (d_model + d_key,); `split` returns the two.

    Args:
        data: one problem, or a batch of independent ones.

        loss: any `Loss`.
    """

    data: TokenDataset
    loss: Loss = field(default_factory=Logistic)
    quantities = "{data!r}, {loss.__class__.__name__}"

    def __post_init__(self) -> None:
        without_offsets(as_dataset(self.data), "JointRisk")
        refuse_poles(as_loss(self.loss), "JointRisk")

    @property
    def shape(self) -> tuple[int]:
        """The shape of a point, (d_model + d_key,)."""
        return (self.data.d_model + self.data.d_key,)

    def __getitem__(self, index: Index) -> JointRisk:
        """Return the risk of one problem of a batch, or of several."""
        return JointRisk(self.data[index], self.loss)

    def of_inputs(self, inputs: IntArray) -> JointRisk:
        """Restrict the risk to some of the inputs, given by their indices (n_taken,): a mini-batch."""
        return JointRisk(self.data.take_inputs(inputs), self.loss)

    @property
    def blocks(self) -> dict[str, slice]:
        """The positions of v and p in a point."""
        return {"v": slice(0, self.data.d_model), "p": slice(self.data.d_model, None)}

    def split(self, x: ArrayLike) -> HeadAndAttention:
        """Return v and p of a point, or of several along leading axes."""
        array = as_points(x, self.shape)
        return HeadAndAttention(array[..., : self.data.d_model], array[..., self.data.d_model :])

    def start(self, start: ArrayLike | None) -> FloatArray:
        """Return a start as an array `(batch, *shape)`: a point or a pair (v, p), with or without a batch axis, or zero for None."""
        if start is None:
            return np.zeros((len(self), *self.shape))
        if isinstance(start, tuple | list) and len(start) == 2:
            v = np.array(self.data.head(start[0], "start[0]")).reshape(len(self), -1)
            return np.concatenate([v, np.array(self.data.point(start[1], "start[1]")).reshape(len(self), -1)], axis=-1)
        if n_axes(start) == 0 or np.shape(start)[-1] != self.shape[0]:
            got = f"{n_axes(start)} axes" if n_axes(start) else type(start).__name__
            raise InputError("start", f"a pair (v, p), or a point of shape {self.shape}", got)
        return self.start(tuple(self.split(np.asarray(start))))

    def at_point(self, x: ArrayLike) -> AtLogits:
        """Return the risk of p under the head v, at its logits."""
        v, p = self.split(x)
        return AttentionRisk(self.data, v, self.loss).at_point(p)

    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Compute the exact gradients in the head and in the attention weights, at any norm of either: the blocks "v" and "p",
        each with its scale.

        .. math:: \nabla_v L = \frac1n \sum_i \ell'_i\, Y_i\, x_i^{att}, \quad x_i^{att} = X_i^\top \mathbb S(K_i p)
            = x_{i\alpha} - \sum_{t \ne \alpha} s_{it} (x_{i\alpha} - x_{it})
        """
        v, p = self.split(x)
        at = attend(logits(self.data, p), self.data.scores(v), self.data.mask)
        slopes = slope_of(self.loss, at.margin)  # (…, n_inputs)
        largest = np.max(slopes.log, axis=-1)
        largest = np.where(largest == -np.inf, 0.0, largest)
        weights = slopes.sign * np.exp(slopes.log - largest[..., None]) * self.data.y / self.data.n_inputs
        by_v = np.einsum("...i,...id->...d", weights, attention_output(self.data, at.log_s, at.alpha))
        by_p = pairwise_gradient(self.data.K, at, slopes)
        scales = [
            np.broadcast_to(scale[..., None], part.shape)
            for scale, part in ((largest, by_v), (by_p.log_scale, by_p.array))
        ]
        array = np.concatenate([by_v, by_p.array], axis=-1)
        return LogScaled(array, np.concatenate(scales, axis=-1), blocks=self.blocks)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """Raise, because head and attention have one margin problem each, which `label_svm` and `relaxed_svm` solve."""
        raise InputError(
            "risk", "one with a single margin problem", "a joint one", "Use label_svm for v and relaxed_svm for p."
        )

    def smoothness(self) -> Any:
        """Return infinity: the joint gradient has no Lipschitz constant."""
        return np.full(self.data.batch_shape, np.inf)[()]
