"""A few inputs whose attention is kept while all of them are run."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.probe.heads.selection import Selection
from marginlens.probe.models.image_inputs import ImageInputs
from marginlens.probe.models.inputs import Inputs, example_name, example_places
from marginlens.probe.models.reading import InputBatch
from marginlens.probe.result import Example
from marginlens.probe.settings import ProbeSettings

_ENTRIES = 2_000_000  # of all maps together, so that the page of a model with very many heads stays small


class ExampleMaps:
    """Attention, selections and margins of the chosen inputs, layer after layer; fewer than asked for where heads are very many."""

    def __init__(self, inputs: Inputs, settings: ProbeSettings, n_heads: int) -> None:
        self._inputs, self._longest = inputs, settings.longest_example
        count = min(settings.examples, max(1, _ENTRIES // (n_heads * self._longest**2)))
        self._places = {int(one) for one in example_places(inputs, count, settings.longest_example)}
        self._tokens: dict[int, tuple[str, ...]] = {}
        self._layers: dict[int, list[tuple[Any, IntArray, FloatArray]]] = {}

    def add(self, layer: int, batch: InputBatch, attention: FloatArray, chosen: Selection) -> None:
        """Keep what belongs to chosen inputs: attention (n_inputs, n_heads, n_tokens, n_tokens) and what its queries select."""
        for row, place in enumerate(batch.index.tolist()):
            if place not in self._places:
                continue
            tokens = batch.tokens[row]
            rows = self._rows(len(tokens))
            self._tokens[place] = tokens
            self._layers.setdefault(place, []).append(
                (
                    attention[row, :, :rows, : len(tokens)].astype(np.float32),
                    chosen.sole[row, :, :rows],
                    chosen.margin[row, :, :rows].copy(),
                )
            )

    def finished(self) -> tuple[Example, ...]:
        """The examples, in the order of the inputs."""
        grid = self._inputs.settings.grid if isinstance(self._inputs, ImageInputs) else None
        made = []
        for place in sorted(self._layers):
            attention, selected, margins = (np.stack(one) for one in zip(*self._layers[place], strict=True))
            alone = ~np.isfinite(margins)  # a query that sees one token, or none
            made.append(
                Example(
                    name=example_name(self._inputs, place),
                    tokens=self._tokens[place],
                    queries=np.arange(attention.shape[2]),
                    attention=attention,
                    selected=np.where(alone, -1, selected),
                    margins=np.where(alone, np.nan, margins),
                    grid=grid,
                    image=self.image(place),
                )
            )
        return tuple(made)

    def image(self, place: int) -> npt.NDArray[np.uint8] | None:
        """(height, width, channels) an image in bytes again; one that its settings do not bring back to bytes is stretched to them."""
        inputs = self._inputs
        if not isinstance(inputs, ImageInputs):
            return None
        settings = inputs.settings
        mean, std = (np.asarray(one)[:, None, None] for one in (settings.mean, settings.std))
        levels = (inputs.pixel_values[place] * std + mean) / settings.rescale
        low, high = float(levels.min()), float(levels.max())
        if low < -1.0 or high > 256.0 or high <= 1.0:
            levels = (levels - low) * (255.0 / max(high - low, 1e-12))
        return np.moveaxis(np.clip(np.rint(levels), 0, 255).astype(np.uint8), 0, -1)

    def _rows(self, n_tokens: int) -> int:
        """How many queries are kept: all of a short text, the first one of anything else."""
        return n_tokens if n_tokens <= self._longest and not isinstance(self._inputs, ImageInputs) else 1
