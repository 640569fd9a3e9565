"""Optimizers: rules that turn gradients into steps."""

from marginlens.optimizers.gradient_descent import GD, NormalizedGD
from marginlens.optimizers.protocol import Optimizer, as_optimizer
from marginlens.risk.log_scaled import LogScaled

__all__ = ["GD", "LogScaled", "NormalizedGD", "Optimizer", "as_optimizer"]
