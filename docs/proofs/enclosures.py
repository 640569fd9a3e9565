"""Numbers between two fractions, for checkers of proofs that use nothing but Python: sums, products, roots, exponentials, logarithms.

Every function rounds outwards: down() for lower ends and up() for upper ends, to so many bits. `Real` computes with all numbers
between two ends at once.
"""

from fractions import Fraction
from math import isqrt

BITS = 256  # of the ends, whose error decides nothing
ONE = 1 << BITS  # the unit of series in whole numbers
LARGEST = 100_000  # of what exponentials are taken


def down(x):
    """A number of about BITS bits that is at most x, and closest to it."""
    power = BITS - x.numerator.bit_length() + x.denominator.bit_length()
    if power >= 0:
        return Fraction((x.numerator << power) // x.denominator, 1 << power)
    return Fraction((x.numerator // (x.denominator << -power)) << -power)


def up(x):
    """A number of about BITS bits that is at least x, and closest to it."""
    return -down(-x)


def root(x):
    """Bounds on the square root of x ≥ 0."""
    if x < 0:
        raise ValueError("the root of a negative number")
    # x is nearly whole / 4^power, with a whole number of at least 2 BITS bits.
    power = max(0, BITS + (x.denominator.bit_length() - x.numerator.bit_length()) // 2 + 1)
    whole = isqrt((x.numerator << 2 * power) // x.denominator)
    return Fraction(whole, 1 << power), Fraction(whole + 1, 1 << power)


def exp(x):
    """Bounds on e^x = 2^power e^rest, with a rest between 1/2 and 3/2."""
    if abs(x) > LARGEST:
        raise OverflowError("the exponential of a huge number")
    power = x // LOG_2[0] - 1
    rests = sorted((x - power * LOG_2[0], x - power * LOG_2[1]))
    ends = _exp_down(rests[0]), _exp_up(rests[1])
    return tuple(end * Fraction(2) ** power for end in ends)


def _exp_down(x):
    """A lower bound on e^x for x from 0 to 2: the series at x/2^9, squared nine times, all rounded down."""
    z = x.numerator * ONE // (x.denominator << 9)
    term = total = ONE
    for n in range(1, 30):
        term = term * z // (n * ONE)
        total += term
    for _ in range(9):
        total = total * total // ONE
    return Fraction(total, ONE)


def _exp_up(x):
    """An upper bound, rounded up; -(-a // b) is a/b rounded up."""
    z = -(-x.numerator * ONE // (x.denominator << 9))
    term = total = ONE
    for n in range(1, 30):
        term = -(-term * z // (n * ONE))
        total += term
    total += term  # more than all remaining terms
    for _ in range(9):
        total = -(-total * total // ONE)
    return Fraction(total, ONE)


def log(x):
    """Bounds on the natural logarithm of x > 0: its powers of two, and the series of the rest."""
    if x <= 0:
        raise ValueError("the logarithm of a number that is not positive")
    power = x.numerator.bit_length() - x.denominator.bit_length()
    low, high = _log_near_one(x / Fraction(2) ** power)
    twos = sorted((power * LOG_2[0], power * LOG_2[1]))
    return low + twos[0], high + twos[1]


def _log_near_one(x):
    """Bounds on log x = 2 (z + z³/3 + z⁵/5 + …) with z = (x - 1)/(x + 1), for x from 1/2 to 2."""
    if x < 1:
        low, high = _log_near_one(1 / x)
        return -high, -low
    z = (x - 1) / (x + 1)
    low = z.numerator * ONE // z.denominator
    high, low_square, total_low, total_high = low + 1, low * low // ONE, 0, 0
    high_square = -(-high * high // ONE)
    for n in range(1, 180, 2):
        total_low += low // n
        total_high += -(-high // n)
        low, high = low * low_square // ONE, -(-high * high_square // ONE)
    total_high += high  # more than all remaining terms, as z ≤ 1/3
    return Fraction(2 * total_low, ONE), Fraction(2 * total_high, ONE)


LOG_2 = _log_near_one(Fraction(2))


class Real:
    """All numbers from `low` to `high`. A comparison is true if it holds for all of them."""

    def __init__(self, low, high=None):
        self.low, self.high = low, low if high is None else high

    def __add__(self, other):
        low, high = _ends(other)
        return Real(down(self.low + low), up(self.high + high))

    def __neg__(self):
        return Real(-self.high, -self.low)

    def __sub__(self, other):
        return self + (-other)

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, other):
        products = [x * y for x in (self.low, self.high) for y in _ends(other)]
        return Real(down(min(products)), up(max(products)))

    def __truediv__(self, other):
        low, high = _ends(other)
        if low <= 0 <= high:
            raise ZeroDivisionError("a number that may be zero")
        return self * Real(1 / Fraction(high), 1 / Fraction(low))

    def __rtruediv__(self, other):
        return Real(Fraction(other)) / self

    def __lt__(self, other):
        return self.high < _ends(other)[0]

    def __gt__(self, other):
        return self.low > _ends(other)[1]

    def __le__(self, other):
        return self.high <= _ends(other)[0]

    __radd__, __rmul__ = __add__, __mul__

    def root(self):
        """Square roots of numbers that are known to be at least 0."""
        return Real(root(max(self.low, Fraction(0)))[0], root(self.high)[1])

    def exp(self):
        """e^x; numbers below -LARGEST have a bound from above."""
        low = exp(self.low)[0] if self.low > -LARGEST else Fraction(0)
        return Real(low, exp(max(self.high, Fraction(-LARGEST)))[1])

    def log(self):
        """Natural logarithms."""
        return Real(log(self.low)[0], log(self.high)[1])


def _ends(x):
    return (x.low, x.high) if isinstance(x, Real) else (x, x)
