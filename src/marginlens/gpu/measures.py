"""Measures of selections on a device: score gaps, kinds of optimality, correlations and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from marginlens.gpu.device import STATIC_SHARED_BYTES, Device, Layout

# A selection has the first of these kinds that holds.
OPTIMALITY_KINDS = ("global", "local", "neither", "infeasible")
# The code if rounding leaves open whether a constraint is tight.
UNDECIDED = len(OPTIMALITY_KINDS)
_SOURCE, _MEASURE_WARPS = "selection.cu", 8


class SelectedTokens(NamedTuple):
    """The selections of n problems, as arrays on the device."""

    K: Any  # (n, n_inputs, n_tokens, d_key)
    X: Any  # (n, n_inputs, n_tokens, d_model)
    y: Any  # (n, n_inputs)
    v: Any  # (n, d_model)
    selected: Any  # (n, n_inputs)
    x: Any  # (n, d_key) the solutions of ATT-SVM
    p: Any  # (n, d_key)
    # (n,) the outcomes of ATT-SVM.
    outcome: Any


class SelectionMeasures(NamedTuple):
    """The measures, as arrays (n,) on the device."""

    # The smallest γ_α - γ_t over tight constraints, nan if the selection is infeasible.
    score_gap: Any
    # An index into OPTIMALITY_KINDS, or UNDECIDED.
    kind: Any
    # The correlation of p and x.
    correlation: Any
    # The smallest probability of a selected token under p.
    smallest_probability: Any


def measure_selections(device: Device, tokens: SelectedTokens, constants: Mapping[str, object]) -> SelectionMeasures:
    """Measure every problem.

    Args:
        device: where the arrays are.

        tokens: the selections to measure.

        constants: tolerances by the names that they have in selection.cu.
    """
    (n_problems, n_inputs, n_tokens, d_key), d_model = tokens.K.shape, tokens.X.shape[-1]
    doubles = 4 * n_inputs * n_tokens + 3 * n_inputs
    with device.active():
        xp = device.xp
        gap, correlation, probability = (xp.empty(n_problems) for _ in range(3))
        out = SelectionMeasures(gap, xp.empty(n_problems, dtype=np.int64), correlation, probability)
        layout = Layout(max(1, min(_MEASURE_WARPS, STATIC_SHARED_BYTES // (8 * doubles))), doubles)
        kernel = device.kernel(_SOURCE, "selection_measures", constants, layout)
        kernel(n_problems, *tokens, n_inputs, n_tokens, d_key, d_model, doubles, *out)
    return out
