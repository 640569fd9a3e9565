"""Cones around a direction, and the basin cone of a locally optimal direction with its constants and radii."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import as_scalar, length, unit
from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset, without_offsets
from marginlens.errors import InputError, float_array, positive_number, real_array, real_number, whole_number
from marginlens.losses.margin import Logistic, Loss
from marginlens.papers import implements, uses
from marginlens.result import Result, Tabular
from marginlens.status import Status
from marginlens.theory.optimality import TokenOptimality, largest_distance, one_problem, optimality_of
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray, Seed

_BOUNDARY_RTOL = (
    1e-9  # boundary samples keep this share of mu between them and the boundary, so that rounding leaves them in
)
_UNIT_DISTANCE_ATOL = 1e-15  # what rounding can add to the distance of two unit vectors
_RADIUS_RTOL = 1e-14  # samples are longer than the radius by this share of it, so that rounding leaves them beyond it


@implements("A", "Eq. (7)", "Eq. (8)")
def in_cone(p: ArrayLike, q: ArrayLike, mu: ArrayLike, radius: ArrayLike = 0.0) -> Any:
    r"""Check whether p correlates with q by at least 1 - mu and is at least as long as the radius.

    .. math:: C_{\mu,R}(q) = \Big\{ p : \Big\langle \frac{p}{\|p\|}, \frac{q}{\|q\|} \Big\rangle \ge 1 - \mu,\ \|p\| \ge R \Big\}

    Args:
        p, q: (…, d_key), broadcast against each other.
        mu, radius: numbers, or arrays (…).
    Returns:
        A bool, or an array (…) of them; never true for a zero vector. It compares 1 - cosine, computed without cancellation.
    """
    points, axis = float_array(p, "p"), float_array(q, "q")
    wide, least = float_array(mu, "mu"), float_array(radius, "radius")
    if points.ndim == 0 or axis.ndim == 0 or points.shape[-1] != axis.shape[-1]:
        raise InputError("q", f"vectors of p's width, shape {points.shape}", f"shape {axis.shape}")
    if not (wide >= 0.0).all() or np.isnan(least).any():
        raise InputError("mu, radius", "a width of at least 0 and a norm", f"mu={wide}, radius={least}")
    try:
        distance = np.linalg.norm(unit(points) - unit(axis), axis=-1)  # sqrt(2 (1 - cosine)); nan for a zero vector
        return as_scalar((distance <= np.sqrt(2.0 * wide) + _UNIT_DISTANCE_ATOL) & (length(points) >= least))
    except ValueError as problem:
        shapes = [points.shape, axis.shape, wide.shape, least.shape]
        raise InputError(
            "p, q, mu, radius", "arrays that broadcast against each other", f"shapes {shapes}"
        ) from problem


@implements("A", "Eq. (8)")
def sample_cone(q: ArrayLike, mu: float, radius: float, n: int, rng: Seed) -> FloatArray:
    r"""Draw points of the cone C_{mu,R}(q) that cover its inside, its boundary and its smallest norm.

    Every other point lies on the boundary, correlation 1 - mu; the others are uniform over the cap of directions. Every other
    pair of points has norm R; the others have norms up to 3 R, evenly spread in the logarithm.

    Args:
        q: (d_key,) the axis.
        mu: in (0, 2].
        radius: R >= 0; norms start at 1 if it is 0.
        n: how many points.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        The points, (n, d_key); `in_cone(points, q, mu, radius)` is true for all of them. In one dimension all lie along q.
    """
    axis = unit(real_array(q, "q", ("d_key",)))
    mu, radius = positive_number(mu, "mu"), real_number(radius, "radius", "a finite norm of at least 0")
    if mu > 2.0 or not (np.isfinite(radius) and radius >= 0.0) or not (axis.size and np.isfinite(axis).all()):
        raise InputError("q, mu, radius", "a nonzero axis, mu up to 2 and a finite radius", f"mu={mu}, radius={radius}")
    generator, d = as_generator(rng), len(axis)
    whole_number(n, "n", at_least=0)
    which = np.arange(n)
    # 1 - cosine of a uniform direction in a small cap grows like u^(2/(d-1)) of a uniform u
    deviation = mu * (1.0 - _BOUNDARY_RTOL) * generator.random(n) ** (2.0 / max(d - 1, 1))
    deviation = np.where(which % 2 == 0, mu * (1.0 - _BOUNDARY_RTOL), deviation)
    sideways = generator.standard_normal((n, d))
    sideways -= np.outer(sideways @ axis, axis)
    size = np.linalg.norm(sideways, axis=-1, keepdims=True)
    sideways = np.where(size > 0.0, sideways / np.where(size > 0.0, size, 1.0), 0.0)
    if d == 1:
        deviation, sideways = np.zeros(n), np.zeros((n, d))
    # 1 - a along the axis and sqrt(a (2 - a)) sideways give the cosine 1 - a, however small a is
    directions = (1.0 - deviation)[:, None] * axis + np.sqrt(deviation * (2.0 - deviation))[:, None] * sideways
    norms = np.where(which % 4 < 2, 0.0, generator.random(n))
    base = radius if radius > 0.0 else 1.0
    return unit(directions) * (base * (1.0 + _RADIUS_RTOL) * 3.0**norms)[:, None]


_C0_PROVEN = 96.0  # what the proof of Lemma 7 (L3) needs for C_0 in Eq. (46)


@dataclass(frozen=True, repr=False, eq=False)
class BasinCone(Result, Tabular):
    r"""The cone :math:`C_{\mu,R}(p^{mm})` of a locally optimal selection, with its constants and the radius of each claim about it.

    Attributes:
        optimality: the selection, its margin problem and its neighbours.
        theta: Θ = 1/‖p^mm‖.
        delta: δ, half the smallest slack of a token that is not a neighbour; inf if all are neighbours.
        A: max‖k_it‖/Θ.
        A_bar: Ā, the largest distance between two keys of one input.
        mu: μ = (min(½, δ)/A)²/8.
        Gamma: Γ, the largest score difference within an input.
        gap_min, gap_max: the smallest and largest γ_α - γ_t over neighbours.
        n_inputs, n_tokens: n and T, of the inputs whose output depends on p: an input with one token, one key or one score adds a constant
            to the risk and is left out of every constant here.
        log_c_max, log_c_min: logarithms of the largest and smallest slope of the loss on the scores.
        log_L_p: the logarithm of the smoothness of the risk. Logarithms keep slopes of e^-1000 and their ratios accurate.
        every_input_has_neighbours: what Eqs (31a) to (46) take for granted. An input without neighbours can outweigh the others
            if its slope is far larger, and put a stationary point beyond Eq. (39). `correlation_radius` and `proven_radius`
            make such inputs negligible; the paper's radii do not.

    `to_frame()` has one row per claim about the cone: the claim, and the radius beyond which it holds.
    """

    optimality: TokenOptimality
    theta: float
    delta: float
    A: float
    A_bar: float
    mu: float
    Gamma: float
    gap_min: float
    gap_max: float
    n_inputs: int
    n_tokens: int
    log_c_max: float
    log_c_min: float
    log_L_p: float
    every_input_has_neighbours: bool

    # ---- constants made of the others

    @property
    def p(self) -> FloatArray:
        """The axis of the cone, p^mm, (d_key,)."""
        return self.optimality.solution.x

    @property
    def pi(self) -> float:
        """The parameter of Lemma 7 (L3) at the start of descent, π = μ/(2 - μ)."""
        return self.mu / (2.0 - self.mu)

    @property
    def log_C(self) -> float:
        """The logarithm of C in Eq. (31a), twice the largest slope times the largest score gap over neighbours."""
        return self.log_c_max + float(np.log(2.0 * self.gap_max))

    @property
    def log_c(self) -> float:
        """The logarithm of c in Eq. (31a), an eighth of the smallest slope times the smallest score gap over neighbours."""
        return self.log_c_min + float(np.log(self.gap_min / 8.0))

    @property
    def log_C_2(self) -> float:
        """The logarithm of C_2 in Eq. (58), (1 - μ) Ā² C² / (Θ c)."""
        geometry = np.log1p(-self.mu) + 2.0 * np.log(self.A_bar) - np.log(self.theta)
        return float(geometry) + 2.0 * self.log_C - self.log_c

    # ---- radii, from the paper's to what is proven without a gap

    @property
    def no_stationary_radius(self) -> float:
        """The radius of Eq. (39): beyond it, no stationary point of the risk lies in the cone."""
        return self.radius_for(64.0, 1.0)

    @property
    def radius(self) -> float:
        """The radius R of Eq. (46) with C_0 = 64 π, its lower limit, at which it equals Eq. (39)."""
        return self.radius_for(64.0 * self.pi, self.pi)

    @property
    def invariance_radius(self) -> float:
        """The radius R after Eqs (57) and (58), at least ½: the norm that the paper requires of the start if steps up to 1/L_p
        are to stay in the cone.
        """
        return max(0.5, self._rate * (self.log_C_3 + float(np.log(self.n_tokens / self.pi))))

    @property
    def correlation_radius(self) -> float:
        """The radius of Lemma 7 (L3) for π = μ/(2 - μ), with all constants explicit; see `explicit_radius`."""
        return self.explicit_radius(self.pi, self.pi**2 / (64.0 * self.A**2))

    @property
    def proven_radius(self) -> float:
        r"""A norm beyond which descent from inside the cone provably converges to p^mm in direction, for steps up to 1/L_p.

        A step can leave the cone only from its outer shell :math:`1 - \cos \in (\mu/2, \mu]`: a step from further inside turns
        by less than the width of the shell. In the shell :math:`\|\bar p - p^{mm}\|^2 > \mu/\Theta^2`, so `explicit_radius`
        applies with ν = μ/4, far larger than the whole cone needs; with Eqs (54) to (58) the step stays inside. The norm then
        diverges and eventually passes every `explicit_radius`, which gives the limit of the direction.
        """
        shell = self.explicit_radius(self.pi, self.mu / 4.0)
        reach = (
            np.log(self.A_bar * self.n_tokens) + self.log_C - self.log_L_p
        )  # of a step: log of e^(RΘ/2) times its length
        stays = 2.0 / self.theta * (np.log(self.n_tokens / self.pi) + self.log_C_2 - self.log_L_p)  # Eq. (58)
        turns = 2.0 / self.theta * (reach - np.log((np.sqrt(2.0) - 1.0) * np.sqrt(self.mu) * 0.5))
        return float(max(0.5, shell, stays, turns))

    def radius_for(self, C_0: float, pi: float) -> float:
        r"""Compute the radius of Eq. (46),
        :math:`\frac{\max(2, 1/\delta)}{\Theta} \log\frac{C_0 T \Gamma A}{\pi \gamma^{gap}_{\min}}`.
        """
        C_0, pi = positive_number(C_0, "C_0"), positive_number(pi, "pi")
        return self._rate * float(np.log(C_0 / pi * self.n_tokens * self.Gamma * self.A / self.gap_min))

    def explicit_radius(self, pi: float, nu: float) -> float:
        r"""Compute a norm beyond which p in the cone has gradient correlation at most 1 + π, if some neighbour's margin falls
        below 1 - 2ν.

        That is Lemma 7 (L3) for every p in the cone when :math:`\nu = \epsilon^2\Theta^2/4` with
        :math:`\epsilon = \pi/(4A\Theta)`: within ε of p^mm it holds outright; further away, if all neighbours' margins of
        :math:`\bar p = p\|p^{mm}\|/\|p\|` were above 1 - 2ν, the multipliers would give
        :math:`\langle\bar p, p^{mm}\rangle = \sum_r \lambda_r a_r^\top \bar p > (1 - 2\nu)\|p^{mm}\|^2`, so
        :math:`\|\bar p - p^{mm}\|^2 < 4\nu/\Theta^2 = \epsilon^2`. The radius is the largest of Eq. (46) with C_0 = 96 (what
        absorbing :math:`6\Gamma A((1 - s)^2 + Q)` takes), Eq. (49), and the bound after Eq. (50). Inputs without neighbours
        double C_0 and add a fourth term: some neighbour's margin never exceeds 1, so their terms are smaller by
        :math:`e^{-R\Theta\delta}`.
        """
        pi, nu = positive_number(pi, "pi"), positive_number(nu, "nu")
        log_scale = np.log(self.n_tokens * self.Gamma * self.A / (pi * self.gap_min))
        log_ratio = np.log(self.n_inputs * self.n_tokens) + self.log_c_max - self.log_c_min
        base = self.radius_for(_C0_PROVEN if self.every_input_has_neighbours else 2.0 * _C0_PROVEN, pi)
        split = (np.log(8.0) + log_scale) / (nu * self.theta)  # Eq. (49)
        between = (np.log(8.0) + log_scale + log_ratio) / ((2.0 * nu + pi / 2.0) * self.theta)
        others = 0.0
        if not self.every_input_has_neighbours:
            others = (np.log(48.0) + log_scale + log_ratio) / (self.delta * self.theta)
        return float(max(base, split, between, others))

    @property
    def _rate(self) -> float:
        return max(2.0, 1.0 / self.delta) / self.theta

    @property
    def log_C_3(self) -> float:
        """The logarithm of C_3 after Eq. (58), with C_0 = 64 π."""
        return max(float(np.log(64.0 * self.pi * self.Gamma * self.A / self.gap_min)), self.log_C_2 - self.log_L_p)

    # ---- points

    def contains(self, p: ArrayLike, radius: float | None = None) -> Any:
        """Return whether p, (…, d_key), lies in the cone at a norm of at least `radius`, by default that of Eq. (46)."""
        return in_cone(p, self.p, self.mu, self.radius if radius is None else radius)

    def sample(self, n: int, rng: Seed, radius: float | None = None) -> FloatArray:
        """Draw `n` points of the cone, (n, d_key), at norms from `radius` on, by default that of Eq. (46)."""
        return sample_cone(self.p, self.mu, self.radius if radius is None else radius, n, rng)

    def __repr__(self) -> str:
        return (
            f"BasinCone({self.optimality.selected.tolist()}, mu={self.mu:.4g}, radius={self.radius:.4g}, "
            f"proven_radius={self.proven_radius:.4g})"
        )

    def _radii(self) -> dict[str, float]:
        """Return each claim and the norm beyond which it holds."""
        return {
            "no stationary point": self.no_stationary_radius,
            "the paper's R, Eq. (46)": self.radius,
            "steps stay inside, Eq. (58)": self.invariance_radius,
            "Lemma 7 (L3)": self.correlation_radius,
            "limit proved": self.proven_radius,
        }

    def _columns(self) -> dict[str, Any]:
        radii = self._radii()
        return {"claim": list(radii), "radius": list(radii.values())}


@implements("A", "Eq. (32)", "Eq. (39)", "Eq. (46)", "Eq. (57)", "Eq. (58)", "Thm 3")
@uses(
    "A",
    {
        "Eq. (33)": "What the width μ guarantees of key differences along every direction of the cone.",
        "Eq. (49)": "The first condition on the radius of (L3), with an explicit ν: `BasinCone.explicit_radius`.",
        "Eq. (50)": "The second condition on that radius, in the display after it: `BasinCone.explicit_radius`.",
    },
)
def basin_cone(data: TokenDataset, head: ArrayLike, selected: ArrayLike, *, loss: Loss = Logistic()) -> BasinCone:  # noqa: B008
    r"""Compute the cone around a locally optimal direction in which descent converges to it, and the radii beyond which that holds.

    .. math:: \mu = \frac18 \Big(\frac{\min(\frac12, \delta)}{A}\Big)^2, \quad
        R = \frac{\max(2, \delta^{-1})}{\Theta} \log\frac{C_0 T \Gamma A}{\pi\,\gamma^{gap}_{\min}}, \quad
        \delta = \frac12 \min_{i,\ \tau \text{ no neighbour}} (k_{i\alpha_i} - k_{i\tau})^\top p^{mm} - 1

    In "C_0 ≥ 64π" the π is the lemma's parameter. The slack in δ equals :math:`(k_{it} - k_{i\tau})^\top p^{mm}` for any
    neighbour t, and is defined for inputs without neighbours too. The slopes of the loss are taken on the interval from the
    lowest to the highest score, which contains all margins; the paper's c and C use the wider interval [-B, B] with B = ‖v‖
    max‖x‖.

    Args:
        data: one problem.
        head: v (d_model,).
        selected: (n_inputs,) the token index alpha_i of each input.
        loss: gives the slopes and the smoothness in Eqs (31), (57) and (58).
    Returns:
        A `BasinCone`. Check it with `gradient_ratio` and `local_gradient_bounds` at `cone.sample(n, rng)`, and with `descend`.
    """
    return basin_of(
        ScoredTokens(without_offsets(one_problem(data), "basin_cone"), head, loss), data.selection(selected)
    )


def basin_of(problem: ScoredTokens, alpha: IntArray) -> BasinCone:
    """Compute the basin cone of a locally optimal selection (n_inputs,) of one problem."""
    part, inputs = problem.part, _inputs_of_part(problem)
    found = optimality_of(part, alpha[inputs])
    if not found.is_locally_optimal or found.solution.status is Status.TRIVIAL:
        expected = "locally optimal tokens, feasible and scored above their neighbours, in a problem with something to separate"
        raise InputError("selected", expected, repr(found), "List them with locally_optimal_directions(data, v).")
    data, p = part.data, found.solution.x
    theta = float(1.0 / length(p))
    difference, other = part.differences(found.selected)
    chosen = np.take_along_axis(data.K, found.selected[:, None, None], axis=-2)
    slack = (chosen - data.K) @ p - 1.0
    delta = 0.5 * float(np.min(slack[other & ~found.neighbours], initial=np.inf))
    A = float(np.max(length(data.K))) / theta
    spans = np.max(part.scores, axis=-1) - np.min(np.where(data.mask, part.scores, np.inf), axis=-1)
    log_c_max, log_c_min = part.log_slopes
    return BasinCone(
        optimality=_for_all_inputs(found, problem, alpha, inputs),
        theta=theta,
        delta=delta,
        A=A,
        A_bar=largest_distance(data.K, data.mask),
        mu=(min(0.5, delta) / A) ** 2 / 8.0,
        Gamma=float(np.max(spans)),
        gap_min=float(np.min(difference[found.neighbours])),
        gap_max=float(np.max(difference[found.neighbours])),
        n_inputs=data.n_inputs,
        n_tokens=data.n_tokens,
        log_c_max=float(log_c_max),
        log_c_min=float(log_c_min),
        log_L_p=float(part.smoothness.log_L_p),
        every_input_has_neighbours=bool(np.all(np.any(found.neighbours, axis=-1))),
    )


def _inputs_of_part(problem: ScoredTokens) -> BoolArray:
    """Return the mask (n_inputs,) of the inputs of `problem.part`."""
    return problem.dependent if problem.part is not problem else np.ones(problem.data.n_inputs, dtype=np.bool_)


def _for_all_inputs(
    found: TokenOptimality, problem: ScoredTokens, alpha: IntArray, inputs: BoolArray
) -> TokenOptimality:
    """Restate a result for the inputs that depend on p with their indices in the whole problem."""
    if inputs.all():
        return found
    neighbours = np.zeros(problem.data.mask.shape, dtype=np.bool_)
    neighbours[inputs, : found.neighbours.shape[-1]] = found.neighbours
    pairs = np.array(found.solution.pairs)
    pairs[:, 0] = np.flatnonzero(inputs)[pairs[:, 0]]
    return replace(found, solution=replace(found.solution, pairs=pairs), selected=alpha, neighbours=neighbours)
