"""The Euclidean norm of a vector, and the Frobenius norm of a matrix, which is the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.directions import length
from marginlens.errors import float_array
from marginlens.typing import FloatArray


@dataclass(frozen=True)
class L2:
    r"""The Euclidean norm :math:`\|x\|_2 = (\sum_j x_j^2)^{1/2}` over all entries of a point; it is its own dual."""

    def value(self, x: FloatArray) -> float:
        """‖x‖₂, without overflow or underflow on the way."""
        return float(length(float_array(x, "x").ravel()))

    def dual(self, g: FloatArray) -> float:
        """‖g‖₂."""
        return float(length(float_array(g, "g").ravel()))

    def steepest(self, g: FloatArray) -> FloatArray:
        """g/‖g‖₂, zero where g is zero."""
        gradient = float_array(g, "g")
        largest = float(np.max(np.abs(gradient), initial=0.0))
        if largest == 0.0:
            return np.zeros_like(gradient)
        scaled = gradient / largest
        return scaled / self.value(scaled)


@dataclass(frozen=True)
class Frobenius(L2):
    """The Euclidean norm of a matrix's entries; another name for `L2`, for margin problems whose variable is a matrix."""
