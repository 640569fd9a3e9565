"""Descent one NumPy step at a time: for losses and heads that the compiled loop does not know; exact, slower, same results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from marginlens.directions import length
from marginlens.dynamics.fused import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.dynamics.gradient import ScaledVector
from marginlens.dynamics.steps import NormalizedStep, StepRule

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def descend_stepwise(
    gradient: Callable[[FloatArray], ScaledVector], start: FloatArray, step: StepRule, n_steps: int, save: IntArray
) -> tuple[FloatArray, IntArray, IntArray]:
    """Descend a batch with any gradient.

    Args:
        gradient: maps iterates (batch, d) to their gradients.
        start: (batch, d). save: the steps to keep, increasing.
    Returns:
        Iterates (batch, n_saved, d), and the reason for stopping and the number of steps taken, each (batch,).
    """
    here = start.copy()
    reason = np.full(len(start), RAN_ALL, dtype=np.int64)
    taken = np.zeros(len(start), dtype=np.int64)
    running = np.ones(len(start), dtype=bool)
    kept = np.empty((len(start), len(save), start.shape[-1]))
    for k in range(n_steps + 1):
        kept[:, np.flatnonzero(save == k)] = here[:, None]
        if k == n_steps or not running.any():
            kept[:, save > k] = here[:, None]
            break
        with np.errstate(over="ignore", invalid="ignore"):
            slope = gradient(here)
            size = length(slope.vector)
            if isinstance(step, NormalizedStep):
                stuck = running & (size == 0.0)
                reason[stuck], running = STATIONARY, running & ~stuck
                move = step.size / np.where(size == 0.0, 1.0, size)
            else:
                move = step.size * np.exp(slope.log_scale)
            there = here - move[:, None] * slope.vector
        broken = running & ~np.isfinite(there).all(axis=-1)
        reason[broken], running = NON_FINITE, running & ~broken
        here = np.where(running[:, None], there, here)
        taken += running
    return kept, reason, taken
