"""How weights move: exact gradients, risks and descent."""

from marginlens.data.embedded import embedding_tokens
from marginlens.dynamics.cone import Cone
from marginlens.dynamics.descent import descend
from marginlens.dynamics.flow import UntilLength, UntilNorm, gradient_flow
from marginlens.dynamics.joint import JointTrajectory, descend_joint, joint_gradient
from marginlens.dynamics.joint_path import JointPath, joint_path
from marginlens.dynamics.matrix import descend_matrix, matching_step, matrix_from_vector
from marginlens.dynamics.path import Binding, Path, regularization_path
from marginlens.dynamics.steps import ConstantStep, NormalizedStep, Record
from marginlens.dynamics.trajectory import DescentStatus, Saved, Trajectory
from marginlens.risk.attention import ExcessRisk, excess_risk, risk
from marginlens.risk.attention_gradient import ScaledVector, risk_gradient
from marginlens.risk.softmax import logits, softmax

__all__ = [
    "Binding",
    "Cone",
    "ConstantStep",
    "DescentStatus",
    "ExcessRisk",
    "JointPath",
    "JointTrajectory",
    "NormalizedStep",
    "Path",
    "Record",
    "Saved",
    "ScaledVector",
    "Trajectory",
    "UntilLength",
    "UntilNorm",
    "descend",
    "descend_joint",
    "descend_matrix",
    "embedding_tokens",
    "excess_risk",
    "gradient_flow",
    "joint_gradient",
    "joint_path",
    "logits",
    "matching_step",
    "matrix_from_vector",
    "regularization_path",
    "risk",
    "risk_gradient",
    "softmax",
]
