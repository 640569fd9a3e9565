"""Compiled steepest directions of norms of entries and of rows; those of matrices are in `marginlens.kernels.graded_svd`."""

from __future__ import annotations

import math
from typing import Any

from marginlens.kernels.linalg import COMPILED
from marginlens.runtime.compilation import njit

LARGEST_ENTRY, EUCLIDEAN, SIGN, POWER = range(4)  # steepest directions of L1, L2, LInf and Lp
TIE_RTOL = 1e-12  # of the largest modulus: entries this close to it are as large, whichever way sums were rounded


@njit(**COMPILED)
def steepest_entries(g: Any, code: int, power: float, out: Any) -> None:
    """out = the steepest direction of g (d,) in the norm of this code; zero where g is zero.

    Args:
        power: p of Lp, above 1; other norms do not read it.
    """
    if code == SIGN:
        for k in range(g.shape[0]):
            out[k] = 1.0 if g[k] > 0.0 else (-1.0 if g[k] < 0.0 else 0.0)
        return
    largest = 0.0
    for k in range(g.shape[0]):
        largest = max(largest, abs(g[k]))
    out[:] = 0.0
    if largest == 0.0:
        return
    if code == LARGEST_ENTRY:
        for k in range(g.shape[0]):
            if abs(g[k]) >= (1.0 - TIE_RTOL) * largest:
                out[k] = 1.0 if g[k] > 0.0 else -1.0
                return
    exponent = 1.0 if code == EUCLIDEAN else 1.0 / (power - 1.0)
    total = 0.0  # Σ |out|^p, which is Σ |g| |out| because p/(p - 1) = 1 + 1/(p - 1)
    for k in range(g.shape[0]):
        share = abs(g[k]) / largest
        size = share
        if exponent == 0.5:
            size = math.sqrt(share)
        elif exponent != 1.0 and share > 0.0:
            size = math.exp(exponent * math.log(share))
        total += share * size
        out[k] = size if g[k] > 0.0 else -size
    norm = math.sqrt(total) if exponent == 1.0 else total ** (1.0 / power)
    for k in range(g.shape[0]):
        out[k] /= norm


@njit(**COMPILED)
def steepest_log_entries(g: Any, log_scale: Any, power: float, out: Any) -> None:
    """out = the steepest direction of g · exp(log_scale), entry by entry, in Lp with p above 1; no entry underflows before its root."""
    out[:] = 0.0
    largest = -math.inf
    for k in range(g.shape[0]):
        if g[k] != 0.0:
            largest = max(largest, math.log(abs(g[k])) + log_scale[k])
    for k in range(g.shape[0]):
        if g[k] != 0.0:
            size = math.exp((math.log(abs(g[k])) + log_scale[k] - largest) / (power - 1.0))
            out[k] = size if g[k] > 0.0 else -size
    if largest > -math.inf:
        _divide_by_norm(out, power)


@njit(**COMPILED)
def _divide_by_norm(x: Any, power: float) -> None:
    """x / ‖x‖_p, for x whose largest modulus is one."""
    total = 0.0
    for k in range(x.shape[0]):
        size = abs(x[k])
        total += size * size if power == 2.0 else size**power
    norm = math.sqrt(total) if power == 2.0 else total ** (1.0 / power)
    for k in range(x.shape[0]):
        x[k] /= norm


@njit(**COMPILED)
def steepest_rows(G: Any, out: Any) -> None:
    """out = G (n, d) with every row divided by its Euclidean norm; zero rows stay zero."""
    for i in range(G.shape[0]):
        steepest_entries(G[i], EUCLIDEAN, 2.0, out[i])
