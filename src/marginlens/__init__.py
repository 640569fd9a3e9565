"""marginlens predicts, trains and verifies what softmax attention selects."""

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
    "correlation",
    "data",
    "descend",
    "descend_matrix",
    "excess_risk",
    "label_svm",
    "least_distance",
    "matching_step",
    "matrix_from_vector",
    "risk",
    "risk_gradient",
]
