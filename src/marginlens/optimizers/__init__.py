"""Optimizers: rules that turn gradients into steps."""

from marginlens.optimizers.blockwise import Blockwise
from marginlens.optimizers.gradient_descent import GD, NormalizedGD
from marginlens.optimizers.protocol import Optimizer, as_optimizer

__all__ = ["GD", "Blockwise", "NormalizedGD", "Optimizer", "as_optimizer"]
