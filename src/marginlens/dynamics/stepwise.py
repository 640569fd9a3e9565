"""Descent one NumPy step at a time: for every risk and every optimizer, slower than the compiled loops and with the same results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from marginlens.dynamics.kernels import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.errors import InputError
from marginlens.optimizers import Optimizer
from marginlens.risk.log_scaled import LogScaled
from marginlens.risk.protocol import Risk
from marginlens.runtime.progress import ProgressCallback

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


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
        """The gradients at all iterates (batch, *shape)."""
        if getattr(self.risk, "is_batch", False):
            return self.risk.gradient(x)
        one = self.risk.gradient(x[0])
        return LogScaled(one.array[None], np.asarray(one.log_scale)[None], one.axes, one.blocks)

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
