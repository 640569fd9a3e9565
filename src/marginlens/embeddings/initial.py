"""How far random initial embeddings are from orthogonal to each other and from unit length."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marginlens.embeddings.parameters import Parameters, as_parameters
from marginlens.embeddings.proved import ProvedBound, log_of_pairs
from marginlens.errors import real_array
from marginlens.papers import implements


@implements("B", "Eq. (14)")
def initial_concentration(start: Parameters, delta: Any) -> tuple[ProvedBound, ProvedBound]:
    r"""The largest inner product and the largest norm of initial embeddings, beside what holds with probability 1 - δ.

    .. math:: \max\{|E_s^\top v|, |E_s^\top p|, |p^\top v|\} \le \frac{1}{\sqrt d} \sqrt{2 \log\frac{|\mathcal S|^2}{\delta}},\quad
        \max\{\|E_s\|, \|p\|\} \le 2

    Args:
        start: E (n_vocabulary, d_model) and p with entries N(0, 1/d), v of unit norm, as `initial_parameters` draws them.
        delta: δ, the probability that may be missed.
    Returns:
        The bound on inner products and the bound on norms.
    """
    E = real_array(as_parameters(start, "start").E, "start.E", ("n_vocabulary", "d_model"))
    d = E.shape[1]
    p, v = real_array(start.p, "start.p", (d,)), real_array(start.v, "start.v", (d,))
    products = max(float(np.abs(E @ v).max()), float(np.abs(E @ p).max()), abs(float(p @ v)))
    norms = max(float(np.sqrt(np.einsum("sd,sd->s", E, E).max())), float(np.linalg.norm(p)))
    return (
        ProvedBound("B Eq. (14), inner products", products, math.sqrt(log_of_pairs(len(E), delta) / d), d),
        ProvedBound("B Eq. (14), norms", norms, 2.0, d),
    )
