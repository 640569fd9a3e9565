"""Gradient descent on p: the exact iterates of GD and NGD, for one problem or thousands."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.dynamics.attention import logits
from marginlens.dynamics.fused import descend_problems
from marginlens.dynamics.gradient import ScaledVector, pairwise_gradient
from marginlens.dynamics.heads import as_head
from marginlens.dynamics.steps import NormalizedStep, Record, StepRule, as_step, steps_to_save
from marginlens.dynamics.stepwise import descend_stepwise
from marginlens.dynamics.trajectory import Run, Trajectory, finish, single
from marginlens.errors import n_axes, reject, whole_number
from marginlens.losses import Logistic, Loss, as_loss, compiled_code, slope_of
from marginlens.papers import implements
from marginlens.threads import over_problems

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@implements("A", "Eq. (3)")
def descend(
    data: TokenDataset,
    v: Any,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    step: StepRule = NormalizedStep(1.0),  # noqa: B008
    n_steps: int = 1000,
    start: Any = None,
    record: Record | None = None,
) -> Trajectory:
    r"""Train the attention weights p by gradient descent, plain or normalised, with gradients that are exact at any norm.

    .. math:: p(t+1) = p(t) - \eta(t) \nabla L(p(t)), \quad
        L(p) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(K_i p))\big)

    Args:
        data: one problem or a batch of independent ones.
        v: linear head of shape (d_model,) or (batch, d_model); or a nonlinear head ψ: a torch module or function that maps
            (n, d_model) features to n numbers (needs the extra `torch`; runs in NumPy and autograd, slower).
        loss: any `Loss`; losses of your own run in NumPy, slower.
        step: `NormalizedStep(size)` or `ConstantStep(size)`.
        start: p(0) of shape (d_key,) or (batch, d_key); zero by default.
        record: what to keep along the way; nothing by default.
    Returns:
        A `Trajectory`. Check it against theory with `correlation(run.final, att_svm(data, run.selected).x)`.
    """
    loss, step = as_loss(loss), as_step(step)
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    data, save = as_dataset(data), steps_to_save(record, n_steps)
    if record is not None and "excess_risk" in record.keep and callable(v):
        raise reject(
            "record", "without 'excess_risk' for a nonlinear head, whose selected risk is not linear in s", "it"
        )
    batch = data.as_batch()
    first = np.zeros((len(batch), data.d_key)) if start is None else np.array(data.point(start, "start"))
    first = first.reshape(len(batch), data.d_key)
    steps = np.append(save, n_steps)  # the final iterate rides along as one more saved step
    run = _in_numpy if callable(v) or compiled_code(loss) < 0 else _compiled
    trajectory = finish(batch, run(batch, v, loss, step, first, steps), record, save, (v, loss))
    return trajectory if data.is_batch else single(trajectory)


def _compiled(batch: TokenDataset, v: Any, loss: Loss, step: StepRule, start: FloatArray, steps: IntArray) -> Run:
    shared = batch.is_repeated and n_axes(v) == 1  # many starts on one problem
    problems = batch[0].as_batch() if shared else batch
    with np.errstate(over="ignore", invalid="ignore"):
        scores = problems.scores(v)
    if not np.isfinite(scores[problems.mask]).all():
        raise reject("v", "small enough for scores that are finite numbers", f"entries up to {np.abs(v).max():.3g}")
    scores = np.where(problems.mask, scores, 0.0)
    keys, lengths = np.ascontiguousarray(problems.K), np.ascontiguousarray(problems.lengths)
    points = np.empty((len(batch), len(steps), batch.d_key))
    ends = np.zeros((len(batch), 2), dtype=np.int64)
    logits = np.empty((len(batch), batch.n_inputs * batch.n_tokens))
    rule = (isinstance(step, NormalizedStep), float(step.size), loss.code, int(steps[-1]))
    over_problems(descend_problems, len(batch), (keys, scores, lengths), start, rule, steps, (points, ends, logits))
    return Run(points, ends[:, 0], ends[:, 1], logits.reshape(len(batch), batch.n_inputs, batch.n_tokens))


def _in_numpy(batch: TokenDataset, v: Any, loss: Loss, step: StepRule, start: FloatArray, steps: IntArray) -> Run:
    head = as_head(batch, v)

    def gradient(p: FloatArray) -> ScaledVector:
        at, margin = head.attend(logits(batch, p))
        return pairwise_gradient(batch.K, at, slope_of(loss, margin))

    points, reason, taken = descend_stepwise(gradient, start, step, int(steps[-1]), steps)
    return Run(points, reason, taken, logits(batch, points[:, -1]))
