"""How max-margin an attention head is: its key-query matrix beside the SVM of its own selections, and beside chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marginlens.probe.key_query import KeyQueryMap
from marginlens.probe.max_margin_sample import MaxMarginSettings, QuerySample
from marginlens.svm.solution import Status


@dataclass(frozen=True)
class MarginMatch:
    """One key-query matrix W beside one SVM solution, both as [W, w_0] that acts on queries (z, 1).

    Attributes:
        correlation: the cosine of W and the SVM's matrix in the Frobenius inner product.
        margin_ratio: W's smallest margin over the best one: min over constraints of (x_α - x_t)ᵀ W q / ‖W‖_F, times ‖W_svm‖_F. At most 1;
            positive where W makes these selections itself, negative where it misses one.
        low_ratio: the 5 % quantile over the constraints instead of their minimum.
        satisfied: the share of constraints with a positive margin under W.
        active: the share of constraints that are tight at the SVM's solution.
        best_margin: 1/‖W_svm‖_F, zero where the selections cannot be made by any W.
        n_constraints: how many there are.
        status: of the SVM; all numbers but `satisfied` and `n_constraints` are nan where it has no solution.
        residual: the SVM's KKT residual, recomputed from the constraints.
    """

    correlation: float
    margin_ratio: float
    low_ratio: float
    satisfied: float
    active: float
    best_margin: float
    n_constraints: int
    status: Status
    residual: float


@dataclass(frozen=True)
class HeadMargin:
    """How max-margin one head is, and how much of that chance explains.

    Attributes:
        own: the head at its own selections.
        random_selections: the head beside the SVMs of selections drawn uniformly among the visible tokens.
        random_head: Gaussian factors of the same shapes, each at *its own* selections: how max-margin a random head is.
        random_matrix: the same random heads beside the SVM of this head's selections.
    """

    own: MarginMatch
    random_selections: tuple[MarginMatch, ...]
    random_head: tuple[MarginMatch, ...]
    random_matrix: tuple[MarginMatch, ...]


def layer_margins(
    sample: QuerySample, heads: Sequence[KeyQueryMap], settings: MaxMarginSettings | None = None
) -> tuple[HeadMargin, ...]:
    """`HeadMargin` of every head of one layer; the baselines are drawn and solved once for all of them."""
    raise NotImplementedError
