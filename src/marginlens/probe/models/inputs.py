"""Texts and images as inputs of a model, read from files and cut into batches."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import InputError
from marginlens.typing import ArrayLike, FloatArray, IntArray

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import BaseImageProcessor, PretrainedConfig, PreTrainedTokenizerBase

BATCH_TOKENS = 1024  # of one batch, so that the maps of a layer fit into memory; a longer input is a batch of its own
_MAX_STRETCH, _MAX_SLACK = 1.2, 4  # the longest text of a batch against its shortest, in tokens
_OFFSET_POSITIONS = ("roberta", "camembert", "xlm-roberta")  # positions count from pad_token_id + 1
_UNLIMITED = 10**9  # tokenizers without a limit name one far beyond this
_TEXT_FILE = "a UTF-8 text file with one input per line"
_IMAGE_FILE = "a .npz, .npy, .png or .jpg file of images, or a folder of .png and .jpg files"
_PICTURES = (".png", ".jpg", ".jpeg")
_IMAGE_ARRAYS = ("images", "pixel_values", "x_test", "X", "x", "data")  # which array of a .npz holds the images
_BYTES_PER_PAIR = 48  # of memory for each query and token of every head of a layer, while it is measured: 43 were seen


@dataclass(frozen=True, eq=False)
class InputBatch:
    """A batch of a user's inputs, as a model reads them."""

    index: IntArray  # (B,) places of these inputs among all of them
    inputs: Mapping[str, npt.NDArray[np.generic]]  # what the model is called with, as NumPy arrays
    tokens: tuple[tuple[str, ...], ...]  # names of the real tokens of each input


# ---- texts


@dataclass(frozen=True, repr=False)
class TextInputs:
    """Tokenised texts, in the order given."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]  # special tokens included
    tokens: tuple[tuple[str, ...], ...]  # the same, to be shown
    n_truncated: int  # texts that were longer than the model's positions and lost their end
    max_tokens: int  # how many positions the model has
    pad_id: int
    separators: frozenset[int] = frozenset()  # ids that part texts: special tokens and those without a letter or digit

    grid = None  # tokens are no patches

    def __repr__(self) -> str:
        cut = f", {self.n_truncated} truncated to {self.max_tokens} tokens" if self.n_truncated else ""
        return f"TextInputs({len(self)} texts, {int(self.lengths.sum())} tokens{cut})"

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def lengths(self) -> IntArray:
        """The number of tokens of each text, (n_texts,)."""
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    def subset(self, places: Sequence[int]) -> TextInputs:
        """Take the texts at these places."""
        ids, tokens = tuple(self.ids[k] for k in places), tuple(self.tokens[k] for k in places)
        return replace(self, texts=tuple(self.texts[k] for k in places), ids=ids, tokens=tokens)

    def behind(self, start: int) -> TextInputs:
        """Return what a decoder reads while it writes these texts: a start token, and each text without its last token."""
        name = self.names().get(start, "[start]")
        ids = tuple((start, *text[:-1]) for text in self.ids)
        return replace(self, ids=ids, tokens=tuple((name, *names[:-1]) for names in self.tokens))

    def title(self, place: int) -> str:
        """Return the title of an input on a page: the text."""
        return self.texts[place]

    def image(self, place: int) -> None:
        """Return None: a text has no image."""

    def names(self) -> dict[int, str]:
        """Return the name of each token id."""
        pairs = zip(self.ids, self.tokens, strict=True)
        return {token: name for ids, names in pairs for token, name in zip(ids, names, strict=True)}

    def batches(self) -> Iterator[InputBatch]:
        """Yield batches from the shortest texts to the longest, padded on the right to their own longest text."""
        order = np.argsort(self.lengths, kind="stable").tolist()
        lengths = self.lengths[order].tolist()
        start = 0
        for stop in range(1, len(order) + 1):
            ends = stop == len(order) or lengths[stop] > _MAX_STRETCH * lengths[start] + _MAX_SLACK
            if ends or stop - start >= max(1, BATCH_TOKENS // lengths[stop]):
                places = order[start:stop]
                ids = np.full((len(places), lengths[stop - 1]), self.pad_id, dtype=np.int64)
                mask = (np.arange(ids.shape[1]) < self.lengths[places][:, None]).astype(np.int64)
                ids[mask == 1] = np.concatenate([self.ids[place] for place in places])
                inputs, tokens = {"input_ids": ids, "attention_mask": mask}, tuple(self.tokens[k] for k in places)
                yield InputBatch(np.asarray(places, dtype=np.int64), inputs, tokens)
                start = stop


def example_sentences() -> tuple[str, ...]:
    """Return 200 English sentences of 5 to 25 words, for probing a language model without your own text.

    There are twenty each of facts, questions, small stories, negations, dialogue, numbers, ambiguous pronouns, agreement across
    clauses, misleading or ambiguous sentences, and other constructions, in this order.

    Examples:
        >>> from marginlens.probe import example_sentences
        >>> len(example_sentences())
        200
    """
    return tuple(files("marginlens.probe").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines())


def read_texts(path: str | os.PathLike[str]) -> list[str]:
    """Read each nonblank line of a UTF-8 text file as one input.

    Examples:
        >>> from pathlib import Path
        >>> from marginlens.probe import read_texts
        >>> written = Path("texts.txt").write_text("A first text.\\n\\nA second one.\\n", encoding="utf-8")
        >>> read_texts("texts.txt")
        ['A first text.', 'A second one.']
    """
    try:
        content = _file(path, "text", _TEXT_FILE).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InputError("text", _TEXT_FILE, f"{str(path)!r}, whose byte {problem.start} is not UTF-8") from problem
    except OSError as problem:
        raise InputError("text", _TEXT_FILE, f"{str(path)!r}, which cannot be read ({problem.strerror})") from problem
    texts = [line.strip() for line in content.split("\n") if line.strip()]
    if not texts:
        raise InputError(
            "text", _TEXT_FILE, f"{str(path)!r}, which is empty" + (" but for blank lines" if content else "")
        )
    return texts


def encode_texts(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase | None, config: PretrainedConfig
) -> TextInputs:
    """Turn texts into the token ids of a model, and cut them at its largest number of positions.

    Args:
        texts: at least one text; every text must have tokens.

        tokenizer: the model's tokenizer, as transformers loads it.

        config: the model's configuration.

    Returns:
        The token ids of every text, in the given order; `n_truncated` counts the texts that were cut.

    Examples:
        >>> from marginlens.data import write_samples
        >>> from marginlens.probe import encode_texts, load_model
        >>> written = write_samples("samples")
        >>> loaded = load_model("samples/tiny-model")
        >>> inputs = encode_texts(["what a fine music ."], loaded.tokenizer, loaded.model.config)
        >>> inputs.tokens, inputs.n_truncated
        ((('[CLS]', 'what', 'a', 'fine', 'music', '.', '[SEP]'),), 0)
    """
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError("texts", "a list of at least one text", repr(texts)[:60])
    if tokenizer is None:
        raise InputError("tokenizer", "the tokenizer of the model", "None", "Keep its files in the model's folder.")
    parts = (getattr(config, name, None) for name in ("text_config", "encoder"))  # of CLIP, of an EncoderDecoderModel
    config = next((part for part in parts if part is not None), config)
    max_tokens = int(getattr(config, "max_position_embeddings", None) or _UNLIMITED)
    if config.model_type in _OFFSET_POSITIONS:
        max_tokens -= int(config.pad_token_id) + 1
    max_tokens = int(min(max_tokens, getattr(tokenizer, "model_max_length", None) or _UNLIMITED))
    options: dict[str, Any] = {"padding": False, "verbose": False, "truncation": False}
    ids = tokenizer(list(texts), **options)["input_ids"]
    n_truncated = sum(len(text) > max_tokens for text in ids)
    if n_truncated:
        ids = tokenizer(list(texts), **{**options, "truncation": True, "max_length": max_tokens})["input_ids"]
    for place, text in enumerate(ids):
        if not text:
            raise InputError("texts", "texts with at least one token each", f"{texts[place][:40]!r} at index {place}")
    highest = max(map(max, ids))
    if highest >= config.vocab_size:
        raise InputError(
            "tokenizer",
            f"the one of this model, with ids below {config.vocab_size}",
            f"one that gives the id {highest}",
        )
    names, pad = _token_names(tokenizer, sorted({token for text in ids for token in text})), tokenizer.pad_token_id
    return TextInputs(
        texts=tuple(texts),
        ids=tuple(tuple(map(int, text)) for text in ids),
        tokens=tuple(tuple(names[token] for token in text) for text in ids),
        n_truncated=n_truncated,
        max_tokens=max_tokens,
        pad_id=0 if pad is None or pad >= config.vocab_size else int(pad),
        separators=frozenset(getattr(tokenizer, "all_special_ids", ()))
        | {token for token, name in names.items() if not any(map(str.isalnum, name))},
    )


def _token_names(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> dict[int, str]:
    """Write each token as a reader would: the letters that its bytes spell, and a space where a word begins."""
    written = [str(name) for name in tokenizer.convert_ids_to_tokens(ids)]
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if type(decoder).__name__ == "ByteLevel":
        spelled = [tokenizer.convert_tokens_to_string([name]) for name in written]
        shown = [raw if "\ufffd" in text else text for text, raw in zip(spelled, written, strict=True)]
    else:
        shown = [name.replace("▁", " ") for name in written]
    return dict(zip(ids, shown, strict=True))


# ---- images


@dataclass(frozen=True, eq=False)
class ImageSettings:
    """The image format of a model: its shape, its patches, and the transformers processor that converts bytes to numbers."""

    channels: int
    height: int
    width: int
    patch: tuple[int, int] = (1, 1)  # height and width of a patch
    n_special: int = 1  # tokens before the patches
    n_registers: int = 0  # how many of these are registers, the last of them
    processor: BaseImageProcessor | None = None  # None for bytes at the model's size, from -1 to 1

    @classmethod
    def of(cls, config: PretrainedConfig, processor: BaseImageProcessor | None = None) -> ImageSettings:
        """Read the settings from a model's configuration and its image processor, if it has one."""
        height, width = _sides(config.image_size)
        crop = getattr(processor, "crop_size", None) if getattr(processor, "do_center_crop", False) else None
        if config.model_type.startswith("dinov2") and crop:  # it reads any size
            height, width = _sides(crop)
        n_special = 0 if config.model_type == "swin" else 2 if config.model_type == "deit" else 1
        n_registers = int(getattr(config, "num_register_tokens", 0))
        patch = _sides(config.patch_size)
        return cls(int(config.num_channels), height, width, patch, n_special + n_registers, n_registers, processor)

    def pixel_values(self, pictures: Sequence[Image]) -> npt.NDArray[np.float32]:
        """Return what the processor makes of pictures of Pillow, (n, channels, height, width); the middle of those that it
        leaves larger.
        """
        size = {"height": self.height, "width": self.width}
        arrays = [np.asarray(picture).reshape(*picture.size[::-1], self.channels) for picture in pictures]
        made = self._processor(
            arrays, do_center_crop=True, crop_size=size, return_tensors="np", input_data_format="channels_last"
        )
        return np.asarray(made["pixel_values"], dtype=np.float32)

    def levels(self, pixel_values: ArrayLike) -> FloatArray:
        """Return pixel values as the bytes that they were made from, not yet rounded."""
        made, values = self._processor, np.asarray(pixel_values, dtype=np.float64)
        if made.do_normalize:
            mean, std = (np.reshape(numbers, (-1, 1, 1)) for numbers in (made.image_mean, made.image_std))
            values = values * std + mean
        return values / made.rescale_factor if made.do_rescale else values

    @cached_property
    def _processor(self) -> BaseImageProcessor:
        from transformers import ViTImageProcessorPil

        if self.processor is not None:
            return self.processor
        half, size = [0.5] * self.channels, {"height": self.height, "width": self.width}
        return ViTImageProcessorPil(size=size, image_mean=half, image_std=half)

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and columns of patches."""
        return self.height // self.patch[0], self.width // self.patch[1]

    @property
    def n_tokens(self) -> int:
        return self.grid[0] * self.grid[1] + self.n_special

    @property
    def tokens(self) -> tuple[str, ...]:
        """A name for every token: [CLS], [DIST] and [REG 0] … if there are such, then the row and column of each patch."""
        rows, columns = self.grid
        patches = tuple(f"{row},{column}" for row in range(rows) for column in range(columns))
        registers = tuple(f"[REG {k}]" for k in range(self.n_registers))
        return ("[CLS]", "[DIST]")[: self.n_special - self.n_registers] + registers + patches


@dataclass(frozen=True, repr=False, eq=False)
class ImageInputs:
    """Images as the numbers a model reads."""

    pixel_values: npt.NDArray[np.float32]  # (n_images, channels, height, width)
    settings: ImageSettings

    n_truncated = max_tokens = 0  # none is cut

    def __repr__(self) -> str:
        return f"ImageInputs({len(self)} images of shape {self.pixel_values.shape[1:]})"

    def __len__(self) -> int:
        return len(self.pixel_values)

    @property
    def grid(self) -> tuple[int, int]:
        """The numbers of rows and columns of patches."""
        return self.settings.grid

    @property
    def ids(self) -> tuple[tuple[int, ...], ...]:
        """The positions of its patches serve as the ids of an image's tokens."""
        return (tuple(range(self.settings.n_tokens)),) * len(self)

    @property
    def lengths(self) -> IntArray:
        """The number of tokens of each image, (n_images,)."""
        return np.full(len(self), self.settings.n_tokens, dtype=np.int64)

    def subset(self, places: Sequence[int]) -> ImageInputs:
        """Take the images at these places."""
        return replace(self, pixel_values=self.pixel_values[places])

    def title(self, place: int) -> str:
        """Return the title of an input on a page."""
        return f"image {place}"

    def image(self, place: int) -> npt.NDArray[np.uint8]:
        """Convert an image to bytes again, (height, width, channels), stretched to their range if its settings do not lead back to it."""
        levels = self.settings.levels(self.pixel_values[place])
        low, high = float(levels.min()), float(levels.max())
        if low < -1.0 or high > 256.0 or high <= 1.0:
            levels = (levels - low) * (255.0 / max(high - low, 1e-12))
        return np.moveaxis(np.clip(np.rint(levels), 0, 255).astype(np.uint8), 0, -1)

    def names(self) -> dict[int, str]:
        """Return the name of each token id."""
        return dict(enumerate(self.settings.tokens))

    def batches(self) -> Iterator[InputBatch]:
        """Yield batches in the order of the images."""
        size, tokens = max(1, BATCH_TOKENS // self.settings.n_tokens), self.settings.tokens
        for start in range(0, len(self), size):
            pixels = self.pixel_values[start : start + size]
            index = np.arange(start, start + len(pixels), dtype=np.int64)
            yield InputBatch(index, {"pixel_values": pixels}, (tokens,) * len(pixels))


def read_images(path: str | os.PathLike[str], settings: ImageSettings) -> ImageInputs:
    """Read the images of a file or folder, and prepare them for a model.

    Args:
        path: a .npy array, a .npz with one array (or with one named images, pixel_values, x_test, X, x or data), a .png or
            .jpg, or a folder of such pictures, in the order of their names. Pickled objects are never loaded. The model's image
            processor resizes pictures.

        settings: the image format of the model.
    """
    from PIL import Image

    place = Path(path)
    if place.is_dir():
        pictures = sorted(file for file in place.iterdir() if file.suffix.lower() in _PICTURES)
        if not pictures:
            raise InputError("images", _IMAGE_FILE, f"{str(path)!r}, a folder without such files")
    else:
        place = _file(path, "images", _IMAGE_FILE)
        pictures = [place] if place.suffix.lower() in _PICTURES else []
    if not pictures and place.suffix.lower() not in (".npz", ".npy"):
        raise InputError("images", _IMAGE_FILE, repr(str(path)))
    try:
        if not pictures:
            return prepare_images(_read_array(place), settings)
        opened = []
        for place in pictures:  # the name of one that fails is said below
            opened.append(_read_picture(place, settings))
        return ImageInputs(settings.pixel_values(opened), settings)
    except InputError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, SyntaxError, zipfile.BadZipFile, zlib.error,
            Image.DecompressionBombError) as problem:  # fmt: skip
        raise InputError("images", _IMAGE_FILE, f"{str(place)!r}, which cannot be read as one") from problem


def prepare_images(images: ArrayLike, settings: ImageSettings) -> ImageInputs:
    """Turn images into a model's pixel values.

    Args:
        images: bytes (n_images, height, width, channels), which are normalised here; grey images may leave out the last axis.
            Images of another size or with other channels (grey, or with transparency) are converted like pictures from files.
            Alternatively floats (n_images, channels, height, width), which must be normalised already.

        settings: the image format of the model.

    Examples:
        >>> import numpy as np
        >>> from marginlens.probe import ImageSettings, prepare_images
        >>> settings = ImageSettings(channels=1, height=6, width=6, patch=(2, 2))
        >>> prepare_images(np.zeros((5, 1, 6, 6)), settings)
        ImageInputs(5 images of shape (1, 6, 6))
    """
    array = np.asarray(images)
    c, h, w = settings.channels, settings.height, settings.width
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[..., None]
    if array.dtype == np.uint8 and array.ndim == 4 and array.size and array.shape[-1] in (1, 3, 4):
        return ImageInputs(settings.pixel_values([_picture(image, c) for image in array]), settings)
    if array.dtype.kind != "f" or not len(array) or array.shape[1:] != (c, h, w):
        expected = f"floats of shape (n_images, {c}, {h}, {w}) or bytes of shape (n_images, height, width, {c})"
        raise InputError(
            "images", f"{expected}, as the model asks", f"shape {np.shape(images)} with dtype {array.dtype}"
        )
    if not np.isfinite(array).all():
        raise InputError("images", "finite numbers", "NaN or infinity among them")
    return ImageInputs(np.ascontiguousarray(array, dtype=np.float32), settings)


def _sides(size: int | list[int] | tuple[int, int] | Mapping[str, int]) -> tuple[int, int]:
    """Return height and width from one number, two, or what an image processor calls a size."""
    if not isinstance(size, int | list | tuple):
        size = (size["height"], size["width"])
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return int(height), int(width)


def _read_array(place: Path) -> npt.NDArray[Any]:
    with place.open("rb") as stream:
        content = np.load(stream, allow_pickle=False)
        if isinstance(content, np.ndarray):
            return content
        names = list(content.files)
        name = names[0] if len(names) == 1 else next((known for known in _IMAGE_ARRAYS if known in names), None)
        if name is None:
            held = ", ".join(map(repr, names)) or "nothing"
            raise InputError(
                "images", f"a .npz with images under one of {', '.join(_IMAGE_ARRAYS)}", f"one that holds {held}"
            )
        return np.asarray(content[name])


def _read_picture(place: Path, settings: ImageSettings) -> Image:
    """Read a .png or .jpg as a picture of Pillow, grey or in colours as the model requires, the right way up."""
    from PIL import Image, ImageOps

    with Image.open(place, formats=["PNG", "JPEG"]) as opened:
        if opened.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK"):  # PIL would cut 16 bits off at 255
            raise InputError("images", "pictures with at most 8 bits per channel", f"{str(place)!r} with {opened.mode}")
        return ImageOps.exif_transpose(opened).convert("L" if settings.channels == 1 else "RGB")


def _picture(image: npt.NDArray[np.uint8], channels: int) -> Image:
    """Convert bytes (height, width, 1, 3 or 4) to a picture of Pillow, grey or in colours as requested."""
    from PIL import Image

    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).convert("L" if channels == 1 else "RGB")


def _file(path: str | os.PathLike[str], argument: str, expected: str) -> Path:
    place = Path(path)
    if not place.is_file():
        problem = "which is a folder" if place.is_dir() else "which is not there"
        raise InputError(argument, expected, f"{str(path)!r}, {problem}")
    return place


# ---- both

Inputs = TextInputs | ImageInputs


def check_memory(inputs: Inputs, n_heads: int) -> None:
    """Raise if the attention maps of all heads of one layer do not fit into memory."""
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say; AttributeError: not a POSIX one
        return
    longest = int(inputs.lengths.max())
    needed = _BYTES_PER_PAIR * n_heads * longest**2
    if needed > available:
        raise InputError(
            "inputs",
            f"short enough for the attention maps of {n_heads} heads to fit in {available / 1e9:,.0f} GB of memory",
            f"{longest:,} tokens at index {int(inputs.lengths.argmax())}, which need {needed / 1e9:,.0f} GB,",
            "Use shorter inputs.",
        )
