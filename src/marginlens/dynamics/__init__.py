"""How weights move: descent, flow and regularisation paths."""

from marginlens.dynamics.descend import descend, matching_optimizer
from marginlens.dynamics.flow import UntilLength, UntilNorm, gradient_flow
from marginlens.dynamics.paths.attention import Binding, Path, regularization_path
from marginlens.dynamics.paths.cone import Cone
from marginlens.dynamics.paths.joint import JointPath, joint_path
from marginlens.dynamics.paths.next_token import NextTokenPath, nexttoken_path
from marginlens.dynamics.paths.next_token_law import PathLaw, path_law
from marginlens.dynamics.record import Record, Saved
from marginlens.dynamics.trajectory import Trajectory

__all__ = [
    "Binding",
    "Cone",
    "JointPath",
    "NextTokenPath",
    "Path",
    "PathLaw",
    "Record",
    "Saved",
    "Trajectory",
    "UntilLength",
    "UntilNorm",
    "descend",
    "gradient_flow",
    "joint_path",
    "matching_optimizer",
    "nexttoken_path",
    "path_law",
    "regularization_path",
]
