"""How smooth the training risk is, which bounds the step size that every theorem on gradient descent allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.descend import descend
from marginlens.dynamics.record import Record
from marginlens.errors import positive_number
from marginlens.losses.margin import Logistic, Loss
from marginlens.optimizers import GradientDescent
from marginlens.papers import implements
from marginlens.risk.attention import risk, risk_gradient
from marginlens.risk.smoothness import smoothness
from marginlens.theory.problem import one_problem


@dataclass(frozen=True, repr=False, eq=False)
class GradientBudget:
    r"""How much gradient a descent with a constant step may meet, and how much it met.

    Attributes:
        allowed: the right side of Eq. (30), with the risk of the highest scores for the minimum.
        spent: the sum of ‖∇L(p(t))‖² over the steps.
        last: ‖∇L‖² at the end. largest_climb: the largest L(p(t+1)) - L(p(t)) + (η/2)‖∇L(p(t))‖², at most rounding where Eq. (25) holds.
        step: η. guaranteed: whether η ≤ 1/L_p, so that the lemma speaks of it.
    """

    allowed: float
    spent: float
    last: float
    largest_climb: float
    step: float
    guaranteed: bool

    def __repr__(self) -> str:
        return (
            f"GradientBudget(spent {self.spent:.4g} of {self.allowed:.4g}, last {self.last:.4g}, step {self.step:.4g})"
        )


@implements("A", "Eq. (25)", "Eq. (26)", "Eq. (30)")
def gradient_budget(
    data: TokenDataset,
    v: Any,
    *,
    step: float | None = None,
    n_steps: int = 1000,
    start: Any = None,
    loss: Loss = Logistic(),  # noqa: B008
) -> GradientBudget:
    r"""The sum of squared gradients along a descent with a constant step, beside the bound that makes it converge.

    .. math:: \sum_{t \ge 0} \|\nabla L(p(t))\|^2 \le \frac2\eta \big(L(p(0)) - L^\star\big), \qquad \eta \le 1/L_p

    Hence the gradients tend to zero, Eq. (26). No risk is below that of the highest score of every input, which stands for L*.

    Args:
        data: one problem. v: head (d_model,). step: η; 1/L_p by default. n_steps: steps taken. start: p(0), zero by default.
    Returns:
        A `GradientBudget`, computed from the iterates of `descend`.
    """
    one, largest = one_problem(data), smoothness(data, v, loss).largest_step
    eta = float(largest) if step is None else positive_number(step, "step")
    run = descend(one, v, loss=loss, optimizer=GradientDescent(eta), n_steps=n_steps, start=start, record=Record(1))
    points = run.saved["x"]
    many = one.repeat(len(points))
    values = risk(many, v, points, loss)
    squares = np.sum(risk_gradient(many, v, points, loss).value() ** 2, axis=-1)
    best = np.max(np.where(one.mask, one.scores(v), -np.inf), axis=-1)
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
