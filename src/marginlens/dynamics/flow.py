"""Gradient flow by arc length on any risk: adaptive and implicit, so that it stays accurate where steps of a fixed length oscillate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.dynamics.compiled_loops import RAN_ALL, STATIONARY, TIED
from marginlens.dynamics.descend import trajectory_of
from marginlens.dynamics.record import Record, check_record, steps_to_save
from marginlens.dynamics.trajectory import Trajectory
from marginlens.errors import InputError, array_of_any, positive_number
from marginlens.losses.margin import Loss, compiled_code
from marginlens.losses.next_token import NextTokenLoss
from marginlens.papers import implements
from marginlens.risk.attention import SoftmaxRisk
from marginlens.risk.build import HeadLike, Problem, as_risk
from marginlens.risk.protocol import Risk, holds_batch, starting_points
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.runtime.threads import single_blas_thread
from marginlens.typing import ArrayLike, ComplexArray, FloatArray, IntArray

DEFAULT_RTOL = 1e-7  # local error of one step of the integrator
END_NORM_RTOL = 1e-9  # by how much of it a flow may end beyond the norm that was asked for
ARC_LENGTH_RTOL = 1e-12  # relative distance at which an arc length counts as reached
MINIMUM_RADIUS = 1e-5  # steps below this, over the longest key where that exceeds 1, ask whether a minimum is that near
MAX_FLOW_RTOL = 1e-2  # larger tolerances are no longer a flow
CANCELLED_GRADIENT = 1e-9  # a gradient this small beside its terms has no direction to follow in double precision
MAX_MINIMUM_STEPS = 8  # Newton steps to a minimum close by
TIED_LOGITS = 10.0  # where gradients on tied tokens cancel to nine digits, logits this close are ties: half of log(1e9)


@dataclass(frozen=True)
class UntilLength:
    """Follow a flow for this arc length, which bounds how far x moves: one unit is the length of a normalised step of size 1."""

    length: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", positive_number(self.length, "length"))


@dataclass(frozen=True)
class UntilNorm:
    """Follow a flow until ‖x‖ has this value; a start of at least that norm ends it at once."""

    norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", positive_number(self.norm, "norm"))


@implements("B", "Eq. (7)")
def flow(
    problem: Problem,
    head: HeadLike | None = None,
    *,
    loss: Loss | NextTokenLoss | None = None,
    until: UntilLength | UntilNorm = UntilNorm(500.0),
    start: ArrayLike | None = None,
    record: Record | None = None,
    rtol: float = DEFAULT_RTOL,
    progress: ProgressCallback | None = None,
) -> Trajectory:
    r"""Follow the gradient flow of a risk, by arc length instead of time, which grows exponentially in the norm.

    .. math:: \frac{dx}{ds} = -\frac{\nabla L(x)}{\|\nabla L(x)\|}, \quad
        \text{the curve of}\ \frac{dx}{dt} = -\nabla L(x) \ \text{with}\ ds = \|\nabla L(x)\|\, dt

    For attention weights p the core takes the steps, in the span of the keys: by an explicit Runge-Kutta method of order 8, or
    by an implicit one of order 5 (Radau IIA) with the exact second derivative if the flow is stiff. So it does not stall on
    large embeddings, such as those of B after a first step with η₀ = 4n²T². For other risks, heads and losses, SciPy's Radau
    takes all steps and estimates a missing second derivative from gradients.

    Args:
        problem, head, loss, start: as `descend` takes them.

        until: where to stop, `UntilNorm(norm)` or `UntilLength(length)`.

        record: the quantities to keep; its `steps` are arc lengths, in whole units.

        rtol: local error of one step of the integrator, in x relative to its entries or, if these are smaller, to 1. For p, if
            centred keys are longer than 1, it is relative to 1 over the longest.

        progress: called as `progress(done, total)` after each problem of a batch.

    Returns:
        A `Trajectory` whose `steps_taken` counts the integrator's steps and whose `saved.steps` are arc lengths. Its status is
        `STATIONARY` if the flow ends at a zero of the gradient. It is `TIED` if the contributions of tied tokens to the
        gradient cancel to nine digits while all others are far behind: the flow goes on, but double precision cannot determine
        its direction. Check it by halving `rtol`, or with `descend` at small steps.
    """
    risk, limits = as_risk(problem, head, loss), _limits(until)
    if positive_number(rtol, "rtol") > MAX_FLOW_RTOL:
        raise InputError("rtol", f"at most {MAX_FLOW_RTOL:g}", rtol)
    stops = _Stops(record, limits[0])
    check_record(record, risk)
    as_progress(progress)
    first, is_batch = starting_points(risk, start), holds_batch(risk)
    runs: list[FlowRun] = []
    for j, x in enumerate(first):
        run = FlowRun(field_of(risk[j] if is_batch else risk), x, float(rtol))
        run.follow(*limits, stops)
        runs.append(run)
        if progress is not None:
            progress(j + 1, len(first))
    steps = stops.reached(max(len(run.kept) for run in runs))
    points = np.stack([run.at(len(steps)) for run in runs])
    ends = (np.array([run.reason for run in runs]), np.array([run.taken for run in runs]))
    return trajectory_of(risk, points, ends, steps, record)


def _limits(until: object) -> tuple[float, float]:
    """Return the arc length and the norm at which to stop, one of them infinite."""
    if isinstance(until, UntilLength):
        return until.length, np.inf
    if isinstance(until, UntilNorm):
        return np.inf, until.norm
    raise InputError("until", "ml.UntilNorm(norm) or ml.UntilLength(length)", repr(until))


class _Stops:
    """The arc lengths at which the iterate is kept: listed beforehand, or at regular intervals as long as the flow lasts."""

    def __init__(self, record: Record | None, longest: float) -> None:
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
        """Return the k-th arc length, infinite if there is none."""
        if self.every:
            return float(self.every * k)
        return float(self.listed[k]) if k < len(self.listed) else np.inf

    def reached(self, n_kept: int) -> IntArray:
        """List those that the longest flow reached, which came past `n_kept`."""
        return self.every * np.arange(n_kept) if self.every else self.listed


class GradientField:
    """The field -∇L/‖∇L‖ of arc-length flow on any risk of one problem, in the entries of a point."""

    step_unit = 1.0  # how far a point moves until the risk changes by much
    jacobian: Any = None  # estimated by the integrator

    def __init__(self, risk: Risk) -> None:
        self.risk = risk

    def steps_from(self, c: FloatArray, rtol: float) -> RadauSteps | CompiledSteps:
        """Return the integrator of the flow from c."""
        return RadauSteps(self, c, rtol)

    def coordinates(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return a point in the coordinates of the field, and the part of it that no flow moves."""
        return x.reshape(-1), np.zeros_like(x)

    def point(self, c: FloatArray, outside: FloatArray) -> FloatArray:
        """Return the point at coordinates c."""
        return c.reshape(outside.shape)

    def is_stationary(self, c: FloatArray) -> bool:
        """Return whether the gradient is exactly zero."""
        return bool(self.risk.gradient(c.reshape(self.risk.shape)).is_zero())

    def has_ties(self, c: FloatArray) -> bool:
        """Return False: nothing is known about ties."""
        return False

    def minimum_within(self, c: FloatArray, radius: float) -> FloatArray | None:
        """Return the point c within `radius` at which the field turns back because a minimum is near, else None."""
        direction = self(0.0, c)
        return None if direction @ self(0.0, c + radius * direction) > 0.0 else c

    def __call__(self, s: float, c: FloatArray) -> FloatArray:
        """Compute -∇L/‖∇L‖; nan if the gradient is exactly zero, so that no integrator accepts the step."""
        direction = -self.risk.gradient(c.reshape(self.risk.shape)).direction().reshape(-1)
        return direction if direction.any() else np.full_like(direction, np.nan)


class KeySpanField(GradientField):
    r"""The field for attention weights p = `basis` c + the part of the start outside the keys' span, with its derivative, exact
    at any norm.

    .. math:: F(c) = -\frac{g}{\|g\|}, \qquad F'(c) = -\Big(I - \frac{g g^\top}{\|g\|^2}\Big) \frac{\nabla^2 L}{\|g\|}, \quad g = \nabla L

    Gradient and Hessian share one factor, which cancels, so neither underflows, however small the risk.
    """

    def __init__(self, risk: SoftmaxRisk) -> None:
        super().__init__(risk)
        self.reduced, self.basis = risk.in_key_span()
        data = self.reduced.data
        self.step_unit = 1.0 / max(1.0, self.reduced.logit_scale)  # until a logit moves by one
        self._keys = np.ascontiguousarray(data.K)  # (n_inputs, n_tokens, r)
        self._key_norms = np.linalg.norm(self._keys, axis=-1)
        self._code = compiled_code(risk.loss) if risk.is_linear and not risk.data.has_offsets else -1
        if self._code >= 0:
            scores = data.scores(risk.head)
            of_data = np.where(np.isfinite(scores), scores, 0.0), np.ascontiguousarray(data.lengths), self._code
            self.arrays = self._keys, self._key_norms, *of_data
            self._c, self._g, self._terms = np.empty(data.d_key), np.empty(data.d_key), np.empty(1)
            self._set_gradient = core.attention_gradient.bound(*self.arrays, self._c, self._g, self._terms)

    def steps_from(self, c: FloatArray, rtol: float) -> RadauSteps | CompiledSteps:
        """Return the integrator of the flow from c: in the core if it has the gradient."""
        return RadauSteps(self, c, rtol) if self._code < 0 else CompiledSteps(self, c, rtol)

    def coordinates(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return coordinates in the span, and what is outside it."""
        c = x @ self.basis
        return c, x - self.basis @ c

    def point(self, c: FloatArray, outside: FloatArray) -> FloatArray:
        """Return p."""
        return outside + self.basis @ c

    def gradient(self, c: FloatArray) -> tuple[FloatArray, float]:
        """Return a positive multiple of ∇L at c, (r,), valid until the next call, and its length if no two of its terms cancelled."""
        if self._code < 0:
            at = self.reduced.second_order(c[None])
            return at.gradient[0], float(at.terms[0])
        self._c[:] = c
        self._set_gradient()
        return self._g, float(self._terms[0])

    def is_stationary(self, c: FloatArray) -> bool:
        """Return whether the gradient at c is zero compared with its own terms, to nine digits."""
        g, terms = self.gradient(c)
        return not float(np.linalg.norm(g)) > CANCELLED_GRADIENT * terms

    def has_ties(self, c: FloatArray) -> bool:
        """Return whether some input has different tokens near its largest logit, and some token is farther behind."""
        data = self.reduced.data
        logits = np.where(data.mask, self.reduced.logits(c), -np.inf)
        near = logits >= logits.max(axis=-1, keepdims=True) - TIED_LOGITS
        differ = any(np.ptp(rows[chosen], axis=0).any() for rows, chosen in zip(data.K, near, strict=True))
        return differ and bool(np.any(data.mask & ~near))

    def minimum_within(self, c: FloatArray, radius: float) -> FloatArray | None:
        """Return the minimum of the risk that Newton's method finds from c, (r,), if it is within `radius`; otherwise None."""
        x = c
        for _ in range(MAX_MINIMUM_STEPS):
            at = self.reduced.second_order(x[None])
            if np.linalg.eigvalsh(at.hessian[0])[0] <= 0.0:
                return None
            try:
                move = np.linalg.solve(at.hessian[0], at.gradient[0])
            except np.linalg.LinAlgError:  # eigenvalues that only rounding keeps above zero
                return None
            x = x - move
            if not float(np.linalg.norm(x - c)) <= radius:
                return None
            if float(np.linalg.norm(move)) <= 1e-6 * radius:
                return x
        return None

    def __call__(self, s: float, c: FloatArray) -> FloatArray:
        """Return F(c)."""
        g, _ = self.gradient(c)
        norm = math.sqrt(g @ g)
        return g / -norm if norm > 0.0 else np.full_like(g, np.nan)

    def jacobian(self, s: float, c: FloatArray) -> FloatArray:
        """Return F'(c), (r, r)."""
        at = self.reduced.second_order(c[None])
        norm = max(float(np.linalg.norm(at.gradient[0])), np.finfo(float).tiny)
        along, hessian = at.gradient[0] / norm, at.hessian[0] / norm
        return np.outer(along, along @ hessian) - hessian


def field_of(risk: Risk) -> GradientField:
    """Return the field of the flow on the risk of one problem."""
    return KeySpanField(risk) if isinstance(risk, SoftmaxRisk) else GradientField(risk)


class Event(Enum):
    """An event of a flow: none, a step so short that a minimum may be near, or an end of the field."""

    NONE = 0
    SHORT = 1
    ENDED = 2


class RadauSteps:
    """Steps of SciPy's Radau along a field, for risks without a compiled gradient.

    Attributes:
        c: the current point.

        length: the arc length so far.

        taken: steps so far.
    """

    def __init__(self, field: GradientField, c: FloatArray, rtol: float) -> None:
        from scipy.integrate import Radau

        self.c, self.length, self.taken = c, 0.0, 0
        self._field, unit = field, field.step_unit
        with single_blas_thread():
            self._solver = Radau(field, 0.0, c, np.inf, rtol=rtol, atol=unit * rtol, jac=field.jacobian, max_step=1.0)
        self._solver.lu, self._solver.solve_lu = _factored, _solved

    def advance(self, longest: float) -> Event:
        """Take one step of at most this length."""
        solver = self._solver
        solver.max_step = longest
        with single_blas_thread():  # matrices this small only wait for each other's threads
            solver.step()
        step = float(solver.t) - self.length
        self.c, self.length, self.taken = solver.y, float(solver.t), self.taken + 1
        if solver.status == "failed" or self._field.is_stationary(self.c):
            return Event.ENDED
        return Event.SHORT if step < self._field.step_unit * MINIMUM_RADIUS else Event.NONE


class CompiledSteps:
    """Steps of the flow in the core, for attention weights p under a linear head and a compiled loss: see `attention_flow.h`."""

    def __init__(self, field: KeySpanField, c: FloatArray, rtol: float) -> None:
        self.c = np.array(c)
        self._state = np.zeros((), dtype=core.struct_type("FlowState"))
        self._settings = np.zeros((), dtype=core.struct_type("FlowSettings"))
        self._settings["rtol"], self._settings["unit"] = rtol, field.step_unit
        self._settings["short_step"] = field.step_unit * MINIMUM_RADIUS
        self._follow = core.follow_attention.bound(*field.arrays, settings=self._settings, c=self.c, state=self._state)

    @property
    def length(self) -> float:
        """The arc length so far."""
        return float(self._state["arc_length"])

    @property
    def taken(self) -> int:
        """Steps so far."""
        return int(self._state["taken"])

    def advance(self, longest: float) -> Event:
        """Follow the flow for this arc length, or until something happens."""
        self._settings["longest"] = longest
        return _EVENTS[self._follow()]


_EVENTS = (Event.NONE, Event.ENDED, Event.ENDED, Event.SHORT)  # by the ends that attention_flow.h names


class _Factors(NamedTuple):
    """Pivoted triangular factors of a real or complex matrix, and LAPACK's function that solves with them."""

    solve: Any
    lu: Any
    pivots: IntArray


def _factored(matrix: FloatArray | ComplexArray) -> _Factors:
    """Compute Radau's factors by LAPACK directly: the checks of SciPy's functions take longer than matrices this small."""
    from scipy.linalg import lapack

    is_complex = np.iscomplexobj(matrix)
    lu, pivots, _ = (lapack.zgetrf if is_complex else lapack.dgetrf)(matrix)
    return _Factors(lapack.zgetrs if is_complex else lapack.dgetrs, lu, pivots)


def _solved(factors: _Factors, right: FloatArray | ComplexArray) -> Any:
    """Solve for one right side."""
    return factors.solve(factors.lu, factors.pivots, right)[0]


class FlowRun:
    """The flow of one problem, which can be continued.

    Attributes:
        kept: the points at the stops that it passed.

        reason: how it ended, `RAN_ALL` while it goes on.
    """

    def __init__(self, field: GradientField, start: FloatArray, rtol: float = DEFAULT_RTOL) -> None:
        c, self._outside = field.coordinates(start)
        self._norm_outside = float(length(self._outside.reshape(-1)))
        self._field, self._steps = field, field.steps_from(c, rtol)
        self.kept: list[FloatArray] = []
        self.reason = STATIONARY if field.is_stationary(c) else RAN_ALL

    @property
    def point(self) -> FloatArray:
        """The current point of the flow."""
        return self._field.point(self._steps.c, self._outside)

    @property
    def taken(self) -> int:
        """The number of steps of the integrator."""
        return self._steps.taken

    def at(self, n_kept: int) -> FloatArray:
        """Return the points at the stops and at the end, (n_kept + 1, *shape); stops that were not reached repeat the last point."""
        return np.stack([*self.kept, *[self.point] * (n_kept + 1 - len(self.kept))])

    def follow(self, to_length: float, to_norm: float = np.inf, stops: _Stops | None = None) -> None:
        """Follow the flow until its whole arc length or the norm of its point has this value, and keep the points at the stops."""
        stops, steps, field = stops or _Stops(None, 0.0), self._steps, self._field
        if stops[len(self.kept)] == 0.0:
            self.kept.append(self.point)
        while self.reason == RAN_ALL and (left := self._remaining(to_length, to_norm)) > ARC_LENGTH_RTOL * steps.length:
            stop = stops[len(self.kept)]
            event = steps.advance(min(left, stop - steps.length))
            if event is not Event.NONE:
                minimum = field.minimum_within(steps.c, field.step_unit * MINIMUM_RADIUS)
                if event is Event.ENDED or minimum is not None:
                    self.reason = TIED if minimum is None and field.has_ties(steps.c) else STATIONARY
                    steps.c = steps.c if minimum is None else minimum
                    return
            if stop - steps.length <= ARC_LENGTH_RTOL * steps.length:
                self.kept.append(self.point)

    def _remaining(self, to_length: float, to_norm: float) -> float:
        """Return how far the flow may go on without passing an end; the norm grows no faster than the arc length."""
        missing = to_norm - float(np.hypot(self._norm_outside, length(self._steps.c)))
        return min(to_length - self._steps.length, missing + END_NORM_RTOL * to_norm if missing > 0.0 else 0.0)
