"""Training dynamics: descent, flow and regularisation paths."""

from typing import TYPE_CHECKING

from marginlens.dynamics.descend import descend, matching_optimizer
from marginlens.dynamics.flow import UntilLength, UntilNorm, flow
from marginlens.dynamics.mini_batches import Sampling
from marginlens.dynamics.paths import Cone, CyclicPart, Path, path
from marginlens.dynamics.record import Record
from marginlens.dynamics.trajectory import Trajectory
from marginlens.removed import no_attribute

__all__ = [
    "Cone",
    "CyclicPart",
    "Path",
    "Record",
    "Sampling",
    "Trajectory",
    "UntilLength",
    "UntilNorm",
    "descend",
    "flow",
    "matching_optimizer",
    "path",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
