"""Sequences in two parts: some to learn from, and some held out to measure predictions on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.generators import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_windows import embeddings, indexed_text, windows_of
from marginlens.data.tokens import IntArray
from marginlens.data.vocabulary import NamedSequences, Unit
from marginlens.errors import reject, whole_number


class SequenceSplit(NamedTuple):
    """Sequences in two parts.

    Attributes:
        training: the sequences to learn from. held_out: the others. samples: (n_training,) where each of the first stood before any was
            dropped or held out: its window in a text, its place in a list. text: the ids of the first part of a text, else None.
    """

    training: NamedSequences
    held_out: SequenceDataset
    samples: IntArray
    text: IntArray | None


def split_text_windows(
    text: str,
    window: int,
    unit: Unit | None = None,
    *,
    held_out: float = 0.1,
    d_model: int | None = None,
    rng: Any = 0,
) -> SequenceSplit:
    """Windows of the beginning of a text to learn from, and those of its end held out; no window reaches into the other part.

    The vocabulary is that of the whole text, so that both parts have the same ids.

    Args:
        text, window, unit, d_model, rng: as in `text_windows`. held_out: the share of the text at its end, between 0 and 1.
    """
    share, T = _share(held_out), whole_number(window, "window", at_least=1)
    vocabulary, ids = indexed_text(text, unit)
    cut = len(ids) - round(share * len(ids))
    E = embeddings(len(vocabulary), d_model, rng)
    for part, name in ((ids[:cut], "first"), (ids[cut:], "held-out")):
        if len(part) <= T or not any(np.any(part[t : len(part) - T + t] == part[T:]) for t in range(T)):
            expected = f"such that some window of the {name} part holds the token that follows it"
            raise reject("held_out", expected, f"{share:g}, which leaves {len(part)} tokens for windows of {T}")
    training = NamedSequences(windows_of(ids[:cut], T, E), vocabulary)
    return SequenceSplit(training, windows_of(ids[cut:], T, E), training.data.original_samples(), ids[:cut])


def split_sequences(named: NamedSequences, *, held_out: float = 0.1, rng: Any = 0) -> SequenceSplit:
    """Some sequences at random held out, the others to learn from.

    Args:
        held_out: their share, between 0 and 1. rng: a generator, or a whole number to seed one.
    """
    data, share = named.data, _share(held_out)
    count = round(share * len(data))
    if not 0 < count < len(data):
        raise reject("held_out", "such that both parts have a sequence", f"{share:g} of {len(data)} sequences")
    chosen = np.zeros(len(data), dtype=bool)
    chosen[as_generator(rng).choice(len(data), count, replace=False)] = True
    training = data.take(np.flatnonzero(~chosen))
    training.dropped = data.dropped
    samples, others = data.original_samples()[~chosen], data.take(np.flatnonzero(chosen))
    return SequenceSplit(NamedSequences(training, named.vocabulary), others, samples, None)


def _share(held_out: Any) -> float:
    expected = "a share between 0 and 1, such as 0.1"
    if isinstance(held_out, bool) or not isinstance(held_out, int | float | np.number):
        raise reject("held_out", expected, repr(held_out))
    if not 0.0 < float(held_out) < 1.0:
        raise reject("held_out", expected, f"{float(held_out):g}")
    return float(held_out)
