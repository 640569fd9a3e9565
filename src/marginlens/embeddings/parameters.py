"""The parameters of both models and their initial values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, repr=False)
class Parameters:
    """Embeddings E (n_vocabulary, d_model), the ⟨cls⟩ embedding p (d_model,) and the output vector v (d_model,)."""

    E: Any
    p: Any
    v: Any

    def __repr__(self) -> str:
        return f"Parameters(E of shape {self.E.shape}, p, v, {self.E.dtype})"


def initial_parameters(
    n_vocabulary: int, d_model: int, rng: np.random.Generator, dtype: Any, spread: float = 1.0
) -> Parameters:
    r"""The values training starts from: :math:`E_s, p \sim N(0, \sigma^2 I/d)` with σ = `spread`, and v uniform on the unit sphere."""
    scale = np.dtype(dtype).type(spread / np.sqrt(d_model))
    E = rng.standard_normal((n_vocabulary, d_model), dtype=dtype)
    E *= scale
    p, v = rng.standard_normal((2, d_model), dtype=dtype)
    return Parameters(E, p * scale, (v / np.linalg.norm(v)).astype(dtype))
