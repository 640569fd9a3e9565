"""The head's SVM: the shortest v that gives every representation its label with margin one."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.errors import n_axes, real_array, reject
from marginlens.papers import implements
from marginlens.svm.least_distance import least_distance
from marginlens.svm.solution import MarginSolution


@implements("A", "(SVM)")
def label_svm(R: Any, y: Any) -> MarginSolution:
    r"""Shortest head v that classifies every representation with margin at least one, without a bias.

    .. math:: \min_v \|v\| \ \text{s.t.}\ y_i\, v^\top r_i \ge 1, \quad i \in [n]

    Args:
        R: representations r_i, (n_inputs, d_model) or (batch, n_inputs, d_model).
        y: labels, each -1 or +1, of shape (n_inputs,) or (batch, n_inputs).
    Returns:
        A solution with v = sum_i multipliers[i] * y_i r_i, multipliers >= 0; `active` marks the support set, the
        inputs with y_i v·r_i = 1. `kkt_residual()` and `certificate_residual()` check it.
    """
    axes = ("batch", "n_inputs", "d_model") if n_axes(R) == 3 else ("n_inputs", "d_model")
    points = real_array(R, "R", axes)
    labels = real_array(y, "y", points.shape[-2:-1] if n_axes(y) == 1 else points.shape[:-1])
    wrong = np.abs(labels) != 1.0
    if wrong.any():
        raise reject("y", "labels, each -1 or +1", f"the label {labels[wrong][0]:g}")
    rows = points * labels[..., None]
    return least_distance(rows, np.ones(rows.shape[:-1]))
