"""Gradient descent on p: the exact iterates of GD and NGD, for one problem or thousands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.dynamics.kernels.attention_descent import descend_problems, moves_in_keys
from marginlens.dynamics.steps import NormalizedStep, Record, StepRule, as_step, steps_to_save
from marginlens.dynamics.stepwise import descend_stepwise
from marginlens.dynamics.trajectory import Run, Trajectory, finish
from marginlens.errors import n_axes, reject, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss, compiled_code, slope_of
from marginlens.papers import implements
from marginlens.risk.attention_gradient import ScaledVector, pairwise_gradient
from marginlens.risk.heads import as_head
from marginlens.risk.softmax import logits
from marginlens.threads import ProgressCallback, Work, as_progress, in_slices

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
    progress: ProgressCallback | None = None,
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
        progress: called as `progress(done, total)` several times a second, in steps of all problems together. What it raises ends
            the descent, as Ctrl-C does.
    Returns:
        A `Trajectory`; `run.resume(n_steps)` takes further steps. Check it against theory with
        `correlation(run.final, att_svm(data, run.selected).x)`.
    """
    loss, step = as_loss(loss), as_step(step)
    data, n_steps = as_dataset(data), whole_number(n_steps, "n_steps", at_least=0)
    steps_to_save(record, n_steps)  # refuses what cannot be kept
    as_progress(progress)
    if record is not None and "excess_risk" in record.keep and callable(v):
        raise reject(
            "record", "without 'excess_risk' for a nonlinear head, whose selected risk is not linear in s", "it"
        )
    batch = data.as_batch()
    first = np.zeros((len(batch), data.d_key)) if start is None else np.array(data.point(start, "start"))
    first = first.reshape(len(batch), data.d_key)
    compiled = not callable(v) and compiled_code(loss) >= 0
    begin = CarriedState.compiled(batch, first) if compiled else CarriedState.in_numpy(first)
    return Descent(data, v, loss, step, first, begin).resume(n_steps, record, progress)


@dataclass(frozen=True)
class CarriedState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        states: (batch, d_key) p, or (batch, n_rows) its coefficients over the keys. logits: (batch, n_rows), none in NumPy.
        ends: (batch, 2) how each run ended and after how many steps. n_steps: how many have been asked for.
    """

    states: FloatArray
    logits: FloatArray
    ends: IntArray
    n_steps: int = 0

    @classmethod
    def compiled(cls, batch: TokenDataset, start: FloatArray) -> CarriedState:
        """Before the first compiled step, which fills it."""
        n_rows = batch.n_inputs * batch.n_tokens
        width = batch.d_key if moves_in_keys(n_rows, batch.d_key) else n_rows
        return cls(np.empty((len(batch), width)), np.empty((len(batch), n_rows)), _no_ends(len(batch)))

    @classmethod
    def in_numpy(cls, start: FloatArray) -> CarriedState:
        """Before the first step in NumPy."""
        return cls(start, np.empty((len(start), 0)), _no_ends(len(start)))

    def copy(self, n_steps: int) -> CarriedState:
        """The same in arrays of its own, to be advanced to `n_steps`."""
        return CarriedState(self.states.copy(), self.logits.copy(), self.ends.copy(), n_steps)


def _no_ends(count: int) -> IntArray:
    return np.zeros((count, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Descent:
    """A descent that can go on: its problem, its rule and where it stands."""

    data: TokenDataset
    v: Any
    loss: Loss
    step: StepRule
    start: FloatArray
    carried: CarriedState

    def resume(self, n_steps: int, record: Record | None, progress: ProgressCallback | None) -> Trajectory:
        """The trajectory after `n_steps` more; steps are counted from the first start on, and those before are not kept again."""
        batch, begin = self.data.as_batch(), self.carried.n_steps
        end = begin + n_steps
        save = steps_to_save(record, end)
        save = save[save > begin] if begin else save
        steps, carried = (
            np.append(save, end),
            self.carried.copy(end),
        )  # the final iterate rides along as one more saved step
        if callable(self.v) or compiled_code(self.loss) < 0:
            run = self._in_numpy(batch, carried, begin, steps, progress)
            carried.states[:] = run.points[:, -1]
            carried.ends[:] = np.stack([run.reason, run.taken], axis=1)
        else:
            run = self._compiled(batch, carried, begin, steps, progress)
        trajectory = finish(batch, run, record, save, (self.v, self.loss))
        trajectory = trajectory if self.data.is_batch else trajectory[0]
        return replace(trajectory, continuation=replace(self, carried=carried))

    def _compiled(
        self,
        batch: TokenDataset,
        carried: CarriedState,
        begin: int,
        steps: IntArray,
        progress: ProgressCallback | None,
    ) -> Run:
        shared = batch.is_repeated and n_axes(self.v) == 1  # many starts on one problem
        problems = batch[0].as_batch() if shared else batch
        scores = np.where(problems.mask, problems.finite_scores(self.v), 0.0)
        arrays = (np.ascontiguousarray(problems.K), scores, np.ascontiguousarray(problems.lengths))
        points = np.empty((len(batch), len(steps), batch.d_key))
        n_rows, n_steps = batch.n_inputs * batch.n_tokens, carried.n_steps
        rule = (isinstance(self.step, NormalizedStep), float(self.step.size), compiled_code(self.loss), n_steps)
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, n_steps - begin)
            size = 0 if whole or moves_in_keys(n_rows, batch.d_key) else n_rows
            gram = grams.setdefault(first, (np.empty((size, size)), np.zeros(1, dtype=np.int64)))
            state = (carried.states, carried.logits, carried.ends, *gram)
            descend_problems(first, last, arrays, self.start, (*rule, begin + high), steps, state, points)
            if high == n_steps - begin:
                del grams[first]

        cost = n_rows * (2.0 * min(2 * batch.d_key, n_rows) + 40.0)
        in_slices(advance, Work(len(batch), n_steps - begin, cost), progress)
        logits = carried.logits.reshape(len(batch), batch.n_inputs, batch.n_tokens)
        return Run(points, carried.ends[:, 0], carried.ends[:, 1], logits)

    def _in_numpy(
        self,
        batch: TokenDataset,
        carried: CarriedState,
        begin: int,
        steps: IntArray,
        progress: ProgressCallback | None,
    ) -> Run:
        head = as_head(batch, self.v)

        def gradient(p: FloatArray) -> ScaledVector:
            at, margin = head.attend(logits(batch, p))
            return pairwise_gradient(batch.K, at, slope_of(self.loss, margin))

        points, reason, taken = descend_stepwise(
            gradient, (carried.states, carried.ends), self.step, (begin, carried.n_steps), steps, progress
        )
        return Run(points, reason, taken, logits(batch, points[:, -1]))
