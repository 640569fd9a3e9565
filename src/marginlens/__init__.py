"""marginlens predicts, trains and verifies what softmax attention selects."""

from typing import Any

from marginlens import data
from marginlens.data import TokenDataset
from marginlens.directions import angle, correlation
from marginlens.dynamics import (
    ConstantStep,
    DescentStatus,
    NormalizedStep,
    Record,
    Trajectory,
    descend,
    descend_matrix,
    excess_risk,
    matching_step,
    matrix_from_vector,
    risk,
    risk_gradient,
)
from marginlens.errors import InputError, MissingExtra
from marginlens.losses import Correlation, Exponential, Logistic, Loss
from marginlens.svm import MarginSolution, Status, att_svm, label_svm, least_distance
from marginlens.theory import (
    basin_cone,
    constructive_separator,
    directional_margin,
    dominance,
    globally_optimal_direction,
    locally_optimal_directions,
    predict_limit,
    smoothness,
    token_optimality,
)

__version__ = "0.1.0"
__all__ = [
    "ConstantStep",
    "Correlation",
    "DescentStatus",
    "Exponential",
    "InputError",
    "Logistic",
    "Loss",
    "MarginSolution",
    "MissingExtra",
    "NormalizedStep",
    "Record",
    "Status",
    "TokenDataset",
    "Trajectory",
    "angle",
    "att_svm",
    "basin_cone",
    "constructive_separator",
    "correlation",
    "data",
    "descend",
    "descend_matrix",
    "directional_margin",
    "dominance",
    "excess_risk",
    "globally_optimal_direction",
    "label_svm",
    "least_distance",
    "ledger",
    "locally_optimal_directions",
    "matching_step",
    "matrix_from_vector",
    "predict_limit",
    "risk",
    "risk_gradient",
    "smoothness",
    "token_optimality",
]


def ledger(folder: str = "report") -> Any:
    """Every claim with its id, label and statement, and its last result where the report in `folder` holds one."""
    from marginlens.report import ledger as read

    return read(folder)
