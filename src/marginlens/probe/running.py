"""Sums over all queries seen so far, from which the measures of every head are made: their size does not grow with the inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import BoolArray, FloatArray
from marginlens.probe.heads.selection import Selection
from marginlens.probe.heads.sparsity import entropy, relative_sparsity, soft_sparsity, top_probability
from marginlens.probe.margins import MarginCounts
from marginlens.probe.measures import HeadMeasures

_MAPS = ("nnz", "relative_nnz", "entropy", "top_probability")
_SHARES = ("decisive_share", "self_share", "first_share", "last_share", "tied_share")
_LOW = 0.05  # the quantile of margins beside the median


class RunningMeasures:
    """What has been added up of `n_layers` layers of `n_heads` heads."""

    def __init__(self, n_layers: int, n_heads: int) -> None:
        self.sums = {name: np.zeros((n_layers, n_heads)) for name in (*_MAPS, *_SHARES)}
        self.first = {name: np.zeros((n_layers, n_heads)) for name in _MAPS}
        self.margins = MarginCounts.empty(n_layers, n_heads)
        self.n_queries, self.n_first = np.zeros(n_layers, dtype=np.int64), np.zeros(n_layers, dtype=np.int64)
        self.n_seen = np.zeros(n_layers, dtype=np.int64)

    def add(self, layer: int, attention: FloatArray, visible: BoolArray, chosen: Selection) -> None:
        """Add the queries of one batch that see at least two tokens.

        Args:
            attention: (n_inputs, n_heads, n_tokens, n_tokens). visible: (n_inputs, n_tokens, n_tokens).
            chosen: what every query selects, (n_inputs, n_heads, n_tokens).
        """
        n_visible = visible.sum(axis=-1)  # (n_inputs, n_tokens)
        asked = n_visible >= 2
        maps = np.moveaxis(np.where(visible[:, None], attention, 0.0), 1, 0)[:, asked]  # (n_heads, n_queries, n_tokens)
        found = (soft_sparsity(maps), relative_sparsity(maps, n_visible[asked]), entropy(maps), top_probability(maps))
        first = np.nonzero(asked)[1] == 0
        for name, values in zip(_MAPS, found, strict=True):
            self.sums[name][layer] += values.sum(axis=1)
            self.first[name][layer] += values[:, first].sum(axis=1)
        selected = np.moveaxis(chosen.sole, 1, 0)[:, asked]  # (n_heads, n_queries)
        for name, hits in self._hits(selected, found[-1], visible[asked], np.nonzero(asked)[1]).items():
            self.sums[name][layer] += hits.sum(axis=1)
        self.margins.add(layer, np.moveaxis(chosen.margin, 1, 0)[:, asked])
        self.n_queries[layer] += int(asked.sum())
        self.n_first[layer] += int(first.sum())
        self.n_seen[layer] += int(n_visible[asked].sum())

    @staticmethod
    def _hits(selected: Any, top: FloatArray, visible: BoolArray, own: Any) -> dict[str, Any]:
        """Which queries select decisively, themselves, the first and the last token that they see, or none, being tied."""
        n_tokens = visible.shape[-1]
        first = np.argmax(visible, axis=-1)
        last = n_tokens - 1 - np.argmax(visible[:, ::-1], axis=-1)
        hits = (top > 0.5, selected == own, selected == first, selected == last, selected < 0)
        return dict(zip(_SHARES, hits, strict=True))

    @property
    def measured(self) -> BoolArray:
        """(n_layers, n_heads) whether all attention that was added is finite; maps of zeros stand for what is not."""
        return np.isfinite(self.sums["nnz"])

    def finished(self, others: dict[str, FloatArray]) -> HeadMeasures:
        """The averages, with the measures that are no averages over queries beside them."""
        for name in _SHARES:  # a head without finite attention has no selections either
            self.sums[name][~self.measured] = np.nan
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: total / self.n_queries[:, None] for name, total in self.sums.items()}
            first = {f"first_{name}": total / self.n_first[:, None] for name, total in self.first.items()}
        margins = {"margin_median": self.margins.quantile(0.5), "margin_low": self.margins.quantile(_LOW)}
        return HeadMeasures(**means, **first, **margins, **others)
