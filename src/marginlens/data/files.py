"""Problems as files: tokens, labels, head and keys in one .npz or JSON file, read with a sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.errors import reject
from marginlens.runtime.files import unusable, write_whole

NEEDED = ("X", "y", "v")
OPTIONAL = ("K", "W", "lengths")
_KINDS = "a .npz or JSON file that holds X, y, v and optionally K or W"
_ZIP, _NPY = b"PK", b"\x93NUMPY"


def read_problem(path: str | os.PathLike[str]) -> tuple[TokenDataset, FloatArray]:
    r"""The dataset and the head in a file.

    .. math:: (Y_i, X_i, K_i)_{i=1}^n, \quad v \in \mathbb R^d

    Args:
        path: a NumPy `.npz` or a JSON object with X, y and v, and optionally K or W, in the shapes that `TokenDataset` takes.
            JSON holds nested lists, inputs of different lengths as they are. A `.npz` pads them and counts the real tokens
            in `lengths` (n_inputs,) or (batch, n_inputs). Pickled objects are never loaded.
    Returns:
        The dataset and v, of shape (d_model,) or (batch, d_model). `write_problem` writes such a file.
    """
    if not isinstance(path, str | os.PathLike):
        raise reject("path", "the path of a file", repr(path))
    arrays = _arrays(Path(path))
    missing = [name for name in NEEDED if name not in arrays]
    if missing:
        found = ", ".join(map(repr, sorted(arrays))) or "nothing"
        raise reject("path", _KINDS, f"{str(path)!r} without {' and '.join(missing)} (it holds {found})")
    misspelt = [name for name in arrays if name not in OPTIONAL and name.lower() in ("k", "w", "lengths")]
    if misspelt:
        raise reject("path", f"{_KINDS}, in this spelling", f"{str(path)!r} with {misspelt[0]!r}")
    X, K, lengths = arrays["X"], arrays.get("K"), arrays.get("lengths")
    if lengths is not None:
        counts = _lengths(lengths, X)
        X, K = _cut(X, counts, "X"), None if K is None else _cut(K, counts, "K")
    data = TokenDataset(X, arrays["y"], K=K, W=arrays.get("W"))
    data.head(arrays["v"])
    return data, np.asarray(arrays["v"], dtype=np.float64)


def write_problem(path: str | os.PathLike[str], data: TokenDataset, v: Any) -> None:
    """Write a dataset and a head so that `read_problem` gives them back; an existing file stays whole until the new one is.

    Args:
        path: a name that ends in `.npz` or `.json`.
        data: one problem or a batch. v: head (d_model,) or (batch, d_model).
    """
    as_dataset(data)
    data.head(v)
    place = Path(path)
    form = place.suffix.lower()
    if form not in (".npz", ".json"):
        raise reject("path", "a name that ends in .npz or .json", repr(str(path)))
    arrays: dict[str, Any] = {"X": data.X, "y": data.y, "v": np.asarray(v, dtype=np.float64)}
    if data.W is None:
        arrays["K"] = data.K
    elif not np.array_equal(data.W, np.eye(data.d_model)):
        arrays["W"] = data.W
    if form == ".npz":
        if not data.mask.all():
            arrays["lengths"] = data.lengths
        stream = BytesIO()
        np.savez_compressed(stream, **arrays)
        write_whole(place, stream.getvalue(), "path")
    else:
        listed = {name: _listed(data, values) if name in "XK" else values.tolist() for name, values in arrays.items()}
        write_whole(place, json.dumps(listed, allow_nan=False).encode(), "path")


# ---- reading


def _arrays(path: Path) -> dict[str, Any]:
    """What the file holds, by name: arrays of numbers from a .npz, numbers and nested lists from JSON."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise reject("path", _KINDS, unusable(path, problem)) from problem
    if content.startswith(_ZIP):
        return _from_npz(path, content)
    if content.startswith(_NPY):
        raise reject("path", _KINDS, f"{str(path)!r}, a single array", "Save all of them with np.savez.")
    try:
        named = json.loads(content.decode("utf-8-sig"), parse_int=float)
    except (ValueError, RecursionError) as problem:
        raise reject("path", _KINDS, f"{str(path)!r}, which is neither") from problem
    if not isinstance(named, Mapping):
        raise reject("path", _KINDS, f"{str(path)!r}, whose JSON is no object with names")
    return {name: values for name, values in named.items() if values is not None}


def _from_npz(path: Path, content: bytes) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    name = "the file"
    try:
        with np.load(BytesIO(content), allow_pickle=False) as archive:
            for name in archive.files:
                arrays[name] = archive[name] if name in NEEDED + OPTIONAL else None
    except (ValueError, EOFError, OSError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as problem:
        if "allow_pickle" in str(problem):
            remedy = "Save plain arrays; pad inputs of different lengths and add 'lengths', or use JSON."
            raise reject(name, "an array of numbers", "pickled objects, which are not loaded", remedy) from problem
        raise reject("path", _KINDS, f"{str(path)!r}, in which {name} cannot be read") from problem
    for name, values in arrays.items():
        if name in NEEDED + OPTIONAL and getattr(values, "dtype", np.dtype("O")).kind not in "biuf":
            what = f"dtype {values.dtype}" if hasattr(values, "dtype") else "an entry that is no array"
            raise reject(name, "an array of real numbers", what)
    return arrays


def _lengths(value: Any, X: Any) -> IntArray:
    """How many tokens each input has, checked against padded tokens."""
    shape = np.shape(X) if isinstance(X, np.ndarray) else ()
    if len(shape) not in (3, 4):
        raise reject("lengths", "left out unless X is an array that pads every input to the same length", "both")
    counts = np.asarray(value)
    expected = f"whole numbers from 1 to {shape[-2]} of shape {shape[:-2]}: how many tokens each input has"
    if counts.shape != shape[:-2]:
        raise reject("lengths", expected, f"shape {counts.shape}")
    wrong = (counts < 1) | (counts > shape[-2]) | (counts != np.floor(counts))
    if wrong.any():
        raise reject("lengths", expected, f"{float(counts[wrong].flat[0]):g}")
    return counts.astype(np.int64)


def _cut(padded: Any, lengths: IntArray, argument: str) -> Any:
    """Padded tokens as lists of inputs, or of problems, without their padding."""
    array = np.asarray(padded)
    if array.ndim != lengths.ndim + 2 or array.shape[:-2] != lengths.shape or array.shape[-2] < lengths.max():
        raise reject(argument, f"tokens for lengths of shape {lengths.shape}", f"shape {array.shape}")
    if lengths.ndim == 2:
        return [_cut(array[j], lengths[j], f"{argument}[{j}]") for j in range(len(array))]
    return [array[i, : lengths[i]] for i in range(len(array))]


# ---- writing


def _listed(data: TokenDataset, padded: FloatArray) -> list[Any]:
    """Tokens or keys as nested lists without their padding."""
    problems = padded if data.is_batch else padded[None]
    lengths = data.as_batch().lengths
    listed = [[one[: lengths[j, i]].tolist() for i, one in enumerate(each)] for j, each in enumerate(problems)]
    return listed if data.is_batch else listed[0]
