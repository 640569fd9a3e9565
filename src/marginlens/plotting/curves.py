"""Numbers behind curves: which steps to keep, distance from a direction on a logarithmic axis, intervals of proportions."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import beta

from marginlens.data.tokens import FloatArray
from marginlens.directions import angle


def steps_to_keep(n_steps: int, dense: int = 400) -> list[int]:
    """The steps at which a run is kept for a figure: the first `dense` of them, then forty for each factor of ten."""
    factor = max(n_steps / dense, 1.0)
    late = np.geomspace(min(dense, n_steps), n_steps, 2 + int(40 * np.log10(factor)))
    return sorted({*range(min(dense, n_steps) + 1), *(round(float(step)) for step in late)})


def misalignment(points: FloatArray, direction: FloatArray) -> FloatArray:
    """1 - cosine between points (…, d) and directions, from their angle, so that it is accurate on a logarithmic axis."""
    return np.asarray(2.0 * np.sin(0.5 * np.asarray(angle(points, direction))) ** 2)


def proportion_interval(successes: Any, trials: Any, confidence: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Clopper–Pearson interval of a proportion, elementwise: the exact one, also at 0 and at all."""
    k, n = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    tail = (1.0 - confidence) / 2.0
    low = np.where(k == 0, 0.0, beta.ppf(tail, np.maximum(k, 1e-12), n - k + 1.0))
    high = np.where(k == n, 1.0, beta.ppf(1.0 - tail, k + 1.0, np.maximum(n - k, 1e-12)))
    return low, high
