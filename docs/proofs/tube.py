"""What both forms of X Theorem 1 have in common: the spread of Eq. (11), the integral of Eq. (14), and what is proved."""

from fractions import Fraction

from enclosures import Real
from setting import dot, largest

PROVED = "X Theorem 1: from the point on, training converges to the direction"
PAIRS = 64  # rows up to which D is taken over all pairs; beyond it twice the longest bounds it


def squared_spread(rows):
    """D² of Eq. (11), or a bound on it."""
    lower = [row for row in rows if row.delta > 0]
    if len(rows) > PAIRS:
        widest = 2 * Real(largest(row.wide for row in lower))
        return widest * widest
    squares = [Fraction(0)]
    for j, r in enumerate(lower):
        for s in lower[:j]:
            v, along = [x - y for x, y in zip(r.a, s.a, strict=True)], r.along - s.along
            squares.append(dot(v, v) - along * along)
    return Real(largest(squares))


def lasting(d, R, kappa, h):
    """i_r of Eq. (14)."""
    if d * R > kappa:
        return R / d + kappa / (d * d) + h * R
    return (R + 2 * kappa / (Real(Fraction(1)).exp() * d)) * (2 / d + h)
