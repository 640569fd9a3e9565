"""The norm protocol: the interface of a norm for descent, margins and paths."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from marginlens.typing import FloatArray


@runtime_checkable
class Norm(Protocol):
    r"""A norm on points of one shape, with its dual norm and its directions of steepest ascent.

    Three methods are enough for descent, margins and predictions; `needs_matrix = True` means that points are matrices.
    `marginlens.testing.check_norm` runs the contract that every norm must pass, including your own.
    """

    def value(self, x: FloatArray) -> float:
        """Return ‖x‖ of one point of any shape."""

    def dual(self, g: FloatArray) -> float:
        r"""Return the dual norm :math:`\|g\|_* = \max_{\|x\| \le 1} \langle g, x\rangle`."""

    def steepest(self, g: FloatArray) -> FloatArray:
        r"""Return a point s of norm one with :math:`\langle g, s\rangle = \|g\|_*`, of g's shape; undefined at g = 0.

        If several points attain the maximum, the documentation of the norm says which one is returned.
        """
