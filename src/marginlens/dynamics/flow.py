"""Gradient flow on p by arc length: adaptive and implicit, so that it is right where steps of a fixed length oscillate in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.tokens import FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.directions import length
from marginlens.dynamics.descend import trajectory_of
from marginlens.dynamics.flow_field import SteepestDescent
from marginlens.dynamics.kernels.endings import RAN_ALL, STATIONARY, TIED
from marginlens.dynamics.record import Record, check_record, steps_to_save
from marginlens.dynamics.trajectory import Trajectory
from marginlens.errors import array_of_any, positive_number, reject
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.papers import implements
from marginlens.risk.attention import AttentionRisk

_OVERSHOOT = 1e-9  # by how much of it a flow may end beyond the norm that was asked for
_AT = 1e-12  # relative distance at which an arc length counts as reached
_SHORT = 1e-5  # steps below this, over the longest key where that exceeds 1, ask whether a minimum is that near, where the flow ends
_COARSEST = 1e-2  # larger tolerances are no longer a flow
TIED_LOGITS = (
    10.0  # where the pulls on tied tokens balance to nine digits, logits this close belong to ties: half of log(1e9)
)


@dataclass(frozen=True)
class UntilLength:
    """Follow a flow for this arc length, which bounds how far p moves: one unit is what a normalised step of size 1 moves."""

    length: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", positive_number(self.length, "length"))


@dataclass(frozen=True)
class UntilNorm:
    """Follow a flow until ‖p‖ has this value; a start of at least that norm is where it ends."""

    norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", positive_number(self.norm, "norm"))


@implements("B", "Eq. (7)")
def gradient_flow(
    data: TokenDataset,
    v: Any,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    until: UntilLength | UntilNorm = UntilNorm(500.0),  # noqa: B008
    start: Any = None,
    record: Record | None = None,
    tolerance: float = 1e-7,
) -> Trajectory:
    r"""Follow the gradient flow of the risk, by arc length instead of time, which grows exponentially in the norm.

    .. math:: \frac{dp}{ds} = -\frac{\nabla L(p)}{\|\nabla L(p)\|}, \quad
        \text{the curve of}\ \frac{dp}{dt} = -\nabla L(p) \ \text{with}\ ds = \|\nabla L(p)\|\, dt

    An implicit Runge-Kutta method of order 5 (Radau IIA) with the exact curvature takes the steps, in the span of the keys. Large
    embeddings, such as B's after a first step with η₀ = 4n²T², cost more steps but do not make it stall.

    Args:
        data: one problem or a batch of independent ones. v, loss, start: as `descend` takes them.
        until: `UntilNorm(norm)` or `UntilLength(length)`, where to stop.
        record: what to keep; its `steps` are arc lengths, in whole units, at which the flow is stopped by.
        tolerance: local error of one step of the integrator, in p relative to its entries or, where these are smaller, to 1; where
            keys less their input's mean are longer than 1, to 1 over the longest.
    Returns:
        A `Trajectory` whose `steps_taken` counts the integrator's steps and whose `saved.steps` are arc lengths. It is `STATIONARY` where
        the flow ends at a zero of the gradient, and `TIED` where the pulls on tokens that tie balance to nine digits while all other
        tokens are far behind: the flow goes on, but double precision does not tell where. Check it by halving the tolerance, or with
        `descend` at small steps.
    """
    loss, limits = as_loss(loss), _limits(until)
    accuracy = positive_number(tolerance, "tolerance")
    if accuracy > _COARSEST:
        raise reject("tolerance", f"at most {_COARSEST:g}", accuracy)
    stops = _Stops(record, limits[0])
    risk = AttentionRisk(as_dataset(data), v, loss)
    check_record(record, risk)
    batch, first = data.as_batch(), risk.start(start)
    heads = [v] * len(batch) if callable(v) else list(batch.head(v))
    with threadpool_limits(1, "blas"):  # matrices this small only wait for each other's threads
        curves = [
            _follow(SteepestDescent(batch[j], heads[j], loss), first[j], limits, stops, accuracy)
            for j in range(len(batch))
        ]
    steps = stops.reached(max(len(curve.kept) for curve in curves))
    points = np.stack([curve.at(len(steps)) for curve in curves])
    reason, taken = (np.array(one) for one in zip(*((c.reason, c.taken) for c in curves), strict=True))
    return trajectory_of(risk, points, (reason, taken), steps, record)


def _limits(until: Any) -> tuple[float, float]:
    """The arc length and the norm at which to stop, one of them infinite."""
    if isinstance(until, UntilLength):
        return until.length, np.inf
    if isinstance(until, UntilNorm):
        return np.inf, until.norm
    raise reject("until", "ml.UntilNorm(norm) or ml.UntilLength(length)", repr(until))


class _Stops:
    """The arc lengths at which the iterate is kept: listed beforehand, or every so often for as long as the flow lasts."""

    def __init__(self, record: Any, longest: float) -> None:
        self.every = 0
        self.listed: IntArray = np.empty(0, dtype=np.int64)
        if isinstance(record, Record) and not np.isfinite(longest):
            if isinstance(record.steps, int | np.integer):
                steps_to_save(record, 1)  # refuses what cannot be kept
                self.every = int(record.steps)
                return
            chosen = array_of_any(record.steps, "steps", "increasing whole numbers")
            longest = float(np.max(chosen, initial=0)) if chosen.dtype.kind in "iu" else 0.0
        self.listed = steps_to_save(record, int(longest) if np.isfinite(longest) else 0)

    def __getitem__(self, k: int) -> float:
        """The k-th arc length, infinite when there is none."""
        if self.every:
            return float(self.every * k)
        return float(self.listed[k]) if k < len(self.listed) else np.inf

    def reached(self, n_kept: int) -> IntArray:
        """All of them, given that the longest flow came past `n_kept`."""
        return self.every * np.arange(n_kept) if self.every else self.listed


@dataclass(frozen=True)
class _Curve:
    """One flow: the iterates kept, the last one, how it ended and after how many steps."""

    kept: list[FloatArray]
    last: FloatArray
    reason: int
    taken: int

    def at(self, n_kept: int) -> FloatArray:
        """(n_kept + 1, d_key) the iterates at the stops, the last one where it did not come so far, and once more at the end."""
        return np.stack([*self.kept, *[self.last] * (n_kept + 1 - len(self.kept))])


def _follow(
    field: SteepestDescent, start: FloatArray, limits: tuple[float, float], stops: _Stops, tolerance: float
) -> _Curve:
    """One problem's flow from `start` to the length or the norm of `limits`."""
    from scipy.integrate import Radau

    c = start @ field.basis
    outside = start - field.basis @ c
    apart = float(length(outside))
    kept: list[FloatArray] = []

    def point(c: FloatArray) -> FloatArray:
        return outside + field.basis @ c

    def room(s: float, c: FloatArray) -> float:
        """How far the flow may go on without passing an end; the norm grows no faster than the arc length."""
        to_norm = limits[1] - float(np.hypot(apart, length(c)))
        return min(limits[0] - s, to_norm + _OVERSHOOT * limits[1] if to_norm > 0.0 else 0.0)

    if stops[0] == 0.0:
        kept.append(point(c))
    if field.is_stationary(c):
        return _Curve(kept, point(c), STATIONARY, 0)
    s, taken = 0.0, 0
    fine = 1.0 / max(1.0, field.landscape.reach)  # how far p moves until a logit moves by one
    solver = Radau(field, s, c, np.inf, rtol=tolerance, atol=fine * tolerance, jac=field.jacobian, max_step=1.0)
    while (left := room(s, solver.y)) > _AT * s:
        stop = stops[len(kept)]
        solver.max_step = min(left, stop - s)
        solver.step()
        lost = solver.status == "failed" or field.is_stationary(solver.y)
        if lost or solver.t - s < fine * _SHORT:
            minimum = field.minimum_within(solver.y, fine * _SHORT)
            if lost or minimum is not None:
                reason = TIED if minimum is None and field.has_ties(solver.y, TIED_LOGITS) else STATIONARY
                return _Curve(kept, point(solver.y if minimum is None else minimum), reason, taken + 1)
        s, taken = float(solver.t), taken + 1
        if stop - s <= _AT * s:
            kept.append(point(solver.y))
    return _Curve(kept, point(solver.y), RAN_ALL, taken)
