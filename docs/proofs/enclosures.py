"""Bounds on roots, exponentials and logarithms between two fractions, for checkers of proofs that use nothing but Python."""

from fractions import Fraction
from functools import cache
from math import isqrt

SCALE = 2**320  # bounds are rounded outwards to multiples of its inverse


def down(x):
    """The largest multiple of 1/SCALE that is at most x."""
    return Fraction(x.numerator * SCALE // x.denominator, SCALE)


def up(x):
    """The smallest multiple of 1/SCALE that is at least x."""
    return -down(-x)


def root(x):
    """Bounds on the square root of x ≥ 0."""
    whole = isqrt(x.numerator * SCALE * SCALE // x.denominator)
    return Fraction(whole, SCALE), Fraction(whole + 1, SCALE)


def exp(x):
    """Bounds on e^x: its series at x/2^k, which is at most 1/256, squared k times."""
    halvings = 9 + (abs(x.numerator) // x.denominator).bit_length()
    small = abs(x) / 2**halvings
    sums, terms = [Fraction(1), Fraction(1)], [Fraction(1), Fraction(1)]
    for n in range(1, 30):
        terms = [down(terms[0] * down(small) / n), up(terms[1] * up(small) / n)]
        sums = [sums[0] + terms[0], sums[1] + terms[1]]
    sums[1] += terms[1]  # more than all remaining terms
    for _ in range(halvings):
        sums = [down(sums[0] ** 2), up(sums[1] ** 2)]
    return (sums[0], sums[1]) if x >= 0 else (down(1 / sums[1]), up(1 / sums[0]))


def log(x):
    """Bounds on the natural logarithm of x > 0: its powers of two, and the series of the rest."""
    power = x.numerator.bit_length() - x.denominator.bit_length()
    low_rest, high_rest = _log_near_one(x / Fraction(2) ** power)
    low_two, high_two = _log_near_one(Fraction(2))
    ends = [power * low_two, power * high_two]
    return low_rest + min(ends), high_rest + max(ends)


@cache
def _log_near_one(x):
    """Bounds on log x = 2 (z + z³/3 + z⁵/5 + …) with z = (x - 1)/(x + 1), for x from 1/2 to 2."""
    z = abs(x - 1) / (x + 1)
    square, powers, sums = z * z, [down(z), up(z)], [Fraction(0), Fraction(0)]
    for n in range(1, 220, 2):
        sums = [sums[0] + down(powers[0] / n), sums[1] + up(powers[1] / n)]
        powers = [down(powers[0] * down(square)), up(powers[1] * up(square))]
    sums[1] += powers[1]  # more than all remaining terms, as z ≤ 1/3
    return (2 * sums[0], 2 * sums[1]) if x >= 1 else (-2 * sums[1], -2 * sums[0])


def power(x, exponent):
    """An upper bound on x^exponent, for x ≥ 0 and an exponent above 0; by a root if its double is whole, which is faster."""
    if (2 * exponent).denominator == 1:
        return root(up(x ** int(2 * exponent)))[1]
    return exp(exponent * log(x)[1])[1] if x > 0 else Fraction(0)
