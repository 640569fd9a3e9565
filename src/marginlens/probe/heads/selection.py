"""Selections of attention: the token with the largest logit for each query, and its lead over the second largest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.errors import InputError
from marginlens.typing import ArrayLike, FloatArray, IntArray


@dataclass(frozen=True, repr=False, eq=False)
class Selection:
    """The selected token of every query.

    Attributes:
        selected: (…) the position of the visible token with the largest logit, the first one in a tie; -1 if a query sees
            nothing.

        margin: (…) its logit minus the second largest: 0 in a tie, infinite if a query sees one token, nan if it sees nothing.

        n_tied: (…) how many visible tokens share the largest logit, up to rounding: 1 if the selection is unique, 0 if a query sees
            nothing.
    """

    selected: IntArray
    margin: FloatArray
    n_tied: IntArray

    def __repr__(self) -> str:
        return f"Selection({int(np.isfinite(self.margin).sum())} choices, {int((self.n_tied > 1).sum())} tied)"

    @property
    def unique(self) -> IntArray:
        """The selected token (…) if it alone has the largest logit; -1 in a tie, which selects none."""
        return np.where(self.n_tied == 1, self.selected, -1)


def select_tokens(logits: ArrayLike, visible: ArrayLike | None = None, rounding: ArrayLike = 0.0) -> Selection:
    """Find the token that each query selects among those it sees, and the margin of its logit.

    Args:
        logits: (…, n_queries, n_tokens) the logits, minus infinity if a token is not visible.

        visible: whether a query sees a token, in the shape of the logits or without their axis of heads: (n_inputs, n_queries,
            n_tokens) for logits (n_inputs, n_heads, n_queries, n_tokens). If left out, tokens of finite logit are visible.

        rounding: the largest distance of tied logits, one number or one for each query, such as `LayerReading.rounding` of a
            model.

    Returns:
        A `Selection` with arrays of the logits' shape without the last axis.

    Examples:
        >>> from marginlens.probe import select_tokens
        >>> selection = select_tokens([[2.0, 0.5, 1.0], [3.0, 3.0, 0.0]])
        >>> selection.unique.tolist(), selection.margin.tolist()
        ([0, -1], [1.0, 0.0])
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise InputError("logits", "of shape (…, n_queries, n_tokens) with at least one token", f"shape {values.shape}")
    sees = np.isfinite(values) if visible is None else np.asarray(visible, dtype=bool)
    if sees.ndim == values.ndim - 1 and sees.ndim >= 2:
        sees = np.expand_dims(sees, -3)
    if sees.ndim != values.ndim or any(a not in (1, b) for a, b in zip(sees.shape, values.shape, strict=True)):
        raise InputError("visible", f"a mask for logits of shape {values.shape}", f"shape {sees.shape}")
    if bool((np.isnan(values) & sees).any()):
        raise InputError("logits", "numbers for visible tokens", "nan")
    tolerance = np.asarray(rounding, dtype=np.float64)
    if tolerance.shape not in ((), values.shape[:-1]) or not bool((tolerance >= 0.0).all()):
        raise InputError(
            "rounding",
            f"one number of at least zero, or such numbers of shape {values.shape[:-1]}",
            f"shape {tolerance.shape}, smallest {tolerance.min(initial=np.inf)}",
        )
    masked = np.where(sees, values, -np.inf)
    selected = np.argmax(masked, axis=-1)
    best = np.take_along_axis(masked, selected[..., None], axis=-1)
    tolerance = np.where(np.isfinite(best), tolerance[..., None], 0.0)
    n_tied = ((masked >= best - tolerance) & sees).sum(axis=-1)
    np.put_along_axis(masked, selected[..., None], -np.inf, axis=-1)
    sees_none = ~np.broadcast_to(sees, values.shape).any(axis=-1)
    with np.errstate(invalid="ignore"):
        margin = best[..., 0] - masked.max(axis=-1)  # infinite if there is no second token
    return Selection(
        np.where(sees_none, -1, selected).astype(np.int64),
        np.where(sees_none, np.nan, margin),
        n_tied.astype(np.int64),
    )
