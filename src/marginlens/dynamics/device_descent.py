"""Descent on a GPU: the loop that `descend` takes for `device="cuda"`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.compiled_loops import distinct_problems, problem_arrays
from marginlens.dynamics.mini_batches import MiniBatches
from marginlens.errors import InputError
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
    Problems,
    Shape,
    Steps,
)
from marginlens.gpu.device import Device
from marginlens.losses.margin import Loss, compiled_code
from marginlens.norms.entrywise import EUCLIDEAN, LARGEST_ENTRY, POWER, SIGN
from marginlens.optimizers import Optimizer
from marginlens.optimizers.compiled import GRADIENT, STEEPEST, Rule, compiled_rule
from marginlens.optimizers.schedules import sizes_of
from marginlens.risk.attention import SoftmaxRisk
from marginlens.risk.protocol import Risk
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.typing import FloatArray, IntArray

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
    """Return the kind of steps of the kernel that an optimizer's rule needs, None if the kernel has none."""
    if rule is None or rule.kind not in (GRADIENT, STEEPEST) or rule.momentum > 0.0 or rule.settings["decay"] > 0.0:
        return None
    return GRADIENT_STEP if rule.kind == GRADIENT else _STEP_OF_NORM.get(rule.norm_code)


def not_served(device: Device, what: str) -> InputError:
    """Make the error for a descent that the GPU does not support."""
    return InputError("device", f"'cpu' for {what}", repr(device.name), f"On a GPU, descend serves {SERVED}.")


def device_kernel(
    device: Device,
    shape: Shape,
    loss: Loss,
    optimizer: Optimizer,
    *,
    is_ragged: bool = False,
    has_offsets: bool = False,
) -> tuple[DescentKernel, Rule]:
    """Return the kernel for problems of this shape and the rule of its steps; raise for a loss or an optimizer that it does not support."""
    code, rule = compiled_code(loss), compiled_rule(optimizer, (shape.width,))
    if code < 0:
        raise not_served(device, f"the loss {loss!r}")
    kind = step_kind(rule)
    if rule is None or kind is None:
        raise not_served(device, repr(optimizer))
    return DescentKernel(device, shape, code, kind, is_ragged, has_offsets), rule


def steps_of(rule: Rule, begin: int, end: int) -> Steps:
    """Return the rule's steps from `begin` to `end` as the kernel takes them."""
    power = float(rule.settings["power"])
    if callable(rule.size):
        return Steps(0.0, sizes_of(rule.size, begin, end), begin, power)
    return Steps(float(rule.size), None, begin, power)


@dataclass
class DeviceState:
    """The state of a batch of descents in NumPy arrays: all that the next step depends on.

    Attributes:
        start: (batch, d_key).

        states: (batch, 1 + n_rows) coefficients over the keys, or (batch, 1 + d_key) p, and the weights' shift.

        logits: (batch, n_rows).

        ends: (batch, 2) how each run ended and after how many steps.

        left: the problems that run on the CPU, after the first steps.
    """

    start: FloatArray
    states: FloatArray
    logits: FloatArray
    ends: IntArray
    left: LeftToCpu | None = None

    def copy(self) -> DeviceState:
        """Copy the arrays."""
        left = None if self.left is None else LeftToCpu(self.left.places, self.left.loop, self.left.state.copy())
        return DeviceState(self.start, self.states.copy(), self.logits.copy(), self.ends.copy(), left)


class LeftToCpu(NamedTuple):
    """Problems of a batch whose keys are extreme, the CPU loop that takes their steps, and its state."""

    places: IntArray
    loop: Any
    state: Any


@dataclass(frozen=True, eq=False)
class DeviceLoop:
    """Descent on p by the kernel of a device, for a linear head and a loss with a code.

    Attributes:
        kernel: the kernel for problems of this shape.

        rule: the optimizer's rule.

        batch: the problems.

        head: (d_model,) or (batch, d_model).

        on_cpu: returns the CPU loop for the problems at some places of the batch.
    """

    kernel: DescentKernel
    rule: Rule
    batch: TokenDataset
    head: Any
    on_cpu: Callable[[IntArray], Any]

    def begin(self, start: FloatArray) -> DeviceState:
        """Return the state before the first step, and fill it."""
        count = len(self.batch)
        states, logits = np.empty((count, self.kernel.state_width)), np.empty((count, self.kernel.shape.n_rows))
        return DeviceState(np.ascontiguousarray(start), states, logits, np.zeros((count, 2), dtype=np.int64))

    def advance(
        self, state: DeviceState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; p after the steps `save`, (batch, n_saved, d_key)."""
        keys, scores, lengths = problem_arrays(self.batch, self.head).values()
        offsets = np.ascontiguousarray(distinct_problems(self.batch, self.head).offsets)
        needed = (lengths if self.kernel.ragged else None, offsets if self.kernel.offsets else None)
        problems = Problems(keys, scores, *needed)
        points = np.empty((len(self.batch), len(save), self.batch.d_key))
        report = Progress(progress, len(self.batch) * (span[1] - span[0]))
        if state.left is not None:
            state.ends[state.left.places] = 0  # as the device has left them
        carried, steps = Carried(state.states, state.logits, state.ends), steps_of(self.rule, *span)
        self.kernel.run(problems, state.start, steps, span, carried, Outputs(save, points), report)
        left = np.flatnonzero(state.ends[:, 0] == EXTREME_ENDING)
        if left.size:
            if state.left is None:
                loop = self.on_cpu(left)
                state.left = LeftToCpu(left, loop, loop.begin(state.start[left]))
            points[left] = state.left.loop.advance(state.left.state, span, save, None)
            state.ends[left] = state.left.state.ends
        return points


def device_loop(
    device: Device, risk: Risk, optimizer: Optimizer, batches: MiniBatches | None, on_cpu: Callable[[IntArray], Any]
) -> DeviceLoop:
    """Make the loop that takes the steps on a device.

    Args:
        device: the device.

        risk: the risk to descend on.

        optimizer: the optimizer that gives the steps.

        batches: must be None; mini-batches are refused.

        on_cpu: a function that returns the CPU loop for problems of the batch, given by their indices; it handles problems with
            extreme keys.
    """
    if batches is not None:
        raise InputError("device", "'cpu' for mini-batches", repr(device.name))
    if not isinstance(risk, SoftmaxRisk):
        raise not_served(device, f"a {type(risk).__name__}")
    if not risk.is_linear:
        raise not_served(device, "a nonlinear head")
    batch = risk.data.as_batch()
    shape = Shape(batch.n_inputs, batch.n_tokens, batch.d_key)
    form = {"is_ragged": not bool(batch.mask.all()), "has_offsets": batch.has_offsets}
    kernel, rule = device_kernel(device, shape, risk.loss, optimizer, **form)
    return DeviceLoop(kernel, rule, batch, risk.head, on_cpu)
