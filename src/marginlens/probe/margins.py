"""How large selection margins are, counted in fixed logarithmic bins, so that any number of queries takes the same room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray

_LOW, _HIGH, _PER_DECADE = -12, 8, 400  # decades of margins; a bin is 0.6% wide
_FEW = 0.002  # share of all margins that a histogram's first bar may gather
_BINS = (_HIGH - _LOW) * _PER_DECADE


@dataclass(frozen=True, repr=False, eq=False)
class MarginCounts:
    """Counts of shape (…, n_bins) of margins of at least zero; the first bin also holds all below 1e-12, the last all above 1e8."""

    counts: IntArray

    @classmethod
    def empty(cls, *shape: int) -> MarginCounts:
        """No margins yet, for each index of `shape`."""
        return cls(np.zeros((*shape, _BINS), dtype=np.int64))

    def add(self, index: int, margins: FloatArray) -> None:
        """Count margins (n_heads, n) for the heads of one layer; what is not finite is left out."""
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.floor((np.log10(margins) - _LOW) * _PER_DECADE)
        place = np.clip(np.nan_to_num(place, nan=0.0, neginf=0.0), 0, _BINS - 1).astype(np.int64)
        place += _BINS * np.arange(len(margins))[:, None]
        found = np.bincount(place[np.isfinite(margins)], minlength=len(margins) * _BINS)
        self.counts[index] += found.reshape(len(margins), _BINS)

    def quantile(self, share: float) -> FloatArray:
        """(…) the margin that this share of the queries does not exceed, to 0.3%; nan where none was counted, 0 below 1e-12."""
        total = self.counts.sum(axis=-1)
        reached = np.cumsum(self.counts, axis=-1) >= np.maximum(share * total, 0.5)[..., None]
        place = np.argmax(reached, axis=-1)
        value = 10.0 ** (_LOW + (place + 0.5) / _PER_DECADE)
        return np.where(total > 0, np.where(place == 0, 0.0, value), np.nan)

    def histogram(self, per_decade: int = 10) -> tuple[FloatArray, IntArray]:
        """Edges (n_bars + 1,) and counts (…, n_bars) of wider bars; the first bar also holds the few smallest margins of all, and zeros."""
        wide = _PER_DECADE // per_decade
        bars = self.counts.reshape(*self.counts.shape[:-1], -1, wide).sum(axis=-1)
        apart = bars.reshape(-1, bars.shape[-1]).sum(axis=0)
        apart[0] -= self.counts[..., 0].sum()  # zeros, on no logarithmic scale
        reached = np.cumsum(apart)
        if reached[-1] == 0:
            return 10.0 ** (_LOW + np.arange(2) / per_decade), bars[..., :1]
        first, last = (int(np.argmax(reached >= share * reached[-1])) for share in (_FEW, 1.0))
        shown = bars[..., first : last + 1].copy()
        shown[..., 0] += bars[..., :first].sum(axis=-1)
        return 10.0 ** (_LOW + np.arange(first, last + 2) / per_decade), shown

    def __repr__(self) -> str:
        return f"MarginCounts({int(self.counts.sum())} margins)"
