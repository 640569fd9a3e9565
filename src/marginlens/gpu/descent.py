"""Descent on attention weights on a device: the form of the kernel for a shape, and its calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError
from marginlens.gpu.device import Device, Kernel, Layout, parts, to_host
from marginlens.runtime.progress import Progress

# Kinds of steps, as descent.cu numbers them.
GRADIENT_STEP, NORMALIZED_STEP, SIGN_STEP, COORDINATE_STEP, POWER_STEP = range(5)
# The state is either coefficients over the rows, or p itself.
GRAM_FORM, KEYS_FORM = range(2)
# Where the Gram matrix or the keys are kept.
IN_REGISTERS, IN_SHARED, IN_GLOBAL = range(3)
# One more than the endings of the compiled loops: the keys are so large or small that the CPU takes the
# problem.
EXTREME_ENDING = 4
MAX_DEVICE_STEPS = 2**31 - 1
LANES = 32
# The registers of a thread leave space for so many blocks. More would spill them, fewer would hide less
# latency.
RESIDENT_BLOCKS = 4
# Coordinates of the keys that are centred at a time.
TILE = 8
# How long one call of the kernel is meant to take, as Ctrl-C waits for it.
SLICE_SECONDS = 0.2
# Products of two tokens that 32 resident warps form in a second, which the first slice assumes.
FIRST_RATE = 2e10
# The factor by which the rate that sizes slices may grow or shrink at a time.
MAX_CHANGE = 4.0
# Warps that should fit with what they put in shared memory; if fewer do, it goes to global memory.
WARPS_PER_SM = 6


class Shape(NamedTuple):
    """The shape of problems for one compiled kernel."""

    n_inputs: int
    n_tokens: int
    width: int

    @property
    def n_rows(self) -> int:
        """The number of tokens of all inputs."""
        return self.n_inputs * self.n_tokens

    @property
    def places(self) -> int:
        """The number of tokens of all lanes: each input has a group of lanes, a power of two, and each lane has as many tokens
        as needed.
        """
        group = 1
        while 2 * group * self.n_inputs <= LANES and group < self.n_tokens:
            group *= 2
        input_slots = -(-self.n_inputs // (LANES // group))
        return LANES * input_slots * -(-self.n_tokens // group)


class Steps(NamedTuple):
    """The sizes of steps: one size, or the sizes of steps `first`, first + 1, …, and the p of ℓp steps."""

    size: float
    sizes: Any = None
    first: int = 0
    power: float = 2.0


class Problems(NamedTuple):
    """The problems of a run: one for each start, or one for all starts.

    Attributes:
        keys: (n_problems, n_inputs, n_tokens, width) the keys.

        scores: (n_problems, n_inputs, n_tokens) the scores.

        lengths: (n_problems, n_inputs) the lengths of inputs, or None if none is shorter.

        offsets: (n_problems, n_inputs, n_tokens) what is added to the logits, or None.
    """

    keys: Any
    scores: Any
    lengths: Any = None
    offsets: Any = None


class Carried(NamedTuple):
    """Arrays that one call passes to the next: states (batch, n_state), logits (batch, n_rows), ends (batch, 2)."""

    states: Any
    logits: Any
    ends: Any


class Outputs(NamedTuple):
    """The results of a run.

    Attributes:
        save: (n_saved,) the steps after which points are saved.

        points: (batch, n_saved, width) the saved points.

        selected: (batch, n_inputs) the token with the largest attention in each input at the end, or None.

        attention: (batch,) the mean attention on these tokens, or None.
    """

    save: Any
    points: Any
    selected: Any = None
    attention: Any = None


@dataclass(frozen=True)
class DescentKernel:
    """The compiled descent for problems of one shape.

    Attributes:
        loss_code: the code of the loss.

        step_kind: GRADIENT_STEP … POWER_STEP.

        ragged: whether inputs have different lengths.

        offsets: whether logits have offsets.
    """

    device: Device
    shape: Shape
    loss_code: int
    step_kind: int
    ragged: bool
    offsets: bool = False

    @property
    def form(self) -> int:
        """The form of the kernel: GRAM_FORM if tokens fit in the lanes or are fewer than twice the width; KEYS_FORM otherwise,
        and for steps in other norms.
        """
        shape = self.shape
        if self.step_kind > NORMALIZED_STEP:
            return KEYS_FORM
        return GRAM_FORM if shape.places == LANES or 2 * shape.width > shape.n_rows else KEYS_FORM

    @property
    def state_width(self) -> int:
        """The number of values in the state of a problem: coefficients over the keys or p, and the shift of its weights."""
        return 1 + (self.shape.n_rows if self.form == GRAM_FORM else self.shape.width)

    @cached_property
    def place(self) -> int:
        """The memory that holds the Gram matrix or the keys."""
        if self.form == GRAM_FORM and self.shape.places == LANES:
            return IN_REGISTERS
        in_shared = 8 * self._shared_doubles(IN_SHARED)
        return IN_SHARED if WARPS_PER_SM * in_shared <= self.device.shared_bytes() else IN_GLOBAL

    def _shared_doubles(self, place: int) -> int:
        even_rows = self.shape.n_rows + self.shape.n_rows % 2
        shared = even_rows * (1 + TILE)
        if self.form == KEYS_FORM:
            shared += self.shape.width + self.shape.width % 2
            matrix = self.shape.n_rows * (self.shape.width | 1)
            matrix += matrix % 2
        else:
            matrix = self.shape.n_rows * self.shape.places
        return shared + (matrix if place == IN_SHARED else 0)

    @property
    def scratch_doubles(self) -> int:
        """The doubles of global memory that each warp has."""
        shape = self.shape
        rows = shape.n_rows * shape.width
        if self.place != IN_GLOBAL:
            return rows
        return rows + shape.places * (shape.n_rows if self.form == GRAM_FORM else shape.width)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel, compiled for this shape."""
        shared = self._shared_doubles(self.place)
        warps = max(1, min(4, self.device.shared_bytes() // (8 * shared)))
        constants = {
            "N_INPUTS": self.shape.n_inputs,
            "N_TOKENS": self.shape.n_tokens,
            "LOSS": self.loss_code,
            "STEP": self.step_kind,
            "FORM": self.form,
            "PLACE": self.place,
            "RAGGED": self.ragged,
            "OFFSETS": self.offsets,
        }
        if self.form == KEYS_FORM:
            constants["KEYS_WIDTH"] = self.shape.width
        if self.place == IN_REGISTERS:
            constants["BLOCKS_PER_SM"] = RESIDENT_BLOCKS
        return self.device.kernel("descent.cu", "descend_problems", constants, Layout(warps, shared))

    def bytes_per_problem(self, n_saved: int) -> int:
        """Return the bytes of the arrays that a problem has on the device: keys, scores, lengths, start, state, logits,
        endings, saved points, and offsets whether there are any or not.
        """
        shape = self.shape
        return 8 * (
            shape.n_rows * (shape.width + 3) + shape.n_inputs * 2 + self.state_width + shape.width * (1 + n_saved) + 4
        )

    @property
    def fixed_bytes(self) -> int:
        """The bytes of the memory that belongs to warps."""
        return 8 * self.kernel.n_warps * self.scratch_doubles

    def run(
        self,
        problems: Problems,
        start: Any,
        steps: Steps,
        span: tuple[int, int],
        carried: Carried,
        out: Outputs,
        progress: Progress,
    ) -> None:
        """Take the steps `span[0]` … `span[1] - 1` of all problems, with as many problems at a time as fit in memory.

        Args:
            problems: the problems.

            start: (batch, width), or None for zero.

            steps: the sizes of steps, on the host.

            span: the first step, and the one after the last.

            carried: the states of the problems; changed in place.

            out: the results, which are filled.

            progress: a counter in steps of problems.

        All other arrays may be NumPy arrays or arrays on the device; NumPy arrays are copied to it.
        """
        begin, end = span
        if end > MAX_DEVICE_STEPS:
            raise InputError("n_steps", f"at most {MAX_DEVICE_STEPS} on a GPU", end)
        xp, pace, count = self.device.xp, Pace(self), len(carried.ends)
        with self.device.active():
            steps = steps._replace(sizes=None if steps.sizes is None else xp.asarray(steps.sizes))
            save = xp.asarray(out.save, dtype=np.int64)
            scratch = xp.empty(self.kernel.n_warps * self.scratch_doubles)
            for first, last in pace.slices(count, end - begin, self.bytes_per_problem(len(save))):
                part = slice(first, last)
                data = part if len(problems.keys) == count else slice(0, 1)
                copies = _Copies(xp)
                given = Problems(*(copies.read(array, data) for array in problems))
                at = copies.read(start, part)
                states = Carried(*(copies.changed(array, part) for array in carried))
                filled = Outputs(save, *(copies.filled(array, part) for array in out[1:]))

                def advance(
                    stop: int, given: Problems = given, at: Any = at, states: Carried = states, out: Outputs = filled
                ) -> None:
                    self._call((stop, end), given, at, steps, states, out, scratch)

                for units in pace.take(advance, last - first, begin, end):
                    progress.advance(units)
                copies.bring_back()

    def _call(
        self,
        span: tuple[int, int],
        problems: Problems,
        start: Any,
        steps: Steps,
        carried: Carried,
        out: Outputs,
        scratch: Any,
    ) -> None:
        """Call the kernel for the steps up to `span[0]` of a run that ends at step `span[1]`; all arrays are on the device."""
        self.kernel(
            len(carried.ends),
            len(problems.keys),
            *problems,
            start,
            self.shape.width,
            steps.sizes,
            float(steps.size),
            float(steps.power),
            steps.first,
            *span,
            out.save,
            len(out.save),
            *carried,
            *out[1:],
            scratch,
            self.scratch_doubles,
        )


class _Copies:
    """Parts of arrays on a device: views of device arrays, and copies of NumPy arrays, which are copied back if they were written to."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.written: list[tuple[Any, Any]] = []

    def read(self, array: Any, part: slice) -> Any:
        """Make a part that is only read."""
        return None if array is None else self.xp.asarray(array[part])

    def changed(self, array: Any, part: slice) -> Any:
        """Make a part that is read and written."""
        return self._noted(array[part], self.xp.asarray(array[part]))

    def filled(self, array: Any, part: slice) -> Any:
        """Make a part that is only written."""
        if array is None or isinstance(array, self.xp.ndarray):
            return self.read(array, part)
        return self._noted(array[part], self.xp.empty(array[part].shape, dtype=array.dtype))

    def _noted(self, target: Any, copy: Any) -> Any:
        if not isinstance(target, self.xp.ndarray):
            self.written.append((target, copy))
        return copy

    def bring_back(self) -> None:
        """Copy what was written into the arrays of NumPy."""
        for target, copy in self.written:
            target[...] = to_host(copy)


@dataclass
class Pace:
    """The number of problems and steps in one call of the kernel, from the time that earlier calls took."""

    kernel: DescentKernel
    # Steps of problems a second.
    rate: float = field(default=0.0)

    def __post_init__(self) -> None:
        shape = self.kernel.shape
        cost = shape.n_rows * (min(shape.n_rows, 2 * shape.width) + LANES)
        self.rate = FIRST_RATE * self.kernel.kernel.n_warps / LANES / cost

    def slices(self, n_problems: int, n_steps: int, bytes_per_problem: int) -> Iterator[tuple[int, int]]:
        """Yield ranges (first, last) of problems that fit in memory and take about SLICE_SECONDS, with enough problems to keep
        the device busy.
        """
        for begin, end in parts(self.kernel.device, n_problems, bytes_per_problem, self.kernel.fixed_bytes):
            first = begin
            while first < end:
                warps = self.kernel.kernel.n_warps
                size = warps * max(4, int(self.rate * SLICE_SECONDS / max(n_steps, 1)) // warps)
                last = end if end - first < 2 * size else first + size
                yield first, last
                first = last

    def take(self, advance: Callable[[int], None], n_problems: int, begin: int, end: int) -> Iterator[int]:
        """Call `advance(stop)` with increasing steps to stop before, up to `end`, and yield how many steps of problems each call took."""
        step = begin
        while True:
            stop = min(end, step + max(1, int(self.rate * SLICE_SECONDS / n_problems)))
            stop = end if end - stop < stop - step else stop
            clock = time.perf_counter()
            advance(stop)
            self.kernel.device.synchronize()
            units = n_problems * (stop - step)
            measured = units / max(time.perf_counter() - clock, 1e-9)
            self.rate = min(max(measured, self.rate / MAX_CHANGE), self.rate * MAX_CHANGE)
            yield units
            step = stop
            if step == end:
                return
