r"""The compiled loop of every optimizer but the plain Euclidean two: steepest descent in any norm, Adam and mirror descent, on W and on p.

The state is W (d_query, d_model); p is the case of one query, the number 1. The gradient is never formed over pairs of tokens: with the
queries z_m and the tokens X_i it is :math:`\sum_m e^{s_m} z_m g_m^\top`, where g_m sums up the tokens of the inputs that share z_m with
the weights of `pair_weights`, and a step S changes the logits of input i by :math:`X_i S^\top z_i`. Each g_m has a scale of its own, which
momentum keeps and spectral steps need. Residual attention is summed up on the way, for `Trajectory.bracket`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.kernels import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.kernels.graded_svd import leading_pair_in, polar_factor_in, workspace
from marginlens.kernels.linalg import COMPILED, all_finite, centred, matvec, max_abs
from marginlens.norms.kernels import steepest_entries, steepest_rows
from marginlens.optimizers.schedules import StepSize, sizes_of
from marginlens.risk.kernels.gradient_coefficients import pair_weights
from marginlens.runtime.compilation import njit
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray

STEEPEST, GRADIENT, ADAM, MIRROR = range(4)  # kinds of update
SPECTRAL, NUCLEAR, MAX_ROW = 10, 11, 12  # norms beside those of entries, whose codes are in `marginlens.norms.kernels`
RESYNC_STEPS = 64  # after which accumulated logits are computed afresh
MAX_RESCALING = 300.0  # logarithm by which running means are scaled in one step
N_WINDOWS = 2  # the present one and the one before


@njit(**COMPILED)
def descend_matrices(
    first: int, last: int, problems: Any, rule: Any, sizes: Any, span: Any, save: Any, carried: Any, work: Any, out: Any
) -> None:
    """Take steps of problems first … last - 1, from where `carried` says they are.

    Args:
        problems: tokens (batch, n_inputs, n_tokens, d), scores, lengths, and queries (batch, n_terms, d_query), one for all inputs or
            one for each; or (1, …) of each for one problem shared by all starts.
        rule: (kind of update, code of the norm, code of the loss, settings), as `Rule` says.
        sizes: of the steps from `span[0]` on. span: (first step of this run, number of steps, step to stop before).
        save: increasing steps after which W is kept.
        carried: arrays that are read and filled, as `MatrixState` has them. work: memory for singular vectors.
        out: (batch, n_saved, d_query, d) W at the kept steps.
    """
    keys, scores, lengths, queries = problems
    points, logits, memory, scales, residuals, anchors, ends = carried
    begin, n_steps, stop = span
    for b in range(first, last):
        j = b % keys.shape[0]
        rows = centred(keys[j], lengths[j])
        W, a = points[b], logits[b]
        if ends[b, 1] == 0:
            _logits_of(rows, queries[j], W, np.empty(W.shape[1]), a)
            ends[b, 0] = RAN_ALL if all_finite(a) else NON_FINITE
        taken = ends[b, 1]
        saved = 0
        while saved < save.shape[0] and save[saved] < taken:
            saved += 1
        if ends[b, 0] == RAN_ALL:
            work.n_left[0] = 0  # of another problem
            ends[b, 0], ends[b, 1] = _take_steps(
                (rows, scores[j], lengths[j], queries[j]),
                rule,
                sizes,
                (begin, taken, stop),
                save,
                (W, a, memory[b], scales[b], residuals[b], anchors[b]),
                work,
                out[b],
            )
        if ends[b, 0] != RAN_ALL or ends[b, 1] == n_steps:
            for k in range(save.shape[0]):
                if save[k] >= ends[b, 1]:
                    _copy(W, out[b, k])


@njit(**COMPILED)
def _take_steps(problem: Any, rule: Any, sizes: Any, span: Any, save: Any, state: Any, work: Any, out: Any) -> Any:
    """Steps `span[1]` … `span[2]` - 1 of one problem, which change `state`; returns how it ended and the steps taken."""
    rows, scores, lengths, queries = problem
    kind, norm_code, loss_code, settings = rule
    W, a, memory, scales, residuals, anchors = state
    begin, taken, stop = span
    n_terms, q, d, m = queries.shape[0], W.shape[0], W.shape[1], rows.shape[0]
    columns = _columns(rows, n_terms)
    w, h, y = np.zeros(m), np.zeros(m), np.empty(d)
    rights, ahead, logs = np.zeros((n_terms, d)), np.zeros((n_terms, d)), np.zeros(n_terms)
    ahead_logs, G, S, W_next = np.zeros(n_terms), np.zeros((q, d)), np.zeros((q, d)), np.empty((q, d))
    G_entries, S_entries = G.reshape(q * d), S.reshape(q * d)
    W_entries, W_next_entries = W.reshape(q * d), W_next.reshape(q * d)
    all_columns, all_rights, u = columns[0], rights[0], np.empty(q)
    saved = 0
    while saved < save.shape[0] and save[saved] < taken:
        saved += 1
    for step in range(taken, stop):
        while saved < save.shape[0] and save[saved] == step:
            _copy(W, out[saved])
            saved += 1
        if step & (step - 1) == 0:
            _next_window(W, residuals, anchors)
        size = sizes[step - begin]
        if n_terms == 1:
            logs[0] = pair_weights(a, scores, lengths, loss_code, w)
            matvec(all_columns, w, all_rights)
            logs[0] = logs[0] if max_abs(all_rights) > 0.0 else -math.inf
        else:
            _term_gradients(columns, scores, lengths, loss_code, a, w, rights, logs)
        _collect(w, logs, size, residuals)
        log_scale = 0.0
        if kind == STEEPEST:
            if settings[1] > 0.0:
                for k in range(n_terms):
                    scales[k] = _add(rights[k], logs[k], memory[0, k], scales[k], settings[1], memory[0, k])
                    ahead_logs[k] = scales[k]
                    ahead[k] = memory[0, k]
                    if settings[2] > 0.0:
                        ahead_logs[k] = _add(rights[k], logs[k], memory[0, k], scales[k], settings[1], ahead[k])
                used, used_logs = ahead, ahead_logs
            else:
                used, used_logs = rights, logs
            if norm_code == SPECTRAL:
                polar_factor_in(work, queries, used, used_logs, True, S)
            elif norm_code == NUCLEAR:
                leading_pair_in(work, queries, used, used_logs, True, u, y)
                _outer(u, y, S)
            else:
                _dense(queries, used, used_logs, G)
                if norm_code == MAX_ROW:
                    steepest_rows(G, S)
                else:
                    steepest_entries(G_entries, norm_code, settings[0], S_entries)
        else:
            log_scale = _dense(queries, rights, logs, G) - math.log(scores.shape[0])
            if kind == GRADIENT:
                for k in range(q * d):
                    S_entries[k] = G_entries[k] * math.exp(log_scale)
            elif kind == ADAM:
                scales[0] = _adam(G, log_scale, settings, step, memory, scales[0], S)
            else:
                _mirror(G, log_scale, settings, size, W, memory[0], S)
        move = 1.0 if kind == MIRROR else size
        for k in range(q * d):
            W_next_entries[k] = W_entries[k] - move * S_entries[k]
        if (step + 1) % RESYNC_STEPS == 0 or kind == MIRROR:
            _logits_of(rows, queries, W_next, y, a)
        else:
            _logits_of(rows, queries, S, y, h)
            for k in range(m):
                a[k] -= size * h[k]
        if S_entries[0] == 0.0 and max_abs(S) == 0.0 and max_abs(rights) == 0.0:
            return STATIONARY, step
        if not (all_finite(a) and all_finite(W_next_entries)):
            return NON_FINITE, step
        for k in range(q * d):
            W_entries[k] = W_next_entries[k]
    return RAN_ALL, stop


@njit(**COMPILED)
def _columns(rows: Any, n_terms: int) -> Any:
    """The rows of every term transposed, (n_terms, d, rows of a term)."""
    count, d = rows.shape[0] // n_terms, rows.shape[1]
    columns = np.empty((n_terms, d, count))
    for m in range(n_terms):
        for i in range(count):
            for k in range(d):
                columns[m, k, i] = rows[m * count + i, k]
    return columns


@njit(**COMPILED)
def _term_gradients(
    columns: Any, scores: Any, lengths: Any, loss_code: int, a: Any, w: Any, rights: Any, logs: Any
) -> None:
    """rights[m] = g_m and logs[m] = s_m of every input: the gradient is Σ_m e^{s_m} z_m g_mᵀ / n_inputs."""
    T = scores.shape[1]
    for m in range(rights.shape[0]):
        part, right = w[m * T : (m + 1) * T], rights[m]
        logs[m] = pair_weights(a[m * T : (m + 1) * T], scores[m : m + 1], lengths[m : m + 1], loss_code, part)
        matvec(columns[m], part, right)
        if max_abs(right) == 0.0:
            logs[m] = -math.inf


@njit(**COMPILED)
def _collect(w: Any, logs: Any, size: float, residuals: Any) -> None:
    """Add the weights of this step, scaled to a sum of `size` over the tokens that are not selected, to the present window."""
    n_terms, largest = logs.shape[0], logs[0]
    for m in range(1, n_terms):
        largest = max(largest, logs[m])
    if largest == -math.inf:
        return
    count, total = w.shape[0] // n_terms, 0.0
    for m in range(n_terms):
        part = 0.0
        for k in range(m * count, (m + 1) * count):
            part += abs(w[k])
        total += part * (math.exp(logs[m] - largest) if logs[m] < largest else 1.0)
    if total > 0.0:
        for m in range(n_terms):
            share = 2.0 * size / total * (math.exp(logs[m] - largest) if logs[m] < largest else 1.0)
            for k in range(m * count, (m + 1) * count):
                residuals[0, k] += share * w[k]


@njit(**COMPILED)
def _next_window(W: Any, residuals: Any, anchors: Any) -> None:
    """Begin a window of steps: what was the present one becomes the one before."""
    for k in range(residuals.shape[1]):
        residuals[1, k] = residuals[0, k]
        residuals[0, k] = 0.0
    _copy(anchors[0], anchors[1])
    _copy(W, anchors[0])


@njit(**COMPILED)
def _outer(u: Any, v: Any, out: Any) -> None:
    for i in range(u.shape[0]):
        for k in range(v.shape[0]):
            out[i, k] = u[i] * v[k]


@njit(**COMPILED)
def _dense(queries: Any, rights: Any, logs: Any, G: Any) -> float:
    """G = Σ_m e^{s_m - s} z_m g_mᵀ for the largest scale s, which is returned; zero for no terms."""
    largest = -math.inf
    for m in range(logs.shape[0]):
        largest = max(largest, logs[m])
    for i in range(G.shape[0]):
        for k in range(G.shape[1]):
            G[i, k] = 0.0
    if largest == -math.inf:
        return 0.0
    for m in range(logs.shape[0]):
        weight = math.exp(logs[m] - largest) if logs[m] < largest else 1.0
        if weight != 0.0:
            for i in range(G.shape[0]):
                factor = weight * queries[m, i]
                for k in range(G.shape[1]):
                    G[i, k] += factor * rights[m, k]
    return largest


@njit(**COMPILED)
def _add(x: Any, x_log: float, y: Any, y_log: float, factor: float, out: Any) -> float:
    """out e^s = x e^{x_log} + factor y e^{y_log}; returns s."""
    y_log += math.log(factor)
    largest = max(x_log, y_log)
    if largest == -math.inf:
        out[:] = 0.0
        return largest
    first, second = math.exp(x_log - largest), math.exp(y_log - largest)
    for k in range(x.shape[0]):
        out[k] = first * x[k] + second * y[k]
    return largest


@njit(**COMPILED)
def _adam(G: Any, log_scale: float, settings: Any, step: int, memory: Any, unit: float, S: Any) -> float:
    """S = Adam's direction; `memory` has both means in units e^unit and e^{2 unit}, and the next unit is returned."""
    first, second, eps = settings[3], settings[4], settings[5]
    largest = 0.0
    for i in range(G.shape[0]):
        for k in range(G.shape[1]):
            largest = max(largest, abs(G[i, k]))
    if largest == 0.0:
        log_scale = unit
    target = log_scale if step == 0 else max(log_scale, unit - MAX_RESCALING)
    old = 0.0 if step == 0 else math.exp(unit - target)
    new = math.exp(log_scale - target)
    mean_share, square_share = 1.0 - first ** (step + 1.0), 1.0 - second ** (step + 1.0)
    floor = eps * math.exp(-target) if eps > 0.0 else 0.0
    for i in range(G.shape[0]):
        for k in range(G.shape[1]):
            g = G[i, k] * new
            mean = first * old * memory[0, i, k] + (1.0 - first) * g
            square = second * old * old * memory[1, i, k] + (1.0 - second) * g * g
            memory[0, i, k], memory[1, i, k] = mean, square
            S[i, k] = 0.0 if mean == 0.0 else mean / mean_share / (math.sqrt(square / square_share) + floor)
    return target


@njit(**COMPILED)
def _mirror(G: Any, log_scale: float, settings: Any, size: float, W: Any, image: Any, S: Any) -> None:
    """S = W less the point whose mirror image is `image` - size · gradient, which `image` becomes."""
    p = settings[6]
    factor = size * math.exp(log_scale)
    if settings[7] > 0.0:
        dual, largest, total = p / (p - 1.0), 0.0, 0.0
        for i in range(G.shape[0]):
            for k in range(G.shape[1]):
                largest = max(largest, abs(G[i, k]))
        if largest > 0.0:
            for i in range(G.shape[0]):
                for k in range(G.shape[1]):
                    total += (abs(G[i, k]) / largest) ** dual
            factor = size / (largest * total ** (1.0 / dual))
    for i in range(G.shape[0]):
        for k in range(G.shape[1]):
            y = image[i, k] - factor * G[i, k]
            image[i, k] = y
            x = abs(y) ** (1.0 / (p - 1.0))
            S[i, k] = W[i, k] - (x if y > 0.0 else -x)


@njit(**COMPILED)
def _logits_of(rows: Any, queries: Any, W: Any, y: Any, out: Any) -> None:
    """out = X_i Wᵀ z_i of every input; `y` (d,) is overwritten."""
    n_terms, d = queries.shape[0], W.shape[1]
    count = rows.shape[0] // n_terms
    for m in range(n_terms):
        for k in range(d):
            y[k] = queries[m, 0] * W[0, k]
        for i in range(1, W.shape[0]):
            factor = queries[m, i]
            for k in range(d):
                y[k] += factor * W[i, k]
        if n_terms == 1:
            matvec(rows, y, out)
        else:
            matvec(rows[m * count : (m + 1) * count], y, out[m * count : (m + 1) * count])


@njit(**COMPILED)
def _copy(x: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            out[i, k] = x[i, k]


# ---- the loop as descent calls it


class Rule(NamedTuple):
    """An optimizer as the compiled loop knows it.

    Attributes:
        kind: STEEPEST, GRADIENT (plain gradient descent), ADAM or MIRROR. norm_code: of the norm of steepest descent.
        size: of the steps. settings: (8,) p of ℓp, momentum, whether it is Nesterov's, β₁, β₂, ε, p of mirror descent, and whether that
            is normalised.
    """

    kind: int
    norm_code: int
    size: StepSize
    settings: FloatArray


@dataclass
class MatrixState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        points: (batch, d_query, d) W. logits: (batch, n_rows). ends: (batch, 2) how each run ended and after how many steps.
        memory: (batch, 2, max(d_query, n_terms), d) running sums, means or the mirror image. scales: (batch, n_terms) their logarithms.
        residuals: (batch, 2, n_rows) weights of the tokens, summed up since the last power of two among the steps and over the window
            before that. anchors: (batch, 2, d_query, d) W at the beginning of either window.
    """

    points: FloatArray
    logits: FloatArray
    memory: FloatArray
    scales: FloatArray
    residuals: FloatArray
    anchors: FloatArray
    ends: IntArray

    def copy(self) -> MatrixState:
        """The same in arrays of its own."""
        return MatrixState(*(np.array(array) for array in self.arrays))

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All of them, as the kernel takes them."""
        return (self.points, self.logits, self.memory, self.scales, self.residuals, self.anchors, self.ends)


@dataclass(frozen=True, eq=False)
class MatrixLoop:
    """Compiled descent on p or W for a linear head and a loss with a code.

    Attributes:
        batch: the problems. head: (d_model,) or (batch, d_model). code: of the loss. rule: of the optimizer.
        queries: (n_terms, d_query) or (batch, n_terms, d_query), n_terms being 1 for a query that all inputs share, or n_inputs; None on p.
    """

    batch: TokenDataset
    head: Any
    code: int
    rule: Rule
    queries: FloatArray | None = None

    def begin(self, start: FloatArray) -> MatrixState:
        """The state before the first step, from `start` (batch, d_query, d), or (batch, d) of p."""
        batch, queries = self.batch, self._queries
        count, n_rows, d = len(batch), batch.n_inputs * batch.n_tokens, batch.d_key
        n_terms, d_query = queries.shape[-2:]
        points = np.array(start, dtype=np.float64).reshape(count, d_query, d)
        memory = np.zeros((count, 2, max(d_query, n_terms), d))
        if self.rule.kind == MIRROR:
            memory[:, 0, :d_query] = np.sign(points) * np.abs(points) ** (self.rule.settings[6] - 1.0)
        return MatrixState(
            points,
            np.empty((count, n_rows)),
            memory,
            np.full((count, n_terms), -np.inf),
            np.zeros((count, N_WINDOWS, n_rows)),
            np.zeros((count, N_WINDOWS, d_query, d)),
            np.zeros((count, 2), dtype=np.int64),
        )

    @property
    def _queries(self) -> FloatArray:
        return np.ones((1, 1)) if self.queries is None else self.queries

    def advance(
        self, state: MatrixState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; the points after the steps `save`, (batch, n_saved, *shape)."""
        batch, queries, (begin, end) = self.batch, self._queries, span
        shared = batch.is_repeated and np.ndim(self.head) == 1 and queries.ndim == 2  # many starts on one problem
        problems = batch[0].as_batch() if shared else batch
        scores = np.where(problems.mask, problems.finite_scores(self.head), 0.0)
        arrays = (
            np.ascontiguousarray(problems.K),
            np.ascontiguousarray(scores),
            np.ascontiguousarray(problems.lengths),
            np.array(np.broadcast_to(queries, (len(problems), *queries.shape[-2:])), order="C"),
        )
        sizes = sizes_of(self.rule.size, begin, end)
        rule = (self.rule.kind, self.rule.norm_code, self.code, self.rule.settings)
        n_terms, d_query = queries.shape[-2:]
        points = np.empty((len(batch), len(save), d_query, batch.d_key))

        def advance(first: int, last: int, low: int, high: int) -> None:
            span, work = (begin, end, begin + high), workspace(n_terms, d_query, batch.d_key)
            descend_matrices(first, last, arrays, rule, sizes, span, save, state.arrays, work, points)

        n_rows, entries = batch.n_inputs * batch.n_tokens, d_query * batch.d_key
        in_slices(
            advance, Work(len(batch), end - begin, n_rows * (4.0 * batch.d_key + 40.0) + 50.0 * entries), progress
        )
        return points[:, :, 0] if self.queries is None else points
