"""Sequences as files: a JSON object or a .npz with sequences and labels, by id or by name."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.data.text_windows import ONE_HOT, decoded, embeddings
from marginlens.data.tokens import FloatArray
from marginlens.data.vocabulary import Listed, NamedSequences, Vocabulary
from marginlens.errors import InputError, real_array, reject
from marginlens.runtime.files import as_path, write_whole

_KINDS = "a JSON or .npz file that holds sequences, labels and optionally vocabulary, E and C"
_ZIP = b"PK"  # how a .npz begins
_ENTRIES = ("sequences", "labels", "lengths", "vocabulary", "E", "C")


class SequenceProblem(NamedTuple):
    """Sequences with the names of their tokens, and the head C (n_vocabulary, d_model) that a file gives; None for C Eᵀ = I."""

    named: NamedSequences
    head: FloatArray | None


def holds_sequences(path: str | os.PathLike[str]) -> bool:
    """Whether a file is one of sequences, by its entry "sequences"; False where it cannot be read as JSON or .npz."""
    try:
        return "sequences" in _content(as_path(path, "path", "the path of a file"))
    except InputError:
        return False


def read_sequences(path: str | os.PathLike[str], *, unrealizable: str = "refuse") -> NamedSequences:
    """The sequences in a JSON or .npz file.

    Args:
        path: a JSON object with "sequences", a list of lists, and "labels", a list as long. Both hold ids, or both names. Names
            follow "vocabulary", the list of all of them, or the order of their letters where it is not given. "E" lists the
            embeddings (n_vocabulary, d_model); they are one-hot where it is not given. A .npz holds the same as arrays: sequences
            (n_samples, n_tokens) padded at their end, with "lengths" (n_samples,) where they differ.
        unrealizable: "refuse", "drop" or "keep" samples whose label is not among their own tokens, as in `SequenceDataset`.
    Returns:
        The dataset and the names of its tokens, which are their ids where the file has none.
    """
    return _named(path, _content(as_path(path, "path", "the path of a file")), unrealizable)


def read_sequence_problem(path: str | os.PathLike[str], *, unrealizable: str = "refuse") -> SequenceProblem:
    """The sequences of a file as `read_sequences` reads them, with the head that it may give as "C", (n_vocabulary, d_model)."""
    content = _content(as_path(path, "path", "the path of a file"))
    named = _named(path, content, unrealizable)
    head = content.get("C")
    if head is not None:
        head = real_array(head, "C", (named.data.n_vocabulary, named.data.d_model))
    return SequenceProblem(named, head)


def _named(path: Any, content: dict[str, Any], unrealizable: str) -> NamedSequences:
    missing = [name for name in ("sequences", "labels") if name not in content]
    if missing:
        found = ", ".join(map(repr, content)) or "nothing"
        raise reject("path", _KINDS, f"{str(path)!r} without {' and '.join(missing)} (it holds {found})")
    sequences, labels = _lists(content["sequences"]), content["labels"]
    if not isinstance(labels, list):
        raise reject("labels", "a list with one token per sequence", f"{labels!r}"[:60])
    names = _names(content.get("vocabulary"))
    kinds = {type(token) for one in [*sequences, labels] for token in one}
    if kinds == {str}:
        names = tuple(sorted({token for one in [*sequences, labels] for token in one})) if names is None else names
        vocabulary = Vocabulary(names, Listed())
        sequences = [vocabulary.ids(one, f"sequences[{i}]") for i, one in enumerate(sequences)]
        labels = vocabulary.ids(labels, "labels")
    elif not kinds <= {int}:
        raise reject("sequences", "token ids in all of sequences and labels, or names in all", _mixture(kinds))
    E = content.get("E")
    if names is None:
        names = tuple(map(str, range(_count(sequences, labels, E))))
    E = embeddings(len(names), None, 0) if E is None else E
    data = SequenceDataset(sequences, labels, E, unrealizable=unrealizable)
    if data.n_vocabulary != len(names):
        raise reject("E", f"one row for each of the {len(names)} names of the vocabulary", f"{data.n_vocabulary} rows")
    return NamedSequences(data, Vocabulary(names, Listed()))


def write_sequences(path: str | os.PathLike[str], ds: SequenceDataset, names: Any = None, *, head: Any = None) -> None:
    """Write a dataset so that `read_sequences` gives it back; an existing file stays whole until the new one is.

    Args:
        path: a .npz is written where it ends so, JSON otherwise.
        names: (n_vocabulary,) what the tokens are called, written as "vocabulary".
        head: C (n_vocabulary, d_model), which `read_sequence_problem` gives back.
    """
    as_sequences(ds)
    content: dict[str, Any] = {
        "sequences": [ds[i][0].tolist() for i in range(len(ds))],
        "labels": ds.labels.tolist(),
        "E": ds.E.tolist(),
    }
    if names is not None:
        if isinstance(names, str) or not isinstance(names, Iterable) or getattr(names, "ndim", 1) != 1:
            raise reject("names", f"one name for each of {ds.n_vocabulary} tokens", repr(names))
        content["vocabulary"] = list(_names(list(names)) or ())
        if len(content["vocabulary"]) != ds.n_vocabulary:
            raise reject(
                "names", f"one name for each of {ds.n_vocabulary} tokens", f"{len(content['vocabulary'])} names"
            )
    if head is not None:
        content["C"] = real_array(head, "head", (ds.n_vocabulary, ds.d_model)).tolist()
    if as_path(path, "path", "the path of a file").suffix.lower() == ".npz":
        write_whole(Path(path), _packed(content), "path")
        return
    try:
        written = json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON holds as an escape
        written = json.dumps(content, allow_nan=False).encode()
    write_whole(as_path(path, "path", "the path of a file"), written, "path")


def _packed(content: dict[str, Any]) -> bytes:
    """The entries of a file as the bytes of a .npz."""
    lengths = [len(ids) for ids in content["sequences"]]
    padded = np.zeros((len(lengths), max(lengths)), dtype=np.int64)
    for row, ids in zip(padded, content["sequences"], strict=True):
        row[: len(ids)] = ids
    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in content.items() if name != "sequences"}
    stream = BytesIO()
    np.savez_compressed(stream, sequences=padded, lengths=np.array(lengths), **arrays)
    return stream.getvalue()


def _unpacked(path: Path, content: bytes) -> dict[str, Any]:
    """The entries of a .npz as the lists that a JSON file would hold; pickled objects are never loaded."""
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name in _ENTRIES}
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as problem:
        raise reject("path", _KINDS, f"{str(path)!r}, which cannot be read ({problem})") from problem
    found = {name: values.tolist() for name, values in arrays.items() if name != "lengths"}
    lengths = arrays.get("lengths")
    if "sequences" in arrays and arrays["sequences"].ndim != 2:
        raise reject("sequences", "an array (n_samples, n_tokens)", f"shape {arrays['sequences'].shape}")
    if "sequences" in arrays and lengths is not None:
        n, width = arrays["sequences"].shape
        if lengths.shape != (n,) or lengths.dtype.kind not in "iu" or not ((lengths >= 1) & (lengths <= width)).all():
            expected = f"whole numbers from 1 to {width} of shape ({n},)"
            raise reject("lengths", expected, f"shape {lengths.shape} with dtype {lengths.dtype}")
        found["sequences"] = [ids[:end] for ids, end in zip(found["sequences"], lengths.tolist(), strict=True)]
    return found


def _content(path: Path) -> dict[str, Any]:
    try:
        written = path.read_bytes()
        if written.startswith(_ZIP):
            return _unpacked(path, written)
        content = json.loads(decoded(written, path))
    except OSError as problem:
        raise reject("path", _KINDS, f"{str(path)!r} ({problem.strerror or problem})") from problem
    except InputError:
        raise
    except (ValueError, RecursionError) as problem:
        raise reject("path", _KINDS, f"{str(path)!r}, which is no JSON") from problem
    if not isinstance(content, Mapping):
        raise reject("path", _KINDS, f"{str(path)!r}, whose JSON is no object with names")
    return {name: value for name, value in content.items() if value is not None}


def _lists(sequences: Any) -> list[Any]:
    if not isinstance(sequences, list):
        raise reject("sequences", "a list of lists of tokens", f"{sequences!r}"[:60])
    for i, one in enumerate(sequences):
        if not isinstance(one, list):
            raise reject(f"sequences[{i}]", "a list of tokens", f"{one!r}"[:60])
    return sequences


def _names(vocabulary: Any) -> tuple[str, ...] | None:
    if vocabulary is None:
        return None
    if not isinstance(vocabulary, list) or not vocabulary or not all(isinstance(name, str) for name in vocabulary):
        raise reject("vocabulary", "a list of at least one name", f"{vocabulary!r}"[:60])
    if len(set(vocabulary)) < len(vocabulary):
        twice = next(name for place, name in enumerate(vocabulary) if name in vocabulary[:place])
        raise reject("vocabulary", "names that differ", f"{twice!r} twice")
    return tuple(vocabulary)


def _count(sequences: list[Any], labels: list[int], E: Any) -> int:
    """How many tokens there are, by the rows of E or by the largest id."""
    if isinstance(E, list):
        return len(E)
    largest = max((token for one in [*sequences, labels] for token in one), default=0)
    if largest >= ONE_HOT:
        raise reject("sequences", f"ids below {ONE_HOT} where the file has no E", f"id {largest}")
    return max(largest + 1, 1)


def _mixture(kinds: set[type]) -> str:
    words = {str: "names", int: "ids", float: "fractions", bool: "truth values", list: "lists", dict: "objects"}
    return " and ".join(sorted(words.get(kind, "nulls") for kind in kinds))
