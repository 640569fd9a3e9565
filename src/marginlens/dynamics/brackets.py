r"""Brackets of the smallest norm that a run proves from its own iterates and residual attention, without a solver.

The gradient of an attention risk is a combination of its margin rows: with the residual attention
:math:`\lambda_{it} = |\ell'_i|\, s_{it} (f_i - \gamma_{it})` of the tokens that are not selected,
:math:`-\nabla L = \frac1n A^\top\lambda`, so the weights that a run computes for its gradient are multipliers of the margin
problem of the tokens that it selects. Any :math:`\lambda \ge 0` and any x bound its optimum from both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.errors import InputError
from marginlens.norms import Norm
from marginlens.norms.choice import as_norm
from marginlens.risk.matrix import FactorRisk
from marginlens.svm.solution import Bracket
from marginlens.typing import FloatArray, Index, IntArray


@dataclass(frozen=True, eq=False)
class DualAccumulator:
    """Sums over a run in two windows: since the last power of two among its steps, and the window before.

    Attributes:
        residuals: (…, 2, n_inputs, n_tokens) residual attention, scaled by the size of each step.

        anchors: (…, 2, *shape) the iterates at which the windows began.
    """

    residuals: FloatArray
    anchors: FloatArray

    def __getitem__(self, index: Index) -> DualAccumulator:
        """Return the sums of one run, or of several."""
        return DualAccumulator(self.residuals[index], self.anchors[index])


def run_bracket(risk: Any, x: FloatArray, selected: IntArray, norm: Norm, witness: DualAccumulator | None) -> Bracket:
    """Compute the bracket of one run that ended at x (*shape): the best of its final attention and of the sums of its windows."""
    anchors = () if witness is None else tuple(witness.anchors)
    points = [x, *(x - anchor for anchor in anchors)]
    if isinstance(risk, FactorRisk):
        risk, points = risk.of_p.as_matrix(risk.query), [risk.matrix(x)]
        x = points[0]
    if not hasattr(risk, "residual_attention") or not hasattr(risk, "margin_rows"):
        expected = "of an attention risk with one margin problem: AttentionRisk, MatrixRisk or FactorRisk"
        raise InputError("run", expected, f"one of {type(risk).__name__}")
    as_norm(norm, tuple(risk.shape))
    rows, lower = risk.margin_rows(selected)
    if not len(rows):
        return Bracket(0.0, 0.0)  # nothing to separate
    flat = rows.reshape(len(rows), -1)
    weights = [risk.residual_attention(x)]
    if witness is not None:
        weights += [witness.residuals[0], witness.residuals.sum(axis=0)]
    pairs = _pairs(risk, selected)
    below = max(_lower(flat, lower, residuals[pairs], norm, rows.shape[1:]) for residuals in weights)
    return Bracket(below, min(_upper(flat, lower, point, norm) for point in points))


def _pairs(risk: Any, selected: IntArray) -> Any:
    """Return the mask (n_inputs, n_tokens) of the tokens behind the margin rows, in their order."""
    mask = getattr(risk, "of_p", risk).data.mask
    return mask & (np.arange(mask.shape[-1]) != np.asarray(selected)[:, None])


def _lower(rows: FloatArray, lower: FloatArray, multipliers: FloatArray, norm: Norm, shape: tuple[int, ...]) -> float:
    """Compute the lower bound bᵀλ / ‖Aᵀλ‖_*, zero if λ proves nothing."""
    largest = float(np.max(multipliers, initial=0.0))
    if not (np.isfinite(largest) and largest > 0.0):
        return 0.0
    positive = np.maximum(multipliers / largest, 0.0)
    dual = norm.dual((positive @ rows).reshape(shape))
    return float(lower @ positive) / dual if dual > 0.0 else 0.0


def _upper(rows: FloatArray, lower: FloatArray, x: FloatArray, norm: Norm) -> float:
    """Compute the upper bound ‖x‖ / min_r a_r·x/b_r, infinite if x has the wrong sign on a row."""
    share = float(np.min(rows @ x.ravel() / lower))
    return norm.value(x) / share if share > 0.0 else np.inf
