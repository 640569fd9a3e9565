r"""The compiled loop: descent on W for one next-token problem at a time, exact at any norm.

The logits that matter are e_xᵀ W e_k over the pairs (token x, last token k) that occur together, and W moves in the span of their
e_x e_kᵀ. So the state is either W itself, transposed, when there are many pairs, or its coefficients over the pairs, with their Gram
matrix (e_xᵀ e_x')(e_kᵀ e_k') standing in for d²-wide rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.dynamics.kernels import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.kernels.blocks import combine, dot_and_size, n_places, square_of, subtract
from marginlens.kernels.lanes import pointer
from marginlens.kernels.linalg import COMPILED, all_finite, dot, matvec_rows, norm, product, vecmat_rows
from marginlens.risk.kernels.next_token_coefficients import LIKELIHOOD, LOG, gradient_weights, likelihood_weights
from marginlens.risk.next_token import NextTokenRisk, loss_code, needs_whole_heads
from marginlens.runtime.compilation import njit
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray

_RESYNC = 64  # steps after which accumulated logits are computed afresh


@njit(**COMPILED)
def moves_in_weights(n_pairs: int, n_queries: int, d: int) -> bool:
    """Whether the state of a descent is Wᵀ, (d²,), and not its coefficients over the pairs, (n_pairs,).

    By the time of a step in units of one product in a Gram matrix, as measured: a pair costs 1.5 d + 30, a query .75 d² + 300.
    """
    return 6 * n_pairs * (d + 20) + 3 * n_queries * (d * d + 400) < 4 * n_pairs * n_pairs


@njit(**COMPILED)
def descend_problems(
    first: int, last: int, problems: Any, start: Any, rule: Any, save: Any, carried: Any, out: Any
) -> None:
    """Take steps of problems first … last - 1, from where `carried` says they are.

    Args:
        problems: what `SequenceBatch.packed` gives. start: (batch, d, d).
        rule: (normalized, step size, loss code, number of steps, number of the step to stop before).
        save: increasing steps after which W is kept.
        carried: arrays that are read and filled: the states of all problems one after the other, where each begins (batch + 1,), the
            logits of all pairs, the logarithm of the scale of the last weights (batch,), how each run ended and the steps it has taken
            (batch, 2), and room for a Gram matrix (n_pairs, n_places) that serves several calls on one problem, with one number that
            says whether it is filled; or (0, 0), then it is made anew.
        out: (batch, n_saved, d, d) W at the kept steps.
    """
    embeddings, entries, heads, parts = problems
    states, places, logits, scales, ends, gram, filled = carried
    n_steps = rule[3]
    for b in range(first, last):
        p0, q0, s0, e0, h0, r0 = parts[b]
        p1, q1, s1, e1, h1, r1 = parts[b + 1]
        centred, E, token, query, queries = embeddings
        asking, local = _gathered(E, queries[q0:q1]), np.empty(p1 - p0, dtype=np.int64)
        for k in range(p1 - p0):
            local[k] = token[p0 + k] - r0
        keys = centred[r0:r1]
        columns = (np.ascontiguousarray(keys.T), np.ascontiguousarray(asking.T))
        pairs = (keys, local, _edges(query[p0:p1], q1 - q0), asking, columns)
        size = r1 - r0 if h1 - h0 == (r1 - r0) ** 2 else 1  # a loss of the label alone comes without whole heads
        head = heads[h0:h1].reshape(size, size)
        pair, log_count, score, ids, span, share, label = entries
        per_entry = (pair[e0:e1], log_count[e0:e1], score[e0:e1], ids[e0:e1])
        samples = (*per_entry, span[s0:s1], share[s0:s1], label[s0:s1], head)
        m, d = p1 - p0, E.shape[1]
        in_weights = moves_in_weights(m, q1 - q0, d)
        state, a, origin = states[places[b] : places[b + 1]], logits[p0:p1], np.empty(m)
        transposed = np.ascontiguousarray(start[b].T)
        _apply(pairs, transposed, np.empty_like(asking), origin)
        if ends[b, 1] == 0:
            for k in range(m):
                a[k] = origin[k]
            for k in range(state.shape[0]):
                state[k] = transposed[k // d, k % d] if in_weights else 0.0
            ends[b, 0], scales[b] = RAN_ALL if all_finite(a) else NON_FINITE, 0.0
        if ends[b, 0] == RAN_ALL:
            spread = gram
            if not in_weights and gram.shape[0] == 0:
                spread = np.empty((m, n_places(m, 1)))
            if not in_weights and (gram.shape[0] == 0 or filled[0] == 0):
                _gram(pairs, spread)
                filled[0] = 1
            ends[b, 0], ends[b, 1], scales[b] = _take_steps(
                pairs, samples, spread, start[b], rule, save, ends[b, 1], scales[b], state, a, origin, out[b]
            )
        if ends[b, 0] != RAN_ALL or ends[b, 1] == n_steps:
            for k in range(save.shape[0]):
                if save[k] >= ends[b, 1]:
                    _write(pairs, start[b], state, in_weights, out[b, k])


@njit(**COMPILED)
def _gathered(rows: Any, chosen: Any) -> Any:
    out = np.empty((chosen.shape[0], rows.shape[1]))
    for k in range(chosen.shape[0]):
        for j in range(rows.shape[1]):  # written out, here and below: assigning slices takes seconds to compile
            out[k, j] = rows[chosen[k], j]
    return out


@njit(**COMPILED)
def _edges(query: Any, n_queries: int) -> Any:
    """Where the pairs of each query begin, (n_queries + 1,); pairs are sorted by their queries."""
    edges = np.zeros(n_queries + 1, dtype=np.int64)
    for k in range(query.shape[0]):
        edges[query[k] + 1] = k + 1
    return edges


@njit(**COMPILED)
def _take_steps(
    pairs: Any,
    samples: Any,
    gram: Any,
    start: Any,
    rule: Any,
    save: Any,
    taken: int,
    log_scale: float,
    state: Any,
    a: Any,
    origin: Any,
    out: Any,
) -> Any:
    """Steps of one problem from number `taken` on; returns how it ended, the steps taken and the logarithm of the weights' scale.

    They move `state` and the logits `a`, which are `origin` plus what the state adds. Vectors are padded with zeros and given by
    pointers (see `marginlens.kernels.lanes`).
    """
    normalized, eta, code, _, stop = rule
    asking = pairs[3]  # (n_queries, d)
    m, d, width, places = a.shape[0], asking.shape[1], state.shape[0], n_places(a.shape[0], 1)
    in_weights = moves_in_weights(m, asking.shape[0], d)
    vectors = np.zeros((7, max(places, width)))
    for k in range(width):
        vectors[0, k] = state[k]
    for k in range(m):
        vectors[2, k], vectors[6, k] = a[k], origin[k]
    at, at_next, logits, logits_next = (
        pointer(vectors[0]),
        pointer(vectors[1]),
        pointer(vectors[2]),
        pointer(vectors[3]),
    )
    w, h, first_logits = pointer(vectors[4]), pointer(vectors[5]), pointer(vectors[6])
    turned, gradient = np.empty_like(asking), np.zeros((d, d))
    flat = gradient.reshape(d * d)
    direction = pointer(flat) if in_weights else w
    pair, log_count, _, _, span, share, _, head = samples
    entries, sizes = (
        (pointer(pair), pointer(log_count), pointer(span), pointer(share)),
        (m, span.shape[0], pair.shape[0]),
    )
    values = np.zeros(pair.shape[0] + 1)
    values[-1] = log_scale
    room = (values, np.empty(share.shape[0]), np.empty(head.shape[1]), np.empty(pair.shape[0]))
    saved = 0
    while saved < save.shape[0] and save[saved] < taken:
        saved += 1
    status, step = RAN_ALL, taken
    while step < stop:
        while saved < save.shape[0] and save[saved] == step:
            _write(pairs, start, vectors[0, :width], in_weights, out[saved])
            saved += 1
        log_scale = np.nan
        if code == LIKELIHOOD:
            log_scale = likelihood_weights(logits, entries, sizes, w, pointer(values))
        if math.isnan(log_scale):
            log_scale = gradient_weights(
                vectors[2, :m], samples, LOG if code == LIKELIHOOD else code, vectors[4, :m], room
            )
        if math.isnan(log_scale):
            status = NON_FINITE
            break
        if in_weights:
            _lift(pairs, vectors[4, :m], turned, gradient)
            _apply(pairs, gradient, turned, vectors[5, :m])
            square, size = square_of(direction, width), 0.0
        else:
            combine(pointer(gram), m, places, w, h)
            square, size = dot_and_size(w, h, places)
        if square > 1e-6 * size and 1e-280 < square < 1e280:
            reach = math.sqrt(square)
        else:  # the Gram matrix has cancelled, or the squares have left the range
            _lift(pairs, vectors[4, :m], turned, gradient)
            reach = norm(flat)
        if reach == 0.0:
            status = STATIONARY
            break
        move = eta / reach if normalized else eta * math.exp(log_scale)
        finite = subtract(at, move, direction, width, at_next)
        if not (subtract(logits, move, h, places, logits_next) and finite):
            status = NON_FINITE
            break
        step += 1
        if step % _RESYNC == 0 and in_weights:
            _apply(pairs, vectors[1, :width].reshape(d, d), turned, vectors[3, :m])
        elif step % _RESYNC == 0:
            combine(pointer(gram), m, places, at_next, logits_next)
            subtract(first_logits, -1.0, logits_next, places, logits_next)
        for k in range(width):
            at[k] = at_next[k]
        for k in range(places):
            logits[k] = logits_next[k]
    for k in range(width):
        state[k] = vectors[0, k]
    for k in range(m):
        a[k] = vectors[2, k]
    return status, step, values[-1]


@njit(**COMPILED)
def _gram(pairs: Any, gram: Any) -> None:
    """Inner products of the matrices e_x e_kᵀ, written into `gram` (n_pairs, n_places), zero beyond the pairs."""
    keys, token, edges, asking, columns = pairs
    n_queries = asking.shape[0]
    between = np.empty((n_queries, n_queries))
    product(asking, columns[1], between)
    for q in range(n_queries):
        for r in range(q + 1):
            for k in range(edges[q], edges[q + 1]):
                for j in range(edges[r], min(edges[r + 1], k + 1)):
                    gram[k, j] = dot(keys[token[k]], keys[token[j]]) * between[q, r]
                    gram[j, k] = gram[k, j]
    for k in range(gram.shape[0]):
        for j in range(gram.shape[0], gram.shape[1]):
            gram[k, j] = 0.0


@njit(**COMPILED)
def _apply(pairs: Any, transposed: Any, turned: Any, out: Any) -> None:
    """out = e_xᵀ W e_k for every pair, from Wᵀ; `turned` (n_queries, d) is room for W e_k."""
    keys, token, edges, asking, columns = pairs
    product(asking, transposed, turned)
    n, K = asking.shape[0], keys.shape[0]
    if out.shape[0] == n * K:  # every token with every query
        product(turned, columns[0], out.reshape(n, K))
        return
    for q in range(n):
        begin, end = edges[q], edges[q + 1]
        matvec_rows(keys, token[begin:end], turned[q], out[begin:end])


@njit(**COMPILED)
def _lift(pairs: Any, w: Any, turned: Any, transposed: Any) -> None:
    """The transpose of Σ w e_x e_kᵀ over the pairs; `turned` (n_queries, d) is room for Σ w e_x by query."""
    keys, token, edges, asking, columns = pairs
    n, K = asking.shape[0], keys.shape[0]
    if w.shape[0] == n * K:
        product(w.reshape(n, K), keys, turned)
    else:
        for q in range(n):
            begin, end = edges[q], edges[q + 1]
            vecmat_rows(w[begin:end], keys, token[begin:end], turned[q])
    product(columns[1], turned, transposed)


@njit(**COMPILED)
def _write(pairs: Any, start: Any, state: Any, in_weights: bool, out: Any) -> None:
    """W of a state, written into `out` (d, d)."""
    d = out.shape[0]
    transposed = np.empty((d, d))
    if in_weights:
        transposed = state.reshape(d, d)
    else:
        _lift(pairs, state, np.empty_like(pairs[3]), transposed)
    for j in range(d):
        for c in range(d):
            out[j, c] = transposed[c, j] if in_weights else start[j, c] + transposed[c, j]


# ---- the loop as descent calls it


@dataclass
class NextTokenState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        start: (batch, d_model, d_model). states: Wᵀ, or the coefficients of W over the pairs, of all problems one after the other.
        offsets: (batch + 1,) where each problem's state begins. logits: of all pairs. scales: (batch,) logarithms of the last weights'
            scales. ends: (batch, 2) how each run ended and after how many steps.
    """

    start: FloatArray
    states: FloatArray
    offsets: IntArray
    logits: FloatArray
    scales: FloatArray
    ends: IntArray

    def copy(self) -> NextTokenState:
        """The same in arrays of its own."""
        states, logits, scales = self.states.copy(), self.logits.copy(), self.scales.copy()
        return NextTokenState(self.start, states, self.offsets, logits, scales, self.ends.copy())


@dataclass(frozen=True, eq=False)
class NextTokenLoop:
    """Compiled descent on W for a loss with a code.

    Attributes:
        risk: the problems. normalized, size: the step rule.
    """

    risk: NextTokenRisk
    normalized: bool
    size: float

    def begin(self, start: FloatArray) -> NextTokenState:
        """The state before the first step, which fills it."""
        batch = self.risk.batch
        d = batch.d_model
        widths = [d * d if moves_in_weights(pairs, queries, d) else pairs for pairs, queries in self._sizes]
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        ends = np.zeros((len(batch), 2), dtype=np.int64)
        return NextTokenState(
            start, np.empty(offsets[-1]), offsets, np.empty(len(batch.keys)), np.zeros(len(batch)), ends
        )

    @property
    def _sizes(self) -> list[list[int]]:
        """Pairs and queries of each problem."""
        sizes: list[list[int]] = np.diff(self.risk.batch.parts[:, :2], axis=0).tolist()
        return sizes

    def advance(
        self, state: NextTokenState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; W after the steps `save`, (batch, n_saved, d_model, d_model)."""
        risk, batch, (begin, end) = self.risk, self.risk.batch, span
        d, sizes = batch.d_model, self._sizes
        points = np.empty((len(batch), len(save), d, d))
        rule = (self.normalized, self.size, loss_code(risk.loss, risk.heads, batch), end)
        problems = batch.packed(risk.heads, needs_whole_heads(risk.loss))
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, end - begin)
            size = 0 if whole or moves_in_weights(sizes[first][0], sizes[first][1], d) else sizes[first][0]
            gram = grams.setdefault(first, (np.empty((size, n_places(size, 1))), np.zeros(1, dtype=np.int64)))
            carried = (state.states, state.offsets, state.logits, state.scales, state.ends, *gram)
            descend_problems(first, last, problems, state.start, (*rule, begin + high), save, carried, points)
            if high == end - begin:
                del grams[first]

        pairs = max(m for m, _ in sizes)
        queries = max(q for _, q in sizes)
        product = 2.0 * d * (pairs + queries * d) if moves_in_weights(pairs, queries, d) else float(pairs * pairs)
        cost = 2.0 * product + 20.0 * len(batch.reduced.tokens) / len(batch)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return points
