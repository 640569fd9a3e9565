"""Mini-batches: which inputs each step of a descent sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.risk.protocol import Risk
from marginlens.typing import IntArray

BLOCK = 256  # epochs, or steps with replacement, that are drawn at once


@dataclass(frozen=True)
class Sampling:
    """A way to draw the inputs of each step: without replacement epoch by epoch, or each independently.

    All problems of a batch see the same inputs at the same step, so a batch of runs equals a loop over its problems. The inputs
    of a step depend only on its number and the seed, so a resumed run equals an uninterrupted one.

    Args:
        rng: the seed, a whole number of at least 0, or a `numpy.random.Generator` from which a seed is drawn.

        replacement: draw each input of a step from all of them. Otherwise every epoch is a random order of all inputs, cut into
            batches; the last is smaller if `batch_size` does not divide their number.
    """

    rng: Any = 0
    replacement: bool = False

    def __post_init__(self) -> None:
        seed = self.rng.integers(2**63) if isinstance(self.rng, np.random.Generator) else self.rng
        object.__setattr__(self, "rng", whole_number(seed, "rng", at_least=0))

    def inputs(self, begin: int, end: int, n_inputs: int, batch_size: int) -> IntArray:
        """Return the inputs (end - begin, batch_size) of steps `begin` … `end` - 1; smaller batches are padded by -1."""
        per_epoch = 1 if self.replacement else -(-n_inputs // batch_size)  # batches of what is drawn at once
        first, last = begin // per_epoch // BLOCK, -(-end // per_epoch) // BLOCK + 1
        drawn = np.concatenate([self._block(block, n_inputs, batch_size) for block in range(first, last)])
        rows = drawn.reshape(-1, batch_size)  # one for each step
        return rows[begin - first * BLOCK * per_epoch :][: end - begin]

    def _block(self, block: int, n_inputs: int, batch_size: int) -> IntArray:
        """Draw a block of inputs at once, (BLOCK, …)."""
        generator = np.random.default_rng([self.rng, block])
        if self.replacement:
            return generator.integers(n_inputs, size=(BLOCK, batch_size))
        orders = np.argsort(generator.random((BLOCK, n_inputs)), axis=1)
        return np.pad(orders, ((0, 0), (0, -n_inputs % batch_size)), constant_values=-1)


class MiniBatches(NamedTuple):
    """The mini-batches of a descent: how many inputs a step sees, from how many they are drawn, and how."""

    size: int
    n_inputs: int
    sampling: Sampling

    def steps(self, begin: int, end: int) -> IntArray:
        """Return the inputs of each step, (end - begin, size), padded by -1."""
        return self.sampling.inputs(begin, end, self.n_inputs, self.size)


def as_mini_batches(batch_size: int | None, sampling: Sampling | None, risk: Risk) -> MiniBatches | None:
    """Return the requested mini-batches, None if every step sees all inputs; refuse a risk that cannot be split into inputs."""
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InputError("sampling", "an ml.Sampling, or None", repr(sampling))
    if batch_size is None:
        if sampling is not None:
            raise InputError("sampling", "None where no batch_size is given", repr(sampling))
        return None
    count = getattr(risk, "n_inputs", None)
    if not hasattr(risk, "of_inputs") or count is None:
        raise InputError("batch_size", "None for a risk without n_inputs and of_inputs(inputs)", f"{batch_size!r}")
    n_inputs = int(count)
    size = whole_number(batch_size, "batch_size", at_least=1)
    if size > n_inputs:
        raise InputError("batch_size", f"at most the number of inputs, {n_inputs}", f"{size}")
    drawn = Sampling() if sampling is None else sampling
    return None if size == n_inputs and not drawn.replacement else MiniBatches(size, n_inputs, drawn)
