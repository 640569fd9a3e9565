"""Problems and datasets as files: one JSON format, and .npz without pickles for arrays.

A JSON file holds one problem, of token selection or of next tokens::

    {"format": "marginlens-problem", "version": 2,
     "tokens": [[[…], …], …],        inputs of vectors; left out if keys and scores are given
     "keys": [[[…], …], …],          one for each token, or "W" with keys W x; left out if keys are tokens
     "labels": [1, -1, …],           1 for each input unless given
     "head": […],                    or "scores" [[…], …] of all tokens
     "train": "attention",           or "both", if the head is trained too
     "start": […], "start_head": […], "optimizer": {…}, "loss": "logistic", "steps": 1000,
     "words": [[…], …]}              names of the tokens, if they have names

    {"format": "marginlens-problem", "version": 2,
     "sequences": [[…], …], "labels": […],   ids, or names of tokens
     "vocabulary": […],                      names in the order of their ids
     "E": [[…], …], "C": [[…], …]}           embeddings and head, if they are not one-hot

`marginlens.lab.problem_files` reads the run in the first of them: start, optimizer, loss and steps. The lab's page reads
and writes the same format. Two older forms are still read: version 1, which names optimizers and losses by their classes, and
JSON files without a format, which hold X, y and v.
"""

from __future__ import annotations

import json
import math
import os
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from inspect import signature
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from marginlens.data.labelled import LabelledSequences
from marginlens.data.plain_text import STDIN
from marginlens.data.sequences import FlatSequences, SequenceDataset, as_sequences, check_ids
from marginlens.data.text_windows import MAX_ONE_HOT, embeddings
from marginlens.data.tokens import TokenDataset, as_dataset, sign_labels
from marginlens.data.vocabulary import Listed, NamedSequences, Vocabulary
from marginlens.errors import InputError, array_of_any, index_array, real_array, rename_arguments
from marginlens.runtime.files import (
    DATA_FORMAT,
    as_path,
    check_place,
    json_by_line,
    unusable,
    write_result,
    write_whole,
)
from marginlens.typing import ArrayLike, FloatArray
from marginlens.words import DEFAULT

# The entry "format" of every JSON file.
PROBLEM_FORMAT = "marginlens-problem"
PROBLEM_VERSION = 2
# What is trained, the entry "train".
ATTENTION, BOTH = "attention", "both"
_FORMAT = {"format": PROBLEM_FORMAT, "version": PROBLEM_VERSION}
# How many indices a number of these entries has.
_DEPTHS = {"tokens": 3, "keys": 3, "labels": 1, "W": 2}
_PROBLEM = "a JSON file of a problem, or a .npz file with X, y, v and optionally K or W"
_SEQUENCES = "a JSON or .npz file that holds sequences, labels and optionally vocabulary, E and C"
_LABELLED = "a .npz file with tokens, offsets and y, and optionally names"
_KNOWN = {
    "X",
    "y",
    "v",
    "K",
    "W",
    "lengths",
    "logit_offsets",
    "words",
    "kind",
    "sequences",
    "labels",
    "vocabulary",
    "E",
    "C",
}
_KNOWN |= {"tokens", "offsets", "names", "split", "format"}
# How many entries of a file a message names, and how many letters of each.
_MAX_NAMES, _MAX_LETTERS = 12, 40
# Devices that end, unlike other character devices.
_STREAMS = ("/dev/stdin", "/dev/fd/")
_ZIP, _NPY = b"PK", b"\x93NUMPY"
PathLike = str | os.PathLike[str]
P = ParamSpec("P")
T = TypeVar("T")


def _refusing_entries(read: Callable[Concatenate[PathLike, P], T]) -> Callable[Concatenate[PathLike, P], T]:
    """Name a refused entry as an entry of the file, unless it is an argument of the reader."""
    arguments = {name: name for name in signature(read).parameters}

    @wraps(read)
    def reading(path: PathLike, *args: P.args, **kwargs: P.kwargs) -> T:
        with rename_arguments(path, **arguments):
            return read(path, *args, **kwargs)

    return reading


# ---- any dataset


def save(path: PathLike, data: TokenDataset | FlatSequences) -> None:
    """Write a dataset to a .npz file so that `load` gives it back; an existing file is replaced only once the new one is complete."""
    if not isinstance(data, TokenDataset | SequenceDataset | LabelledSequences):
        raise InputError("data", "a TokenDataset, a SequenceDataset or LabelledSequences", type(data).__name__)
    data.save(path)


@_refusing_entries
def load(path: PathLike) -> TokenDataset | SequenceDataset | LabelledSequences:
    """Load the dataset in a file written by `save`, `write_problem`, `write_sequences` or `write_labelled`, or in another file
    of the same form.
    """
    expected = "a file that data.save or one of marginlens.data's writers wrote"
    entries = read_entries(path, expected)
    if "sequences" in entries:
        return read_sequences(path, unrealizable="keep").data
    if "offsets" in entries:
        return read_labelled(path)[0]
    if is_problem(entries):
        return problem_tokens(entries).data
    if "X" in entries and "y" in entries:
        return _token_dataset(path, entries)
    raise InputError("path", expected, f"{str(path)!r}, which holds {_listed_names(entries)}")


# ---- token selection


class ProblemTokens(NamedTuple):
    """One problem, its head v (d_model,) if it has one, and whether the head is trained too."""

    data: TokenDataset
    head: FloatArray | None
    trains_head: bool


@_refusing_entries
def read_problem(path: PathLike) -> tuple[TokenDataset, FloatArray]:
    r"""Read the dataset and the head from a file.

    .. math:: (Y_i, X_i, K_i)_{i=1}^n, \quad v \in \mathbb R^d

    Args:
        path: a JSON file in the format of this module, or a NumPy `.npz` with X, y and v, and optionally K or W, in the shapes
            that `TokenDataset` takes. A `.npz` pads inputs of different lengths and counts the real tokens in `lengths`
            (n_inputs,) or (batch, n_inputs). Pickled objects are never loaded. `marginlens.lab.read_problem` also reads start,
            optimizer and loss.

    Returns:
        The dataset and v, of shape (d_model,) or (batch, d_model).
    """
    entries = read_entries(path)
    if is_problem(entries):
        problem = problem_tokens(entries)
        if problem.head is None:
            raise InputError("path", "a problem with a head", f"{str(path)!r}, where it is trained too and not given")
        return problem.data, problem.head
    _require(path, entries, ("X", "y", "v"), _PROBLEM)
    data = _token_dataset(path, entries)
    data.head(entries["v"], "v")
    return data, np.asarray(entries["v"], dtype=np.float64)


def write_problem(path: PathLike, data: TokenDataset, head: ArrayLike) -> None:
    """Write a dataset and a head so that `read_problem` gives them back; an existing file is replaced only once the new one is complete.

    Args:
        path: a name that ends in `.json`, or in `.npz`, which can also hold a batch.

        data: one problem, or a batch.

        head: v (d_model,), or (batch, d_model).
    """
    as_dataset(data).head(head)
    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", (".npz", ".json"))
    if place.suffix.lower() == ".npz":
        write_result(path, DATA_FORMAT, {**data.arrays(), "v": np.asarray(head, dtype=np.float64)})
    else:
        write_whole(place, json_by_line(tokens_json(data, head)), "path")


def is_problem(entries: object) -> bool:
    """Return whether the entries of a file are those of a problem of token selection in the JSON format."""
    names = set(entries) if isinstance(entries, Mapping) else set()
    return bool(names & {"format", "tokens", "keys"}) and not names & {"sequences", "offsets"}


def problem_tokens(entries: Mapping[str, Any]) -> ProblemTokens:
    """Return the dataset and the head of a problem of token selection from its entries; null entries count as missing."""
    entry = {name: value for name, value in entries.items() if value is not None}
    _check_format(entry)
    train, by_scores = entry.get("train", ATTENTION), "scores" in entry
    if train not in (ATTENTION, BOTH):
        raise refuse("train", f"{ATTENTION!r} or {BOTH!r}", train)
    if by_scores and ("head" in entry or train == BOTH):
        given = "a head is given" if "head" in entry else "the head is trained too"
        raise refuse("scores", f"left out if {given}", entry["scores"])
    first = "keys" if by_scores else "tokens"
    if first not in entry:
        raise InputError(first, "a list of inputs, each a list of vectors", "none")
    if "head" not in entry and not by_scores and train == ATTENTION:
        raise InputError("head", "given, or scores, if attention alone is trained", "neither")
    tokens, keys, labels, W = (_lists(entry, name, depth) for name, depth in _DEPTHS.items())
    words = entry.get("words")
    with rename_arguments(X=first, K="keys", y="labels", tokens="words"):
        if by_scores:
            data, reader = _of_scores(keys, labels, entry["scores"])
            return ProblemTokens(data if words is None else data.named(words, "words"), reader, False)
        data = TokenDataset(tokens, [1.0] * len(tokens) if labels is None else labels, keys, W, words)
        head = None if "head" not in entry else np.array(data.head(vector(entry["head"], "head", data.d_model)))
    return ProblemTokens(data, head, train == BOTH)


def _of_scores(keys: Any, labels: Any, scores: Any) -> tuple[TokenDataset, FloatArray]:
    """Make the dataset whose tokens are keys with Y_i γ_it as a last coordinate, and the head that reads this coordinate."""
    if not isinstance(scores, list) or len(scores) != len(keys):
        raise refuse("scores", f"a list of scores for each of {len(keys)} inputs", scores)
    data = TokenDataset(keys, [1.0] * len(keys) if labels is None else labels)
    last = [
        y * vector(row, f"scores[{i}]", len(keys[i])) for i, (y, row) in enumerate(zip(data.y, scores, strict=True))
    ]
    X = [np.column_stack([given, row]) for given, row in zip(keys, last, strict=True)]
    return TokenDataset(X, data.y, K=keys), np.eye(data.d_model + 1)[-1]


def tokens_json(data: TokenDataset, head: ArrayLike, trains_head: bool = False) -> dict[str, Any]:
    """Return the entries of a problem, which `problem_tokens` reads back exactly: numbers are written with all their digits.

    If the head reads scores from a last coordinate that the keys leave out, as `scored_tokens` makes it, the scores are written
    instead.
    """
    v = checked_head(data, head, trains_head)
    lengths = data.lengths.tolist()
    keys = _nested(data.K, lengths)
    entries: dict[str, Any] = {**_FORMAT, "labels": data.y.astype(int).tolist()}
    if v is not None and not trains_head and _holds_scores(data, v):
        scores = data.y[:, None] * data.X[..., -1]
        entries |= {"keys": keys, "scores": [scores[i, :n].tolist() for i, n in enumerate(lengths)]}
    else:
        entries["tokens"] = _nested(data.X, lengths)
        if data.W is None:
            entries["keys"] = keys
        elif not np.array_equal(data.W, np.eye(data.d_model)):
            entries["W"] = data.W.tolist()
        entries |= {} if v is None else {"head": v.tolist()}
    if data.tokens is not None:
        entries["words"] = [list(names) for names in data.tokens]
    return {**entries, "train": BOTH if trains_head else ATTENTION}


def checked_head(data: TokenDataset, head: ArrayLike, trains_head: bool) -> FloatArray | None:
    """Check the head (d_model,) of one problem, not a batch; None is refused unless the head is trained too."""
    if as_dataset(data).is_batch:
        raise InputError(
            "data", "one problem", f"a batch of {len(data)}", "Take one with data[j], or write a .npz file."
        )
    if head is None and not trains_head:
        raise InputError("head", "given if attention alone is trained", "none")
    return None if head is None else np.array(data.head(head))


def refuse(key: str, expected: str, got: object) -> InputError:
    """Make the error for an entry of a problem: its name, what it must be, and the beginning of what it is."""
    shown = repr(got)
    return InputError(key, expected, shown if len(shown) <= 40 else f"{shown[:37]}…")


def number(value: object, key: str, expected: str = "a finite number") -> float:
    """Check a finite number of a problem; booleans and texts are refused."""
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise refuse(key, expected, value)
        return float(value)
    except OverflowError:
        raise refuse(key, expected, value) from None


def vector(value: object, key: str, width: int | None) -> FloatArray:
    """Check a vector of a problem, of any width if `width` is None."""
    if not isinstance(value, list) or not value or (width is not None and len(value) != width):
        raise refuse(key, f"a list of {'' if width is None else f'{width} '}numbers", value)
    return np.array([number(entry, f"{key}[{k}]") for k, entry in enumerate(value)])


def _lists(entry: Mapping[str, Any], name: str, depth: int) -> Any:
    """Return the vectors of an entry whose numbers have `depth` indices; None if the problem has no such entry."""
    width: int | None = None

    def checked(value: object, key: str, depth: int) -> Any:
        nonlocal width
        if depth == 1:
            width = len(row := vector(value, key, width))
            return row
        if not isinstance(value, list) or not value:
            raise refuse(key, "a list that is not empty", value)
        inner = [checked(entry, f"{key}[{k}]", depth - 1) for k, entry in enumerate(value)]
        return np.array(inner) if depth == 2 else inner

    return None if name not in entry else checked(entry[name], name, depth)


def _check_format(entries: Mapping[str, Any]) -> None:
    """Refuse entries of another format, or of a later version."""
    if entries.get("format", PROBLEM_FORMAT) != PROBLEM_FORMAT:
        raise refuse("format", repr(PROBLEM_FORMAT), entries["format"])
    if entries.get("version", PROBLEM_VERSION) not in range(1, PROBLEM_VERSION + 1):
        raise refuse(
            "version", f"at most {PROBLEM_VERSION}, which this version of marginlens reads", entries["version"]
        )


def _holds_scores(data: TokenDataset, v: FloatArray) -> bool:
    """Return whether every token is its key with one more coordinate, and the head reads only that coordinate."""
    same_width = data.d_model == data.d_key + 1 and np.array_equal(v, np.eye(data.d_model)[-1])
    return same_width and np.array_equal(data.X[..., :-1], data.K)


def _nested(padded: FloatArray, lengths: list[int]) -> list[Any]:
    """Return vectors of inputs (n_inputs, n_tokens, width) as lists, without the padding."""
    return [padded[i, :n].tolist() for i, n in enumerate(lengths)]


def _token_dataset(path: PathLike, entries: Mapping[str, Any]) -> TokenDataset:
    """Return the dataset of the arrays X, y, K, W, lengths and logit_offsets."""
    if "w" in entries or "k" in entries:
        raise InputError(
            "path", f"{_PROBLEM}, in this spelling", f"{str(path)!r} with {'w' if 'w' in entries else 'k'!r}"
        )
    tokens = {name: entries[name] for name in ("X", "K") if name in entries}
    if "lengths" in entries:
        tokens = {name: _unpadded(array, entries["lengths"], name) for name, array in tokens.items()}
    more: dict[str, Any] = {
        "W": entries.get("W"),
        "offsets": entries.get("logit_offsets"),
        "kind": str(entries.get("kind", DEFAULT)),
    }
    data = TokenDataset(**tokens, y=entries["y"], **more)
    if "words" not in entries:
        return data
    words = array_of_any(entries["words"], "words", "the names of the tokens")
    if words.shape != data.X.shape[-3:-1]:
        raise InputError("words", f"names of shape {data.X.shape[-3:-1]}", f"shape {words.shape}")
    lengths = data.lengths.reshape(-1, data.n_inputs)[0].tolist()
    return data.named([row[:n] for row, n in zip(words.tolist(), lengths, strict=True)], "words")


def _unpadded(padded: object, lengths: ArrayLike, argument: str) -> Any:
    """Return padded tokens (…, n_inputs, n_tokens, width), or ids (n_samples, n_tokens), as lists of unpadded inputs."""
    array = array_of_any(padded, argument, "an array that pads inputs to the same length, since there are lengths")
    axes = array.shape[:-2] if array.ndim > 2 else array.shape[:1]
    longest = array.shape[len(axes)] if array.ndim > 1 else 0
    expected = f"whole numbers from 1 to {longest} of shape {axes}: how many tokens each input has"
    counts = index_array(lengths, "lengths", expected, axes, below=longest + 1)
    inputs = [array[place][:n] for place, n in np.ndenumerate(counts)]
    n_inputs = axes[-1]
    return inputs if len(axes) == 1 else [inputs[j : j + n_inputs] for j in range(0, len(inputs), n_inputs)]


# ---- sequences and their next tokens


class SequenceProblem(NamedTuple):
    """Sequences with the names of their tokens, and the head C (n_vocabulary, d_model) that a file gives; None for C Eᵀ = I."""

    named: NamedSequences
    head: FloatArray | None


def holds_sequences(path: PathLike) -> bool:
    """Return whether a file has the entry "sequences"; False if it cannot be read as JSON or .npz."""
    try:
        return "sequences" in read_entries(path)
    except InputError:
        return False


def read_sequences(path: PathLike, *, unrealizable: str = "refuse") -> NamedSequences:
    """Read the sequences in a JSON or .npz file.

    Args:
        path: a JSON file with "sequences", a list of lists, and "labels", a list as long. Both hold ids, or both names. Names are numbered
            in the order of "vocabulary", the list of all of them, or alphabetically if it is missing. "E" lists the embeddings
            (n_vocabulary, d_model), which are one-hot if it is missing. A .npz holds the same as arrays: sequences (n_samples, n_tokens)
            padded at their end, with "lengths" (n_samples,) if they differ.

        unrealizable: what to do with sequences that lack their label, as in `SequenceDataset`.

    Returns:
        The dataset and the names of its tokens, which are their ids if the file has none.
    """
    return read_sequence_problem(path, unrealizable=unrealizable).named


@_refusing_entries
def read_sequence_problem(path: PathLike, *, unrealizable: str = "refuse") -> SequenceProblem:
    """Read the sequences in a file as `read_sequences` does, with the head "C" (n_vocabulary, d_model) that it may give."""
    entries = read_entries(path, _SEQUENCES)
    _require(path, entries, ("sequences", "labels"), _SEQUENCES)
    _check_format(entries)
    sequences, labels, E = entries["sequences"], entries["labels"], entries.get("E")
    if isinstance(sequences, np.ndarray):
        lengths = entries.get("lengths", np.full(len(sequences), np.shape(sequences)[-1]))
        sequences = [ids.tolist() for ids in _unpadded(sequences, lengths, "sequences")]
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(sequences, list) or not all(isinstance(ids, list) for ids in sequences):
        raise InputError("sequences", "a list of lists of tokens", f"{sequences!r}"[:60])
    if not isinstance(labels, list):
        raise InputError("labels", "a list with one token per sequence", f"{labels!r}"[:60])
    kinds = {type(token) for ids in [*sequences, labels] for token in ids}
    names = None if "vocabulary" not in entries else _names(entries["vocabulary"], "vocabulary")
    if kinds == {str}:
        names = names or tuple(sorted({token for ids in [*sequences, labels] for token in ids}))
        vocabulary = Vocabulary(names, Listed())
        sequences = [vocabulary.ids(ids, f"sequences[{i}]") for i, ids in enumerate(sequences)]
        labels = vocabulary.ids(labels, "labels")
    elif not kinds <= {int}:
        got = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(
            "sequences", "token ids in all of sequences and labels, or names in all", f"values of type {got}"
        )
    if names is None:
        names = tuple(map(str, range(_n_vocabulary(sequences, labels, E))))
    E = embeddings(len(names), None, 0) if E is None else E
    data = SequenceDataset(sequences, labels, E, unrealizable=unrealizable)
    if data.n_vocabulary != len(names):
        raise InputError(
            "E", f"one row for each of the {len(names)} names of the vocabulary", f"{data.n_vocabulary} rows"
        )
    head = None if "C" not in entries else real_array(entries["C"], "C", (data.n_vocabulary, data.d_model))
    return SequenceProblem(NamedSequences(data, Vocabulary(names, Listed())), head)


def write_sequences(
    path: PathLike, data: SequenceDataset, names: object = None, *, head: ArrayLike | None = None
) -> None:
    """Write a dataset so that `read_sequences` gives it back; an existing file is replaced only once the new one is complete.

    Args:
        path: the file; a path that ends in .npz gives a NumPy file, any other JSON.

        data: the dataset.

        names: (n_vocabulary,) the names of the tokens, written as "vocabulary".

        head: C (n_vocabulary, d_model), which `read_sequence_problem` gives back.
    """
    n_vocabulary = as_sequences(data).n_vocabulary
    arrays: dict[str, Any] = {"labels": data.labels, "E": data.E}
    if names is not None:
        arrays["vocabulary"] = np.array(_names(names, "names"))
        if len(arrays["vocabulary"]) != n_vocabulary:
            raise InputError(
                "names", f"one name for each of {n_vocabulary} tokens", f"{len(arrays['vocabulary'])} names"
            )
    if head is not None:
        arrays["C"] = real_array(head, "head", (n_vocabulary, data.d_model))
    if as_path(path, "path", "the path of a file").suffix.lower() == ".npz":
        write_result(path, DATA_FORMAT, data.arrays() | arrays)
        return
    sequences = [data[i][0].tolist() for i in range(len(data))]
    listed = {name: array.tolist() for name, array in arrays.items()}
    write_whole(Path(path), json_by_line({**_FORMAT, "sequences": sequences, **listed}), "path")


def _names(names: Any, argument: str) -> tuple[str, ...]:
    is_list = isinstance(names, Iterable) and not isinstance(names, str) and getattr(names, "ndim", 1) == 1
    listed = tuple(names.tolist() if isinstance(names, np.ndarray) else names) if is_list else ()
    if not listed or not all(isinstance(name, str) for name in listed) or len(set(listed)) < len(listed):
        raise InputError(argument, "a list of at least one name, no two alike", f"{names!r}"[:60])
    return listed


def _n_vocabulary(sequences: list[list[int]], labels: list[int], E: Any) -> int:
    """Return the number of tokens, by the rows of E or by the largest id."""
    if E is not None and np.ndim(E):
        return len(E)
    largest = max((token for ids in [*sequences, labels] for token in ids), default=0)
    if largest >= MAX_ONE_HOT:
        raise InputError("sequences", f"ids below {MAX_ONE_HOT} where the file has no E", f"id {largest}")
    return max(largest + 1, 1)


# ---- labelled sequences


@_refusing_entries
def read_labelled(path: PathLike, split: str | None = None) -> tuple[LabelledSequences, list[str] | None]:
    """Read the labelled sequences in a file, and the names of their tokens if it has them.

    Args:
        path: a `.npz` with `tokens` (n_positions,), `offsets` (n_samples + 1,), `y` (n_samples,) of ±1 and optionally `names`
            (n_vocabulary,) and `split` (n_samples,). Pickled objects are never loaded.

        split: if given, only the sequences with this value of `split` are read.
    """
    entries = read_entries(path, _LABELLED)
    _require(path, entries, ("tokens", "offsets", "y"), _LABELLED)
    tokens, offsets = (
        index_array(entries[name], name, "a list of whole numbers", (-1,)) for name in ("tokens", "offsets")
    )
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 1).any():
        expected = f"numbers from 0 to {len(tokens)}, the number of positions, that increase, as no sequence is empty"
        raise InputError("offsets", expected, f"{offsets[:1]} to {offsets[-1:]}")
    names, parts = (_texts(entries[name], name).tolist() if name in entries else None for name in ("names", "split"))
    n_vocabulary = int(tokens.max()) + 1 if names is None else len(names)
    check_ids(tokens, offsets, n_vocabulary)
    data = LabelledSequences.of_positions(tokens, offsets, sign_labels(entries["y"], (len(offsets) - 1,)), n_vocabulary)
    if split is None:
        return data, names
    if parts is None or len(parts) != len(data) or split not in parts:
        known = ", ".join(sorted(set(parts or ()))) or "no parts"
        raise InputError("split", f"a part of {len(data)} sequences of {str(path)!r}, which has {known}", repr(split))
    return data.take(np.flatnonzero(np.array(parts) == split)), names


def write_labelled(path: PathLike, data: LabelledSequences, names: object = None, split: object = None) -> None:
    """Write sequences so that `read_labelled` gives them back; `split` (n_samples,) names the part that each belongs to, if
    there are parts.
    """
    if not isinstance(data, LabelledSequences):
        raise InputError("data", "LabelledSequences", type(data).__name__)
    arrays = data.arrays()
    for name, values, size in (("names", names, data.n_vocabulary), ("split", split, len(data))):
        if values is not None:
            arrays[name] = _texts(values, name)
            if len(arrays[name]) != size:
                raise InputError(name, f"{size} names", f"{len(arrays[name])} names")
    write_result(path, DATA_FORMAT, arrays)


def _texts(values: object, argument: str) -> npt.NDArray[np.str_]:
    """Return a list of names as an array (n_names,)."""
    array = array_of_any(values, argument, "a list of names")
    if array.ndim != 1 or array.dtype.kind not in "US":
        raise InputError(argument, "a list of names", f"shape {array.shape} with dtype {array.dtype}")
    return array.astype(str)


# ---- the entries of a file


@_refusing_entries
def read_entries(path: PathLike, expected: str = _PROBLEM) -> dict[str, Any]:
    """Read the entries of a file by name: arrays from a .npz, numbers and nested lists from JSON. Pickled objects are never loaded.

    Args:
        path: the path of the file, or - for stdin.

        expected: what the file must be, for error messages.
    """
    place = as_path(path, "path", "the path of a file")
    if place.is_char_device() and not str(place).startswith(_STREAMS):
        raise InputError("path", expected, f"{str(place)!r}, a device, which may have no end")
    try:
        content = _whole(sys.stdin.buffer) if str(place) == STDIN else place.read_bytes()
    except OSError as problem:
        raise InputError("path", expected, unusable(place, problem)) from problem
    if content.startswith(_NPY):
        raise InputError("path", expected, f"{str(place)!r}, a single array", "Save all of them with np.savez.")
    if content.startswith(_ZIP):
        return _arrays(place, content, expected)

    def with_names_that_differ(pairs: list[tuple[str, object]]) -> dict[str, Any]:
        named = dict(pairs)
        if len(named) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise InputError("path", expected, f"{str(place)!r}, in which {_shown(name)} stands twice")
        return named

    try:
        entries = json.loads(content.decode("utf-8-sig"), object_pairs_hook=with_names_that_differ)
    except InputError:
        raise
    except (ValueError, RecursionError) as problem:
        raise InputError("path", expected, f"{str(place)!r}, which is neither") from problem
    if not isinstance(entries, Mapping):
        raise InputError("path", expected, f"{str(place)!r}, whose JSON is not an object with names")
    return {name: values for name, values in entries.items() if values is not None}


@lru_cache(maxsize=1)
def _whole(stream: IO[bytes]) -> bytes:
    """Read all of a stream that can be read only once; later calls return the same bytes."""
    return stream.read()


def _arrays(path: Path, content: bytes, expected: str) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    name = ""
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = archive[name] if name in _KNOWN else None
    except (ValueError, EOFError, OSError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as problem:
        # Only an entry can be a pickle. numpy says of any file that it cannot read that it may be one.
        if name and "allow_pickle" in str(problem):
            remedy = "Save plain arrays; pad inputs of different lengths and add 'lengths', or use JSON."
            raise InputError(name, "an array of numbers", "pickled objects, which are not loaded", remedy) from problem
        reason = (
            "in which {} is too large for memory" if isinstance(problem, MemoryError) else "in which {} cannot be read"
        )
        got = reason.format(name) if name else "which begins as an archive and is none"
        raise InputError("path", expected, f"{str(path)!r}, {got}") from problem
    wrong = next((name for name, array in arrays.items() if name in _KNOWN and not isinstance(array, np.ndarray)), None)
    if wrong is not None:
        raise InputError(wrong, "an array of numbers", "an entry that is no array")
    if str(arrays.pop("format", DATA_FORMAT)) != DATA_FORMAT:
        raise InputError("path", f"{expected}, in the format {DATA_FORMAT}", f"{str(path)!r}, of another format")
    return arrays


def _require(path: PathLike, entries: Mapping[str, Any], names: tuple[str, ...], expected: str) -> None:
    missing = [name for name in names if name not in entries]
    if missing:
        got = f"{str(path)!r} without {' and '.join(missing)} (it holds {_listed_names(entries)})"
        raise InputError("path", expected, got)


def _listed_names(entries: Mapping[str, Any]) -> str:
    names = sorted(entries)
    more = [f"{len(names) - _MAX_NAMES:,} more"] if len(names) > _MAX_NAMES else []
    return ", ".join([*map(_shown, names[:_MAX_NAMES]), *more]) or "nothing"


def _shown(name: str) -> str:
    """Shorten a long name for a sentence."""
    return repr(name if len(name) <= _MAX_LETTERS else f"{name[:_MAX_LETTERS]}…")
