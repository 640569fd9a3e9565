"""Descent one NumPy step at a time: for losses and heads that the compiled loop does not know; exact, slower, same results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from marginlens.directions import length
from marginlens.dynamics.kernels.attention_descent import NON_FINITE, RAN_ALL, STATIONARY
from marginlens.dynamics.steps import NormalizedStep, StepRule
from marginlens.risk.attention_gradient import ScaledVector
from marginlens.threads import ProgressCallback

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


def descend_stepwise(
    gradient: Callable[[FloatArray], ScaledVector],
    begun: tuple[FloatArray, IntArray],
    step: StepRule,
    span: tuple[int, int],
    save: IntArray,
    progress: ProgressCallback | None = None,
) -> tuple[FloatArray, IntArray, IntArray]:
    """Descend a batch with any gradient.

    Args:
        gradient: maps iterates (batch, d) to their gradients.
        begun: the iterates (batch, d), and how each run has ended so far and after how many steps, (batch, 2).
        span: (first, last) numbers of the steps to take. save: the steps to keep, increasing.
        progress: called as `progress(done, total)` at every step, in steps of all problems together.
    Returns:
        Iterates (batch, n_saved, d), and the reason for stopping and the number of steps taken, each (batch,).
    """
    (first, last), iterate = span, begun[0].copy()
    reason, taken = begun[1][:, 0].copy(), begun[1][:, 1].copy()
    running = reason == RAN_ALL
    kept = np.empty((len(iterate), len(save), iterate.shape[-1]))
    for k in range(first, last + 1):
        kept[:, np.flatnonzero(save == k)] = iterate[:, None]
        if progress is not None and k > first:
            progress((k - first) * len(iterate), (last - first) * len(iterate))
        if k == last or not running.any():
            kept[:, save > k] = iterate[:, None]
            break
        with np.errstate(over="ignore", invalid="ignore"):
            slope = gradient(iterate)
            size = length(slope.vector)
            if isinstance(step, NormalizedStep):
                stuck = running & (size == 0.0)
                reason[stuck], running = STATIONARY, running & ~stuck
                move = step.size / np.where(size == 0.0, 1.0, size)
            else:
                move = step.size * np.exp(slope.log_scale)
            following = iterate - move[:, None] * slope.vector
        broken = running & ~np.isfinite(following).all(axis=-1)
        reason[broken], running = NON_FINITE, running & ~broken
        iterate = np.where(running[:, None], following, iterate)
        taken += running
    return kept, reason, taken
