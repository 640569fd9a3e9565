"""Encoded sequences as files: token ids, offsets, labels and the tokens' names in one .npz file without pickles."""

from __future__ import annotations

import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.labelled import LabelledSequences
from marginlens.errors import array_of_any, reject
from marginlens.runtime.files import as_path, write_whole

_NEEDED = ("tokens", "offsets", "y")
_FORM = "a .npz file with tokens, offsets and y, and optionally names"


def read_labelled(path: str | Path, split: str | None = None) -> tuple[LabelledSequences, list[str] | None]:
    """The sequences in a file and the names of their tokens, where it has them.

    Args:
        path: a `.npz` with `tokens` (n_positions,), `offsets` (n_samples + 1,), `y` (n_samples,) of ±1 and optionally `names`
            (n_vocabulary,) and `split` (n_samples,). Pickled objects are never loaded.
        split: take only the sequences whose `split` is this.
    """
    place = as_path(path, "path", _FORM)
    try:
        with place.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in (*_NEEDED, "names", "split") if name in archive.files}
    except OSError as problem:
        raise reject("path", _FORM, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except (ValueError, TypeError, AttributeError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as problem:
        raise reject("path", _FORM, f"{str(place)!r}, which cannot be read") from problem
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise reject("path", _FORM, f"{str(place)!r} without {' and '.join(missing)}")
    for name in set(arrays) & {"names", "split"}:
        if arrays[name].ndim != 1:
            raise reject(name, f"a list of names in {str(place)!r}", f"shape {arrays[name].shape}")
    names = [str(one) for one in arrays["names"]] if "names" in arrays else None
    data = _checked(arrays, None if names is None else len(names), place)
    if split is None:
        return data, names
    parts = [str(one) for one in np.unique(arrays.get("split", []))]
    if split not in parts:
        raise reject("split", f"one of {', '.join(parts) or 'none'}, those of {str(place)!r}", repr(split))
    if len(arrays["split"]) != len(data):
        raise reject("split", f"one for each of {len(data)} sequences in {str(place)!r}", len(arrays["split"]))
    return data.subset(np.flatnonzero(arrays["split"] == split)), names


def write_labelled(path: str | Path, data: LabelledSequences, names: Any = None, split: Any = None) -> None:
    """Write sequences so that `read_labelled` gives them back; `split` (n_samples,) names the part of each where there are parts."""
    if not isinstance(data, LabelledSequences):
        raise reject("data", "LabelledSequences", type(data).__name__)
    place = as_path(path, "path", "a file to write")
    arrays: dict[str, Any] = {
        "tokens": data.tokens.astype(np.int32),
        "offsets": data.offsets.astype(np.int64),
        "y": data.y.astype(np.int8),
        "names": _strings(range(data.n_vocabulary) if names is None else names, "names"),
    }
    if arrays["names"].shape != (data.n_vocabulary,):
        raise reject("names", f"one for each of {data.n_vocabulary} tokens", f"shape {arrays['names'].shape}")
    if split is not None:
        arrays["split"] = _strings(split, "split")
        if arrays["split"].shape != (len(data),):
            raise reject("split", f"one for each of {len(data)} sequences", f"shape {arrays['split'].shape}")
    stream = BytesIO()
    np.savez_compressed(stream, **arrays)
    write_whole(place, stream.getvalue(), "path")


def _strings(values: Any, argument: str) -> npt.NDArray[np.str_]:
    return array_of_any(values, argument, "a list of names").astype(str)


def _checked(arrays: dict[str, Any], n_names: int | None, place: Path) -> LabelledSequences:
    tokens, offsets, y = (np.asarray(arrays[name]) for name in _NEEDED)

    def wrong(name: str, expected: str, got: object) -> Exception:
        return reject(name, f"{expected} in {str(place)!r}", got)

    for name, values in zip(_NEEDED, (tokens, offsets, y), strict=True):
        if values.ndim != 1 or values.dtype.kind not in ("iu" if name != "y" else "iuf"):
            raise wrong(name, "a list of whole numbers", f"shape {values.shape} with dtype {values.dtype}")
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(tokens):
        raise wrong(
            "offsets", f"numbers from 0 to {len(tokens)}, the number of positions", f"{offsets[:1]} to {offsets[-1:]}"
        )
    empty = np.flatnonzero(offsets[1:] <= offsets[:-1])  # a difference of unsigned numbers is never negative
    if len(empty):
        raise wrong("offsets", "increasing, as no sequence is empty", f"an empty sequence (sample {empty[0]})")
    if y.shape != (len(offsets) - 1,) or not np.isin(y, (-1, 1)).all():
        raise wrong("y", f"{len(offsets) - 1} labels, each -1 or +1", f"{len(y)} labels {np.unique(y)[:5]}")
    size = int(tokens.max()) + 1 if n_names is None else n_names
    if tokens.min() < 0 or tokens.max() >= size:
        raise wrong("tokens", f"ids from 0 to {size - 1}", f"ids from {tokens.min()} to {tokens.max()}")
    return LabelledSequences.of_positions(tokens.astype(np.int64), offsets.astype(np.int64), y.astype(np.float64), size)
