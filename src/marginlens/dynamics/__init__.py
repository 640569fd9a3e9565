"""How weights move: descent, flow and regularisation paths."""

from marginlens.dynamics.cone import Cone
from marginlens.dynamics.descend import descend, matching_optimizer
from marginlens.dynamics.flow import UntilLength, UntilNorm, gradient_flow
from marginlens.dynamics.joint_path import JointPath, joint_path
from marginlens.dynamics.path import Binding, Path, regularization_path
from marginlens.dynamics.record import Record, Saved
from marginlens.dynamics.trajectory import DescentStatus, Trajectory

__all__ = [
    "Binding",
    "Cone",
    "DescentStatus",
    "JointPath",
    "Path",
    "Record",
    "Saved",
    "Trajectory",
    "UntilLength",
    "UntilNorm",
    "descend",
    "gradient_flow",
    "joint_path",
    "matching_optimizer",
    "regularization_path",
]
