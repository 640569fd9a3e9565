"""Gradient descent on any risk with any optimizer: exact iterates, for one problem or thousands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.dynamics.brackets import DualAccumulator
from marginlens.dynamics.compiled_loops import MatrixLoop, MatrixState
from marginlens.dynamics.loops import Loop, loop_of
from marginlens.dynamics.mini_batches import Sampling, as_mini_batches
from marginlens.dynamics.record import Record, Saved, check_record, measure, steps_to_save
from marginlens.dynamics.trajectory import ENDINGS, Trajectory
from marginlens.errors import InputError, whole_number
from marginlens.losses.margin import Loss
from marginlens.losses.next_token import NextTokenLoss
from marginlens.optimizers import Blockwise, GradientDescent, NormalizedGD, Optimizer
from marginlens.optimizers.protocol import as_optimizer
from marginlens.papers import implements
from marginlens.risk.attention import SoftmaxRisk
from marginlens.risk.build import HeadLike, Problem, as_risk
from marginlens.risk.joint import JointRisk
from marginlens.risk.matrix import as_query
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.protocol import Risk, holds_batch, starting_points
from marginlens.runtime.progress import ProgressCallback, as_progress
from marginlens.typing import ArrayLike, FloatArray


@implements("A", "Eq. (3)", "Fig 3(a)", "Fig 3(b)", "Fig 3(c)")
@implements("C", "Algo-GD")
def descend(
    problem: Problem,
    head: HeadLike | None = None,
    *,
    loss: Loss | NextTokenLoss | None = None,
    optimizer: Optimizer | None = None,
    n_steps: int = 1000,
    start: ArrayLike | None = None,
    record: Record | None = None,
    progress: ProgressCallback | None = None,
    device: str = "cpu",
    batch_size: int | None = None,
    sampling: Sampling | None = None,
) -> Trajectory:
    r"""Train by gradient descent (plain, normalised, or with your own optimizer), with gradients that are exact at any norm.

    .. math:: x(t+1) = x(t) + \text{step}\big(\nabla L(x(t))\big)

    Args:
        problem: a risk (`AttentionRisk`, `JointRisk`, `NextTokenRisk`, or your own); or a `TokenDataset`, with the head, for
            attention weights p; or a `SequenceDataset`, or a list of them, for the key-query weights W of a next-token layer.

        head: the head of the risk, if a dataset is given; as for `AttentionRisk` and `NextTokenRisk`.

        loss: the loss of the risk, if a dataset is given.

        optimizer: `NormalizedGD(size)`, `GradientDescent(size)`, or any object with the methods `init` and `update`. By default
            normalised steps: of size 1 on p, .01 on next-token weights, and .1 on each part of a joint risk.

        start: x(0), `(*risk.shape)` or `(batch, *risk.shape)`; zero by default. A joint start may be a pair (v, p).

        record: the quantities to keep during the run; none by default.

        progress: called as `progress(done, total)` several times a second, in steps of all problems together. If it raises an
            error, the descent ends, as with Ctrl-C.

        device: "cpu" (the default), "cuda", or "cuda:1" for the GPU of that number (needs the extra `gpu`).

        batch_size: the number of inputs whose mean loss gives the gradient of each step; all by default. Your own risk needs
            `n_inputs` and `of_inputs(inputs)`, the same risk over some of the inputs.

        sampling: how these inputs are drawn, `ml.Sampling(rng=0)` by default.

    Returns:
        A `Trajectory`; `run.resume(n_steps)` takes further steps. To compare it with theory, compute its `correlation` with the
        solution of `att_svm(data, run.selected)`. A run with the log-loss ends when a head makes c_yᵀ f nonpositive.
    """
    risk = as_risk(problem, head, loss)
    rule = as_optimizer(_default_optimizer(risk) if optimizer is None else optimizer)
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    loop = loop_of(risk, rule, as_mini_batches(batch_size, sampling, risk), device)
    return Descent(risk, loop, loop.begin(starting_points(risk, start)), 0).resume(n_steps, record, progress)


def _default_optimizer(risk: Risk) -> Optimizer:
    if isinstance(risk, NextTokenRisk):
        return NormalizedGD(0.01)
    return Blockwise(NormalizedGD(0.1)) if isinstance(risk, JointRisk) else NormalizedGD(1.0)


@dataclass(frozen=True, eq=False)
class Descent:
    """A descent that can be continued: its risk, its loop, and its state after `n_steps`."""

    risk: Any
    loop: Loop
    state: Any
    n_steps: int

    def resume(self, n_steps: int, record: Record | None, progress: ProgressCallback | None) -> Trajectory:
        """Continue for `n_steps` more; steps are counted from the first start, and earlier ones are not kept again."""
        risk, begin, end = self.risk, self.n_steps, self.n_steps + n_steps
        check_record(record, risk)
        as_progress(progress)
        save = steps_to_save(record, end)
        save = save[save > begin] if begin else save
        state = self.state.copy()
        points = self.loop.advance(state, (begin, end), np.append(save, end), progress)  # the final iterate comes last
        with np.errstate(over="ignore", invalid="ignore"):  # a run may have stopped where float64 overflows
            trajectory = trajectory_of(risk, points, (state.ends[:, 0], state.ends[:, 1].copy()), save, record)
        has_sums = isinstance(self.loop, MatrixLoop) and not self.loop.transposed
        witness = _witness(risk, state) if has_sums else None
        return replace(trajectory, continuation=Descent(risk, self.loop, state, end), witness=witness)


def _witness(risk: Any, state: MatrixState) -> DualAccumulator:
    """Return the sums of a compiled loop, without the batch axis for one problem."""
    data = getattr(risk, "of_p", risk).data
    residuals = state.residuals.reshape(len(state.residuals), -1, data.n_inputs, data.n_tokens)
    witness = DualAccumulator(residuals.copy(), state.anchors.reshape(len(residuals), -1, *risk.shape).copy())
    return witness if risk.is_batch else witness[0]


def trajectory_of(
    risk: Risk, points: FloatArray, ends: tuple[Any, Any], steps: Any, record: Record | None
) -> Trajectory:
    """Make the trajectory of iterates (batch, n_saved + 1, *shape), the final ones last, with the ends of the runs and their
    numbers of steps.
    """
    is_batch = holds_batch(risk)
    final, reason = points[:, -1], np.array(ENDINGS, dtype=object)[ends[0]]
    at = final if is_batch else final[0]
    attention: FloatArray | None
    if isinstance(risk, SoftmaxRisk):
        at_logits = risk.at(risk.logits(at))
        attention, selected = at_logits.attention(), at_logits.select()
    else:
        attention = risk.attention(at) if hasattr(risk, "attention") else None
        selected = np.asarray(risk.select_by(attention) if hasattr(risk, "select_by") else risk.select(at))
    norm = length(final.reshape(len(final), -1))
    kept = measure(risk, points[:, :-1], record)
    if not is_batch:
        single = {name: value[0] for name, value in kept.items()}
        return Trajectory(final[0], attention, selected, norm[0], reason[0], ends[1][0], Saved(steps, single), risk)
    return Trajectory(final, attention, selected, norm, reason, ends[1], Saved(steps, kept), risk)


# ---- what corresponds between p and W


@implements("A", "Lemma 1")
def matching_optimizer(optimizer: GradientDescent | NormalizedGD, query: ArrayLike) -> GradientDescent | NormalizedGD:
    """Return the optimizer on W that matches `optimizer` on p for this query (d_query,): steps η/‖u‖² plain, η/‖u‖ normalised."""
    if type(optimizer) not in (GradientDescent, NormalizedGD) or not optimizer.is_plain:
        raise InputError("optimizer", "ml.GradientDescent(size) or ml.NormalizedGD(size)", repr(optimizer))
    size = float(length(as_query(query)))
    return (
        GradientDescent(optimizer.size / size / size)
        if isinstance(optimizer, GradientDescent)
        else NormalizedGD(optimizer.size / size)
    )
