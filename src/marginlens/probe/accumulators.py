"""What a probe accumulates batch by batch: sums over queries, histograms of margins, example maps, and selections."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.probe.heads.preferences import Preference, PreferenceGraph, head_preferences, visible_types
from marginlens.probe.heads.selection import Selection
from marginlens.probe.heads.sparsity import entropy, negligible_share, relative_sparsity, soft_sparsity, top_probability
from marginlens.probe.models.adapters.base import LayerKind
from marginlens.probe.models.inputs import InputBatch, Inputs
from marginlens.probe.result import Example, MarginCounts, ProbeSettings, TokenShare
from marginlens.typing import BoolArray, FloatArray, IntArray

_MAX_EXAMPLE_ENTRIES = 2_000_000  # of all maps together, so that the page of a model with very many heads stays small
MIN_SINK_EXCESS = 0.01  # of all attention, beyond what a token would have if all that is seen had the same
_MAX_PAIRS = 60_000  # of a query and a token that it sees, over all inputs whose selections are recorded,
_MIN_INPUTS = (
    3  # unless fewer inputs than this would be left: they may have twice as many, such as images of 197 tokens
)


class MeasureSums:
    """Sums over all queries so far, from which the measures of every head are made: their size does not grow with the inputs."""

    _MAPS = ("nnz", "relative_nnz", "entropy", "top_probability")
    _SHARES = ("decisive_share", "self_share", "first_share", "last_share", "tied_share", "negligible_share")
    _SINK = "sink_share"

    def __init__(self, n_layers: int, n_heads: int) -> None:
        names = (*self._MAPS, *self._SHARES, self._SINK)
        self.sums = {name: np.full((n_layers, n_heads), np.nan) for name in names}
        self.first = {name: np.full((n_layers, n_heads), np.nan) for name in self._MAPS}
        self.margins = MarginCounts.empty(n_layers, n_heads)
        self.n_queries, self.n_first, self.n_visible = np.zeros((3, n_layers), dtype=np.int64)

    def add(
        self,
        layer: int,
        attention: FloatArray,
        visible: BoolArray,
        selection: Selection,
        kind: LayerKind = LayerKind.SELF,
    ) -> None:
        """Add the queries of one batch that see at least two tokens.

        Args:
            attention: (n_inputs, n_heads, n_queries, n_tokens), of a layer that may have fewer heads than others: these have no numbers.
            visible: (n_inputs, n_queries, n_tokens). selection: of every query, (n_inputs, n_heads, n_queries).
            kind: in cross-attention no query can select itself, and in windows none is that of the first token.
        """
        heads = slice(0, attention.shape[1])
        if not self.n_queries[layer]:
            for sums in (*self.sums.values(), *self.first.values()):
                sums[layer, heads] = 0.0
        n_visible = visible.sum(axis=-1)  # (n_inputs, n_tokens)
        counted = n_visible >= 2
        query = np.nonzero(counted)[1]  # (n_queries,) its position
        maps = np.moveaxis(np.where(visible[:, None], attention, 0.0), 1, 0)[
            :, counted
        ]  # (n_heads, n_queries, n_tokens)
        top = top_probability(maps)
        values = (soft_sparsity(maps), relative_sparsity(maps, n_visible[counted]), entropy(maps), top)
        for name, numbers in zip(self._MAPS, values, strict=True):
            self.sums[name][layer, heads] += numbers.sum(axis=1)
            self.first[name][layer, heads] += numbers[:, query == 0].sum(axis=1)
        selected = np.moveaxis(selection.unique, 1, 0)[:, counted]  # (n_heads, n_queries)
        sees = visible[counted]
        first, last = np.argmax(sees, axis=-1), sees.shape[-1] - 1 - np.argmax(sees[:, ::-1], axis=-1)
        itself = selected == query if kind is not LayerKind.CROSS else np.full(selected.shape, np.nan)
        negligible = negligible_share(maps, n_visible[counted])
        hits = (top > 0.5, itself, selected == first, selected == last, selected < 0, negligible)
        for name, hit in zip(self._SHARES, hits, strict=True):
            self.sums[name][layer, heads] += hit.sum(axis=1)
        attended = np.where((visible & counted[..., None])[:, None], attention, 0.0)
        most = attended.sum(axis=2).max(axis=-1).sum(axis=0)  # of the most attended token of each input
        self.sums[self._SINK][layer, heads] += most
        self.margins.add(layer, np.moveaxis(selection.margin, 1, 0)[:, counted])
        self.n_queries[layer] += len(query)
        self.n_first[layer] += 0 if kind is LayerKind.WINDOW else int((query == 0).sum())
        self.n_visible[layer] += int(n_visible[counted].sum())

    @property
    def is_finite(self) -> BoolArray:
        """(n_layers, n_heads) whether all attention that was added is finite; maps of zeros stand for what is not."""
        return np.isfinite(self.sums["nnz"])

    def measures(self) -> dict[str, FloatArray]:
        """The averages (n_layers, n_heads) by name."""
        for name in (*self._SHARES, self._SINK):  # a head without finite attention has no selections either
            self.sums[name][~self.is_finite] = np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: total / self.n_queries[:, None] for name, total in self.sums.items()}
            first = {f"first_{name}": total / self.n_first[:, None] for name, total in self.first.items()}
        margins = {"margin_median": self.margins.quantile(0.5), "margin_low": self.margins.quantile(0.05)}
        return {**means, **first, **margins}


class ExampleMaps:
    """Attention, selections and margins of a few inputs, layer after layer; fewer than asked for where heads are very many."""

    def __init__(self, inputs: Inputs, settings: ProbeSettings, n_heads: int) -> None:
        self._inputs, self._longest = inputs, settings.longest_example
        count = min(settings.examples, max(1, _MAX_EXAMPLE_ENTRIES // (n_heads * self._longest**2)))
        self._layers: dict[int, list[tuple[Any, IntArray, FloatArray]]] = {k: [] for k in self._chosen(count)}
        self._tokens: dict[int, tuple[str, ...]] = {}

    def _chosen(self, count: int) -> list[int]:
        """`count` of the inputs with at most the longest example's tokens, spread evenly; the shortest where none has; the first images."""
        lengths = self._inputs.lengths
        if self._inputs.grid is not None:
            return list(range(min(count, len(lengths))))
        short = np.flatnonzero((lengths <= self._longest) & (lengths > 1))
        if not len(short):
            return sorted(np.argsort(lengths, kind="stable")[:count].tolist())
        spread = np.linspace(0, len(short) - 1, min(count, len(short))).round().astype(int)
        return [int(place) for place in short[np.unique(spread)]]

    def add(self, layer: int, batch: InputBatch, attention: FloatArray, selection: Selection) -> None:
        """Record what belongs to chosen inputs: attention (n_inputs, n_heads, n_tokens, n_tokens) and what its queries select."""
        for row, place in enumerate(batch.index.tolist()):
            if place in self._layers:
                tokens = self._tokens[place] = batch.tokens[row]
                is_short = len(tokens) <= self._longest and self._inputs.grid is None
                n_queries = len(tokens) if is_short else 1
                maps = attention[row, :, :n_queries, : len(tokens)].astype(np.float32)
                margins = selection.margin[row, :, :n_queries].copy()
                self._layers[place].append((maps, selection.unique[row, :, :n_queries], margins))

    def examples(self) -> tuple[Example, ...]:
        """The examples, in the order of the inputs."""
        made = []
        for place, layers in self._layers.items():
            attention, selected, margins = (np.stack(part) for part in zip(*layers, strict=True))
            no_choice = ~np.isfinite(margins)  # a query that sees one token, or none
            made.append(
                Example(
                    name=self._inputs.title(place),
                    tokens=self._tokens[place],
                    queries=np.arange(attention.shape[2]),
                    attention=attention,
                    selected=np.where(no_choice, -1, selected),
                    margins=np.where(no_choice, np.nan, margins),
                    grid=self._inputs.grid,
                    image=self._inputs.image(place),
                )
            )
        return tuple(made)


class SinkRecorder:
    """The attention that each token gets, by its name and as the first of its input, summed over queries and heads."""

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        types = np.unique(np.concatenate([np.asarray(ids, dtype=np.int64) for ids in inputs.ids]))
        self._types = types
        self._attention, self._n_seen = np.zeros((2, len(types)))
        self._first = np.zeros(2)  # attention to the first token of an input, and how often it is seen

    def add(self, batch: InputBatch, attention: FloatArray, visible: BoolArray) -> None:
        """Add maps (n_inputs, n_heads, n_tokens, n_tokens) of one layer, zero in heads that are not finite."""
        counted = visible & (visible.sum(axis=-1, keepdims=True) >= 2)
        received = np.einsum("bhqt,bqt->bt", attention, counted)
        n_seen = attention.shape[1] * counted.sum(axis=1)
        for row, place in enumerate(batch.index.tolist()):
            ids = np.searchsorted(self._types, np.asarray(self._inputs.ids[place]))
            np.add.at(self._attention, ids, received[row, : len(ids)])
            np.add.at(self._n_seen, ids, n_seen[row, : len(ids)])
        self._first += received[:, 0].sum(), n_seen[:, 0].sum()

    def sinks(self, n_rows: int = 3) -> tuple[TokenShare, ...]:
        """The tokens with most attention beyond what they would have if all that is seen had the same."""
        attention, n_seen = self._attention.sum(), self._n_seen.sum()
        if not attention > 0.0:
            return ()
        names = self._inputs.names()
        rows = [
            TokenShare(repr(names[int(token)]), float(mass / attention), float(seen / n_seen))
            for token, mass, seen in zip(self._types, self._attention, self._n_seen, strict=True)
        ]
        rows.append(TokenShare("the first token", float(self._first[0] / attention), float(self._first[1] / n_seen)))
        ordered = sorted(rows, key=lambda row: row.expected - row.share)[:n_rows]
        return tuple(row for row in ordered if row.share - row.expected >= MIN_SINK_EXCESS)


class SelectionRecorder:
    """The selections of the first inputs, as many as stay below a fixed number of pairs of query and token, which is larger for few."""

    def __init__(self, inputs: Inputs, n_layers: int, n_heads: int) -> None:
        pairs = np.cumsum(inputs.lengths**2)
        few, more = (int(np.searchsorted(pairs, most, side="right")) for most in (_MAX_PAIRS, 2 * _MAX_PAIRS))
        self.count = max(few, min(more, _MIN_INPUTS))
        self._inputs, self._shape = inputs.subset(range(self.count)), (n_layers, n_heads)
        lengths = self._inputs.lengths.tolist()
        self._selected = [np.zeros((n_layers, n_heads, n), dtype=np.int32) for n in lengths]
        self._visible = [np.zeros((n_layers, n, n), dtype=bool) for n in lengths]

    def add(self, layer: int, batch: InputBatch, visible: BoolArray, selection: Selection) -> None:
        """Record what the queries of the first inputs select, none where tied, and see, which may differ by layer."""
        for row, place in enumerate(batch.index.tolist()):
            if place < self.count:
                n_tokens = len(batch.tokens[row])
                self._selected[place][layer] = selection.unique[row, :, :n_tokens]
                self._visible[place][layer] = visible[row, :n_tokens, :n_tokens]

    def preferences(
        self, n_rows: int, is_finite: BoolArray
    ) -> tuple[
        dict[tuple[int, int], tuple[Preference, ...]], dict[tuple[int, int], PreferenceGraph], dict[str, FloatArray]
    ]:
        """The strongest preferences of every finite head, its graph, and the shares (n_layers, n_heads) contested or in no cycle."""
        contested, strict = np.full((2, *self._shape), np.nan)
        rows, graphs = {}, {}
        names = self._inputs.names() if n_rows and self.count >= 2 else {}
        ids = [np.asarray(tokens, dtype=np.int64) for tokens in self._inputs.ids]
        for layer in range(self._shape[0]) if names else ():
            if layer == 0 or any((masks[layer] != masks[layer - 1]).any() for masks in self._visible):
                types = visible_types(ids, [masks[layer] for masks in self._visible])
            for head in np.flatnonzero(is_finite[layer]).tolist():
                found = head_preferences(types, [selected[layer, head] for selected in self._selected])
                contested[layer, head], strict[layer, head] = found.contested_share, found.strict_share
                rows[layer, head] = found.strongest(n_rows, names)
                graph = found.strongest_graph(names)
                if graph is not None:
                    graphs[layer, head] = graph
        return rows, graphs, {"contested_share": contested, "strict_share": strict}
