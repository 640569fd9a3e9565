"""The one-layer model under AdamW on the CPU, compiled: embeddings whose gradient has rank two, which is never formed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens import core
from marginlens.embeddings.models import (
    ADAMW_BETAS,
    ADAMW_EPSILON,
    DistinctTokens,
    Parameters,
    TrainingSettings,
    scalar_gradients,
)
from marginlens.runtime.threads import in_parts
from marginlens.typing import IntArray

_ROW_SHARES = (
    8  # of the rows that occur, each summed up on its own; however many threads take them, the result is the same
)
_NO_STEP = (1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0)  # constants that change neither parameters nor moments


def adamw_constants(step: int, rate: float, decay: float, dtype: Any) -> Any:
    r"""The numbers that one AdamW step multiplies with, rounded to the parameters' type.

    .. math:: \theta \leftarrow (1 - \eta\lambda)\theta - \frac{\eta}{1 - \beta_1^t} \frac{m}{\sqrt{s / (1 - \beta_2^t)} + \epsilon}

    Args:
        step: t, from 1. rate: η. decay: λ.
    Returns:
        1 - ηλ, 1 - β₁, β₂, 1 - β₂, 1/√(1 - β₂ᵗ), ε, η/(1 - β₁ᵗ).
    """
    first, second = ADAMW_BETAS
    numbers = (
        1.0 - rate * decay,
        1.0 - first,
        second,
        1.0 - second,
        1.0 / math.sqrt(1.0 - second**step),
        ADAMW_EPSILON,
        rate / (1.0 - first**step),
    )
    return np.array(numbers, dtype=dtype)


class CompiledOneLayer:
    """The one-layer model under AdamW on the CPU: a step reads and writes E and its moments once.

    `a` and `b` are always E p and E v at the present parameters.
    """

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> None:
        self.pairs, self.settings = pairs, settings
        self.E, self.p, self.v = start.E, start.p, start.v
        shapes = {"E": self.E, "p": self.p, "v": self.v}
        self.moments = {name: (np.zeros_like(array), np.zeros_like(array)) for name, array in shapes.items()}
        self.a, self.b = np.empty((2, len(self.E)), dtype=self.E.dtype)
        self._form_products()
        self.taken, self.loss = 0, 0.0
        self.order: IntArray = np.arange(len(pairs))

    def begin(self, order: IntArray) -> None:
        """Start an epoch in which the sequences come in this order."""
        self.order, self.loss = order, 0.0

    def step(self, first: int, last: int, rate: float) -> None:
        """One AdamW step on the sequences at places `first` to `last` of the order; their losses are added to `loss`."""
        samples = self.order[first:last]
        slopes, f = scalar_gradients(self.pairs, samples, self.a, self.b)
        self.loss += float(np.sum(np.logaddexp(0.0, -self.pairs.y[samples] * f)))
        rows = np.flatnonzero(slopes.any(axis=0))
        x, y = (slopes / len(samples)).astype(self.E.dtype)
        sums = np.empty((_ROW_SHARES, 2, len(self.p)), dtype=self.E.dtype)
        in_parts(getattr(core, f"sum_embeddings_{self.E.dtype}"), _ROW_SHARES, self.E, rows, x, y, sums)
        self.taken += 1
        constants = adamw_constants(self.taken, rate, self.settings.weight_decay, self.E.dtype)
        p, v = self.p.copy(), self.v.copy()
        for name, gradient in zip("pv" if self.settings.train_v else "p", sums.sum(axis=0), strict=False):
            table = (
                getattr(self, name),
                *self.moments[name],
            )  # a vector is a table of one row, whose gradient has the weight one
            products, (one, zero) = np.empty((2, 1), dtype=self.E.dtype), np.array([[1], [0]], dtype=self.E.dtype)
            self._advance([part[None] for part in table], (one, zero), [gradient] * 4, constants, products)
        table = (self.E, *self.moments["E"])
        self._advance(table, (x, y), (p, v, self.p, self.v), constants, (self.a, self.b))

    def _advance(self, table: Any, weights: Any, directions: Any, constants: Any, products: Any) -> None:
        """One AdamW step on the rows of E with the gradient x pᵀ + y vᵀ, and the new rows' products with the new p and v.

        Each row is read and written once.

        Args:
            table: E and its two moments, (n_rows, d_model), changed in place. weights: x and y, (n_rows,).
            directions: p, v, new p and new v, (d_model,). products: receive E p and E v at the new values, (n_rows,).
        """
        step = getattr(core, f"step_embeddings_{self.E.dtype}")
        in_parts(step, len(table[0]), *table, *weights, *directions, constants, *products)

    def _form_products(self) -> None:
        """E p and E v at the present parameters, by a step that changes nothing else."""
        weights, constants = np.zeros((2, len(self.E)), dtype=self.E.dtype), np.array(_NO_STEP, dtype=self.E.dtype)
        directions = (self.p, self.v, self.p, self.v)
        self._advance((self.E, *self.moments["E"]), weights, directions, constants, (self.a, self.b))

    def products(self) -> tuple[Any, Any]:
        """(n_vocabulary,) E p and E v."""
        return self.a, self.b

    def outputs(self, pairs: DistinctTokens | None = None) -> Any:
        """(n_samples,) f for every sequence at the present parameters, or for every other one in `pairs`."""
        others = self.pairs if pairs is None else pairs
        return scalar_gradients(others, np.arange(len(others)), self.a, self.b)[1]

    def parameters(self) -> Parameters:
        """The present parameters, as NumPy arrays that later steps change."""
        return Parameters(self.E, self.p, self.v)

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        moments = {
            f"{kind}_{name}": array
            for name, both in self.moments.items()
            for kind, array in zip("ms", both, strict=True)
        }
        return {"E": self.E, "p": self.p, "v": self.v, **moments, "a": self.a, "b": self.b}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        for name, mine in self.state().items():
            if name in arrays:
                mine[...] = arrays[name]
        if "a" not in arrays:  # a state that another device left
            self._form_products()
        self.taken = taken
