"""Arrays and risks with a logarithmic scale, which keep all their digits even if they are too small for float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.errors import InputError
from marginlens.typing import ArrayLike, FloatArray

MAX_SPREAD = 600.0  # of the logarithms of terms that one scale serves: e^-600 squared is no float64, but itself is one


@dataclass(frozen=True, eq=False)
class RankOneTerms:
    r"""A matrix, or a batch of matrices, as a sum of rank-one terms of any size, :math:`\sum_m e^{s_m} l_m r_m^\top`.

    The dense sum loses everything below the largest term by sixteen digits, and with it small singular values.

    Attributes:
        left: (…, n_terms, d_left) the vectors l_m.

        right: (…, n_terms, d_right) the vectors r_m.

        log_scale: (…, n_terms) the logarithmic scales s_m.
    """

    left: FloatArray
    right: FloatArray
    log_scale: FloatArray

    def __getitem__(self, index: Any) -> RankOneTerms:
        """Return the terms of one element of a batch, or of several."""
        return RankOneTerms(self.left[index], self.right[index], self.log_scale[index])

    def rows(self, place: slice) -> RankOneTerms:
        """Take some rows of the matrix, without the terms that are zero there."""
        left = self.left[..., place]
        used = np.any(left != 0.0, axis=(*range(left.ndim - 2), -1))
        return RankOneTerms(left[..., used, :], self.right[..., used, :], self.log_scale[..., used])

    def dense(self) -> tuple[FloatArray, FloatArray]:
        """Return the sum as an array (…, d_left, d_right) and the logarithms of its scales: (…), or one for each entry.

        Entries have separate scales if terms differ so much that the smaller would underflow relative to the larger.
        """
        present = np.any(self.left != 0.0, axis=-1) & np.any(self.right != 0.0, axis=-1)
        logs = np.where(present, self.log_scale, -np.inf)
        largest = np.max(logs, axis=-1, initial=-np.inf)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        if np.all(~present | (logs - largest[..., None] > -MAX_SPREAD)):
            weights = np.exp(logs - largest[..., None])
            return np.einsum("...m,...mq,...md->...qd", weights, self.left, self.right), largest
        return self._dense_by_entry(logs)

    def plus(self, other: RankOneTerms, factor: float) -> RankOneTerms:
        """Return the terms of the sum with `factor` times another matrix. Their number is the same if both have the same left
        vectors, and otherwise at most three times the number of rows or columns.
        """
        scale = other.log_scale + np.log(factor)
        if np.array_equal(self.left, other.left):
            own, added = (
                np.where(np.any(right != 0.0, axis=-1), logs, -np.inf)
                for right, logs in ((self.right, self.log_scale), (other.right, scale))
            )
            largest = np.maximum(own, added)
            largest = np.where(np.isfinite(largest), largest, 0.0)
            right = self.right * np.exp(own - largest)[..., None] + other.right * np.exp(added - largest)[..., None]
            return RankOneTerms(self.left, right, largest)
        joined = RankOneTerms(
            np.concatenate([self.left, other.left], axis=-2),
            np.concatenate([self.right, other.right], axis=-2),
            np.concatenate([self.log_scale, scale], axis=-1),
        )
        return joined if joined.log_scale.shape[-1] <= 3 * min(joined._shape) else joined.singular_terms()

    @property
    def _shape(self) -> tuple[int, int]:
        return self.left.shape[-1], self.right.shape[-1]

    def singular_terms(self) -> RankOneTerms:
        """Return the same matrices as sums over their singular values: min(d_left, d_right) terms, of which some may be zero."""
        batch, count = self.left.shape[:-2], min(self._shape)
        n = math.prod(batch)
        given = [x.reshape(n, *x.shape[len(batch) :]) for x in (self.left, self.right, self.log_scale)]
        left, right, scale = (np.empty((n, count, *x.shape[2:])) for x in given)
        core.singular_triplets(*given, left, right, scale, np.empty(n, dtype=np.int64))
        return RankOneTerms(*(x.reshape(*batch, *x.shape[1:]) for x in (left, right, scale)))

    def _dense_by_entry(self, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the sum with a scale for each entry, that of its largest nonzero term."""
        shape = (*self.left.shape[:-2], self.left.shape[-1], self.right.shape[-1])
        products = [self.left[..., m, :, None] * self.right[..., m, None, :] for m in range(logs.shape[-1])]
        scale = np.full(shape, -np.inf)
        for m, product in enumerate(products):
            scale = np.maximum(scale, np.where(product != 0.0, logs[..., m, None, None], -np.inf))
        scale = np.where(np.isfinite(scale), scale, 0.0)
        total = np.zeros(shape)
        for m, product in enumerate(products):
            total += product * np.exp(np.minimum(logs[..., m, None, None] - scale, 0.0))
        return total, scale


@dataclass(frozen=True, eq=False, repr=False)
class LogScaled:
    """The array `array · exp(log_scale)`, a point or a batch of points.

    Attributes:
        array: `(…, *shape)` the numbers up to a positive factor, of moderate size.

        log_scale: (…) the logarithm of the factor; or an array of the shape of `array`, if parts of a point have separate
            factors.

        axes: the number of trailing axes of `array` that make up one point.

        blocks: the parts of a point by name, as slices of its first axis, if it has parts.

        terms: the same matrices as sums of rank-one terms, if these are known; they keep every singular value.
    """

    array: FloatArray
    log_scale: FloatArray
    axes: int = 1
    blocks: Mapping[str, slice] | None = None
    terms: RankOneTerms | None = None

    def value(self) -> FloatArray:
        """Return the plain array; entries below the smallest float64 become zero."""
        with np.errstate(over="ignore"):
            return self.array * np.exp(self.aligned(self.log_scale))

    @property
    def log_norm(self) -> FloatArray:
        """Logarithm of the Euclidean norm of each point, (…); -inf for zero."""
        normalized, log_scale = self._one_scale()
        with np.errstate(divide="ignore"):
            return np.log(length(self._flat(normalized))) + np.where(np.isfinite(log_scale), log_scale, 0.0)

    def direction(self) -> FloatArray:
        """Divide every point by its Euclidean norm; zero points stay zero."""
        normalized, _ = self._one_scale()
        norms = self.aligned(length(self._flat(normalized)))
        return np.divide(normalized, norms, out=np.zeros_like(normalized), where=norms != 0.0)

    def is_zero(self) -> npt.NDArray[np.bool_]:
        """Return which points are exactly zero, (…)."""
        return ~np.any(self._flat(self.array), axis=-1)

    def __getitem__(self, index: Any) -> LogScaled:
        """Return one element of a batch, or several."""
        return LogScaled(
            self.array[index],
            np.asarray(self.log_scale)[index],
            self.axes,
            self.blocks,
            None if self.terms is None else self.terms[index],
        )

    def block(self, name: str) -> LogScaled:
        """Return the part of each point that is called `name`."""
        place = self.place(name)
        scale = self.log_scale[place] if np.ndim(self.log_scale) == self.array.ndim else self.log_scale
        terms = None if self.terms is None else self.terms.rows(place[1])
        return LogScaled(self.array[place], scale, self.axes, terms=terms)

    def place(self, name: str) -> Any:
        """Return the index of the part that is called `name` in an array of points."""
        if self.blocks is None or name not in self.blocks:
            raise InputError(
                "name", f"one of {', '.join(self.blocks or ()) or 'no blocks: this point has none'}", repr(name)
            )
        return (Ellipsis, self.blocks[name], *(slice(None),) * (self.axes - 1))

    def plus(self, other: LogScaled, factor: float) -> LogScaled:
        """Return self + factor · other for a factor above zero: no entry is lost beside larger ones, and terms are added as terms."""
        own, added = self._used_scale(), other._used_scale() + np.log(factor)
        if own.ndim < self.array.ndim or added.ndim < self.array.ndim:
            apart = np.abs(self.aligned(own) - self.aligned(added))
            if np.any(np.isfinite(apart) & (apart > MAX_SPREAD)):
                own, added = np.broadcast_arrays(self.aligned(own), self.aligned(added), self.array)[:2]
        if own.ndim == self.array.ndim or added.ndim == self.array.ndim:
            own = np.where(self.array != 0.0, self.aligned(own), -np.inf)
            added = np.where(other.array != 0.0, self.aligned(added), -np.inf)
        largest = np.maximum(own, added)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        array = self.array * np.exp(self.aligned(own - largest)) + other.array * np.exp(self.aligned(added - largest))
        both = self.terms is not None and other.terms is not None
        terms = self.terms.plus(other.terms, factor) if both else None  # type: ignore[union-attr, arg-type]
        return LogScaled(array, largest, self.axes, self.blocks, terms)

    def _used_scale(self) -> FloatArray:
        """Return the scales, -inf if a point is zero."""
        scale = np.asarray(self.log_scale, dtype=np.float64)
        if scale.ndim == self.array.ndim:
            return np.where(self.array != 0.0, scale, -np.inf)
        return np.where(self.is_zero(), -np.inf, scale)

    def __repr__(self) -> str:
        return f"LogScaled(shape={self.array.shape}, log_norm={np.round(self.log_norm, 3)})"

    def _one_scale(self) -> tuple[FloatArray, FloatArray]:
        """Return an array and scales (…) of the same points."""
        if np.ndim(self.log_scale) < self.array.ndim:
            return self.array, self.log_scale
        used = np.where(self.array != 0.0, self.log_scale, -np.inf)
        largest = np.max(self._flat(used), axis=-1, initial=-np.inf)
        largest = np.where(np.isfinite(largest), largest, 0.0)
        return self.array * np.exp(np.minimum(used - self.aligned(largest), 0.0)), largest

    def aligned(self, values: ArrayLike) -> FloatArray:
        """Return values (…), or of the array's shape, in a form that broadcasts against the array."""
        values = np.asarray(values, dtype=np.float64)
        return values if values.ndim == self.array.ndim else values.reshape(values.shape + (1,) * self.axes)

    def _flat(self, array: FloatArray) -> FloatArray:
        return array.reshape(*array.shape[: array.ndim - self.axes], -1)


@dataclass(frozen=True)
class ExcessRisk:
    """The excess `sign · exp(log)` of the risk over that of selecting the given tokens, negative if sign is -1; both have shape (…)."""

    sign: FloatArray
    log: FloatArray

    def above(self, other: ExcessRisk) -> Any:
        """Return whether this excess is strictly larger than `other`, decided on logarithms, elementwise."""
        with np.errstate(invalid="ignore"):  # the logarithm of no excess is -inf
            height, its_height = self.sign * self.log, other.sign * other.log
        return np.where(self.sign != other.sign, self.sign > other.sign, height > its_height)

    def __getitem__(self, index: Any) -> ExcessRisk:
        return ExcessRisk(np.asarray(self.sign)[index], np.asarray(self.log)[index])
