"""Labelled sequences: what a subset keeps, and where a decisive token stands."""

import numpy as np
import pytest

from marginlens.data import LabelledSequences, balanced_sequences
from marginlens.errors import InputError

DATA = LabelledSequences([[3, 1], [2], [0, 0, 1], [1, 3]], [1, -1, 1, -1], 6)


@pytest.mark.parametrize(
    ("samples", "chosen"),
    [
        ([2, 0, 1], [2, 0, 1]),
        ([-1, -1], [3, 3]),
        ([False, True, False, True], [1, 3]),
        (slice(None, None, 2), [0, 2]),
        ([], []),
    ],
)
def test_a_subset_keeps_ids_and_labels_in_the_order_asked_for(samples, chosen):
    part = DATA.subset(samples)
    assert [(ids.tolist(), y) for ids, y in (part[i] for i in range(len(part)))] == [
        (DATA[i][0].tolist(), DATA[i][1]) for i in chosen
    ]
    assert part.n_vocabulary == 6


@pytest.mark.parametrize("samples", [[4], [True, False], 1, [[0, 1]], [0.5], "ab"])
def test_what_is_no_choice_of_samples_is_refused(samples):
    with pytest.raises(InputError, match="'samples' argument must be indices"):
        DATA.subset(samples)


def test_an_id_outside_the_vocabulary_is_named_with_its_place():
    with pytest.raises(InputError, match="ids from 0 to 3; got id 4 at position 1 of sample 2"):
        LabelledSequences([[0, 1], [2], [0, 4, 1]], [1, 1, -1], 4)


def test_decisive_tokens_stand_anywhere():
    data = balanced_sequences(200, 5, 2, 10, 0)
    place = np.argmax(data.tokens.reshape(200, 5) < 4, axis=1)
    assert (np.bincount(place, minlength=5) > 20).all()
