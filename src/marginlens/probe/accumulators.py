"""Accumulators of a probe, filled batch by batch: sums over queries, histograms of margins, example maps, and selections."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens.probe.heads.plane import QueryPlane
from marginlens.probe.heads.preferences import Preference, PreferenceGraph, head_preferences, visible_types
from marginlens.probe.measures import BESIDE, LEARNED_SINK, NEGLIGIBLE
from marginlens.probe.models.adapters.base import Adapter, LayerKind, LayerReading
from marginlens.probe.models.adapters.encoder_decoder import start_token
from marginlens.probe.models.inputs import ImageInputs, InputBatch, Inputs, TextInputs
from marginlens.probe.result import Example, MarginCounts, ProbeSettings, TokenShare, evenly
from marginlens.typing import BoolArray, FloatArray, IntArray

_MAX_EXAMPLE_ENTRIES = 2_000_000  # of all maps together, so that the page of a model with very many heads stays small
MIN_SINK_EXCESS = 0.01  # of all attention, beyond what a token would have if all that is seen had the same
SUMMATION_RTOL = 1e-9  # attention summed by tokens or by inputs: float64 sums in two orders
_MAX_PAIRS = 60_000  # of a query and a token that it sees, over all inputs whose selections are recorded,
# unless fewer inputs than this would be left: they may have twice as many, such as images of 197 tokens
_MIN_INPUTS = 3
_OFFSETS = {"previous_share": -1, "next_share": 1}
# The shares that have a counterpart among the tokens that are no sinks, by its name.
_BESIDE = {f"{kind}_share": measure for kind, measure in BESIDE.items()}


class LayerNumbers:
    """The statistics of one layer on one batch as NumPy arrays: inputs, heads, queries.

    Attributes:
        counted: (n_inputs, n_queries) the queries that see at least two tokens; `n_visible` is the number of tokens that a
            query sees.

        unique: (n_inputs, n_heads, n_queries) the selected token, -1 in a tie.

        margin: (n_inputs, n_heads, n_queries) the margin of the selected token.

        beside: (n_inputs, n_heads, n_queries) the token selected among those that are no sinks, -1 in a tie; None without
            `names`.

        chooses_beside: (n_inputs, n_heads, n_queries) the queries that count and see at least two such tokens; None without
            `names`.

        received: (n_inputs, n_heads, n_tokens) the attention that tokens receive from the queries that count.

        first: (n_inputs,) the first token that is not padding.
    """

    def __init__(
        self, reading: LayerReading, tolerances: Sequence[float] = (), names: TokenNames | None = None
    ) -> None:
        left_out = None if names is None else reading.real.new_tensor(names.is_sink)
        self.reading, self.statistics = reading, reading.statistics(tolerances, left_out)
        found = self.statistics
        n_visible = found.n_visible.amax(dim=1)  # the same in all heads
        counted = n_visible >= 2
        self.n_visible, self.counted = n_visible.cpu().numpy(), counted.cpu().numpy()
        self.unique = found.selected.masked_fill(found.tied, -1).cpu().numpy()
        of_counted = found.log_sum_exp.masked_fill(~counted[:, None], np.inf)
        self.received = reading.received(of_counted).cpu().double().numpy()
        is_finite = ~(found.entropy.isnan() & (found.n_visible > 0)).any(dim=2).any(dim=0).cpu().numpy()
        self.margin = found.margin.cpu().double().numpy()
        for values, missing in ((self.unique, -1), (self.received, 0.0), (self.margin, np.nan)):
            values[:, ~is_finite] = missing  # of a head that is not finite anywhere in the batch
        self.beside: IntArray | None = None
        self.chooses_beside: BoolArray | None = None
        if found.selected_beside is not None and found.margin_beside is not None:
            is_tied = found.margin_beside <= found.rounding
            self.beside = found.selected_beside.masked_fill(is_tied, -1).cpu().numpy()
            self.chooses_beside = (found.margin_beside.isfinite() & counted[:, None]).cpu().numpy()
        self.n_seen = reading.n_seen(counted).cpu().numpy()  # (n_inputs, n_tokens) by queries that count
        self.first = np.argmax(reading.n_seen(n_visible > 0).cpu().numpy() > 0, axis=-1)


class MeasureSums:
    """Sums over all queries so far, which give the measures of every head; their size does not grow with the inputs."""

    _MAPS = ("nnz", "relative_nnz", "entropy", "top_probability")  # which are also taken of the first query alone

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self._shape = (n_layers, n_heads)
        self.sums: dict[str, FloatArray] = {}  # name → (n_layers, n_heads)
        self.margins = MarginCounts.empty(n_layers, n_heads)
        self.n_queries, self.n_first, self.n_visible = np.zeros((3, n_layers), dtype=np.int64)
        # Not all queries count: some do not see the neighbour, or not two tokens beside the sinks.
        self.n_asked = {name: np.zeros(self._shape, dtype=np.int64) for name in (*_OFFSETS, *_BESIDE.values())}

    def add(self, measured: LayerNumbers, names: TokenNames | None = None) -> None:
        """Add the queries of one batch that see at least two tokens.

        Args:
            measured: the numbers of a layer. A layer may have fewer heads than others; missing heads have no numbers. In
                cross-attention no query can select itself, and windows of an image have no first token. With a learned sink,
                the number of attended tokens is computed without the sink.

            names: the tokens' names, if the layer attends from a text to itself. Without them it is unknown which tokens are
                neighbours, equal or separators.
        """
        reading, kind, layer = measured.reading, measured.reading.kind, measured.reading.layer
        found, selected, first = measured.statistics, measured.unique, measured.first[:, None, None]
        counted, n_visible = measured.counted[:, None], measured.n_visible[:, None]  # (n_inputs, 1, n_queries)
        query = np.arange(selected.shape[2])
        unknown: Any = np.full(selected.shape, np.nan)
        same, separator = unknown, unknown
        if names is not None:
            same = names.same(selected)
            separator = np.take_along_axis(names.is_separator[:, None], np.maximum(selected, 0), axis=2)
            separator = separator & (selected >= 0) & (selected != first)
        by_query = {name: values.cpu().double().numpy() for name, values in found.by_measure.items()}
        shares: dict[str, Any] = {
            "decisive_share": by_query["decisive_share"],
            "self_share": selected == query if kind is not LayerKind.CROSS else unknown,
            "first_share": selected == first if kind is not LayerKind.WINDOW else unknown,  # a window may hide it
            "same_share": same,
            "separator_share": separator,
            "tied_share": selected < 0,
        }
        left_out = found.n_negligible.cpu().double().numpy() / np.maximum(n_visible, 1)
        shares |= dict(zip(NEGLIGIBLE.values(), left_out, strict=True))
        sees = {offset: reading.sees_beside(offset).cpu().numpy()[:, None] & counted for offset in _OFFSETS.values()}
        asked = {name: sees[offset] for name, offset in _OFFSETS.items()}
        shares |= {
            name: (selected == query + offset) & sees[offset] if names is not None else unknown
            for name, offset in _OFFSETS.items()
        }
        shares |= dict.fromkeys(_BESIDE.values(), unknown)
        beside, chooses = measured.beside, measured.chooses_beside
        if names is not None and beside is not None and chooses is not None:
            is_word = ~names.is_sink[:, None]
            neighbours = {name: np.clip(query + offset, 0, len(query) - 1) for name, offset in _OFFSETS.items()}
            asked |= {
                _BESIDE[name]: sees[_OFFSETS[name]] & is_word[..., at] & chooses for name, at in neighbours.items()
            }
            asked[_BESIDE["same_share"]] = is_word & chooses
            hits = {name: beside == at for name, at in neighbours.items()} | {"same_share": names.same(beside)}
            shares |= {_BESIDE[name]: hit & asked[_BESIDE[name]] for name, hit in hits.items()}
        for name, queries in asked.items():
            total = queries.sum(axis=(0, 2))  # of every head of the layer, or once for all of them
            self.n_asked[name][layer, : len(total) if len(total) > 1 else None] += total
        maps = {name: by_query[name] for name in self._MAPS}
        totals = {name: np.where(counted, values, 0.0).sum(axis=(0, 2)) for name, values in {**maps, **shares}.items()}
        totals["sink_share"] = measured.received.max(axis=-1).sum(axis=0)  # of the most attended token of each input
        if reading.rule.sinks is not None:
            totals[LEARNED_SINK] = np.where(counted, by_query[LEARNED_SINK], 0.0).sum(axis=(0, 2))
        for name, values in maps.items():
            totals[f"first_{name}"] = np.where(counted, values, 0.0)[:, :, 0].sum(axis=0)
        for name, total in totals.items():
            sums = self.sums.setdefault(name, np.full(self._shape, np.nan))
            heads = slice(0, len(total))
            sums[layer, heads] = total + (sums[layer, heads] if self.n_queries[layer] else 0.0)
        self.margins.add(layer, np.moveaxis(measured.margin, 1, 0)[:, measured.counted])
        self.n_queries[layer] += int(counted.sum())
        self.n_first[layer] += 0 if kind is LayerKind.WINDOW else int(measured.counted[:, 0].sum())
        self.n_visible[layer] += int(n_visible[counted].sum())

    @property
    def is_finite(self) -> BoolArray:
        """The heads with only finite attention so far, (n_layers, n_heads) booleans; attention that is not finite was added as zeros."""
        return np.isfinite(self.sums.get("nnz", np.full(self._shape, np.nan)))

    def measures(self) -> dict[str, FloatArray]:
        """Return the averages (n_layers, n_heads) by name; a head without finite attention has no selections either."""
        counts = {f"first_{name}": self.n_first[:, None] for name in self._MAPS} | self.n_asked
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {
                name: np.where(self.is_finite, total / counts.get(name, self.n_queries[:, None]), np.nan)
                for name, total in self.sums.items()
            }
        return {**means, "margin_median": self.margins.quantile(0.5), "margin_low": self.margins.quantile(0.05)}


class TokenNames(NamedTuple):
    """The ids (n_inputs, n_tokens) of the tokens of a batch, -1 if there is none, and whether each is a separator."""

    ids: IntArray
    is_separator: BoolArray

    @property
    def is_sink(self) -> BoolArray:
        """Whether each token is one that heads select when nothing else matters: the first of its input, or a separator."""
        return self.is_separator | (np.arange(self.ids.shape[1]) == 0)

    def same(self, selected: IntArray) -> BoolArray:
        """Return whether queries select a token of their own name, for selections (n_inputs, n_heads, n_queries), -1 for none."""
        ids = self.ids[:, None]
        return np.asarray((np.take_along_axis(ids, np.maximum(selected, 0), axis=2) == ids) & (selected >= 0))


class LayerTokens:
    """The tokens with which, and to which, the layers of a model attend.

    They are the tokens of the input, except in a decoder that writes the input after a start token. Its queries are the tokens
    that it has read, and its self-attention goes to these; its cross-attention goes to the tokens of the input.
    """

    def __init__(self, inputs: Inputs, adapter: Adapter) -> None:
        self.inputs, self.n_layers, self.n_heads = inputs, adapter.n_layers, adapter.n_heads
        self.layer_names = adapter.layer_names
        towers = [adapter.tower(layer) for layer in range(adapter.n_layers)]
        kinds = [adapter.kind(layer) for layer in range(adapter.n_layers)]
        self._is_decoder = [tower == "decoder" for tower in towers]
        has_decoder = isinstance(inputs, TextInputs) and any(tower in ("decoder", "cross") for tower in towers)
        self.decoder = (
            inputs.behind(start_token(adapter.config)) if isinstance(inputs, TextInputs) and has_decoder else None
        )
        self.are_known = LayerKind.WINDOW not in kinds and (self.decoder is not None or not any(towers))

    def attended(self, layer: int) -> Inputs:
        """Return the inputs whose tokens a layer attends to."""
        return self.decoder if self.decoder is not None and self._is_decoder[layer] else self.inputs

    def of_batch(self, layer: int, batch: InputBatch, kind: LayerKind) -> TokenNames | None:
        """Return the tokens of a batch if a layer attends from a text to itself."""
        attended = self.attended(layer)
        if not isinstance(attended, TextInputs) or kind is not LayerKind.SELF:
            return None
        rows = [attended.ids[place] for place in batch.index.tolist()]
        ids = np.full((len(rows), max(map(len, rows))), -1)
        for row, text in zip(ids, rows, strict=True):
            row[: len(text)] = text
        return TokenNames(ids, np.isin(ids, list(attended.separators)))

    def names(self) -> dict[int, str]:
        """Return the name of each token id."""
        return {**({} if self.decoder is None else self.decoder.names()), **self.inputs.names()}


class ExampleMaps:
    """Attention, selections and margins of a few inputs, layer after layer; fewer inputs if there are very many heads."""

    def __init__(self, tokens: LayerTokens, settings: ProbeSettings) -> None:
        self._inputs, self._decoder, self._longest = tokens.inputs, tokens.decoder, settings.longest_example
        self._n_heads, self._layer_names = tokens.n_heads, tokens.layer_names
        n_maps = tokens.n_layers * tokens.n_heads
        count = min(settings.examples, max(1, _MAX_EXAMPLE_ENTRIES // (n_maps * self._longest**2)))
        self._layers: dict[int, list[tuple[Any, IntArray, FloatArray]]] = {k: [] for k in self._chosen(count)}
        self._tokens: dict[int, tuple[str, ...]] = {}
        self._planes: dict[int, dict[tuple[int, int], QueryPlane]] = {}

    def _chosen(self, count: int) -> list[int]:
        """Choose `count` of the inputs no longer than the longest example, evenly spread; the shortest if all are longer; the
        first images.
        """
        lengths = self._inputs.lengths
        if self._inputs.grid is not None:
            return list(range(min(count, len(lengths))))
        short = np.flatnonzero((lengths <= self._longest) & (lengths > 1))
        if not len(short):
            return sorted(np.argsort(lengths, kind="stable")[:count].tolist())
        return short[evenly(len(short), count)].tolist()

    def add(self, measured: LayerNumbers, batch: InputBatch) -> None:
        """Record the maps of the chosen inputs, which are made only for these, and the selections of their queries."""
        reading = measured.reading
        for row, place in enumerate(batch.index.tolist()):
            if place in self._layers:
                tokens = self._tokens[place] = batch.tokens[row]
                is_short = len(tokens) <= self._longest and self._inputs.grid is None
                n_queries = len(tokens) if is_short else 1
                shape = (self._n_heads, n_queries)  # of all heads, also those that this layer has not
                maps, selected = np.zeros((*shape, len(tokens)), dtype=np.float32), np.full(shape, -1)
                margins = np.full(shape, np.nan)
                part = reading.part(row, n_queries)
                attention = part.attention[0, :, :, : len(tokens)].detach().cpu().double().numpy()
                n_heads = len(attention)
                is_finite = np.isfinite(attention).all(axis=(1, 2))[:, None, None]
                maps[:n_heads] = np.where(is_finite, attention, 0.0)
                selected[:n_heads] = measured.unique[row, :, :n_queries]
                margins[:n_heads] = measured.margin[row, :, :n_queries]
                self._layers[place].append((maps, selected, margins))
                if is_short and reading.inputs is not None and reading.kind is LayerKind.SELF and reading.bias is None:
                    self._add_planes(place, part, np.where(np.isfinite(margins), selected, -1), margins)

    def _add_planes(self, place: int, reading: LayerReading, selected: IntArray, margins: FloatArray) -> None:
        """Add the plane of each head at one query of an input: the query with the largest margin among those that do not select
        the first token.
        """
        for head in range(reading.keys.shape[1]):
            best = selected[head].max()
            if best < 0:  # every query is tied, or sees one token
                continue
            query = int(np.argmax(np.where(selected[head] >= min(best, 1), margins[head], -np.inf)))
            parts = (reading.logits[0, head, query], reading.keys[0, head], reading.queries[0, head, query])
            plane = QueryPlane.of(query, *(values.detach().cpu().double().numpy() for values in parts))
            if plane is not None:
                self._planes.setdefault(place, {})[reading.layer, head] = plane

    def examples(self) -> tuple[Example, ...]:
        """Return the examples, in the order of the inputs."""
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
                    decoder_tokens=() if self._decoder is None else self._decoder.tokens[place],
                    layer_names=() if self._decoder is None else self._layer_names,
                    planes=self._planes.get(place, {}),
                )
            )
        return tuple(made)


class SinkRecorder:
    """The attention that each token gets from each head, by name and as the first token of its input, summed over queries."""

    def __init__(self, tokens: LayerTokens) -> None:
        self._tokens = tokens
        known = [ids for inputs in (tokens.inputs, tokens.decoder) if inputs is not None for ids in inputs.ids]
        self._types = np.unique(np.concatenate([np.asarray(ids, dtype=np.int64) for ids in known]))
        n_rows = len(self._types) + 1  # the last for the first token of an input
        self._attention = np.zeros((tokens.n_layers, tokens.n_heads, n_rows))
        self._n_seen = np.zeros((tokens.n_layers, n_rows))  # by the queries of a head
        self._n_heads = np.zeros(tokens.n_layers, dtype=np.int64)

    def add(self, measured: LayerNumbers, batch: InputBatch) -> None:
        """Add the attention that tokens receive in one layer, zero in heads that are not finite."""
        layer, n_seen = measured.reading.layer, measured.n_seen
        received, ids = np.moveaxis(measured.received, 1, 0), self._tokens.attended(layer).ids
        places = [np.searchsorted(self._types, np.asarray(ids[place])) for place in batch.index.tolist()]
        flat = np.concatenate(places)
        is_real = np.arange(n_seen.shape[1]) < np.array([len(row) for row in places])[:, None]
        for head, mass in enumerate(received):
            self._attention[layer, head, :-1] += np.bincount(flat, mass[is_real], minlength=len(self._types))
            self._attention[layer, head, -1] += mass[:, 0].sum()
        self._n_seen[layer, :-1] += np.bincount(flat, n_seen[is_real], minlength=len(self._types))
        self._n_seen[layer, -1] += n_seen[:, 0].sum()
        self._n_heads[layer] = len(received)

    def sinks(self, n_rows: int = 3) -> tuple[TokenShare, ...]:
        """Return the tokens whose attention over all heads exceeds an even share the most."""
        return self._largest(self._attention.sum(axis=(0, 1)), self._n_heads @ self._n_seen, n_rows)

    def head_sinks(self) -> dict[tuple[int, int], TokenShare]:
        """Return the first such token of every head that has one, by layer and head."""
        found = {
            (layer, head): self._largest(self._attention[layer, head], self._n_seen[layer], 1)
            for layer, head in np.ndindex(*self._attention.shape[:2])
        }
        return {at: rows[0] for at, rows in found.items() if rows}

    def _largest(self, attention: FloatArray, n_seen: FloatArray, n_rows: int) -> tuple[TokenShare, ...]:
        total = attention[:-1].sum()
        if not total > 0.0:
            return ()
        share, expected = attention / total, n_seen / n_seen[:-1].sum()
        is_first = (n_seen[:-1] == n_seen[-1]) & np.isclose(share[:-1], share[-1], rtol=SUMMATION_RTOL, atol=0.0)
        if is_first.any():  # all inputs begin with one token, whose name says more
            share[-1] = 0.0
        order = np.argsort(expected - share, kind="stable")[:n_rows]
        names = self._names
        rows = (TokenShare(names[k], float(share[k]), float(expected[k])) for k in order.tolist())
        return tuple(row for row in rows if row.share - row.expected >= MIN_SINK_EXCESS)

    @cached_property
    def _names(self) -> list[str]:
        names = self._tokens.names()
        if isinstance(self._tokens.inputs, ImageInputs):
            n_special = self._tokens.inputs.settings.n_special
            names = {token: name if token < n_special else f"patch {name}" for token, name in names.items()}
        else:
            names = {token: repr(name) for token, name in names.items()}
        return [*(names[token] for token in self._types.tolist()), "the first token"]


class SelectionRecorder:
    """The selections of the first inputs, up to a fixed number of pairs of query and token."""

    def __init__(self, tokens: LayerTokens) -> None:
        inputs, n_layers, n_heads = tokens.inputs, tokens.n_layers, tokens.n_heads
        pairs = np.cumsum(inputs.lengths**2)
        few, more = (int(np.searchsorted(pairs, most, side="right")) for most in (_MAX_PAIRS, 2 * _MAX_PAIRS))
        self.count = max(few, min(more, _MIN_INPUTS))
        self._tokens, self._inputs, self._shape = tokens, inputs.subset(range(self.count)), (n_layers, n_heads)
        lengths = self._inputs.lengths.tolist()
        self._selected = [np.zeros((n_layers, n_heads, n), dtype=np.int32) for n in lengths]
        self._visible = [np.zeros((n_layers, n, n), dtype=bool) for n in lengths]

    def add(self, measured: LayerNumbers, batch: InputBatch) -> None:
        """Record the tokens that queries of the first inputs select (none in a tie) and see, which may differ by layer."""
        layer = measured.reading.layer
        for row, place in enumerate(batch.index.tolist()):
            if place < self.count:
                n_tokens = len(batch.tokens[row])
                chosen = measured.unique[row, :, :n_tokens]
                self._selected[place][layer, : len(chosen)] = chosen
                self._visible[place][layer] = measured.reading.part(row).visible[0, :n_tokens, :n_tokens].cpu().numpy()

    def preferences(
        self, n_rows: int, is_finite: BoolArray
    ) -> tuple[
        dict[tuple[int, int], tuple[Preference, ...]], dict[tuple[int, int], PreferenceGraph], dict[str, FloatArray]
    ]:
        """Return the strongest preferences of every finite head, its graph, and the shares (n_layers, n_heads) contested or in no cycle."""
        contested, strict = np.full((2, *self._shape), np.nan)
        rows, graphs = {}, {}
        names = self._tokens.names() if n_rows and self.count >= 2 else {}
        for layer in range(self._shape[0]) if names else ():
            attended = self._tokens.attended(layer)
            is_same = layer > 0 and attended is self._tokens.attended(layer - 1)
            if not is_same or any((masks[layer] != masks[layer - 1]).any() for masks in self._visible):
                ids = [np.asarray(tokens, dtype=np.int64) for tokens in attended.ids[: self.count]]
                types = visible_types(ids, [masks[layer] for masks in self._visible])
            for head in np.flatnonzero(is_finite[layer]).tolist():
                found = head_preferences(types, [selected[layer, head] for selected in self._selected])
                contested[layer, head], strict[layer, head] = found.contested_share, found.strict_share
                rows[layer, head] = found.strongest(n_rows, names)
                graph = found.strongest_graph(names)
                if graph is not None:
                    graphs[layer, head] = graph
        return rows, graphs, {"contested_share": contested, "strict_share": strict}
