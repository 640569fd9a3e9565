"""Cones around a direction: who lies in them, and points that cover them."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import FloatArray
from marginlens.directions import as_scalar, length, unit
from marginlens.errors import float_array, positive_number, real_array, real_number, reject, whole_number
from marginlens.papers import implements

_INSIDE = 1e-9  # boundary samples keep this share of mu between them and the boundary, so that rounding leaves them in
_ROUNDING = 1e-15  # what rounding can add to the distance of two unit vectors
_LONGER = 1e-14  # samples are longer than the radius by this share of it, so that rounding leaves them beyond it


@implements("A", "Eq. (7)", "Eq. (8)")
def in_cone(p: Any, q: Any, mu: Any, radius: Any = 0.0) -> Any:
    r"""Whether p correlates with q by at least 1 - mu and is at least as long as the radius.

    .. math:: C_{\mu,R}(q) = \Big\{ p : \Big\langle \frac{p}{\|p\|}, \frac{q}{\|q\|} \Big\rangle \ge 1 - \mu,\ \|p\| \ge R \Big\}

    Args:
        p, q: (…, d_key), broadcast against each other. mu, radius: numbers, or arrays (…).
    Returns:
        A bool, or an array (…) of them; never true of a zero vector. Decided on 1 - cosine without its cancellation.
    """
    points, axis = float_array(p, "p"), float_array(q, "q")
    wide, least = float_array(mu, "mu"), float_array(radius, "radius")
    if points.ndim == 0 or axis.ndim == 0 or points.shape[-1] != axis.shape[-1]:
        raise reject("q", f"vectors of p's width, shape {points.shape}", f"shape {axis.shape}")
    if not (wide >= 0.0).all() or np.isnan(least).any():
        raise reject("mu, radius", "a width of at least 0 and a norm", f"mu={mu}, radius={radius}")
    try:
        distance = np.linalg.norm(unit(points) - unit(axis), axis=-1)  # sqrt(2 (1 - cosine)); nan for a zero vector
        return as_scalar((distance <= np.sqrt(2.0 * wide) + _ROUNDING) & (length(points) >= least))
    except ValueError as problem:
        shapes = [points.shape, axis.shape, wide.shape, least.shape]
        raise reject("p, q, mu, radius", "arrays that broadcast against each other", f"shapes {shapes}") from problem


def apart(p: Any, q: Any) -> FloatArray:
    """1 - cosine of p and q over the last axis, as half the squared distance of their unit vectors; nan for a zero vector."""
    return 0.5 * np.sum((unit(p) - unit(q)) ** 2, axis=-1)


@implements("A", "Eq. (8)")
def sample_cone(q: Any, mu: float, radius: float, n: int, rng: Any) -> FloatArray:
    r"""Points of the cone C_{mu,R}(q) that cover its inside, its boundary and its smallest norm.

    Every other point lies on the boundary, correlation 1 - mu; the others are uniform over the cap of directions. Every other pair
    of points has norm R, the others up to 3 R, evenly in the logarithm.

    Args:
        q: (d_key,) the axis. mu: in (0, 2]. radius: R >= 0; norms start at 1 where it is 0.
        n: how many points. rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        Shape (n, d_key); `in_cone(points, q, mu, radius)` is true of all of them. In one dimension all lie along q.
    """
    axis = unit(real_array(q, "q", ("d_key",)))
    mu, radius = positive_number(mu, "mu"), real_number(radius, "radius", "a finite norm of at least 0")
    if mu > 2.0 or not (np.isfinite(radius) and radius >= 0.0) or not (axis.size and np.isfinite(axis).all()):
        raise reject("q, mu, radius", "a nonzero axis, mu up to 2 and a finite radius", f"mu={mu}, radius={radius}")
    generator, d = as_generator(rng), len(axis)
    whole_number(n, "n", at_least=0)
    which = np.arange(n)
    # 1 - cosine of a uniform direction in a small cap grows like u^(2/(d-1)) of a uniform u
    turn = mu * (1.0 - _INSIDE) * generator.random(n) ** (2.0 / max(d - 1, 1))
    turn = np.where(which % 2 == 0, mu * (1.0 - _INSIDE), turn)
    sideways = generator.standard_normal((n, d))
    sideways -= np.outer(sideways @ axis, axis)
    size = np.linalg.norm(sideways, axis=-1, keepdims=True)
    sideways = np.where(size > 0.0, sideways / np.where(size > 0.0, size, 1.0), 0.0)
    if d == 1:
        turn, sideways = np.zeros(n), np.zeros((n, d))
    # 1 - a along the axis and sqrt(a (2 - a)) sideways give the cosine 1 - a, however small a is
    directions = (1.0 - turn)[:, None] * axis + np.sqrt(turn * (2.0 - turn))[:, None] * sideways
    norms = np.where(which % 4 < 2, 0.0, generator.random(n))
    base = radius if radius > 0.0 else 1.0
    return unit(directions) * (base * (1.0 + _LONGER) * 3.0**norms)[:, None]
