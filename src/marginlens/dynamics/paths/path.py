"""Regularisation paths of any risk: `path`, the `Path` it returns, and the protocol of a search for its points."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import correlation, length, unit
from marginlens.data.random_tokens import as_generator
from marginlens.errors import InputError, n_axes, real_array, whole_number
from marginlens.kinds import defining_class
from marginlens.losses.margin import Loss
from marginlens.losses.next_token import NextTokenLoss
from marginlens.norms import L2, Norm
from marginlens.norms.choice import as_norm
from marginlens.papers import implements
from marginlens.result import Result, Tabular, axes_for
from marginlens.result.palette import GLOBAL, LOCAL
from marginlens.risk.build import HeadLike, Problem, as_risk
from marginlens.risk.protocol import Risk, holds_batch
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.runtime.threads import single_blas_thread
from marginlens.typing import ArrayLike, Axes, BoolArray, FloatArray, IntArray, ObjectArray, Seed


class Binding(Enum):
    """The constraint that binds at a point of a path."""

    BALL = "The norm is at its limit R."
    CONE = "The point is at the edge of the cone or at its smallest norm."
    BOTH = "The norm is at its limit R and the point is at the edge of the cone."
    NONE = "Nothing: the risk has a local minimum there."


class SearchState(NamedTuple):
    """The state of a search: all that is needed to follow the path further.

    Attributes:
        radii: (n_radii,) or (n_radii, 2) the requested radii.

        points: the point of each, in the coordinates of the search.

        branches: local minima in the last ball that are followed further.

        generator: the source of random starts.
    """

    radii: FloatArray
    points: tuple[Any, ...]
    branches: Any
    generator: np.random.Generator

    def reached(self, radius: float | FloatArray, point: Any, branches: Any = None) -> SearchState:
        """Return the state with one more radius, its point, and its branches."""
        return SearchState(np.append(self.radii, [radius], axis=0), (*self.points, point), branches, self.generator)


class PathPoints(NamedTuple):
    """The points found by a search: the fields of `Path` that have one entry per radius."""

    points: FloatArray
    selected: IntArray
    log_excess: FloatArray
    excess_sign: FloatArray
    binding: ObjectArray
    trusted: Any = True


class PathSearch(ABC):
    """A search for the points of a path: one implementation for each kind of risk."""

    def check_radii(self, radii: ArrayLike) -> FloatArray:
        """Check that `radii` are positive and increasing, and return them as (n_radii,); a number stands for one radius."""
        limits = real_array(radii if n_axes(radii) else [radii], "radii", ("n_radii",))
        if len(limits) == 0 or limits[0] <= 0.0 or np.any(np.diff(limits) <= 0.0):
            wrong = limits[limits <= 0.0]
            got = f"{wrong[0]:g}" if len(wrong) else "none" if len(limits) == 0 else "radii that do not increase"
            raise InputError("radii", "positive numbers, each larger than the one before", got)
        return limits

    def begin(self, generator: np.random.Generator) -> SearchState:
        """Return the state before the first radius."""
        return SearchState(np.empty(0), (), None, generator)

    @abstractmethod
    def follow(self, state: SearchState, radius: Any) -> SearchState:
        """Return the state after one more radius: a number, or one number for each part of a point with its own radius."""

    @abstractmethod
    def finish(self, state: SearchState) -> PathPoints:
        """Collect the results for the points of a state."""

    @abstractmethod
    def kkt_residual(self, state: SearchState) -> FloatArray:
        """Compute the residuals of the conditions of a minimum, (n_radii,) or (n_radii, 2)."""

    def split(self, state: SearchState) -> Any:
        """Return the parts of the points as a NamedTuple; refuse if there are none."""
        raise InputError("risk", "one whose points have parts, such as JointRisk", "one whose points have none")


@singledispatch
def path_search(risk: object, region: object, restarts: int | None) -> PathSearch:
    """Return the search for this kind of risk; neighbouring modules register theirs, `general` that of every other risk."""
    raise NotImplementedError


def ladder(first: float, last: float, max_ratio: float) -> list[float]:
    """List radii from `first` (excluded) up to `last`, each at most `max_ratio` times the one before."""
    n_rungs = max(1, int(np.ceil(np.log(last / first) / np.log(max_ratio) - 1e-9)))
    return [*np.geomspace(first, last, n_rungs + 1)[1:-1].tolist(), last]


@dataclass(frozen=True, repr=False, eq=False)
class Path(Result, Tabular):
    r"""A finished regularisation path.

    Attributes:
        radii: (n_radii,) the limits R on the norm; (n_radii, 2) those on ‖v‖ and on ‖p‖ for a joint risk.

        points: `(n_radii, *risk.shape)` the points of smallest risk. `x` is another name for them.

        selected: (n_radii, n_inputs) the tokens with the most attention at each point.

        log_excess, excess_sign: (n_radii,) the risk less a reference, as logarithm and sign. The reference is the risk of selecting the
            last point's tokens outright for attention, the infimum for next tokens (nan if Graph-SVM is infeasible, because it is then
            unknown), and zero otherwise.

        binding: (n_radii,) a `Binding` for each radius, (n_radii, 2) for a joint risk.

        risk: what was minimised.

        trusted: (n_radii,) whether the risk distinguishes the point from others. It can be false only for your own risk: if the
            risk changes around the point by less than the rounding error of its value, the point need not be a minimum.

    `to_frame()` has one row per radius: radius (for a joint risk radius_v and radius_p), norm, log_excess (natural logarithm),
    excess_sign, selected, binding, trusted, and cosine_with_last, that of the point with the last one.
    """

    radii: FloatArray
    points: FloatArray
    selected: IntArray
    log_excess: FloatArray
    excess_sign: FloatArray
    binding: ObjectArray
    trusted: BoolArray
    risk: Any = field(repr=False)
    _search: Any
    _state: SearchState

    @property
    def x(self) -> FloatArray:
        """The points, `(n_radii, *risk.shape)`."""
        return self.points

    @property
    def norm(self) -> FloatArray:
        """The norm of each point, of the shape of `radii`: R if the ball binds."""
        norm = getattr(self._search, "norm", None)
        if norm is not None:
            return np.array([norm.value(x) for x in self.points])
        return self._by_part(lambda x, radius, q: length(x))

    def value(self) -> FloatArray:
        """Return the risk at each point, (n_radii,), recomputed."""
        return np.array([float(self.risk.value(x)) for x in self.points])

    def distance(self, direction: ArrayLike) -> FloatArray:
        """Compute ‖x(R)/R - q‖, (n_radii,), where q is a direction of the risk's shape, normalised first.

        For a joint path it takes a pair of directions (v, p) and returns (n_radii, 2).
        """
        return self._by_part(lambda x, R, q: np.linalg.norm(x / R[:, None] - unit(q), axis=-1), direction)

    def correlation(self, direction: ArrayLike) -> FloatArray:
        """Compute the cosine of x(R) with a direction of the risk's shape, (n_radii,); for a joint path with a pair (v, p),
        (n_radii, 2).
        """
        return self._by_part(lambda x, R, q: np.asarray(correlation(x, q)), direction)

    def _by_part(self, measure: Any, direction: Any = None) -> FloatArray:
        """Compute a measure of flat points (n_radii, d), radii and direction (d,), for each part with its own radii."""
        if self.radii.ndim == 1:
            parts, radii, directions = [self.points], [self.radii], [direction]
        else:
            parts, radii = list(self.split()), list(self.radii.T)
            directions = [None, None] if direction is None else list(direction)
        measured = []
        for x, R, q in zip(parts, radii, directions, strict=True):
            q = None if q is None else real_array(q, "direction", x.shape[1:]).reshape(-1)
            measured.append(measure(x.reshape(len(x), -1), R, q))
        return measured[0] if self.radii.ndim == 1 else np.stack(measured, axis=-1)

    def split(self) -> Any:
        """Return the parts of the points as a NamedTuple: (v, p) for a joint risk, (cyclic, strict) for next tokens.

        For next tokens they are the projections onto S_cyc and its complement, exact even if the first is lost to rounding in a
        matrix of norm R.
        """
        return self._search.split(self._state)

    def kkt_residual(self) -> FloatArray:
        r"""Recompute the residual of the conditions of a minimum, (n_radii,), or (n_radii, 2) for a joint risk.

        .. math:: \Big\| \nabla L(x) + \lambda x + \sum_c \mu_c n_c \Big\|, \quad \lambda, \mu \ge 0,
            \quad \text{relative to the length of } \nabla L \text{ if no two of its terms cancelled}

        For next tokens it is the larger of the residuals along S_cyc and across it, each relative to its own terms, so the
        second is just as exact far out, where it is :math:`e^{-R\cdot\text{margin}}`; if the first part was given, only the
        second counts. For factors and for your own risk it is relative to the gradient itself, and inside the ball to the
        gradient a hundredth of the radius away.
        """
        return self._search.kkt_residual(self._state)

    def resume(self, radii: ArrayLike, *, progress: ProgressCallback | None = None) -> Path:
        """Follow the path to further radii, all larger than its own. The result equals that of one path over all radii.

        Args:
            radii: as for `path`.

            progress: as for `path`.
        """
        further = self._search.check_radii(radii)
        if np.any(further[0] < self.radii[-1]) or not np.any(further[0] > self.radii[-1]):
            raise InputError("radii", f"larger than the last radius {self.radii[-1]}", f"{further[0]}")
        return _extended(self.risk, self._search, self._state, further, as_progress(progress))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the logarithm of the excess risk over the radius (that of p for a joint risk), and mark changes of the
        selection. Returns the axes.
        """
        ax = axes_for(ax)
        radii = self.radii if self.radii.ndim == 1 else self.radii[:, 1]
        ax.plot(radii, self.log_excess, marker="o", markersize=4, color=LOCAL)
        for k in np.flatnonzero(np.any(self.selected[1:] != self.selected[:-1], axis=-1)):
            label = None if ax.get_legend_handles_labels()[1] else "the selection changes"
            ax.axvline(
                float(np.sqrt(radii[k] * radii[k + 1])), color=GLOBAL, linestyle="--", linewidth=1.0, label=label
            )
        if ax.get_legend_handles_labels()[1]:
            ax.legend()
        ax.set(xscale="log", xlabel="radius", ylabel="log of the excess risk")
        return ax

    def _columns(self) -> dict[str, Any]:
        flat = self.points.reshape(len(self), -1)
        columns: dict[str, Any] = {}
        for name, values in (("radius", self.radii), ("norm", self.norm)):
            columns |= {name: values} if values.ndim == 1 else {f"{name}_v": values[:, 0], f"{name}_p": values[:, 1]}
        columns |= {"log_excess": self.log_excess, "excess_sign": self.excess_sign, "selected": self.selected}
        joint = self.binding.ndim == 2
        columns["binding"] = (
            [" and ".join(part.name for part in row) for row in self.binding] if joint else self.binding
        )
        return columns | {"trusted": self.trusted, "cosine_with_last": np.asarray(correlation(flat, flat[-1]))}

    def _doubt(self) -> str:
        """State how many points are not trusted, as the end of a sentence."""
        n_doubtful = int(np.sum(~self.trusted))
        return f"; {n_doubtful} not trusted: the risk changes by less than its rounding there" if n_doubtful else ""

    def __len__(self) -> int:
        return len(self.radii)

    def __repr__(self) -> str:
        first, last = (str(R) for R in (self.radii[0], self.radii[-1]))
        ends = f"selected={self.selected[-1].tolist()}, log excess {self.log_excess[-1]:.6g} at the last"
        return f"Path({len(self)} radii {first} … {last}, {ends}{self._doubt()})"


@implements("A", "Eq. (2)", "Eq. (9)", "Eq. (66)", "Thm 4", "Thm 5", "Thm 6", "Thm 7", "Thm 8")
@implements("C", "Algo-RP", "Eq. (11)", "Lemma 4", "Thm 1", "Thm 2")
def path(
    problem: Problem,
    radii: ArrayLike,
    *,
    head: HeadLike | None = None,
    loss: Loss | NextTokenLoss | None = None,
    norm: Norm = L2(),
    region: object = None,
    restarts: int | None = None,
    rng: Seed = 0,
    progress: ProgressCallback | None = None,
) -> Path:
    r"""Find the point of smallest risk in each ball, or in its intersection with a region.

    .. math:: \bar x(R) = \arg\min_{\|x\| \le R,\ x \in C} L(x)

    The risk is not convex, except for next tokens with the log-loss and C Eᵀ = I. Local minima are followed from small balls to
    large ones, new starts are added on the way, and candidates are compared by the logarithm of their excess risk. So radii of
    1e4/margin and beyond are as accurate as small ones for attention weights p, matrices W and their factors, (v, p), and next
    tokens. W is searched as p with the keys u_i ⊗ x_it, and for one query through A Lemma 1. The modules of
    `marginlens.dynamics.paths` describe the search for each kind of risk. Your own risk is minimised by a general method
    through `value`, `log_value` and `gradient`: `kkt_residual` says how well. That method sees no excess below the rounding
    error of the risk itself, about 1e-16 of it, so points at larger radii are unreliable, and `trusted` is False for them.

    Args:
        problem: a risk of one problem, or a dataset with `head` and `loss`, as `descend` takes them.

        radii: (n_radii,) positive and increasing. For a joint risk (n_radii, 2) limits on ‖v‖ and ‖p‖, or a pair (r, R) of them, each a
            number or (n_radii,), neither of which may fall.

        norm: the norm of the balls: `L2()` by default (`Frobenius()` for matrices), or any other, including your own. Joint
            risks, regions and next tokens support only the Euclidean norm. In other norms `kkt_residual` is the gap of Frank
            and Wolfe, and 8 restarts are the default. The ball of radius r of a `FactorRisk`, ‖Q‖² + ‖K‖² ≤ r², is the ball
            ‖W‖_* ≤ r²/2 of its matrix W = Q Kᵀ in the nuclear norm.

        region: where a point may be; everywhere by default. A `Cone` for attention weights p; for a matrix W its axis is a
            matrix too, row by row: `Cone(W.ravel(), …)`. `CyclicPart(W)` for next tokens, which fixes the part along S_cyc, so
            that the balls bound only the other part.

        restarts: new starts at each radius; by default 16 for p and W, 64 for (v, p), 4 for next tokens, 8 for other risks.
            More restarts make it more likely that the minimum is global.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

        progress: called as `progress(done, total)` after each radius. If it raises an error, the search ends, as with Ctrl-C.

    Returns:
        A `Path`; `path.resume(radii)` follows it further. Check it with `path.kkt_residual()`; to check that minima are global,
        use another `rng` and more restarts.
    """
    risk = as_risk(problem, head, loss)
    if holds_batch(risk):
        raise InputError("problem", "one problem", f"a batch of {len(risk)}", "Take one with data[j].")
    as_norm(norm, tuple(risk.shape))
    if restarts is not None:
        whole_number(restarts, "restarts", at_least=0)
    as_progress(progress)
    search = (
        path_search(risk, region, restarts) if defining_class(norm) is L2 else _in_norm(risk, norm, region, restarts)
    )
    limits = search.check_radii(radii)
    with single_blas_thread():
        begin = search.begin(as_generator(rng))
    return _extended(risk, search, begin, limits, progress)


def _in_norm(risk: Risk, norm: Norm, region: object, restarts: int | None) -> PathSearch:
    """Return the general search in balls of a norm other than the Euclidean; raise if points have parts or a region is given."""
    no_region(region, f"a path in {norm!r}")
    if hasattr(risk, "blocks") or hasattr(risk, "batch"):
        raise InputError("norm", f"ml.L2() for a {type(risk).__name__}", repr(norm))
    return path_search.dispatch(object)(risk, region, restarts, norm)


def _extended(
    risk: Risk, search: PathSearch, state: SearchState, radii: FloatArray, progress: ProgressCallback | None
) -> Path:
    """Return the path over the radii of `state` and these."""
    state = state._replace(generator=copy.deepcopy(state.generator))  # so that a path can be resumed twice
    with single_blas_thread():  # matrices this small only wait for each other's threads
        for k, radius in enumerate(radii):
            state = search.follow(state, radius)
            if progress is not None:
                progress(k + 1, len(radii))
        found = search.finish(state)
        found = found._replace(trusted=np.broadcast_to(found.trusted, len(state.radii)))
        return Path(state.radii, *found, risk, search, state)


def ball_bindings(binds: BoolArray) -> ObjectArray:
    """Return the `Binding` of each point, as an array."""
    return np.array([Binding.NONE, Binding.BALL], dtype=object)[binds.astype(int)]


def no_region(region: object, name: str) -> None:
    """Refuse a region if the search for this kind of risk supports none."""
    if region is not None:
        raise InputError("region", f"left out for {name}", repr(region))
