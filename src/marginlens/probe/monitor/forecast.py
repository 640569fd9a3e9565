"""Forecasts for every head of a model in training: the number of steps until it has selected, or until its logits have exploded.

W keeps its direction while its norm grows (A Thm 3, C Thm 2 for the papers' models). All logits of a head then grow like that
norm, and its entropy falls like e^(-margin · norm). The time until either reaches a limit follows from its present value and
its growth so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from marginlens.probe.monitor.measuring import SELECTED_NATS
from marginlens.probe.result import CheckpointCurves
from marginlens.typing import BoolArray, FloatArray
from marginlens.words import render

WINDOW_STEPS = 100  # of training, over which growth is fitted: at least,
MIN_POINTS = 3  # measurements in it, further back if they are rarer
EXPLODED_LOGIT = 1000.0  # the largest logit from which on a head counts as exploded: ten times what QK-clip allows
MAX_STEPS = 100_000.0  # a forecast beyond is none


class ForecastKind(Enum):
    """The event that is forecast; the value is the code of its text."""

    SELECTS = "forecast.selects"
    EXPLODES = "forecast.explodes"


@dataclass(frozen=True)
class HeadForecast:
    """A forecast for one head at its present growth; `str` of it is a sentence.

    Attributes:
        kind: the event.

        layer: the layer of the head.

        head: the head in its layer.

        name: the name of the head, such as L3H5.

        step: the step of the measurement behind the forecast.

        n_steps: the number of steps from there to the event.

        low: the number of steps if growth speeds up.

        high: the number of steps if growth slows down.
    """

    kind: ForecastKind
    layer: int
    head: int
    name: str
    step: int
    n_steps: float
    low: float
    high: float

    @property
    def code(self) -> str:
        """The code of its text."""
        return self.kind.value

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers in its text, with steps rounded to two digits."""
        limit = SELECTED_NATS if self.kind is ForecastKind.SELECTS else EXPLODED_LOGIT
        steps = {name: rounded(getattr(self, name)) for name in ("n_steps", "low", "high")}
        return {"head": self.name, "limit": limit, **steps, "case": "now" if steps["n_steps"] < 1.0 else "later"}

    def __str__(self) -> str:
        return render(self)


class Waiting(NamedTuple):
    """The remaining steps from each measurement, (n_measurements, n_layers, n_heads), with lower and upper ends; inf for never."""

    n_steps: FloatArray
    low: FloatArray
    high: FloatArray


def forecast_heads(curves: CheckpointCurves) -> tuple[HeadForecast, ...]:
    """Forecast from the last measurement of a run when its heads will have selected, or their logits exploded.

    Args:
        curves: the measurements of a run, from `read_run` or `AttentionMonitor.curves`.

    Returns:
        One forecast for each head and future event, the nearest first. Heads that do not grow have none.

    Examples:
        >>> import numpy as np
        >>> from marginlens.probe import CheckpointCurves, forecast_heads
        >>> steps = np.arange(0.0, 201.0, 10.0)
        >>> logits = np.maximum(0.01 * steps**2, 1e-9).reshape(-1, 1, 1)
        >>> measures = {"entropy": np.ones_like(logits), "max_logit": logits, "frobenius": logits}
        >>> names = tuple(f"step {step:.0f}" for step in steps)
        >>> print(*forecast_heads(CheckpointCurves("a model", names, steps, measures, n_inputs=8)))
        L0H0 reaches a largest logit of 1,000 in about 130 steps (100–180).
    """
    found = []
    for kind in ForecastKind:
        waiting = steps_until(curves, kind)
        is_ahead = np.isfinite(waiting.n_steps[-1]) & ~happened(curves, kind)[-1]
        for layer, head in zip(*(places.tolist() for places in np.nonzero(is_ahead)), strict=True):
            numbers = (float(values[-1, layer, head]) for values in waiting)
            found.append(
                HeadForecast(kind, layer, head, curves.head_name(layer, head), int(curves.steps[-1]), *numbers)
            )
    return tuple(sorted(found, key=lambda forecast: forecast.n_steps))


def happened(curves: CheckpointCurves, kind: ForecastKind) -> BoolArray:
    """Return whether the event has happened at each measurement, (n_measurements, n_layers, n_heads)."""
    with np.errstate(invalid="ignore"):
        if kind is ForecastKind.SELECTS:
            return np.asarray(curves["entropy"] <= SELECTED_NATS)
        return np.asarray(curves["max_logit"] >= EXPLODED_LOGIT)


def steps_until(curves: CheckpointCurves, kind: ForecastKind) -> Waiting:
    r"""Forecast the steps from each measurement until something happens to each head, only from it and earlier measurements.

    The largest logit m, at step t, must grow by the factor c to reach 1,000. If it grows like :math:`t^p`, as in the window
    before, this takes :math:`t (c^{1/p} - 1)` steps. Growth by a constant factor, or by a constant amount, at the same present
    speed takes :math:`t \log(c)/p` or :math:`t (c - 1)/p` steps; these give the range. The entropy must fall to 0.1 nats:
    exponentially for the forecast, as if margins grow by a constant amount, and in a straight line or like a power of t for the
    range.
    """
    t = curves.steps[:, None, None]
    with np.errstate(all="ignore"):
        if kind is ForecastKind.EXPLODES:
            left = EXPLODED_LOGIT / recent(curves["max_logit"])
            p = growth(curves)
            laws = [t * (left ** (1.0 / p) - 1.0), t * np.log(left) / p, t * (left - 1.0) / p]
        else:
            entropy = curves["entropy"]
            left = recent(entropy) / SELECTED_NATS
            by_log, rate, slope = (-_slope(curves.steps, x, y) for x, y in _entropy_laws(t, entropy))
            p = rate
            laws = [
                np.log(left) / rate,
                np.where(slope > 0.0, (left - 1.0) * SELECTED_NATS / slope, np.inf),
                np.where(by_log > 0.0, t * (left ** (1.0 / by_log) - 1.0), np.inf),
            ]
        n_steps, low, high = (np.where(left <= 1.0, 0.0, np.where(p > 0.0, law, np.inf)) for law in laws)
    n_steps = np.where(np.isnan(left) | (n_steps > MAX_STEPS), np.inf, n_steps)
    return Waiting(n_steps, np.minimum(low, n_steps), np.maximum(high, n_steps))


def _entropy_laws(t: FloatArray, entropy: FloatArray) -> tuple[tuple[FloatArray, FloatArray], ...]:
    """Return what is fitted over what: log H over log t, log H over t, and H over t."""
    steps = t + np.zeros_like(entropy)
    return (np.log(steps), np.log(entropy)), (steps, np.log(entropy)), (steps, entropy)


def recent(values: FloatArray) -> FloatArray:
    """Take the median over each measurement and the two before, since batches differ."""
    before = [np.concatenate([values[:1]] * k + [values])[: len(values)] for k in range(3)]
    return np.asarray(np.median(before, axis=0))


def growth(curves: CheckpointCurves) -> FloatArray:
    """Return the exponent p of growth like t^p before each measurement, (n_measurements, n_layers, n_heads); nan if these are too few.

    It is the smaller of the exponents of the Frobenius norm of W and of the largest logit: a norm that queries and keys are
    divided by does not change logits, and logits may vary with the inputs.
    """
    with np.errstate(all="ignore"):
        x = np.log(curves.steps)[:, None, None] + np.zeros_like(curves["max_logit"])
        slopes = [
            _slope(curves.steps, x, np.log(curves[name]))
            for name in ("frobenius", "max_logit")
            if name in curves.measures
        ]
    return np.asarray(np.fmin.reduce(slopes))


def _slope(steps: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Compute the slope of y over x by least squares in the window of each measurement, from sums up to it; nan if one is not finite."""
    last = np.arange(1, len(steps) + 1)  # measurements up to each
    first = np.minimum(np.searchsorted(steps, steps - WINDOW_STEPS), last - MIN_POINTS)
    first = np.maximum(first, int(np.searchsorted(steps, 0.0, side="right")))  # none of step 0
    is_lost = ~np.isfinite(x) | ~np.isfinite(y)
    x, y = np.where(is_lost, 0.0, x), np.where(is_lost, 0.0, y)

    def total(terms: FloatArray) -> FloatArray:
        upto = np.concatenate([np.zeros((1, *terms.shape[1:])), np.cumsum(terms, axis=0)])
        return np.asarray(upto[last] - upto[np.minimum(first, last)])

    n = (last - first)[:, None, None]
    with np.errstate(all="ignore"):
        slope = (n * total(x * y) - total(x) * total(y)) / (n * total(x * x) - total(x) ** 2)
    return np.where((n >= MIN_POINTS) & (total(is_lost.astype(float)) == 0.0), slope, np.nan)


def rounded(n_steps: float) -> float:
    """Round a number of steps to two digits."""
    return float(f"{n_steps:.1e}") if np.isfinite(n_steps) else n_steps
