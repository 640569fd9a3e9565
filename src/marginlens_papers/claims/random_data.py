"""Random data that only claims draw: clusters of classes, inputs with several optimal tokens, and sequences of papers B and C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import unit
from marginlens.data.labelled import LabelledSequences
from marginlens.data.random_tokens import as_generator, scored_tokens
from marginlens.data.sequence_generators import check_can_be_cyclic, checked_sizes, redrawn, unit_rows
from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, positive_number, whole_number
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.typing import FloatArray, IntArray


def class_clusters(n_classes: int, n_points: int, d_model: int, spread: float, rng: Any) -> tuple[FloatArray, IntArray]:
    """Points around one unit mean per class, with normal noise of this spread in every coordinate: data for `risk.MulticlassRisk`.

    Args:
        n_points: of each class. spread: standard deviation of the noise.
    Returns:
        The points (n_classes · n_points, d_model) and their classes (n_classes · n_points,).
    """
    for name, size in (("n_classes", n_classes), ("n_points", n_points), ("d_model", d_model)):
        whole_number(size, name, at_least=1)
    generator = as_generator(rng)
    means = unit(generator.standard_normal((n_classes, d_model)))
    classes = np.repeat(np.arange(n_classes), n_points)
    noise = generator.standard_normal((len(classes), d_model))
    return means[classes] + positive_number(spread, "spread") * noise, classes


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
        raise InputError("epsilon", "at most 2, because no score is below -ν", f"{gap:g}")
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
        raise InputError("n_optimal", f"at most n_tokens = {n_tokens}", n_optimal)
    keys = generator.standard_normal((n_inputs, n_tokens, d_key))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    sets = tuple(np.sort(generator.permutation(n_tokens)[:n_optimal]) for _ in range(n_inputs))
    is_optimal = np.array([np.isin(np.arange(n_tokens), optimal) for optimal in sets])
    return keys, sets, is_optimal


@implements("C", "App. D")
def random_sequences(n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any) -> SequenceDataset:
    """Random sequences, each labelled by one of its different tokens at random: any dataset, cyclic or not. C's Figures 5 and 6."""
    K, d, n, T = checked_sizes(n_vocabulary, d_model, n_samples, n_tokens)
    generator = as_generator(rng)
    E = unit_rows(K, d, generator)
    sequences = generator.integers(K, size=(n, T))
    return SequenceDataset(sequences, [generator.choice(np.unique(ids)) for ids in sequences], E)


@implements("C", "App. D")
def acyclic_sequences_as_coded(
    n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any
) -> SequenceDataset:
    """Acyclic data as the authors' code makes them: no token twice in a sequence, random labels, drawn again until no tokens tie.

    Args and Returns as in `acyclic_sequences`; a sequence cannot be longer than the vocabulary is large. Labels need not follow one
    order: every last token has its own.
    """
    return _as_coded(checked_sizes(n_vocabulary, d_model, n_samples, n_tokens), rng, cyclic=False)


@implements("C", "App. D")
def cyclic_sequences_as_coded(
    n_vocabulary: int, d_model: int, n_samples: int, n_tokens: int, rng: Any
) -> SequenceDataset:
    """Cyclic data as the authors' code makes them: no token twice in a sequence, random labels, drawn again until some tokens tie.

    Args and Returns as in `cyclic_sequences`; a sequence cannot be longer than the vocabulary is large.
    """
    sizes = checked_sizes(n_vocabulary, d_model, n_samples, n_tokens)
    check_can_be_cyclic(sizes[0], sizes[2], sizes[3])
    return _as_coded(sizes, rng, cyclic=True)


def random_start(data: SequenceDataset | Sequence[SequenceDataset], rng: Any) -> FloatArray:
    r"""W(0) with entries uniform in ±1/√d, as the authors' code of C starts; (d_model, d_model), or one for each of a list of datasets.

    Args:
        data: one dataset, or a list of datasets of one width.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    """
    datasets = data if isinstance(data, list | tuple) else [data]
    widths = {as_sequences(each).d_model for each in datasets}
    if len(widths) != 1:
        raise InputError("data", "at least one dataset, all of the same d_model", f"widths {sorted(widths)}")
    d = widths.pop()
    W = as_generator(rng).uniform(-1.0, 1.0, size=(len(datasets), d, d)) / np.sqrt(d)
    return W if isinstance(data, list | tuple) else W[0]


def _as_coded(sizes: tuple[int, ...], rng: Any, *, cyclic: bool) -> SequenceDataset:
    K, d, n, T = sizes
    if T > K:
        raise InputError("n_tokens", f"at most n_vocabulary = {K}, as no token occurs twice in a sequence", T)
    generator = as_generator(rng)

    def draw() -> tuple[IntArray, IntArray]:
        sequences = np.argsort(generator.random((n, K)), axis=1)[:, :T]
        return sequences, sequences[np.arange(n), generator.integers(T, size=n)]

    return redrawn(unit_rows(K, d, generator), draw, cyclic=cyclic)


@implements("B", "Assumption 4")
def balanced_sequences(
    n_samples: int, n_tokens: int, n_important: int, n_irrelevant: int, rng: Any
) -> LabelledSequences:
    r"""Random sequences with one token that decides the label, all others being irrelevant to the count.

    .. math:: \alpha_s = 0 \ (s\ \text{irrelevant}), \quad
        |\{t : x_{it}\ \text{completely positive}\}| = 1_{y_i = 1}, \quad |\{t : x_{it}\ \text{completely negative}\}| = 1_{y_i = -1}

    Half of the labels are +1. The irrelevant tokens of the positive sequences are dealt out again, in random order, to the negative ones.

    Args:
        n_samples: n, even. n_tokens: T ≥ 2, the length of every sequence.
        n_important: completely positive tokens, ids 0 to `n_important` - 1, and as many completely negative ones, the next ids.
        n_irrelevant: irrelevant tokens, the last ids. rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        Labelled sequences in which every id occurs; `check_assumption_4` accepts them.
    """
    n, T = whole_number(n_samples, "n_samples", at_least=2), whole_number(n_tokens, "n_tokens", at_least=2)
    important = whole_number(n_important, "n_important", at_least=1)
    irrelevant = whole_number(n_irrelevant, "n_irrelevant", at_least=1)
    half = n // 2
    if n % 2:
        raise InputError("n_samples", "even, so that tokens can balance", n)
    if important > half:
        raise InputError("n_important", f"at most n_samples / 2 = {half}, as every token occurs", important)
    if irrelevant > half * (T - 1):
        raise InputError(
            "n_irrelevant", f"at most {half * (T - 1)}, the positions they have in positive sequences", irrelevant
        )
    generator = as_generator(rng)
    dealt = np.concatenate([np.arange(irrelevant), generator.integers(irrelevant, size=half * (T - 1) - irrelevant)])
    rest = [generator.permutation(dealt).reshape(half, T - 1) + 2 * important for _ in range(2)]
    decisive = [generator.permutation(np.arange(half) % important) + side * important for side in range(2)]
    tokens = np.concatenate([np.column_stack(both) for both in zip(decisive, rest, strict=True)])
    place = generator.integers(T, size=n)  # the decisive token trades places with one of its sequence
    rows = np.arange(n)
    tokens[rows, 0], tokens[rows, place] = tokens[rows, place].copy(), tokens[rows, 0].copy()
    order = generator.permutation(n)
    y = np.repeat([1.0, -1.0], half)[order]
    return LabelledSequences.of_positions(
        tokens[order].reshape(-1).astype(np.int64), np.arange(0, n * T + 1, T), y, 2 * important + irrelevant
    )
