"""The sparsity of an attention map: the papers' soft count of attended tokens."""

from __future__ import annotations

import numpy as np

from marginlens.errors import InputError
from marginlens.papers import implements
from marginlens.typing import ArrayLike, FloatArray


@implements("A", "Fig 6", "Fig 7")
def soft_sparsity(s: ArrayLike) -> FloatArray:
    r"""Count how many tokens an attention map attends to, as a soft count.

    .. math:: \mathrm{nnz}(s) = \|s\|_1 / \|s\|_2^2

    For probabilities it ranges from 1, if one token has all attention, to T, if all T tokens have the same.

    Args:
        s: (…, n_tokens) attention probabilities, zero if a token is not visible.

    Returns:
        (…) the count along the last axis; nan if the map is zero throughout, as for a padded query.

    Examples:
        >>> from marginlens.probe import soft_sparsity
        >>> soft_sparsity([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]).tolist()
        [1.0, 4.0]
    """
    maps = _checked_maps(s)
    square = np.einsum("...t,...t->...", maps, maps)
    return np.asarray(maps.sum(axis=-1) / np.where(square > 0.0, square, np.nan))


def relative_sparsity(s: ArrayLike, n_visible: ArrayLike | None = None) -> FloatArray:
    r"""Divide the soft count of attended tokens by the number of tokens that could be attended, nnz(s)/T.

    Args:
        s: (…, n_tokens) attention probabilities, zero if a token is not visible.

        n_visible: T, the number of tokens that each query sees, a number or an array (…); all n_tokens by default.

    Returns:
        (…) between 1/T and 1 for probabilities; nan if nothing is visible.

    Examples:
        >>> from marginlens.probe import relative_sparsity
        >>> relative_sparsity([[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]], n_visible=[4, 2]).tolist()
        [0.25, 1.0]
    """
    soft = soft_sparsity(s)
    counts = np.asarray(np.shape(s)[-1] if n_visible is None else n_visible, dtype=np.float64)
    return np.asarray(soft / np.where(counts > 0.0, counts, np.nan))


def _checked_maps(s: ArrayLike) -> FloatArray:
    maps = np.asarray(s, dtype=np.float64)
    if maps.ndim == 0 or maps.shape[-1] == 0:
        raise InputError("s", "attention maps of shape (…, n_tokens) with at least one token", f"shape {maps.shape}")
    if not float(maps.min(initial=0.0)) >= 0.0:
        raise InputError("s", "attention probabilities, none of them negative or nan", f"{maps.min()}")
    return maps
