"""Noisy labels: hard labels that are flipped, and soft labels that spread their weight over the classes."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, index_array, share_number, whole_number
from marginlens.typing import ArrayLike, BoolArray, FloatArray, Seed


class NoisyLabels(NamedTuple):
    """A dataset with flipped labels: `data`, and `flipped` (…, n_inputs), which marks them."""

    data: Any
    flipped: BoolArray


def flip_labels(data: TokenDataset | LabelledSequences, share: float, rng: Seed) -> NoisyLabels:
    """Flip each label -1 or +1 with the same probability, independently of all others.

    Args:
        data: a `TokenDataset`, one problem or a batch, or `LabelledSequences`.

        share: the probability, from 0 to 1.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

    Returns:
        The dataset with the new labels, and which were flipped.

    Examples:
        >>> import marginlens as ml
        >>> data, head = ml.data.sphere_tokens(1, 1000, 2, 3, rng=0)
        >>> noisy, flipped = ml.data.flip_labels(data, 0.1, rng=0)
        >>> bool(((noisy.y != data.y) == flipped).all())
        True
    """
    if not isinstance(data, TokenDataset | LabelledSequences):
        raise InputError("data", "a TokenDataset or LabelledSequences", type(data).__name__)
    flipped = as_generator(rng).random(np.shape(data.y)) < share_number(share, "share")
    noisy = copy(data)
    noisy.y = np.where(flipped, -data.y, data.y)
    return NoisyLabels(noisy, flipped)


def soft_labels(classes: ArrayLike, n_classes: int, noise: float) -> FloatArray:
    """Make soft labels for classes that are wrong with some probability, and then uniform over the other classes.

    Given as the counts of `ContextDataset(H, soft_labels(…))`, they are soft labels of next-token prediction. Without noise
    they are one-hot.

    Args:
        classes: (n_points,) whole numbers from 0.

        n_classes: the number of classes, at least 2.

        noise: the probability of a wrong label, from 0 to 1.

    Returns:
        (n_points, n_classes) probabilities.

    Examples:
        >>> import marginlens as ml
        >>> print(ml.data.soft_labels([0, 2], 3, 0.2))
        [[0.8 0.1 0.1]
         [0.1 0.1 0.8]]
    """
    count, share = whole_number(n_classes, "n_classes", at_least=2), share_number(noise, "noise")
    own = index_array(classes, "classes", f"whole numbers from 0 to {count - 1}", (-1,), below=count)
    others = np.full((len(own), count), share / (count - 1.0))
    others[np.arange(len(own)), own] = 1.0 - share
    return others
