r"""Residual attention as the dual of ATT-SVM: the law of a saturated model's small probabilities and its finite-norm position.

*Why.* Near the limit the descent direction is :math:`\sum_r w_r a_r` with :math:`w_r = c_r e^{-a_r^\top p}`, up to terms smaller by a
factor :math:`e^{-R\cdot\text{margin}\cdot\text{slack}}`. Let p move along it by arc length, and let
:math:`\omega = w/\sum w`. Then :math:`\dot\omega_r \propto -\omega_r (a_r - \bar a)^\top \bar a` with
:math:`\bar a = \sum_r \omega_r a_r`: the replicator equation, along which :math:`\|\bar a\|^2` falls. Its minimum over the simplex
is the dual of ATT-SVM: the point of the rows' convex hull nearest to the origin, :math:`\bar a = p^{mm}/\sum\lambda`,
:math:`\omega = \lambda/\sum\lambda`. If every active row carries a positive multiplier the approach is exponential in the norm R, at
the rates :math:`\mathrm{eig}(\Omega^{1/2} B B^\top \Omega^{1/2})/\text{margin}`, with :math:`\Omega = \mathrm{diag}(\omega)` and B the
rows less their common part along p^mm; or like :math:`e^{-R\cdot\text{margin}\cdot\text{slack}}` if the nearest inactive row
fades more slowly.

*Position.* :math:`w \propto \lambda` is one linear equation for p per row. In the span of the rows its solutions are
:math:`R\,p^{mm}/\|p^{mm}\| + \text{offset}`, because :math:`a_r^\top p^{mm} = 1` for all of them.

*Dependent rows.* If :math:`\sum_r z_r a_r = 0`, then :math:`\sum_r z_r \log(w_r/c_r) = 0` at every p. The model can only show
multipliers that obey this: those that minimise :math:`\sum_r \lambda_r (\log(\lambda_r/c_r) - 1)`. They exist and are unique,
and the equations stay consistent; :math:`\lambda_r = c_r e^{-a_r^\top o}` for the minimiser o of the convex
:math:`\sum_r c_r e^{-a_r^\top o} + o^\top p^{mm}`.

*Weakly active rows* have multiplier zero in every solution of the dual. Their share vanishes like 1/R, so log(c_r/λ_r) is
infinite for them. The law covers the other rows, which then also approach it like 1/R.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import as_scalar
from marginlens.data.tokens import TokenDataset, as_dataset, without_offsets
from marginlens.errors import InputError
from marginlens.losses.margin import Logistic, Loss, has_poles, slope_of
from marginlens.papers import implements
from marginlens.result import Result, Tabular
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.svm.dual_balance import ACTIVE_RANK_RTOL, balance, can_carry
from marginlens.theory.optimality import optimality_of
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray

_WEAK_MULTIPLIER_RTOL = 1e-9  # a multiplier this small, as λ_r ‖a_r‖ relative to ‖p^mm‖, counts as zero


@dataclass(frozen=True, repr=False, eq=False)
class ResidualLaw(Result, Tabular):
    r"""The law of a saturated model's residual attention at one selection per problem; for a batch every field has a leading axis.

    Attributes:
        data, scores, loss: the problem; scores is (…, n_inputs, n_tokens).

        solution: the ATT-SVM of the selection.

        selected: α, (…, n_inputs).

        holds: (…) whether α is locally optimal and has something to separate; if not, numbers are nan and deviations inf.

        carrying: (…, n_pairs) active constraints with a positive multiplier: the law covers these.

        weak: (…, n_pairs) active constraints that no multiplier vector uses; their share of the weight falls to zero, but only like 1/R.

        multipliers: (…, n_pairs) λ > 0 where carrying, zero elsewhere: the solver's if the carrying rows are independent, else
            those of smallest entropy relative to c, the only ones that training can show.

        log_ratio: (…, n_pairs) log(c_r/λ_r) where carrying, nan elsewhere.

        offset: (…, d_key) the predicted p - R p^mm/‖p^mm‖, in the span of the carrying rows and orthogonal to p^mm.

        residual: (…) the largest violation of a_r·offset + shift = log(c_r/λ_r): rounding, unless the rows are nearly dependent.

        rate: (…) the slowest rate at which a deviation dies out, :math:`e^{-\text{rate} \cdot R}` at norm R: a run is in the
            asymptotic regime once rate · R is well above one. It is inf if nothing can deviate, and zero if a constraint is
            weak.

        stiffness: (…) the fastest such rate. Normalised steps longer than `largest_step` = 2/stiffness overshoot for ever.

    `to_frame()` has one row per constraint: problem (of a batch), input, selected, other, multiplier, log_ratio, carrying, weak.
    """

    data: TokenDataset
    scores: FloatArray
    loss: Loss
    solution: MarginSolution
    selected: IntArray
    holds: Any
    carrying: BoolArray
    weak: BoolArray
    multipliers: FloatArray
    log_ratio: FloatArray
    offset: FloatArray
    residual: Any
    rate: Any
    stiffness: Any
    quantities = (
        "selected={selected}, {holds:holds|does not hold}, {carrying.sum} carrying and {weak.sum} weak constraints"
    )
    batch_quantities = "{selected:#} problems, {holds.sum} hold"

    @property
    def is_batch(self) -> bool:
        """True if it covers several problems."""
        return self.data.is_batch

    @property
    def largest_step(self) -> Any:
        """The largest step 2/stiffness, (…): a `NormalizedGD` up to this size lets the ratios settle; longer steps make them
        oscillate.
        """
        with np.errstate(divide="ignore"):
            return as_scalar(np.divide(2.0, self.stiffness))

    def _columns(self) -> dict[str, Any]:
        columns = self.solution._columns()
        known = {name: columns[name] for name in ("problem", "input", "selected", "other") if name in columns}
        law = {
            "multiplier": self.multipliers,
            "log_ratio": self.log_ratio,
            "carrying": self.carrying,
            "weak": self.weak,
        }
        return known | {name: value.ravel() for name, value in law.items()}


@implements("X", "O")
def residual_law(data: TokenDataset, head: ArrayLike, selected: ArrayLike, *, loss: Loss = Logistic()) -> ResidualLaw:  # noqa: B008
    r"""Predict the small probabilities of a saturated model, and the finite-norm position that follows.

    .. math:: |\ell'_i|\, s_{it}\, (\gamma_{i\alpha_i} - \gamma_{it}) \ \propto\ \lambda_{it}, \qquad
        a_r^\top p = \text{common} + \log\frac{c_r}{\lambda_r}, \quad c_r = |\ell'(\gamma_{i\alpha_i})| (\gamma_{i\alpha_i} - \gamma_{it})

    over the active constraints r = (i, t) of ATT-SVM, with rows :math:`a_r = k_{i\alpha_i} - k_{it}` and
    :math:`p^{mm} = \sum_r \lambda_r a_r`.

    Args:
        data: one problem or a batch.

        head: v (d_model,) or (batch, d_model).

        selected: (n_inputs,) or (batch, n_inputs): the tokens at which the model saturates, such as `run.selected`.

        loss: the training loss; it must decrease on the scores.

    Returns:
        A `ResidualLaw`. Check it on a long run with `deviation(law, p)` of `marginlens_papers.claims.ours.residual_attention`.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
        >>> law = ml.theory.residual_law(data[0], heads[0], data[0].optimal(heads[0]))
        >>> bool(law.holds), int(law.carrying.sum())
        (True, 4)
    """
    problem = ScoredTokens(without_offsets(as_dataset(data), "residual_law"), head, loss)
    problem.require_decreasing_loss()
    if has_poles(loss):
        chosen = np.take_along_axis(problem.scores, problem.data.selection(selected)[..., None], axis=-1)
        if not np.isfinite(slope_of(loss, chosen).log).all():
            expected = "one whose slope is finite at the scores of the selected tokens"
            raise InputError("loss", expected, type(loss).__name__)
    optimality, batch = optimality_of(problem, selected), data.as_batch()
    solution = optimality.solution
    is_optimal = np.array([status is Status.OPTIMAL for status in np.atleast_1d(solution.status)])
    holds = is_optimal & np.atleast_1d(optimality.is_locally_optimal)
    scores = problem.scores.reshape(batch.mask.shape)
    log_c, active = _log_c(batch, scores, loss, optimality.neighbours, solution)
    numbers = _numbers(solution, holds, active, log_c)
    fields = (holds, *numbers)
    if not data.is_batch:
        fields = tuple(as_scalar(values[0]) for values in fields)
    return ResidualLaw(data, problem.scores, loss, solution, optimality.selected, *fields)


def _numbers(solution: MarginSolution, holds: BoolArray, active: BoolArray, log_c: FloatArray) -> _Numbers:
    """Compute the numbers of the law, problem by problem."""
    n_problems, n_pairs = log_c.shape
    d_key = solution.x.shape[-1]
    x, rows = solution.x.reshape(n_problems, d_key), solution.rows.reshape(n_problems, n_pairs, d_key)
    given = solution.multipliers.reshape(n_problems, n_pairs)
    size = np.linalg.norm(rows, axis=-1)
    law = _Numbers.unknown(n_problems, n_pairs, d_key)
    for j in np.flatnonzero(holds):
        tight = np.flatnonzero(active[j])
        # The multipliers of rows of norm one.
        weight = given[j, tight] * size[j, tight]
        weight = np.where(weight > _WEAK_MULTIPLIER_RTOL * np.linalg.norm(x[j]), weight, 0.0)
        carries = can_carry(rows[j, tight] / size[j, tight, None], weight / np.sum(weight))
        law.carrying[j, tight], law.weak[j, tight] = carries, ~carries
        carrying, shown = tight[carries], (weight / size[j, tight])[carries]
        lam, law.offset[j], law.residual[j] = _solve(rows[j, carrying], shown, x[j], log_c[j, carrying])
        law.multipliers[j, carrying], law.log_ratio[j, carrying] = lam, log_c[j, carrying] - np.log(lam)
        others = rows[j, ~active[j] & (size[j] > 0.0)] @ x[j] - 1.0
        nearest = float(np.min(others, initial=1.0))
        law.rate[j], law.stiffness[j] = _rates(rows[j, carrying], lam, x[j], nearest)
    law.rate[law.weak.any(axis=-1)] = 0.0
    law.multipliers[~holds] = np.nan
    return law


class _Numbers(NamedTuple):
    """The fields of the law after `holds`, in their order."""

    carrying: BoolArray
    weak: BoolArray
    multipliers: FloatArray
    log_ratio: FloatArray
    offset: FloatArray
    residual: FloatArray
    rate: FloatArray
    stiffness: FloatArray

    @classmethod
    def unknown(cls, n_problems: int, n_pairs: int, d_key: int) -> _Numbers:
        """Return the fields if nothing carries, and no number is known."""
        carrying, weak = np.zeros((2, n_problems, n_pairs), dtype=np.bool_)
        log_ratio, offset = np.full((n_problems, n_pairs), np.nan), np.full((n_problems, d_key), np.nan)
        residual, rate, stiffness = np.full((3, n_problems), np.nan)
        zero = np.zeros((n_problems, n_pairs))
        return cls(carrying, weak, zero, log_ratio, offset, residual, rate, stiffness)


# ---- one problem


def _log_c(
    batch: TokenDataset, scores: FloatArray, loss: Loss, neighbours: BoolArray, solution: MarginSolution
) -> tuple[FloatArray, BoolArray]:
    """Compute log(|ℓ'(γ_α)| (γ_α - γ_t)) of every pair, and whether its constraint is active, each (batch, n_pairs)."""
    pairs = np.asarray(solution.pairs).reshape(len(batch), solution.lower.shape[-1], 3)
    i, alpha, t = np.moveaxis(np.maximum(pairs, 0), -1, 0)
    which = np.arange(len(batch))[:, None]
    top = scores[which, i, alpha]
    with np.errstate(divide="ignore", invalid="ignore"):
        log_c = slope_of(loss, top).log + np.log(top - scores[which, i, t])
    return log_c, neighbours.reshape(batch.mask.shape)[which, i, t] & (pairs[..., 0] >= 0)


def _solve(
    rows: FloatArray, multipliers: FloatArray, x: FloatArray, log_c: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Solve for the multipliers that training shows, the offset orthogonal to x, and the residual of its equations; nan if none
    is found.
    """
    if np.linalg.matrix_rank(rows, rtol=ACTIVE_RANK_RTOL) == len(rows):
        lam = multipliers
        place: FloatArray | None = np.asarray(
            np.linalg.lstsq(rows, log_c - np.log(lam), rcond=ACTIVE_RANK_RTOL)[0], dtype=np.float64
        )
    else:
        place = balance(rows, log_c, multipliers)
        lam = np.full(len(rows), np.nan) if place is None else np.exp(log_c - rows @ place)
    if place is None:
        return lam, np.full_like(x, np.nan), np.inf
    miss = rows @ place - (log_c - np.log(lam))
    along = x / np.linalg.norm(x)
    return lam, place - (place @ along) * along, float(np.max(np.abs(miss)))


def _rates(rows: FloatArray, lam: FloatArray, x: FloatArray, slack: float) -> tuple[float, float]:
    """Compute the slowest and the fastest rate per unit of norm; `slack` is that of the nearest inactive row, at most one."""
    margin = 1.0 / float(np.linalg.norm(x))
    sideways = rows - np.outer(rows @ x, x) * margin**2
    values = np.linalg.svd(np.sqrt(lam / np.sum(lam))[:, None] * sideways, compute_uv=False)
    values = values[values > ACTIVE_RANK_RTOL * np.max(np.linalg.norm(rows, axis=-1))] ** 2 / margin
    if not len(values):
        return np.inf, 0.0
    return float(min(values[-1], margin * slack)), float(values[0])
