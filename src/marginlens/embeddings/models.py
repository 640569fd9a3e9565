"""The one-layer model of paper B on the distinct tokens of a sequence: parameters, and its exact gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens import core
from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.data.random_tokens import as_generator
from marginlens.errors import InputError, positive_number, real_array, whole_number
from marginlens.papers import implements, uses
from marginlens.result import Described
from marginlens.typing import ArrayLike, FloatArray, IntArray, Seed

_KINDS = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True, repr=False)
class Parameters(Described):
    """Embeddings E (n_vocabulary, d_model), the ⟨cls⟩ embedding p (d_model,) and the output vector v (d_model,)."""

    E: Any
    p: Any
    v: Any
    quantities = "E of shape {E.shape!s}, p, v, {E.dtype}"


def initial_parameters(n_vocabulary: int, d_model: int, rng: Seed, dtype: object, spread: float = 1.0) -> Parameters:
    r"""Draw the start of training: :math:`E_s, p \sim N(0, \sigma^2 I/d)` with σ = `spread`, and v uniform on the unit sphere.

    Args:
        n_vocabulary: number of tokens.

        d_model: d, the width of an embedding.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

        dtype: float32 or float64.

        spread: σ.
    """
    K, d = (whole_number(n, name, at_least=1) for n, name in ((n_vocabulary, "n_vocabulary"), (d_model, "d_model")))
    kind, generator = _kind(dtype), as_generator(rng)
    scale = kind.type(positive_number(spread, "spread") / np.sqrt(d))
    E = generator.standard_normal((K, d), dtype=kind)
    E *= scale
    p, v = generator.standard_normal((2, d), dtype=kind)
    return Parameters(E, p * scale, (v / np.linalg.norm(v)).astype(kind))


def as_parameters(model: object, argument: str, n_vocabulary: int = 0) -> Parameters:
    """Return `model` in float64 if its shapes fit and it has an embedding for each token, otherwise raise."""
    if not isinstance(model, Parameters):
        raise InputError(argument, "Parameters with E, p and v", type(model).__name__)
    prefix = f"{argument}." if argument else ""
    E = real_array(model.E, f"{prefix}E", ("n_vocabulary", "d_model"))
    if len(E) < n_vocabulary:
        raise InputError(f"{prefix}E", f"at least {n_vocabulary} rows, one for each token", f"{len(E)} rows")
    return Parameters(E, *(real_array(getattr(model, name), f"{prefix}{name}", (E.shape[1],)) for name in "pv"))


def _kind(dtype: Any) -> Any:
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InputError("dtype", "float32 or float64", repr(dtype)[:60]) from problem
    if kind is None or kind not in _KINDS:
        raise InputError("dtype", "float32 or float64", repr(dtype)[:60])
    return kind


@dataclass(frozen=True, repr=False)
class DistinctTokens(Described):
    """Sequences as sets with multiplicities: attention without positions depends on nothing else.

    `token` and `count` (n_pairs,) are the distinct tokens of all sequences, sample i at `offsets[i]:offsets[i + 1]`, in the order of
    their first occurrence; `y` (n_samples,) are labels of ±1. A softmax over positions equals a softmax over pairs with log
    `count` added to the logits.
    """

    token: Any
    count: Any
    offsets: IntArray
    y: Any
    n_vocabulary: int
    quantities = "{self:#} sequences, {token:#} pairs, {n_vocabulary} tokens"

    @property
    def lengths(self) -> IntArray:
        """The number of distinct tokens of each sequence, (n_samples,)."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1


def distinct_tokens(data: LabelledSequences) -> DistinctTokens:
    """Count the distinct tokens of every sequence, in one pass."""
    tokens = np.ascontiguousarray(data.tokens, dtype=np.int32)
    token, count = np.empty(len(tokens), dtype=np.int32), np.empty(len(tokens), dtype=np.int32)
    offsets = np.zeros(len(data) + 1, dtype=np.int64)
    n_pairs = core.find_distinct(tokens, data.offsets, np.zeros(data.n_vocabulary, np.int64), token, count, offsets)
    y = data.y.astype(np.int8)
    return DistinctTokens(token[:n_pairs].copy(), count[:n_pairs].copy(), offsets, y, data.n_vocabulary)


def scalar_gradients(
    pairs: DistinctTokens, samples: IntArray, a: FloatArray, b: FloatArray
) -> tuple[FloatArray, FloatArray]:
    r"""Return the derivatives of the summed loss of some sequences by a and b, and the outputs f.

    .. math:: f = \sum_s q_s b_s,\quad q = \mathrm{softmax}(a + \log c),\quad
        \frac{\partial f}{\partial a_s} = q_s (b_s - f),\quad \frac{\partial f}{\partial b_s} = q_s

    Args:
        samples: the sequences to take.

        a: (n_vocabulary,) the products E p.

        b: (n_vocabulary,) the products E v.

    Returns:
        (2, n_vocabulary) derivatives and (n_samples,) f, in float64.
    """
    slopes, f = np.zeros((2, len(a))), np.empty(len(samples))
    y, products = pairs.y[samples].astype(np.float64), (a.astype(np.float64), b.astype(np.float64))
    core.add_slopes(pairs.token, pairs.count, pairs.offsets, samples, y, *products, *slopes, f)
    return slopes, f


@implements("B", "Eq. (1)", "Eq. (2)", "Lemma 7")
@uses(
    "B",
    {
        "Eq. (11)": "The logits a and the softmax weights q of every token of a sequence.",
        "Eq. (12)": "The scores γ, the label times ⟨E_s, v⟩.",
        "Eq. (13)": "The weight g of a sequence in the gradient, one over 1 + exp(y f).",
    },
)
def loss_and_gradients(
    model: Parameters, sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None
) -> tuple[float, Parameters]:
    r"""Compute the logistic loss of the one-layer model over a dataset, and its gradients in closed form.

    .. math:: L = \frac1n \sum_i \log(1 + e^{-y_i f(X_i)}),\quad f(X) = \mathrm{Softmax}(p^\top E_X^\top) E_X v,\quad
        \nabla_{E} L = \frac{\partial L}{\partial a} p^\top + \frac{\partial L}{\partial b} v^\top,\quad
        \nabla_p L = E^\top \frac{\partial L}{\partial a}

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,).

        sequences: labelled sequences, or lists of token ids.

        y: (n_samples,) the labels of lists of token ids.

    Returns:
        L and its gradients by E, p and v; in float64.
    """
    data = as_labelled(sequences, y)
    model = as_parameters(model, "model", data.n_vocabulary)
    pairs, samples = distinct_tokens(data), np.arange(len(data))
    slopes, f = scalar_gradients(pairs, samples, model.E @ model.p, model.E @ model.v)
    by_a, by_b = slopes / len(data)
    by_E = np.outer(by_a, model.p) + np.outer(by_b, model.v)
    gradients = Parameters(by_E, model.E.T @ by_a, model.E.T @ by_b)
    return float(np.mean(np.logaddexp(0.0, -data.y * f))), gradients
