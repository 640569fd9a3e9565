"""Descent on a GPU: the loop that `descend` takes for `device="cuda"`, and runs on problems whose arrays are on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.device_tokens import DeviceTokens
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.compiled_loops import problem_arrays
from marginlens.dynamics.loops import Loop, PlacedRisk, compiled_loop, loop_of
from marginlens.dynamics.mini_batches import MiniBatches
from marginlens.dynamics.trajectory import ENDINGS, Trajectory
from marginlens.errors import InputError, reject, whole_number
from marginlens.gpu.descent import (
    COORDINATE_STEP,
    EXTREME_ENDING,
    GRADIENT_STEP,
    NORMALIZED_STEP,
    POWER_STEP,
    SIGN_STEP,
    Carried,
    DescentKernel,
    Outputs,
    Pace,
    Shape,
    Steps,
)
from marginlens.gpu.device import Device, to_host
from marginlens.losses.margin import Logistic, as_loss, compiled_code
from marginlens.norms.entrywise import EUCLIDEAN, LARGEST_ENTRY, POWER, SIGN
from marginlens.optimizers import NormalizedGD, Optimizer, as_optimizer
from marginlens.optimizers.compiled import GRADIENT, STEEPEST, Rule, compiled_rule
from marginlens.optimizers.schedules import sizes_of
from marginlens.result import Displayed, Tabular, drawn
from marginlens.result.palette import LOCAL
from marginlens.risk.attention import AttentionRisk
from marginlens.runtime.progress import Progress, ProgressCallback, as_progress
from marginlens.typing import Axes, FloatArray, IntArray

_MAX_POINTS = 2000  # runs that a picture shows
SERVED = (
    "attention weights p with a linear head and a built-in loss, by GradientDescent, NormalizedGD, or SteepestDescent without momentum "
    "in L1, L2, LInf or Lp"
)
_STEP_OF_NORM = {
    LARGEST_ENTRY: COORDINATE_STEP,
    EUCLIDEAN: NORMALIZED_STEP,
    SIGN: SIGN_STEP,
    POWER: POWER_STEP,
}


def step_kind(rule: Rule | None) -> int | None:
    """Which steps of the kernel an optimizer's rule asks for, None where it has none."""
    if rule is None or rule.kind not in (GRADIENT, STEEPEST) or rule.settings[1] > 0.0 or rule.settings[8] > 0.0:
        return None
    return GRADIENT_STEP if rule.kind == GRADIENT else _STEP_OF_NORM.get(rule.norm_code)


def not_served(device: Device, what: str) -> InputError:
    """The error for a descent that the GPU does not take."""
    return reject("device", f"'cpu' for {what}", repr(device.name), f"On a GPU, descend serves {SERVED}.")


# ---- data of NumPy, results of NumPy: a loop as descend calls it


@dataclass
class DeviceState:
    """Where a batch of descents stands, in arrays of NumPy, with all that the next step depends on.

    Attributes:
        start: (batch, d_key). states: (batch, 1 + n_rows) coefficients over the keys, or (batch, 1 + d_key) p, and the weights' shift.
        logits: (batch, n_rows).
        ends: (batch, 2) how each run ended and after how many steps. left: what the CPU descends on, after the first steps.
    """

    start: FloatArray
    states: FloatArray
    logits: FloatArray
    ends: IntArray
    left: LeftToCpu | None = None

    def copy(self) -> DeviceState:
        """The same in arrays of its own."""
        left = None if self.left is None else LeftToCpu(self.left.places, self.left.loop, self.left.state.copy())
        return DeviceState(self.start, self.states.copy(), self.logits.copy(), self.ends.copy(), left)


class LeftToCpu(NamedTuple):
    """Problems of a batch whose keys are extreme, the loop that takes their steps on the CPU, and where it stands."""

    places: IntArray
    loop: Any
    state: Any


@dataclass(frozen=True, eq=False)
class DeviceLoop:
    """Descent on p by the kernel of a device, for a linear head and a loss with a code.

    Attributes:
        device: where it runs. batch: the problems. head: (d_model,) or (batch, d_model). code: of the loss. rule: of the optimizer.
        on_cpu: gives the loop of the CPU for the problems at some places of the batch.
    """

    device: Device
    batch: TokenDataset
    head: Any
    code: int
    rule: Rule
    on_cpu: Callable[[IntArray], Any]

    @property
    def kernel(self) -> DescentKernel:
        """The kernel for problems of this shape."""
        batch, kind = self.batch, step_kind(self.rule)
        assert kind is not None
        shape = Shape(batch.n_inputs, batch.n_tokens, batch.d_key)
        return DescentKernel(self.device, shape, self.code, kind, not bool(batch.mask.all()))

    def begin(self, start: FloatArray) -> DeviceState:
        """The state before the first step, which fills it."""
        count, n_rows = len(self.batch), self.batch.n_inputs * self.batch.n_tokens
        return DeviceState(
            start,
            np.empty((count, self.kernel.state_width)),
            np.empty((count, n_rows)),
            np.zeros((count, 2), dtype=np.int64),
        )

    def advance(
        self, state: DeviceState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; p after the steps `save`, (batch, n_saved, d_key)."""
        batch, kernel, xp, (begin, end) = self.batch, self.kernel, self.device.xp, span
        keys, scores, lengths = problem_arrays(batch, self.head)
        points = np.empty((len(batch), len(save), batch.d_key))
        report, pace = Progress(progress, len(batch) * (end - begin)), Pace(kernel)
        if state.left is not None:
            state.ends[state.left.places] = 0  # as the device has left them
        with self.device.active():
            steps = _steps(xp, self.rule, kernel, begin, end)
            kept, scratch = xp.asarray(save, dtype=np.int64), kernel.scratch()
            for first, last in pace.slices(len(batch), end - begin, kernel.bytes_per_problem(len(save))):
                part = slice(first, last) if len(keys) == len(batch) else slice(0, 1)  # many starts on one problem
                ragged = xp.asarray(lengths[part]) if kernel.ragged else None
                data = (xp.asarray(keys[part]), xp.asarray(scores[part]), ragged, scratch)
                carried = Carried(*(xp.array(array[first:last]) for array in (state.states, state.logits, state.ends)))
                start = xp.array(state.start[first:last])
                out = Outputs(xp.empty((last - first, len(save), batch.d_key)))

                def advance(
                    stop: int, data: Any = data, start: Any = start, carried: Any = carried, out: Any = out
                ) -> None:
                    kernel(data, start, steps, (stop, end), kept, carried, out)

                for units in pace.take(advance, last - first, begin, end):
                    report.advance(units)
                arrays = (state.states, state.logits, state.ends, points)
                for target, source in zip(arrays, (*carried, out.points), strict=True):
                    target[first:last] = to_host(source)
        left = np.flatnonzero(state.ends[:, 0] == EXTREME_ENDING)
        if left.size:
            if state.left is None:
                loop = self.on_cpu(left)
                state.left = LeftToCpu(left, loop, loop.begin(state.start[left]))
            points[left] = state.left.loop.advance(state.left.state, span, save, None)
            state.ends[left] = state.left.state.ends
        return points


@compiled_loop.register
def device_loop(placed: PlacedRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop:
    """The loop that takes the steps on a device; it leaves problems with extreme keys to the loop of the CPU."""
    risk, device = placed
    if batches is not None:
        raise reject("device", "'cpu' for mini-batches", repr(device.name))
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

    def subset_loop(indices: IntArray) -> Loop:
        """The loop of the CPU for these problems of the batch."""
        return loop_of(risk[indices], optimizer)

    return DeviceLoop(device, risk.data.as_batch(), risk.head, compiled_code(risk.loss), rule, subset_loop)


def _steps(xp: Any, rule: Rule, kernel: DescentKernel, begin: int, end: int) -> Steps:
    """The rule's steps from `begin` to `end` as the kernel takes them."""
    if callable(rule.size):
        sizes = xp.asarray(sizes_of(rule.size, begin, end))
        return Steps(kernel.step_kind, 0.0, sizes, begin, float(rule.settings[0]))
    return Steps(kernel.step_kind, float(rule.size), None, begin, float(rule.settings[0]))


# ---- data on the device, results on the device


@dataclass(frozen=True, eq=False, repr=False)
class DeviceRun(Displayed, Tabular):
    """A finished descent whose arrays are on the device; `to_host` brings one over.

    Attributes:
        final: the last iterates p, (batch, d_key). selected: the token with the largest attention in each input, (batch, n_inputs).
        norm: ‖final‖, (batch,). saturation: the mean over the inputs of the attention that the selected tokens have, (batch,).
        endings: numbers of `status` in `trajectory.ENDINGS`, (batch,). steps_taken: how many steps each run took, (batch,).

    `to_frame()` has one row per run: run, status, norm, saturation, steps; the display brings over no more rows than it shows.
    """

    final: Any
    selected: Any
    norm: Any
    saturation: Any
    endings: Any
    steps_taken: Any
    device: Device
    quantities = "{self:#} runs, {final.shape[1]} weights, on {device.name}"

    def __len__(self) -> int:
        return len(self.endings)

    @property
    def status(self) -> Any:
        """The Status of each run, (batch,), on the host."""
        return np.array(ENDINGS, dtype=object)[to_host(self.endings)]

    def to_host(self, name: str) -> Any:
        """One of the arrays, by name, as one of NumPy."""
        return to_host(getattr(self, name))

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw how saturated the runs are over how far they went; of many runs, as many as can be told apart."""
        every = max(1, len(self) // _MAX_POINTS)
        ax.scatter(to_host(self.norm[::every]), to_host(self.saturation[::every]), s=9, alpha=0.6, color=LOCAL)
        more = f" (every {every}th run)" if every > 1 else ""
        ax.set(xlabel=f"norm of the last iterate{more}", ylabel="mean attention of selected tokens")

    def _preview(self, n_rows: int) -> tuple[int, dict[str, Any]]:
        return len(self), self._columns_of(slice(0, n_rows))

    def _columns(self) -> dict[str, Any]:
        return self._columns_of(slice(None))

    def _columns_of(self, part: slice) -> dict[str, Any]:
        norm, saturation, steps = (to_host(array[part]) for array in (self.norm, self.saturation, self.steps_taken))
        status = np.array(ENDINGS, dtype=object)[to_host(self.endings[part])]
        runs = np.arange(len(self))[part]
        return {"run": runs, "status": status, "norm": norm, "saturation": saturation, "steps": steps}


def descend_on_device(
    tokens: DeviceTokens, head: Any, code: int, rule: Rule, n_steps: int, start: Any, progress: ProgressCallback | None
) -> DeviceRun:
    """Take `n_steps` steps of every problem of `tokens`; nothing crosses the bus but what `start` and `head` bring.

    Args:
        head: (d_model,) or (batch, d_model). start: (d_key,) or (batch, d_key); zero by default. Both may be on the device already.
    """
    device, xp, kind = tokens.device, tokens.device.xp, step_kind(rule)
    assert kind is not None
    count, shape = len(tokens), Shape(tokens.n_inputs, tokens.n_tokens, tokens.d_key)
    kernel = DescentKernel(device, shape, code, kind, tokens.lengths is not None)
    report, pace = Progress(progress, count * n_steps), Pace(kernel)
    with device.active():
        begun = None if start is None else _start_on_device(xp, start, count, shape.width)
        final, selected = xp.empty((count, shape.width)), xp.empty((count, shape.n_inputs), dtype=np.int64)
        attention, ends = xp.empty(count), xp.zeros((count, 2), dtype=np.int64)
        scores = tokens.scores(head)
        steps, scratch = _steps(xp, rule, kernel, 0, n_steps), kernel.scratch()
        save = xp.array([n_steps], dtype=np.int64)
        carried_bytes = 8 * (kernel.state_width + shape.n_rows)
        for first, last in pace.slices(count, n_steps, carried_bytes):
            part, size = slice(first, last), last - first
            lengths = None if tokens.lengths is None else tokens.lengths[part]
            carried = Carried(xp.empty((size, kernel.state_width)), xp.empty((size, shape.n_rows)), ends[part])
            data = (tokens.K[part], scores[part], lengths, scratch)
            out = Outputs(final[part], selected[part], attention[part])
            begin = None if begun is None else begun[part]

            def advance(
                stop: int, data: Any = data, begin: Any = begin, carried: Any = carried, out: Any = out
            ) -> None:
                kernel(data, begin, steps, (stop, n_steps), save, carried, out)

            for units in pace.take(advance, size, 0, n_steps):
                report.advance(units)
        endings, taken = ends[:, 0].copy(), ends[:, 1].copy()
        return DeviceRun(final, selected, xp.linalg.norm(final, axis=1), attention, endings, taken, device)


def descend_device_tokens(
    tokens: DeviceTokens,
    head: Any,
    loss: Any,
    optimizer: Any,
    n_steps: int,
    start: Any,
    record: Any,
    progress: Any,
    *,
    on_cpu: Callable[..., Any],
) -> DeviceRun:
    """Descent on problems on a device; those with extreme keys are brought over, descended on by `on_cpu` and put back."""
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
    left = cpu_fallback_indices(run)
    if left.size:
        begun = None if start is None else np.broadcast_to(to_host(start), (len(tokens), tokens.d_key))[left]
        heads = np.broadcast_to(to_host(head), (len(tokens), tokens.d_model))[left]
        found = on_cpu(tokens[left].to_host(), heads, loss=loss, optimizer=rule, n_steps=n_steps, start=begun)
        scatter_to_device(run, left, found)
    return run


def cpu_fallback_indices(run: DeviceRun) -> IntArray:
    """Which problems the device has left, because their keys are extreme."""
    return np.flatnonzero(to_host(run.endings) == EXTREME_ENDING)


def scatter_to_device(run: DeviceRun, indices: IntArray, trajectory: Trajectory) -> None:
    """Write what the CPU found for the problems `indices` into the arrays of `run`."""
    ends = np.array([ENDINGS.index(status) for status in trajectory.status], dtype=np.int64)
    attention = trajectory.attention.max(axis=-1).mean(axis=-1)
    values = (trajectory.final, trajectory.selected, trajectory.norm, attention, ends, trajectory.steps_taken)
    targets = (run.final, run.selected, run.norm, run.saturation, run.endings, run.steps_taken)
    with run.device.active():
        for target, value in zip(targets, values, strict=True):
            target[indices] = run.device.xp.asarray(value)


def _start_on_device(xp: Any, start: Any, count: int, width: int) -> Any:
    given = xp.asarray(start, dtype=np.float64)
    if given.shape not in ((width,), (count, width)):
        raise reject("start", f"of shape ({width},) or ({count}, {width})", f"shape {given.shape}")
    if not bool(xp.isfinite(given).all()):
        raise reject("start", "finite numbers", "an entry that is not finite")
    return xp.ascontiguousarray(xp.broadcast_to(given, (count, width)))
