"""Was this head decayed? What the balance of its query and key weights says."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import chdtr

from marginlens.errors import positive_number
from marginlens.theory.factor_decay import factor_balance
from marginlens.typing import ArrayLike

DECAY_LEVEL = 1e-3  # share of heads without decay that are called decayed


class HeadDecay(NamedTuple):
    """How balanced a head is, against what its initialisation had.

    Attributes:
        ratio: ‖QᵀQ - KᵀK‖² over its mean at initialisation: e^(-4λt) after a time t of gradient flow with weight decay λ.
        total_decay: λt, estimated as -¼ log ratio; for steps η of t = Σ η. Zero or below where nothing was lost.
        p_value: the share of heads that are so balanced at initialisation. decayed: whether that is below `DECAY_LEVEL`.
        excess: ½ (‖Q‖² + ‖K‖²)/‖Q Kᵀ‖_* - 1, zero for balanced factors.
    """

    ratio: float
    total_decay: float
    p_value: float
    decayed: bool
    excess: float


def head_decay(Q: ArrayLike, K: ArrayLike, init_std: float) -> HeadDecay:
    r"""Whether a head's query and key weights are more balanced than they began, as weight decay makes them.

    Gradient descent without decay keeps :math:`D = Q^\top Q - K^\top K` as it was, but for terms of the order of the step; with decay λ it
    fades like :math:`e^{-2\lambda t}`. At independent normal entries of standard deviation σ, :math:`\|D\|_F^2 / (4 d \sigma^4)` is nearly
    :math:`\chi^2` with w(w+1)/2 degrees of freedom, d the rows of either factor and w the head's width.

    The law is that of gradient descent and its flow; Adam keeps no such balance, so that of its heads the answer says what D is
    and proves nothing. Rotary positions and norms of queries and keys mix the columns: it is about heads without them.

    Args:
        Q: (d_model, d_head) the query weights, a column for each entry of a query. K: (d_model, d_head) the key weights.
        init_std: σ, the standard deviation of both at initialisation, such as `config.initializer_range`.
    """
    balance = factor_balance(Q, K)
    std, rows, width = positive_number(init_std, "init_std"), np.shape(Q)[0], len(balance.imbalance)
    degrees = 0.5 * width * (width + 1.0)
    square = float(np.sum(balance.imbalance**2)) / (2.0 * (rows + np.shape(K)[0]) * std**4)
    p_value = float(chdtr(degrees, square))
    with np.errstate(divide="ignore"):
        total = -0.25 * float(np.log(square / degrees))
    relative = balance.excess / balance.nuclear_norm if balance.nuclear_norm > 0.0 else np.inf
    return HeadDecay(square / degrees, total, p_value, p_value < DECAY_LEVEL, relative)
