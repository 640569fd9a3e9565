"""Next-token paths and their limit: residual attention is Graph-SVM's dual and fixes the offset, and radii from which paths are near."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable
from marginlens.dynamics.paths.next_token import NextTokenSearch
from marginlens.dynamics.paths.path import Path
from marginlens.errors import InputError
from marginlens.graphs.from_data import priority_graphs
from marginlens.graphs.priority import is_acyclic
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, scalar_of
from marginlens.nexttoken.correction import component_sums, label_loss
from marginlens.nexttoken.loss_check import check_loss
from marginlens.nexttoken.path_expansion import ACTIVE_GAP, WEAK_MULTIPLIER
from marginlens.papers import implements, uses
from marginlens.risk.next_token_heads import as_head
from marginlens.status import Status
from marginlens.svm.dual_balance import balance, can_carry
from marginlens.svm.graph import graph_svm
from marginlens.typing import FloatArray, IntArray

_SAME = 1e-9  # distance of two rows, relative to the longest, at which they are one


class PathLaw(NamedTuple):
    r"""The law that a path obeys far out.

    Pairs whose rows agree across S_cyc (labels of one component over tokens of one component) are taken together.

    Attributes:
        path: what the law is about. rows: (n_rows, r) the different active rows across S_cyc.
        multipliers: (n_rows,) the dual solution of Graph-SVM that residual attention is proportional to, added up over pairs with the
            same row; they add up to one. If the rows are independent it is the only one; if the law does not hold it is any one.
        log_c: (n_rows,) the logarithms of :math:`c_r`.
        holds: whether every active row can carry a positive multiplier. If one cannot, the path has terms that grow slowly and no
            constant offset: see `NextTokenAutomaton.expansion`.
        offset: (d_model, d_model) the predicted limit of :math:`\bar W_R - C_R W^{mm} - W^{cyc}`; nan if the law does not hold.
        entry: (n_entries,) the row of each entry of the risk, -1 for none.
    """

    path: Path
    rows: FloatArray
    multipliers: FloatArray
    log_c: FloatArray
    holds: bool
    offset: FloatArray
    entry: IntArray

    def remainder(self) -> FloatArray:
        """(n_radii, d_model, d_model) what is left of the path without its parts along W^mm and S_cyc."""
        x, rest = self.path._search.limit.x, self.path.split().strict
        along = np.einsum("kde,de->k", rest, x) / np.sum(x**2)
        return rest - along[:, None, None] * x

    def deviation(self) -> FloatArray:
        """(n_radii,) the largest difference between the logs of residual attention on an active row and of its multiplier."""
        logs = self.path._search.split_risk.log_pull(np.stack(self.path._state.points))
        logs = _by_row(logs, self.entry, len(self.rows))
        logs = logs - np.logaddexp.reduce(logs, axis=1, keepdims=True)
        return np.max(np.abs(logs - np.log(self.multipliers)), axis=1)


@implements("X", "O")
def path_law(path: Path) -> PathLaw:
    r"""Residual attention over active strict rows is proportional to Graph-SVM's multipliers, and fixes the path's offset.

    .. math:: c_r\, e^{-\langle a_r, W \rangle} \propto \lambda_r, \qquad c_r = \frac1n \sum_{(i,t) \in r} |\ell'_i|
        (\bar u_i - \gamma_{it}) \frac{e^{x_{it}^\top W^{cyc} \bar x_i}}{\sum_{\mathcal R_i} e^{x_{is}^\top W^{cyc} \bar x_i}}

    The slope across S_cyc is :math:`-\sum_r c_r e^{-\langle a_r, W\rangle} a_r` up to terms that vanish faster, the ball holds it along
    W, and :math:`W^{mm} = \sum_r \lambda_r a_r`. So :math:`\langle a_r, W \rangle` differs between active rows by
    :math:`\log(c_r/\lambda_r)`: W stands at :math:`C_R W^{mm} + W^{cyc}` plus a constant offset, not at it. Because the ball holds the
    slope along W, offset included, and not along W^mm, the law is reached like 1/R. If the active rows are dependent, Graph-SVM has
    several dual solutions, and :math:`\lambda_r` is the one of the form :math:`c_r e^{-\langle a_r, O \rangle}`.

    Args:
        path: a finished path of data whose Graph-SVM is feasible and not zero, with no part held.
    Returns:
        A `PathLaw`. Check it with `law.deviation()` and `law.remainder() - law.offset`, which fall like 1/R.
    """
    search = getattr(path, "_search", None)
    if not isinstance(search, NextTokenSearch):
        raise InputError("path", "the path of a next-token risk", type(path).__name__)
    risk, limit = search.split_risk, search.limit
    if limit.status is not Status.OPTIMAL or search.fixed is not None:
        raise InputError("path", "a free path towards a Graph-SVM solution other than zero", repr(path))
    m, E = risk.n_cyclic, risk.problem.E
    k, i, j = np.asarray(limit.pairs).T
    rows = np.einsum("rde,pd,pe->pr", risk.basis[m:], E[i] - E[j], E[k])
    target = risk.coordinates(limit.x)[m:]
    tight = np.flatnonzero(rows @ target <= 1.0 + ACTIVE_GAP)
    scale = float(np.max(np.linalg.norm(rows, axis=1)))
    unique = _distinct(rows[tight], _SAME * scale)
    own = np.zeros(len(unique))
    np.add.at(own, _nearest(rows[tight], unique, _SAME * scale), limit.multipliers[tight])
    own = own / own.sum()
    own = np.where(own > WEAK_MULTIPLIER, own, 0.0)
    entry = np.where(
        np.isfinite(risk.log_pull(path._state.points[0][None])[0]), _nearest(-risk.outer, unique, _SAME * scale), -1
    )
    start = np.append(risk.coordinates(search.correction.x)[:m], np.zeros(len(target)))
    log_c = _by_row(risk.log_pull(start[None]), entry, len(unique))[0]
    place = balance(unique, log_c, own) if can_carry(unique, own).all() else None
    if place is None:
        unknown = np.full(limit.x.shape, np.nan)
        return PathLaw(path, unique, own, log_c, False, unknown, entry)
    logs = log_c - unique @ place
    place = place - (place @ target) / (target @ target) * target
    offset = np.einsum("rde,r->de", risk.basis[m:], place)
    return PathLaw(path, unique, np.exp(logs - np.logaddexp.reduce(logs)), log_c, True, offset, entry)


def _distinct(rows: FloatArray, apart: float) -> FloatArray:
    """The rows without those that are nearer than `apart` to an earlier one."""
    kept: list[FloatArray] = []
    for row in rows:
        if all(np.linalg.norm(row - other) > apart for other in kept):
            kept.append(row)
    return np.stack(kept)


def _nearest(rows: FloatArray, among: FloatArray, apart: float) -> IntArray:
    """(m,) the index of the matching row among others, -1 if none is as near as `apart`."""
    gaps = np.linalg.norm(rows[:, None, :] - among[None], axis=-1)
    place = np.argmin(gaps, axis=1)
    return np.where(gaps[np.arange(len(rows)), place] <= apart, place, -1)


def _by_row(logs: FloatArray, entry: IntArray, n_rows: int) -> FloatArray:
    """(batch, n_rows) logarithms of sums over the entries of each row."""
    return np.stack([np.logaddexp.reduce(logs[:, entry == r], axis=1) for r in range(n_rows)], axis=1)


# ---- radii by the proofs of paper C's Theorems 1 and 2


_RADIUS_GRID = 2049  # outputs at which slopes are computed


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
        data: data whose Graph-SVM has a solution other than zero; acyclic if `cyclic_part` is left out.
        distance: :math:`\|\bar W_R / R - W^{mm}/\|W^{mm}\|\|`, above 0 and at most √2.
        head: C (n_vocabulary, d_model) with Assumption 3, or None for C Eᵀ = I. loss: with Assumption 1.
        cyclic_part: W^∥ of Lemma 4, for Eq. (13); the norm is then that of the part across S_cyc, and C Eᵀ = I.
    Returns:
        The norm. Check it with `path(data, [norm]).distance(W_mm)`.
    """
    graphs = priority_graphs(check_realizable(as_sequences(data)))
    rule, scorer, priority = label_loss(loss), as_head(data, head), graph_svm(data.E, graphs)
    if priority.status is not Status.OPTIMAL:
        raise InputError("data", "data whose Graph-SVM has a solution other than zero", priority.status.name)
    if not 0.0 < float(distance) <= np.sqrt(2.0):
        raise InputError("distance", "above 0 and at most √2", repr(distance))
    seen, shortfall = check_loss(data, head, rule), 0.5 * float(distance) ** 2
    if not seen.holds:
        raise InputError("loss", "one of C Assumption 1 on these data", seen.sentence)
    n, T, table = len(data), int(data.lengths.max()), scorer.matrix()
    norm = float(np.linalg.norm(priority.x))
    if cyclic_part is None:
        gaps = (np.diag(table)[:, None] - table)[~np.eye(len(table), dtype=bool)]
        if not is_acyclic(graphs):
            raise InputError("data", "acyclic data if 'cyclic_part' is left out", "tokens of equal priority")
        if gaps.min() <= 0.0:
            raise InputError("head", "one with C Assumption 3", f"a label that leads by {gaps.min():.3g}")
        lowest = float(np.min(np.diag(table)[data.labels])) - T / (1.0 + T) * float(gaps.max())
        ratio = _largest_slope(rule, lowest, seen.high) * float(gaps.max()) / (seen.smallest_slope * float(gaps.min()))
        return norm * max(0.0, float(np.log(2.0 * n * T**2 * ratio))) / shortfall
    if scorer.table is not None:
        raise InputError("head", "left out for Eq. (13), which is about C Eᵀ = I", "a matrix")
    c, d, largest = component_sums(data, data.weights(cyclic_part, "cyclic_part"))
    up = _largest_slope(rule, float(np.min(c / (d + T * np.exp(largest)))), seen.high)
    ratio = up / seen.smallest_slope * float(np.max(c / d**2)) * float(np.max(d**2 / c))
    return norm * max(0.0, float(np.log(2.0 * n * T * ratio)) + 2.0 * largest) / shortfall


def _largest_slope(loss: LabelLoss, low: float, high: float) -> float:
    """The largest |ℓ'| at outputs from low to high."""
    with np.errstate(all="ignore"):
        found = float(np.max(np.abs(scalar_of(loss, np.linspace(low, high, _RADIUS_GRID))[1])))
    if not np.isfinite(found):
        raise InputError(
            "loss", f"one with bounded slopes on outputs from {low:.4g} to {high:.4g}", type(loss).__name__
        )
    return found
