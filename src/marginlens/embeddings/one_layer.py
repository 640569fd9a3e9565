"""The one-layer model on two numbers per token: its exact gradients, and its training on the CPU without torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.data.labelled import as_labelled
from marginlens.data.tokens import IntArray
from marginlens.embeddings.minibatches import DistinctTokens, distinct_tokens
from marginlens.embeddings.optimiser import (
    adamw_constants,
    adamw_rank_two,
    adamw_vector,
    over_rows,
    row_products,
    weighted_rows,
)
from marginlens.embeddings.parameters import Parameters
from marginlens.embeddings.settings import TrainingSettings
from marginlens.errors import real_array, reject
from marginlens.kernels.linalg import COMPILED
from marginlens.papers import implements, uses
from marginlens.runtime.compilation import njit


@njit(**COMPILED)
def scalar_gradients(pairs: Any, samples: Any, products: Any, slopes: Any, outputs: Any) -> None:
    r"""Derivatives of the summed loss of some sequences by a and b, added to `slopes`.

    .. math:: f = \sum_s q_s b_s,\quad q = \mathrm{softmax}(a + \log c),\quad
        \frac{\partial f}{\partial a_s} = q_s (b_s - f),\quad \frac{\partial f}{\partial b_s} = q_s

    Args:
        pairs: token, count, offsets and y of all sequences. samples: the sequences to take.
        products: a and b, (n_vocabulary,). slopes: two float64 arrays of that length that the derivatives are added to.
        outputs: (n_samples,) receives f.
    """
    token, count, offsets, y = pairs
    a, b = products
    by_a, by_b = slopes
    longest = 0
    for i in samples:
        longest = max(longest, offsets[i + 1] - offsets[i])
    q = np.empty(longest)
    for n in range(len(samples)):
        i = samples[n]
        first, last = offsets[i], offsets[i + 1]
        top, best = -np.inf, 0.0
        for k in range(first, last):
            if a[token[k]] > top:
                top, best = a[token[k]], b[token[k]]
        total, lead = 0.0, 0.0
        for k in range(first, last):
            w = count[k] * math.exp(a[token[k]] - top)
            q[k - first] = w
            total += w
            lead += w * (best - b[token[k]])
        lead /= total  # b of the first token less f, which a saturated softmax would make cancel
        f = best - lead
        outputs[n] = f
        slope = -y[i] / (1.0 + math.exp(y[i] * f)) / total
        for k in range(first, last):
            s = token[k]
            w = slope * q[k - first]
            by_a[s] += w * (b[s] - best + lead)
            by_b[s] += w


@implements("B", "Eq. (1)", "Eq. (2)", "Lemma 7")
@uses(
    "B",
    {
        "Eq. (11)": "The logits a and the softmax weights q of every token of a sequence.",
        "Eq. (12)": "The scores γ, the label times ⟨E_s, v⟩.",
        "Eq. (13)": "The weight g of a sequence in the gradient, one over 1 + exp(y f).",
    },
)
def loss_and_gradients(E: Any, p: Any, v: Any, sequences: Any, y: Any = None) -> tuple[float, Parameters]:
    r"""The logistic loss of the one-layer model over a dataset, and its gradients in closed form.

    .. math:: L = \frac1n \sum_i \log(1 + e^{-y_i f(X_i)}),\quad f(X) = \mathrm{Softmax}(p^\top E_X^\top) E_X v,\quad
        \nabla_{E} L = \frac{\partial L}{\partial a} p^\top + \frac{\partial L}{\partial b} v^\top,\quad
        \nabla_p L = E^\top \frac{\partial L}{\partial a}

    Args:
        E: (n_vocabulary, d_model). p, v: (d_model,). sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        L and its gradients by E, p and v; in float64.
    """
    data = as_labelled(sequences, y)
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    if len(table) < data.n_vocabulary:
        raise reject("E", f"at least {data.n_vocabulary} rows, one for each token", f"{len(table)} rows")
    query, head = real_array(p, "p", (table.shape[1],)), real_array(v, "v", (table.shape[1],))
    slopes, f = np.zeros((2, len(table))), np.empty(len(data))
    products = (table @ query, table @ head)
    scalar_gradients(_columns(distinct_tokens(data)), np.arange(len(data)), products, (slopes[0], slopes[1]), f)
    by_a, by_b = slopes / len(data)
    gradients = Parameters(np.outer(by_a, query) + np.outer(by_b, head), table.T @ by_a, table.T @ by_b)
    return float(np.mean(np.logaddexp(0.0, -data.y * f))), gradients


class CompiledOneLayer:
    """The one-layer model under AdamW on the CPU: a step reads and writes E and its moments once.

    `a` and `b` are always E p and E v at the present parameters.
    """

    def __init__(self, pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> None:
        self.pairs, self.settings = pairs, settings
        self.E, self.p, self.v = start.E, start.p, start.v
        shapes = {"E": self.E, "p": self.p, "v": self.v}
        self.moments = {name: (np.zeros_like(one), np.zeros_like(one)) for name, one in shapes.items()}
        self.a, self.b = np.empty((2, len(self.E)), dtype=self.E.dtype)
        over_rows(row_products, len(self.E), self.E, (self.p, self.v), (self.a, self.b))
        self.taken, self.loss = 0, 0.0
        self.order: IntArray = np.arange(len(pairs))

    def begin(self, order: IntArray) -> None:
        """Start an epoch in which the sequences come in this order."""
        self.order, self.loss = order, 0.0

    def step(self, first: int, last: int, rate: float) -> None:
        """One AdamW step on the sequences at places `first` to `last` of the order; their losses are added to `loss`."""
        samples = self.order[first:last]
        slopes, f = np.zeros((2, len(self.E))), np.empty(len(samples))
        scalar_gradients(_columns(self.pairs), samples, (self.a, self.b), (slopes[0], slopes[1]), f)
        self.loss += float(np.sum(np.logaddexp(0.0, -self.pairs.y[samples] * f)))
        rows = np.flatnonzero(slopes.any(axis=0))
        x, y = (slopes / len(samples)).astype(self.E.dtype)
        by_p, by_v = np.empty((2, len(self.p)), dtype=self.E.dtype)
        over_rows(weighted_rows, len(self.p), self.E, rows, (x, y), (by_p, by_v))
        self.taken += 1
        constants = adamw_constants(self.taken, rate, self.settings.weight_decay, self.E.dtype)
        p, v = self.p.copy(), self.v.copy()
        adamw_vector(self.p, *self.moments["p"], by_p, constants)
        if self.settings.train_v:
            adamw_vector(self.v, *self.moments["v"], by_v, constants)
        table, directions = (self.E, *self.moments["E"]), (p, v, self.p, self.v)
        over_rows(adamw_rank_two, len(self.E), table, (x, y), directions, constants, (self.a, self.b))

    def products(self) -> tuple[Any, Any]:
        """(n_vocabulary,) E p and E v."""
        return self.a, self.b

    def outputs(self, pairs: DistinctTokens | None = None) -> Any:
        """(n_samples,) f for every sequence at the present parameters, or for every other one in `pairs`."""
        others = self.pairs if pairs is None else pairs
        f, all_sequences = np.empty(len(others)), np.arange(len(others))
        scalar_gradients(_columns(others), all_sequences, (self.a, self.b), tuple(np.zeros((2, len(self.E)))), f)
        return f

    def parameters(self) -> Parameters:
        """The present parameters, as NumPy arrays that later steps change."""
        return Parameters(self.E, self.p, self.v)

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        moments = {
            f"{kind}_{name}": one for name, both in self.moments.items() for kind, one in zip("ms", both, strict=True)
        }
        return {"E": self.E, "p": self.p, "v": self.v, **moments, "a": self.a, "b": self.b}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        for name, mine in self.state().items():
            if name in arrays:
                mine[...] = arrays[name]
        if "a" not in arrays:  # a state that another device left
            over_rows(row_products, len(self.E), self.E, (self.p, self.v), (self.a, self.b))
        self.taken = taken


def _columns(pairs: DistinctTokens) -> tuple[Any, ...]:
    return pairs.token, pairs.count, pairs.offsets, pairs.y
