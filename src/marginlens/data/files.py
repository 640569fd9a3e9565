"""Datasets as files: .npz without pickles, or JSON, read with a sentence for whatever is wrong with them."""

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

from marginlens.data.labelled import LabelledSequences
from marginlens.data.plain_text import STDIN
from marginlens.data.sequences import FlatSequences, SequenceDataset, as_sequences, check_ids
from marginlens.data.text_windows import MAX_ONE_HOT, embeddings
from marginlens.data.tokens import TokenDataset, as_dataset, sign_labels
from marginlens.data.vocabulary import Listed, NamedSequences, Vocabulary
from marginlens.errors import InputError, array_of_any, calling, real_array, reject
from marginlens.runtime.files import DATA_FORMAT, as_path, check_place, unusable, write_result, write_whole
from marginlens.typing import FloatArray, IntArray

_PROBLEM = "a .npz or JSON file that holds X, y, v and optionally K or W"
_SEQUENCES = "a JSON or .npz file that holds sequences, labels and optionally vocabulary, E and C"
_LABELLED = "a .npz file with tokens, offsets and y, and optionally names"
_KNOWN = {"X", "y", "v", "K", "W", "lengths", "sequences", "labels", "vocabulary", "E", "C"}
_KNOWN |= {"tokens", "offsets", "names", "split", "format"}
PROBLEM_FORMAT = "marginlens-problem"  # the entry "format" of every such file
PROBLEM_VERSION = 1
ATTENTION, BOTH = "attention", "both"  # what is trained, the entry "train"
_MAX_NAMES, _MAX_LETTERS = 12, 40  # of a file's entries, that a sentence names
_STREAMS = ("/dev/stdin", "/dev/fd/")  # devices that end
_ZIP, _NPY = b"PK", b"\x93NUMPY"
PathLike = str | os.PathLike[str]
P = ParamSpec("P")
T = TypeVar("T")


def _refusing_entries(read: Callable[Concatenate[PathLike, P], T]) -> Callable[Concatenate[PathLike, P], T]:
    """Let what a reader of a file refuses be an entry of that file, unless it is an argument of the reader."""
    arguments = {name: name for name in signature(read).parameters}

    @wraps(read)
    def reading(path: PathLike, *args: P.args, **kwargs: P.kwargs) -> T:
        with calling(path, **arguments):
            return read(path, *args, **kwargs)

    return reading


# ---- any dataset


def save(path: PathLike, data: TokenDataset | FlatSequences) -> None:
    """Write a dataset to a .npz file so that `load` gives it back; an existing file stays whole until the new one is."""
    if not isinstance(data, TokenDataset | SequenceDataset | LabelledSequences):
        raise reject("data", "a TokenDataset, a SequenceDataset or LabelledSequences", type(data).__name__)
    data.save(path)


@_refusing_entries
def load(path: PathLike) -> TokenDataset | SequenceDataset | LabelledSequences:
    """The dataset in a file that `save`, `write_problem`, `write_sequences` or `write_labelled` wrote, or in one of their form."""
    expected = "a file that data.save or one of marginlens.data's writers wrote"
    entries = _entries(path, expected, float)
    if is_problem(entries):
        return problem_tokens(entries).data
    if "sequences" in entries:
        return read_sequences(path, unrealizable="keep").data
    if "tokens" in entries:
        return read_labelled(path)[0]
    if "X" in entries and "y" in entries:
        return _token_dataset(path, entries)
    raise reject("path", expected, f"{str(path)!r}, which holds {_listed_names(entries)}")


# ---- tokens and a head


@_refusing_entries
def read_problem(path: PathLike) -> tuple[TokenDataset, FloatArray]:
    r"""The dataset and the head in a file.

    .. math:: (Y_i, X_i, K_i)_{i=1}^n, \quad v \in \mathbb R^d

    Args:
        path: a NumPy `.npz` or a JSON object with X, y and v, and optionally K or W, in the shapes that `TokenDataset` takes.
            JSON holds nested lists, inputs of different lengths as they are. A `.npz` pads them and counts the real tokens
            in `lengths` (n_inputs,) or (batch, n_inputs). Pickled objects are never loaded. A problem that the lab saved is read too;
            `marginlens.lab.read_problem` gives its start, optimizer and loss as well.
    Returns:
        The dataset and v, of shape (d_model,) or (batch, d_model). `write_problem` writes such a file.
    """
    entries = _entries(path, _PROBLEM, float)
    if is_problem(entries):
        problem = problem_tokens(entries)
        if problem.head is None:
            raise reject("path", "a problem with a head", f"{str(path)!r}, where it is trained too and not given")
        return problem.data, problem.head
    _require(path, entries, ("X", "y", "v"), _PROBLEM)
    data = _token_dataset(path, entries)
    data.head(entries["v"], "v")
    return data, np.asarray(entries["v"], dtype=np.float64)


@_refusing_entries
def read_entries(path: PathLike) -> dict[str, Any]:
    """What a .npz or JSON file of a problem holds, by name."""
    return _entries(path, _PROBLEM, float)


def write_problem(path: PathLike, data: TokenDataset, head: Any) -> None:
    """Write a dataset and a head so that `read_problem` gives them back; an existing file stays whole until the new one is.

    Args:
        path: a name that ends in `.npz` or `.json`.
        data: one problem or a batch. head: v (d_model,) or (batch, d_model).
    """
    as_dataset(data).head(head)
    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", (".npz", ".json"))
    arrays = {**data.arrays(), "v": np.asarray(head, dtype=np.float64)}
    if place.suffix.lower() == ".npz":
        write_result(path, DATA_FORMAT, arrays)
        return
    arrays.pop("lengths", None)
    listed = {name: _nested(data, array) if name in "XK" else array.tolist() for name, array in arrays.items()}
    write_whole(place, json.dumps(listed, allow_nan=False).encode(), "path")


def _token_dataset(path: PathLike, entries: Mapping[str, Any]) -> TokenDataset:
    misspelt = [name for name in entries if name not in ("K", "W", "lengths") and name.lower() in ("k", "w", "lengths")]
    if misspelt:
        raise reject("path", f"{_PROBLEM}, in this spelling", f"{str(path)!r} with {misspelt[0]!r}")
    for name in ("X", "y", "v", "K", "W", "lengths"):
        dtype = getattr(entries.get(name), "dtype", None)
        if dtype is not None and dtype.kind not in "biuf":
            raise reject(name, "an array of real numbers", f"dtype {dtype}")
    X, K, lengths = entries["X"], entries.get("K"), entries.get("lengths")
    if lengths is not None:
        counts = _lengths(lengths, X)
        X, K = _without_padding(X, counts, "X"), None if K is None else _without_padding(K, counts, "K")
    return TokenDataset(X, entries["y"], K=K, W=entries.get("W"))


def _lengths(value: Any, padded: Any) -> IntArray:
    """How many tokens each input has, checked against padded tokens (…, n_tokens, d_model) or ids (n_samples, n_tokens)."""
    shape = np.shape(padded) if isinstance(padded, np.ndarray) else ()
    if len(shape) < 2:
        raise reject("lengths", "left out unless the inputs are an array that pads them to the same length", "both")
    axes = shape[:-2] if len(shape) > 2 else shape[:1]
    longest, counts = shape[len(axes)], np.asarray(value)
    expected = f"whole numbers from 1 to {longest} of shape {axes}: how many tokens each input has"
    if counts.shape != axes or counts.dtype.kind not in "biuf":
        raise reject("lengths", expected, f"shape {counts.shape} with dtype {counts.dtype}")
    wrong = (counts < 1) | (counts > longest) | (counts != np.floor(counts))
    if wrong.any():
        raise reject("lengths", expected, f"{float(counts[wrong].flat[0]):g}")
    return counts.astype(np.int64)


def _without_padding(padded: Any, lengths: IntArray, argument: str) -> Any:
    """Padded tokens as lists of inputs, or of problems, of their own lengths."""
    array = np.asarray(padded)
    if array.ndim != lengths.ndim + 2 or array.shape[:-2] != lengths.shape or array.shape[-2] < lengths.max():
        raise reject(argument, f"tokens for lengths of shape {lengths.shape}", f"shape {array.shape}")
    if lengths.ndim == 2:
        return [_without_padding(array[j], lengths[j], f"{argument}[{j}]") for j in range(len(array))]
    return [array[i, : lengths[i]] for i in range(len(array))]


def _nested(data: TokenDataset, padded: FloatArray) -> list[Any]:
    """Tokens or keys as nested lists without their padding."""
    if data.is_batch:
        return [_nested(data[j], padded[j]) for j in range(len(data))]
    return nested(padded, data.lengths.tolist())


# ---- sequences and their next tokens


class SequenceProblem(NamedTuple):
    """Sequences with the names of their tokens, and the head C (n_vocabulary, d_model) that a file gives; None for C Eᵀ = I."""

    named: NamedSequences
    head: FloatArray | None


def holds_sequences(path: PathLike) -> bool:
    """Whether a file is one of sequences, by its entry "sequences"; False where it cannot be read as JSON or .npz."""
    try:
        return "sequences" in _entries(path, _SEQUENCES, int)
    except InputError:
        return False


def read_sequences(path: PathLike, *, unrealizable: str = "refuse") -> NamedSequences:
    """The sequences in a JSON or .npz file.

    Args:
        path: a JSON object with "sequences", a list of lists, and "labels", a list as long. Both hold ids, or both names. Names
            follow "vocabulary", the list of all of them, or the order of their letters where it is not given. "E" lists the
            embeddings (n_vocabulary, d_model); they are one-hot where it is not given. A .npz holds the same as arrays: sequences
            (n_samples, n_tokens) padded at their end, with "lengths" (n_samples,) where they differ.
        unrealizable: what to do with sequences that lack their label, as `SequenceDataset` takes it.
    Returns:
        The dataset and the names of its tokens, which are their ids where the file has none.
    """
    return read_sequence_problem(path, unrealizable=unrealizable).named


@_refusing_entries
def read_sequence_problem(path: PathLike, *, unrealizable: str = "refuse") -> SequenceProblem:
    """The sequences of a file as `read_sequences` reads them, with the head that it may give as "C", (n_vocabulary, d_model)."""
    entries = _entries(path, _SEQUENCES, int)
    _require(path, entries, ("sequences", "labels"), _SEQUENCES)
    sequences, labels = entries["sequences"], entries["labels"]
    if isinstance(sequences, np.ndarray):
        if sequences.ndim != 2:
            raise reject("sequences", "an array (n_samples, n_tokens)", f"shape {sequences.shape}")
        counts = np.full(len(sequences), sequences.shape[1])
        counts = counts if "lengths" not in entries else _lengths(entries["lengths"], sequences)
        sequences = [ids[:n] for ids, n in zip(sequences.tolist(), counts.tolist(), strict=True)]
    labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
    if not isinstance(sequences, list) or not all(isinstance(ids, list) for ids in sequences):
        raise reject("sequences", "a list of lists of tokens", f"{sequences!r}"[:60])
    if not isinstance(labels, list):
        raise reject("labels", "a list with one token per sequence", f"{labels!r}"[:60])
    kinds = {type(token) for ids in [*sequences, labels] for token in ids}
    names = None if "vocabulary" not in entries else _names(entries["vocabulary"], "vocabulary")
    if kinds == {str}:
        names = tuple(sorted({token for ids in [*sequences, labels] for token in ids})) if names is None else names
        vocabulary = Vocabulary(names, Listed())
        sequences = [vocabulary.ids(ids, f"sequences[{i}]") for i, ids in enumerate(sequences)]
        labels = vocabulary.ids(labels, "labels")
    elif not kinds <= {int}:
        got = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise reject("sequences", "token ids in all of sequences and labels, or names in all", f"values of type {got}")
    E = entries.get("E")
    if names is None:
        names = tuple(map(str, range(_n_vocabulary(sequences, labels, E))))
    data = SequenceDataset(
        sequences, labels, embeddings(len(names), None, 0) if E is None else E, unrealizable=unrealizable
    )
    if data.n_vocabulary != len(names):
        raise reject("E", f"one row for each of the {len(names)} names of the vocabulary", f"{data.n_vocabulary} rows")
    head = entries.get("C")
    head = None if head is None else real_array(head, "C", (data.n_vocabulary, data.d_model))
    return SequenceProblem(NamedSequences(data, Vocabulary(names, Listed())), head)


def write_sequences(path: PathLike, data: SequenceDataset, names: Any = None, *, head: Any = None) -> None:
    """Write a dataset so that `read_sequences` gives it back; an existing file stays whole until the new one is.

    Args:
        path: a .npz is written where it ends so, JSON otherwise.
        names: (n_vocabulary,) what the tokens are called, written as "vocabulary".
        head: C (n_vocabulary, d_model), which `read_sequence_problem` gives back.
    """
    n_vocabulary = as_sequences(data).n_vocabulary
    arrays: dict[str, Any] = {"labels": data.labels, "E": data.E}
    if names is not None:
        listed = _names(names, "names")
        if len(listed) != n_vocabulary:
            raise reject("names", f"one name for each of {n_vocabulary} tokens", f"{len(listed)} names")
        arrays["vocabulary"] = np.array(listed)
    if head is not None:
        arrays["C"] = real_array(head, "head", (n_vocabulary, data.d_model))
    if as_path(path, "path", "the path of a file").suffix.lower() == ".npz":
        write_result(path, DATA_FORMAT, data.arrays() | arrays)
        return
    listed_arrays = {name: array.tolist() for name, array in arrays.items()}
    content = {"sequences": [data[i][0].tolist() for i in range(len(data))], **listed_arrays}
    try:
        written = json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON holds as an escape
        written = json.dumps(content, allow_nan=False).encode()
    write_whole(Path(path), written, "path")


def _names(names: Any, argument: str) -> tuple[str, ...]:
    expected = "a list of at least one name, no two alike"
    if isinstance(names, str) or not isinstance(names, Iterable) or getattr(names, "ndim", 1) != 1:
        raise reject(argument, expected, f"{names!r}"[:60])
    listed = tuple(names.tolist() if isinstance(names, np.ndarray) else names)
    if not listed or not all(isinstance(name, str) for name in listed):
        raise reject(argument, expected, f"{listed!r}"[:60])
    if len(set(listed)) < len(listed):
        twice = next(name for place, name in enumerate(listed) if name in listed[:place])
        raise reject(argument, expected, f"{twice!r} twice")
    return listed


def _n_vocabulary(sequences: list[Any], labels: list[int], E: Any) -> int:
    """How many tokens there are, by the rows of E or by the largest id."""
    if E is not None and np.ndim(E):
        return len(E)
    largest = max((token for ids in [*sequences, labels] for token in ids), default=0)
    if largest >= MAX_ONE_HOT:
        raise reject("sequences", f"ids below {MAX_ONE_HOT} where the file has no E", f"id {largest}")
    return max(largest + 1, 1)


# ---- labelled sequences


@_refusing_entries
def read_labelled(path: PathLike, split: str | None = None) -> tuple[LabelledSequences, list[str] | None]:
    """The labelled sequences in a file and the names of their tokens, where it has them.

    Args:
        path: a `.npz` with `tokens` (n_positions,), `offsets` (n_samples + 1,), `y` (n_samples,) of ±1 and optionally `names`
            (n_vocabulary,) and `split` (n_samples,). Pickled objects are never loaded.
        split: take only the sequences whose `split` is this.
    """
    entries = _entries(path, _LABELLED, int)
    _require(path, entries, ("tokens", "offsets", "y"), _LABELLED)
    arrays = {
        name: np.asarray(entries[name]) for name in ("tokens", "offsets", "y", "names", "split") if name in entries
    }
    for name, array in arrays.items():
        kinds = {"tokens": "iu", "offsets": "iu", "y": "iuf"}.get(name, "US")
        if array.ndim != 1 or array.dtype.kind not in kinds:
            expected = "a list of names" if kinds == "US" else "a list of whole numbers"
            raise reject(name, expected, f"shape {array.shape} with dtype {array.dtype}", file=str(path))
    tokens, offsets = arrays["tokens"].astype(np.int64), arrays["offsets"].astype(np.int64)
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 1).any():
        raise reject(
            "offsets",
            f"numbers from 0 to {len(tokens)}, the number of positions, that increase, as no sequence is empty",
            f"{offsets[:1]} to {offsets[-1:]}",
        )
    names = [str(name) for name in arrays["names"]] if "names" in arrays else None
    n_vocabulary = int(tokens.max()) + 1 if names is None else len(names)
    check_ids(tokens, offsets, n_vocabulary)
    data = LabelledSequences.of_positions(tokens, offsets, sign_labels(arrays["y"], (len(offsets) - 1,)), n_vocabulary)
    if split is None:
        return data, names
    parts = arrays.get("split", np.empty(0, dtype=str))
    if len(parts) not in (0, len(data)):
        raise reject("split", f"one for each of {len(data)} sequences", len(parts), file=str(path))
    if split not in parts:
        known = ", ".join(map(str, np.unique(parts)))
        expected = (
            f"one of {known}, those of {str(path)!r}" if known else f"left out for {str(path)!r}, which has no parts"
        )
        raise reject("split", expected, repr(split))
    return data.take(np.flatnonzero(parts == split)), names


def write_labelled(path: PathLike, data: LabelledSequences, names: Any = None, split: Any = None) -> None:
    """Write sequences so that `read_labelled` gives them back; `split` (n_samples,) names the part of each where there are parts."""
    if not isinstance(data, LabelledSequences):
        raise reject("data", "LabelledSequences", type(data).__name__)
    arrays = data.arrays()
    texts = {"names": names, "split": split}
    for (name, values), size in zip(texts.items(), (data.n_vocabulary, len(data)), strict=True):
        if values is not None:
            arrays[name] = array_of_any(values, name, "a list of names").astype(str)
            if arrays[name].shape != (size,):
                raise reject(name, f"{size} names", f"shape {arrays[name].shape}")
    write_result(path, DATA_FORMAT, arrays)


# ---- reading and writing


def _entries(path: PathLike, expected: str, parse_int: Callable[[str], Any]) -> dict[str, Any]:
    """What a file holds, by name: arrays from a .npz, numbers and nested lists from JSON; pickled objects are never loaded."""
    place = as_path(path, "path", "the path of a file")
    if place.is_char_device() and not str(place).startswith(_STREAMS):
        raise reject("path", expected, f"{str(place)!r}, a device, which may have no end")
    try:
        content = _whole(sys.stdin.buffer) if str(place) == STDIN else place.read_bytes()
    except OSError as problem:
        raise reject("path", expected, unusable(place, problem)) from problem
    if content.startswith(_NPY):
        raise reject("path", expected, f"{str(place)!r}, a single array", "Save all of them with np.savez.")
    if content.startswith(_ZIP):
        return _arrays(place, content, expected)

    def with_names_that_differ(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named = dict(pairs)
        if len(named) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise reject("path", expected, f"{str(place)!r}, in which {_shown(name)} stands twice")
        return named

    try:
        entries = json.loads(content.decode("utf-8-sig"), parse_int=parse_int, object_pairs_hook=with_names_that_differ)
    except InputError:
        raise
    except (ValueError, RecursionError) as problem:
        raise reject("path", expected, f"{str(place)!r}, which is neither") from problem
    if not isinstance(entries, Mapping):
        raise reject("path", expected, f"{str(place)!r}, whose JSON is no object with names")
    return {name: values for name, values in entries.items() if values is not None}


@lru_cache(maxsize=1)
def _whole(stream: IO[bytes]) -> bytes:
    """All of a stream, which can be read once only; asked again it is the same."""
    return stream.read()


def _arrays(path: Path, content: bytes, expected: str) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    name = ""
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = archive[name] if name in _KNOWN else None
    except (ValueError, EOFError, OSError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as problem:
        if name and "allow_pickle" in str(problem):  # of an entry: of all else numpy says that it may be a pickle
            remedy = "Save plain arrays; pad inputs of different lengths and add 'lengths', or use JSON."
            raise reject(name, "an array of numbers", "pickled objects, which are not loaded", remedy) from problem
        reason = (
            "in which {} is too large for memory" if isinstance(problem, MemoryError) else "in which {} cannot be read"
        )
        got = reason.format(name) if name else "which begins as an archive and is none"
        raise reject("path", expected, f"{str(path)!r}, {got}") from problem
    wrong = next((name for name, array in arrays.items() if name in _KNOWN and not isinstance(array, np.ndarray)), None)
    if wrong is not None:
        raise reject(wrong, "an array of numbers", "an entry that is no array")
    if str(arrays.pop("format", DATA_FORMAT)) != DATA_FORMAT:
        raise reject("path", f"{expected}, in the format {DATA_FORMAT}", f"{str(path)!r}, of another format")
    return arrays


def _require(path: PathLike, entries: Mapping[str, Any], names: tuple[str, ...], expected: str) -> None:
    missing = [name for name in names if name not in entries]
    if missing:
        got = f"{str(path)!r} without {' and '.join(missing)} (it holds {_listed_names(entries)})"
        raise reject("path", expected, got)


def _listed_names(entries: Mapping[str, Any]) -> str:
    names = sorted(entries)
    more = [f"{len(names) - _MAX_NAMES:,} more"] if len(names) > _MAX_NAMES else []
    return ", ".join([*map(_shown, names[:_MAX_NAMES]), *more]) or "nothing"


def _shown(name: str) -> str:
    """A name as a sentence has it, without its end if it is long."""
    return repr(name if len(name) <= _MAX_LETTERS else f"{name[:_MAX_LETTERS]}…")


# ---- problems as the lab writes them: JSON of the format "marginlens-problem"


class ProblemTokens(NamedTuple):
    """One problem, its head v (d_model,) where it has one, and whether the head is trained too."""

    data: TokenDataset
    head: FloatArray | None
    trains_head: bool


def is_problem(entries: Any) -> bool:
    """Whether a JSON value is a problem of this format, by its entry "format"."""
    return isinstance(entries, Mapping) and entries.get("format") == PROBLEM_FORMAT


def problem_tokens(entries: Mapping[str, Any]) -> ProblemTokens:
    """The dataset and the head of a problem of any size; entries that are null count as left out.

    Args:
        entries: "tokens", inputs of vectors, and "keys" of the same shape where they differ; "labels", 1 or -1, all 1 by default;
            "head" v, or "scores" of all tokens, which then need keys alone. With "train": "both" the head may be left out.
    """
    entry = {name: value for name, value in entries.items() if value is not None}
    if entry.get("format", PROBLEM_FORMAT) != PROBLEM_FORMAT:
        raise refuse("format", repr(PROBLEM_FORMAT), entry["format"])
    if entry.get("version", PROBLEM_VERSION) != PROBLEM_VERSION:
        raise refuse("version", f"{PROBLEM_VERSION}, the version that is read", entry["version"])
    train, scores = entry.get("train", ATTENTION), entry.get("scores")
    if train not in (ATTENTION, BOTH):
        raise refuse("train", f"{ATTENTION!r} or {BOTH!r}", train)
    if scores is not None and ("head" in entry or train == BOTH):
        given = "a head is given" if "head" in entry else "the head is trained too"
        raise refuse("scores", f"left out where {given}", scores)
    if scores is None and "tokens" not in entry:
        raise reject("tokens", "a list of inputs, each a list of vectors", "none")
    keys_name = "keys" if scores is not None or "keys" in entry else "tokens"
    if keys_name not in entry:
        raise reject("keys", "a list of inputs, each a list of vectors", "none")
    keys = _inputs(entry[keys_name], keys_name)
    lengths = [len(vectors) for vectors in keys]
    y = _labels(entry.get("labels", [1.0] * len(keys)), len(keys))
    if scores is not None:
        if not isinstance(scores, list) or len(scores) != len(lengths):
            raise refuse("scores", f"a list of scores for each of {len(lengths)} inputs", scores)
        rows = [vector(row, f"scores[{i}]", lengths[i]) for i, row in enumerate(scores)]
        X = [np.column_stack([K, label * row]) for K, label, row in zip(keys, y, rows, strict=True)]
        return ProblemTokens(TokenDataset(X, y, K=keys), np.eye(keys[0].shape[1] + 1)[-1], False)
    tokens = _inputs(entry["tokens"], "tokens")
    if [len(vectors) for vectors in tokens] != lengths:
        raise reject("keys", "one for each token", f"inputs of {', '.join(map(str, lengths))} keys")
    data = TokenDataset(tokens, y, K=None if keys_name == "tokens" else keys)
    if "head" not in entry and train == ATTENTION:
        raise reject("head", "given, or scores, where attention alone is trained", "neither")
    head = vector(entry["head"], "head", data.d_model) if "head" in entry else None
    return ProblemTokens(data, head, train == BOTH)


def tokens_json(data: TokenDataset, head: Any, trains_head: bool = False) -> dict[str, Any]:
    """The entries of a problem, which `problem_tokens` reads back exactly: numbers are written with all their digits.

    A head that reads scores off a last coordinate which the keys leave out, as `scored_tokens` makes it, is written as scores.
    """
    v = checked_head(data, head, trains_head)
    lengths = data.lengths.tolist()
    keys = nested(data.K, lengths)
    entries: dict[str, Any] = {
        "format": PROBLEM_FORMAT,
        "version": PROBLEM_VERSION,
        "labels": data.y.astype(int).tolist(),
    }
    if v is not None and not trains_head and _holds_scores(data, v):
        scores = data.y[:, None] * data.X[..., -1]
        entries |= {"keys": keys, "scores": [scores[i, :n].tolist() for i, n in enumerate(lengths)]}
    else:
        entries["tokens"] = nested(data.X, lengths)
        entries |= {} if np.array_equal(data.K, data.X) else {"keys": keys}
        entries |= {} if v is None else {"head": v.tolist()}
    return {**entries, "train": BOTH if trains_head else ATTENTION}


def checked_head(data: TokenDataset, head: Any, trains_head: bool) -> FloatArray | None:
    """The head (d_model,) of one problem, not a batch; None is refused unless the head is trained too."""
    if as_dataset(data).is_batch:
        raise reject("data", "one problem", f"a batch of {len(data)}", "Take one with data[j].")
    if head is None and not trains_head:
        raise reject("head", "given where attention alone is trained", "none")
    return None if head is None else np.array(data.head(head))


def refuse(key: str, expected: str, got: Any) -> InputError:
    """The error for an entry of a problem: which one, what it must be, and the beginning of what it is."""
    shown = repr(got)
    return reject(key, expected, shown if len(shown) <= 40 else f"{shown[:37]}…")


def number(value: Any, key: str, expected: str = "a finite number") -> float:
    """A finite number of a problem; true, false and texts are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
        raise refuse(key, expected, value)
    return float(value)


def vector(value: Any, key: str, width: int | None) -> FloatArray:
    """A vector of a problem, of any width where it is None."""
    if not isinstance(value, list) or not value or (width is not None and len(value) != width):
        raise refuse(key, f"a list of {'' if width is None else f'{width} '}numbers", value)
    return np.array([number(entry, f"{key}[{k}]") for k, entry in enumerate(value)])


def _inputs(value: Any, key: str) -> list[FloatArray]:
    """Inputs of vectors of one width, each (n_tokens_i, width)."""
    if not isinstance(value, list) or not value:
        raise refuse(key, "a list of inputs, each a list of vectors", value)
    inputs, width = [], None
    for i, listed in enumerate(value):
        if not isinstance(listed, list) or not listed:
            raise refuse(f"{key}[{i}]", "a list of at least one vector", listed)
        rows = []
        for t, entry in enumerate(listed):
            rows.append(vector(entry, f"{key}[{i}][{t}]", width))
            width = len(rows[-1])
        inputs.append(np.array(rows))
    return inputs


def _labels(value: Any, n_inputs: int) -> list[float]:
    listed = value if isinstance(value, list) else []
    if len(listed) != n_inputs or any(isinstance(y, bool) or y not in (1, -1) for y in listed):
        raise refuse("labels", f"a list with 1 or -1 for each of {n_inputs} inputs", value)
    return [float(label) for label in listed]


def _holds_scores(data: TokenDataset, v: FloatArray) -> bool:
    """Whether tokens are their keys with a last coordinate, which is all that the head reads."""
    same_width = data.d_model == data.d_key + 1 and np.array_equal(v, np.eye(data.d_model)[-1])
    return same_width and np.array_equal(data.X[..., :-1], data.K)


def nested(padded: FloatArray, lengths: list[int]) -> list[Any]:
    """Vectors of inputs (n_inputs, n_tokens, width) as lists, without what lies beyond the lengths."""
    return [padded[i, :n].tolist() for i, n in enumerate(lengths)]
