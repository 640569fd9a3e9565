"""How max-margin an attention head is: its key-query matrix beside the SVM of its own selections, and beside chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.directions import correlation
from marginlens.errors import reject
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.probe.heads.max_margin_sample import SAME, MaxMarginSettings, QuerySample
from marginlens.runtime.threads import n_threads
from marginlens.svm.bilinear import BilinearSolution, bilinear_svm
from marginlens.svm.solution import Status

LOW = 0.05  # the quantile of the constraints' margins that stands beside their minimum
Result = TypeVar("Result")


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


@dataclass(frozen=True, repr=False)
class HeadMargin:
    """How max-margin one head is, and how much of that chance explains.

    Attributes:
        own: the head at its own selections.
        random_selections: the head beside the SVMs of selections drawn uniformly among the visible tokens.
        random_head: Gaussian factors of the same shapes, each at *its own* selections: how max-margin a random head is.
        random_matrix: the same random heads beside the SVM of this head's selections.
        n_tied: queries that are left out of the head's problem, since several tokens share their largest logit.
    """

    own: MarginMatch
    random_selections: tuple[MarginMatch, ...]
    random_head: tuple[MarginMatch, ...]
    random_matrix: tuple[MarginMatch, ...]
    n_tied: int = 0

    def __repr__(self) -> str:
        chance = np.mean([one.correlation for one in self.random_head]) if self.random_head else np.nan
        return f"HeadMargin({self.own.status.name}, correlation {self.own.correlation:.3f}, random heads {chance:.3f})"


def layer_margins(
    sample: QuerySample, heads: Sequence[KeyQueryMap], settings: MaxMarginSettings | None = None
) -> tuple[HeadMargin, ...]:
    r"""How max-margin every head of one layer is; the baselines are drawn once for all of them.

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (x_{\alpha_q} - x_t)^\top W z_q \ge 1 \quad (t \ne \alpha_q \text{ visible to } q)

    for the sampled queries q, where α is what the head itself selects: the visible token of the largest logit. Where any head of the
    layer has a query bias, queries are (z, 1) and W is [W, w_0], so that every head's own matrix satisfies its constraints
    after scaling. Tokens that equal the selected one are no constraints, since no W tells them apart. A query whose largest logit is
    shared by different tokens, up to `settings.rounding`, selects none of them and has no constraints, in the head's problem and in those
    of its baselines.

    Args:
        sample: the tokens and queries of the layer, from `sample_queries`.
        heads: the key-query maps of its heads, all of one shape. With rotary positions they hold at one offset, and selections are
            those of the map at that offset.
        settings: `n_draws` and `seed` of the baselines, and what `rounding` counts as a tie.
    Returns:
        One `HeadMargin` per head. Heads are spread over threads, which changes no number.
    """
    asked = settings or MaxMarginSettings()
    problem = _Layer(sample, heads)
    rng = np.random.default_rng([asked.seed, 1])
    drawn = [random_selection(sample, rng) for _ in range(asked.n_draws)]
    strangers = [problem.random_head(rng) for _ in range(asked.n_draws)]
    made, chance = ([selected_tokens(sample, one, asked.rounding) for one in some] for some in (heads, strangers))
    asks, places = list(made), {}  # which queries a head leaves out → where the problems of its baselines begin
    for selected in made:
        key = (selected < 0).tobytes()
        if key not in places:
            places[key] = len(asks)
            asks += [np.where(selected < 0, -1, one) for one in (*drawn, *chance)]
    with threadpool_limits(1, user_api="blas"):  # a thread for each problem is worth more than two for each product
        solved = _side_by_side(problem.solve, asks)
    random = {key: solved[first : first + len(drawn)] for key, first in places.items()}
    own_random = {key: solved[first + len(drawn) :][: len(strangers)] for key, first in places.items()}
    at_chance = {key: tuple(map(problem.match, strangers, some)) for key, some in own_random.items()}
    return tuple(
        HeadMargin(
            problem.match(head, own),
            tuple(problem.match(head, other) for other in random[key]),
            at_chance[key],
            tuple(problem.match(stranger, own) for stranger in strangers),
            int(np.sum(selected < 0)),
        )
        for head, own, selected in zip(heads, solved[: len(heads)], made, strict=True)
        for key in [(selected < 0).tobytes()]
    )


def head_margin(sample: QuerySample, head: KeyQueryMap, settings: MaxMarginSettings | None = None) -> HeadMargin:
    """`layer_margins` of a single head."""
    return layer_margins(sample, [head], settings)[0]


def selected_tokens(sample: QuerySample, head: KeyQueryMap, rounding: float = SAME) -> IntArray:
    """(n_queries,) which of `sample.tokens` each query selects: the visible one of the largest logit; -1 where different ones share it.

    Logits no further apart than `rounding` times the lengths of the query and of its longest key count as equal. Of copies of one token,
    which always do, it is the first.
    """
    queries = sample.tokens[sample.queries] @ head.W_Q + head.b_Q  # (n_queries, d_head)
    keys = (sample.tokens @ head.W_K)[sample.seen]  # (n_seen, d_head)
    sizes = np.diff(sample.offsets)
    logits = np.einsum("sh,sh->s", keys, np.repeat(queries, sizes, axis=0))
    best = np.maximum.reduceat(logits, sample.offsets[:-1])
    places = np.flatnonzero(logits == np.repeat(best, sizes))
    selected = sample.seen[places[np.searchsorted(places, sample.offsets[:-1])]]
    longest = np.maximum.reduceat(np.linalg.norm(keys, axis=1), sample.offsets[:-1])
    close = best - rounding * np.linalg.norm(queries, axis=1) * longest
    shared = np.flatnonzero(logits >= np.repeat(close, sizes))
    query = np.searchsorted(sample.offsets, shared, side="right") - 1
    tied = query[_differ(sample.tokens, selected[query], sample.seen[shared])]
    selected[tied] = -1
    return selected


def random_selection(sample: QuerySample, rng: np.random.Generator) -> IntArray:
    """(n_queries,) one of the tokens that each query sees, all with the same chance."""
    return sample.seen[rng.integers(sample.offsets[:-1], sample.offsets[1:])]


def selection_constraints(sample: QuerySample, selected: IntArray) -> IntArray:
    """(n_rows, 3) the query, its selected token and another visible token, for all others that differ from the selected one.

    A query that selects nothing, -1, has none.
    """
    query = np.repeat(np.arange(len(sample)), np.diff(sample.offsets))
    triples = np.column_stack([query, selected[query], sample.seen])
    triples = triples[(triples[:, 1] >= 0) & (triples[:, 1] != triples[:, 2])]
    return triples[_differ(sample.tokens, triples[:, 1], triples[:, 2])]


def _differ(tokens: FloatArray, one: IntArray, other: IntArray) -> BoolArray:
    """(n,) whether the tokens at these places are not the same, up to `SAME`."""
    gap = np.linalg.norm(tokens[one] - tokens[other], axis=1)
    return np.asarray(gap > SAME * np.linalg.norm(tokens[one], axis=1))


class _Layer:
    """The queries of one layer, with a constant coordinate where its heads have query biases."""

    def __init__(self, sample: QuerySample, heads: Sequence[KeyQueryMap]) -> None:
        if not heads:
            raise reject("heads", "at least one key-query map", "none")
        self._shape = heads[0].W_K.shape
        for i, head in enumerate(heads):
            if head.W_K.shape != self._shape or self._shape[0] != sample.tokens.shape[1]:
                expected = f"a map of shape ({sample.tokens.shape[1]}, {self._shape[1]})"
                raise reject(f"heads[{i}]", expected, f"shape {head.W_K.shape}")
        self._sample = sample
        self._biased = any(head.b_Q.any() for head in heads)
        self._queries = sample.augmented if self._biased else sample.tokens[sample.queries]

    def solve(self, selected: IntArray) -> tuple[BilinearSolution, float]:
        """The SVM of one selection, and its residual."""
        solution = bilinear_svm(self._sample.tokens, self._queries, selection_constraints(self._sample, selected))
        return solution, float(solution.kkt_residual())

    def random_head(self, rng: np.random.Generator) -> KeyQueryMap:
        """Standard normal factors, with a bias where the heads have one."""
        W_K, W_Q = rng.standard_normal((2, *self._shape))
        b_Q = rng.standard_normal((self._shape[1],))
        return KeyQueryMap(W_K, W_Q, b_Q if self._biased else np.zeros_like(b_Q), 1.0)

    def match(self, head: KeyQueryMap, solved: tuple[BilinearSolution, float]) -> MarginMatch:
        """One head beside one solution."""
        solution, residual = solved
        W = head.augmented if self._biased else head.matrix
        gaps = _gaps_at_norm_one(W, solution)
        optimal = solution.status is Status.OPTIMAL
        best = solution.margin if optimal else np.nan
        return MarginMatch(
            correlation(W, solution.x, axes=2) if optimal else np.nan,
            float(gaps.min(initial=np.inf)) / best,
            float(np.quantile(gaps, LOW)) / best if len(gaps) else np.nan,
            float(np.mean(gaps > 0.0)) if len(gaps) else np.nan,
            float(np.mean(solution.active)) if optimal else np.nan,
            0.0 if solution.status is Status.INFEASIBLE else best,
            len(gaps),
            solution.status,
            residual,
        )


def _gaps_at_norm_one(W: FloatArray, solution: BilinearSolution) -> FloatArray:
    """(n_rows,) how far W/‖W‖ ranks each selected token above each other one; nan where W is zero, which ranks nothing."""
    norm = float(np.linalg.norm(W))
    gaps: FloatArray = solution.rows.apply(W)
    return gaps / norm if norm > 0.0 else np.full_like(gaps, np.nan)


def _side_by_side(work: Callable[[IntArray], Result], items: Sequence[IntArray]) -> list[Result]:
    pool = ThreadPoolExecutor(n_threads())
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption waits for the running problems only
