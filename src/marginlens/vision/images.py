"""Labelled images for training and testing, and the set that comes with scikit-learn."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import reject

ByteArray = npt.NDArray[np.uint8]
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS_TESTED = 360  # of scikit-learn's 1,797 digits; the last ones, which other people wrote than the first
_BRIGHTEST_DIGIT = 16


@dataclass(frozen=True, repr=False, eq=False)
class LabelledImages:
    """Images `x_train` (n_train, height, width, channels) and `x_test`, bytes, with labels from 0 and the `classes` that they name."""

    name: str
    x_train: ByteArray
    y_train: ByteArray
    x_test: ByteArray
    y_test: ByteArray
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = (np.asarray(getattr(self, f"{kind}_{part}")) for kind in "xy")
            expected = "bytes of shape (n_images, height, width, channels), with 1 or 3 channels and at least one image"
            if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3) or 0 in x.shape:
                raise reject(f"x_{part}", expected, f"shape {x.shape} with dtype {x.dtype}")
            if x.shape[1:] != np.shape(self.x_train)[1:]:
                raise reject("x_test", f"images of shape {np.shape(self.x_train)[1:]}, as in x_train", x.shape[1:])
            if y.shape != (len(x),) or y.dtype.kind not in "iu":
                raise reject(f"y_{part}", f"{len(x)} whole numbers", f"shape {y.shape} with dtype {y.dtype}")
            if y.min() < 0 or y.max() >= len(self.classes):
                worst = y.min() if y.min() < 0 else y.max()
                raise reject(f"y_{part}", f"numbers from 0 to {len(self.classes) - 1}", f"{worst}")
            object.__setattr__(self, f"x_{part}", np.ascontiguousarray(x))
            object.__setattr__(self, f"y_{part}", y.astype(np.uint8))

    def __repr__(self) -> str:
        height, width, channels = self.x_train.shape[1:]
        size = f"{height} × {width}" + (" in colour" if channels == 3 else "")
        counts = f"{len(self.x_train):,} images to train on and {len(self.x_test):,} to test"
        return f"LabelledImages({self.name}: {counts}, {size}, {len(self.classes)} classes)"

    @property
    def fingerprint(self) -> str:
        """A name for the images and labels that any change of one changes."""
        digest = hashlib.sha256()
        for part in (self.x_train, self.y_train, self.x_test, self.y_test):
            digest.update(str(part.shape).encode())
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def channel_statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel over the training images, as shares of the brightest value."""
        values = self.x_train.reshape(-1, self.x_train.shape[-1])
        mean = values.mean(axis=0, dtype=np.float64) / 255.0
        spread = values.std(axis=0, dtype=np.float64) / 255.0
        return mean.tolist(), np.where(spread > 0.0, spread, 1.0).tolist()

    def to_dict(self) -> dict[str, Any]:
        """What the images are, in plain values, without any image."""
        return {
            "name": self.name,
            "train": len(self.x_train),
            "test": len(self.x_test),
            "shape": list(self.x_train.shape[1:]),
            "classes": list(self.classes),
            "sha256": self.fingerprint,
        }


def digit_images() -> LabelledImages:
    """Scikit-learn's 1,797 handwritten digits of 8 × 8 pixels: 1,437 to train on, and 360 by other hands to test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x = np.round(found.images * (255.0 / _BRIGHTEST_DIGIT)).astype(np.uint8)[..., None]
    y = found.target.astype(np.uint8)
    return LabelledImages(
        "digits",
        x[:-DIGITS_TESTED],
        y[:-DIGITS_TESTED],
        x[-DIGITS_TESTED:],
        y[-DIGITS_TESTED:],
        tuple(map(str, range(10))),
    )
