"""Optimizers: rules that turn gradients into steps."""

from marginlens.optimizers.adam import Adam
from marginlens.optimizers.blockwise import Blockwise
from marginlens.optimizers.choice import optimizer_named
from marginlens.optimizers.decay import Decaying
from marginlens.optimizers.gradient_descent import GradientDescent, NormalizedGD
from marginlens.optimizers.mirror_descent import MirrorDescent
from marginlens.optimizers.protocol import Optimizer, as_optimizer
from marginlens.optimizers.schedules import PowerDecay
from marginlens.optimizers.steepest_descent import CoordinateDescent, Muon, SignDescent, SteepestDescent

__all__ = [
    "Adam",
    "Blockwise",
    "CoordinateDescent",
    "Decaying",
    "GradientDescent",
    "MirrorDescent",
    "Muon",
    "NormalizedGD",
    "Optimizer",
    "PowerDecay",
    "SignDescent",
    "SteepestDescent",
    "as_optimizer",
    "optimizer_named",
]
