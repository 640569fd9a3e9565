r"""The best margin that factors of bounded entries can reach, with proof: what sign descent on the factors of W heads for.

Sign descent on Q and K is steepest descent in :math:`\max(|Q|_\infty, |K|_\infty)`. Of all factors with entries up to one the products
:math:`W = Q K^\top / \text{width}` lie in the convex hull of the matrices :math:`s t^\top` with entries ±1, and fill it as the width grows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from marginlens.errors import InputError, real_array
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray

MAX_SIGNS = 16  # coordinates of the shorter side of W, of which all sign vectors are tried
ATOM_GAP_RTOL = 1e-10  # bracket at which no further atom is sought
MAX_ATOMS = 2000


class SignFactorMargin(NamedTuple):
    """Two bounds on the best margin over factors of any width, and what proves them.

    Attributes:
        lower: the margin of the convex combination Σ_j weights[j] left[j] right[j]ᵀ.
        upper: ‖Σ_r λ_r A_r‖ in the norm from ℓ∞ to ℓ1, for the multipliers λ >= 0 (n_rows,) with sum one.
    """

    lower: float
    upper: float
    multipliers: FloatArray
    weights: FloatArray
    left: FloatArray
    right: FloatArray

    @property
    def gap(self) -> float:
        """(upper - lower)/upper."""
        return (self.upper - self.lower) / self.upper


def largest_sign_product(G: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    r"""The norm of G (d_query, d_model) from ℓ∞ to ℓ1, :math:`\max_{s, t \in \{\pm 1\}} s^\top G t`, and signs s, t that attain it.

    All sign vectors of the shorter side are tried, so that it is exact.
    """
    if G.shape[0] > G.shape[1]:
        value, t, s = largest_sign_product(G.T)
        return value, s, t
    if len(G) > MAX_SIGNS:
        raise InputError("G", f"a matrix with at most {MAX_SIGNS} rows or columns", f"shape {G.shape}")
    codes = np.arange(2 ** (len(G) - 1))
    signs = 1.0 - 2.0 * ((codes[:, None] >> np.arange(len(G))) & 1)  # the last sign is +: s and -s are the same
    values = np.sum(np.abs(signs @ G), axis=1)
    s = signs[int(np.argmax(values))]
    return float(np.max(values)), s, np.where(s @ G >= 0.0, 1.0, -1.0)


@implements("X", "N3")
def sign_factor_margin(rows: ArrayLike) -> SignFactorMargin:
    r"""The largest margin of W = Q Kᵀ over factors of any width, per width and squared largest entry.

    .. math:: \sup_{m,\ Q, K \in [-1, 1]^{d \times m}} \frac1m \min_r \langle A_r, Q K^\top\rangle
        = \max_{c \in \Delta} \min_r \sum_j c_j\, s_j^\top A_r t_j
        = \min_{\lambda \in \Delta} \Big\|\sum_r \lambda_r A_r\Big\|_{\infty \to 1}

    A linear programme over all pairs of sign vectors, solved with few of them: the one that the multipliers violate most is added until
    the bounds meet. No factors of a finite width do better; narrow ones may do worse.

    Args:
        rows: (n_rows, d_query, d_model) the matrices A_r, such as `MatrixRisk.margin_rows(selected).rows`; one side at most 16 long.
    """
    A = real_array(rows, "rows", ("n_rows", "d_query", "d_model"))
    n_rows = len(A)
    multipliers = np.full(n_rows, 1.0 / n_rows)
    best, upper = multipliers, np.inf
    lefts: list[FloatArray] = []
    rights: list[FloatArray] = []
    columns: list[FloatArray] = []
    lower, weights = -np.inf, np.empty(0)
    while len(columns) < MAX_ATOMS:
        value, s, t = largest_sign_product(np.tensordot(multipliers, A, 1))
        if value < upper:
            upper, best = value, multipliers
        if upper - lower <= ATOM_GAP_RTOL * abs(upper):
            break
        lefts.append(s)
        rights.append(t)
        columns.append(np.einsum("rqd,q,d->r", A, s, t))
        multipliers, weights = _solve(np.array(columns))
        lower = float(np.min(weights @ np.array(columns)))
    return SignFactorMargin(
        lower, upper, best, weights, np.array(lefts[: len(weights)]), np.array(rights[: len(weights)])
    )


def _solve(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Multipliers of the rows and weights of the atoms (n_atoms, n_rows) of the game with these pay-offs, each with sum one."""
    n_atoms, n_rows = columns.shape
    solved = scipy.optimize.linprog(
        np.append(np.zeros(n_rows), 1.0),  # the least largest pay-off of an atom
        A_ub=np.hstack([columns, -np.ones((n_atoms, 1))]),
        b_ub=np.zeros(n_atoms),
        A_eq=[np.append(np.ones(n_rows), 0.0)],
        b_eq=[1.0],
        bounds=[(0.0, None)] * n_rows + [(None, None)],
        method="highs",
    )
    multipliers, weights = np.maximum(solved.x[:n_rows], 0.0), np.maximum(-solved.ineqlin.marginals, 0.0)
    return multipliers / np.sum(multipliers), weights / np.sum(weights)
