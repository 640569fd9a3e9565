"""Upper bounds on norms and dual norms by their names: l1, l2, l-inf, lP for a number P above 1, frobenius and max-row.

The spectral and the nuclear norm have no exact formula, and are not checked here.
"""

from fractions import Fraction
from itertools import combinations
from math import floor, isqrt, prod

from enclosures import BITS, exp, log, up
from setting import fail


class Norm:
    """A norm of points with the shape of the weights."""

    def __init__(self, name, shape, size=None):
        if not shape or any(type(length) is not int or length < 1 for length in shape) or len(shape) > 2:
            fail("the shape is that of a vector or a matrix")
        self.name, self.size, self.width, self.power = name, prod(shape), shape[-1], None
        if size not in (None, self.size):
            fail("the shape has as many entries as there are weights")
        if name in ("l1", "l-inf", "l2", "frobenius"):
            return
        if name == "max-row" and len(shape) == 2:
            return
        if not (name[:1] == "l" and name[1:2].isdigit()):
            fail(f"the {name} norm is not checked here")
        self.power = Fraction(float(name[1:]))
        if self.power <= 1:
            fail("P of an lP norm is above 1")

    def value(self, x):
        """An upper bound on ‖x‖."""
        return self._bound(x, "l1" if self.name == "l1" else "l-inf", self.power, max)

    def dual(self, x):
        """An upper bound on ‖x‖_*."""
        power = self.power and self.power / (self.power - 1)
        return self._bound(x, "l1" if self.name == "l-inf" else "l-inf", power, sum)

    def _bound(self, x, entrywise, power, over_rows):
        # Entries as whole numbers, rounded up to about BITS bits of the largest.
        most = max(abs(entry) for entry in x)
        if most == 0:
            return Fraction(0)
        shift = BITS - most.numerator.bit_length() + most.denominator.bit_length()
        unit = Fraction(2) ** shift
        sizes = [-((-abs(entry.numerator) << max(shift, 0)) // (entry.denominator << max(-shift, 0))) for entry in x]
        if self.name in ("l1", "l-inf"):
            return (sum(sizes) if entrywise == "l1" else max(sizes)) / unit
        if self.name == "max-row":
            rows = (sizes[k : k + self.width] for k in range(0, len(sizes), self.width))
            return over_rows(isqrt(sum(size * size for size in row)) + 1 for row in rows) / unit
        if power is None or power == 2:
            return (isqrt(sum(size * size for size in sizes)) + 1) / unit
        return power_of(power_sum([Fraction(size, max(sizes)) for size in sizes], power), 1 / power) * max(sizes) / unit

    def widest(self, points):
        """An upper bound on the dual norm of the difference of any two points; 0 for one point."""
        pairs = [[x - y for x, y in zip(a, b, strict=True)] for a, b in combinations(points, 2)]
        power = self.power and self.power / (self.power - 1)
        if power is None or (2 * power).denominator == 1:
            return max(map(self.dual, pairs), default=Fraction(0))
        # Powers take long. Σ|x|^q is a logarithmically convex function of q, so that those of q = 1, 3/2, 2, … on both sides
        # bound it, and only pairs whose bound is above the largest so far are computed.
        low = Fraction(floor(2 * power), 2)
        share, widest = 2 * (power - low), Fraction(0)
        bounded = []
        for pair in pairs:
            most = max(map(abs, pair))
            ends = [power_sum([abs(x) / most for x in pair], q) for q in (low, low + Fraction(1, 2))] if most else []
            logs = [log(end)[1] for end in ends]
            bound = up(most * exp(((1 - share) * logs[0] + share * logs[1]) / power)[1]) if most else most
            bounded.append((bound, pair))
        for bound, pair in sorted(bounded, key=lambda each: each[0], reverse=True):
            if bound > widest:
                widest = max(widest, self.dual(pair))
        return widest


def power_of(x, power):
    """An upper bound on x^power for x ≥ 0; by a root if 2 power is whole, which is faster."""
    if (2 * power).denominator == 1:
        whole, twice = -((-x.numerator << BITS) // x.denominator), int(2 * power)
        return Fraction(isqrt(whole**twice) + 1, 1 << BITS // 2 * twice)
    return exp(power * log(x)[1])[1] if x > 0 else Fraction(0)


def power_sum(shares, power):
    """An upper bound on the sum of powers."""
    return up(sum(power_of(share, power) for share in shares))
