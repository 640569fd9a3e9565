"""How weights move: descent, flow and regularisation paths."""

from marginlens.dynamics.descend import descend, matching_optimizer
from marginlens.dynamics.device_descent import DeviceRun
from marginlens.dynamics.flow import UntilLength, UntilNorm, flow
from marginlens.dynamics.mini_batches import Sampling
from marginlens.dynamics.paths import Binding, Cone, CyclicPart, Path, path
from marginlens.dynamics.record import Record, Saved
from marginlens.dynamics.trajectory import Trajectory

__all__ = [
    "Binding",
    "Cone",
    "CyclicPart",
    "DeviceRun",
    "Path",
    "Record",
    "Sampling",
    "Saved",
    "Trajectory",
    "UntilLength",
    "UntilNorm",
    "descend",
    "flow",
    "matching_optimizer",
    "path",
]
