"""Labelled images from files: one .npz, or the folder of CIFAR-10's binary batches."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError, reject
from marginlens.vision.images import CIFAR10, ByteArray, LabelledImages

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_KINDS = "a .npz with x_train, y_train, x_test and y_test, or a folder with CIFAR-10's binary batches"
_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
_TEST = "test_batch"
_EDGE = 32
_PIXELS = 3 * _EDGE * _EDGE


def read_images(path: str | Path) -> LabelledImages:
    """The images in a file or folder; the ten classes of CIFAR-10 where they are 32 × 32 in colour with labels from 0 to 9.

    Args:
        path: a .npz with x_train, y_train, x_test, y_test, images as bytes (n_images, height, width, channels); or the folder
            `cifar-10-batches-bin`. Training batches that are missing are left out. The python batches are pickles and are not read.
    """
    place = Path(path)
    if place.is_dir():
        return _from_folder(place)
    return _from_npz(place)


# ---- one file


def _from_npz(place: Path) -> LabelledImages:
    try:
        with place.open("rb") as stream:
            if stream.read(2) != b"PK":
                raise reject("data", _KINDS, f"{str(place)!r}, which is neither")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                missing = [name for name in _ARRAYS if name not in archive.files]
                if missing:
                    raise reject("data", _KINDS, f"{str(place)!r} without {' and '.join(missing)}")
                arrays = {name: archive[name] for name in _ARRAYS}
    except InputError:
        raise
    except OSError as problem:
        raise reject("data", _KINDS, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as problem:
        raise reject("data", _KINDS, f"{str(place)!r}, which cannot be read") from problem
    for part in ("x_train", "x_test"):
        if arrays[part].ndim == 3:
            arrays[part] = arrays[part][..., None]
    for part in ("y_train", "y_test"):
        if arrays[part].ndim == 2 and arrays[part].shape[1] == 1:  # as some libraries hand them out
            arrays[part] = arrays[part][:, 0]
    return LabelledImages(place.stem, **arrays, classes=_classes(arrays))


def _classes(arrays: dict[str, Any]) -> tuple[str, ...]:
    """CIFAR-10's names where the images look like it, else the labels themselves."""
    y = np.concatenate([np.ravel(arrays["y_train"]), np.ravel(arrays["y_test"])])
    if y.dtype.kind not in "iu" or y.size == 0:
        return CIFAR10  # the labels are refused by name
    count = int(y.max()) + 1
    if count <= len(CIFAR10) and arrays["x_train"].shape[1:] == (_EDGE, _EDGE, 3):
        return CIFAR10
    if not 0 < count <= 256:
        raise reject("y_train", "labels from 0 to 255", f"{y.max()}")
    return tuple(map(str, range(count)))


# ---- a folder of batches


def _from_folder(folder: Path) -> LabelledImages:
    batches = [path for path in (folder / f"{name}.bin" for name in _BATCHES) if path.is_file()]
    test = folder / f"{_TEST}.bin"
    if not (batches and test.is_file()):
        if (folder / _TEST).is_file():
            remedy = "Use its binary version, or save the arrays with np.savez."
            raise reject("data", _KINDS, f"{str(folder)!r} with CIFAR-10's python batches, which are pickles", remedy)
        raise reject("data", _KINDS, f"{str(folder)!r} without data_batch_1.bin and test_batch.bin")
    x_train, y_train = _together([_binary_batch(path) for path in batches])
    return LabelledImages("cifar10", x_train, y_train, *_binary_batch(test), classes=CIFAR10)


def _together(batches: Sequence[tuple[ByteArray, ByteArray]]) -> tuple[ByteArray, ByteArray]:
    return np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches])


def _binary_batch(place: Path) -> tuple[ByteArray, ByteArray]:
    content = np.fromfile(place, dtype=np.uint8)
    if len(content) == 0 or len(content) % (_PIXELS + 1):
        raise reject("data", f"records of {_PIXELS + 1} bytes", f"{str(place)!r} of {len(content)} bytes")
    records = content.reshape(-1, _PIXELS + 1)
    return _as_images(records[:, 1:]), records[:, 0].copy()


def _as_images(rows: ByteArray) -> ByteArray:
    """(n_images, 3072) with one channel after the other as (n_images, 32, 32, 3)."""
    return np.ascontiguousarray(rows.reshape(-1, 3, _EDGE, _EDGE).transpose(0, 2, 3, 1))
