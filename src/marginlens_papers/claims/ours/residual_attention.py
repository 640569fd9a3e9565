"""How saturated models compare with the law of residual attention: multipliers, deviations, and the p that the law predicts."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.arithmetic.directions import as_scalar
from marginlens.errors import InputError, float_array
from marginlens.losses.margin import slope_of
from marginlens.risk.softmax import attend
from marginlens.svm.dual_balance import ACTIVE_RANK_RTOL
from marginlens.theory.residual_law import ResidualLaw
from marginlens.typing import ArrayLike, FloatArray


def position(law: ResidualLaw, R: ArrayLike) -> FloatArray:
    r"""The p of norm about R that the law predicts: :math:`R\,p^{mm}/\|p^{mm}\| + \text{offset}`.

    Args:
        R: a number; for one problem an array of any shape, for a batch (batch,) or (batch, …).
    Returns:
        (…, d_key) with R's axes. The norm exceeds R by about ‖offset‖²/(2R). What p has outside the span of the carrying rows is
        no part of it: the start and the first steps leave it there, and it stays bounded.
    """
    norms = float_array(R, "R", "positive finite norms")
    if not np.all(norms > 0.0) or not np.isfinite(norms).all():
        raise InputError("R", "positive finite norms", repr(R))
    if law.data.is_batch and norms.ndim and norms.shape[0] != len(law.data):
        raise InputError("R", f"a number or one norm (or more) per problem, shape ({len(law.data)}, …)", norms.shape)
    extra = norms.ndim - len(law.data.batch_shape) if norms.ndim else 0
    return norms[..., None] * _spread(law.solution.direction, extra) + _spread(law.offset, extra)


def within(law: ResidualLaw, p: ArrayLike) -> FloatArray:
    """The part of p, (…, d_key), in the span of the carrying rows: the part that the law fixes."""
    points, extra = _points(law, p)
    rows = np.where(law.carrying[..., None], law.solution.rows, 0.0)
    inverse = np.linalg.pinv(rows, rcond=ACTIVE_RANK_RTOL)
    basis = _spread(np.matmul(inverse, rows), extra, axes=2)  # (…, d_key, d_key) the orthogonal projection
    return np.where(_spread(np.asarray(law.holds), extra, 0)[..., None], _times(basis, points), np.nan)


def multipliers_from(law: ResidualLaw, p: ArrayLike) -> FloatArray:
    r"""Multipliers read off a model: :math:`|\ell'_i| s_{it} (\gamma_{i\alpha_i} - \gamma_{it})` on the active constraints.

    Args:
        p: (…, d_key); for a batch also (batch, n_points, d_key), for one problem (n_points, d_key).
    Returns:
        (…, n_pairs), scaled so that those of the carrying constraints add up to the solver's; zero if a constraint is not active.
    """
    logs, total, extra = _log_multipliers(law, p)
    active = _spread(law.carrying | law.weak, extra)
    values = np.where(active, np.exp(np.where(active, logs + total, -np.inf)), 0.0)
    return np.where(_spread(np.asarray(law.holds), extra, 0)[..., None], values, np.nan)


def deviation(law: ResidualLaw, p: ArrayLike) -> Any:
    r"""How far p is from the law: the largest :math:`|\log(\hat\lambda_r / \lambda_r)|` over the carrying constraints.

    :math:`\hat\lambda` is `multipliers_from(p)`, never exponentiated, so nothing underflows at any norm.

    Args:
        p: as for `multipliers_from`.
    Returns:
        (…), zero exactly on the law; inf if no law holds.
    """
    logs, total, extra = _log_multipliers(law, p)
    carrying = _spread(law.carrying, extra)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.abs(logs + total - np.log(_spread(law.multipliers, extra)))
    worst = np.max(np.where(carrying, error, 0.0), axis=-1, initial=0.0)
    return as_scalar(np.where(_spread(np.asarray(law.holds), extra, 0), worst, np.inf))


def _log_multipliers(law: ResidualLaw, p: Any) -> tuple[FloatArray, FloatArray, int]:
    """Logarithms of the weights that sum to one over the carrying rows, (…, n_pairs), log Σλ (…, 1), and p's extra axes."""
    points, extra = _points(law, p)
    keys, mask = _spread(law.data.K, extra, 3), _spread(law.data.mask, extra, 2)
    alpha = np.broadcast_to(_spread(law.selected, extra), (*points.shape[:-1], law.data.n_inputs))
    chosen = np.take_along_axis(keys, _spread(law.selected, extra)[..., None, None], axis=-2)
    gaps = np.einsum("...itd,...d->...it", keys - chosen, points)  # logits less that of α
    scores = np.broadcast_to(_spread(law.scores, extra, 2), gaps.shape)
    at = attend(gaps, scores, np.broadcast_to(mask, gaps.shape), alpha)
    slope = slope_of(law.loss, at.margin).log[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = slope + at.log_s + np.log(at.gap)
    pairs = np.maximum(np.asarray(law.solution.pairs), 0)
    place = _spread(pairs[..., 0] * law.data.n_tokens + pairs[..., 2], extra)
    place = np.broadcast_to(place, (*points.shape[:-1], place.shape[-1]))
    logs = np.take_along_axis(logs.reshape(*points.shape[:-1], law.data.n_inputs * law.data.n_tokens), place, axis=-1)
    carrying = _spread(law.carrying, extra)
    inside = np.where(carrying, logs, -np.inf)
    largest = np.max(inside, axis=-1, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):  # if no law holds
        logs = logs - largest - np.log(np.sum(np.exp(inside - largest), axis=-1, keepdims=True))
        total = np.log(np.sum(law.multipliers, axis=-1, keepdims=True))
    return logs, _spread(total, extra), extra


def _points(law: ResidualLaw, p: Any) -> tuple[FloatArray, int]:
    """p as an array, and how many axes it has between the batch axis and the last."""
    points = float_array(p, "p", "weights")
    lead = law.data.batch_shape
    if points.ndim == 1 and lead and points.shape[-1] == law.data.d_key:
        points = np.broadcast_to(points, (*lead, law.data.d_key))
    if points.ndim < 1 + len(lead) or points.shape[: len(lead)] != lead or points.shape[-1] != law.data.d_key:
        wanted = ", ".join(["batch"] * len(lead) + ["…", str(law.data.d_key)])
        raise InputError("p", f"weights of shape ({wanted})", f"shape {points.shape}")
    if not np.isfinite(points).all():
        raise InputError("p", "finite weights", "nan or inf among them")
    return points, points.ndim - 1 - len(lead)


def _spread(values: Any, extra: int, axes: int = 1) -> Any:
    """`values` with `extra` axes of length one before its last `axes`, so that it broadcasts against points."""
    array = np.asarray(values)
    cut = array.ndim - axes
    return array.reshape((*array.shape[:cut], *[1] * extra, *array.shape[cut:]))


def _times(matrix: FloatArray, vector: FloatArray) -> FloatArray:
    return np.einsum("...de,...e->...d", matrix, vector)
