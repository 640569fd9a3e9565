"""What a probe found: numbers by layer and head, the attention of a few examples, and what each head prefers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import reject
from marginlens.probe.heads.preference_graph import NamedGraph
from marginlens.probe.margins import MarginCounts
from marginlens.probe.measures import MEASURES, HeadMeasures, MaxMarginMeasures, Measure
from marginlens.probe.settings import ProbeSettings

_DIGITS = 6  # significant, of a number in JSON: float32 models have no more


@dataclass(frozen=True, repr=False, eq=False)
class Example:
    """One input as every head saw it.

    Attributes:
        name: the text, or the place of an image in its file.
        tokens: (n_tokens) what the tokens are called.
        queries: (n_queries,) the positions whose attention is kept: all of a short input, the first of a long one.
        attention: (n_layers, n_heads, n_queries, n_tokens) probabilities; selected, margins: (n_layers, n_heads, n_queries), -1 and nan
            for a query that sees only one token, -1 and the margin, zero up to rounding, for one whose selection is tied.
        grid: rows and columns of patches where the tokens after the first are an image's.
        image: (height, width, channels) that image in bytes, at the size that the model reads.
    """

    name: str
    tokens: tuple[str, ...]
    queries: IntArray
    attention: npt.NDArray[np.float32]
    selected: IntArray
    margins: FloatArray
    grid: tuple[int, int] | None = None
    image: npt.NDArray[np.uint8] | None = None

    def __repr__(self) -> str:
        return f"Example({self.name[:40]!r}, {len(self.tokens)} tokens, {len(self.queries)} queries)"

    def told(self) -> dict[str, Any]:
        """The selections as plain values, without the maps."""
        return {
            "name": self.name,
            "tokens": list(self.tokens),
            "queries": self.queries.tolist(),
            "selected": self.selected.tolist(),
            "margins": plain(self.margins),
        }


@dataclass(frozen=True)
class NamedPreference:
    """Token `preferred` was selected over `over` by `wins` queries, the reverse by `losses`, of `met` queries that saw both."""

    preferred: str
    over: str
    wins: int
    losses: int
    met: int


@dataclass(frozen=True, repr=False, eq=False)
class ProbeResult:
    """What a probe found in a model's heads, on one set of inputs; layers and heads are counted from 0.

    Attributes:
        model, family: what was probed, and the adapter that read it.
        n_inputs, n_queries, mean_tokens: the inputs, their real tokens, and how many tokens a query saw on average, over all layers.
        heads: the measures, arrays of shape (n_layers, n_heads). max_margin: those of the max-margin part, None where it was not asked.
        margins: how often each head selected with which margin.
        w_offset: with rotary positions, the offset at which W, its norms and the max-margin part hold; None where W is free of positions.
        examples: a few inputs with their maps and selections.
        preferences: (layer, head) → what the head prefers over what, the best supported first.
        graphs: (layer, head) → the priority graph among the tokens of the strongest preferences.
        notes: sentences on what could not be measured, each said once.
    """

    model: str
    family: str
    n_inputs: int
    n_queries: int
    mean_tokens: float
    heads: HeadMeasures
    margins: MarginCounts
    settings: ProbeSettings
    w_offset: int | None = None
    max_margin: MaxMarginMeasures | None = None
    examples: tuple[Example, ...] = ()
    preferences: Mapping[tuple[int, int], tuple[NamedPreference, ...]] = field(default_factory=dict)
    graphs: Mapping[tuple[int, int], NamedGraph] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = float("nan")

    @property
    def n_layers(self) -> int:
        """How many attention layers there are."""
        return int(self.heads.nnz.shape[0])

    @property
    def n_heads(self) -> int:
        """Query heads of each layer."""
        return int(self.heads.nnz.shape[1])

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The measures that some head has a number for, in the order in which they are shown."""
        return tuple(one for one in MEASURES if one.name in self._arrays and one.tells(self._arrays[one.name]))

    def measure(self, name: str) -> FloatArray:
        """(n_layers, n_heads) the measure of that name."""
        if name not in self._arrays:
            raise reject("name", f"one of {', '.join(self._arrays)}", repr(name))
        return self._arrays[name]

    @property
    def _arrays(self) -> dict[str, FloatArray]:
        return {**dict(self.heads), **(dict(self.max_margin) if self.max_margin is not None else {})}

    def __repr__(self) -> str:
        asked = "without" if self.max_margin is None else "with"
        size = f"{self.n_layers} layers of {self.n_heads} heads on {self.n_inputs} inputs"
        return f"ProbeResult({self.model}: {size}, mean nnz/T {np.nanmean(self.heads.relative_nnz):.3f}, {asked} max-margin)"

    def to_json(self) -> dict[str, Any]:
        """All but attention maps and counts of margins as plain values: lists over layers and heads, None where there is no number."""
        return {
            "model": self.model,
            "family": self.family,
            "layers": self.n_layers,
            "heads": self.n_heads,
            "inputs": self.n_inputs,
            "queries": self.n_queries,
            "mean_tokens": self.mean_tokens,
            "seconds": plain(np.asarray(self.seconds)),
            "settings": self.settings.told(),
            "w_offset": self.w_offset,
            "notes": list(self.notes),
            "measures": {name: plain(array) for name, array in dict(self.heads).items()},
            "max_margin": None if self.max_margin is None else {name: plain(one) for name, one in self.max_margin},
            "examples": [one.told() for one in self.examples],
            "preferences": [
                {"layer": layer, "head": head, **vars(one)}
                for (layer, head), rows in sorted(self.preferences.items())
                for one in rows
            ],
            "graphs": [
                {"layer": layer, "head": head, **one.told()} for (layer, head), one in sorted(self.graphs.items())
            ],
        }


def plain(array: Any) -> Any:
    """Numbers as nested lists with six significant digits, None where they are not finite."""
    if isinstance(array, list):
        return [plain(one) for one in array]
    if isinstance(array, np.ndarray):
        return plain(array.tolist())
    return float(f"{array:.{_DIGITS}g}") if np.isfinite(array) else None
