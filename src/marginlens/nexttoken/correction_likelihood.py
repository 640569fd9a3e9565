"""The likelihood of a cyclic subset, component by component, in one compiled pass over the samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray
from marginlens.nexttoken.correction_landscape import Landscape
from marginlens.runtime.compilation import njit


class Likelihood:
    """Value, slope and curvature of every component's part of the log-loss with C Eᵀ = I, by the logits of the cells.

    Args:
        landscape: the risk; every sample's label must be among its tokens.
    """

    def __init__(self, landscape: Landscape) -> None:
        risk = landscape.risk
        problem, place = risk.problem, landscape.place
        where = np.empty_like(place)
        where[place] = np.arange(len(place))
        label = np.empty(len(problem.labels), dtype=np.int64)
        label[risk.sample[risk.is_label]] = np.flatnonzero(risk.is_label)
        sizes = np.array([block.stop - block.start for block in landscape.blocks])
        self._first = np.array([block.start for block in landscape.blocks])
        self._square = np.concatenate([[0], np.cumsum(sizes**2)])
        self._sizes, self._blocks = sizes, landscape.blocks
        self._arrays: Any = (
            where[risk.cell],
            problem.log_counts,
            problem.offsets,
            label,
            problem.share,
            landscape.block_of,
        )

    def __repr__(self) -> str:
        return f"Likelihood({len(self._sizes)} components, {int(self._sizes.sum())} cells)"

    def __call__(self, cells: FloatArray) -> tuple[FloatArray, FloatArray, list[FloatArray]]:
        """Values (n_components,), slopes (n_cells,) and one Hessian per component."""
        values, slopes, squares = np.zeros(len(self._sizes)), np.zeros(len(cells)), np.zeros(self._square[-1])
        _accumulate(cells, self._arrays, (self._first, self._sizes, self._square), (values, slopes, squares))
        hessians = [
            squares[self._square[b] : self._square[b + 1]].reshape(size, size)
            for b, size in enumerate(self._sizes.tolist())
        ]
        return values, slopes, hessians


@njit(cache=True, nogil=True)
def _accumulate(cells: Any, arrays: Any, layout: Any, out: Any) -> None:
    """Add up every sample; curvatures s_a s_b enter row and diagonal alike, so that rows add up to zero."""
    entry_cell, log_counts, offsets, label, share, block_of = arrays
    first, sizes, square = layout
    values, slopes, squares = out
    longest = 0
    for i in range(len(share)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    s = np.empty(longest)
    for i in range(len(share)):
        begin, end, block = offsets[i], offsets[i + 1], block_of[i]
        top = -np.inf
        for t in range(begin, end):
            s[t - begin] = cells[entry_cell[t]] + log_counts[t]
            top = max(top, s[t - begin])
        of_label = s[label[i] - begin]
        total = 0.0
        others = 0.0
        for t in range(begin, end):
            s[t - begin] = np.exp(s[t - begin] - top)
            total += s[t - begin]
            if t != label[i]:
                others += s[t - begin]
        if of_label == top:
            values[block] += share[i] * np.log1p(others)
        else:
            values[block] += share[i] * (top - of_label + np.log(total))
        for t in range(begin, end):
            s[t - begin] /= total
            slopes[entry_cell[t]] += share[i] * (-others / total if t == label[i] else s[t - begin])
        corner, width, origin = square[block], sizes[block], first[block]
        for t in range(begin, end):
            a = entry_cell[t] - origin
            for u in range(begin, t):
                b = entry_cell[u] - origin
                both = share[i] * s[t - begin] * s[u - begin]
                squares[corner + a * width + b] -= both
                squares[corner + b * width + a] -= both
                squares[corner + a * width + a] += both
                squares[corner + b * width + b] += both
