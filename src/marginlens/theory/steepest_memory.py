"""What momentum costs in X Theorem 4, and what it remembers of a run: the section "With memory" of docs/proofs/any_norm.md."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.typing import FloatArray

FORGOTTEN = 1e-12  # weight of gradients that are left out of a running sum


class Memory(NamedTuple):
    """A running sum of gradients before a step.

    Attributes:
        total: (d_key,) the sum of -∇L, each step back weighted by another factor β.
        weights: (n_leading,) the same sum of the terms of the potential, so that `total` is about Σ weights · a_r.
    """

    total: FloatArray
    weights: FloatArray


def no_memory(n_entries: int, n_leading: int) -> Memory:
    """Return the memory before the first step."""
    return Memory(np.zeros(n_entries), np.zeros(n_leading))


def n_remembered(momentum: float, taken: int) -> int:
    """Return how many of the steps taken a running sum remembers."""
    return min(taken, int(np.ceil(np.log(FORGOTTEN) / np.log(momentum)))) if momentum > 0.0 else 0


def memory_of(risk: Any, points: FloatArray, momentum: float, a: FloatArray, log_limit: FloatArray) -> Memory:
    """Compute the running sum of gradients at the last points of a run.

    Args:
        risk: what is trained.

        points: (n_points, *shape) the points before each of the last steps, the latest one last.

        momentum: β.

        a: (n_leading, d_key) the leading rows.

        log_limit: (n_leading,) log C_r^∞.
    """
    ages = np.asarray(momentum ** np.arange(len(points))[::-1], dtype=np.float64)
    gradients = np.array([risk.gradient(x).value().ravel() for x in points])
    terms = np.exp(log_limit - points.reshape(len(points), -1) @ a.T)
    return Memory(-ages @ gradients, ages @ terms)


class Remembered(NamedTuple):
    """What the core needs of the memory before p_0.

    Attributes:
        size: S.
        error: ‖e‖_* of what the weights do not say; infinite for a memory without weights.
        distance: d_0, from the mean of the weights to the potential's at the point.
    """

    size: float
    error: float
    distance: float


def remembered(memory: Memory | None, a: FloatArray, shares: FloatArray, dual: Any) -> Remembered:
    """Measure a memory.

    Args:
        memory: the memory, None for none.

        a: (n_leading, d_key).

        shares: (n_leading,) w_r at the point.

        dual: the dual norm of a vector (d_key,).
    """
    size = 0.0 if memory is None else float(memory.weights.sum())
    if memory is None or size == 0.0:
        return Remembered(0.0, np.inf if memory is not None and memory.total.any() else 0.0, 0.0)
    mean = memory.weights @ a / size
    return Remembered(size, dual(memory.total / size - mean), dual(mean - shares @ a))
