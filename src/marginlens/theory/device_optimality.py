"""Optimality of selections whose problems are on a device; what rounding leaves open there, the CPU decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.device_tokens import DeviceTokens
from marginlens.gpu.device import to_host
from marginlens.gpu.margins import DeviceMargins
from marginlens.gpu.measures import OPTIMALITY_KINDS, UNDECIDED, SelectedTokens, measure_selections
from marginlens.papers import implements
from marginlens.result import Displayed, Tabular, drawn
from marginlens.result.drawing import draw_bars
from marginlens.svm import att_svm
from marginlens.theory.optimality import SCORE_RTOL, token_optimality
from marginlens.typing import Axes, IntArray

CONSTANTS: dict[str, Any] = {  # the last two as in core/token_optimality.h
    "SCORE_RTOL": SCORE_RTOL,
    "NEIGHBOUR_SLACK_RTOL": 1e-12,
    "SOLVER_SLACK_RTOL": 1e-9,
}


@dataclass(frozen=True, repr=False, eq=False)
class DeviceOptimality(Displayed, Tabular):
    """What selections amount to, in arrays (n,) on the device; see `TokenOptimality`.

    Attributes:
        solution: the ATT-SVM of the selections.
        score_gap: smallest γ_α - γ_t over neighbours: inf where there is none, nan where the selection is infeasible.
        kind: place in ("global", "local", "neither", "infeasible") of the first that holds.
        correlation: of p and the solution; smallest_probability: of a selected token under p. None where no p is given.
        n_on_cpu: problems that the CPU decided.

    `to_frame()` has one row per problem: problem, kind, score_gap, margin; with a p also correlation and smallest_probability.
    """

    solution: DeviceMargins
    score_gap: Any
    kind: Any
    correlation: Any
    smallest_probability: Any
    n_on_cpu: int

    def __len__(self) -> int:
        return len(self.solution)

    def __repr__(self) -> str:
        words = ", ".join(f"{count} {name}" for count, name in zip(self._counts(), OPTIMALITY_KINDS, strict=True))
        return f"DeviceOptimality({len(self)} problems: {words})"

    def _counts(self) -> IntArray:
        return np.bincount(to_host(self.kind), minlength=len(OPTIMALITY_KINDS))

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw how many selections are of each kind."""
        draw_bars(ax, OPTIMALITY_KINDS, self._counts(), "problems", ylabel="optimality of the selection")

    def _columns(self) -> dict[str, Any]:
        measured = {"score_gap": self.score_gap, "margin": self.solution.margin}
        measured |= {"correlation": self.correlation, "smallest_probability": self.smallest_probability}
        known = {name: to_host(array) for name, array in measured.items() if array is not None}
        return {"problem": np.arange(len(self)), "kind": np.array(OPTIMALITY_KINDS)[to_host(self.kind)], **known}


@implements("A", "Def 2")
def device_optimality(data: DeviceTokens, head: Any, selected: Any, p: Any = None) -> DeviceOptimality:
    """`token_optimality` of a batch on a device, and how a p (n, d_key) compares with its max-margin direction."""
    device = data.device
    with device.active():
        alpha, v = data.selection(selected), data.head(head)
        given = None if p is None else device.xp.ascontiguousarray(p, dtype=np.float64)
        solution = att_svm(data, alpha)
        tokens = SelectedTokens(data.K, data.X, data.y, v, data.lengths, alpha, solution.x, given, solution.status)
        found = measure_selections(device, tokens, CONSTANTS)
        open_problems = to_host(device.xp.flatnonzero(found.kind == UNDECIDED))
        if len(open_problems):
            heads = to_host(v) if v.ndim == 1 else to_host(v[open_problems])
            decided = token_optimality(data[open_problems].to_host(), heads, to_host(alpha[open_problems]))
            kinds = np.select(
                [decided.is_globally_optimal, decided.is_locally_optimal, decided.is_feasible], [0, 1, 2], 3
            )
            found.kind[open_problems] = device.xp.asarray(kinds)
            found.score_gap[open_problems] = device.xp.asarray(decided.score_gap)
    correlation, probability = (None, None) if p is None else (found.correlation, found.smallest_probability)
    return DeviceOptimality(solution, found.score_gap, found.kind, correlation, probability, len(open_problems))
