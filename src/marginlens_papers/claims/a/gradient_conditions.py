"""Inequalities that the gradient of the attention risk obeys, both sides of each, in logarithms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.arithmetic.directions import as_scalar, correlation, unit
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.dynamics.descend import descend
from marginlens.dynamics.record import Record
from marginlens.errors import InputError, float_array, n_axes, positive_number, real_array
from marginlens.losses.margin import Logistic, Loss
from marginlens.optimizers import GradientDescent
from marginlens.papers import implements, uses
from marginlens.risk import AttentionRisk
from marginlens.risk.smoothness import smoothness
from marginlens.risk.softmax import attend, logits
from marginlens.svm import att_svm
from marginlens.theory.basin import BasinCone
from marginlens.theory.optimality import globally_optimal_direction, one_problem
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import ArrayLike, FloatArray


class KeyInequality(NamedTuple):
    """Logarithms of the two sides of Lemma 3, each (…); -inf if a side is zero."""

    log_left: Any
    log_bound: Any


@implements("A", "Lemma 3")
def key_inequality(log_s: Any, gamma: Any, a: ArrayLike) -> KeyInequality:
    r"""How far the softmax covariance of logits and scores is from its first order around the first token.

    .. math:: \Big| a^\top \mathrm{diag}(s)\gamma - a^\top s s^\top \gamma - \sum_{t \ge 2} (a_1 - a_t) s_t (\gamma_1 - \gamma_t) \Big|
        = \Big| \sum_{t\ge2} (a_1 - a_t) s_t \Big| \Big| \sum_{t\ge2} (\gamma_1 - \gamma_t) s_t \Big| \le 2\Gamma A (1 - s_1)^2

    with :math:`\Gamma = \max|\gamma_t - \gamma_\tau|` and :math:`A = \max|a_t|`. The left side is a product of two sums, because a
    covariance does not change when :math:`a_1` and :math:`\gamma_1` are subtracted; and :math:`1 - s_1` is the sum of the other
    probabilities, so nothing cancels.

    Args:
        log_s: (…, n_tokens) logarithms of probabilities; -inf if there is no token. gamma, a: (…, n_tokens).
    Returns:
        A `KeyInequality` over the leading axes.
    """
    given = [float_array(x, name) for name, x in (("log_s", log_s), ("gamma", gamma), ("a", a))]
    try:
        logs, scores, values = np.broadcast_arrays(*given)
    except ValueError as problem:
        shapes = " and ".join(str(array.shape) for array in given)
        raise InputError("gamma, a", "numbers for the tokens of log_s", f"shapes {shapes}") from problem
    if logs.ndim == 0 or logs.shape[-1] == 0 or not (logs < np.inf).all():
        raise InputError(
            "log_s", "logarithms of probabilities with tokens on the last axis", f"shape {logs.shape}, nan or inf"
        )
    real = ~np.isneginf(logs)
    for name, array in (("gamma", scores), ("a", values)):
        if not np.isfinite(array[real]).all():
            raise InputError(name, "a finite number for every token", "nan or inf")
    scores, values = np.where(real, scores, scores[..., :1]), np.where(real, values, values[..., :1])
    rest = logs[..., 1:]
    with np.errstate(divide="ignore"):
        log_left = _log_abs_sum(rest, values[..., :1] - values[..., 1:]) + _log_abs_sum(
            rest, scores[..., :1] - scores[..., 1:]
        )
        size = np.log(2.0 * np.ptp(scores, axis=-1)) + np.log(np.max(np.abs(values), axis=-1))
    return KeyInequality(as_scalar(log_left), as_scalar(size + 2.0 * _log_sum(rest)))


@implements("A", "Lemma 4")
def descent_correlation(data: TokenDataset, head: Any, p: ArrayLike, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""Cosine between the direction of descent and the best direction: positive at every p under Assumption B.

    .. math:: \frac{\langle -\nabla L(p), p^{mm\star} \rangle}{\|\nabla L(p)\|\, \|p^{mm\star}\|}

    Args:
        data: one problem or a batch. head: v (…, d_model). p: (…, d_key).
    Returns:
        Shape (…); nan if the best direction does not exist or the gradient is exactly zero.
    """
    gmm = globally_optimal_direction(as_dataset(data), head).direction
    return correlation(-AttentionRisk(data, head, loss).gradient(p).array, gmm)


@implements("A", "Lemma 5", "Lemma 7")
def gradient_ratio(data: TokenDataset, head: Any, p: ArrayLike, selected: ArrayLike, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""How much better p is than p^mm(α) as a direction of descent at p; at most 1 + π at large norm.

    .. math:: \frac{\langle \nabla L(p), p/\|p\| \rangle}{\langle \nabla L(p), p^{mm}/\|p^{mm}\| \rangle} \le 1 + \pi

    Lemma 5: for one input under Assumption B with α = opt, at every p beyond `gradient_ratio_radius`. Lemma 7 (L3): at every p in the
    cone of a locally optimal α beyond `BasinCone.explicit_radius`.

    Args:
        data: one problem or a batch. head: v (…, d_model). p: (…, d_key), not zero. selected: α, (…, n_inputs).
    Returns:
        Shape (…); nan if α is infeasible.
    """
    gradient = AttentionRisk(as_dataset(data), head, loss).gradient(p).array
    along_p = np.einsum("...d,...d->...", gradient, unit(data.point(p)))
    along_mm = np.einsum("...d,...d->...", gradient, att_svm(data, selected).direction)
    with np.errstate(divide="ignore", invalid="ignore"):
        return as_scalar(along_p / along_mm)


@implements("A", "Eq. (52)")
def correlation_floor(
    data: TokenDataset,
    head: Any,
    points: Any,
    selected: ArrayLike,
    *,
    step: float,
    epsilon: float,
    loss: Loss = Logistic(),  # noqa: B008
) -> FloatArray:
    r"""The cosine with p^mm(α) that descent must have reached, from the point on where its gradients compare by 1 - ε.

    .. math:: \Big\langle \frac{p(t)}{\|p(t)\|}, \frac{p^{mm}}{\|p^{mm}\|} \Big\rangle
        \ge 1 - \epsilon + \frac{C(\epsilon, \eta)}{\|p(t)\|}, \quad
        C = \Big\langle p(t_\epsilon), \frac{p^{mm}}{\|p^{mm}\|} \Big\rangle - (1 - \epsilon)\|p(t_\epsilon)\|
        - 2\eta(1 - \epsilon)\big(L(p(t_\epsilon)) - L^\star\big)

    It holds if η ≤ 1/L_p, no norm is below ½, and `gradient_ratio` is at most 1/(1 - ε) at every point (Eq. (53)). The risk of the
    highest scores stands for L*.

    Args:
        data: one problem. head: v (d_model,). points: (n_points, d_key) iterates, the first being p(t_ε). selected: α (n_inputs,).
        step: η. epsilon: ε in (0, 1).
    Returns:
        (n_points,) the right side. Check it with `correlation(points, att_svm(data, selected).x)`.
    """
    path = real_array(points, "points", ("n_points", one_problem(data).d_key))
    eta, share = positive_number(step, "step"), 1.0 - positive_number(epsilon, "epsilon")
    if share <= 0.0:
        raise InputError("epsilon", "a number between 0 and 1, both excluded", epsilon)
    best = np.max(np.where(data.mask, data.scores(head), -np.inf), axis=-1)
    drop = float(AttentionRisk(data, head, loss).value(path[0])) - float(np.mean(np.asarray(loss.value(best))))
    norms = np.linalg.norm(path, axis=-1)
    constant = float(path[0] @ att_svm(data, selected).direction) - share * norms[0] - 2.0 * eta * share * drop
    return np.asarray(share + constant / norms)


@implements("A", "Lemma 5")
def gradient_ratio_radius(data: TokenDataset, head: Any, pi: float) -> float:
    r"""A norm beyond which Lemma 5 holds for π, for one input under Assumption B.

    .. math:: R_\pi = \frac{1}{\nu\Theta} \log\frac{2 M T}{\Theta \pi}, \qquad \nu = \frac{\pi^2 \Theta^2}{16 M^2}, \quad M = \max_t \|k_t\|

    The paper leaves ν implicit; this one follows from the multipliers of p^mm as in `BasinCone.explicit_radius`, with ε = π/(2M).

    Args:
        data: one problem with one input. head: v (d_model,). pi: positive.
    Returns:
        The radius, inf if the optimal token cannot be separated. Check it with `gradient_ratio`.
    """
    if one_problem(data).n_inputs != 1:
        raise InputError("data", "a problem with one input", f"{data.n_inputs} inputs")
    pi = positive_number(pi, "pi")
    theta = float(globally_optimal_direction(data, head).margin)
    if not 0.0 < theta < np.inf:
        return float("inf")
    M = float(np.max(np.linalg.norm(data.K, axis=-1)))
    nu = (pi * theta / M) ** 2 / 16.0
    return max(0.0, float(np.log(2.0 * M * data.n_tokens / (theta * pi)) / (nu * theta)))


class LocalGradientBounds(NamedTuple):
    """Both sides of Eqs (31a) to (31c) at a batch of points, each (n_points,), the first five as logarithms.

    Attributes:
        log_upper, log_descent, log_lower: C·mean(1 - s), -⟨∇L, q⟩ (nan if that is not positive), c·mean(1 - s).
        log_norm, log_norm_bound, log_decay: ‖∇L‖, Ā C·mean(1 - s), Ā C T e^(-‖p‖Θ/2).
        cosine, cosine_bound: of -∇L and q; cΘ/(ĀC).
    """

    log_upper: FloatArray
    log_descent: FloatArray
    log_lower: FloatArray
    log_norm: FloatArray
    log_norm_bound: FloatArray
    log_decay: FloatArray
    cosine: FloatArray
    cosine_bound: float

    @property
    def hold(self) -> Any:
        """Whether all of (31a), (31b) and (31c) hold, (n_points,)."""
        first = (self.log_lower <= self.log_descent) & (self.log_descent <= self.log_upper)
        second = (self.log_norm <= self.log_norm_bound) & (self.log_norm_bound <= self.log_decay)
        return first & second & (self.cosine >= self.cosine_bound)


@implements("A", "Lemma 7", "Eq. (31a)", "Eq. (31b)", "Eq. (31c)")
@uses(
    "A",
    {
        "Eq. (35)": "Attention to neighbours and to other tokens beyond the radius, which turns the slopes into the bounds.",
        "Eq. (40)": "The two sides of the slope along q, before the smallest and the largest slope of the loss are taken out.",
    },
)
def local_gradient_bounds(
    data: TokenDataset,
    head: Any,
    cone: BasinCone,
    p: ArrayLike,
    q: Any = None,
    loss: Loss = Logistic(),  # noqa: B008
) -> LocalGradientBounds:
    r"""Both sides of the gradient bounds in the cone of a locally optimal selection.

    .. math:: C\,\overline{1 - s_\alpha} \ge -\langle \nabla L(p), q \rangle \ge c\,\overline{1 - s_\alpha} > 0, \quad
        \|\nabla L(p)\| \le \bar A C\,\overline{1 - s_\alpha} \le \bar A C T e^{-\|p\|\Theta/2}, \quad
        -\Big\langle \frac{q}{\|q\|}, \frac{\nabla L(p)}{\|\nabla L(p)\|} \Big\rangle \ge \frac{c\,\Theta}{\bar A C}

    Args:
        data: one problem. head: v (d_model,). cone: its `basin_cone`, made with the same loss.
        p: (n_points, d_key) in the cone, beyond Eq. (39). q: directions of the cone, (n_points, d_key) or (d_key,); p itself by default.
    Returns:
        A `LocalGradientBounds` whose `hold` is true if every input that depends on p has a neighbour; 1 - s is averaged over these
        inputs, the others counting as zero. It is a sum, never a difference.
    """
    points = real_array(p, "p", ("n_points", one_problem(data).d_key))
    if len(points) == 0:
        raise InputError("p", "at least one point", f"shape {points.shape}")
    if not isinstance(cone, BasinCone):
        raise InputError("cone", "what basin_cone(data, v, selected) gives", type(cone).__name__)
    axes = points.shape[-1:] if n_axes(q) == 1 else points.shape
    toward = unit(points if q is None else np.broadcast_to(real_array(q, "q", axes), points.shape))
    dependent = ScoredTokens(data, head).dependent
    part = data.take_inputs(dependent)
    log_share = np.log(part.n_inputs) - np.log(data.n_inputs)  # what the other inputs leave of a mean over all
    many = part.repeat(len(points))
    selected = np.broadcast_to(cone.optimality.selected[dependent], many.y.shape)
    at = attend(logits(many, points), many.scores(head), many.mask, selected)
    others = np.where(np.arange(part.n_tokens) == at.alpha[..., None], -np.inf, at.log_s)
    log_missing = _log_sum(others.reshape(len(points), -1)) - np.log(data.n_inputs)  # of mean(1 - s)
    gradient = AttentionRisk(many, head, loss).gradient(points)
    descent = -np.einsum("...d,...d->...", gradient.array, toward) / cone.theta
    with np.errstate(divide="ignore", invalid="ignore"):
        log_descent = np.log(np.where(descent > 0.0, descent, np.nan)) + gradient.log_scale + log_share
    bound = np.log(cone.A_bar) + cone.log_C
    return LocalGradientBounds(
        log_upper=cone.log_C + log_missing,
        log_descent=log_descent,
        log_lower=cone.log_c + log_missing,
        log_norm=gradient.log_norm + log_share,
        log_norm_bound=bound + log_missing,
        log_decay=bound + np.log(data.n_tokens) - np.linalg.norm(points, axis=-1) * cone.theta / 2.0,
        cosine=np.asarray(correlation(-gradient.array, toward)),
        cosine_bound=float(np.exp(cone.log_c - cone.log_C)) * cone.theta / cone.A_bar,
    )


def _log_abs_sum(logs: FloatArray, values: FloatArray) -> FloatArray:
    """log|Σ e^logs values| over the last axis, -inf for an empty or zero sum."""
    with np.errstate(divide="ignore"):
        largest = np.max(logs + np.log(np.abs(values)), axis=-1, initial=-np.inf)
        safe = np.where(np.isneginf(largest), 0.0, largest)
        # each term once more as sign · exp: the largest is ±1, so the sum keeps its relative accuracy if the terms agree in sign
        terms = np.sign(values) * np.exp(logs + np.log(np.abs(values)) - safe[..., None])
        return np.log(np.abs(np.sum(terms, axis=-1))) + safe


def _log_sum(logs: FloatArray) -> FloatArray:
    """log Σ e^logs over the last axis, -inf for an empty sum."""
    if logs.shape[-1] == 0:
        return np.full(logs.shape[:-1], -np.inf)
    with np.errstate(divide="ignore"):
        return np.asarray(scipy.special.logsumexp(logs, axis=-1))


class GradientBudget(NamedTuple):
    r"""The bound on the squared gradients along a descent with a constant step, and their sum.

    Attributes:
        allowed: the right side of Eq. (30), with the risk of the highest scores for the minimum.
        spent: the sum of ‖∇L(p(t))‖² over the steps.
        last: ‖∇L‖² at the end. largest_climb: the largest L(p(t+1)) - L(p(t)) + (η/2)‖∇L(p(t))‖², at most rounding if Eq. (25) holds.
        step: η. guaranteed: whether η ≤ 1/L_p, so that the lemma speaks of it.
    """

    allowed: float
    spent: float
    last: float
    largest_climb: float
    step: float
    guaranteed: bool


@implements("A", "Eq. (25)", "Eq. (26)", "Eq. (30)")
def gradient_budget(
    data: TokenDataset,
    head: Any,
    *,
    step: float | None = None,
    n_steps: int = 1000,
    start: Any = None,
    loss: Loss = Logistic(),  # noqa: B008
) -> GradientBudget:
    r"""The sum of squared gradients along a descent with a constant step, and the bound that makes it converge.

    .. math:: \sum_{t \ge 0} \|\nabla L(p(t))\|^2 \le \frac2\eta \big(L(p(0)) - L^\star\big), \qquad \eta \le 1/L_p

    Hence the gradients tend to zero, Eq. (26). No risk is below that of the highest score of every input, which stands for L*.

    Args:
        data: one problem. head: v (d_model,). step: η; 1/L_p by default. n_steps: steps taken. start: p(0), zero by default.
    Returns:
        A `GradientBudget`, computed from the iterates of `descend`.
    """
    problem, largest = one_problem(data), smoothness(data, head, loss).largest_step
    eta = float(largest) if step is None else positive_number(step, "step")
    run = descend(
        problem, head, loss=loss, optimizer=GradientDescent(eta), n_steps=n_steps, start=start, record=Record(1)
    )
    points = run.saved["x"]
    many = problem.repeat(len(points))
    values = AttentionRisk(many, head, loss).value(points)
    squares = np.sum(AttentionRisk(many, head, loss).gradient(points).value() ** 2, axis=-1)
    best = np.max(np.where(problem.mask, problem.scores(head), -np.inf), axis=-1)
    floor = float(np.mean(np.asarray(loss.value(best))))
    climb = np.max(np.diff(values) + 0.5 * eta * squares[:-1], initial=-np.inf)
    return GradientBudget(
        allowed=2.0 / eta * (float(values[0]) - floor),
        spent=float(np.sum(squares[:-1])),
        last=float(squares[-1]),
        largest_climb=float(climb),
        step=eta,
        guaranteed=bool(eta <= largest),
    )
