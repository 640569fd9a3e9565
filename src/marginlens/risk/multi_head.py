"""Several heads, and self-attention: the outputs of several queries on the same input are averaged before the loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset, without_offsets
from marginlens.errors import InputError, n_axes, real_array, whole_number
from marginlens.losses.margin import Logistic, Loss, SignedLog, as_loss, refuse_poles, slope_of
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.at_logits import AtLogits, signed_mean
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.heads import Shortfall
from marginlens.risk.matrix import _RiskOfMatrix
from marginlens.risk.softmax import Attended
from marginlens.typing import ArrayLike, FloatArray, Index, IntArray


@implements("A", "Eq. (4)")
@implements("X", "H1")
@dataclass(frozen=True, eq=False, repr=False)
class MultiHeadRisk(_RiskOfMatrix, Described):
    r"""The training risk of several heads on each input, whose outputs are averaged and read by one linear head v.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \ell\Big(Y_i \frac1H \sum_{h=1}^H v^\top X_i^\top \mathbb S(X_i W^\top u_{ih})\Big)

    With u_ih = e_h, the h-th unit vector, the rows of W (H, d_model) are the weights p_h of H separate heads. With the tokens
    of an input as its queries (`MultiHeadRisk.self_attention`), this is the self-attention layer of A Eq. (4) with V = v and
    averaged outputs.

    A selection has one token for each head of each input, (n_inputs · H,), with the heads of an input one after the other;
    `by_head` reshapes it. Heads that start equal stay equal: from W = 0 all heads are the same.

    Args:
        data: one problem, or a batch; the keys must be the tokens.

        head: v, (d_model,) or (batch, d_model).

        loss: any `Loss`.

        heads: the number of heads with separate weights, at least 1; or the queries, (n_inputs, H, d_query), possibly with a
            batch axis first.
    """

    data: TokenDataset
    head: Any
    heads: Any
    loss: Loss = field(default_factory=Logistic)
    quantities = "{data!r}, {n_heads} heads, {loss.__class__.__name__}"

    def __post_init__(self) -> None:
        as_dataset(self.data)
        refuse_poles(as_loss(self.loss), "MultiHeadRisk")
        if callable(self.head):
            raise InputError("head", "a vector v, (d_model,) or (batch, d_model)", "a nonlinear one")
        leading = (len(self.data),) if self.data.is_batch else ()
        if n_axes(self.heads) == 0:
            whole_number(self.heads, "heads", at_least=1)
        else:
            axes = (self.data.n_inputs, "n_heads", "d_query")
            object.__setattr__(
                self, "heads", real_array(self.heads, "heads", (*leading, *axes) if n_axes(self.heads) == 4 else axes)
            )
        without_offsets(self.data, "MultiHeadRisk")
        if not np.array_equal(self.data.K, self.data.X):
            raise InputError(
                "data", "a dataset whose keys are its tokens (neither K nor W given)", "one with keys of its own"
            )
        if not self.query.any(axis=-1).all():
            raise InputError("heads", "queries none of which is zero", "some that are", "Inputs must have one length.")

    @classmethod
    def self_attention(cls, data: TokenDataset, head: ArrayLike, loss: Loss | None = None) -> Self:
        """Make the layer of A Eq. (4): every token of an input is one of its queries; inputs must have one length."""
        return cls(data, head, as_dataset(data).X, Logistic() if loss is None else loss)

    @property
    def n_heads(self) -> int:
        """The number of outputs of an input that are averaged."""
        return int(self.heads) if n_axes(self.heads) == 0 else int(self.heads.shape[-2])

    @cached_property
    def of_p(self) -> AttentionRisk:  # type: ignore[override]
        """The risk in which every head counts as a separate input. It differs from `MultiHeadRisk` only in the slopes of the loss."""
        repeated = np.repeat(np.arange(self.data.n_inputs), self.n_heads)
        return AttentionRisk(self.data.take_inputs(repeated), self.head, self.loss)

    @cached_property
    def query(self) -> FloatArray:  # type: ignore[override]
        """The query of every head of every input, (…, n_inputs · H, d_query)."""
        if n_axes(self.heads) == 0:
            return np.tile(np.eye(self.n_heads), (self.data.n_inputs, 1))
        return np.ascontiguousarray(self.heads.reshape(*self.heads.shape[:-3], -1, self.heads.shape[-1]))

    def __getitem__(self, index: Index) -> MultiHeadRisk:
        """Return the risk of one problem of a batch, or of several."""
        head = np.broadcast_to(self.head, (len(self), self.data.d_model))[index]
        heads = self.heads[index] if n_axes(self.heads) == 4 else self.heads
        return replace(self, data=self.data[index], head=head, heads=heads)

    def of_inputs(self, inputs: IntArray) -> MultiHeadRisk:
        """Restrict the risk to some of the inputs, given by their indices (n_taken,): a mini-batch."""
        heads = self.heads if n_axes(self.heads) == 0 else self.heads[..., inputs, :, :]
        return replace(self, data=self.data.take_inputs(inputs), heads=heads)

    def at(self, logits: FloatArray) -> AtLogits:
        """Return the risk at given attention logits, (…, n_inputs · H, n_tokens)."""
        return AtHeads(self.of_p, logits, self.n_heads)

    def by_head(self, of_heads: ArrayLike) -> Any:
        """Reshape values of every head of every input, such as those of `select`, to (…, n_inputs, H)."""
        array = np.asarray(of_heads)
        return array.reshape(*array.shape[:-1], self.n_inputs, self.n_heads)

    def token_margins(self, x: ArrayLike) -> FloatArray:
        """Return the lead of the selected token's logit over the next one, for every head of every input, (…, n_inputs, H)."""
        logits = np.where(self.of_p.data.mask, self.logits(x), -np.inf)
        largest = np.sort(logits, axis=-1)
        gap = largest[..., -1] - largest[..., -2] if logits.shape[-1] > 1 else np.full(logits.shape[:-1], np.inf)
        return np.asarray(self.by_head(gap), dtype=np.float64)


@dataclass(frozen=True)
class AtHeads(AtLogits):
    """A risk of several heads at given attention logits."""

    heads: int

    def _mean(self, of_heads: FloatArray) -> FloatArray:
        """Return the mean over the heads of each input, (…, n_inputs)."""
        return np.mean(of_heads.reshape(*of_heads.shape[:-1], -1, self.heads), axis=-1)

    def margins(self) -> FloatArray:
        """Return Y_i f(X_i) of every input, (…, n_inputs)."""
        return self._mean(super().margins())

    def slopes(self) -> tuple[Attended, SignedLog]:
        """Return the attention of every head, and ℓ' of its input, (…, n_inputs · H)."""
        at, margin = self.risk.scored_head.attend(self.logits)
        slope = slope_of(self.risk.loss, self._mean(margin))
        return at, SignedLog(*(np.repeat(part, self.heads, axis=-1) for part in (slope.sign, slope.log)))

    def shortfalls(self, alpha: IntArray) -> Shortfall:
        """Return the shortfalls of the mean over the heads of each input."""
        top, logs, sign = super().shortfalls(alpha)
        by_head = (part.reshape(*part.shape[:-1], -1, self.heads) for part in (sign, logs))
        total = signed_mean(*by_head)
        return self._mean(top), total.log, total.sign
