"""Random token datasets by protocol: tokens on the sphere, normal tokens, given scores, and inputs with several optimal tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, float_array, positive_number, real_number, whole_number
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray, Seed


@implements("A", "App. E")
def sphere_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Seed
) -> tuple[TokenDataset, FloatArray]:
    """Draw tokens and head uniformly on the unit sphere, with labels ±1 of equal chance and W = I: the data of A's Figure 9.

    Args:
        n_problems: number of problems in the batch.

        n_inputs: number of inputs of each problem.

        n_tokens: number of tokens of each input.

        d_model: width of a token.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

    Returns:
        A batch of `n_problems` problems and their heads v, shape (n_problems, d_model).

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.sphere_tokens(100, 4, 6, 3, rng=0)
        >>> data
        TokenDataset(100 problems of 4 inputs × 6 tokens, d_model=3, d_key=3)
    """
    sizes = _sizes(n_problems=n_problems, n_inputs=n_inputs, n_tokens=n_tokens, d_model=d_model)
    generator = as_generator(rng)
    X = _on_sphere(generator.standard_normal(sizes))
    v = _on_sphere(generator.standard_normal((n_problems, d_model)))
    y = generator.choice([-1.0, 1.0], size=(n_problems, n_inputs))
    return TokenDataset(X, y), v


def sphere_queries(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Seed
) -> tuple[TokenDataset, FloatArray, FloatArray]:
    """Draw `sphere_tokens` with one query per input, uniform on the unit sphere too, for weights W with logits X_i Wᵀ z_i.

    The arguments are those of `sphere_tokens`.

    Returns:
        A batch of problems, their heads v (n_problems, d_model), and their queries z (n_problems, n_inputs, d_model).

    Examples:
        >>> import marginlens as ml
        >>> data, heads, queries = ml.data.sphere_queries(100, 4, 6, 3, rng=0)
        >>> queries.shape
        (100, 4, 3)
    """
    generator = as_generator(rng)
    data, v = sphere_tokens(n_problems, n_inputs, n_tokens, d_model, generator)
    return data, v, _on_sphere(generator.standard_normal((n_problems, n_inputs, d_model)))


def gaussian_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Seed
) -> tuple[TokenDataset, FloatArray]:
    """Draw standard normal tokens and head, labels ±1 with equal chance, and a key-query matrix that is normal too.

    Arguments and returned values are those of `sphere_tokens`.

    Examples:
        >>> import marginlens as ml
        >>> data, heads = ml.data.gaussian_tokens(10, 4, 6, 3, rng=0)
        >>> data.W.shape
        (3, 3)
    """
    sizes = _sizes(n_problems=n_problems, n_inputs=n_inputs, n_tokens=n_tokens, d_model=d_model)
    generator = as_generator(rng)
    X = generator.standard_normal(sizes)
    W = generator.standard_normal((d_model, d_model)) / np.sqrt(d_model)
    y = generator.choice([-1.0, 1.0], size=(n_problems, n_inputs))
    return TokenDataset(X, y, W=W), generator.standard_normal((n_problems, d_model))


def scored_tokens(keys: ArrayLike, scores: ArrayLike, y: ArrayLike | None = None) -> tuple[TokenDataset, FloatArray]:
    """Make tokens with given keys and scores, by a last coordinate that the head reads and the keys leave out.

    Args:
        keys: (…, n_inputs, n_tokens, d_key) keys.

        scores: γ of shape (…, n_inputs, n_tokens).

        y: labels, all +1 by default.

    Returns:
        A dataset with d_model = d_key + 1 and the head v = e_last, so that `data.scores(v)` is `scores`.

    Examples:
        >>> import marginlens as ml
        >>> data, head = ml.data.scored_tokens([[(1.0, 0.0), (0.0, 0.0)]], [[0.9, 0.0]])
        >>> print(data.scores(head))
        [[0.9 0. ]]
    """
    K, gamma = float_array(keys, "keys"), float_array(scores, "scores")
    if K.ndim not in (3, 4):
        raise InputError("keys", "of shape (…, n_inputs, n_tokens, d_key)", f"shape {K.shape}")
    if K.shape[:-1] != gamma.shape:
        raise InputError("scores", f"one number per key, shape {K.shape[:-1]}", f"shape {gamma.shape}")
    labels = np.ones(K.shape[:-2]) if y is None else float_array(y, "y")
    if labels.shape != K.shape[:-2]:
        raise InputError("y", f"labels, each -1 or +1, of shape {K.shape[:-2]}", f"shape {labels.shape}")
    X = np.concatenate([K, (labels[..., None] * gamma)[..., None]], axis=-1)
    return TokenDataset(X, labels, K=K), np.eye(K.shape[-1] + 1)[-1]


@implements("X", "F")
def signal_and_noise(
    n_inputs: int, d_model: int, signal: float, rng: Seed, *, flipped: float = 0.0
) -> tuple[TokenDataset, FloatArray]:
    """Draw inputs of two tokens: one determines the class, the other is noise drawn anew for each input.

    Args:
        n_inputs: number of inputs.

        d_model: width of a token, at least 3.

        signal: length of the first token, which is along the first axis for the class +1 and along the second for -1. The
            second token is Gaussian in the other coordinates and has length about one, so `signal` is also the ratio of signal
            to noise.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

        flipped: the share of labels that are flipped, rounded to a whole number of labels; the first inputs have them.

    Returns:
        One problem with the labels to train on, and the true classes (n_inputs,), ±1 with equal chance.

    Examples:
        >>> import marginlens as ml
        >>> data, classes = ml.data.signal_and_noise(10, 50, 2.0, rng=0, flipped=0.2)
        >>> int((data.y != classes).sum())
        2
    """
    n, d = _sizes(n_inputs=n_inputs, d_model=d_model)
    if d < 3:
        raise InputError("d_model", "at least 3: two coordinates of signal, and noise", d_model)
    size = positive_number(signal, "signal")
    share = real_number(flipped, "flipped", "a share of at least 0 and below 1", lambda number: 0.0 <= number < 1.0)
    generator = as_generator(rng)
    classes = generator.choice([-1.0, 1.0], size=n)
    X = np.zeros((n, 2, d))
    X[np.arange(n), 0, (classes < 0).astype(np.int64)] = size
    X[:, 1, 2:] = generator.standard_normal((n, d - 2)) / np.sqrt(d - 2)
    labels = np.where(np.arange(n) < round(share * n), -classes, classes)
    return TokenDataset(X, labels), classes


def as_generator(rng: Seed) -> np.random.Generator:
    """Return `rng` if it is a NumPy generator, or one seeded by a whole number."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise InputError("rng", "a numpy.random.Generator or a whole number that seeds one", repr(rng))


def _sizes(**given: Any) -> tuple[int, ...]:
    return tuple(whole_number(size, name, at_least=1) for name, size in given.items())


def _on_sphere(x: FloatArray) -> FloatArray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)
