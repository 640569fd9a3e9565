"""Radii from which regularisation paths of next-token weights are near W^mm, by the proofs of paper C's Theorems 1 and 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable
from marginlens.errors import reject
from marginlens.graphs.from_data import priority_graphs
from marginlens.graphs.priority import is_acyclic
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, scalar_of
from marginlens.nexttoken.correction import component_sums, label_loss
from marginlens.nexttoken.loss_check import check_loss
from marginlens.papers import implements, uses
from marginlens.risk.next_token_heads import as_head
from marginlens.status import Status
from marginlens.svm.graph import graph_svm

_RADIUS_GRID = 2049  # outputs at which slopes are looked at


@implements("C", "Eq. (9)", "Eq. (13)")
@uses(
    "C",
    {
        "Eq. (6)": "Attention on the label of a W that misses a margin by ε, from above: part of the radius.",
        "Eq. (7)": "Attention on the label at R W^mm, from below: part of the radius.",
        "Eq. (8)": "The excess risk of a W that misses a margin by ε, from below: part of the radius.",
    },
)
def path_radius(
    data: SequenceDataset,
    distance: float,
    *,
    head: Any = None,
    loss: NextTokenLoss = LogLoss(),  # noqa: B008
    cyclic_part: Any = None,
) -> float:
    r"""A norm from which on the regularisation path's direction is within `distance` of W^mm's, by the proofs of Theorems 1 and 2.

    .. math:: \|W^{mm}\|\, \frac1\epsilon \log \frac{2 n T^2 c_{up} c_{max}}{c_{dn} c_{min}} \quad \text{(after (9), acyclic data)}, \qquad
        \|W^{mm}\| \Big( \frac1\epsilon \log \frac{2 n T c_{up} c_j d_i^2}{c_{dn} c_i d_j^2} + \frac{2 \bar b}{\epsilon} \Big)
        \quad \text{(13)}

    The proofs leave ε(δ) open. Graph-SVM's multipliers give it: a matrix as long as W^mm whose margins are all above 1 − ε satisfies
    :math:`\langle W, W^{mm} \rangle = \sum_r \lambda_r \langle a_r, W \rangle > (1 - \epsilon) \|W^{mm}\|^2`, so its unit vector is
    within :math:`\sqrt{2 \epsilon}` of that of W^mm. The largest slope is taken where R W^mm leads, which bounds it for the log-loss too;
    in (13), i and j are the worst samples.

    Args:
        data: data whose Graph-SVM has a solution other than zero; acyclic where `cyclic_part` is left out.
        distance: :math:`\|\bar W_R / R - W^{mm}/\|W^{mm}\|\|`, above 0 and at most √2.
        head: C (n_vocabulary, d_model) with Assumption 3, or None for C Eᵀ = I. loss: with Assumption 1.
        cyclic_part: W^∥ of Lemma 4, for Eq. (13); the norm is then that of the part across S_cyc, and C Eᵀ = I.
    Returns:
        The norm. Check it with `path(data, [norm]).distance(W_mm)`.
    """
    graphs = priority_graphs(check_realizable(as_sequences(data)))
    rule, scorer, priority = label_loss(loss), as_head(data, head), graph_svm(data.E, graphs)
    if priority.status is not Status.OPTIMAL:
        raise reject("data", "data whose Graph-SVM has a solution other than zero", priority.status.name)
    if not 0.0 < float(distance) <= np.sqrt(2.0):
        raise reject("distance", "above 0 and at most √2", repr(distance))
    seen, shortfall = check_loss(data, head, rule), 0.5 * float(distance) ** 2
    if not seen.holds:
        raise reject("loss", "one of C Assumption 1 on these data", seen.sentence)
    n, T, table = len(data), int(data.lengths.max()), scorer.matrix()
    norm = float(np.linalg.norm(priority.x))
    if cyclic_part is None:
        gaps = (np.diag(table)[:, None] - table)[~np.eye(len(table), dtype=bool)]
        if not is_acyclic(graphs):
            raise reject("data", "acyclic where 'cyclic_part' is left out", "tokens of equal priority")
        if gaps.min() <= 0.0:
            raise reject("head", "one with C Assumption 3", f"a label that leads by {gaps.min():.3g}")
        lowest = float(np.min(np.diag(table)[data.labels])) - T / (1.0 + T) * float(gaps.max())
        ratio = _largest_slope(rule, lowest, seen.high) * float(gaps.max()) / (seen.smallest_slope * float(gaps.min()))
        return norm * max(0.0, float(np.log(2.0 * n * T**2 * ratio))) / shortfall
    if scorer.table is not None:
        raise reject("head", "left out for Eq. (13), which is about C Eᵀ = I", "a matrix")
    c, d, largest = component_sums(data, data.weights(cyclic_part, "cyclic_part"))
    up = _largest_slope(rule, float(np.min(c / (d + T * np.exp(largest)))), seen.high)
    ratio = up / seen.smallest_slope * float(np.max(c / d**2)) * float(np.max(d**2 / c))
    return norm * max(0.0, float(np.log(2.0 * n * T * ratio)) + 2.0 * largest) / shortfall


def _largest_slope(loss: LabelLoss, low: float, high: float) -> float:
    """The largest |ℓ'| at outputs from low to high."""
    with np.errstate(all="ignore"):
        found = float(np.max(np.abs(scalar_of(loss, np.linspace(low, high, _RADIUS_GRID))[1])))
    if not np.isfinite(found):
        raise reject("loss", f"one with bounded slopes on outputs from {low:.4g} to {high:.4g}", type(loss).__name__)
    return found
