"""Windows over a text with the token that follows each, and splits into training and held-out sequences."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokenizer import as_unit
from marginlens.data.vocabulary import NamedSequences, Vocabulary
from marginlens.errors import InputError, real_number, whole_number
from marginlens.typing import FloatArray, IntArray, Seed

# One-hot embeddings are made for no more tokens than this, which takes 134 MB.
MAX_ONE_HOT = 4_096


def text_windows(
    text: str, window: int, unit: object = None, *, d_model: int | None = None, rng: Seed = 0
) -> NamedSequences:
    r"""List every window of a text with the token that follows it, except those that do not hold this token.

    .. math:: X_i = (x_i, \dots, x_{i+T-1}), \quad y_i = x_{i+T} \in X_i

    Args:
        text: the text, such as `read_text` returns.

        window: T, the number of tokens in each window.

        unit: how the text is cut into tokens: `Characters()` by default, `Words(...)`, or a tokenizer as in `TextTokens`.

        d_model: width of random embeddings on the unit sphere; embeddings are one-hot by default.

        rng: the generator of these embeddings, or a whole number to seed one.

    Returns:
        The windows whose next token occurs in them as `data`, and the vocabulary. `data.dropped` lists the other windows by
        position.
    """
    if not isinstance(text, str):
        raise InputError("text", "a string", type(text).__name__)
    T = whole_number(window, "window", at_least=1)
    vocabulary, ids = indexed_text(text, unit)
    if len(ids) <= T:
        raise InputError("window", f"shorter than the text, which has {len(ids)} tokens", T)
    if not _holds_a_label(ids, T):
        raise InputError("window", "long enough that some window holds the token that follows it", T)
    return NamedSequences(windows_of(ids, T, embeddings(len(vocabulary), d_model, rng)), vocabulary)


def windows_of(ids: IntArray, window: int, E: FloatArray) -> SequenceDataset:
    """Return every window of a text in ids with its next token, if the window holds that token."""
    windows = np.lib.stride_tricks.sliding_window_view(ids, window)[:-1]
    return SequenceDataset(windows, ids[window:], E, unrealizable="drop")


def indexed_text(text: str, unit: object = None) -> tuple[Vocabulary, IntArray]:
    """Return the vocabulary of a text, and the text in its ids (n_tokens,)."""
    if not isinstance(text, str):
        raise InputError("text", "a string", type(text).__name__)
    vocabulary, ids = as_unit(unit).index(text)
    if len(ids) == 0:
        raise InputError("text", "a text with at least one token", "none")
    return vocabulary, ids


def embeddings(n_vocabulary: int, d_model: int | None, rng: Seed) -> FloatArray:
    """Return unit rows (n_vocabulary, d_model): one-hot if no width is given, otherwise random."""
    if d_model is None:
        if n_vocabulary > MAX_ONE_HOT:
            raise InputError(
                "d_model",
                f"given for more than {MAX_ONE_HOT} tokens",
                f"none for {n_vocabulary}",
                "One-hot rows would be too wide.",
            )
        return np.eye(n_vocabulary)
    rows = as_generator(rng).standard_normal((n_vocabulary, whole_number(d_model, "d_model", at_least=1)))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class SequenceSplit(NamedTuple):
    """Sequences in two parts.

    Attributes:
        training: the sequences to learn from.

        held_out: the others.

        samples: (n_training,) the original index of each training sequence, before any was dropped or held out: its window in a
            text, or its place in a list.

        text: the ids of the training part of a text, also of tokens in no kept window; None unless the sequences come from a
            text.

        held_out_text: the ids of the held-out part, in the same way.
    """

    training: NamedSequences
    held_out: SequenceDataset
    samples: IntArray
    text: IntArray | None
    held_out_text: IntArray | None = None


def split_text_windows(
    text: str,
    window: int,
    unit: object = None,
    *,
    held_out: float = 0.1,
    d_model: int | None = None,
    rng: Seed = 0,
) -> SequenceSplit:
    """Split a text into training windows from its beginning and held-out windows from its end; no window spans both.

    The vocabulary is that of the whole text, so that both parts have the same ids.

    Args:
        text, window, unit, d_model, rng: as in `text_windows`.

        held_out: the share of the text that is held out, between 0 and 1.
    """
    share, T = held_out_share(held_out), whole_number(window, "window", at_least=1)
    vocabulary, ids = indexed_text(text, unit)
    cut = len(ids) - round(share * len(ids))
    return split_ids(ids[:cut], ids[cut:], T, vocabulary, embeddings(len(vocabulary), d_model, rng))


def split_ids(first: IntArray, rest: IntArray, window: int, vocabulary: Vocabulary, E: FloatArray) -> SequenceSplit:
    """Return windows of the beginning of a text to learn from and held-out windows of its end, both given in ids."""
    for ids, name in ((first, "first"), (rest, "held-out")):
        if not _holds_a_label(ids, window):
            expected = f"such that some window of the {name} part holds the token that follows it"
            raise InputError("held_out", expected, f"a share that leaves {len(ids)} tokens for windows of {window}")
    training = NamedSequences(windows_of(first, window, E), vocabulary)
    samples = training.data.original_samples()
    return SequenceSplit(training, windows_of(rest, window, E), samples, first, rest)


def _holds_a_label(ids: IntArray, window: int) -> bool:
    """Return whether some window of a text in ids holds the token that follows it."""
    T = window
    return len(ids) > T and any(np.any(ids[t : len(ids) - T + t] == ids[T:]) for t in range(T))


def split_sequences(named: NamedSequences, *, held_out: float = 0.1, rng: Seed = 0) -> SequenceSplit:
    """Hold out some sequences at random, and keep the others to learn from.

    Args:
        named: the sequences with the names of their tokens, from `read_sequences`.

        held_out: the share to hold out, between 0 and 1.

        rng: a generator, or a whole number to seed one.
    """
    data, share = named.data, held_out_share(held_out)
    count = round(share * len(data))
    if not 0 < count < len(data):
        raise InputError("held_out", "such that both parts have a sequence", f"{share:g} of {len(data)} sequences")
    chosen = np.zeros(len(data), dtype=bool)
    chosen[as_generator(rng).choice(len(data), count, replace=False)] = True
    training = data.take(np.flatnonzero(~chosen))
    training.dropped = data.dropped
    samples, others = data.original_samples()[~chosen], data.take(np.flatnonzero(chosen))
    return SequenceSplit(NamedSequences(training, named.vocabulary), others, samples, None)


def held_out_share(held_out: object) -> float:
    """Return `held_out` if it is a share between 0 and 1, otherwise raise."""
    expected = "a share between 0 and 1, such as 0.1"
    return real_number(held_out, "held_out", expected, lambda number: 0.0 < number < 1.0)
