"""The risk protocol: the interface of a training problem for descent, flows, paths and predictions."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.errors import InputError, float_array, n_axes, real_array
from marginlens.typing import ArrayLike, FloatArray, IntArray


def as_points(x: ArrayLike, shape: tuple[int, ...], argument: str = "x") -> FloatArray:
    """Return `x` as points of this shape, with any leading axes."""
    expected = f"points of shape {shape}, with or without leading axes"
    array = float_array(x, argument, expected)
    if array.shape[max(array.ndim - len(shape), 0) :] != shape:
        raise InputError(argument, expected, f"shape {array.shape}")
    if not np.isfinite(array).all():
        raise InputError(argument, "finite numbers", f"{array[~np.isfinite(array)][0]}")
    return array


def of_each_problem(x: ArrayLike, shape: tuple[int, ...], n_problems: int, argument: str = "x") -> FloatArray:
    """Return `x`, given once for all problems of a batch or with their axis first, as `(n_problems, *shape)`."""
    whole = (n_problems, *shape)
    return np.broadcast_to(real_array(x, argument, whole if n_axes(x) == len(whole) else shape), whole)


def holds_batch(risk: object) -> TypeGuard[Sized]:
    """Return whether a risk stands for a batch of problems; without `is_batch` it stands for one."""
    return bool(getattr(risk, "is_batch", False))


def starting_points(risk: Risk, start: ArrayLike | None) -> FloatArray:
    """Return x(0) as a new array `(batch, *shape)`, zero for None; a risk whose points have parts may join them by its method `start`."""
    if hasattr(risk, "start"):
        return np.array(risk.start(start), dtype=np.float64)
    n_problems = len(risk) if holds_batch(risk) else 1
    if start is None:
        return np.zeros((n_problems, *risk.shape))
    return np.array(of_each_problem(start, tuple(risk.shape), n_problems, "start"), order="C")


class MarginRows(NamedTuple):
    r"""The constraints :math:`\langle a_r, x\rangle \ge b_r` under which x selects given tokens with a margin.

    Attributes:
        rows: `(n_rows, *shape)` the a_r, one for each pair of a selected token and another token.

        lower: (n_rows,) the lower bounds b_r.
    """

    rows: FloatArray
    lower: FloatArray


@runtime_checkable
class Risk(Protocol):
    r"""A training risk L(x) of one problem, with gradients that stay exact even far below the smallest float64.

    A point x is an array of shape `shape`. A risk may stand for a batch of independent problems: then `is_batch` is True,
    `len(risk)` is their number, and points and results have the batch axis first. `marginlens.testing.check_risk` runs the
    contract that every risk must pass, including your own.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one point."""

    def value(self, x: FloatArray) -> Any:
        """Return L(x)."""

    def log_value(self, x: FloatArray) -> Any:
        """Return log L(x), accurate also if L(x) underflows; nan if L(x) is negative."""

    def gradient(self, x: FloatArray) -> LogScaled:
        """Return ∇L(x), accurate relative to its own size at any norm of x."""

    def select(self, x: FloatArray) -> IntArray:
        """Return the index of the token with the largest attention in each input at x, (…, n_inputs)."""

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """Return the constraints under which a point selects these tokens (n_inputs,), for one problem."""

    def smoothness(self) -> Any:
        """Return a Lipschitz constant of ∇L: descent with a constant step of at most its inverse never increases the risk."""
