r"""Losses ℓ(y, ŷ) of a predicted next token: ŷ = C f is what the head makes of the attention output, one number per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import reject
from marginlens.papers import implements


class NextTokenLoss:
    """A loss of the outputs ŷ (n_samples, n_vocabulary) at the labels y (n_samples,); subclass it to plug in your own.

    A subclass gives `value`, `derivative` and `second`. Those that carry a `code` run in the compiled loop.
    """

    code: ClassVar[int] = -1  # which branch of the compiled loop; -1: none, the loop runs in NumPy

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """(n_samples,) ℓ(y, ŷ)."""
        raise TypeError(f"{type(self).__name__} must define value(outputs, labels)")

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """(n_samples, n_vocabulary) ∂ℓ/∂ŷ."""
        raise TypeError(f"{type(self).__name__} must define derivative(outputs, labels)")

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """(n_samples, n_vocabulary, n_vocabulary) ∂²ℓ/∂ŷ²."""
        raise TypeError(f"{type(self).__name__} must define second(outputs, labels)")


class LabelLoss(NextTokenLoss):
    """A loss ℓ(u) of u = ŷ_y alone, the form that Assumption 1 asks for."""

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """ℓ(u), ℓ'(u) and ℓ''(u), elementwise."""
        raise TypeError(f"{type(self).__name__} must define scalar(u)")

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        return self.scalar(_at(outputs, labels))[0]

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        slope = np.zeros_like(outputs)
        slope[np.arange(len(labels)), labels] = self.scalar(_at(outputs, labels))[1]
        return slope

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        bend = np.zeros((*outputs.shape, outputs.shape[1]))
        bend[np.arange(len(labels)), labels, labels] = self.scalar(_at(outputs, labels))[2]
        return bend


@implements("C", "Assumption 1", "Eq. (18)")
@dataclass(frozen=True)
class LogLoss(LabelLoss):
    r""":math:`\ell(u) = -\log u` of :math:`u = \hat y_y > 0`; with C Eᵀ = I that is the likelihood of the label."""

    code: ClassVar[int] = 0

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """-log u, -1/u and 1/u²; infinite where u is not positive."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = np.where(u > 0.0, -np.log(np.where(u > 0.0, u, 1.0)), np.inf)
            return value, -1.0 / u, 1.0 / u**2


@dataclass(frozen=True)
class SquaredLoss(LabelLoss):
    r""":math:`\ell(u) = (1 - u)^2` of :math:`u = \hat y_y`: C's Figure 5 in the text's form."""

    code: ClassVar[int] = 1

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(1 - u)², -2 (1 - u) and 2."""
        return (1.0 - u) ** 2, -2.0 * (1.0 - u), np.full_like(u, 2.0)


@dataclass(frozen=True)
class CrossEntropy(NextTokenLoss):
    r""":math:`\ell(y, \hat y) = -\log \mathbb S(\hat y)_y`: the outputs are themselves logits. C's Figure 6."""

    code: ClassVar[int] = 2

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """log Σ_c e^(ŷ_c - ŷ_y)."""
        return np.logaddexp.reduce(outputs - _at(outputs, labels)[:, None], axis=1)

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """π - 1_y, where 1 - π_y is added up from the others."""
        return -_pull(outputs, labels)

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """diag(π) - π πᵀ."""
        share = _softmax(outputs)
        return share[:, :, None] * np.eye(outputs.shape[1]) - share[:, :, None] * share[:, None, :]


@dataclass(frozen=True)
class SquaredProbability(NextTokenLoss):
    r""":math:`\ell(y, \hat y) = (1 - \mathbb S(\hat y)_y)^2`: C's Figure 5 in the form of its authors' code."""

    code: ClassVar[int] = 3

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """(1 - π_y)²."""
        return _at(_pull(outputs, labels), labels) ** 2

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """-2 (1 - π_y) π_y (1_y - π)."""
        pull = _pull(outputs, labels)
        miss = _at(pull, labels)
        return (-2.0 * miss * _at(_softmax(outputs), labels))[:, None] * pull

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Derivative of -2 (π_y - π_y²)(1_y - π)."""
        share, pull = _softmax(outputs), _pull(outputs, labels)
        hit, miss = _at(share, labels)[:, None, None], _at(pull, labels)[:, None, None]
        spread = share[:, :, None] * np.eye(outputs.shape[1]) - share[:, :, None] * share[:, None, :]
        outer = pull[:, :, None] * pull[:, None, :]
        return -2.0 * hit * (1.0 - 2.0 * hit) * outer + 2.0 * miss * hit * spread


def as_nexttoken_loss(loss: Any) -> NextTokenLoss:
    """`loss` if it is a loss of next tokens, else the sentence that says what is expected."""
    if not isinstance(loss, NextTokenLoss):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
        raise reject("loss", "ml.LogLoss(), ml.SquaredLoss(), ml.CrossEntropy() or another NextTokenLoss", what)
    return loss


def _at(outputs: FloatArray, labels: IntArray) -> FloatArray:
    return outputs[np.arange(len(labels)), labels]


def _softmax(outputs: FloatArray) -> FloatArray:
    weights = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _pull(outputs: FloatArray, labels: IntArray) -> FloatArray:
    """1_y - π, with 1 - π_y as the sum of the others."""
    pull = -_softmax(outputs)
    rows = np.arange(len(labels))
    pull[rows, labels] = 0.0
    pull[rows, labels] = -pull.sum(axis=1)
    return pull
