r"""The effect of weight decay on the factors of W = Q Kᵀ: they balance, and their squared norms become the nuclear norm.

The gradient flow of :math:`L(Q K^\top) + \tfrac\lambda2 (\|Q\|^2 + \|K\|^2)` has, whatever L is,

.. math:: \frac{d}{dt} (Q^\top Q - K^\top K) = -2 \lambda\, (Q^\top Q - K^\top K), \qquad
    \|Q K^\top\|_* \le \tfrac12 (\|Q\|^2 + \|K\|^2), \ \text{with equality if } Q^\top Q = K^\top K \ \text{(arXiv 2410.23819)}.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.errors import InputError, real_array, real_number
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray


class FactorBalance(NamedTuple):
    """The imbalance of two factors.

    Attributes:
        imbalance: (width, width) QᵀQ - KᵀK.

        nuclear_norm: ‖Q Kᵀ‖_*.

        excess: ½ (‖Q‖² + ‖K‖²) - ‖Q Kᵀ‖_*, zero if they are balanced.
    """

    imbalance: FloatArray
    nuclear_norm: float
    excess: float

    def after(self, decay: float, time: float) -> FloatArray:
        """Return the imbalance after time t of the flow with weight decay λ, which shrinks it by e^(-2λt); n steps of size η
        take time nη.
        """
        return np.exp(-2.0 * decay * time) * self.imbalance


@implements("X", "N8")
def factor_balance(Q: ArrayLike, K: ArrayLike) -> FactorBalance:
    """Measure how far the factors of W = Q Kᵀ are from being balanced. Weight decay balances them; without it, descent keeps
    the imbalance.

    Args:
        Q: (d_query, width).

        K: (d_model, width).

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> balance = ml.theory.factor_balance(2.0 * np.eye(2), np.eye(2))
        >>> round(balance.nuclear_norm, 6), round(balance.excess, 6)
        (4.0, 1.0)
        >>> round(ml.theory.factor_balance(np.eye(2), np.eye(2)).excess, 6)
        0.0
    """
    first = real_array(Q, "Q", ("d_query", "width"))
    second = real_array(K, "K", ("d_model", first.shape[1]))
    left, right = (np.linalg.qr(factor)[1] for factor in (first, second))
    nuclear = float(np.sum(np.linalg.svd(left @ right.T, compute_uv=False)))
    squares = 0.5 * float(np.sum(first**2) + np.sum(second**2))
    return FactorBalance(first.T @ first - second.T @ second, nuclear, squares - nuclear)


class NuclearStationarity(NamedTuple):
    """The residuals of the conditions under which W minimises, or is stationary for, L(W) + λ ‖W‖_*.

    Attributes:
        slack: 1 - ‖∇L(W)‖₂/λ, at least zero if the conditions hold.

        misalignment: 1 + ⟨∇L(W), W⟩/(λ ‖W‖_*), zero if they hold; also zero for W = 0.
    """

    slack: float
    misalignment: float


@implements("X", "N8")
def nuclear_stationarity(gradient: ArrayLike, W: ArrayLike, decay: float) -> NuclearStationarity:
    r"""Check whether W is stationary for the risk with a nuclear norm, :math:`-\nabla L(W) \in \lambda\, \partial \|W\|_*`.

    It is a minimum if L is convex. Stationary points of L(Q Kᵀ) + λ/2 (‖Q‖² + ‖K‖²) meet the second condition; its minima, both.

    Args:
        gradient: ∇L(W), (d_query, d_model).

        W: of the same shape.

        decay: λ, above zero.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> left = ml.theory.nuclear_stationarity(-0.5 * np.eye(2), np.eye(2), 0.5)
        >>> round(left.slack, 6), round(left.misalignment, 6)
        (0.0, 0.0)
    """
    G = real_array(gradient, "gradient", ("d_query", "d_model"))
    point = real_array(W, "W", G.shape)
    if not real_number(decay, "decay", "a number above 0") > 0.0:
        raise InputError("decay", "a number above 0", f"{decay:g}")
    nuclear = float(np.sum(np.linalg.svd(point, compute_uv=False)))
    aligned = 1.0 + float(np.sum(G * point)) / (decay * nuclear) if nuclear > 0.0 else 0.0
    return NuclearStationarity(1.0 - float(np.linalg.norm(G, 2)) / decay, aligned)
