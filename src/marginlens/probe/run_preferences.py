"""What every head of a model prefers over what, from the selections of the first inputs."""

from __future__ import annotations

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray, IntArray
from marginlens.probe.heads.preference_graph import ROWS, NamedGraph, strongest_graph
from marginlens.probe.heads.preferences import head_preferences, visible_types
from marginlens.probe.heads.selection import Selection
from marginlens.probe.models.image_inputs import ImageInputs
from marginlens.probe.models.inputs import Inputs
from marginlens.probe.models.reading import InputBatch
from marginlens.probe.result import NamedPreference

_PAIRS = 60_000  # of a query and a token that it sees, over all inputs whose selections are kept
_FEW, _MORE = 3, 2 * _PAIRS  # so many inputs may have more, such as images of 197 tokens

Preferences = dict[tuple[int, int], tuple[NamedPreference, ...]]
Graphs = dict[tuple[int, int], NamedGraph]


class KeptSelections:
    """The selections of the first inputs, as many as stay below a fixed number of pairs of query and token, which is larger for few."""

    def __init__(self, inputs: Inputs, n_layers: int, n_heads: int) -> None:
        lengths = np.array([_length(inputs, place) for place in range(len(inputs))])
        within = [int(np.searchsorted(np.cumsum(lengths**2), most, side="right")) for most in (_PAIRS, _MORE)]
        self.count = max(within[0], min(within[1], _FEW))
        self._inputs, self._shape = inputs, (n_layers, n_heads)
        self._selected = [np.zeros((n_layers, n_heads, n), dtype=np.int32) for n in lengths[: self.count].tolist()]
        self._visible = [np.zeros((n_layers, n, n), dtype=bool) for n in lengths[: self.count].tolist()]

    def add(self, layer: int, batch: InputBatch, visible: BoolArray, chosen: Selection) -> None:
        """Keep what belongs to the first inputs: what their queries select, none where tied, and see, which may differ by layer."""
        for row, place in enumerate(batch.index.tolist()):
            if place < self.count:
                n_tokens = len(batch.tokens[row])
                self._selected[place][layer] = chosen.sole[row, :, :n_tokens]
                self._visible[place][layer] = visible[row, :n_tokens, :n_tokens]

    def finished(self, n_rows: int, measured: BoolArray) -> tuple[Preferences, Graphs, dict[str, FloatArray]]:
        """The strongest preferences of every measured head, its graph, and the shares (n_layers, n_heads) contested or in no cycle."""
        shares = {name: np.full(self._shape, np.nan) for name in ("contested_share", "strict_share")}
        rows: Preferences = {}
        graphs: Graphs = {}
        if n_rows == 0 or self.count < 2:
            return rows, graphs, shares
        names = self._names()
        ids = [_ids(self._inputs, place) for place in range(self.count)]
        for layer in range(self._shape[0]):
            if layer == 0 or any((one[layer] != one[layer - 1]).any() for one in self._visible):
                seen = visible_types(ids, [one[layer] for one in self._visible])
            for head in np.flatnonzero(measured[layer]).tolist():
                found = head_preferences(seen, [one[layer, head] for one in self._selected])
                shares["contested_share"][layer, head] = found.contested_share
                shares["strict_share"][layer, head] = found.strict_share
                strongest = found.strongest(max(n_rows, ROWS))
                rows[layer, head] = tuple(
                    NamedPreference(names[one.preferred], names[one.over], one.wins, one.losses, one.met)
                    for one in strongest[:n_rows]
                )
                graph = strongest_graph(found, strongest, names)
                if graph is not None:
                    graphs[layer, head] = graph
        return rows, graphs, shares

    def _names(self) -> dict[int, str]:
        """What each token id is called."""
        if isinstance(self._inputs, ImageInputs):
            return dict(enumerate(self._inputs.settings.tokens))
        pairs = zip(self._inputs.ids[: self.count], self._inputs.tokens[: self.count], strict=True)
        return {one: name for ids, tokens in pairs for one, name in zip(ids, tokens, strict=True)}


def _length(inputs: Inputs, place: int) -> int:
    return inputs.settings.n_tokens if isinstance(inputs, ImageInputs) else len(inputs.ids[place])


def _ids(inputs: Inputs, place: int) -> IntArray:
    """The ids of an input's tokens: for an image the positions."""
    if isinstance(inputs, ImageInputs):
        return np.arange(inputs.settings.n_tokens, dtype=np.int64)
    return np.asarray(inputs.ids[place], dtype=np.int64)
