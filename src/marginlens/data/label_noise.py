"""Labels that are not what they should be: flipped ones, and soft ones that share their weight."""

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
    """A dataset some of whose labels were flipped: `data` of the same kind, and which, (…, n_inputs), of the labels' shape."""

    data: Any
    flipped: BoolArray


def flip_labels(data: TokenDataset | LabelledSequences, share: float, rng: Seed) -> NoisyLabels:
    """The dataset with each label -1 or +1 flipped with this probability, independently of all others.

    Args:
        data: a `TokenDataset`, one problem or a batch, or `LabelledSequences`.
        share: the probability, from 0 to 1.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    """
    if not isinstance(data, TokenDataset | LabelledSequences):
        raise InputError("data", "a TokenDataset or LabelledSequences", type(data).__name__)
    flipped = as_generator(rng).random(np.shape(data.y)) < share_number(share, "share")
    noisy = copy(data)
    noisy.y = np.where(flipped, -data.y, data.y)
    return NoisyLabels(noisy, flipped)


def soft_labels(classes: ArrayLike, n_classes: int, noise: float) -> FloatArray:
    """The probabilities (n_points, n_classes) of labels that are wrong with this probability, and then any other class alike.

    As counts of `ContextDataset(H, soft_labels(…))` they are the soft labels of next-token prediction; without noise, the classes.

    Args:
        classes: (n_points,) whole numbers from 0.
        n_classes: at least 2.
        noise: from 0 to 1.
    """
    count, share = whole_number(n_classes, "n_classes", at_least=2), share_number(noise, "noise")
    own = index_array(classes, "classes", f"whole numbers from 0 to {count - 1}", (-1,), below=count)
    others = np.full((len(own), count), share / (count - 1.0))
    others[np.arange(len(own)), own] = 1.0 - share
    return others
