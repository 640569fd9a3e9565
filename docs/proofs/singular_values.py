"""Upper bounds on the largest singular value of a matrix and on the sum of all of them.

A decomposition M ≈ A Vᵀ with columns a_j, v_j is guessed in doubles. Nothing relies on it: in whole numbers M is A Vᵀ and a rest,
so that the sum is at most Σ ‖a_j‖‖v_j‖ + √rank ‖rest‖_F, and the largest at most ‖A‖‖V‖ + ‖rest‖_F with
‖A‖² ≤ max ‖a_j‖² + ‖AᵀA without its diagonal‖_F.
"""

from fractions import Fraction
from math import frexp, hypot, isqrt, sqrt

BITS = 60  # of the guess
SWEEPS = 30  # at most; five or so are enough


def guessed(rows):
    """Columns a_j and v_j by Jacobi's rotations of pairs of columns, which make the a_j orthogonal."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    right = [[float(j == k) for k in range(len(columns))] for j in range(len(columns))]
    for _ in range(SWEEPS):
        turned = False
        for j in range(len(columns)):
            for k in range(j):
                a, b = columns[j], columns[k]
                aa, bb, ab = (sum(x * y for x, y in zip(u, v, strict=True)) for u, v in ((a, a), (b, b), (a, b)))
                if abs(ab) <= 1e-15 * sqrt(aa * bb) or ab * ab < 1e-300:
                    continue
                turned, slope = True, (bb - aa) / (2 * ab)
                t = (1 if slope >= 0 else -1) / (abs(slope) + hypot(1, slope))
                c = 1 / hypot(1, t)
                for pair in (columns, right):
                    u, v = pair[j], pair[k]
                    pair[j] = [c * x - c * t * y for x, y in zip(u, v, strict=True)]
                    pair[k] = [c * t * x + c * y for x, y in zip(u, v, strict=True)]
        if not turned:
            break
    return columns, right


def bounds(x, width):
    """The bounds on the largest singular value and on the sum, for the entries of a matrix row by row."""
    rows = [x[k : k + width] for k in range(0, len(x), width)]
    if len(rows) < width:
        rows = list(zip(*rows, strict=True))
    most = max(abs(entry) for entry in x)
    if most == 0:
        return Fraction(0), Fraction(0)
    # All in whole numbers: A in units of 2^power, V of 2^-BITS, and M of 2^(power - BITS), rounded.
    power = frexp(float(most))[1] - BITS
    columns, right = guessed([[float(entry / most) for entry in row] for row in rows])
    to_a, to_m = most / Fraction(2) ** power, Fraction(2) ** (BITS - power)
    A = [[int(Fraction(entry) * to_a) for entry in column] for column in columns]
    V = [[int(entry * 2**BITS) for entry in column] for column in right]
    rest = [
        int(entry * to_m) - sum(a[i] * v[j] for a, v in zip(A, V, strict=True))
        for i, row in enumerate(rows)
        for j, entry in enumerate(row)
    ]
    # Rounding of M changes every entry by less than one unit.
    beside = isqrt(sum(entry * entry for entry in rest)) + 1 + isqrt(len(rest)) + 1
    lengths = [
        (isqrt(sum(y * y for y in a)) + 1) * (isqrt(sum(y * y for y in v)) + 1) for a, v in zip(A, V, strict=True)
    ]
    total = sum(lengths) + (isqrt(len(A)) + 1) * beside
    largest = isqrt(_square(A) * _square(V)) + 1 + beside
    return Fraction(largest) / to_m, Fraction(total) / to_m


def _square(vectors):
    """A bound on the square of the largest singular value of vectors that are nearly orthogonal."""
    gram = [[sum(x * y for x, y in zip(u, v, strict=True)) for v in vectors] for u in vectors]
    off = sum(entry * entry for j, row in enumerate(gram) for k, entry in enumerate(row) if j != k)
    return max(gram[j][j] for j in range(len(gram))) + isqrt(off) + 1
