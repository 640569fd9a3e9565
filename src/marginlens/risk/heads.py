"""Prediction heads: the linear head v, and any differentiable ψ through autograd, behind one call."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import missing_extra, reject
from marginlens.papers import uses
from marginlens.risk.softmax import Attended, attend, probabilities

FloatArray = npt.NDArray[np.float64]


class Head(Protocol):
    """What descent asks of a head."""

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Attention with each token's (linearised) score, and the signed margin Y f(X), (…, n_inputs)."""


@dataclass(frozen=True)
class LinearHead:
    """f(X) = vᵀ Xᵀ s: a token's score does not depend on the attention."""

    scores: FloatArray
    mask: Any

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Attention relative to the largest logit, and the margin γ_α - δ."""
        at = attend(logits, self.scores, self.mask)
        return at, at.margin


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

    At attention output z the model behaves, to first order in the attention, like the linear head ∇ψ(z); so the exact pairwise gradient
    applies with scores Y x_tᵀ ∇ψ(z), and autograd is asked only for ψ and ∇ψ.
    """

    data: TokenDataset
    psi: Any

    def attend(self, logits: FloatArray) -> tuple[Attended, FloatArray]:
        """Attention with the scores of the head linearised at its present output, and the margin Y ψ(z)."""
        import torch

        z = np.einsum("...it,...itd->...id", probabilities(logits, self.data.mask), self.data.X)
        features = torch.tensor(z.reshape(-1, self.data.d_model), dtype=torch.float64, requires_grad=True)
        output = self.psi(features)
        if not isinstance(output, torch.Tensor) or output.numel() != features.shape[0]:
            got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
            raise reject("v", f"a head that gives one number per input ({features.shape[0]} in all)", got)
        if not output.requires_grad:
            raise reject(
                "v", "a head that torch can differentiate by its input", "one whose output does not depend on it"
            )
        (slope,) = torch.autograd.grad(output.sum(), features)
        scores = np.einsum("...itd,...id->...it", self.data.X, slope.numpy().reshape(z.shape)) * self.data.y[..., None]
        margin = self.data.y * output.detach().numpy().reshape(self.data.y.shape)
        return attend(logits, np.where(self.data.mask, scores, -np.inf), self.data.mask), margin


def as_head(data: TokenDataset, v: Any) -> Head:
    """The head that `v` stands for: a vector is linear, a callable is a nonlinear ψ."""
    if isinstance(v, type):
        raise reject("v", "a vector, or a head that is made: a module or a function", f"the class {v.__name__}")
    if not callable(v):
        return LinearHead(as_dataset(data).scores(v), data.mask)
    try:
        import torch
    except ImportError as problem:
        raise missing_extra("torch", "torch", "A nonlinear head") from problem
    if isinstance(v, torch.nn.Module):
        v = copy.deepcopy(v).to(device="cpu", dtype=torch.float64).eval()  # the caller's module is left as it was
    return TorchHead(data, v)
