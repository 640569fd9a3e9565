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


def lost_to_memory(momentum: float, length: float, longest: float, widest: float) -> float:
    """Bound J of Eq. (17) for steps of a length; infinite if b = β e^(hD) is not below 1."""
    b = forgetting(momentum, length, longest)
    return float(b / (1.0 - b) * length * widest**2 / 4.0) if b < 1.0 else np.inf


def forgetting(momentum: float, length: float, longest: float) -> float:
    """Return b = β e^(hD)."""
    return float(np.exp(min(np.log(momentum) + length * longest, 700.0))) if momentum > 0.0 else 0.0


class Remembered(NamedTuple):
    """What the memory before p_0 costs.

    Attributes:
        error: κ.
        distance: q d_0.
        is_short: whether its size is what steps of this length can leave.
    """

    error: float
    distance: float
    is_short: bool


class Ball(NamedTuple):
    """The potential around a point.

    Attributes:
        shares: (n_leading,) w_r at the point.
        least: a lower bound on F in the ball.
        radius: ρ.
    """

    shares: FloatArray
    least: float
    radius: float


def remembered(
    memory: Memory, a: FloatArray, ball: Ball, momentum: float, length: float, sizes: tuple[float, float], dual: Any
) -> Remembered:
    """Compute what a memory costs.

    Args:
        memory: the memory.

        a: (n_leading, d_key).

        ball: the potential around the point.

        momentum: β.

        length: h.

        sizes: D and D₂.

        dual: the dual norm of a vector (d_key,).
    """
    size, (longest, widest) = float(memory.weights.sum()), sizes
    if size == 0.0:
        return Remembered(0.0, 0.0, not memory.total.any())
    mean = memory.weights @ a / size
    sigma, b = size / ball.least, forgetting(momentum, length, longest)
    away = dual(mean - ball.shares @ a) + widest * np.tanh(widest * ball.radius / 4.0)
    share = momentum * sigma / (1.0 + momentum * sigma)
    error = dual(memory.total / size - mean) + ball.radius * longest
    return Remembered(error, share * away, bool(b < 1.0 and momentum * sigma * (1.0 - b) <= b))
