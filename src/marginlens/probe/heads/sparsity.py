"""How sparse an attention map is: soft count of attended tokens, entropy, largest probability, and how many tokens it can do without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marginlens.errors import reject
from marginlens.papers import implements
from marginlens.typing import FloatArray

TOTAL_VARIATION = 1e-3  # between attention and what is left of it, at which tokens count as negligible


@implements("A", "Fig 6", "Fig 7")
def soft_sparsity(s: Any) -> FloatArray:
    r"""How many tokens an attention map attends to, as a soft count.

    .. math:: \mathrm{nnz}(s) = \|s\|_1 / \|s\|_2^2

    For probabilities it runs from 1, one token has all, to T, all T tokens have the same.

    Args:
        s: (…, n_tokens) attention probabilities, zero where a token is not visible.
    Returns:
        (…) the count along the last axis; nan where the map is zero throughout, as for a padded query.
    """
    maps = _checked_maps(s)
    square = np.einsum("...t,...t->...", maps, maps)
    return np.asarray(maps.sum(axis=-1) / np.where(square > 0.0, square, np.nan))


def relative_sparsity(s: Any, n_visible: Any = None) -> FloatArray:
    r"""The soft count of attended tokens over the number of tokens that could be attended, nnz(s)/T.

    Args:
        s: (…, n_tokens) attention probabilities, zero where a token is not visible.
        n_visible: T, how many tokens each query sees: a number or an array (…); all n_tokens where left out.
    Returns:
        (…) between 1/T and 1 for probabilities; nan where nothing is visible.
    """
    soft = soft_sparsity(s)
    counts = np.asarray(np.shape(s)[-1] if n_visible is None else n_visible, dtype=np.float64)
    return np.asarray(soft / np.where(counts > 0.0, counts, np.nan))


def entropy(s: Any) -> FloatArray:
    r"""The entropy of an attention map in nats.

    .. math:: -\sum_t s_t \log s_t

    Args:
        s: (…, n_tokens) attention probabilities, zero where a token is not visible.
    Returns:
        (…) from 0, one token has all, to log T; nan where the map is zero throughout.
    """
    maps = _checked_maps(s)
    logs = np.log(maps, out=np.zeros_like(maps), where=maps > 0.0)
    total = -np.einsum("...t,...t->...", maps, logs) + 0.0  # + 0.0: no negative zero
    return np.asarray(np.where(maps.any(axis=-1), total, np.nan))


def top_probability(s: Any) -> FloatArray:
    """The largest probability of an attention map (…, n_tokens) along the last axis; nan where the map is zero throughout."""
    largest = _checked_maps(s).max(axis=-1)
    return np.asarray(np.where(largest > 0.0, largest, np.nan))


def negligible_share(s: Any, n_visible: Any = None, *, tolerance: float = TOTAL_VARIATION) -> FloatArray:
    r"""The largest share of tokens that can be left out of an attention map at a total variation of at most `tolerance`.

    Attention to the tokens of a set A alone is the map s scaled to sum 1 on A, and

    .. math:: \tfrac12 \Big\|s - \frac{s_A}{s(A)}\Big\|_1 = 1 - s(A),

    so that the tokens of least attention are left out while their sum stays within the tolerance.

    Args:
        s: (…, n_tokens) attention probabilities, zero where a token is not visible.
        n_visible: T, how many tokens each query sees: a number or an array (…); all n_tokens where left out.
        tolerance: of the total variation, from 0 (what has no attention) to below 1.
    Returns:
        (…) between 0 and 1 - 1/T; nan where nothing is visible.
    """
    return negligible_shares(s, (tolerance,), n_visible)[0]


def negligible_shares(s: Any, tolerances: Sequence[float], n_visible: Any = None) -> FloatArray:
    """(n_tolerances, …) `negligible_share` at several tolerances at once."""
    for tolerance in tolerances:
        if not 0.0 <= tolerance < 1.0:
            raise reject("tolerance", "from 0 to below 1", tolerance)
    maps = _checked_maps(s)
    counts = np.asarray(maps.shape[-1] if n_visible is None else n_visible, dtype=np.float64)
    n_hidden = maps.shape[-1] - counts
    sums = np.cumsum(np.sort(maps, axis=-1), axis=-1)  # hidden tokens come first, and are no gain
    n_left_out = np.stack([np.sum(sums <= tolerance, axis=-1) - n_hidden for tolerance in tolerances])
    return np.asarray(np.where(maps.any(axis=-1) & (counts > 0.0), n_left_out / np.maximum(counts, 1.0), np.nan))


def _checked_maps(s: Any) -> FloatArray:
    maps = np.asarray(s, dtype=np.float64)
    if maps.ndim == 0 or maps.shape[-1] == 0:
        raise reject("s", "attention maps of shape (…, n_tokens) with at least one token", f"shape {maps.shape}")
    if not float(maps.min(initial=0.0)) >= 0.0:
        raise reject("s", "attention probabilities, none of them negative or nan", f"{maps.min()}")
    return maps
