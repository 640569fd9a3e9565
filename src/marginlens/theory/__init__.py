"""The papers' theorems on data: optimal tokens, neighbours, cones, constants, assumptions, and the limits of descent."""

from typing import TYPE_CHECKING

from marginlens.removed import no_attribute
from marginlens.risk.smoothness import smoothness
from marginlens.theory import next_token, vector_limits  # noqa: F401  they register their predictions
from marginlens.theory.assumptions import (
    check_assumption_a,
    check_assumption_b,
    check_separable,
    check_step,
    check_strict_optimum,
    mixing_constants,
    optimal_sets,
)
from marginlens.theory.attention_bounds import attention_sensitivity, entropy_floor, head_entropy_floor
from marginlens.theory.basin import BasinCone, basin_cone, in_cone, sample_cone
from marginlens.theory.certificate import Certificate
from marginlens.theory.certification import certify
from marginlens.theory.checks import Check, TheoremVerdict
from marginlens.theory.embedding_limits import (
    check_class_window,
    check_lemma_13,
    check_theorem_5,
    decisive_tokens,
    predict_embedding_limit,
    selected_tokens,
    token_ranks,
)
from marginlens.theory.factor_decay import factor_balance, nuclear_stationarity
from marginlens.theory.finite_minimum import MinimumCertificate
from marginlens.theory.implicit_bias import ImplicitBias, implicit_bias
from marginlens.theory.joint import check_polarisation
from marginlens.theory.label_margin import best_selections, check_assumption_c, label_margin
from marginlens.theory.optimality import (
    LocalOptima,
    TokenOptimality,
    directional_margin,
    globally_optimal_direction,
    locally_optimal_directions,
    token_optimality,
)
from marginlens.theory.other_risks import check_steepest_theorem, predict_copying
from marginlens.theory.outcome import Outcome
from marginlens.theory.prediction import Candidates, Prediction, predict, predict_limit
from marginlens.theory.residual_law import residual_law
from marginlens.theory.responses import WinningResponses, winning_responses
from marginlens.theory.steepest_certificate import SteepestCertificate

__all__ = [
    "BasinCone",
    "Candidates",
    "Certificate",
    "Check",
    "ImplicitBias",
    "LocalOptima",
    "MinimumCertificate",
    "Outcome",
    "Prediction",
    "SteepestCertificate",
    "TheoremVerdict",
    "TokenOptimality",
    "WinningResponses",
    "attention_sensitivity",
    "basin_cone",
    "best_selections",
    "certify",
    "check_assumption_a",
    "check_assumption_b",
    "check_assumption_c",
    "check_class_window",
    "check_lemma_13",
    "check_polarisation",
    "check_separable",
    "check_steepest_theorem",
    "check_step",
    "check_strict_optimum",
    "check_theorem_5",
    "decisive_tokens",
    "directional_margin",
    "entropy_floor",
    "factor_balance",
    "globally_optimal_direction",
    "head_entropy_floor",
    "implicit_bias",
    "in_cone",
    "label_margin",
    "locally_optimal_directions",
    "mixing_constants",
    "nuclear_stationarity",
    "optimal_sets",
    "predict",
    "predict_copying",
    "predict_embedding_limit",
    "predict_limit",
    "residual_law",
    "sample_cone",
    "selected_tokens",
    "smoothness",
    "token_optimality",
    "token_ranks",
    "winning_responses",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
