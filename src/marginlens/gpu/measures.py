"""What selections amount to, measured on a device: score gaps, kinds of optimality, correlations and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from marginlens.gpu.device import STATIC_SHARED_BYTES, Device, Layout

OPTIMALITY_KINDS = ("global", "local", "neither", "infeasible")  # a selection is the first that holds
UNDECIDED = len(OPTIMALITY_KINDS)  # where rounding leaves open whether a constraint is tight
_SOURCE, _WARPS_PER_BLOCK = "selection.cu", 8


class SelectedTokens(NamedTuple):
    """Arrays on the device, of n problems: what is measured."""

    K: Any  # (n, n_inputs, n_tokens, d_key)
    X: Any  # (n, n_inputs, n_tokens, d_model)
    y: Any  # (n, n_inputs)
    v: Any  # (n, d_model)
    selected: Any  # (n, n_inputs)
    x: Any  # (n, d_key) the solutions of ATT-SVM
    p: Any  # (n, d_key)
    outcome: Any  # (n,) of ATT-SVM


class SelectionMeasures(NamedTuple):
    """Arrays (n,) on the device."""

    score_gap: Any  # smallest γ_α - γ_t over tight constraints, nan where the selection is infeasible
    kind: Any  # a place in OPTIMALITY_KINDS, or UNDECIDED
    correlation: Any  # of p and x
    smallest_probability: Any  # of a selected token under p


def measure_selections(device: Device, tokens: SelectedTokens, constants: Mapping[str, object]) -> SelectionMeasures:
    """Measure every problem.

    Args:
        device: where the arrays are.

        tokens: what is measured.

        constants: tolerances by the names that they have in selection.cu.
    """
    (n_problems, n_inputs, n_tokens, d_key), d_model = tokens.K.shape, tokens.X.shape[-1]
    doubles = 4 * n_inputs * n_tokens + 3 * n_inputs
    with device.active():
        xp = device.xp
        gap, correlation, probability = (xp.empty(n_problems) for _ in range(3))
        out = SelectionMeasures(gap, xp.empty(n_problems, dtype=np.int64), correlation, probability)
        layout = Layout(max(1, min(_WARPS_PER_BLOCK, STATIC_SHARED_BYTES // (8 * doubles))), doubles)
        kernel = device.kernel(_SOURCE, "selection_measures", constants, layout)
        kernel(n_problems, *tokens, n_inputs, n_tokens, d_key, d_model, doubles, *out)
    return out
