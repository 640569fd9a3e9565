"""Training risks: value, exact gradient, selected tokens and margin rows."""

from marginlens.risk.attention import (
    AttentionRisk,
    ExcessRisk,
    FactorRisk,
    MatrixRisk,
    excess_risk,
    matrix_from_vector,
    risk,
    risk_gradient,
)
from marginlens.risk.build import as_risk
from marginlens.risk.joint import JointRisk, joint_gradient
from marginlens.risk.log_scaled import LogScaled
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.protocol import MarginRows, Risk
from marginlens.risk.softmax import logits, softmax

__all__ = [
    "AttentionRisk",
    "ExcessRisk",
    "FactorRisk",
    "JointRisk",
    "LogScaled",
    "MarginRows",
    "MatrixRisk",
    "NextTokenRisk",
    "Risk",
    "as_risk",
    "excess_risk",
    "joint_gradient",
    "logits",
    "matrix_from_vector",
    "risk",
    "risk_gradient",
    "softmax",
]
