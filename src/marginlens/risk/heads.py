"""Prediction heads: the linear head v, and any differentiable ψ through autograd, behind one protocol."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, missing_extra
from marginlens.papers import uses
from marginlens.risk.softmax import Attended, attend, probabilities
from marginlens.typing import ArrayLike, FloatArray, IntArray

Shortfall = tuple[FloatArray, FloatArray, FloatArray]
SUBTRACTED_CHANGE = 1e-4  # a nonlinear head's change that plain subtraction gives to twelve digits
_GAUSS_5 = np.polynomial.legendre.leggauss(5)
_NODES, _NODE_WEIGHTS = 0.5 * (1.0 + _GAUSS_5[0]), 0.5 * _GAUSS_5[1]  # on [0, 1]


class Head(Protocol):
    """The interface of a head in a risk."""

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Return the attention with each token's (linearised) score, and the signed margin Y f(X), (…, n_inputs)."""

    def shortfall(self, logits: FloatArray, alpha: IntArray) -> Shortfall:
        """Return the margin of selecting `alpha` (…, n_inputs) outright, and log|δ| and the sign of how far the output falls
        short of it.
        """

    def token_margins(self) -> FloatArray:
        """Return Y f of selecting one token outright, for each token, (…, n_inputs, n_tokens); -inf in padding."""


@dataclass(frozen=True)
class LinearHead:
    """f(X) = vᵀ Xᵀ s: a token's score does not depend on the attention."""

    scores: FloatArray
    mask: Any

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Return the attention relative to the largest logit, and the margin γ_α - δ."""
        at = attend(logits, np.broadcast_to(self.scores, logits.shape), self.mask)
        return at, at.margin

    def shortfall(self, logits: FloatArray, alpha: IntArray) -> Shortfall:
        """Return γ_α, log|δ| and the sign of δ = Σ s_t (γ_α - γ_t)."""
        at = attend(logits, np.broadcast_to(self.scores, logits.shape), self.mask, alpha)
        with np.errstate(divide="ignore"):
            return at.top_score, np.log(np.abs(at.shortfall)) + at.log_unit, np.sign(at.shortfall)

    def token_margins(self) -> FloatArray:
        """Return the scores of tokens, their margins if they alone are attended to."""
        return self.scores


@uses(
    "A",
    {
        "Eq. (11)": "The training risk with a nonlinear head ψ, whose margins Y ψ(z) this class gives.",
        "Eq. (12a)": "The gradient of ψ in q = Wᵀp: the pairwise form with the scores of ψ linearised at its output.",
        "Eq. (12b)": "The same in p, with keys in place of tokens.",
        "Eq. (14a)": "The mean of these over inputs, weighted by the slopes of the loss: what `descend` follows.",
    },
)
@dataclass(frozen=True)
class TorchHead:
    """f(X) = ψ(Xᵀ s) for a torch module or function ψ from (n, d_model) to n numbers.

    At attention output z the model behaves, to first order in the attention, like the linear head ∇ψ(z). The exact pairwise
    gradient therefore applies with scores Y x_tᵀ ∇ψ(z), and autograd computes only ψ and ∇ψ.
    """

    data: TokenDataset
    psi: Any

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Return the attention with the scores of the head linearised at its present output, and the margin Y ψ(z)."""
        z = np.einsum("...it,...itd->...id", probabilities(logits, self.data.mask), self.data.X)
        value, slope = self._value_and_slope(z)
        return attend(logits, self._scores(slope), self.data.mask), self.data.y * value

    def shortfall(self, logits: FloatArray, alpha: IntArray) -> Shortfall:
        """Compute the shortfall by scores under ∇ψ averaged from the selected tokens to the output, or by subtraction if the
        change is large.
        """
        X = self.data.X
        chosen = np.take_along_axis(np.broadcast_to(X, (*logits.shape, X.shape[-1])), alpha[..., None, None], axis=-2)
        step = np.einsum("...it,...itd->...id", probabilities(logits, self.data.mask), X - chosen)
        chosen = chosen[..., 0, :]
        nodes = zip(_NODES, _NODE_WEIGHTS, strict=True)
        slope = sum(weight * self._value_and_slope(chosen + node * step)[1] for node, weight in nodes)
        at = attend(logits, self._scores(slope), self.data.mask, alpha)
        before, after = (self.data.y * self._value_and_slope(z)[0] for z in (chosen, chosen + step))
        plain = np.abs(before - after) > SUBTRACTED_CHANGE
        with np.errstate(divide="ignore"):
            log_delta = np.where(plain, np.log(np.abs(before - after)), np.log(np.abs(at.shortfall)) + at.log_unit)
        return before, log_delta, np.where(plain, np.sign(before - after), np.sign(at.shortfall))

    def token_margins(self) -> FloatArray:
        """Return Y ψ(x_t)."""
        values = self._value_and_slope(self.data.X)[0]
        return np.where(self.data.mask, self.data.y[..., None] * values, -np.inf)

    def _scores(self, slope: FloatArray) -> FloatArray:
        """Return Y x_tᵀ ∇ψ for slopes (…, n_inputs, d_model)."""
        scores = np.einsum("...itd,...id->...it", self.data.X, slope) * self.data.y[..., None]
        return np.where(self.data.mask, scores, -np.inf)

    def _value_and_slope(self, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return ψ and ∇ψ at points (…, d_model)."""
        import torch

        features = torch.tensor(z.reshape(-1, z.shape[-1]), dtype=torch.float64, requires_grad=True)
        output = self.psi(features)
        if not isinstance(output, torch.Tensor) or output.numel() != features.shape[0]:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise InputError("head", f"a head that gives one number per input ({features.shape[0]} in all)", got)
        if not output.requires_grad:
            raise InputError(
                "head", "a head that torch can differentiate by its input", "one whose output does not depend on it"
            )
        (slope,) = torch.autograd.grad(output.sum(), features)
        return output.detach().numpy().reshape(z.shape[:-1]), slope.numpy().reshape(z.shape)


def as_head(data: TokenDataset, head: ArrayLike | Callable[..., object]) -> Head:
    """Return the head that `head` stands for: a vector is linear; a callable is a nonlinear ψ, whose `on_data` may give its own `Head`."""
    if isinstance(head, type):
        raise InputError(
            "head", "a vector, or a head that is made: a module or a function", f"the class {head.__name__}"
        )
    if not callable(head):
        return LinearHead(as_dataset(data).scores(head), data.mask)
    if hasattr(head, "on_data"):
        bound: Head = head.on_data(data)
        return bound
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "A nonlinear head") from problem
    if isinstance(head, torch.nn.Module):
        head = copy.deepcopy(head).to(device="cpu", dtype=torch.float64).eval()  # the caller's module is left as it was
    return TorchHead(data, head)
