"""marginlens predicts, trains and verifies what softmax attention selects."""

from typing import Any

from marginlens import data
from marginlens.data import SequenceDataset, TokenDataset, random_start
from marginlens.data.labelled import embedding_tokens
from marginlens.directions import angle, correlation
from marginlens.dynamics import (
    Cone,
    JointPath,
    NextTokenPath,
    Path,
    PathLaw,
    Record,
    Trajectory,
    UntilLength,
    UntilNorm,
    descend,
    gradient_flow,
    joint_path,
    matching_optimizer,
    nexttoken_path,
    path_law,
    regularization_path,
)
from marginlens.embeddings import TokenStatistics, token_statistics
from marginlens.errors import InputError, MissingExtra
from marginlens.graphs import (
    LocalRule,
    PriorityGraph,
    cyclic_subset,
    cyclic_subspace,
    priority_graphs,
    pseudo_graphs,
    to_networkx,
)
from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss
from marginlens.nexttoken import (
    CrossEntropy,
    CyclicCorrection,
    LogLoss,
    NextTokenAutomaton,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
    check_head,
    cyclic_correction,
    local_correction,
    nexttoken_excess,
    nexttoken_gradient,
    nexttoken_risk,
    nexttoken_smoothness,
)
from marginlens.norms import L2, Frobenius, Norm
from marginlens.optimizers import Blockwise, GradientDescent, NormalizedGD, Optimizer
from marginlens.risk import (
    AttentionRisk,
    FactorRisk,
    JointRisk,
    LogScaled,
    MatrixRisk,
    NextTokenRisk,
    Risk,
    matrix_from_vector,
)
from marginlens.svm import (
    GraphSolution,
    MarginSolution,
    SetSolution,
    Status,
    att_svm,
    graph_svm,
    label_svm,
    least_distance,
    relaxed_svm,
    set_svm,
    vocabulary_svm,
)
from marginlens.theory import (
    basin_cone,
    check_general_position,
    constructive_separator,
    directional_margin,
    dominance,
    globally_optimal_direction,
    law_deviation,
    locally_optimal_directions,
    predict_embedding_limit,
    predict_limit,
    residual_law,
    smoothness,
    token_optimality,
)

__version__ = "0.1.0"
__all__ = [
    "L2",
    "AttentionRisk",
    "Blockwise",
    "Cone",
    "CorrelationLoss",
    "CrossEntropy",
    "CyclicCorrection",
    "Exponential",
    "FactorRisk",
    "Frobenius",
    "GradientDescent",
    "GraphSolution",
    "InputError",
    "JointPath",
    "JointRisk",
    "LocalRule",
    "LogLoss",
    "LogScaled",
    "Logistic",
    "Loss",
    "MarginSolution",
    "MatrixRisk",
    "MissingExtra",
    "NextTokenAutomaton",
    "NextTokenLoss",
    "NextTokenPath",
    "NextTokenRisk",
    "Norm",
    "NormalizedGD",
    "Optimizer",
    "Path",
    "PathLaw",
    "PriorityGraph",
    "Record",
    "Risk",
    "SequenceDataset",
    "SetSolution",
    "SquaredLoss",
    "SquaredProbability",
    "Status",
    "TokenDataset",
    "TokenStatistics",
    "Trajectory",
    "UntilLength",
    "UntilNorm",
    "angle",
    "att_svm",
    "basin_cone",
    "check_general_position",
    "check_head",
    "constructive_separator",
    "correlation",
    "cyclic_correction",
    "cyclic_subset",
    "cyclic_subspace",
    "data",
    "descend",
    "directional_margin",
    "dominance",
    "draw_graphs",
    "embedding_tokens",
    "globally_optimal_direction",
    "gradient_flow",
    "graph_svm",
    "joint_path",
    "label_svm",
    "law_deviation",
    "least_distance",
    "local_correction",
    "locally_optimal_directions",
    "matching_optimizer",
    "matrix_from_vector",
    "nexttoken_excess",
    "nexttoken_gradient",
    "nexttoken_path",
    "nexttoken_risk",
    "nexttoken_smoothness",
    "path_law",
    "predict_embedding_limit",
    "predict_limit",
    "priority_graphs",
    "pseudo_graphs",
    "random_start",
    "regularization_path",
    "relaxed_svm",
    "residual_law",
    "set_svm",
    "smoothness",
    "to_networkx",
    "token_optimality",
    "token_statistics",
    "vocabulary_svm",
]


def draw_graphs(graphs: Any, names: Any = None, **look: Any) -> Any:
    """Priority graphs as a matplotlib figure, one panel per last token; see `marginlens.plotting.graphs.draw_graphs`."""
    from marginlens.plotting.graphs import draw_graphs as draw

    return draw(graphs, names, **look)


def __getattr__(name: str) -> Any:
    """The text classifier, whose estimator conventions come from scikit-learn, is imported when it is first asked for."""
    if name == "AttentionTextClassifier":
        from marginlens.text.classifier import AttentionTextClassifier

        return AttentionTextClassifier
    raise AttributeError(f"module 'marginlens' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All names, with the one that is imported late."""
    return sorted({*globals(), "AttentionTextClassifier"})
