"""Labelled images from files: a .npz, or CIFAR-10's binary batches."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError
from marginlens_papers.claims.a.vision_training import ByteArray, LabelledImages

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_KINDS = "a .npz with x_train, y_train, x_test and y_test, or a folder with CIFAR-10's binary batches"
_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
_TEST = "test_batch"
_EDGE = 32
_PIXELS = 3 * _EDGE * _EDGE


def checked_images(
    name: str, x_train: Any, y_train: Any, x_test: Any, y_test: Any, classes: tuple[str, ...]
) -> LabelledImages:
    """Images and labels that can be trained on; what cannot is refused by name."""
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    for part in ("train", "test"):
        x, y = (np.asarray(arrays[f"{kind}_{part}"]) for kind in "xy")
        expected = "bytes of shape (n_images, height, width, channels), with 1 or 3 channels and at least one image"
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3) or 0 in x.shape:
            raise InputError(f"x_{part}", expected, f"shape {x.shape} with dtype {x.dtype}")
        if x.shape[1:] != np.shape(x_train)[1:]:
            raise InputError("x_test", f"images of shape {np.shape(x_train)[1:]}, as in x_train", x.shape[1:])
        if y.shape != (len(x),) or y.dtype.kind not in "iu":
            raise InputError(f"y_{part}", f"{len(x)} whole numbers", f"shape {y.shape} with dtype {y.dtype}")
        if y.min() < 0 or y.max() >= len(classes):
            worst = y.min() if y.min() < 0 else y.max()
            raise InputError(f"y_{part}", f"numbers from 0 to {len(classes) - 1}", f"{worst}")
        arrays[f"x_{part}"], arrays[f"y_{part}"] = np.ascontiguousarray(x), y.astype(np.uint8)
    return LabelledImages(name, **arrays, classes=classes)


def summary_of(data: LabelledImages) -> str:
    """The images in a few words."""
    height, width, channels = data.x_train.shape[1:]
    size = f"{height} × {width}" + (" in colour" if channels == 3 else "")
    counts = f"{len(data.x_train):,} images to train on and {len(data.x_test):,} to test"
    return f"{data.name}: {counts}, {size}, {len(data.classes)} classes"


def fingerprint(data: LabelledImages) -> str:
    """A name for the images and labels that any change of one changes."""
    digest = hashlib.sha256()
    for part in (data.x_train, data.y_train, data.x_test, data.y_test):
        digest.update(str(part.shape).encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def facts_of(data: LabelledImages) -> dict[str, Any]:
    """What the images are, in plain values, without any image."""
    return {
        "name": data.name,
        "train": len(data.x_train),
        "test": len(data.x_test),
        "shape": list(data.x_train.shape[1:]),
        "classes": list(data.classes),
        "sha256": fingerprint(data),
    }


def read_images(path: str | Path) -> LabelledImages:
    """The images in a file or folder; the ten classes of CIFAR-10 if they are 32 × 32 in colour with labels from 0 to 9.

    Args:
        path: a .npz with x_train, y_train, x_test, y_test, images as bytes (n_images, height, width, channels); or the folder
            `cifar-10-batches-bin`. Training batches that are missing are left out. The python batches are pickles and are not read.
    """
    path = Path(path)
    return _from_folder(path) if path.is_dir() else _from_npz(path)


def _from_npz(path: Path) -> LabelledImages:
    try:
        with path.open("rb") as stream:
            if stream.read(2) != b"PK":
                raise InputError("data", _KINDS, f"{str(path)!r}, which is neither")
            stream.seek(0)
            with np.load(stream, allow_pickle=False) as archive:
                missing = [name for name in _ARRAYS if name not in archive.files]
                if missing:
                    raise InputError("data", _KINDS, f"{str(path)!r} without {' and '.join(missing)}")
                arrays = {name: archive[name] for name in _ARRAYS}
    except InputError:
        raise
    except OSError as problem:
        raise InputError("data", _KINDS, f"{str(path)!r} ({problem.strerror or problem})") from problem
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as problem:
        raise InputError("data", _KINDS, f"{str(path)!r}, which cannot be read") from problem
    for part in ("x_train", "x_test"):
        if arrays[part].ndim == 3:
            arrays[part] = arrays[part][..., None]
    for part in ("y_train", "y_test"):
        if arrays[part].ndim == 2 and arrays[part].shape[1] == 1:  # as some libraries hand them out
            arrays[part] = arrays[part][:, 0]
    return checked_images(path.stem, **arrays, classes=_classes(arrays))


def _classes(arrays: dict[str, Any]) -> tuple[str, ...]:
    """CIFAR-10's names if the images look like it, else the labels themselves."""
    y = np.concatenate([np.ravel(arrays["y_train"]), np.ravel(arrays["y_test"])])
    if y.dtype.kind not in "iu" or y.size == 0:
        return CIFAR10  # the labels are refused by name
    count = int(y.max()) + 1
    if count <= len(CIFAR10) and arrays["x_train"].shape[1:] == (_EDGE, _EDGE, 3):
        return CIFAR10
    if not 0 < count <= 256:
        raise InputError("y_train", "labels from 0 to 255", f"{y.max()}")
    return tuple(map(str, range(count)))


def _from_folder(folder: Path) -> LabelledImages:
    batches = [path for path in (folder / f"{name}.bin" for name in _BATCHES) if path.is_file()]
    test = folder / f"{_TEST}.bin"
    if not (batches and test.is_file()):
        if (folder / _TEST).is_file():
            remedy = "Use its binary version, or save the arrays with np.savez."
            raise InputError(
                "data", _KINDS, f"{str(folder)!r} with CIFAR-10's python batches, which are pickles", remedy
            )
        raise InputError("data", _KINDS, f"{str(folder)!r} without data_batch_1.bin and test_batch.bin")
    x, y = zip(*(_binary_batch(path) for path in batches), strict=True)
    return checked_images("cifar10", np.concatenate(x), np.concatenate(y), *_binary_batch(test), classes=CIFAR10)


def _binary_batch(path: Path) -> tuple[ByteArray, ByteArray]:
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % (_PIXELS + 1):
        raise InputError("data", f"records of {_PIXELS + 1} bytes", f"{str(path)!r} of {len(content)} bytes")
    records = content.reshape(-1, _PIXELS + 1)
    return _as_images(records[:, 1:]), records[:, 0].copy()


def _as_images(rows: ByteArray) -> ByteArray:
    """(n_images, 3072) with one channel after the other as (n_images, 32, 32, 3)."""
    return np.ascontiguousarray(rows.reshape(-1, 3, _EDGE, _EDGE).transpose(0, 2, 3, 1))
