"""The least that a step lowers the potential if the unit ball of its norm has few vertices: Eq. (14) of docs/proofs/any_norm.md."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from marginlens.norms import L1, LInf, Norm
from marginlens.typing import FloatArray

MOST_VERTICES = 1024
LARGEST = 10.0  # multipliers, relative to the length of a step and its steepest slope; no larger ones help
MOST_STEEP = 20.0  # logarithm of that slope
SPARE = 0.05  # of γ, beyond the rate that is needed
COST = 0.01  # of multipliers, so that errors of the gradient, which they multiply, cost little


class VertexSteps(NamedTuple):
    """Bounds on what a step does to the potential, one for each vertex of the unit ball.

    Attributes:
        duals: (n_vertices, 1 + d_key) κ_j, then z_j.
        values: (n_vertices,) of the bound on F(p + h s_j)/F(p) without errors of the gradient.
        slopes: (n_vertices,) κ_j + ‖z_j‖, by which the bound grows with 2ν.
    """

    duals: FloatArray
    values: FloatArray
    slopes: FloatArray

    def rate(self, length: float, nu: float) -> float:
        """Return the least fall of log F per unit of length, if gradients have errors of up to `nu`."""
        return float(-np.log(np.max(self.values + 2.0 * nu * self.slopes))) / length


NO_VERTICES = VertexSteps(np.empty((0, 0)), np.empty(0), np.empty(0))


def has_few_vertices(norm: Norm, n_entries: int) -> bool:
    """Return whether the unit ball of a norm has so few vertices that each can be looked at."""
    if isinstance(norm, LInf):
        return n_entries <= int(np.log2(MOST_VERTICES))
    return isinstance(norm, L1) and 2 * n_entries <= MOST_VERTICES


def vertices_of(norm: Norm, n_entries: int) -> FloatArray:
    """Return the vertices of the unit ball: those of a cube from (1, …, 1) to (-1, …, -1), or first e_k and then -e_k."""
    if isinstance(norm, LInf):
        return np.array(list(product((1.0, -1.0), repeat=n_entries)))
    return np.concatenate([np.eye(n_entries), -np.eye(n_entries)])


def vertex_steps(a: FloatArray, norm: Norm, gamma: float, length: float, needed: float) -> VertexSteps:
    """Bound what steps of a length do to the potential of leading rows.

    Every vertex begins with z = 0, for which the best κ is known. Linear programmes improve the worst bound until all of them
    show the rate that is needed with some room, or until the worst one cannot be improved.

    Args:
        a: (n_leading, d_key).

        norm: one for which `has_few_vertices`.

        gamma: a lower bound on γ.

        length: h.

        needed: a rate below which nothing is proved.
    """
    corners = vertices_of(norm, a.shape[1])
    leads = corners @ a.T
    low, high = leads.min(axis=1), leads.max(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        chord = (np.exp(-length * low) - np.exp(-length * high)) / (high - low)
    # A multiplier is at most about the slope of e^(-h a·s), which is steep on rows that such a step moves far back.
    largest = LARGEST * length * np.exp(min(length * np.abs(leads).max(), MOST_STEEP))
    kappa = np.where(low >= gamma, 0.0, np.where(high > gamma, np.minimum(chord, largest), largest))
    duals = np.concatenate([kappa[:, None], np.zeros_like(corners)], axis=1)
    values = np.max(np.exp(-length * leads) + kappa[:, None] * leads, axis=1) - kappa * gamma
    slopes, improved = kappa.copy(), np.zeros(len(corners), dtype=bool)
    enough, least = np.exp(-length * (needed + SPARE * gamma)), np.exp(-length * needed)
    while values[j := int(np.argmax(values))] > enough and not improved[j]:
        improved[j] = True
        dual = _best_dual(a, leads[j], norm, gamma, length, largest)
        if dual is None:
            continue
        size = _value(norm, dual[1:])
        total = size + dual[0]
        value = np.max(np.exp(-length * leads[j]) + total * leads[j] - a @ dual[1:]) - dual[0] * gamma
        if value < values[j]:
            duals[j], values[j], slopes[j] = dual, value, total
        if values[j] > least:
            break
    return VertexSteps(duals, values, slopes)


def _value(norm: Norm, z: FloatArray) -> float:
    return float(np.abs(z).max() if isinstance(norm, LInf) else np.abs(z).sum())


def _best_dual(
    a: FloatArray, leads: FloatArray, norm: Norm, gamma: float, length: float, largest: float
) -> FloatArray | None:
    """Minimise max_r (e^(-h a_r·s) + (κ + Λ) a_r·s - a_r·z) - κγ over κ, Λ ≥ ‖z‖ and z; None if the solver fails.

    The unknowns are the maximum, κ, Λ, and the positive and the negative part of z.
    """
    n, d = a.shape
    cost = np.concatenate([[1.0, COST - gamma, COST], np.zeros(2 * d)])
    below_maximum = np.hstack([-np.ones((n, 1)), leads[:, None], leads[:, None], -a, a])
    if isinstance(norm, LInf):
        parts = np.hstack([np.zeros((d, 2)), -np.ones((d, 1)), np.eye(d), np.eye(d)])
    else:
        parts = np.concatenate([[0.0, 0.0, -1.0], np.ones(2 * d)])[None]
    total = np.concatenate([[0.0, 1.0, 1.0], np.zeros(2 * d)])[None]
    right = np.concatenate([-np.exp(-length * leads), np.zeros(len(parts)), [largest]])
    bounds = [(None, None)] + [(0.0, None)] * (2 + 2 * d)
    solved = linprog(cost, A_ub=np.vstack([below_maximum, parts, total]), b_ub=right, bounds=bounds, method="highs")
    if solved.status != 0:
        return None
    return np.concatenate([solved.x[1:2], solved.x[3 : 3 + d] - solved.x[3 + d :]])
