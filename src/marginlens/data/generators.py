"""Random data by protocol: each generator takes its random generator and gives a dataset and a head."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import TokenDataset
from marginlens.errors import reject, whole_number
from marginlens.papers import implements

FloatArray = npt.NDArray[np.float64]


@implements("A", "App. E")
def sphere_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any
) -> tuple[TokenDataset, FloatArray]:
    """Tokens and head uniform on the unit sphere, labels ±1 with equal chance, W = I: the data of A's Figure 9.

    Args:
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A batch of `n_problems` problems and their heads v, shape (n_problems, d_model).
    """
    sizes = (n_problems, n_inputs, n_tokens, d_model)
    for name, size in zip(("n_problems", "n_inputs", "n_tokens", "d_model"), sizes, strict=True):
        whole_number(size, name, at_least=1)
    generator = as_generator(rng)
    X = _on_sphere(generator.standard_normal(sizes))
    v = _on_sphere(generator.standard_normal((n_problems, d_model)))
    y = generator.choice([-1.0, 1.0], size=(n_problems, n_inputs))
    return TokenDataset(X, y), v


def gaussian_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any
) -> tuple[TokenDataset, FloatArray]:
    """Standard normal tokens and head, labels ±1 with equal chance, and a key-query matrix that is normal too."""
    generator = as_generator(rng)
    X = generator.standard_normal((n_problems, n_inputs, n_tokens, d_model))
    W = generator.standard_normal((d_model, d_model)) / np.sqrt(d_model)
    y = generator.choice([-1.0, 1.0], size=(n_problems, n_inputs))
    return TokenDataset(X, y, W=W), generator.standard_normal((n_problems, d_model))


def scored_tokens(keys: Any, scores: Any, y: Any = None) -> tuple[TokenDataset, FloatArray]:
    """Tokens whose keys and scores are given outright, by a last coordinate that the head reads and the keys leave out.

    Args:
        keys: (…, n_inputs, n_tokens, d_key). scores: γ of shape (…, n_inputs, n_tokens). y: labels, all +1 by default.
    Returns:
        A dataset with d_model = d_key + 1 and the head v = e_last, so that `data.scores(v)` is `scores`.
    """
    K, gamma = np.asarray(keys, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if K.shape[:-1] != gamma.shape:
        raise reject("scores", f"one number per key, shape {K.shape[:-1]}", f"shape {gamma.shape}")
    labels = np.ones(K.shape[:-2]) if y is None else np.asarray(y, dtype=np.float64)
    X = np.concatenate([K, (labels[..., None] * gamma)[..., None]], axis=-1)
    return TokenDataset(X, labels, K=K), np.eye(K.shape[-1] + 1)[-1]


def as_generator(rng: Any) -> np.random.Generator:
    """`rng` if it is a NumPy generator, or one seeded by a whole number."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise reject("rng", "a numpy.random.Generator or a whole number that seeds one", repr(rng))


def _on_sphere(x: FloatArray) -> FloatArray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
