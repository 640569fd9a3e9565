"""Max-margin problems of token selections on a device: batches of `att_svm` with the residuals that prove them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.gpu.device import STATIC_SHARED_BYTES, Device, Layout, to_host
from marginlens.result import Displayed, Tabular, counted
from marginlens.result.drawing import NothingToDraw, draw_histogram, drawn
from marginlens.typing import Axes

MAX_ROWS = 64  # of a problem, n_inputs (n_tokens - 1), that one warp solves
MAX_COORDINATES = 2**20  # of a row
_LANES, _SOURCE = 32, "att_svm.cu"
_WARPS_PER_BLOCK, _MIN_WARPS_PER_SM = (
    4,
    16,
)  # the second bounds the registers of a thread, which measured best on an H200


class MarginArrays(NamedTuple):
    """Arrays on the device of n problems with m rows: what the kernel writes."""

    x: Any  # (n, d)
    multipliers: Any  # (n, m), or a Farkas vector
    active: Any  # (n, m)
    outcome: Any  # (n,)
    residual: Any  # (n,)
    margin: Any  # (n,)

    @classmethod
    def empty(cls, device: Device, n_problems: int, n_rows: int, d: int) -> MarginArrays:
        """Arrays for the results of a batch."""
        xp = device.xp
        with device.active():
            x, multipliers = xp.empty((n_problems, d)), xp.empty((n_problems, n_rows))
            active, outcome = xp.empty((n_problems, n_rows), dtype=bool), xp.empty(n_problems, dtype=np.int64)
            return cls(x, multipliers, active, outcome, xp.empty(n_problems), xp.empty(n_problems))

    @staticmethod
    def bytes_per_problem(n_rows: int, d: int) -> int:
        """How much memory they take."""
        return 8 * d + 9 * n_rows + 24


def is_solved_by_warps(n_rows: int, d: int) -> bool:
    """Whether problems with so many rows of this width fit a warp."""
    return 1 <= n_rows <= MAX_ROWS and d <= MAX_COORDINATES


def solve_margins(device: Device, K: Any, selected: Any, lengths: Any, out: MarginArrays) -> None:
    """Solve every problem and check it; what is not proved has the outcome UNVERIFIED.

    Args:
        K: keys (n, n_inputs, n_tokens, d) on the device. selected: tokens (n, n_inputs). lengths: (n, n_inputs) or None.
    """
    n_problems, n_inputs, n_tokens, d = K.shape
    m = int(n_inputs * (n_tokens - 1))
    rows_per_lane = -(-m // _LANES)
    leading, coordinates = m | 1, _LANES // rows_per_lane
    doubles = m * leading + coordinates * leading + _LANES * rows_per_lane + m + coordinates
    warps = max(1, min(_WARPS_PER_BLOCK, STATIC_SHARED_BYTES // (8 * doubles)))
    defined = {"ROWS_PER_LANE": rows_per_lane, "BLOCKS_PER_SM": _MIN_WARPS_PER_SM // warps}
    with device.active():
        kernel = device.kernel(_SOURCE, "att_svm", defined, Layout(warps, doubles))
        kernel(n_problems, K, selected, lengths, n_inputs, n_tokens, d, doubles, *out)


@dataclass(frozen=True, repr=False, eq=False)
class DeviceMargins(Displayed, Tabular):
    """Solutions of a batch of `att_svm` in arrays on a device, each proved by its residual; for a batch of n problems with m rows.

    Attributes:
        x: (n, d_key) the shortest p; nan where the problem is infeasible.
        multipliers: (n, m) lambda >= 0 with x = sum_r multipliers[r] * rows[r]; where the problem is infeasible, the Farkas vector.
        active: (n, m) whether a row holds with equality.
        status: (n,) 0 where x is proved optimal, 1 infeasible, 2 where there is nothing to separate, 3 where nothing is proved.
        residual: (n,) the optimality residual, or that of the Farkas vector.
        margin: (n,) 1/‖x‖, zero where the problem is infeasible.
        n_on_cpu: problems that the device left unproved and the CPU solved.

    `to_frame()` has one row per problem: problem, status, margin, residual.
    """

    x: Any
    multipliers: Any
    active: Any
    status: Any
    residual: Any
    margin: Any
    n_on_cpu: int
    quantities = "{self:#} problems, {multipliers.shape[1]} rows, d={x.shape[1]}, {n_on_cpu} solved on the CPU"

    def __len__(self) -> int:
        return int(self.x.shape[0])

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw how often margins are how large; infeasible problems have none."""
        margin = self._columns()["margin"]
        found = margin[np.isfinite(margin) & (margin > 0.0)]
        if not len(found):
            raise NothingToDraw("No problem has a margin.")
        draw_histogram(ax, found, f"margin of {len(found):,} of {counted(len(margin), 'problem')}")

    def _columns(self) -> dict[str, Any]:
        values = {name: to_host(getattr(self, name)) for name in ("status", "margin", "residual")}
        return {"problem": np.arange(len(self)), **values}
