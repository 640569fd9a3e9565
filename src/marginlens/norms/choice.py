"""Norms as arguments: by name on the command line, and checked against the shape of the variable."""

from __future__ import annotations

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError
from marginlens.kinds import inherited_attr
from marginlens.names import NORMS, nearest
from marginlens.norms.entrywise import L1, L2, LInf, Lp
from marginlens.norms.protocol import Norm
from marginlens.typing import FloatArray

_NAMES = ", ".join([*NORMS.names[:3], "lP for a number P such as l1.75", *NORMS.names[3:]])


def norm_named(name: object, argument: str = "norm") -> Norm:
    """Return the norm of a name: l1, l2, l-inf, l1.75 (any number from 1 on), frobenius, spectral, nuclear or max-row.

    Examples:
        >>> from marginlens.norms.choice import norm_named
        >>> norm_named("l1.75"), norm_named("spectral")
        (Lp(p=1.75), Spectral())
    """
    word = name.strip().lower() if isinstance(name, str) else ""
    try:
        power = float(word[1:]) if word[:1] == "l" and word[1:2].isdigit() else None
        if power is None:
            norm: Norm = NORMS.class_named(name)()
            return norm
    except ValueError:
        raise InputError(argument, f"one of {_NAMES}", repr(name), nearest(word, NORMS.names)) from None
    if power < 1.0:
        raise InputError(argument, "lP with a number P of at least 1", repr(name), "Below 1 there is no norm.")
    ends: dict[float, Norm] = {1.0: L1(), 2.0: L2(), np.inf: LInf()}
    return ends[power] if power in ends else Lp(power)


def norm_name(norm: Norm) -> str:
    """Return the name by which `norm_named` finds a norm of this library.

    Examples:
        >>> import marginlens as ml
        >>> from marginlens.norms.choice import norm_name
        >>> norm_name(ml.LInf())
        'l-inf'
    """
    return f"l{norm.p!r}" if type(norm) is Lp else NORMS.name_of(norm)


def as_norm(norm: object, shape: tuple[int, ...], argument: str = "norm") -> Norm:
    """Return `norm` if it is a norm for points of this shape, otherwise raise."""
    if isinstance(norm, type) or not isinstance(norm, Norm):
        got = f"the class {norm.__name__}" if isinstance(norm, type) else repr(norm)
        expected = (
            "a norm such as ml.L2(), ml.LInf() or ml.Spectral(), or an object with the methods value, dual and steepest"
        )
        raise InputError(argument, expected, got)
    if getattr(norm, "needs_matrix", False) and len(shape) != 2:
        kind = "a vector" if len(shape) == 1 else f"a point of shape {shape}"
        raise InputError(
            argument, f"a norm of {kind}, such as L2 or LInf", f"{type(norm).__name__}, a norm of matrices"
        )
    return norm


def direction_of(norm: Norm, gradient: LogScaled) -> FloatArray:
    """Return the steepest directions of gradients `(…, *shape)` in a norm, zero if a gradient is zero.

    A norm may have a method `direction_of(gradient)`, which is used if present and may take entries far below the smallest
    float64. Otherwise `steepest` is called on each point, scaled to moderate size.
    """
    directly = inherited_attr(norm, "direction_of")
    if directly is not None:
        direction: FloatArray = directly(gradient)
        return direction
    points = gradient.direction()
    out = np.empty_like(points)
    for index in np.ndindex(points.shape[: points.ndim - gradient.axes]):
        out[index] = norm.steepest(points[index]) if np.any(points[index]) else 0.0
    return out
