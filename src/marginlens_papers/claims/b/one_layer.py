"""Training the one-layer model by AdamW on the CPU, compiled: embeddings whose gradient has rank two, which is never formed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings.models import (
    DistinctTokens,
    Parameters,
    distinct_tokens,
    initial_parameters,
    scalar_gradients,
)
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.runtime.threads import n_threads
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.claims.b.embedding_runs import EmbeddingSettings

ADAMW_BETAS = (0.9, 0.999)  # AdamW's defaults in torch.optim, which the paper leaves as they are
ADAMW_EPSILON = 1e-8
# Shares of the rows that occur, each summed up on its own: however many threads take them, the result is the same.
_ROW_SHARES = 8
_PARTS_PER_THREAD = 4
_waiting = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="marginlens")  # its threads start when they are needed
_NO_STEP = (1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0)  # constants that change neither parameters nor moments


class OneLayerRun(NamedTuple):
    """A trained model: its parameters, `a` = ⟨E_s, p⟩ and `b` = ⟨E_s, v⟩ (n_vocabulary,), and the mean loss of all sequences."""

    settings: EmbeddingSettings
    statistics: TokenStatistics
    parameters: Parameters
    a: FloatArray
    b: FloatArray
    loss: float


def train_one_layer(
    data: LabelledSequences, settings: EmbeddingSettings, advance: Callable[[], Any] = lambda: None
) -> OneLayerRun:
    r"""Train embeddings, ⟨cls⟩ embedding and output vector on labelled sequences by AdamW.

    .. math:: \min_{E, p, v} \frac1n \sum_i \log(1 + e^{-y_i f(X_i)})

    Args:
        data: the sequences. settings: of a model with one layer, on the CPU.
        advance: called after each epoch.
    """
    rng = np.random.default_rng(settings.seed)
    start = initial_parameters(data.n_vocabulary, settings.d_model, rng, settings.dtype, settings.spread)
    model = CompiledOneLayer(distinct_tokens(data), start, settings)
    for epoch in range(settings.epochs):
        model.begin(rng.permutation(len(data)))
        for first, last in batches_of(len(data), settings.batch):
            model.step(first, last, settings.rate(epoch))
        advance()
    E, p, v = (parameter.astype(np.float64) for parameter in vars(model.parameters()).values())
    loss = float(np.mean(np.logaddexp(0.0, -data.y * model.outputs())))
    return OneLayerRun(settings, token_statistics(data), model.parameters(), E @ p, E @ v, loss)


def batches_of(n_samples: int, batch: int) -> list[tuple[int, int]]:
    """First and last place, in the order of an epoch, of each of its minibatches; the last one may be smaller."""
    return [(first, min(first + batch, n_samples)) for first in range(0, n_samples, batch)]


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

    `a` and `b` are always E p and E v at the current parameters.
    """

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: EmbeddingSettings) -> None:
        self.pairs, self.settings = pairs, settings
        self.E, self.vectors = start.E, np.stack([start.p, start.v])
        self.p, self.v = self.vectors
        self._sum, self._step = (getattr(core, f"{what}_embeddings_{self.E.dtype}") for what in ("sum", "step"))
        self.moments = {
            "E": np.zeros((2, *self.E.shape), self.E.dtype),
            "pv": np.zeros((2, 2, len(self.p)), self.E.dtype),
        }
        self.a, self.b = np.empty((2, len(self.E)), dtype=self.E.dtype)
        self.form_products()
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
        in_parts(self._sum, _ROW_SHARES, self.E, rows, x, y, sums)
        self.taken += 1
        constants = adamw_constants(self.taken, rate, self.settings.weight_decay, self.E.dtype)
        p, v = self.vectors.copy()
        # The vectors are a table of two rows with the gradients of p and v, each of which has the weight one in its own row.
        gradients, weights, unused = (
            sums.sum(axis=0),
            np.eye(2, dtype=self.E.dtype),
            np.empty((2, 2), dtype=self.E.dtype),
        )
        n_trained = 2 if self.settings.train_v else 1
        self._step(
            0, n_trained, self.vectors, *self.moments["pv"], *weights, *gradients, *gradients, constants, *unused
        )
        self._advance((x, y), (p, v, self.p, self.v), constants)

    def _advance(self, weights: Any, directions: Any, constants: Any) -> None:
        """One AdamW step on E with the gradient x pᵀ + y vᵀ, and its products with the new p and v; each row is read and written once.

        Args:
            weights: x and y, (n_vocabulary,). directions: p, v, new p and new v, (d_model,).
        """
        in_parts(self._step, len(self.E), self.E, *self.moments["E"], *weights, *directions, constants, self.a, self.b)

    def form_products(self) -> None:
        """E p and E v at the current parameters, by a step that changes nothing else."""
        weights, constants = np.zeros((2, len(self.E)), dtype=self.E.dtype), np.array(_NO_STEP, dtype=self.E.dtype)
        self._advance(weights, (*self.vectors, *self.vectors), constants)

    def products(self) -> tuple[Any, Any]:
        """(n_vocabulary,) E p and E v."""
        return self.a, self.b

    def outputs(self, pairs: DistinctTokens | None = None) -> Any:
        """(n_samples,) f for every sequence at the current parameters, or for every other one in `pairs`."""
        others = self.pairs if pairs is None else pairs
        return scalar_gradients(others, np.arange(len(others)), self.a, self.b)[1]

    def parameters(self) -> Parameters:
        """The current parameters, as NumPy arrays that later steps change."""
        return Parameters(self.E, self.p, self.v)


def in_parts(kernel: Callable[..., Any], count: int, *arguments: Any) -> None:
    """Call `kernel(first, last, *arguments)` on parts of `range(count)`, which this thread and others take as they are free.

    For work of milliseconds: threads wait for further calls, and one that wakes up late leaves its parts to the others.
    """
    workers = min(n_threads(), count)
    n_parts = min(count, _PARTS_PER_THREAD * workers) if workers > 1 else 1
    parts = iter([(count * k // n_parts, count * (k + 1) // n_parts) for k in range(n_parts)])

    def work() -> None:
        for first, last in parts:
            kernel(first, last, *arguments)

    others = [_waiting.submit(work) for _ in range(workers - 1)]
    try:
        work()
    finally:
        begun = [other for other in others if not other.cancel()]
        for other in begun:
            other.result()
