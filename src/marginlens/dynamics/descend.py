"""Gradient descent on any risk with any optimizer: exact iterates, for one problem or thousands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, singledispatch
from typing import Any, Protocol, overload

import numpy as np

from marginlens.data.device_tokens import DeviceTokens
from marginlens.directions import length
from marginlens.dynamics.brackets import Witness
from marginlens.dynamics.device_descent import (
    DeviceLoop,
    DeviceRun,
    descend_on_device,
    left_to_the_cpu,
    not_served,
    put_on_device,
    step_kind,
)
from marginlens.dynamics.kernels import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.dynamics.kernels.attention_descent import AttentionLoop
from marginlens.dynamics.kernels.joint_descent import JointLoop
from marginlens.dynamics.kernels.next_token_descent import NextTokenLoop
from marginlens.dynamics.kernels.steepest_descent import MatrixLoop, MatrixState
from marginlens.dynamics.record import Record, Saved, check_record, measure, steps_to_save
from marginlens.dynamics.trajectory import ENDINGS, Trajectory
from marginlens.errors import InputError, real_array, reject, whole_number
from marginlens.gpu.device import Device, as_device, to_host
from marginlens.kinds import kind_of
from marginlens.losses.margin import Logistic, as_loss, compiled_code
from marginlens.norms.matrix import NUCLEAR, SPECTRAL
from marginlens.optimizers import Blockwise, GradientDescent, NormalizedGD, Optimizer, as_optimizer
from marginlens.optimizers.compiled import compiled_rule
from marginlens.papers import implements
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.build import as_risk
from marginlens.risk.joint import JointRisk
from marginlens.risk.log_scaled import LogScaled
from marginlens.risk.matrix import MatrixRisk, as_query
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.protocol import Risk
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.typing import ArrayLike, FloatArray, IntArray

EXTREME_KEY = 1e60  # keys beyond, or whose inverses are, take their steps one by one
PLAIN = (GradientDescent, NormalizedGD)  # whose loops are the papers'


@overload
def descend(
    problem: DeviceTokens,
    head: Any,
    *,
    loss: Any = None,
    optimizer: Optimizer | None = None,
    n_steps: int = 1000,
    start: Any = None,
    record: None = None,
    progress: ProgressCallback | None = None,
    device: str = "cpu",
) -> DeviceRun: ...


@overload
def descend(
    problem: Any,
    head: Any = None,
    *,
    loss: Any = None,
    optimizer: Optimizer | None = None,
    n_steps: int = 1000,
    start: Any = None,
    record: Record | None = None,
    progress: ProgressCallback | None = None,
    device: str = "cpu",
) -> Trajectory: ...


@implements("A", "Eq. (3)", "Fig 3(a)", "Fig 3(b)", "Fig 3(c)")
@implements("C", "Algo-GD")
def descend(
    problem: Any,
    head: Any = None,
    *,
    loss: Any = None,
    optimizer: Optimizer | None = None,
    n_steps: int = 1000,
    start: Any = None,
    record: Record | None = None,
    progress: ProgressCallback | None = None,
    device: str = "cpu",
) -> Trajectory | DeviceRun:
    r"""Train by gradient descent, plain, normalised or by an optimizer of your own, with gradients that are exact at any norm.

    .. math:: x(t+1) = x(t) + \text{step}\big(\nabla L(x(t))\big)

    Args:
        problem: a risk (`AttentionRisk`, `JointRisk`, `NextTokenRisk`, or one of your own); or a `TokenDataset`, with the head, for the
            attention weights p; or a `SequenceDataset`, or a list of them, for the key-query weights W of a next-token layer.
        head, loss: of the risk, where a dataset is given; then as for `AttentionRisk` and `NextTokenRisk`.
        optimizer: `NormalizedGD(size)`, `GradientDescent(size)`, or any object with the methods `init` and `update`. By default
            normalised steps: of size 1 on p, .01 on next-token weights, and .1 on each part of a joint risk.
        start: x(0), (*risk.shape) or (batch, *risk.shape); zero by default. A joint start may be a pair (v, p).
        record: what to keep along the way; nothing by default.
        progress: called as `progress(done, total)` several times a second, in steps of all problems together. What it raises ends
            the descent, as Ctrl-C does.
        device: "cpu", which is the default, "cuda", or "cuda:1" for the GPU of that number (needs the extra `gpu`). A `DeviceTokens`, as
            the generators make it with device="cuda", is descended on where it is.
    Returns:
        A `Trajectory`, or for a `DeviceTokens` a `DeviceRun` whose arrays stay on the device; `run.resume(n_steps)` of the former takes
        further steps. Check it against theory with `correlation(run.final, att_svm(data, run.selected).x)`. A run with the log-loss ends
        where a head makes c_yᵀ f nonpositive.
    """
    if isinstance(problem, DeviceTokens):
        return _descend_where_it_is(problem, head, loss, optimizer, n_steps, start, record, progress)
    place = as_device(device)
    risk = as_risk(problem, head, loss)
    rule = as_optimizer(_default_optimizer(risk) if optimizer is None else optimizer)
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    steps_to_save(record, n_steps)  # refuses what cannot be kept
    check_record(record, risk)
    as_progress(progress)
    loop: Loop = (
        (compiled_loop(risk, rule) or StepwiseLoop(risk, rule)) if place is None else device_loop(place, risk, rule)
    )
    return Descent(risk, loop, loop.begin(starting_points(risk, start)), 0).resume(n_steps, record, progress)


def device_loop(device: Device, risk: Any, optimizer: Optimizer) -> Loop:
    """The loop that takes the steps on a device; it leaves problems with extreme keys to the loop of the CPU."""
    if not isinstance(risk, AttentionRisk) or not risk.is_linear or compiled_code(risk.loss) < 0:
        what = (
            f"a {type(risk).__name__}"
            if not isinstance(risk, AttentionRisk)
            else "a nonlinear head or a loss of your own"
        )
        raise not_served(device, what)
    rule = compiled_rule(optimizer, risk.shape)
    if rule is None or step_kind(rule) is None:
        raise not_served(device, repr(optimizer))
    on_cpu = partial(_loop_of_some, risk, optimizer)
    return DeviceLoop(device, risk.data.as_batch(), risk.head, compiled_code(risk.loss), rule, on_cpu)


def _loop_of_some(risk: AttentionRisk, optimizer: Optimizer, places: IntArray) -> Loop:
    """The loop of the CPU for the problems at these places of a batch."""
    return compiled_loop(risk[places], optimizer) or StepwiseLoop(risk[places], optimizer)


def _descend_where_it_is(
    tokens: DeviceTokens, head: Any, loss: Any, optimizer: Any, n_steps: int, start: Any, record: Any, progress: Any
) -> DeviceRun:
    """Descent on problems on a device; those with extreme keys are brought over, descended on by the CPU and put back."""
    rule = as_optimizer(NormalizedGD(1.0) if optimizer is None else optimizer)
    coded = compiled_rule(rule, (tokens.d_key,))
    code = compiled_code(as_loss(Logistic() if loss is None else loss))
    if code < 0:
        raise not_served(tokens.device, f"the loss {loss!r}")
    if coded is None or step_kind(coded) is None:
        raise not_served(tokens.device, repr(rule))
    if record is not None:
        raise reject("record", "None for problems on a device", "a Record", "Take tokens.to_host() with device='cuda'.")
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    run = descend_on_device(tokens, head, code, coded, n_steps, start, as_progress(progress))
    left = left_to_the_cpu(run)
    if left.size:
        begun = None if start is None else np.broadcast_to(to_host(start), (len(tokens), tokens.d_key))[left]
        heads = np.broadcast_to(to_host(head), (len(tokens), tokens.d_model))[left]
        put_on_device(
            run, left, descend(tokens[left].to_host(), heads, loss=loss, optimizer=rule, n_steps=n_steps, start=begun)
        )
    return run


def _default_optimizer(risk: Risk) -> Optimizer:
    if isinstance(risk, NextTokenRisk):
        return NormalizedGD(0.01)
    return Blockwise(NormalizedGD(0.1)) if isinstance(risk, JointRisk) else NormalizedGD(1.0)


def starting_points(risk: Any, start: Any) -> FloatArray:
    """x(0) as an array (batch, *shape) of its own."""
    if hasattr(risk, "start"):
        return np.array(risk.start(start), dtype=np.float64)
    if start is None:
        return np.zeros((1, *risk.shape))
    return np.array(real_array(start, "start", risk.shape))[None]


@dataclass(frozen=True, eq=False)
class Descent:
    """A descent that can go on: its risk, its loop, and where it stands after `n_steps`."""

    risk: Any
    loop: Loop
    state: Any
    n_steps: int

    def resume(self, n_steps: int, record: Record | None, progress: ProgressCallback | None) -> Trajectory:
        """The trajectory after `n_steps` more; steps are counted from the first start on, and those before are not kept again."""
        risk, begin, end = self.risk, self.n_steps, self.n_steps + n_steps
        check_record(record, risk)
        save = steps_to_save(record, end)
        save = save[save > begin] if begin else save
        state = self.state.copy()
        points = self.loop.advance(state, (begin, end), np.append(save, end), progress)  # the final iterate rides along
        with np.errstate(over="ignore", invalid="ignore"):  # a run may have stopped at the edge of the numbers
            trajectory = trajectory_of(risk, points, (state.ends[:, 0], state.ends[:, 1].copy()), save, record)
        witness = _witness(risk, state) if isinstance(state, MatrixState) else None
        return replace(trajectory, continuation=Descent(risk, self.loop, state, end), witness=witness)


def _witness(risk: Any, state: MatrixState) -> Witness:
    """What a compiled loop has summed up, without the batch axis for one problem."""
    data = getattr(risk, "of_p", risk).data
    residuals = state.residuals.reshape(len(state.residuals), -1, data.n_inputs, data.n_tokens)
    witness = Witness(residuals.copy(), state.anchors.reshape(len(residuals), -1, *risk.shape).copy())
    return witness if risk.is_batch else witness[0]


def trajectory_of(
    risk: Any, points: FloatArray, ends: tuple[Any, Any], steps: Any, record: Record | None
) -> Trajectory:
    """The trajectory of iterates (batch, n_saved + 1, *shape), the final ones last, with how and after how many steps runs ended."""
    is_batch = bool(getattr(risk, "is_batch", False))
    final, reason = points[:, -1], np.array(ENDINGS, dtype=object)[ends[0]]
    at = final if is_batch else final[0]
    attention: FloatArray | None
    if isinstance(risk, AttentionRisk):
        at_logits = risk.at(risk.logits(at))
        attention, selected = at_logits.attention(), at_logits.select()
    else:
        attention = risk.attention(at) if hasattr(risk, "attention") else None
        selected = np.asarray(risk.select_by(attention) if hasattr(risk, "select_by") else risk.select(at))
    norm = length(final.reshape(len(final), -1))
    kept = measure(risk, points[:, :-1], record)
    if not is_batch:
        single = {name: value[0] for name, value in kept.items()}
        return Trajectory(final[0], attention, selected, norm[0], reason[0], ends[1][0], Saved(steps, single), risk)
    return Trajectory(final, attention, selected, norm, reason, ends[1], Saved(steps, kept), risk)


# ---- one NumPy step at a time: for every risk and every optimizer


class Loop(Protocol):
    """What takes the steps of a batch of descents."""

    def begin(self, start: FloatArray) -> Any:
        """The state before the first step from `start` (batch, *shape)."""

    def advance(
        self, state: Any, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps `span[0]` … `span[1] - 1`, which change `state`; the iterates after the steps `save`, (batch, n_saved, *shape)."""


@dataclass
class StepwiseState:
    """Where a batch of descents stands.

    Attributes:
        x: (batch, *shape) the iterates. memory: what the optimizer remembers; a list with one entry per problem unless it is batched.
        ends: (batch, 2) how each run ended and after how many steps.
    """

    x: FloatArray
    memory: Any
    ends: IntArray

    def copy(self) -> StepwiseState:
        """The same in arrays of its own; optimizers do not change what they remember in place."""
        memory = list(self.memory) if isinstance(self.memory, list) else self.memory
        return StepwiseState(self.x.copy(), memory, self.ends.copy())


@dataclass(frozen=True)
class StepwiseLoop:
    """Gradient, update, move: for any risk and any optimizer."""

    risk: Risk
    optimizer: Optimizer

    def begin(self, start: FloatArray) -> StepwiseState:
        """The state before the first step from `start` (batch, *shape)."""
        memory = self.optimizer.init(start) if self._batched else [self.optimizer.init(x) for x in start]
        return StepwiseState(start, memory, np.zeros((len(start), 2), dtype=np.int64))

    def advance(
        self, state: StepwiseState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`."""
        first, last = span
        shape = state.x.shape[1:]
        axes = tuple(range(1, state.x.ndim))
        reason, taken = state.ends[:, 0], state.ends[:, 1]
        running = reason == RAN_ALL
        saved = np.empty((len(state.x), len(save), *shape))
        for k in range(first, last + 1):
            saved[:, np.flatnonzero(save == k)] = state.x[:, None]
            if progress is not None and k > first:
                progress((k - first) * len(state.x), (last - first) * len(state.x))
            if k == last or not running.any():
                saved[:, save > k] = state.x[:, None]
                break
            with np.errstate(over="ignore", invalid="ignore"):
                gradient = self._gradient(state.x)
                move, memory = self._update(gradient, state.memory, running)
                following = state.x + move
            stuck = running & gradient.is_zero() & ~np.any(move, axis=axes)
            broken = running & ~stuck & ~np.isfinite(following).all(axis=axes)
            reason[stuck], reason[broken] = STATIONARY, NON_FINITE
            running = running & ~stuck & ~broken
            state.x = np.where(running.reshape(-1, *(1,) * len(shape)), following, state.x)
            state.memory = memory
            taken += running
        return saved

    @property
    def _batched(self) -> bool:
        return bool(getattr(self.optimizer, "batched", False))

    def _gradient(self, x: FloatArray) -> LogScaled:
        """The gradients at all iterates (batch, *shape), with the excess risk where the optimizer needs it."""
        risk: Any = self.risk
        at = x if getattr(risk, "is_batch", False) else x[0]
        gradient: LogScaled = risk.gradient(at)
        if getattr(self.optimizer, "needs_excess", False) and hasattr(risk, "best_tokens"):
            gradient = replace(gradient, excess=risk.excess(at, risk.best_tokens()))
        return gradient if at is x else gradient[None]

    def _update(self, gradient: LogScaled, memory: Any, running: Any) -> tuple[FloatArray, Any]:
        """The moves of all problems; those that have ended do not move and remember what they did."""
        if self._batched:
            return self.optimizer.update(gradient, memory)
        moves, memory = np.zeros_like(gradient.array), list(memory)
        for j in np.flatnonzero(running):
            move, memory[j] = self.optimizer.update(gradient[j], memory[j])
            if np.shape(move) != moves.shape[1:]:
                raise InputError(
                    f"The optimizer's update must return a step of shape {moves.shape[1:]}, that of the iterate; "
                    f"{type(self.optimizer).__name__} returned one of shape {np.shape(move)}."
                )
            moves[j] = move
        return moves, memory


# ---- compiled loops for the built-in risks and optimizers


@singledispatch
def compiled_loop(risk: Any, optimizer: Optimizer) -> Loop | None:
    """The compiled loop that serves this risk with this optimizer, None where there is none."""
    return None


@compiled_loop.register
def attention_loop(risk: AttentionRisk, optimizer: Any) -> Loop | None:
    """On attention weights p: by the loop of the plain rules, or by that of every other."""
    if not risk.is_linear or compiled_code(risk.loss) < 0:
        return None
    if kind_of(optimizer) not in PLAIN:
        rule = compiled_rule(optimizer, risk.shape)
        if rule is None or not _is_moderate(risk.data.K):
            return None
        return MatrixLoop(risk.data.as_batch(), risk.head, compiled_code(risk.loss), rule)
    normalized = isinstance(optimizer, NormalizedGD)
    return AttentionLoop(risk.data.as_batch(), risk.head, normalized, optimizer.size, compiled_code(risk.loss))


@compiled_loop.register
def matrix_loop(risk: MatrixRisk, optimizer: Any) -> Loop | None:
    """On key-query weights W."""
    of_p, euclidean = risk.of_p, kind_of(optimizer) in PLAIN
    if not of_p.is_linear or compiled_code(of_p.loss) < 0 or (euclidean and risk.shares_query):
        return None
    rule = compiled_rule(optimizer, risk.shape)
    by_entry = rule is not None and rule.norm_code not in (SPECTRAL, NUCLEAR)
    if rule is None or not _is_moderate(of_p.data.K) or (by_entry and not np.all(risk.query)):
        return None  # where queries have zeros, entries of the gradient may need scales of their own
    queries = risk.query[None] if risk.shares_query else risk.query
    return MatrixLoop(of_p.data.as_batch(), of_p.head, compiled_code(of_p.loss), rule, queries)


def _is_moderate(keys: FloatArray) -> bool:
    """Whether no product of two keys and a weight leaves the range of the numbers."""
    largest = float(np.max(np.abs(keys), initial=0.0))
    return 1.0 / EXTREME_KEY < largest < EXTREME_KEY


@compiled_loop.register
def joint_loop(risk: JointRisk, optimizer: Any) -> Loop | None:
    """On head and attention weights (v, p), whose normalised steps are by block."""
    by_block = kind_of(optimizer) is Blockwise
    rule = optimizer.optimizer if by_block else optimizer
    if compiled_code(risk.loss) < 0 or kind_of(rule) not in (PLAIN if by_block else (GradientDescent,)):
        return None
    return JointLoop(risk.data.as_batch(), isinstance(rule, NormalizedGD), rule.size, compiled_code(risk.loss))


@compiled_loop.register
def next_token_loop(risk: NextTokenRisk, optimizer: Any) -> Loop | None:
    """On key-query weights W of next tokens."""
    if risk.loss.code < 0 or kind_of(optimizer) not in PLAIN:
        return None
    return NextTokenLoop(risk, isinstance(optimizer, NormalizedGD), optimizer.size)


# ---- what corresponds between p and W


@implements("A", "Lemma 1")
def matching_optimizer(optimizer: GradientDescent | NormalizedGD, query: ArrayLike) -> GradientDescent | NormalizedGD:
    """The optimizer on W that corresponds to `optimizer` on p for this query (d_query,): steps η/‖u‖² plain, η/‖u‖ normalised."""
    if type(optimizer) not in (GradientDescent, NormalizedGD):
        raise reject("optimizer", "ml.GradientDescent(size) or ml.NormalizedGD(size)", repr(optimizer))
    size = float(length(as_query(query)))
    return (
        GradientDescent(optimizer.size / size / size)
        if isinstance(optimizer, GradientDescent)
        else NormalizedGD(optimizer.size / size)
    )
