"""What the papers promise: optimal tokens, neighbours, cones, constants, assumptions, and where descent will go."""

from marginlens.theory.assumptions import (
    Check,
    check_assumption_a,
    check_assumption_b,
    check_distinct_scores,
    check_separable,
    check_step,
    check_strict_optimum,
)
from marginlens.theory.basin import BasinCone, basin_cone
from marginlens.theory.cones import in_cone, sample_cone
from marginlens.theory.directional import DirectionalMargin, Dominance, directional_margin, dominance
from marginlens.theory.embedding_conditions import (
    check_class_window,
    check_lemma_13,
    check_lemma_14,
    check_lemma_19,
    check_missed_tokens,
    check_theorem_5,
    decisive_tokens,
)
from marginlens.theory.embedding_limits import (
    EmbeddingPrediction,
    all_selecting_directions,
    decisive_margin,
    predict_embedding_limit,
    remaining_selections,
    tightest_slack,
)
from marginlens.theory.enumeration import LocalOptima, locally_optimal_directions
from marginlens.theory.feasibility import Separator, constructive_separator
from marginlens.theory.general_position import check_general_position
from marginlens.theory.gradient_conditions import (
    KeyInequality,
    LocalGradientBounds,
    descent_correlation,
    gradient_ratio,
    gradient_ratio_radius,
    key_inequality,
    local_gradient_bounds,
)
from marginlens.theory.joint_limits import HeadRadius, JointPrediction, head_radius, predict_joint_limit
from marginlens.theory.label_margin import (
    BestSelections,
    LabelMargin,
    MixingCheck,
    best_selections,
    check_assumption_c,
    label_margin,
)
from marginlens.theory.limits import LimitPrediction, predict_limit
from marginlens.theory.mixing import (
    MixingConstants,
    MixingPairs,
    check_mixing,
    distance_to_set,
    log_nonoptimality,
    mixing_constants,
)
from marginlens.theory.nexttoken_limits import NextTokenPrediction, predict_nexttoken_limit
from marginlens.theory.optimality import TokenOptimality, globally_optimal_direction, token_optimality
from marginlens.theory.residual import ResidualLaw, law_deviation, residual_law
from marginlens.theory.selection_slopes import (
    DominantSlope,
    OwnMaxMargin,
    WeightBounds,
    convergence_bound,
    dominant_slope,
    own_max_margin,
    slope_deficit,
    softmax_weight_bounds,
)
from marginlens.theory.smoothness import Smoothness, smoothness
from marginlens.theory.verdicts import Verdict
from marginlens.theory.vocabulary_selections import (
    FeasibleSelections,
    LocalOptimality,
    TokenRanks,
    equivalent_directions,
    feasible_selections,
    local_optimality,
    selected_tokens,
    token_ranks,
)

__all__ = [
    "BasinCone",
    "BestSelections",
    "Check",
    "DirectionalMargin",
    "Dominance",
    "DominantSlope",
    "EmbeddingPrediction",
    "FeasibleSelections",
    "HeadRadius",
    "JointPrediction",
    "KeyInequality",
    "LabelMargin",
    "LimitPrediction",
    "LocalGradientBounds",
    "LocalOptima",
    "LocalOptimality",
    "MixingCheck",
    "MixingConstants",
    "MixingPairs",
    "NextTokenPrediction",
    "OwnMaxMargin",
    "ResidualLaw",
    "Separator",
    "Smoothness",
    "TokenOptimality",
    "TokenRanks",
    "Verdict",
    "WeightBounds",
    "all_selecting_directions",
    "basin_cone",
    "best_selections",
    "check_assumption_a",
    "check_assumption_b",
    "check_assumption_c",
    "check_class_window",
    "check_distinct_scores",
    "check_general_position",
    "check_lemma_13",
    "check_lemma_14",
    "check_lemma_19",
    "check_missed_tokens",
    "check_mixing",
    "check_separable",
    "check_step",
    "check_strict_optimum",
    "check_theorem_5",
    "constructive_separator",
    "convergence_bound",
    "decisive_margin",
    "decisive_tokens",
    "descent_correlation",
    "directional_margin",
    "distance_to_set",
    "dominance",
    "dominant_slope",
    "equivalent_directions",
    "feasible_selections",
    "globally_optimal_direction",
    "gradient_ratio",
    "gradient_ratio_radius",
    "head_radius",
    "in_cone",
    "key_inequality",
    "label_margin",
    "law_deviation",
    "local_gradient_bounds",
    "local_optimality",
    "locally_optimal_directions",
    "log_nonoptimality",
    "mixing_constants",
    "own_max_margin",
    "predict_embedding_limit",
    "predict_joint_limit",
    "predict_limit",
    "predict_nexttoken_limit",
    "remaining_selections",
    "residual_law",
    "sample_cone",
    "selected_tokens",
    "slope_deficit",
    "smoothness",
    "softmax_weight_bounds",
    "tightest_slack",
    "token_optimality",
    "token_ranks",
]
