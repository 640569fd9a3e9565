"""Check a certificate of X Theorem 4 with exact fractions alone: python check.py proof.json

It follows docs/proofs/any_norm.md line by line, and needs nothing but Python. Numbers of the file are taken as the exact
doubles that they are. Roots, exponentials and logarithms are enclosed between two fractions. It answers yes only if every
condition holds for all numbers between them, and otherwise names the first that may fail. Norms: l1, l2, l-inf, frobenius,
max-row and lP. The spectral and the nuclear norm have no exact formula, and are not checked here.
"""

import json
import sys
from fractions import Fraction
from functools import cache
from itertools import combinations
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


def length(x, norm, width, dual):
    """An upper bound on a norm of x, or on its dual norm."""
    sizes = [abs(entry) for entry in x]
    if norm in ("l1", "l-inf"):
        return sum(sizes) if (norm == "l-inf") == dual else max(sizes)
    if norm == "max-row":
        rows = [root(sum(e * e for e in sizes[k : k + width]))[1] for k in range(0, len(x), width)]
        return sum(rows) if dual else max(rows)
    if norm in ("l2", "frobenius"):
        return root(sum(e * e for e in sizes))[1]
    p = Fraction(float(norm.removeprefix("l")))
    q = p / (p - 1) if dual else p
    largest = up(max(sizes))
    if largest == 0:
        return largest
    shares = [power(up(size / largest), q) for size in sizes]
    return up(largest * power(sum(shares), 1 / q))


def fail(condition):
    """End with the first condition that may fail."""
    raise SystemExit(f"no: {condition}")


def need(condition, small, large, strictly=False):
    """Go on if small ≤ large, or small < large."""
    if not (small < large or (small == large and not strictly)):
        fail(f"{condition}: {float(small):.6g} is not {'below' if strictly else 'at most'} {float(large):.6g}")


def dot(x, y):
    """The inner product."""
    return sum((a * b for a, b in zip(x, y, strict=True)), Fraction(0))


def exact(numbers):
    """Nested lists of doubles as fractions."""
    return [exact(n) for n in numbers] if isinstance(numbers, list) else Fraction(numbers)


def rows_of(proof):
    """The rows of the setting: input, a_r, Δ_r, and bounds on c_i^∞; only inputs whose output depends on the weights."""
    X, K, head = exact(proof["X"]), exact(proof.get("K", proof["X"])), exact(proof["head"])
    lengths = proof.get("lengths", [len(tokens) for tokens in X])
    rows = []
    for i, (tokens, keys, label, alpha) in enumerate(zip(X, K, proof["y"], proof["selected"], strict=True)):
        count = int(lengths[i])
        score = [Fraction(label) * dot(token, head) for token in tokens[:count]]
        if len(set(score)) < 2 or all(key == keys[0] for key in keys[:count]):
            continue
        slopes = {"logistic": lambda s: tuple(1 / (1 + e) for e in exp(s)[::-1]), "exponential": lambda s: exp(-s)}
        slope = slopes.get(proof["loss"], lambda _: (Fraction(1), Fraction(1)))(score[alpha])
        for t in range(count):
            if t != alpha:
                a = [top - other for top, other in zip(keys[alpha], keys[t], strict=True)]
                rows.append(((i, t), a, score[alpha] - score[t], [c / len(X) for c in slope]))
    return rows


def check(proof):
    """Raise SystemExit at the first condition of X Theorem 4 that may fail."""
    norm, width = proof["norm"], int(proof["shape"][-1])
    if norm in ("spectral", "nuclear"):
        fail(f"the {norm} norm is not checked here")
    steep = 0 if proof["loss"] == "correlation-loss" else 1
    rows, named = rows_of(proof), {tuple(token) for token in proof["leading"]}
    leading, others = [r for r in rows if r[0] in named], [r for r in rows if r[0] not in named]
    if len(leading) != len(named) or not leading or any(delta <= 0 for _, _, delta, _ in leading):
        fail("leading rows are rows of tokens that score lower")
    g, h, h_limit, rho = (Fraction(proof[name]) for name in ("rate", "longest", "limit", "tolerance"))
    point, witness, pi = (exact(proof[name]) for name in ("point", "witness", "weights"))
    mu = exact(proof["multipliers"])
    if len(mu) != len(others) or any(len(m) != len(leading) for m in mu) or any(w < 0 for m in (pi, *mu) for w in m):
        fail("multipliers and weights are numbers of at least 0, one for each row")
    if min(g, h) <= 0 or min(h_limit, rho) < 0 or h_limit > h or len(pi) != len(leading) or sum(pi) <= 0:
        fail("rate and length of steps are above 0, and the limit is at most that length")
    # Eq. (3): γ from below by the witness, and from above by the weights.
    need("the witness is in the unit ball", length(witness, norm, width, dual=False), 1)
    gamma = min(dot(a, witness) for _, a, _, _ in leading)
    mean = [dot(pi, column) / sum(pi) for column in zip(*(a for _, a, _, _ in leading), strict=True)]
    need("upper bound on the margin", length(mean, norm, width, dual=True), Fraction(proof["high"]))
    D = max(length(a, norm, width, dual=True) for _, a, _, _ in leading)
    apart = [[x - y for x, y in zip(a[1], b[1], strict=True)] for a, b in combinations(leading, 2)]
    D2 = max((length(v, norm, width, dual=True) for v in apart), default=Fraction(0))
    # Eq. (2), in the ball around the point.
    limits = [(c[0] * delta, c[1] * delta) for _, _, delta, c in leading]
    at = [dot(a, point) for _, a, _, _ in leading]
    terms = [up(high * exp(-x)[1]) for (_, high), x in zip(limits, at, strict=True)]
    F = up(sum(terms) * exp(D * rho)[1])
    # Eqs (6) and (7): φ of leading rows and of the others.
    phi = {row[0]: up(F / low) for row, (low, _) in zip(leading, limits, strict=True)}
    logs = [log(phi[row[0]])[1] for row in leading]
    for row, m in zip(others, mu, strict=True):
        combined = [dot(m, column) for column in zip(*(a for _, a, _, _ in leading), strict=True)]
        rest = length([x - y for x, y in zip(row[1], combined, strict=True)], norm, width, dual=True)
        need(f"token {row[0][1]} of input {row[0][0]} stays behind", rest, (sum(m) - 1) * g, strictly=True)
        phi[row[0]] = exp(up(dot(m, at) - dot(row[1], point) + rest * rho + dot(m, logs)))[1]
    # Eqs (9) and (10): ε, ζ, ω and ν.
    zeta, omega = Fraction(0), Fraction(0)
    for (i, t), a, delta, c in rows:
        own = [row for row in rows if row[0][0] == i]
        eps = sum(phi[row[0]] for row in own)
        plus, minus = max(0, *(row[2] for row in own)), max(0, *(-row[2] for row in own))
        need("attention on other tokens", eps, 1, strictly=True)
        if (i, t) in named:
            need("scores of leading rows stay lower", eps * plus / delta, 1, strictly=True)
            more = exp(up(eps * (steep * plus + minus / delta)))[1] - 1
            less = 1 - (1 - eps) * (1 - eps * plus / delta) * exp(-up(eps * steep * minus))[0]
            zeta = max(zeta, more, less)
        else:
            bound = c[1] * exp(up(steep * eps * plus))[1] * (abs(delta) + eps * max(plus, minus))
            omega += up(bound * length(a, norm, width, dual=True) * phi[i, t] / F)
    nu = up(zeta * D + omega)
    # Eqs (11) and (12).
    need("every step lowers the potential", g + 2 * nu + h * D2**2 / 8, gamma)
    need("lower bound on the margin", Fraction(proof["low"]) + h_limit * D2**2 / 8, gamma)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        check(json.load(file))
    print("yes: every condition of X Theorem 4 holds")
