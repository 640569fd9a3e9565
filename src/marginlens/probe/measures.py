"""Measures of attention heads by name, the kinds of heads, and how heads are ranked and compared."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from marginlens.typing import FloatArray
from marginlens.words import text, title

MAX_EXACT_POINTS = 8  # up to here all orders are tried (40,320 of them), beyond it N_RANDOM_ORDERS random ones
N_RANDOM_ORDERS = 50_000
# The level of a test of a rank correlation; over checkpoints it is divided by the number of layers.
SIGNIFICANCE = 0.05
# A smaller change over training, relative to the first value, is not a trend, however steady it is.
MIN_RELATIVE_CHANGE = 0.05
MIN_TREND_CHECKPOINTS = 6  # with five, one order in 60 is perfect, and there are several layers


class Measure(NamedTuple):
    """A measure of heads: its name and its group. Its title and explanation are texts."""

    name: str
    group: str

    @property
    def title(self) -> str:
        """The short title, as shown in tables."""
        return title(f"measure.{self.name}")

    @property
    def says(self) -> str:
        """An explanation of the measure, in one sentence."""
        return text(f"measure.{self.name}")

    @property
    def label(self) -> str:
        """The title within its group."""
        return self.title.split(": ")[-1]

    @property
    def is_share(self) -> bool:
        """True if the measure is a share, shown in percent."""
        return "_share" in self.name

    def has_values(self, values: FloatArray) -> bool:
        """Return whether there is something to show: a number, and for ties a positive one, since most models have none."""
        known = values[np.isfinite(values)]
        return bool(known.any() if self.name == "tied_share" else known.size)


class HeadKind(NamedTuple):
    """A kind of heads: its name, and the measure that decides whether a head is of this kind. Its title and description are texts."""

    name: str
    measure: str = ""

    @property
    def title(self) -> str:
        """The title of a head of this kind."""
        return title(f"head_kind.{self.name}")

    @property
    def says(self) -> str:
        """A clause on what heads of this kind do."""
        return text(f"head_kind.{self.name}")


HEAD_KINDS = {
    kind.name: kind
    for kind in (
        HeadKind("previous", "previous_share"),
        HeadKind("next", "next_share"),
        HeadKind("first", "first_share"),
        HeadKind("same", "same_share"),
        HeadKind("separator", "separator_share"),
        HeadKind("content"),
        HeadKind("even"),
    )
}
# The kinds of sink heads: they select a token that heads attend to when nothing else matters.
SINK_KINDS = ("first", "separator")
# The measures that decide what a head does beside the sinks, by kind.
BESIDE = {kind: f"{kind}_beside_share" for kind in ("previous", "next", "same")}
# The measures of what can be left out, by total variation.
NEGLIGIBLE = {0.001: "negligible_share", 0.01: "negligible_share_at_0.01", 0.1: "negligible_share_at_0.1"}
# Only models whose heads have a learned sink have this measure.
LEARNED_SINK = "learned_sink_share"
MOST_QUERIES = 0.5  # the share of queries that makes a kind
EVEN_NNZ = 0.6  # nnz/T from which on attention is even, whatever it selects
_BY_GROUP = {
    "Sparsity": ("relative_nnz", "nnz", "entropy", "top_probability", *NEGLIGIBLE.values()),
    "First token": ("first_relative_nnz", "first_nnz", "first_entropy", "first_top_probability"),
    "Weights": ("frobenius", "spectral", "nuclear", "largest_entry"),
    "Selection": (
        "max_logit",
        "margin_median",
        "margin_low",
        "decisive_share",
        "previous_share",
        "next_share",
        "same_share",
        "separator_share",
        *BESIDE.values(),
        "self_share",
        "first_share",
        "first_sink_share",
        "sink_share",
        LEARNED_SINK,
        "tied_share",
    ),
    "Training": ("loss",),
    "Preferences": ("contested_share", "strict_share"),
}
# The measures of the max-margin part by their groups, each of the head at its own selections.
MAX_MARGIN_GROUPS = {
    "correlation": "Correlation",
    "margin_ratio": "Margin over best",
    "low_ratio": "5% margin over best",
}
# The endings of their names: for the head itself, and for random heads.
BASELINES = ("", "_random_head")
HEAD_MEASURES = tuple(Measure(name, group) for group, names in _BY_GROUP.items() for name in names)
MEASURES = HEAD_MEASURES + tuple(
    Measure(f"{name}{ending}", group) for name, group in MAX_MARGIN_GROUPS.items() for ending in BASELINES
)
_NAMES = {measure.name: measure for measure in MEASURES}


def measure_title(name: str) -> str:
    """Return the title of a measure, or the name of another column."""
    return _NAMES[name].title if name in _NAMES else name


class RankTest(NamedTuple):
    """Spearman's rank correlation, and the share of orders with at least as large a modulus of the correlation (two-sided)."""

    correlation: float
    p_value: float


def rank_test(first: FloatArray, second: FloatArray) -> RankTest:
    """Compute Spearman's rank correlation of two samples of shape (n_points,), and test it against all orders being equally likely.

    Both numbers are nan if a sample is constant or has a number that is not finite.
    """
    a, b = (np.asarray(values, dtype=float) for values in (first, second))
    if len(a) < 2 or not (np.isfinite(a).all() and np.isfinite(b).all()) or np.ptp(a) == 0.0 or np.ptp(b) == 0.0:
        return RankTest(float("nan"), float("nan"))
    ranks = [scipy.stats.rankdata(values) - (len(values) + 1) / 2 for values in (a, b)]
    centred_a, centred_b = (values / np.linalg.norm(values) for values in ranks)
    correlation = float(centred_a @ centred_b)
    orders = _orders(len(a))
    as_strong = int(np.sum(np.abs(centred_b[orders] @ centred_a) >= abs(correlation) - 1e-12))  # equal up to rounding
    observed = int(len(a) > MAX_EXACT_POINTS)  # the observed order counts as one of those drawn
    return RankTest(correlation, (as_strong + observed) / (len(orders) + observed))


@cache
def _orders(n: int) -> npt.NDArray[np.int64]:
    """Return every order of n points, (n_orders, n), or random ones if these are too many."""
    if n <= MAX_EXACT_POINTS:
        return np.array(list(permutations(range(n))))
    return np.random.default_rng(0).permuted(np.tile(np.arange(n), (N_RANDOM_ORDERS, 1)), axis=1)


def ranked_heads(values: FloatArray, count: int | None = None) -> list[tuple[int, int]]:
    """Return layer and head of the largest of (n_layers, n_heads) numbers, the largest first; heads without one are left out."""
    order = np.argsort(-values, axis=None, kind="stable")
    return [divmod(int(k), values.shape[1]) for k in order if np.isfinite(values.flat[k])][:count]
