"""The least that a step lowers the potential if the unit ball of its norm has few vertices: Eq. (14) of docs/proofs/any_norm.md."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens import core
from marginlens.norms import L1, LInf, Norm
from marginlens.typing import FloatArray

MOST_VERTICES = 1024


class VertexSteps(NamedTuple):
    """Bounds on what a step does to the potential, one for each vertex of the unit ball.

    Vertices are those of a cube from (1, …, 1) to (-1, …, -1), or first e_k and then -e_k.

    Attributes:
        duals: (n_vertices, 1 + d_key) κ_j, then z_j.
        values: (n_vertices,) of the bound on F(p + h s_j)/F(p) without errors of the gradient.
        slopes: (n_vertices,) κ_j + ‖z_j‖, by which the bound grows with 2ν.
    """

    duals: FloatArray
    values: FloatArray
    slopes: FloatArray


NO_VERTICES = VertexSteps(np.empty((0, 1)), np.empty(0), np.empty(0))


def has_few_vertices(norm: Norm, n_entries: int) -> bool:
    """Return whether the unit ball of a norm has so few vertices that each can be looked at."""
    if isinstance(norm, LInf):
        return n_entries <= int(np.log2(MOST_VERTICES))
    return isinstance(norm, L1) and 2 * n_entries <= MOST_VERTICES


def vertex_steps(a: FloatArray, norm: Norm, gamma: float, length: float, needed: float) -> VertexSteps:
    """Bound what steps of a length do to the potential of leading rows.

    Args:
        a: (n_leading, d_key).

        norm: one for which `has_few_vertices`.

        gamma: a lower bound on γ.

        length: h.

        needed: a rate below which nothing is proved.
    """
    d = a.shape[1]
    by_signs = isinstance(norm, LInf)
    count = 2**d if by_signs else 2 * d
    turns = VertexSteps(np.empty((count, 1 + d)), np.empty(count), np.empty(count))
    core.bound_vertex_steps(a, int(by_signs), gamma, length, needed, *turns)
    return turns
