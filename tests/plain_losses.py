"""Losses as a user would write them, which no compiled loop knows."""

from dataclasses import dataclass

import numpy as np

from marginlens.losses import Loss
from marginlens.losses.next_token import LabelLoss


class OwnLogistic(Loss):
    """log(1 + e^-u), the logistic loss."""

    def value(self, u):
        return np.logaddexp(0.0, -np.asarray(u, dtype=float))

    def log_abs_derivative(self, u):
        return -np.logaddexp(0.0, np.asarray(u, dtype=float))


class OwnExponential(Loss):
    """e^-u, the exponential loss."""

    def value(self, u):
        return np.exp(-np.asarray(u))

    def log_abs_derivative(self, u):
        return -np.asarray(u, dtype=float)


class Squared(Loss):
    """(1 - u)², which decreases up to 1 only; log|slope| does not show the sign."""

    def value(self, u):
        return (1.0 - np.asarray(u, dtype=float)) ** 2

    def log_abs_derivative(self, u):
        with np.errstate(divide="ignore"):
            return np.log(2.0 * np.abs(1.0 - np.asarray(u, dtype=float)))


def unknown(loss):
    """A loss of next tokens as the compiled loop does not know it."""
    return type(f"Own{type(loss).__name__}", (type(loss),), {"code": -1})()


@dataclass(frozen=True)
class Linear(LabelLoss):
    """ℓ(u) = -u, of the label's output u."""

    def scalar(self, u):
        return -u, -np.ones_like(u), np.zeros_like(u)


@dataclass(frozen=True)
class Decay(LabelLoss):
    """ℓ(u) = e^(-rate u)."""

    rate: float = 1.0

    def scalar(self, u):
        value = np.exp(-self.rate * u)
        return value, -self.rate * value, self.rate**2 * value
