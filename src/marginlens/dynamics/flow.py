"""Gradient flow by arc length on any risk: adaptive and implicit, so that it is right where steps of a fixed length oscillate in place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.dynamics.compiled_loops import RAN_ALL, STATIONARY, TIED
from marginlens.dynamics.descend import trajectory_of
from marginlens.dynamics.record import Record, check_record, steps_to_save
from marginlens.dynamics.trajectory import Trajectory
from marginlens.errors import InputError, array_of_any, positive_number
from marginlens.losses.margin import compiled_code
from marginlens.papers import implements
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.build import as_risk
from marginlens.risk.protocol import starting_points
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.runtime.threads import single_blas_thread
from marginlens.typing import FloatArray, IntArray

END_NORM_RTOL = 1e-9  # by how much of it a flow may end beyond the norm that was asked for
ARC_LENGTH_RTOL = 1e-12  # relative distance at which an arc length counts as reached
MINIMUM_RADIUS = 1e-5  # steps below this, over the longest key where that exceeds 1, ask whether a minimum is that near
MAX_FLOW_RTOL = 1e-2  # larger tolerances are no longer a flow
CANCELLED_GRADIENT = 1e-9  # a gradient this small beside its terms has no direction to follow in double precision
MAX_MINIMUM_STEPS = 8  # Newton steps to a minimum close by
TIED_LOGITS = 10.0  # where gradients on tied tokens cancel to nine digits, logits this close are ties: half of log(1e9)


@dataclass(frozen=True)
class UntilLength:
    """Follow a flow for this arc length, which bounds how far x moves: one unit is what a normalised step of size 1 moves."""

    length: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", positive_number(self.length, "length"))


@dataclass(frozen=True)
class UntilNorm:
    """Follow a flow until ‖x‖ has this value; a start of at least that norm is where it ends."""

    norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", positive_number(self.norm, "norm"))


@implements("B", "Eq. (7)")
def flow(
    problem: Any,
    head: Any = None,
    *,
    loss: Any = None,
    until: UntilLength | UntilNorm = UntilNorm(500.0),
    start: Any = None,
    record: Record | None = None,
    rtol: float = 1e-7,
    progress: ProgressCallback | None = None,
) -> Trajectory:
    r"""Follow the gradient flow of a risk, by arc length instead of time, which grows exponentially in the norm.

    .. math:: \frac{dx}{ds} = -\frac{\nabla L(x)}{\|\nabla L(x)\|}, \quad
        \text{the curve of}\ \frac{dx}{dt} = -\nabla L(x) \ \text{with}\ ds = \|\nabla L(x)\|\, dt

    An implicit Runge-Kutta method of order 5 (Radau IIA) takes the steps. For attention weights p it works in the span of the keys with
    the exact second derivative, so that large embeddings, such as B's after a first step with η₀ = 4n²T², cost more steps but do not make
    it stall; for other risks the second derivative is estimated from gradients.

    Args:
        problem, head, loss, start: as `descend` takes them.
        until: `UntilNorm(norm)` or `UntilLength(length)`, where to stop.
        record: what to keep; its `steps` are arc lengths, in whole units, at which the flow is stopped by.
        rtol: local error of one step of the integrator, in x relative to its entries or, where these are smaller, to 1; for p, where
            keys less their input's mean are longer than 1, to 1 over the longest.
        progress: called as `progress(done, total)` after each problem of a batch.
    Returns:
        A `Trajectory` whose `steps_taken` counts the integrator's steps and whose `saved.steps` are arc lengths. It is `STATIONARY` where
        the flow ends at a zero of the gradient, and `TIED` where what tied tokens add to the gradient cancels to nine digits while
        all others are far behind: the flow goes on, but double precision does not tell where. Check it by halving `rtol`, or with
        `descend` at small steps.
    """
    risk, limits = as_risk(problem, head, loss), _limits(until)
    if positive_number(rtol, "rtol") > MAX_FLOW_RTOL:
        raise InputError("rtol", f"at most {MAX_FLOW_RTOL:g}", rtol)
    stops = _Stops(record, limits[0])
    check_record(record, risk)
    as_progress(progress)
    first, is_batch = starting_points(risk, start), bool(getattr(risk, "is_batch", False))
    curves: list[_Curve] = []
    with single_blas_thread():  # matrices this small only wait for each other's threads
        for j, x in enumerate(first):
            single = risk[j] if is_batch else risk
            field = KeySpanField(single) if isinstance(risk, AttentionRisk) else GradientField(single)
            curves.append(_follow(field, x, limits, stops, float(rtol)))
            if progress is not None:
                progress(j + 1, len(first))
    steps = stops.reached(max(len(curve.kept) for curve in curves))
    points = np.stack([curve.at(len(steps)) for curve in curves])
    ends = (np.array([curve.reason for curve in curves]), np.array([curve.taken for curve in curves]))
    return trajectory_of(risk, points, ends, steps, record)


def _limits(until: Any) -> tuple[float, float]:
    """The arc length and the norm at which to stop, one of them infinite."""
    if isinstance(until, UntilLength):
        return until.length, np.inf
    if isinstance(until, UntilNorm):
        return np.inf, until.norm
    raise InputError("until", "ml.UntilNorm(norm) or ml.UntilLength(length)", repr(until))


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
        """(n_kept + 1, *shape) the iterates at the stops, the last one where it did not come so far, and once more at the end."""
        return np.stack([*self.kept, *[self.last] * (n_kept + 1 - len(self.kept))])


class GradientField:
    """The field -∇L/‖∇L‖ of arc-length flow on any risk of one problem, in the entries of a point."""

    step_unit = 1.0  # how far a point moves until the risk changes by much
    jacobian: Any = None  # estimated by the integrator

    def __init__(self, risk: Any) -> None:
        self.risk = risk

    def coordinates(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """A point in the coordinates of the field, and the part of it that no flow moves."""
        return x.reshape(-1), np.zeros_like(x)

    def point(self, c: FloatArray, outside: FloatArray) -> FloatArray:
        """The point at coordinates c."""
        return c.reshape(outside.shape)

    def is_stationary(self, c: FloatArray) -> bool:
        """Whether the gradient is exactly zero."""
        return bool(self.risk.gradient(c.reshape(self.risk.shape)).is_zero())

    def has_ties(self, c: FloatArray) -> bool:
        """Nothing is known of ties."""
        return False

    def minimum_within(self, c: FloatArray, radius: float) -> FloatArray | None:
        """c where the field turns back within `radius` ahead of it, because a minimum is that near; else None."""
        direction = self(0.0, c)
        return None if direction @ self(0.0, c + radius * direction) > 0.0 else c

    def __call__(self, s: float, c: FloatArray) -> FloatArray:
        """-∇L/‖∇L‖; nan where the gradient is exactly zero, which no step of an integrator accepts."""
        direction = -self.risk.gradient(c.reshape(self.risk.shape)).direction().reshape(-1)
        return direction if direction.any() else np.full_like(direction, np.nan)


class KeySpanField(GradientField):
    r"""The same for attention weights p = start outside the keys' span + `basis` c, with its derivative, exact at any norm.

    .. math:: F(c) = -\frac{g}{\|g\|}, \qquad F'(c) = -\Big(I - \frac{g g^\top}{\|g\|^2}\Big) \frac{\nabla^2 L}{\|g\|}, \quad g = \nabla L

    Gradient and Hessian share one factor, which cancels; so neither underflows, however small the risk has become.
    """

    def __init__(self, risk: AttentionRisk) -> None:
        super().__init__(risk)
        self.reduced, self.basis = risk.in_key_span()
        data = self.reduced.data
        self.step_unit = 1.0 / max(1.0, self.reduced.logit_scale)  # until a logit moves by one
        self._keys = np.ascontiguousarray(data.K)  # (n_inputs, n_tokens, r)
        self._key_norms = np.linalg.norm(self._keys, axis=-1)
        self._code = compiled_code(risk.loss) if risk.is_linear else -1
        if self._code >= 0:
            scores = data.scores(risk.head)
            of_data = np.where(np.isfinite(scores), scores, 0.0), np.ascontiguousarray(data.lengths), self._code
            self._c, self._g, self._terms = np.empty(data.d_key), np.empty(data.d_key), np.empty(1)
            at = self._c, self._g, self._terms
            self._set_gradient = core.attention_gradient.bound(self._keys, self._key_norms, *of_data, *at)

    def coordinates(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Coordinates in the span, and what is outside it."""
        c = x @ self.basis
        return c, x - self.basis @ c

    def point(self, c: FloatArray, outside: FloatArray) -> FloatArray:
        """p."""
        return outside + self.basis @ c

    def gradient(self, c: FloatArray) -> tuple[FloatArray, float]:
        """A positive multiple of ∇L at c, (r,), until the next call, and the length it would have if no two of its terms cancelled."""
        if self._code < 0:
            at = self.reduced.second_order(c[None])
            return at.gradient[0], float(at.terms[0])
        self._c[:] = c
        self._set_gradient()
        return self._g, float(self._terms[0])

    def is_stationary(self, c: FloatArray) -> bool:
        """Whether the gradient at c is zero beside its own terms, to nine digits."""
        g, terms = self.gradient(c)
        return not float(np.linalg.norm(g)) > CANCELLED_GRADIENT * terms

    def has_ties(self, c: FloatArray) -> bool:
        """Whether some input has different tokens near its largest logit, and some token is farther behind."""
        data = self.reduced.data
        logits = np.where(data.mask, self.reduced.logits(c), -np.inf)
        near = logits >= logits.max(axis=-1, keepdims=True) - TIED_LOGITS
        differ = any(np.ptp(rows[chosen], axis=0).any() for rows, chosen in zip(data.K, near, strict=True))
        return differ and bool(np.any(data.mask & ~near))

    def minimum_within(self, c: FloatArray, radius: float) -> FloatArray | None:
        """The minimum of the risk that Newton's method finds from c, (r,), if it is no farther away than `radius`; else None."""
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
        """F(c)."""
        g, _ = self.gradient(c)
        norm = math.sqrt(g @ g)
        return g / -norm if norm > 0.0 else np.full_like(g, np.nan)

    def jacobian(self, s: float, c: FloatArray) -> FloatArray:
        """F'(c), (r, r)."""
        at = self.reduced.second_order(c[None])
        norm = max(float(np.linalg.norm(at.gradient[0])), np.finfo(float).tiny)
        along, hessian = at.gradient[0] / norm, at.hessian[0] / norm
        return np.outer(along, along @ hessian) - hessian


class _Factors(NamedTuple):
    """Pivoted triangular factors of a real or complex matrix, and LAPACK's function that solves with them."""

    solve: Any
    lu: Any
    pivots: IntArray


def _factored(matrix: Any) -> _Factors:
    """Radau's factors by LAPACK itself: SciPy's functions check and wrap, which takes longer than matrices this small."""
    from scipy.linalg import lapack

    is_complex = np.iscomplexobj(matrix)
    lu, pivots, _ = (lapack.zgetrf if is_complex else lapack.dgetrf)(matrix)
    return _Factors(lapack.zgetrs if is_complex else lapack.dgetrs, lu, pivots)


def _solved(factors: _Factors, right: Any) -> Any:
    """The solution for one right side."""
    return factors.solve(factors.lu, factors.pivots, right)[0]


def _follow(field: GradientField, start: FloatArray, limits: tuple[float, float], stops: _Stops, rtol: float) -> _Curve:
    """One problem's flow from `start` to the length or the norm of `limits`."""
    from scipy.integrate import Radau

    c, outside = field.coordinates(start)
    norm_outside = float(length(outside.reshape(-1)))
    kept: list[FloatArray] = []

    def remaining(s: float, c: FloatArray) -> float:
        """How far the flow may go on without passing an end; the norm grows no faster than the arc length."""
        to_norm = limits[1] - float(np.hypot(norm_outside, length(c)))
        return min(limits[0] - s, to_norm + END_NORM_RTOL * limits[1] if to_norm > 0.0 else 0.0)

    if stops[0] == 0.0:
        kept.append(field.point(c, outside))
    if field.is_stationary(c):
        return _Curve(kept, field.point(c, outside), STATIONARY, 0)
    s, taken = 0.0, 0
    unit = field.step_unit
    solver = Radau(field, s, c, np.inf, rtol=rtol, atol=unit * rtol, jac=field.jacobian, max_step=1.0)
    solver.lu, solver.solve_lu = _factored, _solved
    while (left := remaining(s, solver.y)) > ARC_LENGTH_RTOL * s:
        stop = stops[len(kept)]
        solver.max_step = min(left, stop - s)
        solver.step()
        ended = solver.status == "failed" or field.is_stationary(solver.y)
        if ended or solver.t - s < unit * MINIMUM_RADIUS:
            minimum = field.minimum_within(solver.y, unit * MINIMUM_RADIUS)
            if ended or minimum is not None:
                reason = TIED if minimum is None and field.has_ties(solver.y) else STATIONARY
                return _Curve(kept, field.point(solver.y if minimum is None else minimum, outside), reason, taken + 1)
        s, taken = float(solver.t), taken + 1
        if stop - s <= ARC_LENGTH_RTOL * s:
            kept.append(field.point(solver.y, outside))
    return _Curve(kept, field.point(solver.y, outside), RAN_ALL, taken)
