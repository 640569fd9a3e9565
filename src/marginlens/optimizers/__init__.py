"""Optimizers: rules that turn gradients into steps."""

from typing import TYPE_CHECKING

from marginlens.optimizers.adam import Adam
from marginlens.optimizers.blockwise import Blockwise
from marginlens.optimizers.decay import Decaying
from marginlens.optimizers.gradient_descent import GradientDescent, NormalizedGD
from marginlens.optimizers.mirror_descent import MirrorDescent
from marginlens.optimizers.protocol import Optimizer
from marginlens.optimizers.schedules import PowerDecay
from marginlens.optimizers.steepest_descent import CoordinateDescent, Muon, SignDescent, SteepestDescent
from marginlens.removed import no_attribute

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
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
