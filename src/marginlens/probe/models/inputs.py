"""A user's inputs in the form that a probe runs on, whatever form they came in."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from marginlens.data.tokens import IntArray
from marginlens.errors import InputError, reject
from marginlens.probe.models.adapters import adapter_for
from marginlens.probe.models.image_inputs import ImageInputs, prepare_images
from marginlens.probe.models.loading import LoadedModel
from marginlens.probe.models.text_inputs import TextInputs, encode_texts

Inputs = TextInputs | ImageInputs
_BYTES = 48  # of memory for each query and token of every head of a layer, while it is measured: 43 were seen


def as_loaded(model: Any) -> LoadedModel:
    """A model with what belongs to it; a bare Hugging Face model has no tokenizer."""
    if isinstance(model, LoadedModel):
        return model
    adapter_for(model)
    name = str(getattr(model.config, "name_or_path", "") or type(model).__name__)
    return LoadedModel(model, None, None, name.rstrip("/").rsplit("/", 1)[-1])


def as_inputs(loaded: LoadedModel, inputs: Any) -> Inputs:
    """Texts or images as the model reads them.

    Args:
        inputs: what `encode_texts` or `prepare_images` gave; or texts, for a model with a tokenizer; or an array of images, for a model
            loaded with its image settings.
    """
    if isinstance(inputs, TextInputs | ImageInputs):
        return inputs
    if loaded.images is not None:
        return prepare_images(inputs, loaded.images)
    if isinstance(inputs, list | tuple) and loaded.tokenizer is not None:
        return encode_texts(list(inputs), loaded.tokenizer, loaded.model.config)
    expected = "TextInputs, ImageInputs, or texts together with a model from load_model, which has a tokenizer"
    raise reject("inputs", expected, type(inputs).__name__)


def check_length(inputs: Inputs, n_heads: int) -> None:
    """Refuse an input whose attention maps, of all heads of one layer, do not fit into this machine's memory."""
    lengths = [inputs.settings.n_tokens] if isinstance(inputs, ImageInputs) else [len(one) for one in inputs.ids]
    longest = max(lengths)
    needed, there = _BYTES * n_heads * longest**2, machine_memory()
    if there is not None and needed > there:
        raise InputError(
            f"Input {lengths.index(longest) + 1} has {longest:,} tokens: to measure the maps of {n_heads} heads would take "
            f"{needed / 1e9:,.0f} GB of memory, of which this machine has {there / 1e9:,.0f}; use shorter inputs."
        )


def machine_memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # AttributeError: not a POSIX system
        return None


def example_places(inputs: Inputs, count: int, longest: int) -> IntArray:
    """Which inputs to keep as examples: `count` of those with at most `longest` tokens, spread evenly; the shortest where none is."""
    if isinstance(inputs, ImageInputs):
        return np.arange(min(count, len(inputs)))
    lengths = np.array([len(one) for one in inputs.ids])
    short = np.flatnonzero((lengths <= longest) & (lengths > 1))
    if not len(short):
        return np.sort(np.argsort(lengths, kind="stable")[:count])
    return short[np.unique(np.linspace(0, len(short) - 1, min(count, len(short))).round().astype(int))]


def example_name(inputs: Inputs, place: int) -> str:
    """What an input is called on the page."""
    return inputs.texts[place] if isinstance(inputs, TextInputs) else f"image {place}"
