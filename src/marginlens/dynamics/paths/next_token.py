"""Regularisation paths of next-token weights W, which turn into the solution of Graph-SVM, and of decoders on fixed contexts.

The part of the risk that is visible next to its infimum is minimised first, then the tail in logarithms, then both at once: far
out, the gradient across S_cyc is e^(-R · margin) times that along it, and just as exact. With the log-loss and C Eᵀ = I the
risk is convex, so there is only one minimum. For other heads and losses, the minima reached from random starts, from the cyclic
correction with the max-margin direction, and from the previous radius are compared by the logarithm of their excess risk. The
method is meant for small problems: it forms the rows (e_x - e_y) e_kᵀ, d_model² wide. The cross-entropy of a decoder is treated
as such a risk, in which the tokens that follow a context are a component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import unit
from marginlens.data.sequences import SequenceDataset, check_realizable
from marginlens.dynamics.paths.path import PathPoints, PathSearch, SearchState, ball_bindings, no_region, path_search
from marginlens.dynamics.paths.projected_newton import BOUNDARY_RTOL, Ball, PositiveRisk, minimise
from marginlens.dynamics.paths.split_risk import ContextSplit, Slopes, SplitRisk
from marginlens.errors import InputError
from marginlens.graphs.from_data import priority_graphs
from marginlens.graphs.priority import is_acyclic
from marginlens.losses.next_token import LabelLoss, LogLoss, scalar_of
from marginlens.nexttoken.contexts import finite_part
from marginlens.nexttoken.correction import cyclic_correction
from marginlens.risk.attention import SecondOrder
from marginlens.risk.cross_entropy import ContextRisk
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.next_token_heads import NextTokenHead
from marginlens.svm.contexts import ntp_svm
from marginlens.svm.graph import graph_svm
from marginlens.svm.solution import Status
from marginlens.typing import ArrayLike, FloatArray

NEXT_TOKEN_RESTARTS = 4
SMOOTH_LOGIT = 64.0  # largest logit at which the risk is still smooth enough for a start from anywhere
MAX_RADIUS = 1e100  # a radius whose square, and that of its inverse, is a number
MAX_EMBEDDING = 1e60  # length of embeddings whose products of four, and those of their inverses, are still numbers
MAX_FORMED_ENTRIES = 20_000_000  # numbers of rows that the path of a decoder may form
LOSS_GRID = 201  # outputs of a label at which a loss is asked whether it decreases
CORRECTION_RESTARTS = 8  # random starts in the search for another minimum along S_cyc
LOG_NEGLIGIBLE_TAIL = np.log(1e-8)  # log of a tail below which it is all of the excess, to eight digits
MAX_POLISH_STEPS = 12  # Newton steps on the conditions of a minimum
POLISH_GAIN = 0.5  # factor by which such a step must shrink what is left
CYCLIC_PART_RTOL = 1e-8  # norm outside S_cyc, relative to all of it, up to which a matrix counts as inside


@dataclass(frozen=True, eq=False)
class CyclicPart:
    r"""The region of a next-token path whose part along S_cyc is fixed (C Lemma 4).

    .. math:: \bar W^\perp_R = \arg\min_{W \in \mathcal S_{\rm cyc}^\perp,\ \|W\|_F \le R} \mathcal L(W + W^\parallel)

    Args:
        W: W^∥ (d_model, d_model) in S_cyc. The radii bound the other part alone.
    """

    W: Any


class CyclicAndStrict(NamedTuple):
    """The projections of next-token weights onto S_cyc and onto its complement, each (…, d_model, d_model)."""

    cyclic: FloatArray
    strict: FloatArray


@path_search.register(NextTokenRisk)
def next_token_search(risk: NextTokenRisk, region: object, restarts: int | None) -> NextTokenSearch:
    """Return the search over W of a dataset that some W realises."""
    data, loss, head = check_realizable(risk.datasets[0]), risk.loss, risk.heads[0]
    if not isinstance(loss, LabelLoss):
        expected = "a loss of the label's own output, such as ml.LogLoss() (C Assumption 1)"
        raise InputError("loss", expected, type(loss).__name__)
    if region is not None and not isinstance(region, CyclicPart):
        raise InputError("region", "a CyclicPart(W), or None", type(region).__name__)
    graphs = priority_graphs(data)
    _check_setting(data, head, loss, acyclic=is_acyclic(graphs))
    free = region is None
    correction = cyclic_correction(data, graphs=graphs, loss=loss, restarts=CORRECTION_RESTARTS if free else 0)
    if free and not (correction.is_unique or isinstance(loss, LogLoss)):
        expected = "one whose risk over the cyclic subset has one finite minimiser, as C Thm 2 needs on cyclic data"
        raise InputError("loss", expected, type(loss).__name__, str(correction.uniqueness or ""))
    split = SplitRisk(data, graphs, head.table, loss)
    fixed = None if free else _inside(split, data.weights(region.W, "W"))  # type: ignore[union-attr]
    n_starts = NEXT_TOKEN_RESTARTS if restarts is None else restarts
    return NextTokenSearch(risk, split, graph_svm(data.E, graphs), correction, fixed, n_starts)


@path_search.register(ContextRisk)
def decoder_search(risk: ContextRisk, region: object, restarts: int | None) -> NextTokenSearch:
    """Return the search over W of a decoder, which is convex and needs no restarts."""
    no_region(region, "ContextRisk")
    data = risk.data
    n_formed = len(data.token) * data.n_vocabulary**2 * data.d_model
    if n_formed > MAX_FORMED_ENTRIES:
        got = f"{len(data.token)} pairs of a context and a token, {data.n_vocabulary} tokens and d_model={data.d_model}: {n_formed}"
        raise InputError(
            "problem",
            f"one whose path forms at most {MAX_FORMED_ENTRIES} numbers",
            got,
            "Train it by ml.descend instead.",
        )
    return NextTokenSearch(risk, ContextSplit(risk), ntp_svm(data), finite_part(data), None, 0)


@dataclass(frozen=True)
class NextTokenSearch(PathSearch):
    """The search for the path, in coordinates of S_cyc and of everything else that the risk depends on.

    Attributes:
        limit: the Graph-SVM of the data, or the NTP-SVM of contexts, to whose direction the path converges.

        correction: the limit of its part along S_cyc.

        fixed: (n_cyclic,) the part along S_cyc, if it is given.
    """

    risk: NextTokenRisk | ContextRisk
    split_risk: SplitRisk
    limit: Any
    correction: Any
    fixed: FloatArray | None
    restarts: int

    def check_radii(self, radii: ArrayLike) -> FloatArray:
        """Check that the radii increase and that their squares are finite."""
        limits = super().check_radii(radii)
        if not 1.0 / MAX_RADIUS <= limits[0] <= limits[-1] <= MAX_RADIUS:
            expected = f"between {1.0 / MAX_RADIUS:g} and {MAX_RADIUS:g}, so that their squares are numbers"
            raise InputError("radii", expected, f"{limits[0]:g} to {limits[-1]:g}")
        return limits

    def follow(self, state: SearchState, radius: float) -> SearchState:
        """Return the point (r,) of the next radius, from the previous point, the max-margin direction and, if not convex, other starts."""
        risk, first = self.split_risk, not state.points
        m, r = risk.n_cyclic, len(risk.basis)
        last = (
            np.append(np.zeros(m) if self.fixed is None else self.fixed, np.zeros(r - m)) if first else state.points[-1]
        )
        growth = 1.0 if first else radius / float(state.radii[-1])
        direction = unit(risk.coordinates(self.limit.x)) if self.limit.status is Status.OPTIMAL else np.zeros(r)
        starts = [np.append(last[:m], last[m:] * growth), np.append(last[:m], radius * direction[m:])]
        if risk.likelihood:  # one minimum only: start from the better
            starts = [starts[int(np.argmin(risk.log_tail(np.stack(starts))))]]
        else:
            starts += self._other_starts(radius, direction, first=first, generator=state.generator)
        return state.reached(radius, self._smallest(np.stack(starts), radius))

    def _other_starts(
        self, radius: float, direction: FloatArray, *, first: bool, generator: np.random.Generator
    ) -> list[FloatArray]:
        """Return the minimum along S_cyc with the max-margin direction, and the best of random starts while the risk is smooth."""
        risk, starts = self.split_risk, []
        m = risk.n_cyclic
        if m and self.fixed is None:
            cyclic = risk.coordinates(self.correction.x)[:m]
            left = radius**2 - float(cyclic @ cyclic)
            inside = cyclic if left > 0.0 else cyclic * (radius / np.linalg.norm(cyclic))
            starts.append(np.append(inside, np.sqrt(max(left, 0.0)) * direction[m:]))
        smooth = SMOOTH_LOGIT / risk.reach if risk.reach > 0.0 else np.inf
        if self.restarts and (radius <= smooth or first):
            ball = min(radius, smooth)
            anywhere = unit(generator.standard_normal((self.restarts, len(risk.basis)))) * ball
            starts.append(self._smallest(anywhere, ball) * (radius / ball))
        return starts

    def _smallest(self, starts: FloatArray, radius: float) -> FloatArray:
        return (smallest_risk if self.fixed is None else smallest_tail)(self.split_risk, starts, radius)

    def finish(self, state: SearchState) -> PathPoints:
        """Return points, tokens, excess risk over the infimum, and whether the ball binds."""
        c = np.stack(state.points)
        W = self.split_risk.matrix(c)
        parts = c if self.fixed is None else c[:, self.split_risk.n_cyclic :]
        binds = np.linalg.norm(parts, axis=-1) >= state.radii * (1.0 - BOUNDARY_RTOL)
        known = self.limit.status in (Status.OPTIMAL, Status.TRIVIAL)
        return PathPoints(
            points=W,
            selected=np.stack([self.risk.select(point) for point in W]),
            log_excess=self._log_excess(c) if known else np.full(len(c), np.nan),
            excess_sign=np.ones(len(c)) if known else np.full(len(c), np.nan),
            binding=ball_bindings(binds),
        )

    def _log_excess(self, c: FloatArray) -> FloatArray:
        """Compute log(L - inf L) at points (n_radii, r)."""
        risk = self.split_risk
        tail = risk.log_tail(c)
        if self.fixed is not None or risk.n_cyclic == 0:
            return tail
        infimum = float(risk.body(risk.coordinates(self.correction.x)[None])[0])
        with np.errstate(divide="ignore"):
            rest = np.log(np.maximum(risk.body(c) - infimum, 0.0))  # of the order of the tail, squared
        return np.where(tail < LOG_NEGLIGIBLE_TAIL, tail, np.logaddexp(tail, rest))

    def kkt_residual(self, state: SearchState) -> FloatArray:
        """Compute the larger of the two residuals (n_radii,); only that across S_cyc if the other part is fixed."""
        left = np.zeros(len(state.radii))
        for k, (radius, c) in enumerate(zip(state.radii.tolist(), state.points, strict=True)):
            if self.fixed is None:
                left[k] = Conditions.at(self.split_risk, c, radius).left
            else:
                left[k] = Conditions.at(
                    self.split_risk, c, float(np.hypot(radius, np.linalg.norm(self.fixed)))
                ).strict_left
        return left

    def split(self, state: SearchState) -> CyclicAndStrict:
        """Return the projections of the points, from coordinates that keep what a matrix of norm 1e5 rounds off along S_cyc."""
        c, m, basis = np.stack(state.points), self.split_risk.n_cyclic, self.split_risk.basis
        parts = ((basis[:m], c[:, :m]), (basis[m:], c[:, m:]))
        return CyclicAndStrict(*(np.einsum("rde,kr->kde", rows, part) for rows, part in parts))


def _check_setting(data: SequenceDataset, head: NextTokenHead, loss: LabelLoss, *, acyclic: bool) -> None:
    largest = float(np.abs(data.E).max())
    if not 1.0 / MAX_EMBEDDING <= largest <= MAX_EMBEDDING and largest > 0.0:
        remedy = "Multiply E by a number; W is then divided by its square."
        expected = f"of embeddings whose largest entry is between {1.0 / MAX_EMBEDDING:g} and {MAX_EMBEDDING:g}"
        raise InputError("data", expected, f"a largest entry of {largest:g}", remedy)
    if head.table is None and isinstance(loss, LogLoss):
        return
    if not acyclic and head.table is not None:
        remedy = "Leave out 'head' to follow the path of cyclic data."
        raise InputError("data", "acyclic unless C Eᵀ = I", "tokens of equal priority", remedy)
    owner = np.repeat(data.labels, data.lengths)
    rivals = np.flatnonzero(~data.is_label & (head.scores(owner, data.tokens) >= head.scores(owner, owner)))
    if len(rivals):
        got = f"token {data.tokens[rivals[0]]} scoring as high as label {owner[rivals[0]]} or higher"
        raise InputError("head", "one under which each label scores highest in its sequences (C Assumption 3)", got)
    top = head.scores(data.labels, data.labels)
    value, slope, _ = scalar_of(loss, top)
    wrong = np.flatnonzero(~(np.isfinite(value) & (slope < 0.0)))
    if len(wrong):
        first = wrong[0]
        got = f"{type(loss).__name__} with slope {slope[first]:.4g} at output {top[first]:.4g} of label {data.labels[first]}"
        raise InputError("loss", "decreasing at the output of a label that is selected outright (C Assumption 1)", got)
    if isinstance(loss, LogLoss):
        return
    lowest = np.minimum.reduceat(head.scores(owner, data.tokens), data.offsets[:-1])
    outputs = np.linspace(lowest, top, LOSS_GRID)  # no output of a label leaves this interval
    rising = scalar_of(loss, outputs)[1] > 0.0
    if rising.any():
        got = f"{type(loss).__name__}, which increases at {outputs[rising][0]:.4g}"
        raise InputError("loss", "decreasing on every output that a label can have (C Assumption 1)", got)


def _inside(risk: SplitRisk, W: FloatArray) -> FloatArray:
    """Return the coordinates (n_cyclic,) of a matrix in S_cyc."""
    c = risk.coordinates(W)[: risk.n_cyclic]
    outside = float(np.linalg.norm(W - np.einsum("rde,r->de", risk.basis[: risk.n_cyclic], c)))
    if outside > CYCLIC_PART_RTOL * float(np.linalg.norm(W)):
        raise InputError(
            "W", "a matrix in S_cyc", f"one whose part outside has norm {outside:.4g}", "Project it first."
        )
    return c


# ---- minima


@dataclass(frozen=True)
class _Whole(PositiveRisk):
    """L less what putting out every label would cost, over all coordinates; positive on cyclic data."""

    risk: SplitRisk

    @property
    def logit_scale(self) -> float:
        return self.risk.reach

    def log_value(self, x: FloatArray) -> FloatArray:
        return np.log(self.risk.body(x) - self.risk.floor + np.exp(self.risk.log_tail(x)))

    def second_order(self, x: FloatArray) -> SecondOrder:
        slopes = [self.risk.slopes(c) for c in x]
        units = [np.exp(s.log_unit) for s in slopes]
        gradient = [np.concatenate([s.inner, e * s.outer]) for s, e in zip(slopes, units, strict=True)]
        hessian = [
            np.block([[s.inner_hessian, e * s.cross_hessian.T], [e * s.cross_hessian, e * s.outer_hessian]])
            for s, e in zip(slopes, units, strict=True)
        ]
        terms = [s.inner_terms + e * s.outer_terms for s, e in zip(slopes, units, strict=True)]
        return self.expansion(np.array(gradient), np.array(hessian), terms, self.log_value(x), np.zeros(len(x)))


@dataclass(frozen=True)
class _Tail(PositiveRisk):
    """T over the complement of S_cyc at one part x (n_cyclic,) along it."""

    risk: SplitRisk
    cyclic: FloatArray

    @property
    def logit_scale(self) -> float:
        return self.risk.reach

    def log_value(self, x: FloatArray) -> FloatArray:
        return self.risk.log_tail(self.whole(x))

    def second_order(self, x: FloatArray) -> SecondOrder:
        slopes = [self.risk.slopes(c) for c in self.whole(x)]
        gradient, hessian, terms, units = (
            np.array([getattr(s, name) for s in slopes])
            for name in ("outer", "outer_hessian", "outer_terms", "log_unit")
        )
        return self.expansion(gradient, hessian, terms, self.log_value(x), units)

    def whole(self, z: FloatArray) -> FloatArray:
        """Return the points (n_points, r) with this part along S_cyc."""
        return np.concatenate([np.broadcast_to(self.cyclic, (len(z), len(self.cyclic))), z], axis=1)


def smallest_tail(risk: SplitRisk, starts: FloatArray, radius: float) -> FloatArray:
    """Return the lowest minimum of T over z of norm at most `radius`, from starts (n_starts, r) with a common x, (r,)."""
    m = risk.n_cyclic
    tail = _Tail(risk, starts[0, :m])
    minima = tail.whole(minimise(tail, starts[:, m:], Ball(radius)))
    return minima[int(np.argmin(risk.log_tail(minima)))]


def smallest_risk(risk: SplitRisk, starts: FloatArray, radius: float) -> FloatArray:
    """Return the lowest minimum of L over the ball, from starts (n_starts, r), (r,)."""
    if risk.n_cyclic == 0:
        return _polished(risk, smallest_tail(risk, starts, radius), radius)
    inside = np.stack([_on_the_ball(start, risk.n_cyclic, radius) for start in starts])
    minima = minimise(_Whole(risk), inside, Ball(radius))
    total, tail = risk.body(minima) + np.exp(risk.log_tail(minima)), risk.log_tail(minima)
    same = total <= total.min() + 4.0 * np.finfo(float).eps * np.abs(total).max()  # then the tails decide
    c = minima[int(np.argmin(np.where(same, tail, np.inf)))]
    left = radius**2 - float(c[: risk.n_cyclic] @ c[: risk.n_cyclic])
    if len(c) > risk.n_cyclic and left > 0.0:
        c = smallest_tail(risk, c[None], float(np.sqrt(left)))
    return _polished(risk, c, radius)


def _polished(risk: SplitRisk, c: FloatArray, radius: float) -> FloatArray:
    """Move a point near a minimum by Newton steps as long as they help: the two parts of the conditions differ in size."""
    conditions = Conditions.at(risk, c, radius)
    for _ in range(MAX_POLISH_STEPS):
        trial = Conditions.at(risk, _on_the_ball(conditions.newton(), risk.n_cyclic, radius), radius)
        if not trial.left < POLISH_GAIN * conditions.left:
            break
        conditions = trial
    return conditions.c


def _on_the_ball(c: FloatArray, n_cyclic: int, radius: float) -> FloatArray:
    """Put a point that has left the ball, or is within rounding of it, on the ball by shortening z (or x if there is no z)."""
    if np.linalg.norm(c) < radius * (1.0 - BOUNDARY_RTOL):
        return c
    x, z = c[:n_cyclic], c[n_cyclic:]
    left, length = radius**2 - float(x @ x), float(np.linalg.norm(z))
    if left <= 0.0 or length == 0.0:
        return c * (radius / np.linalg.norm(c))
    return np.concatenate([x, z * (np.sqrt(left) / length)])


@dataclass(frozen=True)
class Conditions:
    r"""The residuals of the conditions :math:`\nabla L + \nu W = 0, \nu \ge 0, \nu (R - \|W\|) = 0` at one point (r,).

    The part along S_cyc is in the units of the risk, the other divided by its own size, exp(log_unit): far out it is
    :math:`e^{-R\cdot\text{margin}}` and no less exact.
    """

    c: FloatArray
    slopes: Slopes
    nu: float  # over exp(log_unit)
    binds: bool

    @classmethod
    def at(cls, risk: SplitRisk, c: FloatArray, radius: float) -> Conditions:
        """Return the conditions at a point of the ball."""
        m, slopes = risk.n_cyclic, risk.slopes(c)
        binds = bool(np.linalg.norm(c) >= radius * (1.0 - BOUNDARY_RTOL))
        x, z = c[:m], c[m:]
        if float(z @ z) > 0.0:
            nu = -float(slopes.outer @ z) / float(z @ z)
        else:
            nu = -float(slopes.inner @ x) / max(float(x @ x), np.finfo(float).tiny) * np.exp(-slopes.log_unit)
        return cls(c, slopes, max(nu, 0.0) if binds else 0.0, binds)

    @property
    def residuals(self) -> tuple[FloatArray, FloatArray]:
        """The two parts of ∇L + ν W."""
        m = len(self.slopes.inner)
        plain = self.nu * np.exp(self.slopes.log_unit)
        return self.slopes.inner + plain * self.c[:m], self.slopes.outer + self.nu * self.c[m:]

    @property
    def left(self) -> float:
        """The larger of the two parts, each relative to the terms it is summed from."""
        return max(_ratio(self.residuals[0], self.slopes.inner_terms), self.strict_left)

    @property
    def strict_left(self) -> float:
        """The part across S_cyc alone."""
        return _ratio(self.residuals[1], self.slopes.outer_terms)

    def newton(self) -> FloatArray:
        """Return the point (r,) at which the conditions hold to first order; rows, steps and ν are scaled to have no units."""
        m, slopes = len(self.slopes.inner), self.slopes
        plain, (inner, outer) = np.exp(slopes.log_unit), self.residuals
        matrix = np.block(
            [
                [slopes.inner_hessian + plain * self.nu * np.eye(m), plain * slopes.cross_hessian.T],
                [slopes.cross_hessian, slopes.outer_hessian + self.nu * np.eye(len(outer))],
            ]
        )
        length = float(np.linalg.norm(self.c)) or 1.0
        sizes = np.repeat([slopes.inner_terms or 1.0, slopes.outer_terms or 1.0], [m, len(outer)])
        matrix, right = matrix * (length / sizes[:, None]), -np.concatenate([inner, outer]) / sizes
        if self.binds:
            column = np.concatenate([plain * self.c[:m], self.c[m:]]) / sizes
            column /= float(np.linalg.norm(column)) or 1.0
            matrix = np.block([[matrix, column[:, None]], [self.c[None] / length, np.zeros((1, 1))]])
            right = np.append(right, 0.0)
        return self.c + length * np.linalg.lstsq(matrix, right, rcond=None)[0][: len(self.c)]


def _ratio(part: FloatArray, terms: float) -> float:
    return float(np.linalg.norm(part)) / terms if terms > 0.0 else 0.0
