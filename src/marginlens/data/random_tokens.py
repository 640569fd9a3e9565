"""Random token datasets by protocol: tokens on the sphere, normal tokens, given scores, and inputs with several optimal tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from marginlens.data.counter_based import gaussian_problems, sphere_problems
from marginlens.data.tokens import TokenDataset
from marginlens.errors import float_array, positive_number, reject, whole_number
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.typing import ArrayLike, FloatArray, IntArray


@overload
def sphere_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any, *, device: Literal["cpu"] = "cpu"
) -> tuple[TokenDataset, FloatArray]: ...


@overload
def sphere_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any, *, device: str
) -> tuple[Any, Any]: ...


@implements("A", "App. E")
def sphere_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any, *, device: str = "cpu"
) -> tuple[Any, Any]:
    """Tokens and head uniform on the unit sphere, labels ±1 with equal chance, W = I: the data of A's Figure 9.

    Args:
        rng: a `numpy.random.Generator`, or a whole number to seed one.
        device: "cpu", or "cuda" or "cuda:1", where they are made by counter under a seed from `rng`, and stay.
    Returns:
        A batch of `n_problems` problems and their heads v, shape (n_problems, d_model); on a device, `DeviceTokens` and an array there.
    """
    sizes = _sizes(n_problems=n_problems, n_inputs=n_inputs, n_tokens=n_tokens, d_model=d_model)
    generator = as_generator(rng)
    if device != "cpu":
        return sphere_problems(0, n_problems, n_inputs, n_tokens, d_model, _seed(generator), device=device)
    X = _on_sphere(generator.standard_normal(sizes))
    v = _on_sphere(generator.standard_normal((n_problems, d_model)))
    y = generator.choice([-1.0, 1.0], size=(n_problems, n_inputs))
    return TokenDataset(X, y), v


def sphere_queries(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any
) -> tuple[TokenDataset, FloatArray, FloatArray]:
    """`sphere_tokens` with one query per input, uniform on the unit sphere too: for weights W (d_model, d_model) with logits X_i Wᵀ z_i.

    Returns:
        A batch of problems, their heads v (n_problems, d_model), and their queries z (n_problems, n_inputs, d_model).
    """
    generator = as_generator(rng)
    data, v = sphere_tokens(n_problems, n_inputs, n_tokens, d_model, generator)
    return data, v, _on_sphere(generator.standard_normal((n_problems, n_inputs, d_model)))


def class_clusters(n_classes: int, n_points: int, d_model: int, spread: float, rng: Any) -> tuple[FloatArray, IntArray]:
    """Points around one unit mean per class, with normal noise of this spread in every coordinate: data for `risk.MulticlassRisk`.

    Args:
        n_points: of each class. spread: standard deviation of the noise.
    Returns:
        The points (n_classes · n_points, d_model) and their classes (n_classes · n_points,).
    """
    _sizes(n_classes=n_classes, n_points=n_points, d_model=d_model)
    generator = as_generator(rng)
    means = _on_sphere(generator.standard_normal((n_classes, d_model)))
    classes = np.repeat(np.arange(n_classes), n_points)
    noise = generator.standard_normal((len(classes), d_model))
    return means[classes] + positive_number(spread, "spread") * noise, classes


@overload
def gaussian_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any, *, device: Literal["cpu"] = "cpu"
) -> tuple[TokenDataset, FloatArray]: ...


@overload
def gaussian_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any, *, device: str
) -> tuple[Any, Any]: ...


def gaussian_tokens(
    n_problems: int, n_inputs: int, n_tokens: int, d_model: int, rng: Any, *, device: str = "cpu"
) -> tuple[Any, Any]:
    """Standard normal tokens and head, labels ±1 with equal chance, and a key-query matrix that is normal too.

    Arguments and returned values are those of `sphere_tokens`.
    """
    sizes = _sizes(n_problems=n_problems, n_inputs=n_inputs, n_tokens=n_tokens, d_model=d_model)
    generator = as_generator(rng)
    if device != "cpu":
        return gaussian_problems(0, n_problems, n_inputs, n_tokens, d_model, _seed(generator), device=device)
    X = generator.standard_normal(sizes)
    W = generator.standard_normal((d_model, d_model)) / np.sqrt(d_model)
    y = generator.choice([-1.0, 1.0], size=(n_problems, n_inputs))
    return TokenDataset(X, y, W=W), generator.standard_normal((n_problems, d_model))


def scored_tokens(keys: Any, scores: Any, y: ArrayLike | None = None) -> tuple[TokenDataset, FloatArray]:
    """Tokens whose keys and scores are given outright, by a last coordinate that the head reads and the keys leave out.

    Args:
        keys: (…, n_inputs, n_tokens, d_key). scores: γ of shape (…, n_inputs, n_tokens). y: labels, all +1 by default.
    Returns:
        A dataset with d_model = d_key + 1 and the head v = e_last, so that `data.scores(v)` is `scores`.
    """
    K, gamma = float_array(keys, "keys"), float_array(scores, "scores")
    if K.ndim not in (3, 4):
        raise reject("keys", "of shape (…, n_inputs, n_tokens, d_key)", f"shape {K.shape}")
    if K.shape[:-1] != gamma.shape:
        raise reject("scores", f"one number per key, shape {K.shape[:-1]}", f"shape {gamma.shape}")
    labels = np.ones(K.shape[:-2]) if y is None else float_array(y, "y")
    if labels.shape != K.shape[:-2]:
        raise reject("y", f"labels, each -1 or +1, of shape {K.shape[:-2]}", f"shape {labels.shape}")
    X = np.concatenate([K, (labels[..., None] * gamma)[..., None]], axis=-1)
    return TokenDataset(X, labels, K=K), np.eye(K.shape[-1] + 1)[-1]


def as_generator(rng: Any) -> np.random.Generator:
    """`rng` if it is a NumPy generator, or one seeded by a whole number."""
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, int | np.integer) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise reject("rng", "a numpy.random.Generator or a whole number that seeds one", repr(rng))


def _seed(generator: np.random.Generator) -> int:
    """A seed for problems by counter."""
    return int(generator.integers(0, 2**64, dtype=np.uint64))


def _sizes(**given: Any) -> tuple[int, ...]:
    return tuple(whole_number(size, name, at_least=1) for name, size in given.items())


def _on_sphere(x: FloatArray) -> FloatArray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@implements("A", "Lemma 14")
def label_mixing(
    n_inputs: int, n_tokens: int, n_optimal: int, d_key: int, rng: Any, *, epsilon: float = 0.2
) -> tuple[TokenDataset, FloatArray, tuple[IntArray, ...]]:
    r"""Random keys, and scores of which the optimal tokens of an input share the highest.

    .. math:: \gamma_{i\alpha} = \nu_i \ (\alpha \in O_i), \qquad -\nu_i \le \gamma_{it} \le (1 - \epsilon) \nu_i \ (t \notin O_i)

    Args:
        n_optimal: tokens in each set O_i, from 1 to n_tokens.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
        epsilon: share of ν_i by which the other scores stay below it, above 0 and at most 2.
    Returns:
        A dataset whose keys are uniform on the unit sphere of d_key dimensions, the head v, and the sets O_i.
    """
    generator = as_generator(rng)
    gap = positive_number(epsilon, "epsilon")
    if gap > 2.0:
        raise reject("epsilon", "at most 2, because no score is below -ν", f"{gap:g}")
    keys, sets, is_optimal = _keys_and_sets((n_inputs, n_tokens, n_optimal, d_key), generator)
    nu = generator.uniform(0.5, 1.5, size=(n_inputs, 1))
    scores = np.where(is_optimal, nu, nu * generator.uniform(-1.0, 1.0 - gap, size=is_optimal.shape))
    data, v = scored_tokens(keys, scores, generator.choice([-1.0, 1.0], size=n_inputs))
    return data, v, sets


@dataclass(frozen=True, repr=False, eq=False)
class MonotoneNetwork(Described):
    r"""A network with one hidden layer whose output rises with every coordinate of its input.

    .. math:: \psi(z) = \sum_h c_h \tanh(a_h^\top z + b_h), \quad a, c > 0

    Attributes:
        A: (n_hidden, d_model) positive. b: (n_hidden,). c: (n_hidden,) positive.
    """

    A: FloatArray
    b: FloatArray
    c: FloatArray
    quantities = "{c:#} hidden units, d_model={A.shape[1]}"

    def __call__(self, z: Any) -> Any:
        """ψ of points (n, d_model), as NumPy arrays or as torch tensors with gradients."""
        if isinstance(z, np.ndarray):
            return np.tanh(z @ self.A.T + self.b) @ self.c
        import torch

        A, b, c = (torch.as_tensor(weights, dtype=z.dtype, device=z.device) for weights in (self.A, self.b, self.c))
        return torch.tanh(z @ A.T + b) @ c


@implements("A", "Eq. (83)")
def monotone_mixing(
    n_inputs: int, n_tokens: int, n_optimal: int, d_key: int, rng: Any, *, d_model: int = 3
) -> tuple[TokenDataset, MonotoneNetwork, tuple[IntArray, ...]]:
    r"""Tokens and a nonlinear head ψ under which mixing in non-optimal tokens always hurts, by construction.

    .. math:: L(p) = \frac1n \sum_i \ell\big(Y_i \psi(X_i^\top \mathbb S(K_i p))\big), \qquad
        Y_i (x_{i\alpha} - x_{it}) > 0 \ \text{in every coordinate}, \ \alpha \in O_i,\ t \notin O_i

    The optimal tokens of an input have one value x and different keys; ψ is a `MonotoneNetwork`. A share q of other tokens then lowers
    Y ψ by an amount between two positive multiples of q, which is all that Assumption D needs.

    Args:
        n_optimal: tokens in each set O_i, from 1 to n_tokens.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
        d_model: width of the tokens, which have keys of their own on the unit sphere of d_key dimensions.
    Returns:
        A dataset, the network, and the sets O_i.
    """
    generator = as_generator(rng)
    whole_number(d_model, "d_model", at_least=1)
    keys, sets, is_optimal = _keys_and_sets((n_inputs, n_tokens, n_optimal, d_key), generator)
    y = generator.choice([-1.0, 1.0], size=n_inputs)
    best = generator.uniform(0.5, 1.0, size=(n_inputs, 1, d_model))
    lower = best - generator.uniform(0.2, 1.5, size=(n_inputs, n_tokens, d_model))
    X = np.where(is_optimal[..., None], best, lower) * y[:, None, None]
    n_hidden = 8
    network = MonotoneNetwork(
        generator.uniform(0.2, 1.0, size=(n_hidden, d_model)),
        generator.uniform(-0.5, 0.5, size=n_hidden),
        generator.uniform(0.2, 1.0, size=n_hidden),
    )
    return TokenDataset(X, y, K=keys), network, sets


def _keys_and_sets(
    sizes: tuple[int, int, int, int], generator: np.random.Generator
) -> tuple[FloatArray, tuple[IntArray, ...], Any]:
    """Keys (n_inputs, n_tokens, d_key) on the unit sphere, random sets O_i, and the mask (n_inputs, n_tokens) of their tokens."""
    for name, size in zip(("n_inputs", "n_tokens", "n_optimal", "d_key"), sizes, strict=True):
        whole_number(size, name, at_least=1)
    n_inputs, n_tokens, n_optimal, d_key = sizes
    if n_optimal > n_tokens:
        raise reject("n_optimal", f"at most n_tokens = {n_tokens}", n_optimal)
    keys = generator.standard_normal((n_inputs, n_tokens, d_key))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    sets = tuple(np.sort(generator.permutation(n_tokens)[:n_optimal]) for _ in range(n_inputs))
    is_optimal = np.array([np.isin(np.arange(n_tokens), optimal) for optimal in sets])
    return keys, sets, is_optimal
