"""Images as a model reads them: arrays or PNG files of the model's own size, normalised as its settings say."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import reject, whole_number
from marginlens.probe.models.adapters.vit import image_shape
from marginlens.probe.models.reading import InputBatch, batch_size

_EXPECTED = "a .npz, .npy or .png file of images"
_NAMES = ("images", "pixel_values", "x_test", "X", "x", "data")  # which array of a .npz holds the images


@dataclass(frozen=True)
class ImageSettings:
    """What a model expects of an image: its shape, and how bytes become the numbers it reads."""

    channels: int
    height: int
    width: int
    patch: tuple[int, int] = (1, 1)  # height and width of a patch
    n_special: int = 1  # tokens before the patches
    mean: tuple[float, ...] = (0.5,)  # one per channel, or one for all
    std: tuple[float, ...] = (0.5,)
    rescale: float = 1 / 255  # a byte times this, minus the mean, over std

    @classmethod
    def of(cls, config: Any, preprocessor: Mapping[str, Any] | None = None) -> ImageSettings:
        """From a model's configuration and the contents of its preprocessor_config.json, where it has one."""
        facts, n_special = preprocessor or {}, 2 if config.model_type == "deit" else 1
        channels, height, width = image_shape(config)
        if config.model_type == "dinov2":
            height, width = _cropped(facts, height, width)
        size = config.patch_size
        patch = (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))
        normalised = facts.get("do_normalize", True)
        mean = _per_channel(_stated(facts, "image_mean", 0.5), channels, "image_mean") if normalised else (0.0,)
        std = _per_channel(_stated(facts, "image_std", 0.5), channels, "image_std") if normalised else (1.0,)
        (rescale,) = _per_channel(_stated(facts, "rescale_factor", 1 / 255), 1, "rescale_factor")
        if min(std) <= 0:
            raise reject("image_std", "positive numbers", std)
        if rescale <= 0:
            raise reject("rescale_factor", "a positive number", rescale)
        rescale = rescale if facts.get("do_rescale", True) else 1.0
        return cls(channels, height, width, patch, n_special, mean, std, rescale)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height // self.patch[0], self.width // self.patch[1]

    @property
    def n_tokens(self) -> int:
        return self.grid[0] * self.grid[1] + self.n_special

    @property
    def tokens(self) -> tuple[str, ...]:
        """A name for every token: [CLS], [DIST] where there is one, then the row and column of each patch."""
        rows, columns = self.grid
        patches = tuple(f"{row},{column}" for row in range(rows) for column in range(columns))
        return ("[CLS]", "[DIST]")[: self.n_special] + patches


@dataclass(frozen=True, repr=False, eq=False)
class ImageInputs:
    """Images as the numbers a model reads."""

    pixel_values: npt.NDArray[np.float32]  # (n_images, channels, height, width)
    settings: ImageSettings

    def __repr__(self) -> str:
        return f"ImageInputs({len(self)} images of shape {self.pixel_values.shape[1:]})"

    def __len__(self) -> int:
        return len(self.pixel_values)

    def batches(self) -> Iterator[InputBatch]:
        """Batches in the images' own order."""
        size, tokens = batch_size(self.settings.n_tokens), self.settings.tokens
        for start in range(0, len(self), size):
            pixels = self.pixel_values[start : start + size]
            index = np.arange(start, start + len(pixels), dtype=np.int64)
            yield InputBatch(index, {"pixel_values": pixels}, (tokens,) * len(pixels))


def read_images(path: str | os.PathLike[str], settings: ImageSettings) -> ImageInputs:
    """The images of a file, prepared for a model.

    Args:
        path: a .npy array, a .npz with one array (or one of the names images, pixel_values, x_test, X, x, data), or one
            .png. Pickled objects are never loaded.
    """
    place = Path(path)
    if not place.is_file():
        problem = "which is a folder" if place.is_dir() else "which is not there"
        raise reject("images", _EXPECTED, f"{str(path)!r}, {problem}")
    kind = place.suffix.lower()
    if kind not in (".npz", ".npy", ".png"):
        raise reject("images", _EXPECTED, repr(str(path)))
    return prepare_images(_png(place, settings) if kind == ".png" else _array(place), settings)


def prepare_images(images: Any, settings: ImageSettings) -> ImageInputs:
    """Images as a model's pixel values.

    Args:
        images: bytes (n_images, height, width, channels), normalised here; without the last axis where there is one
            channel. Or floats (n_images, channels, height, width), which are taken as normalised already.
    """
    array = np.asarray(images)
    c, h, w = settings.channels, settings.height, settings.width
    if array.dtype == np.uint8:
        if c == 1 and array.ndim == 3:
            array = array[..., None]
        if array.ndim != 4 or array.shape[1:] != (h, w, c) or not len(array):
            raise reject("images", f"bytes of shape (n_images, {h}, {w}, {c}), as the model asks", _shape(images))
        pixels = np.moveaxis(array.astype(np.float32), -1, 1) * np.float32(settings.rescale)
        mean, std = (np.asarray(one, dtype=np.float32)[:, None, None] for one in (settings.mean, settings.std))
        return ImageInputs(np.ascontiguousarray((pixels - mean) / std), settings)
    if array.dtype.kind != "f" or array.ndim != 4 or array.shape[1:] != (c, h, w) or not len(array):
        expected = f"floats of shape (n_images, {c}, {h}, {w}) or bytes of shape (n_images, {h}, {w}, {c})"
        raise reject("images", f"{expected}, as the model asks", _shape(images))
    if not np.isfinite(array).all():
        raise reject("images", "finite numbers", "NaN or infinity among them")
    return ImageInputs(np.ascontiguousarray(array, dtype=np.float32), settings)


def _shape(images: Any) -> str:
    array = np.asarray(images)
    return f"shape {array.shape} with dtype {array.dtype}"


def _cropped(facts: Mapping[str, Any], height: int, width: int) -> tuple[int, int]:
    """The size to which a preprocessor crops images, for a model that reads any: its own where nothing is cropped."""
    crop = facts.get("crop_size") if facts.get("do_center_crop", True) else None
    if crop is None:
        return height, width
    sides = [crop.get("height"), crop.get("width")] if isinstance(crop, Mapping) else [crop, crop]
    height, width = (whole_number(side, "crop_size", at_least=1) for side in sides)
    return height, width


def _stated(facts: Mapping[str, Any], name: str, default: float) -> Any:
    """What a preprocessor's settings say; the default where they say nothing, or null, as transformers writes it."""
    value = facts.get(name)
    return default if value is None else value


def _per_channel(value: Any, channels: int, name: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, value)) if isinstance(value, Sequence) else (float(value),)
    except (TypeError, ValueError) as problem:
        raise reject(name, f"one number, or one for each of {channels} channels", repr(value)[:60]) from problem
    if not np.isfinite(numbers).all():
        raise reject(name, "finite numbers", numbers)
    if len(numbers) not in (1, channels):
        raise reject(name, f"one number, or one for each of {channels} channels", f"{len(numbers)} numbers")
    return numbers


def _array(place: Path) -> npt.NDArray[Any]:
    try:
        with place.open("rb") as stream:
            content = np.load(stream, allow_pickle=False)
            if isinstance(content, np.ndarray):
                return content
            names = list(content.files)
            name = names[0] if len(names) == 1 else next((one for one in _NAMES if one in names), None)
            if name is None:
                found = ", ".join(map(repr, names)) or "nothing"
                raise reject(
                    "images", f"a .npz with images under one of {', '.join(_NAMES)}", f"one that holds {found}"
                )
            return np.asarray(content[name])
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as problem:
        if isinstance(problem, ValueError) and str(problem).startswith("The 'images'"):
            raise
        raise reject("images", _EXPECTED, f"{str(place)!r}, which cannot be read as one") from problem


def _png(place: Path, settings: ImageSettings) -> npt.NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError  # matplotlib needs it, so it is there

    try:
        with Image.open(place, formats=["PNG"]) as image:
            if image.size != (settings.width, settings.height):
                raise reject(
                    "images",
                    f"{settings.width} by {settings.height} pixels, as the model asks",
                    f"{str(place)!r} with {image.size[0]} by {image.size[1]}",
                )
            if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):  # PIL would cut 16 bits off at 255
                raise reject("images", "a PNG with at most 8 bits per channel", f"{str(place)!r} with {image.mode}")
            pixels = np.asarray(image.convert("L" if settings.channels == 1 else "RGB"), dtype=np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as problem:
        raise reject("images", _EXPECTED, f"{str(place)!r}, which cannot be read as one") from problem
    return pixels.reshape(1, settings.height, settings.width, -1)
