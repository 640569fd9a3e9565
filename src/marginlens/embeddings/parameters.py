"""The parameters of both models and their initial values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.errors import positive_number, reject, whole_number

_KINDS = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True, repr=False)
class Parameters:
    """Embeddings E (n_vocabulary, d_model), the ⟨cls⟩ embedding p (d_model,) and the output vector v (d_model,)."""

    E: Any
    p: Any
    v: Any

    def __repr__(self) -> str:
        return f"Parameters(E of shape {self.E.shape}, p, v, {self.E.dtype})"


def initial_parameters(n_vocabulary: int, d_model: int, rng: Any, dtype: Any, spread: float = 1.0) -> Parameters:
    r"""The values training starts from: :math:`E_s, p \sim N(0, \sigma^2 I/d)` with σ = `spread`, and v uniform on the unit sphere.

    Args:
        rng: a `numpy.random.Generator`, or a whole number to seed one. dtype: float32 or float64.
    """
    K, d = (whole_number(n, name, at_least=1) for n, name in ((n_vocabulary, "n_vocabulary"), (d_model, "d_model")))
    kind, generator = _kind(dtype), as_generator(rng)
    scale = kind.type(positive_number(spread, "spread") / np.sqrt(d))
    E = generator.standard_normal((K, d), dtype=kind)
    E *= scale
    p, v = generator.standard_normal((2, d), dtype=kind)
    return Parameters(E, p * scale, (v / np.linalg.norm(v)).astype(kind))


def as_parameters(model: Any, argument: str) -> Parameters:
    """`model` if it is parameters, else the sentence that says what is expected."""
    if not isinstance(model, Parameters):
        raise reject(argument, "Parameters with E, p and v", type(model).__name__)
    return model


def _kind(dtype: Any) -> Any:
    try:
        kind = None if dtype is None else np.dtype(dtype)
    except (TypeError, ValueError, RuntimeError) as problem:
        raise reject("dtype", "float32 or float64", repr(dtype)[:60]) from problem
    if kind is None or kind not in _KINDS:
        raise reject("dtype", "float32 or float64", repr(dtype)[:60])
    return kind
