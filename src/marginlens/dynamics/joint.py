"""Descent on the head and the attention weights at once: v and p move by their own exact gradients, taken at the same point.

The weights of p are those of `fused.pair_weights` with scores recomputed from v at every step. The gradient of v is a sum of attention
outputs weighted by the loss's slopes; it is formed from their logarithms relative to the largest, so it stays exact when every input is
classified with a margin of ten thousand. Both live in their own spaces: joint training is meant for few, short inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.compilation import njit
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import length
from marginlens.dynamics.kernels.attention_descent import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.dynamics.steps import NormalizedStep, Record, StepRule, as_step, steps_to_save
from marginlens.dynamics.trajectory import ENDINGS, DescentOutcome, DescentStatus, Saved
from marginlens.errors import n_axes, reject, whole_number
from marginlens.kernels.linalg import COMPILED, all_finite, centred, matvec, norm
from marginlens.losses.margin import Logistic, Loss, as_loss, compiled_code, slope_of
from marginlens.papers import implements
from marginlens.risk.attention import ExcessRisk, excess_risk, risk
from marginlens.risk.attention_gradient import ScaledVector, pairwise_gradient
from marginlens.risk.kernels.gradient_coefficients import largest_of, log_slope, pair_weights
from marginlens.risk.softmax import attend, logits, probabilities, softmax
from marginlens.threads import ProgressCallback, Work, as_progress, in_slices

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, repr=False, eq=False)
class JointTrajectory(DescentOutcome):
    """A finished descent on head and attention.

    Attributes:
        v: the last head, (…, d_model). p: the last attention weights, (…, d_key).
        norms: ‖v‖ and ‖p‖, (…, 2).
        attention: softmax at the end, (…, n_inputs, n_tokens), zero where there is no token. selected: its argmax, (…, n_inputs).
        status: a DescentStatus, or an array (batch,) of them. steps_taken: how many steps each run took, (…).
        saved: at the recorded steps always "v", "p", "norm_v", "norm_p" and "margin" (Y f(X) of every input), and what else
            `record` asked for. continuation: what `resume` goes on from.

    Both norms diverge while the directions settle: compare `v` and `p` with a prediction and judge.
    """

    v: FloatArray
    p: FloatArray
    norms: FloatArray
    attention: FloatArray
    selected: IntArray
    status: Any
    steps_taken: IntArray
    saved: Saved
    continuation: Any = field(default=None, repr=False)

    _resumable = "descend_joint returns"
    _last = "(run.v, run.p)"

    def __repr__(self) -> str:
        if self.norms.ndim == 1:
            sizes = f"norm_v={self.norms[0]:.4g}, norm_p={self.norms[1]:.4g}"
            return f"JointTrajectory({sizes}, selected={self.selected.tolist()}, status={self.status.name})"
        early = int(np.sum(self.status != DescentStatus.COMPLETED))
        return f"JointTrajectory({len(self.norms)} runs, {early} ended early)"


@implements("A", "(ERM)")
def joint_gradient(
    data: TokenDataset,
    v: Any,
    p: Any,
    loss: Loss = Logistic(),  # noqa: B008
) -> tuple[ScaledVector, ScaledVector]:
    r"""Exact gradients of the training risk in the head and in the attention weights, at any norm of either.

    .. math:: \nabla_v L = \frac1n \sum_i \ell'_i\, Y_i\, x_i^{att}, \quad x_i^{att} = X_i^\top \mathbb S(K_i p)
        = x_{i\alpha} - \sum_{t \ne \alpha} s_{it} (x_{i\alpha} - x_{it})

    Args:
        data: one problem or a batch. v: (…, d_model). p: (…, d_key).
    Returns:
        The gradients in v and in p as `ScaledVector`s; `.value()` is a gradient itself, `.log_norm` its size where that underflows.
        Check the second with `risk_gradient`, the first with differences of `risk`.
    """
    at = attend(logits(data, p), data.scores(v), data.mask)
    slopes = slope_of(as_loss(loss), at.margin)  # (…, n_inputs)
    largest = np.max(slopes.log, axis=-1)
    largest = np.where(largest == -np.inf, 0.0, largest)
    weights = slopes.sign * np.exp(slopes.log - largest[..., None]) * data.y / data.n_inputs
    output = attention_output(data, at.log_s, at.alpha)
    return (
        ScaledVector(np.einsum("...i,...id->...d", weights, output), largest),
        pairwise_gradient(data.K, at, slopes),
    )


def attention_output(data: TokenDataset, log_s: FloatArray, alpha: IntArray) -> FloatArray:
    """Xᵀ s as the token α less what the others take away, (…, n_inputs, d_model): exact where the softmax has saturated."""
    top = np.take_along_axis(data.X, alpha[..., None, None], axis=-2)
    s = np.where(data.mask, np.exp(log_s), 0.0)
    return top[..., 0, :] - np.einsum("...it,...itd->...id", s, np.where(data.mask[..., None], top - data.X, 0.0))


@implements("A", "Fig 3(a)", "Fig 3(b)", "Fig 3(c)")
def descend_joint(
    data: TokenDataset,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    step: StepRule = NormalizedStep(0.1),  # noqa: B008
    n_steps: int = 1000,
    start: Any = None,
    record: Record | None = None,
    progress: ProgressCallback | None = None,
) -> JointTrajectory:
    r"""Train the head v and the attention weights p together, with gradients that are exact at any norm of either.

    .. math:: v(t+1) = v(t) - \eta_v \nabla_v L(v(t), p(t)), \quad p(t+1) = p(t) - \eta_p \nabla_p L(v(t), p(t))

    Args:
        data: one problem or a batch of independent ones.
        loss: any `Loss`; losses of your own run in NumPy, slower.
        step: `ConstantStep(size)`, or `NormalizedStep(size)`, which normalises each gradient by its own norm. Where one gradient is
            zero that part rests and the other moves on.
        start: (v(0), p(0)) of shapes (d_model,) and (d_key,), each with or without a batch axis; zeros by default.
        record: at which steps to keep v, p, their norms and the margins, and which other quantities.
        progress: called as `progress(done, total)` several times a second, in steps of all problems together. What it raises ends
            the descent, as Ctrl-C does.
    Returns:
        A `JointTrajectory`; `run.resume(n_steps)` takes further steps. Check it against `predict_limit(data)`.
    """
    loss, step = as_loss(loss), as_step(step)
    data, n_steps = as_dataset(data), whole_number(n_steps, "n_steps", at_least=0)
    steps_to_save(record, n_steps)  # refuses what cannot be kept
    as_progress(progress)
    ends = np.zeros((len(data.as_batch()), 2), dtype=np.int64)
    return JointDescent(data, loss, step, *_start(data, start), ends, 0).resume(n_steps, record, progress)


@dataclass(frozen=True, eq=False)
class JointDescent:
    """A joint descent that can go on: its problem, its rule and where it stands.

    Attributes:
        v: (batch, d_model). p: (batch, d_key). ends: (batch, 2) how each run ended and after how many steps.
        n_steps: how many have been asked for.
    """

    data: TokenDataset
    loss: Loss
    step: StepRule
    v: FloatArray
    p: FloatArray
    ends: IntArray
    n_steps: int

    def resume(self, n_steps: int, record: Record | None, progress: ProgressCallback | None) -> JointTrajectory:
        """The trajectory after `n_steps` more; steps are counted from the first start on, and those before are not kept again."""
        batch, begin = self.data.as_batch(), self.n_steps
        end = begin + n_steps
        save = steps_to_save(record, end)
        save = save[save > begin] if begin else save
        run = self._in_numpy if compiled_code(self.loss) < 0 else self._compiled
        heads, points, ends = run(batch, (begin, end), np.append(save, end), progress)
        with np.errstate(over="ignore", invalid="ignore"):  # a run may have stopped at the edge of the numbers
            attention = softmax(batch, points[:, -1])
            kept = {} if record is None else _kept(batch, heads[:, :-1], points[:, :-1], record, self.loss)
        trajectory = JointTrajectory(
            v=heads[:, -1],
            p=points[:, -1],
            norms=np.stack([length(heads[:, -1]), length(points[:, -1])], axis=-1),
            attention=attention,
            selected=np.argmax(attention, axis=-1),
            status=np.array(ENDINGS, dtype=object)[ends[:, 0]],
            steps_taken=ends[:, 1],
            saved=Saved(save, kept),
        )
        trajectory = trajectory if self.data.is_batch else trajectory[0]
        after = replace(self, v=heads[:, -1], p=points[:, -1], ends=ends, n_steps=end)
        return replace(trajectory, continuation=after)

    # ---- the loops: both return heads (batch, n_saved, d_model), points (batch, n_saved, d_key), and endings (batch, 2)

    def _compiled(
        self, batch: TokenDataset, span: tuple[int, int], steps: IntArray, progress: ProgressCallback | None
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        problems = batch[0].as_batch() if batch.is_repeated else batch  # many starts on one problem
        arrays = tuple(np.ascontiguousarray(one) for one in (problems.X, problems.K, problems.y, problems.lengths))
        begin, end = span
        heads = np.empty((len(batch), len(steps), batch.d_model))
        points = np.empty((len(batch), len(steps), batch.d_key))
        carried = (self.v.copy(), self.p.copy(), self.ends.copy())
        rule = (isinstance(self.step, NormalizedStep), float(self.step.size), compiled_code(self.loss), end)

        def advance(first: int, last: int, low: int, high: int) -> None:
            descend_problems(first, last, arrays, (*rule, begin + high), steps, carried, (heads, points))

        cost = 4.0 * batch.n_inputs * batch.n_tokens * (batch.d_model + batch.d_key + 20.0)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return heads, points, carried[2]

    def _in_numpy(
        self, batch: TokenDataset, span: tuple[int, int], steps: IntArray, progress: ProgressCallback | None
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        begin, end = span
        iterate = [self.v.copy(), self.p.copy()]
        kept = [np.empty((len(batch), len(steps), part.shape[-1])) for part in iterate]
        reason, taken = self.ends[:, 0].copy(), self.ends[:, 1].copy()
        running = reason == RAN_ALL
        for k in range(begin, end + 1):
            for part, store in zip(iterate, kept, strict=True):
                store[:, steps >= k] = part[:, None]
            if progress is not None and k > begin:
                progress((k - begin) * len(batch), (end - begin) * len(batch))
            if k == end or not running.any():
                break
            with np.errstate(over="ignore", invalid="ignore"):
                slopes = joint_gradient(batch, iterate[0], iterate[1], self.loss)
                sizes = [length(slope.vector) for slope in slopes]
                if isinstance(self.step, NormalizedStep):
                    moves = [self.step.size / np.where(size == 0.0, 1.0, size) for size in sizes]
                else:
                    moves = [self.step.size * np.exp(slope.log_scale) for slope in slopes]
                following = [
                    part - move[:, None] * slope.vector
                    for part, move, slope in zip(iterate, moves, slopes, strict=True)
                ]
            stuck = running & (sizes[0] == 0.0) & (sizes[1] == 0.0)
            broken = running & ~(np.isfinite(following[0]).all(axis=-1) & np.isfinite(following[1]).all(axis=-1))
            reason[stuck], reason[broken] = STATIONARY, NON_FINITE
            running = running & ~stuck & ~broken
            iterate = [np.where(running[:, None], new, old) for new, old in zip(following, iterate, strict=True)]
            taken += running
        return kept[0], kept[1], np.stack([reason, taken], axis=1)


def _start(data: TokenDataset, start: Any) -> tuple[FloatArray, FloatArray]:
    """v(0) and p(0), each with a batch axis."""
    if start is None:
        return np.zeros((len(data), data.d_model)), np.zeros((len(data), data.d_key))
    if not isinstance(start, tuple | list) or len(start) != 2:
        got = f"{n_axes(start)} axes" if n_axes(start) else type(start).__name__
        raise reject("start", "a pair (v, p)", got)
    v = np.array(data.head(start[0])).reshape(len(data), data.d_model)
    return v, np.array(data.point(start[1], "start[1]")).reshape(len(data), data.d_key)


def _kept(data: TokenDataset, heads: FloatArray, points: FloatArray, record: Record, loss: Loss) -> dict[str, Any]:
    """Every quantity at every saved pair, (batch, n_saved, …)."""
    kept: dict[str, Any] = {"v": heads, "p": points, "norm_v": length(heads), "norm_p": length(points)}
    pairs = [(heads[:, k], points[:, k]) for k in range(points.shape[1])]
    shape = (len(data), len(pairs))
    at = [attend(logits(data, p), data.scores(v), data.mask) for v, p in pairs]
    kept["margin"] = _stack([one.margin for one in at], (*shape, data.n_inputs))
    if "attention" in record.keep or "selected" in record.keep:
        shares = _stack([probabilities(logits(data, p), data.mask) for _, p in pairs], (*shape, *data.mask.shape[1:]))
        found = {"attention": shares, "selected": np.argmax(shares, axis=-1)}
        kept.update({name: found[name] for name in record.keep if name in found})
    if "risk" in record.keep:
        kept["risk"] = _stack([risk(data, v, p, loss) for v, p in pairs], shape)
    if "excess_risk" in record.keep:
        above = [excess_risk(data, v, p, loss) for v, p in pairs]
        kept["excess_risk"] = ExcessRisk(_stack([e.sign for e in above], shape), _stack([e.log for e in above], shape))
    return kept


def _stack(parts: list[Any], shape: tuple[int, ...]) -> Any:
    return np.stack(parts, axis=1) if parts else np.empty(shape)


@njit(**COMPILED)
def _head_gradient(
    tokens: Any, labels: Any, lengths: Any, at: Any, code: int, log_weights: Any, gradient: Any
) -> float:
    """∇_v L = e^s/n · gradient, written into `gradient` (d,); returns s, the largest log|ℓ'| over the inputs."""
    n, T, d = tokens.shape
    a, scores = at
    largest = -np.inf
    for i in range(n):
        base = i * T
        best = largest_of(a, base, lengths[i])
        rest, delta = 0.0, 0.0
        for t in range(lengths[i]):
            if t != best:
                e = math.exp(a[base + t] - a[base + best])
                rest += e
                delta += e * (scores[i, best] - scores[i, t])
        log_weights[i] = log_slope(code, scores[i, best] - delta / (1.0 + rest))
        largest = max(largest, log_weights[i])
    for k in range(d):
        gradient[k] = 0.0
    for i in range(n):
        weight = -labels[i] * math.exp(log_weights[i] - largest)
        base = i * T
        best = largest_of(a, base, lengths[i])
        rest = 0.0
        for t in range(lengths[i]):
            if t != best:
                rest += math.exp(a[base + t] - a[base + best])
        for k in range(d):
            gradient[k] += weight * tokens[i, best, k]
        for t in range(lengths[i]):
            if t != best:
                share = weight * math.exp(a[base + t] - a[base + best]) / (1.0 + rest)
                for k in range(d):
                    gradient[k] -= share * (tokens[i, best, k] - tokens[i, t, k])
    return largest


@njit(**COMPILED)
def _move(here: Any, gradient: Any, normalized: bool, eta: float, log_factor: float, there: Any) -> bool:
    """One step of one part, written into `there`; whether it moved."""
    size = norm(gradient)
    factor = 0.0
    if size != 0.0:
        factor = eta / size if normalized else eta * math.exp(log_factor)
    for k in range(here.shape[0]):
        there[k] = here[k] - factor * gradient[k]
    return size != 0.0


@njit(**COMPILED)
def descend_problems(first: int, last: int, problems: Any, rule: Any, save: Any, carried: Any, out: Any) -> None:
    """Take steps of problems first … last - 1, from where `carried` says they are.

    Args:
        problems: tokens (batch, n_inputs, n_tokens, d_model), keys, labels and lengths; or (1, …) of each for one problem shared by all.
        rule: (normalized, step size, loss code, number of steps, number of the step to stop before).
        save: increasing steps after which v and p are kept.
        carried: arrays that are read and filled: v (batch, d_model), p (batch, d_key), and how each run ended and the steps it has
            taken (batch, 2).
        out: v and p at the kept steps, (batch, n_saved, d_model) and (batch, n_saved, d_key).
    """
    tokens, keys, labels, lengths = problems
    heads, points = out
    for b in range(first, last):
        j = b % keys.shape[0]
        v, p = carried[0][b], carried[1][b]
        if carried[2][b, 0] == RAN_ALL:
            problem = (tokens[j], centred(keys[j], lengths[j]), labels[j], lengths[j])
            carried[2][b, 0], carried[2][b, 1] = _take_steps(
                problem, v, p, rule, save, carried[2][b, 1], (heads[b], points[b])
            )
        if carried[2][b, 0] != RAN_ALL or carried[2][b, 1] == rule[3]:
            for k in range(save.shape[0]):
                if save[k] >= carried[2][b, 1]:
                    _copy(v, heads[b, k])
                    _copy(p, points[b, k])


@njit(**COMPILED)
def _copy(x: Any, out: Any) -> None:
    for k in range(x.shape[0]):  # entry by entry: assigning slices takes seconds to compile
        out[k] = x[k]


@njit(**COMPILED)
def _take_steps(problem: Any, v: Any, p: Any, rule: Any, save: Any, taken: int, out: Any) -> Any:
    """Steps of one problem from number `taken` on, which move v and p; returns how it ended and the steps taken."""
    tokens, rows, labels, lengths = problem
    normalized, eta, code, _, stop = rule
    heads, points = out
    n, T, d = tokens.shape
    flat, columns = tokens.reshape(n * T, d), np.ascontiguousarray(rows.T)
    scores, a, w, log_weights = np.zeros((n, T)), np.zeros(n * T), np.zeros(n * T), np.zeros(n)
    slope_v, slope_p = np.zeros(d), np.zeros(rows.shape[1])
    v_next, p_next = np.zeros(d), np.zeros(rows.shape[1])
    saved = 0
    while saved < save.shape[0] and save[saved] < taken:
        saved += 1
    for step in range(taken, stop):
        while saved < save.shape[0] and save[saved] == step:
            _copy(v, heads[saved])
            _copy(p, points[saved])
            saved += 1
        matvec(rows, p, a)
        matvec(flat, v, scores.reshape(n * T))
        for i in range(n):
            for t in range(T):
                scores[i, t] *= labels[i]
        if not (all_finite(a) and all_finite(scores.reshape(n * T))):
            return NON_FINITE, step
        log_v = _head_gradient(tokens, labels, lengths, (a, scores), code, log_weights, slope_v)
        log_p = pair_weights(a, scores, lengths, code, w)
        matvec(columns, w, slope_p)
        moved_v = _move(v, slope_v, normalized, eta, log_v - math.log(n), v_next)
        moved_p = _move(p, slope_p, normalized, eta, log_p - math.log(n), p_next)
        if not (moved_v or moved_p):
            return STATIONARY, step
        if not (all_finite(v_next) and all_finite(p_next)):
            return NON_FINITE, step
        _copy(v_next, v)
        _copy(p_next, p)
    return RAN_ALL, stop
