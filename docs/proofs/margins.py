"""Margins: the primal vector and the multipliers of a hard-margin problem A x ≥ b, C x = 0 bracket its margin in a norm.

The margin is 1/‖x‖ for the shortest x. With multipliers λ ≥ 0 and any μ every such x has b·λ ≤ (Aᵀλ + Cᵀμ)·x, so that the
margin is at most ‖Aᵀλ + Cᵀμ‖_* / b·λ. A vector that obeys all rows after scaling bounds it from below. If no x obeys all rows,
Farkas' multipliers make the upper bound 0, or as small as rounding of the rows lets them.
"""

from fractions import Fraction

from dual_norms import Norm
from setting import dot, fail, need, numbers

NEARLY = Fraction(1, 10**8)  # share of |a|·|x| up to which a·x counts as 0


def matrix_of(proof, name, width):
    """The rows of A or C: as they are, or s (x_i - x_j) qᵀ from tokens X, queries Q, triples (k, i, j) and factors s."""
    if type(proof[name]) is list:
        return numbers(proof, name, len(proof[name]), width)
    parts = proof[name]
    X, Q = (numbers(parts, part, len(parts[part]), len(parts[part][0])) for part in ("X", "Q"))
    scale = numbers(parts, "scale", len(parts["triples"]))
    rows = []
    for s, [k, i, j] in zip(scale, parts["triples"], strict=True):
        if any(type(index) is not int or index < 0 for index in (k, i, j)):
            fail("rows name tokens and queries that are there")
        row = [s * (x - y) * q for x, y in zip(X[i], X[j], strict=True) for q in Q[k]]
        if len(row) != width:
            fail("rows and solution have the same size")
        rows.append(row)
    return rows


def onto(x, planes):
    """A point near x with a·x = 0 for all planes, exactly: solve for the entries where a plane is steepest, one by one."""
    rows = []
    for plane in planes:
        for pivot, row in rows:
            plane = [a - plane[pivot] * b for a, b in zip(plane, row, strict=True)]
        pivot = max(range(len(x)), key=lambda k: abs(plane[k]))
        if plane[pivot]:
            new = [entry / plane[pivot] for entry in plane]
            rows = [(k, [a - row[pivot] * b for a, b in zip(row, new, strict=True)]) for k, row in rows]
            rows.append((pivot, new))
    x = list(x)
    for pivot, row in rows:
        x[pivot] -= dot(row, x)
    return x


def check(proof):
    """Raise NotProved at the first condition that may fail; return what is proved."""
    b = numbers(proof, "lower", len(proof["lower"]), least=0)
    norm = Norm(proof["norm"], proof["shape"])
    A = matrix_of(proof, "rows", norm.size)
    C = matrix_of(proof, "equalities", norm.size) if "equalities" in proof else []
    multipliers = numbers(proof, "multipliers", len(A), least=0)
    mu = numbers(proof, "equality_multipliers", len(C)) if C else []
    low, high = numbers(proof, "low", least=0), numbers(proof, "high", least=0)
    if len(b) != len(A):
        fail("every row has a lower bound")
    weight = dot(b, multipliers)
    need("multipliers bound the margin", 0, weight, strictly=True)
    pull = [dot([*multipliers, *mu], column) for column in zip(*A, *C, strict=True)]
    need("upper bound on the margin", norm.dual(pull) / weight, high)
    need("the lower bound is at most the upper", low, high)
    if low == 0:
        return f"the margin is at most {float(high):.6g}"
    x = numbers(proof, "x", norm.size)
    values = [dot(row, x) for row in A]
    # Rows whose bound is 0 hold with equality if they do so up to rounding.
    sizes = [dot(map(abs, row), map(abs, x)) for row in A]
    near = [value <= NEARLY * size for value, size in zip(values, sizes, strict=True)]
    zero = [row for row, bound, is_near in zip(A, b, near, strict=True) if bound == 0 and is_near]
    if C or zero:
        x = onto(x, [*C, *zero])
        values = [dot(row, x) for row in A]
    need("the solution is on the right side of every row", 0, min(values))
    share = min(value / bound for value, bound in zip(values, b, strict=True) if bound > 0)
    need("the solution is on the right side of rows with a bound above 0", 0, share, strictly=True)
    need("lower bound on the margin", low * norm.value(x), share)
    return f"the margin is between {float(low):.6g} and {float(high):.6g}"
