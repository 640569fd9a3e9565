"""Optimizers: rules that turn gradients into steps."""

from marginlens.optimizers.blockwise import Blockwise
from marginlens.optimizers.gradient_descent import GradientDescent, NormalizedGD
from marginlens.optimizers.protocol import Optimizer, as_optimizer

__all__ = ["Blockwise", "GradientDescent", "NormalizedGD", "Optimizer", "as_optimizer"]
