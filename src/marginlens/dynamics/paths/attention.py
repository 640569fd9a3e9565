"""Regularisation paths of attention weights p and of key-query matrices W, globally or inside a cone.

A matrix W is a vector whose keys are u_i ⊗ x_it, queries times tokens. Local minima are followed from small balls to large
ones. New starts are random points while the risk is smooth; later they are max-margin directions of the tokens that random
directions select and, for a linear head, of the optimal tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import length, unit
from marginlens.dynamics.paths.path import Binding, PathPoints, PathSearch, SearchState, ladder, path_search
from marginlens.dynamics.paths.projected_newton import (
    Ball,
    below_selected_risk,
    kkt_residual,
    minimise,
)
from marginlens.errors import InputError, positive_number, real_array
from marginlens.result import Described
from marginlens.risk.attention import KeySpan, SoftmaxRisk
from marginlens.risk.matrix import MatrixRisk
from marginlens.svm import att_svm
from marginlens.typing import ArrayLike, FloatArray

MAX_RADIUS_RATIO = 3.2  # by which the ball grows at a time while local minima are followed
SMOOTH_LOGIT = 64.0  # largest logit at which the risk is still smooth enough for a start from anywhere
MARGIN_START_STEPS = (
    8  # Newton steps for a start at a max-margin direction: enough where there is a local minimum near it
)
MIN_BRANCHES = 4  # local minima that are carried on at least; with more restarts as many as there are of these
SAME_POINT_RTOL = 1e-7  # distance, relative to the radius, at which two local minima are one
ATTENTION_RESTARTS = 16


@dataclass(frozen=True, repr=False, eq=False)
class Cone(Described):
    r"""The points that correlate with the axis by at least 1 - mu and are at least as long as the radius.

    .. math:: C_{\mu,R_0}(q) = \{ p : \langle p/\|p\|, q \rangle \ge 1 - \mu,\ \|p\| \ge R_0 \}, \quad 0 < \mu < 2

    Args:
        axis: (d_key,) any nonzero vector; kept as a unit vector.

        mu: the width.

        radius: R₀ > 0.
    """

    axis: Any
    mu: float
    radius: float
    quantities = "d_key={axis:#}, mu={mu:.4g}, radius={radius:.4g}"

    def __post_init__(self) -> None:
        axis = unit(real_array(self.axis, "cone.axis", ("d_key",)))
        if not axis.size or not np.isfinite(axis).all():
            raise InputError("cone.axis", "a vector that is not zero", "zero" if axis.size else "an empty one")
        mu = positive_number(self.mu, "cone.mu")
        if mu >= 2.0:
            raise InputError("cone.mu", "a width between 0 and 2, both excluded", mu)
        for name, value in (("axis", axis), ("mu", mu), ("radius", positive_number(self.radius, "cone.radius"))):
            object.__setattr__(self, name, value)

    @property
    def half_angle(self) -> float:
        """The largest angle with the axis, in radians: its cosine is 1 - mu, but it is computed without cancellation."""
        return float(2.0 * np.arcsin(np.sqrt(0.5 * self.mu)))


@path_search.register(SoftmaxRisk)
def _vector_search(risk: SoftmaxRisk, region: object, restarts: int | None) -> AttentionSearch:
    if region is not None and (not isinstance(region, Cone) or len(region.axis) != risk.data.d_key):
        got = f"an axis of length {len(region.axis)}" if isinstance(region, Cone) else type(region).__name__
        raise InputError("region", f"a Cone with an axis of length {risk.data.d_key}", got)
    span = risk.in_key_span(None if region is None else region.axis)
    return AttentionSearch(span, region, ATTENTION_RESTARTS if restarts is None else restarts, risk.shape)


@path_search.register(MatrixRisk)
def _matrix_search(risk: MatrixRisk, region: object, restarts: int | None) -> AttentionSearch:
    """Return the search for p with keys u_i ⊗ x_it, or for one query u with keys ‖u‖ x_it, since W = u pᵀ/‖u‖ is as long as p
    (A Lemma 1).
    """
    X, u = risk.of_p.data.K, risk.query
    if risk.shares_query and region is None:  # the axis of a cone need not be some u pᵀ
        search = _vector_search(risk.of_p.with_keys(length(u) * X), None, restarts)
        span = search.span._replace(basis=np.kron(unit(u)[:, None], search.span.basis).astype(float))
        return replace(search, span=span, shape=risk.shape)
    queries = np.broadcast_to(u, (len(X), risk.d_query))
    keys = np.einsum("iq,itd->itqd", queries, X).reshape(*X.shape[:2], -1)
    return replace(_vector_search(risk.of_p.with_keys(keys), region, restarts), shape=risk.shape)


@dataclass(frozen=True)
class AttentionSearch(PathSearch):
    """Local minima of one problem's risk, in coordinates of the span of its keys, followed from small balls to large ones.

    The basis of the span maps to points of this shape, one entry after the other.
    """

    span: KeySpan
    cone: Cone | None
    restarts: int
    shape: tuple[int, ...]

    @property
    def risk(self) -> SoftmaxRisk:
        """The risk by coordinates of the span."""
        return self.span.risk

    def check_radii(self, radii: ArrayLike) -> FloatArray:
        """Check that radii increase and that none is below the cone's own."""
        limits = super().check_radii(radii)
        if self.cone is not None and limits[0] < self.cone.radius:
            raise InputError("radii", f"at least the cone's radius {self.cone.radius:g}", f"{limits[0]:g}")
        return limits

    def begin(self, generator: np.random.Generator) -> SearchState:
        """Start without a radius and without local minima."""
        return SearchState(np.empty(0), (), np.empty((0, self.span.basis.shape[1])), generator)

    def region(self, radius: float) -> Ball:
        """Return the ball of this radius, or what the cone leaves of it."""
        if self.cone is None:
            return Ball(radius)
        return Ball(radius, unit(self.cone.axis @ self.span.basis), self.cone.half_angle, self.cone.radius)

    def follow(self, state: SearchState, radius: float) -> SearchState:
        """Return the best point found at the next radius, and the state for the search beyond it."""
        risk, branches, generator = self.risk, state.branches, state.generator
        smooth = SMOOTH_LOGIT / risk.logit_scale if risk.logit_scale > 0.0 else np.inf
        if len(state.radii):
            last = float(state.radii[-1])
            rungs = ladder(last, radius, MAX_RADIUS_RATIO)
        else:  # from where logits are of order one, or from the cone's smallest norm
            first = min(radius, 1.0 / max(risk.logit_scale, 1.0 / radius))
            last = self.cone.radius if self.cone is not None else first
            rungs = [last, *ladder(last, radius, MAX_RADIUS_RATIO)] if radius > last else [radius]
        for rung in rungs:
            region, before = self.region(rung), branches[:1]
            bound = np.linalg.norm(branches, axis=-1, keepdims=True) >= last * (1.0 - SAME_POINT_RTOL)
            starts = [np.where(bound, branches * (rung / last), branches)]
            starts += [self._random_starts(region, generator)] if rung <= smooth or len(branches) == 0 else []
            minima = [minimise(risk, np.concatenate(starts), region)]
            if rung == radius:
                minima.append(minimise(risk, self._margin_starts(region, generator), region, MARGIN_START_STEPS))
            branches = self._distinct(np.concatenate(minima), rung)
            last = rung
            if self._lowest(np.concatenate([branches[:1], before])) == 1:  # a smaller ball had something better
                branches = np.concatenate([before, branches])
            branches[:1] = minimise(risk, branches[:1], region)  # nothing to do unless it was cut short
        return state.reached(radius, branches[0], branches)

    def finish(self, state: SearchState) -> PathPoints:
        """Return points, tokens, excess risk over the last tokens, and whether the ball binds."""
        c = np.stack(state.points)
        selected = self.risk.select(c)
        excess = self.risk.excess(c, np.broadcast_to(selected[-1], selected.shape))
        binding = np.empty(len(c), dtype=object)
        names = {(True, True): Binding.BOTH, (True, False): Binding.BALL, (False, True): Binding.CONE}
        for k, radius in enumerate(state.radii.tolist()):
            gradient = self.risk.second_order(c[k : k + 1]).gradient
            of_ball, of_cone = self.region(radius).kkt_multipliers(c[k : k + 1], gradient).multipliers[0]
            binding[k] = names.get((bool(of_ball > 0.0), bool(of_cone > 0.0 or of_ball < 0.0)), Binding.NONE)
        points = (c @ self.span.basis.T).reshape(len(c), *self.shape)
        return PathPoints(points, selected, excess.log, excess.sign, binding)

    def kkt_residual(self, state: SearchState) -> FloatArray:
        """Return the gradient that no constraint balances, relative to its terms, (n_radii,)."""
        pairs = zip(state.points, state.radii.tolist(), strict=True)
        return np.array([kkt_residual(self.risk, c, self.region(radius)) for c, radius in pairs])

    # ---- starts

    def _directions(self, region: Ball, generator: np.random.Generator) -> FloatArray:
        """Draw random unit vectors of the region, (restarts, r), after the axis of the cone."""
        r = self.span.basis.shape[1]
        directions = unit(generator.standard_normal((self.restarts, r))) if r else np.zeros((self.restarts, 0))
        if region.axis is None:
            return directions
        across = directions - np.outer(directions @ region.axis, region.axis)
        angle = region.half_angle * generator.random((self.restarts, 1))
        tilted = np.cos(angle) * region.axis + np.sin(angle) * unit(across) if r > 1 else 0.0 * angle + region.axis
        return np.concatenate([region.axis[None], tilted])

    def _random_starts(self, region: Ball, generator: np.random.Generator) -> FloatArray:
        """Draw starts on the ball and inside it, and one down the slope at the origin, for balls so small that the risk is smooth."""
        directions = self._directions(region, generator)
        share = np.where(np.arange(len(directions)) % 2 == 0, 1.0, generator.random(len(directions)))
        downhill = -self.risk.second_order(np.zeros((1, directions.shape[1]))).gradient
        length = float(np.linalg.norm(downhill))
        steepest = downhill * (region.radius / length) if length > 0.0 else downhill
        return np.concatenate([directions * (region.radius * share)[:, None], steepest])

    def _margin_starts(self, region: Ball, generator: np.random.Generator) -> FloatArray:
        """Return starts along the max-margin directions of the tokens that random directions select, and of the optimal tokens
        of a linear head.
        """
        if self.span.basis.shape[1] == 0:
            return np.empty((0, 0))
        selected = self.risk.select(self._directions(region, generator))
        if self.risk.is_linear:
            selected = np.concatenate([self.risk.data.optimal(self.risk.head)[None], selected])
        selected = np.unique(selected, axis=0)
        x = att_svm(self.risk.data.repeat(len(selected)), selected).x
        return unit(x[np.isfinite(x).all(axis=-1) & np.any(x != 0.0, axis=-1)]) * region.radius

    # ---- comparisons

    def _distinct(self, c: FloatArray, radius: float) -> FloatArray:
        """Return the best of the points (m, r), then the others by risk without repetition, as many as are kept."""
        best_first: list[FloatArray] = []
        while len(c) and len(best_first) < max(MIN_BRANCHES, self.restarts):
            best = c[self._lowest(c)]
            best_first.append(best)
            c = c[np.linalg.norm(c - best, axis=-1) > SAME_POINT_RTOL * radius]
        return np.stack(best_first)

    def _lowest(self, c: FloatArray) -> int:
        """Return the index of the smallest risk among points (m, r), compared relative to the tokens that the best one so far selects."""
        best, selected = 0, self.risk.select(c)
        for _ in range(len(c)):
            excess = self.risk.excess(c, np.broadcast_to(selected[best], selected.shape))
            below, log_value = below_selected_risk(self.risk, c, excess)
            kind = np.where(below, -2.0, excess.sign)
            height = np.where(below, log_value, excess.sign * np.where(excess.sign == 0.0, 0.0, excess.log))
            order = np.lexsort((height, kind))
            if kind[order[0]] == kind[best] and height[order[0]] == height[best]:
                return best
            best = int(order[0])
        return best
