"""Max-margin problems of token selections on a device: batches of `att_svm` with the residuals that prove them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.gpu.device import STATIC_SHARED_BYTES, Device, Layout

# Rows of a problem, n_inputs (n_tokens - 1), that one warp solves.
MAX_WARP_ROWS = 64
# Coordinates of a row.
MAX_COORDINATES = 2**20
_LANES, _SOURCE = 32, "att_svm.cu"
_MARGIN_WARPS = 4
# Bounds the registers of a thread; this measured best on an H200.
_MIN_WARPS_PER_SM = 16


class MarginArrays(NamedTuple):
    """The results of n problems with m rows, as arrays on the device."""

    x: Any  # (n, d) the shortest p
    # (n, m) with x = sum_r multipliers[r] * rows[r]; the Farkas vector if the problem is infeasible.
    multipliers: Any
    active: Any  # (n, m) whether a row holds with equality
    # (n,) the codes of `svm.solvers.batch`.
    outcome: Any
    # (n,) the residual of optimality, or that of the Farkas vector.
    residual: Any
    # (n,) 1/‖x‖, zero if the problem is infeasible.
    margin: Any

    @classmethod
    def empty(cls, device: Device, n_problems: int, n_rows: int, d: int) -> MarginArrays:
        """Allocate arrays for the results of a batch."""
        xp = device.xp
        with device.active():
            x, multipliers = xp.empty((n_problems, d)), xp.empty((n_problems, n_rows))
            active, outcome = xp.empty((n_problems, n_rows), dtype=bool), xp.empty(n_problems, dtype=np.int64)
            return cls(x, multipliers, active, outcome, xp.empty(n_problems), xp.empty(n_problems))

    @staticmethod
    def bytes_per_problem(n_rows: int, d: int) -> int:
        """Return the bytes that the results of one problem take."""
        return 8 * d + 9 * n_rows + 24


def is_solved_by_warps(n_rows: int, d: int) -> bool:
    """Return whether problems with so many rows of this width fit a warp."""
    return 1 <= n_rows <= MAX_WARP_ROWS and d <= MAX_COORDINATES


def solve_margins(device: Device, K: Any, selected: Any, lengths: Any, out: MarginArrays) -> None:
    """Solve every problem and check the solution; if it is not proved, the outcome is UNVERIFIED.

    Args:
        K: (n, n_inputs, n_tokens, d) the keys, on the device.

        selected: (n, n_inputs) the selected tokens.

        lengths: (n, n_inputs) the lengths of inputs, or None if none is shorter.
    """
    n_problems, n_inputs, n_tokens, d = K.shape
    m = int(n_inputs * (n_tokens - 1))
    rows_per_lane = -(-m // _LANES)
    leading, coordinates = m | 1, _LANES // rows_per_lane
    doubles = m * leading + coordinates * leading + _LANES * rows_per_lane + m + coordinates
    warps = max(1, min(_MARGIN_WARPS, STATIC_SHARED_BYTES // (8 * doubles)))
    defined = {"ROWS_PER_LANE": rows_per_lane, "BLOCKS_PER_SM": _MIN_WARPS_PER_SM // warps}
    with device.active():
        kernel = device.kernel(_SOURCE, "att_svm", defined, Layout(warps, doubles))
        kernel(n_problems, K, selected, lengths, n_inputs, n_tokens, d, doubles, *out)
