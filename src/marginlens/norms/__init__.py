"""Norms: value, dual norm and steepest direction."""

from marginlens.norms.euclidean import L2, Frobenius
from marginlens.norms.protocol import Norm

__all__ = ["L2", "Frobenius", "Norm"]
