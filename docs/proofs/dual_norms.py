"""Upper bounds on norms and dual norms by their names.

Those are l1, l2, l-inf, lP for a number P above 1, and of matrices frobenius, max-row, spectral and nuclear.
"""

from fractions import Fraction
from itertools import combinations
from math import floor, isqrt, lcm, prod

from enclosures import exp, log, up
from setting import fail
from singular_values import bounds as singular_values

BITS = 160  # of entries, which are rounded up


class Norm:
    """A norm of points with the shape of the weights."""

    def __init__(self, name, shape, size=None):
        if not shape or any(type(length) is not int or length < 1 for length in shape) or len(shape) > 2:
            fail("the shape is that of a vector or a matrix")
        self.name, self.size, self.width, self.power = name, prod(shape), shape[-1], None
        if size not in (None, self.size):
            fail("the shape has as many entries as there are weights")
        of_matrices = ("max-row", "spectral", "nuclear")
        if name in ("l1", "l-inf", "l2", "frobenius") or (name in of_matrices and len(shape) == 2):
            return
        if not (name[:1] == "l" and name[1:2].isdigit()):
            fail(f"the {name} norm is not checked here")
        self.power = Fraction(float(name[1:]))
        if self.power <= 1:
            fail("P of an lP norm is above 1")

    @property
    def dual_power(self):
        """Q of the dual norm lQ of an lP norm."""
        return self.power and self.power / (self.power - 1)

    def value(self, x):
        """An upper bound on ‖x‖."""
        return self._bound(x, sum if self.name in ("l1", "nuclear") else max, self.power)

    def dual(self, x):
        """An upper bound on ‖x‖_*."""
        return self._bound(x, sum if self.name in ("l-inf", "max-row", "spectral") else max, self.dual_power)

    def _bound(self, x, over, power):
        most = max(abs(entry) for entry in x)
        if most == 0:
            return Fraction(0)
        if self.name in ("spectral", "nuclear"):
            return singular_values(x, self.width)[over is sum]
        # Entries as whole numbers in a unit of which the largest has about 2^BITS, rounded up.
        shift = BITS - most.numerator.bit_length() + most.denominator.bit_length()
        more, less, unit = max(shift, 0), max(-shift, 0), Fraction(2) ** shift
        sizes = [-((-abs(entry.numerator) << more) // (entry.denominator << less)) for entry in x]
        if self.name in ("l1", "l-inf"):
            return over(sizes) / unit
        if self.name == "max-row":
            rows = (sizes[k : k + self.width] for k in range(0, len(sizes), self.width))
            return over(euclidean(row) for row in rows) / unit
        if power is None or power == 2:
            return euclidean(sizes) / unit
        return raised(power_sum(sizes, power), 1 / power) / unit

    def widest(self, points):
        """An upper bound on the dual norm of the difference of any two points; 0 for one point."""
        unit, power = lcm(*(entry.denominator for point in points for entry in point)), self.dual_power
        whole = [[int(entry * unit) for entry in point] for point in points]
        pairs = [[x - y for x, y in zip(a, b, strict=True)] for a, b in combinations(whole, 2)]
        pairs = [pair for pair in pairs if any(pair)]
        if power is None or (2 * power).denominator == 1:
            return max(map(self.dual, pairs), default=Fraction(0)) / unit
        # Other powers take long. The logarithm of Σ|x|^q is convex in q, so that two halves of whole numbers around it bound it,
        # and only pairs whose bound is above the largest so far are computed.
        low, widest = Fraction(floor(2 * power), 2), Fraction(0)
        share = 2 * (power - low)
        ends = [[log(power_sum(map(abs, pair), low + half))[1] for half in (0, Fraction(1, 2))] for pair in pairs]
        bounds = [exp(up((1 - share) * x + share * y) / power)[1] for x, y in ends]
        for bound, pair in sorted(zip(bounds, pairs, strict=True), reverse=True):
            if bound > widest:
                widest = max(widest, self.dual(pair))
        return widest / unit


def euclidean(sizes):
    """An upper bound on the Euclidean length of whole numbers."""
    return isqrt(sum(size * size for size in sizes)) + 1


def raised(x, power):
    """An upper bound on x^power for x > 0."""
    return exp(up(power * log(x)[1]))[1]


def power_sum(sizes, power):
    """An upper bound on the sum of powers of whole numbers from 0 on; by roots if 2 power is whole, which is faster."""
    twice = 2 * power
    if twice.denominator == 1:
        return Fraction(sum(isqrt(size ** int(twice)) + 1 for size in sizes))
    return up(sum(raised(Fraction(size), power) for size in sizes if size))
