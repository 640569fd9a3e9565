"""What is measured of every head: the arrays by layer and head, and for each one its name and what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from marginlens.data.tokens import FloatArray


@dataclass(frozen=True)
class Measure:
    """One number per head: the field that holds it, its short title, the group it stands in, and one sentence of explanation."""

    name: str
    title: str
    group: str
    says: str

    @property
    def label(self) -> str:
        """The title inside its group."""
        return self.title.split(": ")[-1]

    def tells(self, values: FloatArray) -> bool:
        """Whether there is something to show: a number, and for ties one above zero, since most models have none."""
        known = values[np.isfinite(values)]
        return bool(known.any() if self.name == "tied_share" else known.size)


@dataclass(frozen=True, repr=False, eq=False)
class HeadMeasures:
    """Arrays of shape (n_layers, n_heads); every average runs over the queries that see at least two tokens, all of equal weight.

    nan stands where there is nothing to measure: a first token that sees only itself, or a matrix W that no single offset gives.

    Attributes:
        nnz, relative_nnz, entropy, top_probability: means over queries of A's soft count ‖s‖₁/‖s‖₂², of the same over the number of
            visible tokens, of the entropy in nats and of the largest probability.
        first_nnz, first_relative_nnz, first_entropy, first_top_probability: the same for the query of the first token alone.
        frobenius, spectral, nuclear: norms of the combined key-query matrix W.
        margin_median, margin_low: median and 5% quantile of the logit margin of the selected token over the second best.
        decisive_share: share of queries whose selected token holds more than half of the attention.
        self_share, first_share, last_share: share of queries that select themselves, the first or the last token they see.
        tied_share: share of queries whose largest logit belongs to several tokens, up to rounding in the model's precision: they select
            none, and their margin is zero or rounding.
        contested_share: share of the pairs of tokens decided both ways, among those that some query chose between.
        strict_share: share of the head's preferences that are in no cycle of its priority graph.
    """

    nnz: FloatArray
    relative_nnz: FloatArray
    entropy: FloatArray
    top_probability: FloatArray
    first_nnz: FloatArray
    first_relative_nnz: FloatArray
    first_entropy: FloatArray
    first_top_probability: FloatArray
    frobenius: FloatArray
    spectral: FloatArray
    nuclear: FloatArray
    margin_median: FloatArray
    margin_low: FloatArray
    decisive_share: FloatArray
    self_share: FloatArray
    first_share: FloatArray
    last_share: FloatArray
    tied_share: FloatArray
    contested_share: FloatArray
    strict_share: FloatArray

    def __iter__(self) -> Iterator[tuple[str, FloatArray]]:
        """Name and array of every measure."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True, repr=False, eq=False)
class MaxMarginMeasures:
    """How max-margin each head is: arrays of shape (n_layers, n_heads), nan where no W makes the selections in question or none is made.

    Three numbers, each for the head at its own selections and for three baselines, which are means over a few draws.

    Attributes:
        correlation: cosine of [W, w₀] with the solution of ATT-SVM in W-form.
        margin_ratio: smallest margin at unit norm over the best one. low_ratio: the same for the margin that 95% of the constraints exceed.
        …_random_selections: the head's W at selections drawn at random.
        …_random_matrix: random weights, of factors of the same shapes, at the head's selections.
        …_random_head: such random weights at the selections that they make themselves.
        n_constraints: how many rows the problem of the head has. residual: KKT residual of its solution.
        n_tied: how many of its queries are left out of the problem, since their selection is tied up to rounding.
    """

    correlation: FloatArray
    correlation_random_selections: FloatArray
    correlation_random_matrix: FloatArray
    correlation_random_head: FloatArray
    margin_ratio: FloatArray
    margin_ratio_random_selections: FloatArray
    margin_ratio_random_matrix: FloatArray
    margin_ratio_random_head: FloatArray
    low_ratio: FloatArray
    low_ratio_random_selections: FloatArray
    low_ratio_random_matrix: FloatArray
    low_ratio_random_head: FloatArray
    n_constraints: FloatArray
    n_tied: FloatArray
    residual: FloatArray

    def __iter__(self) -> Iterator[tuple[str, FloatArray]]:
        """Name and array of every measure."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))


_SPARSITY, _FIRST, _WEIGHTS = "Sparsity", "First token", "Weights"
_SELECTION, _PREFERENCES = "Selection", "Preferences"
_OWN: tuple[Measure, ...] = (
    Measure(
        "relative_nnz",
        "nnz/T",
        _SPARSITY,
        "The soft count of attended tokens over the number of tokens that a query sees: 1 is even attention, 1/T is one token.",
    ),
    Measure(
        "nnz",
        "nnz",
        _SPARSITY,
        "The soft count ‖s‖₁/‖s‖₂² of the tokens that a query attends to: 1 when one has everything.",
    ),
    Measure("entropy", "entropy", _SPARSITY, "The entropy of the attention in nats: 0 when one token has everything."),
    Measure("top_probability", "top probability", _SPARSITY, "The attention that the most attended token gets."),
    Measure("first_relative_nnz", "first: nnz/T", _FIRST, "nnz/T for the query of the first token (CLS) alone."),
    Measure("first_nnz", "first: nnz", _FIRST, "The soft count for the query of the first token (CLS) alone."),
    Measure("first_entropy", "first: entropy", _FIRST, "The entropy for the query of the first token (CLS) alone."),
    Measure(
        "first_top_probability",
        "first: top probability",
        _FIRST,
        "The attention that the most attended token gets from the query of the first token (CLS).",
    ),
    Measure("frobenius", "Frobenius norm", _WEIGHTS, "The Frobenius norm of the combined key-query matrix W."),
    Measure("spectral", "spectral norm", _WEIGHTS, "The largest singular value of W."),
    Measure("nuclear", "nuclear norm", _WEIGHTS, "The sum of the singular values of W."),
    Measure(
        "margin_median",
        "median margin",
        _SELECTION,
        "By how much the selected token's logit exceeds the second best: the median over queries.",
    ),
    Measure("margin_low", "5% margin", _SELECTION, "The logit margin that 95% of the queries exceed."),
    Measure(
        "decisive_share",
        "decisive",
        _SELECTION,
        "The share of queries whose selected token holds more than half of the attention.",
    ),
    Measure("self_share", "selects itself", _SELECTION, "The share of queries that select their own token."),
    Measure("first_share", "selects the first", _SELECTION, "The share of queries that select the first token."),
    Measure("last_share", "selects the last", _SELECTION, "The share of queries that select the last token they see."),
    Measure(
        "tied_share",
        "tied",
        _SELECTION,
        "The share of queries whose largest logit belongs to several tokens, up to rounding: they select none of them.",
    ),
    Measure(
        "contested_share",
        "contested",
        _PREFERENCES,
        "Of all pairs of tokens that some query chose between, the share that was decided both ways.",
    ),
    Measure(
        "strict_share",
        "in no cycle",
        _PREFERENCES,
        "The share of the head's preferences, token over token in at least 9 of 10 choices, that are in no cycle of its priority graph.",
    ),
)
QUANTITIES = {  # name → group, and what it says of the head at its own selections
    "correlation": ("Correlation", "the cosine of W with the shortest W that makes the same selections with margin 1"),
    "margin_ratio": ("Margin over best", "the smallest margin, at unit norm, over the largest one that any W reaches"),
    "low_ratio": (
        "5% margin over best",
        "the margin, at unit norm, that 95% of the constraints exceed, over the best one",
    ),
}
SETTINGS = {  # ending of the name → title, and whose W stands beside which selections
    "": ("this head", "For this head at its own selections"),
    "_random_selections": ("random selections", "Baseline: for this head at selections drawn at random"),
    "_random_matrix": ("random W", "Baseline: for random weights at the selections of this head"),
    "_random_head": ("random head", "Baseline: for random weights at the selections that they make themselves"),
}
MEASURES: tuple[Measure, ...] = (
    *_OWN,
    *(
        Measure(f"{name}{ending}", f"{group.lower()}: {title}", group, f"{whose}: {what}.")
        for name, (group, what) in QUANTITIES.items()
        for ending, (title, whose) in SETTINGS.items()
    ),
)
