"""The public names of marginlens and where each is defined; `__init__.py` imports a name when it is first used."""

from marginlens import (
    data as data,
    dynamics as dynamics,
    embeddings as embeddings,
    graphs as graphs,
    losses as losses,
    nexttoken as nexttoken,
    norms as norms,
    optimizers as optimizers,
    plotting as plotting,
    probe as probe,
    risk as risk,
    svm as svm,
    text as text,
    theory as theory,
)
from marginlens.data import (
    SequenceDataset as SequenceDataset,
    TokenDataset as TokenDataset,
    random_start as random_start,
)
from marginlens.data.labelled import embedding_tokens as embedding_tokens
from marginlens.directions import angle as angle, correlation as correlation
from marginlens.dynamics import (
    Cone as Cone,
    JointPath as JointPath,
    NextTokenPath as NextTokenPath,
    Path as Path,
    PathLaw as PathLaw,
    Record as Record,
    Trajectory as Trajectory,
    UntilLength as UntilLength,
    UntilNorm as UntilNorm,
    descend as descend,
    gradient_flow as gradient_flow,
    joint_path as joint_path,
    matching_optimizer as matching_optimizer,
    nexttoken_path as nexttoken_path,
    path_law as path_law,
    regularization_path as regularization_path,
)
from marginlens.embeddings import TokenStatistics as TokenStatistics, token_statistics as token_statistics
from marginlens.errors import InputError as InputError, MissingExtra as MissingExtra
from marginlens.graphs import (
    LocalRule as LocalRule,
    PriorityGraph as PriorityGraph,
    cyclic_subset as cyclic_subset,
    cyclic_subspace as cyclic_subspace,
    priority_graphs as priority_graphs,
    pseudo_graphs as pseudo_graphs,
    to_networkx as to_networkx,
)
from marginlens.losses.margin import (
    CorrelationLoss as CorrelationLoss,
    Exponential as Exponential,
    Logistic as Logistic,
    Loss as Loss,
)
from marginlens.nexttoken import (
    CrossEntropy as CrossEntropy,
    CyclicCorrection as CyclicCorrection,
    LogLoss as LogLoss,
    NextTokenAutomaton as NextTokenAutomaton,
    NextTokenLoss as NextTokenLoss,
    SquaredLoss as SquaredLoss,
    SquaredProbability as SquaredProbability,
    check_head as check_head,
    cyclic_correction as cyclic_correction,
    local_correction as local_correction,
    nexttoken_excess as nexttoken_excess,
    nexttoken_gradient as nexttoken_gradient,
    nexttoken_risk as nexttoken_risk,
    nexttoken_smoothness as nexttoken_smoothness,
)
from marginlens.norms import L2 as L2, Frobenius as Frobenius, Norm as Norm
from marginlens.optimizers import (
    Blockwise as Blockwise,
    GradientDescent as GradientDescent,
    NormalizedGD as NormalizedGD,
    Optimizer as Optimizer,
)
from marginlens.plotting.graphs import draw_graphs as draw_graphs
from marginlens.risk import (
    AttentionRisk as AttentionRisk,
    FactorRisk as FactorRisk,
    JointRisk as JointRisk,
    LogScaled as LogScaled,
    MatrixRisk as MatrixRisk,
    NextTokenRisk as NextTokenRisk,
    Risk as Risk,
    matrix_from_vector as matrix_from_vector,
)
from marginlens.svm import (
    GraphSolution as GraphSolution,
    MarginSolution as MarginSolution,
    SetSolution as SetSolution,
    Status as Status,
    att_svm as att_svm,
    graph_svm as graph_svm,
    label_svm as label_svm,
    least_distance as least_distance,
    relaxed_svm as relaxed_svm,
    set_svm as set_svm,
    vocabulary_svm as vocabulary_svm,
)
from marginlens.text.classifier import AttentionTextClassifier as AttentionTextClassifier
from marginlens.theory import (
    basin_cone as basin_cone,
    check_general_position as check_general_position,
    constructive_separator as constructive_separator,
    directional_margin as directional_margin,
    dominance as dominance,
    globally_optimal_direction as globally_optimal_direction,
    law_deviation as law_deviation,
    locally_optimal_directions as locally_optimal_directions,
    predict_embedding_limit as predict_embedding_limit,
    predict_limit as predict_limit,
    residual_law as residual_law,
    smoothness as smoothness,
    token_optimality as token_optimality,
)

__version__: str
