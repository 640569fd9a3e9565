"""The public names of marginlens and where each is defined; `__init__.py` imports a name when it is first used."""

from marginlens import (
    data as data,
    dynamics as dynamics,
    embeddings as embeddings,
    errors as errors,
    graphs as graphs,
    lab as lab,
    losses as losses,
    nexttoken as nexttoken,
    norms as norms,
    optimizers as optimizers,
    plotting as plotting,
    probe as probe,
    risk as risk,
    svm as svm,
    sweeps as sweeps,
    theory as theory,
)
from marginlens.data import (
    ContextDataset as ContextDataset,
    SequenceDataset as SequenceDataset,
    TokenDataset as TokenDataset,
)
from marginlens.arithmetic.directions import angle as angle, correlation as correlation
from marginlens.dynamics import (
    Cone as Cone,
    Path as Path,
    Record as Record,
    Sampling as Sampling,
    Trajectory as Trajectory,
    UntilLength as UntilLength,
    UntilNorm as UntilNorm,
    descend as descend,
    flow as flow,
    path as path,
)
from marginlens.embeddings import token_statistics as token_statistics
from marginlens.errors import InputError as InputError
from marginlens.graphs import (
    cyclic_subset as cyclic_subset,
    priority_graphs as priority_graphs,
)
from marginlens.losses.margin import (
    ArcsineLoss as ArcsineLoss,
    CorrelationLoss as CorrelationLoss,
    Exponential as Exponential,
    Logistic as Logistic,
    LogProbability as LogProbability,
)
from marginlens.nexttoken import (
    CrossEntropy as CrossEntropy,
    LogLoss as LogLoss,
    NextTokenAutomaton as NextTokenAutomaton,
    SquaredLoss as SquaredLoss,
    cyclic_correction as cyclic_correction,
)
from marginlens.norms import (
    L1 as L1,
    L2 as L2,
    Frobenius as Frobenius,
    LInf as LInf,
    Lp as Lp,
    MaxRow as MaxRow,
    Norm as Norm,
    Nuclear as Nuclear,
    Spectral as Spectral,
)
from marginlens.optimizers import (
    Adam as Adam,
    CoordinateDescent as CoordinateDescent,
    GradientDescent as GradientDescent,
    MirrorDescent as MirrorDescent,
    Muon as Muon,
    NormalizedGD as NormalizedGD,
    Optimizer as Optimizer,
    SignDescent as SignDescent,
    SteepestDescent as SteepestDescent,
)
from marginlens.risk import (
    AttentionRisk as AttentionRisk,
    ContextRisk as ContextRisk,
    JointRisk as JointRisk,
    NextTokenRisk as NextTokenRisk,
    SoftmaxRisk as SoftmaxRisk,
    Risk as Risk,
)
from marginlens.svm import (
    MarginSolution as MarginSolution,
    Status as Status,
    att_svm as att_svm,
    graph_svm as graph_svm,
    label_svm as label_svm,
    least_distance as least_distance,
    ntp_svm as ntp_svm,
    relaxed_svm as relaxed_svm,
    set_svm as set_svm,
    vocabulary_svm as vocabulary_svm,
)
from marginlens.sweeps import sweep as sweep
from marginlens.theory import (
    Certificate as Certificate,
    Prediction as Prediction,
    basin_cone as basin_cone,
    certify as certify,
    locally_optimal_directions as locally_optimal_directions,
    predict as predict,
    predict_limit as predict_limit,
    token_optimality as token_optimality,
)
from marginlens_papers import ledger as ledger

__version__: str
