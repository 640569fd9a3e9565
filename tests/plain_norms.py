"""Norms as a user would write them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Weighted:
    """The Euclidean norm with a weight for each entry, as a plain sum of squares."""

    weights: np.ndarray

    def value(self, x):
        return float(np.sqrt(np.sum(self.weights * x**2)))

    def dual(self, g):
        return float(np.sqrt(np.sum(g**2 / self.weights)))

    def steepest(self, g):
        return g / self.weights / (self.dual(g) or 1.0)
