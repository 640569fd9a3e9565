"""Norms: values, dual norms and steepest directions."""

from typing import TYPE_CHECKING

from marginlens.norms.entrywise import L1, L2, LInf, Lp
from marginlens.norms.matrix import Frobenius, MaxRow, Nuclear, Spectral
from marginlens.norms.protocol import Norm
from marginlens.removed import no_attribute

__all__ = [
    "L1",
    "L2",
    "Frobenius",
    "LInf",
    "Lp",
    "MaxRow",
    "Norm",
    "Nuclear",
    "Spectral",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
