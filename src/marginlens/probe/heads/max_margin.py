"""How max-margin an attention head is: its key-query matrix compared with the SVM of its own selections, and with random heads."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import correlation
from marginlens.errors import InputError, positive_number, real_array, whole_number
from marginlens.probe.heads.key_query import KeyQueryMap
from marginlens.result import Described, Result, Tabular
from marginlens.runtime.threads import n_threads, single_blas_thread
from marginlens.status import Status
from marginlens.svm.bilinear import BilinearSolution, bilinear_svm
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

# Tokens closer than this, relative to their length, are one token: single precision leaves about 1e-7.
SAME_TOKEN_RTOL = 1e-6
LOW_QUANTILE = 0.05  # of the constraints' margins, beside their minimum


@dataclass(frozen=True)
class MaxMarginSettings:
    """Settings of the max-margin measures.

    Attributes:
        queries_per_input: the number of queries sampled from each input, among those that see at least two different tokens.

        max_constraints: the largest number of constraints; if there would be more, queries are left out at random.

        n_draws: the number of random heads in the baseline.

        seed: the seed of the sample and of the baseline.

        rounding: the largest distance of tied logits of a query, relative to the lengths of the query and of its longest key.
    """

    queries_per_input: int = 2
    max_constraints: int = 10_000
    n_draws: int = 2
    seed: int = 0
    rounding: float = SAME_TOKEN_RTOL

    def __post_init__(self) -> None:
        positive_number(self.rounding, "rounding")
        for name in ("queries_per_input", "max_constraints", "n_draws"):
            whole_number(getattr(self, name), name, at_least=1)
        whole_number(self.seed, "seed", at_least=0)


@dataclass(frozen=True, repr=False, eq=False)
class QuerySample(Described):
    """The tokens of one layer over all inputs, and the sampled queries with the tokens that each of them sees.

    Attributes:
        tokens: (n_tokens, d_model) the tokens of all inputs, one input after the other.

        positions: (n_queries, 2) the input and the position in it of every sampled query.

        queries: (n_queries,) the index of each query in `tokens`.

        visible: (n_visible,) indices into `tokens`: query q sees `visible[offsets[q]:offsets[q + 1]]`.

        offsets: (n_queries + 1,) the offsets into `visible`.
    """

    tokens: FloatArray
    positions: IntArray
    queries: IntArray
    visible: IntArray
    offsets: IntArray
    quantities = "{self:#} queries, {visible:#} visible tokens, d_model={tokens.shape[1]}"

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def augmented(self) -> FloatArray:
        """The queries (z, 1), (n_queries, d_model + 1)."""
        z = self.tokens[self.queries]
        return np.column_stack([z, np.ones(len(z))])

    def constraints(self, selected: IntArray) -> IntArray:
        """Return `selection_constraints` with tokens numbered among those that some query sees, `np.unique(visible)`."""
        triples = selection_constraints(self, selected)
        return np.column_stack([triples[:, 0], np.searchsorted(np.unique(self.visible), triples[:, 1:])])


@dataclass(frozen=True)
class MarginMatch:
    """The comparison of a key-query matrix W with an SVM solution, both as [W, w_0] that acts on queries (z, 1).

    Attributes:
        correlation: the cosine of W and the SVM's matrix in the Frobenius inner product.

        margin_ratio: W's smallest margin relative to the best: the minimum over constraints of (x_α - x_t)ᵀ W q / ‖W‖_F, times
            ‖W_svm‖_F. It is at most 1, positive if W makes all these selections, and negative if it misses one.

        low_ratio: the same with the 5 % quantile over the constraints instead of the minimum.

        best_margin: 1/‖W_svm‖_F, zero if no W makes the selections.

        n_constraints: the number of constraints.

        status: the status of the SVM; the numbers above are nan if it has no solution.

        residual: the SVM's KKT residual, recomputed from the constraints.
    """

    correlation: float
    margin_ratio: float
    low_ratio: float
    best_margin: float
    n_constraints: int
    status: Status
    residual: float


@dataclass(frozen=True, repr=False)
class HeadMargin(Result, Tabular):
    """How max-margin one head is, compared with random heads.

    Attributes:
        own: the head, at its own selections.

        random_head: random heads with Gaussian factors of the same shapes, each at *its own* selections.

        n_tied: the number of queries that are left out because several tokens share their largest logit.

    `to_frame()` has one row for each comparison: kind (own or random_head), and the attributes of `MarginMatch`.
    """

    own: MarginMatch
    random_head: tuple[MarginMatch, ...]
    n_tied: int = 0

    def __repr__(self) -> str:
        chance = np.mean([match.correlation for match in self.random_head])
        return f"HeadMargin({self.own.status.name}, correlation {self.own.correlation:.3f}, random heads {chance:.3f})"

    def _columns(self) -> dict[str, Any]:
        rows = [("own", self.own), *(("random_head", match) for match in self.random_head)]
        values = {field.name: [getattr(match, field.name) for _, match in rows] for field in fields(MarginMatch)}
        return {"kind": [kind for kind, _ in rows], **values}


# ---- which queries are asked about


def sample_queries(
    inputs: Sequence[ArrayLike], visible: Sequence[ArrayLike] | None = None, settings: MaxMarginSettings | None = None
) -> QuerySample:
    """Draw queries from every input, without repetition.

    A query that sees only one token, or copies of one token, has no constraint and is not drawn. A query equal to an earlier
    one is not drawn either, such as the first token of every sentence in the first layer: its constraints would be repeated or
    contradictory.

    Args:
        inputs: the tokens (n_tokens_i, d_model) of every input.

        visible: a mask (n_tokens_i, n_tokens_i) for every input, True if query i sees token j, such as `np.tri(n, dtype=bool)`
            for causal attention. By default every token sees every other.

        settings: see `MaxMarginSettings`.

    Examples:
        >>> import numpy as np
        >>> from marginlens.probe import MaxMarginSettings, sample_queries
        >>> inputs = [np.eye(4)[:3], np.eye(4)[1:]]
        >>> sample_queries(inputs, settings=MaxMarginSettings(queries_per_input=1))
        QuerySample(2 queries, 6 visible tokens, d_model=4)
    """
    options = settings or MaxMarginSettings()
    arrays, masks = _checked_inputs(inputs, visible)
    rng = np.random.default_rng(options.seed)
    drawn = np.empty((options.queries_per_input * len(arrays), arrays[0].shape[1]))
    positions: list[tuple[int, int]] = []
    for i, (X, mask) in enumerate(zip(arrays, masks, strict=True)):
        before = len(positions)
        for position in rng.permutation(len(X)).tolist():
            if len(positions) == before + options.queries_per_input:
                break
            z, tokens = X[position], X[mask[position]]
            has_choice = len(tokens) > 1 and not _equal(tokens[1:], tokens[0]).all()
            if has_choice and not _equal(drawn[: len(positions)], z).any():
                drawn[len(positions)] = z
                positions.append((i, position))
    if not positions:
        raise InputError("inputs", "inputs with a query that sees two different tokens or more", "none of them")
    sizes = np.array([int(masks[i][position].sum()) - 1 for i, position in positions])
    chosen = np.array(positions)
    if sizes.sum() > options.max_constraints:
        order = rng.permutation(len(chosen))
        within = order[np.cumsum(sizes[order]) <= options.max_constraints]
        chosen = chosen[np.sort(within if len(within) else order[:1])]
    starts = np.concatenate([[0], np.cumsum([len(X) for X in arrays])]).astype(np.int64)
    seen = [starts[i] + np.flatnonzero(masks[i][position]) for i, position in chosen.tolist()]
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in seen])]).astype(np.int64)
    queries = starts[chosen[:, 0]] + chosen[:, 1]
    return QuerySample(np.concatenate(arrays), chosen, queries, np.concatenate(seen).astype(np.int64), offsets)


def _checked_inputs(
    inputs: Sequence[ArrayLike], visible: Sequence[ArrayLike] | None
) -> tuple[list[FloatArray], list[BoolArray]]:
    if len(inputs) == 0:
        raise InputError("inputs", "at least one input", "none")
    arrays = [real_array(inputs[0], "inputs[0]", ("n_tokens", "d_model"))]
    arrays += [real_array(X, f"inputs[{i}]", ("n_tokens", arrays[0].shape[1])) for i, X in enumerate(inputs[1:], 1)]
    if visible is None:
        return arrays, [np.ones((len(X), len(X)), dtype=bool) for X in arrays]
    masks = [np.asarray(mask, dtype=bool) for mask in visible]
    if [mask.shape for mask in masks] != [(len(X), len(X)) for X in arrays]:
        raise InputError(
            "visible", "one mask (n_tokens, n_tokens) for each input", f"{len(masks)} masks of other shapes"
        )
    return arrays, masks


def _equal(tokens: FloatArray, x: FloatArray) -> BoolArray:
    """Return which tokens (n, d_model) equal x, (d_model,) or (n, d_model), up to `SAME_TOKEN_RTOL`, as booleans (n,)."""
    return np.asarray(np.linalg.norm(tokens - x, axis=-1) <= SAME_TOKEN_RTOL * np.linalg.norm(x, axis=-1))


# ---- the margins of heads


def layer_margins(
    sample: QuerySample, heads: Sequence[KeyQueryMap], settings: MaxMarginSettings | None = None
) -> tuple[HeadMargin, ...]:
    r"""Measure how max-margin every head of one layer is, compared with random heads, which are drawn once for the layer.

    .. math:: \min_W \|W\|_F \ \text{s.t.}\ (x_{\alpha_q} - x_t)^\top W z_q \ge 1 \quad (t \ne \alpha_q \text{ visible to } q)

    for the sampled queries q, with α the selection of the head itself: the visible token with the largest logit. If any head of
    the layer has a query bias, queries are (z, 1) and W is [W, w_0]; every head's own matrix then satisfies its constraints
    after scaling. Tokens that equal the selected one give no constraints, since no W distinguishes them. If different tokens
    share the largest logit of a query, up to `settings.rounding`, the query selects none of them and has no constraints, for
    the head and for the random heads it is compared with.

    Args:
        sample: the tokens and queries of the layer, from `sample_queries`.

        heads: the key-query maps of the layer's heads, all of one shape. With rotary positions they hold at one offset, and
            selections are those of the map at that offset.

        settings: `n_draws` and `seed` of the random heads, and the `rounding` that counts as a tie.

    Returns:
        One `HeadMargin` for each head. Heads are spread over threads, which does not change the results.
    """
    options = settings or MaxMarginSettings()
    _check_shapes(sample, heads)
    has_bias = any(head.b_Q.any() for head in heads)
    all_heads = [*heads, *_random_heads(heads[0], options, has_bias=has_bias)]
    pool = ThreadPoolExecutor(n_threads())
    try:
        with single_blas_thread():  # a thread for each problem is worth more than two for each product
            span = _Span.of(sample, has_bias=has_bias)
            matrices = list(pool.map(span.matrix, all_heads))
            all_selected = list(pool.map(lambda head: selected_tokens(sample, head, options.rounding), all_heads))
            selected, random = all_selected[: len(heads)], all_selected[len(heads) :]
            problems, first = _problems(selected, random)

            def solve(tokens: IntArray) -> tuple[BilinearSolution, float]:
                solution = bilinear_svm(span.tokens, span.queries, sample.constraints(tokens))
                return solution, float(solution.kkt_residual())

            solved = list(pool.map(solve, problems))
    finally:
        pool.shutdown(cancel_futures=True)  # an interruption waits for the running problems only
    at_chance = {
        tied: tuple(_match(matrices[len(heads) + k], *solved[start + k]) for k in range(options.n_draws))
        for tied, start in first.items()
    }
    return tuple(
        HeadMargin(_match(matrices[k], *solved[k]), at_chance[_tied(tokens)], int(np.sum(tokens < 0)))
        for k, tokens in enumerate(selected)
    )


def _check_shapes(sample: QuerySample, heads: Sequence[KeyQueryMap]) -> None:
    if not heads:
        raise InputError("heads", "at least one key-query map", "none")
    d_model, d_head = shape = sample.tokens.shape[1], heads[0].d_head
    for i, head in enumerate(heads):
        if head.W_K.shape != shape:
            raise InputError(f"heads[{i}]", f"a map of shape ({d_model}, {d_head})", f"shape {head.W_K.shape}")


def _random_heads(head: KeyQueryMap, options: MaxMarginSettings, *, has_bias: bool) -> list[KeyQueryMap]:
    """Draw `n_draws` heads with Gaussian factors of the shapes of `head`."""
    rng, shape = np.random.default_rng([options.seed, 1]), head.W_K.shape
    heads = []
    for _ in range(options.n_draws):
        W_K, W_Q, b_Q = *rng.standard_normal((2, *shape)), rng.standard_normal(head.d_head)
        heads.append(KeyQueryMap(W_K, W_Q, b_Q if has_bias else np.zeros(head.d_head), 1.0))
    return heads


def _problems(selected: list[IntArray], random: list[IntArray]) -> tuple[list[IntArray], dict[bytes, int]]:
    """Return the selections of all problems: those of the heads, and those of random heads without the queries that a head leaves out.

    Heads that leave out the same queries share the problems of random heads, which begin at the index in `first` for these
    queries.
    """
    problems, first = list(selected), {}
    for tokens in selected:
        if _tied(tokens) not in first:
            first[_tied(tokens)] = len(problems)
            problems += [np.where(tokens < 0, -1, other) for other in random]
    return problems, first


def _tied(tokens: IntArray) -> bytes:
    """Return which queries select nothing, as a key."""
    return (tokens < 0).tobytes()


def head_margin(sample: QuerySample, head: KeyQueryMap, settings: MaxMarginSettings | None = None) -> HeadMargin:
    """Measure how max-margin a single head is, as `layer_margins` does for a layer.

    Examples:
        >>> import numpy as np
        >>> from marginlens.probe import KeyQueryMap, head_margin, sample_queries
        >>> head = KeyQueryMap(np.eye(4), np.eye(4), np.zeros(4), 1.0)  # every token selects itself
        >>> margin = head_margin(sample_queries([np.eye(4)]), head)
        >>> margin.own.status.name, round(margin.own.margin_ratio, 3)
        ('OPTIMAL', 0.612)
    """
    return layer_margins(sample, [head], settings)[0]


def selected_tokens(sample: QuerySample, head: KeyQueryMap, rounding: float = SAME_TOKEN_RTOL) -> IntArray:
    """Return which of `sample.tokens` each query selects, (n_queries,): the visible one of the largest logit; -1 if different
    ones share it.

    Logits no further apart than `rounding` times the lengths of the query and of its longest key count as equal. Copies of one
    token always tie; the first of them is selected.
    """
    queries = sample.tokens[sample.queries] @ head.W_Q + head.b_Q  # (n_queries, d_head)
    used, places = np.unique(sample.visible, return_inverse=True)
    keys = (sample.tokens[used] @ head.W_K)[places]  # (n_visible, d_head)
    sizes, starts = np.diff(sample.offsets), sample.offsets[:-1]
    logits = np.einsum("sh,sh->s", keys, np.repeat(queries, sizes, axis=0))
    best = np.maximum.reduceat(logits, starts)
    largest = np.flatnonzero(logits == np.repeat(best, sizes))
    selected = sample.visible[largest[np.searchsorted(largest, starts)]]
    longest_key = np.maximum.reduceat(np.linalg.norm(keys, axis=1), starts)
    threshold = best - rounding * np.linalg.norm(queries, axis=1) * longest_key
    shared = np.flatnonzero(logits >= np.repeat(threshold, sizes))
    query = np.searchsorted(sample.offsets, shared, side="right") - 1
    is_copy = _equal(sample.tokens[sample.visible[shared]], sample.tokens[selected[query]])
    selected[query[~is_copy]] = -1
    return selected


def selection_constraints(sample: QuerySample, selected: IntArray) -> IntArray:
    """Return (query, its selected token, another visible token) for all tokens that differ from the selected one, (n_rows, 3).

    A query that selects nothing, -1, has no rows.
    """
    query = np.repeat(np.arange(len(sample)), np.diff(sample.offsets))
    triples = np.column_stack([query, selected[query], sample.visible])
    triples = triples[(triples[:, 1] >= 0) & (triples[:, 1] != triples[:, 2])]
    return triples[~_equal(sample.tokens[triples[:, 2]], sample.tokens[triples[:, 1]])]


# ---- in the span of the tokens and queries


class _SpanMatrix(NamedTuple):
    """A key-query matrix restricted to the span of the tokens and queries of a sample.

    Attributes:
        inside: (n_tokens_axes, n_query_axes) the matrix in coordinates of the span, on which all constraints depend.

        norm: the norm ‖W‖_F, or ‖[W, w_0]‖_F, of the whole matrix.
    """

    inside: FloatArray
    norm: float


@dataclass(frozen=True, eq=False)
class _Span:
    r"""The tokens and queries of a sample in orthonormal coordinates of their span.

    The SVM's solution :math:`\sum_r \lambda_r (x_i - x_j) q_k^\top` lies in the span, and constraints depend only on this part
    of W. A few short inputs span much less than d_model, which makes problems much smaller without changing them.

    Attributes:
        tokens: (n_used, n_tokens_axes) the tokens that a query sees.

        queries: (n_queries, n_query_axes) the coordinates of z, or of (z, 1) if `has_bias`.

        token_axes: (d_model, n_tokens_axes) the orthonormal columns for tokens; None if there are as many tokens as
            coordinates, which are then kept.

        query_axes: (d_model or d_model + 1, n_query_axes) the same for queries.
    """

    tokens: FloatArray
    queries: FloatArray
    token_axes: FloatArray | None
    query_axes: FloatArray | None
    has_bias: bool

    @classmethod
    def of(cls, sample: QuerySample, *, has_bias: bool) -> _Span:
        tokens, token_axes = _orthonormal(sample.tokens[np.unique(sample.visible)])
        queries, query_axes = _orthonormal(sample.augmented if has_bias else sample.tokens[sample.queries])
        return cls(tokens, queries, token_axes, query_axes, has_bias)

    def matrix(self, head: KeyQueryMap) -> _SpanMatrix:
        """Return the part of a head's W, or of its [W, w_0], that acts on the span, and the norm of all of it."""
        W_Q = np.vstack([head.W_Q, head.b_Q]) if self.has_bias else head.W_Q
        keys = head.W_K if self.token_axes is None else self.token_axes.T @ head.W_K
        queries = W_Q if self.query_axes is None else self.query_axes.T @ W_Q
        R_K, R_Q = (np.asarray(np.linalg.qr(factor, mode="r")) for factor in (head.W_K, W_Q))
        return _SpanMatrix(head.scale * (keys @ queries.T), head.scale * float(np.linalg.norm(R_K @ R_Q.T)))


def _orthonormal(vectors: FloatArray) -> tuple[FloatArray, FloatArray | None]:
    """Return vectors (n, d) in n orthonormal coordinates, (n, n), and these as columns (d, n); as they are, and None, if n is
    not below d.
    """
    if len(vectors) >= vectors.shape[1]:
        return vectors, None
    axes, R = np.linalg.qr(vectors.T)
    return np.ascontiguousarray(R.T), axes


def _match(W: _SpanMatrix, solution: BilinearSolution, residual: float) -> MarginMatch:
    gaps = solution.rows.apply(W.inside) / (W.norm if W.norm > 0.0 else np.nan)  # (n_rows,); a W of zero ranks nothing
    optimal = solution.status is Status.OPTIMAL
    best = solution.margin if optimal else np.nan
    return MarginMatch(
        correlation=_cosine(W, solution.x) if optimal else np.nan,
        margin_ratio=float(gaps.min(initial=np.inf)) / best,
        low_ratio=float(np.quantile(gaps, LOW_QUANTILE)) / best if len(gaps) else np.nan,
        best_margin=0.0 if solution.status is Status.INFEASIBLE else best,
        n_constraints=len(gaps),
        status=solution.status,
        residual=residual,
    )


def _cosine(W: _SpanMatrix, x: FloatArray) -> float:
    """Return the cosine of the whole W and a matrix of the span: that of the part inside, times its share of the length."""
    norm = float(np.linalg.norm(W.inside))
    if norm == 0.0:  # W is zero, which has no direction, or sees nothing of the span
        return 0.0 if W.norm > 0.0 else float("nan")
    return float(correlation(W.inside, x, axes=2)) * min(1.0, norm / W.norm)
