"""Norms: value, dual norm and steepest direction."""

from marginlens.norms.choice import as_norm, direction_of, norm_name, norm_named
from marginlens.norms.entrywise import L1, L2, LInf, Lp
from marginlens.norms.matrix import Frobenius, MaxRow, Nuclear, Spectral
from marginlens.norms.protocol import Norm

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
    "as_norm",
    "direction_of",
    "norm_name",
    "norm_named",
]
