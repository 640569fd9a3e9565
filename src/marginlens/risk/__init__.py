"""Training risks: value, exact gradient, selected tokens and margin rows."""

from marginlens.arithmetic.log_scaled import ExcessRisk, LogScaled, RankOneTerms
from marginlens.risk.attention import AttentionRisk, SecondOrder
from marginlens.risk.build import as_risk
from marginlens.risk.copying import CopyRisk
from marginlens.risk.cross_entropy import ContextRisk, MulticlassRisk
from marginlens.risk.joint import JointRisk
from marginlens.risk.matrix import FactorRisk, MatrixRisk, matrix_from_vector
from marginlens.risk.multi_head import MultiHeadRisk
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.protocol import MarginRows, Risk
from marginlens.risk.softmax import logits, softmax
from marginlens.risk.torch_module import TorchRisk, from_torch

__all__ = [
    "AttentionRisk",
    "ContextRisk",
    "CopyRisk",
    "ExcessRisk",
    "FactorRisk",
    "JointRisk",
    "LogScaled",
    "MarginRows",
    "MatrixRisk",
    "MultiHeadRisk",
    "MulticlassRisk",
    "NextTokenRisk",
    "RankOneTerms",
    "Risk",
    "SecondOrder",
    "TorchRisk",
    "as_risk",
    "from_torch",
    "logits",
    "matrix_from_vector",
    "softmax",
]
