"""Descent on head and attention weights at once by the compiled loop of `core/joint_descent.h`, in slices that can be resumed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens import core
from marginlens.data.tokens import TokenDataset
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, in_slices
from marginlens.typing import FloatArray, IntArray


@dataclass
class JointState:
    """Where a batch of descents stands: images of v (batch, d_model) and p (batch, d_key), how each run ended and after how many steps."""

    v: FloatArray
    p: FloatArray
    ends: IntArray

    def copy(self) -> JointState:
        """The same in arrays of its own."""
        return JointState(self.v.copy(), self.p.copy(), self.ends.copy())


@dataclass(frozen=True, eq=False)
class JointLoop:
    """Compiled descent on v and p, each by its own gradient, for a loss with a code.

    Attributes:
        batch: the problems. normalized, size: the step rule of either part. code: of the loss.
        power: of the mirror's potential; 2 is gradient descent.
    """

    batch: TokenDataset
    normalized: bool
    size: float
    code: int
    power: float = 2.0

    def begin(self, start: FloatArray) -> JointState:
        """The state before the first step."""
        d, ends = self.batch.d_model, np.zeros((len(start), 2), dtype=np.int64)
        image = start if self.power == 2.0 else np.sign(start) * np.abs(start) ** (self.power - 1.0)
        return JointState(image[:, :d].copy(), image[:, d:].copy(), ends)

    def advance(
        self, state: JointState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; v followed by p after the steps `save`, (batch, n_saved, d_model + d_key)."""
        batch, (begin, end) = self.batch, span
        problems = batch[0].as_batch() if batch.is_repeated else batch  # many starts on one problem
        arrays = tuple(np.ascontiguousarray(array) for array in (problems.X, problems.K, problems.y, problems.lengths))
        heads = np.empty((len(batch), len(save), batch.d_model))
        points = np.empty((len(batch), len(save), batch.d_key))
        rule = (self.normalized, self.size, self.power, self.code, end)

        def advance(first: int, last: int, low: int, high: int) -> None:
            carried = (state.v, state.p, state.ends)
            core.descend_jointly(first, last, *arrays, *rule, begin + high, save, *carried, heads, points)

        cost = 4.0 * batch.n_inputs * batch.n_tokens * (batch.d_model + batch.d_key + 20.0)
        in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return np.concatenate([heads, points], axis=-1)
