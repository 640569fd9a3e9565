r"""Losses ℓ(y, ŷ) of a predicted next token: the head turns the attention output f into ŷ = C f, one number per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marginlens.errors import InputError
from marginlens.losses.margin import SignedLog, lacking, numbers_from
from marginlens.papers import implements
from marginlens.typing import FloatArray, IntArray

_GAUSS_8 = np.polynomial.legendre.leggauss(8)
# The nodes and weights on [0, 1].
_NODES, _NODE_WEIGHTS = 0.5 * (1.0 + _GAUSS_8[0]), 0.5 * _GAUSS_8[1]
# Below this shortfall of an output, a mean slope is more exact than a difference of losses.
SMALL_SHORTFALL = 1e-3
# The methods that the code of a loss stands for.
_LABEL_LOSS_METHODS = ("value", "derivative", "second", "scalar")


class NextTokenLoss:
    """A loss of the outputs ŷ (n_samples, n_vocabulary) at the labels y (n_samples,); subclass it to define your own.

    A subclass defines `value` and `derivative` as NumPy functions that return real numbers of the shapes below, and `second` if
    you need the minimum on S_cyc. Losses with a `code` run in the compiled loop. A loss of the label's output alone is easier
    to define as a `LabelLoss`.
    """

    # The branch of the compiled loop; with -1 the loop runs in NumPy.
    code: ClassVar[int] = -1

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return ℓ(y, ŷ), (n_samples,)."""
        raise lacking(self, "value(outputs, labels)")

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return ∂ℓ/∂ŷ, (n_samples, n_vocabulary)."""
        raise lacking(self, "derivative(outputs, labels)")

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return ∂²ℓ/∂ŷ², (n_samples, n_vocabulary, n_vocabulary)."""
        raise lacking(self, "second(outputs, labels)")


class LabelLoss(NextTokenLoss):
    """A loss ℓ(u) of u = ŷ_y alone, the form in Assumption 1."""

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return ℓ(u), ℓ'(u) and ℓ''(u), elementwise."""
        raise lacking(self, "scalar(u)")

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        return scalar_of(self, _at(outputs, labels))[0]

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        slope = np.zeros_like(outputs)
        slope[np.arange(len(labels)), labels] = scalar_of(self, _at(outputs, labels))[1]
        return slope

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        curvature = np.zeros((*outputs.shape, outputs.shape[1]))
        curvature[np.arange(len(labels)), labels, labels] = scalar_of(self, _at(outputs, labels))[2]
        return curvature


@implements("C", "Eq. (18)")
@dataclass(frozen=True)
class LogLoss(LabelLoss):
    r"""The loss :math:`\ell(u) = -\log u` of :math:`u = \hat y_y > 0`; if C Eᵀ = I, u is the probability of the label.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.LogLoss().value(np.array([[0.25, 0.75]]), np.array([1])).round(4).tolist()
        [0.2877]
    """

    code: ClassVar[int] = 0

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return -log u, -1/u and 1/u²; infinite unless u is positive."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = np.where(u > 0.0, -np.log(np.where(u > 0.0, u, 1.0)), np.inf)
            return value, -1.0 / u, 1.0 / u**2


@dataclass(frozen=True)
class SquaredLoss(LabelLoss):
    r"""The loss :math:`\ell(u) = (1 - u)^2` of :math:`u = \hat y_y`: the loss of C's Figure 5 as the text states it.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.SquaredLoss().value(np.array([[0.25, 0.75]]), np.array([1])).tolist()
        [0.0625]
    """

    code: ClassVar[int] = 1

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return (1 - u)², -2 (1 - u) and 2."""
        return (1.0 - u) ** 2, -2.0 * (1.0 - u), np.full_like(u, 2.0)


@dataclass(frozen=True)
class CrossEntropy(NextTokenLoss):
    r"""The loss :math:`\ell(y, \hat y) = -\log \mathbb S(\hat y)_y`, which takes the outputs as logits: the loss of C's Figure 6.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.CrossEntropy().value(np.array([[0.0, 0.0]]), np.array([1])).round(4).tolist()
        [0.6931]
    """

    code: ClassVar[int] = 2

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return log Σ_c e^(ŷ_c - ŷ_y)."""
        return np.logaddexp.reduce(outputs - _at(outputs, labels)[:, None], axis=1)

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return π - 1_y, with 1 - π_y computed as the sum of the other probabilities."""
        return -_label_minus_softmax(outputs, labels)

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return diag(π) - π πᵀ."""
        share = _softmax(outputs)
        return share[:, :, None] * np.eye(outputs.shape[1]) - share[:, :, None] * share[:, None, :]


@dataclass(frozen=True)
class SquaredProbability(NextTokenLoss):
    r"""The loss :math:`\ell(y, \hat y) = (1 - \mathbb S(\hat y)_y)^2`: the loss of C's Figure 5 as in the authors' code.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> ml.losses.SquaredProbability().value(np.array([[0.0, 0.0]]), np.array([1])).tolist()
        [0.25]
    """

    code: ClassVar[int] = 3

    def value(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return (1 - π_y)²."""
        return _at(_label_minus_softmax(outputs, labels), labels) ** 2

    def derivative(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return -2 (1 - π_y) π_y (1_y - π)."""
        difference = _label_minus_softmax(outputs, labels)
        miss = _at(difference, labels)
        return (-2.0 * miss * _at(_softmax(outputs), labels))[:, None] * difference

    def second(self, outputs: FloatArray, labels: IntArray) -> FloatArray:
        """Return the derivative of -2 (π_y - π_y²)(1_y - π)."""
        share, difference = _softmax(outputs), _label_minus_softmax(outputs, labels)
        hit, miss = _at(share, labels)[:, None, None], _at(difference, labels)[:, None, None]
        spread = share[:, :, None] * np.eye(outputs.shape[1]) - share[:, :, None] * share[:, None, :]
        outer = difference[:, :, None] * difference[:, None, :]
        return -2.0 * hit * (1.0 - 2.0 * hit) * outer + 2.0 * miss * hit * spread


def as_nexttoken_loss(loss: object) -> NextTokenLoss:
    """Return `loss` if it is a loss of next tokens, otherwise raise."""
    if not isinstance(loss, NextTokenLoss):
        what = f"the class {loss.__name__}" if isinstance(loss, type) else type(loss).__name__
        raise InputError("loss", "ml.LogLoss(), ml.SquaredLoss(), ml.CrossEntropy() or another NextTokenLoss", what)
    family = type(loss)
    for base in family.__mro__:
        if base.__module__ == __name__ and getattr(base, "code", -1) >= 0:
            changed = [
                name for name in _LABEL_LOSS_METHODS if getattr(family, name, None) is not getattr(base, name, None)
            ]
            if changed:
                what = f"{family.__name__}, a {base.__name__} with a {changed[0]} of its own"
                raise InputError(
                    "loss", f"a {base.__name__} as it is, or a loss derived from LabelLoss or NextTokenLoss", what
                )
    if isinstance(loss, LabelLoss) and type(loss).scalar is LabelLoss.scalar:
        raise lacking(loss, "scalar(u)")
    for name in ("value", "derivative"):
        if getattr(family, name) is getattr(NextTokenLoss, name):
            raise lacking(loss, f"{name}(outputs, labels)")
    return loss


def value_of(loss: NextTokenLoss, outputs: FloatArray, labels: IntArray) -> FloatArray:
    """Return ℓ(y, ŷ), (n_samples,); raise if a user's loss does not return one real number for each sample."""
    return _checked(loss, "value", loss.value(outputs, labels), labels.shape)


def derivative_of(loss: NextTokenLoss, outputs: FloatArray, labels: IntArray) -> FloatArray:
    """Return ∂ℓ/∂ŷ, (n_samples, n_vocabulary); raise if a user's loss returns anything else."""
    return _checked(loss, "derivative", loss.derivative(outputs, labels), outputs.shape)


def second_of(loss: NextTokenLoss, outputs: FloatArray, labels: IntArray) -> FloatArray:
    """Return ∂²ℓ/∂ŷ², (n_samples, n_vocabulary, n_vocabulary); raise if a user's loss returns anything else."""
    return _checked(loss, "second", loss.second(outputs, labels), (*outputs.shape, outputs.shape[1]))


def scalar_of(loss: LabelLoss, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ℓ(u), ℓ'(u) and ℓ''(u); raise unless a user's loss returns three arrays of u's shape."""
    given = loss.scalar(u)
    if loss.code >= 0:
        return given
    if not isinstance(given, tuple | list) or len(given) != 3:
        got = f"{type(given).__name__} from {type(loss).__name__}"
        raise InputError("loss", "a loss whose scalar(u) is the tuple of ℓ(u), ℓ'(u) and ℓ''(u)", got)
    value, slope, second = (_checked(loss, "scalar", part, np.shape(u)) for part in given)
    return value, slope, second


def label_rise(loss: LabelLoss, u: FloatArray, sign: FloatArray, log_delta: FloatArray) -> SignedLog:
    """Return ℓ(u - δ) - ℓ(u) as sign and logarithm: by subtraction if δ is large, as δ times a mean slope if it is small.

    Args:
        sign: the sign of δ, (…), against which u broadcasts.

        log_delta: log|δ|, (…).
    """
    delta = sign * np.exp(log_delta)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        nodes = u[..., None] - delta[..., None] * _NODES
        slope = np.sum(_NODE_WEIGHTS * loss.scalar(nodes)[1], axis=-1)
        rise = loss.scalar(u - delta)[0] - loss.scalar(u)[0]
        small = np.abs(delta) < SMALL_SHORTFALL
        return SignedLog(
            np.where(small, -sign * np.sign(slope), np.sign(rise)),
            np.where(small, log_delta + np.log(np.abs(slope)), np.log(np.abs(rise))),
        )


def _checked(loss: NextTokenLoss, method: str, given: object, shape: tuple[int, ...]) -> FloatArray:
    """Return what a method of a loss gave as a float64 array of this shape without nan; inf stands for a loss that is not defined there."""
    if loss.code >= 0:
        return np.asarray(given)
    array = numbers_from(loss, method, given, shape)
    if np.isnan(array).any():
        raise InputError("loss", f"a loss whose {method} gives numbers", f"nan from {type(loss).__name__}")
    return array


def _at(outputs: FloatArray, labels: IntArray) -> FloatArray:
    return outputs[np.arange(len(labels)), labels]


def _softmax(outputs: FloatArray) -> FloatArray:
    weights = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _label_minus_softmax(outputs: FloatArray, labels: IntArray) -> FloatArray:
    """Return 1_y - π, with 1 - π_y computed as the sum of the other probabilities."""
    difference = -_softmax(outputs)
    rows = np.arange(len(labels))
    difference[rows, labels] = 0.0
    difference[rows, labels] = -difference.sum(axis=1)
    return difference
