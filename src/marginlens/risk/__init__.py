"""Training risks: values, exact gradients, selected tokens and margin rows."""

from typing import TYPE_CHECKING

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.removed import no_attribute
from marginlens.risk.attention import AttentionRisk, SoftmaxRisk
from marginlens.risk.contrastive import contrastive
from marginlens.risk.copying import CopyRisk
from marginlens.risk.cross_entropy import ContextRisk, MulticlassRisk
from marginlens.risk.joint import JointRisk
from marginlens.risk.matrix import FactorRisk, MatrixRisk, matrix_from_vector
from marginlens.risk.multi_head import MultiHeadRisk
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.preferences import preferences
from marginlens.risk.protocol import MarginRows, Risk
from marginlens.risk.routers import router
from marginlens.risk.softmax import logits, softmax
from marginlens.risk.torch_module import from_torch

__all__ = [
    "AttentionRisk",
    "ContextRisk",
    "CopyRisk",
    "FactorRisk",
    "JointRisk",
    "LogScaled",
    "MarginRows",
    "MatrixRisk",
    "MultiHeadRisk",
    "MulticlassRisk",
    "NextTokenRisk",
    "Risk",
    "SoftmaxRisk",
    "contrastive",
    "from_torch",
    "logits",
    "matrix_from_vector",
    "preferences",
    "router",
    "softmax",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
