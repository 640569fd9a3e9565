"""Check a certificate of X Theorem 4 with exact fractions alone: python check.py proof.json

It follows docs/proofs/any_norm.md line by line, and needs nothing but Python. Numbers of the file are taken as the exact
doubles that they are. Roots, exponentials and logarithms are enclosed between two fractions by enclosures.py beside it. It
answers yes only if every condition holds for all numbers between them, and otherwise names the first that may fail. Norms: l1,
l2, l-inf, frobenius, max-row and lP. The spectral and the nuclear norm have no exact formula, and are not checked here.
"""

import json
import sys
from fractions import Fraction
from itertools import combinations, product

from enclosures import exp, log, power, root, up


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
        least, most = (float(min(max(x, -(10**300)), 10**300)) for x in (small, large))
        fail(f"{condition}: {least:.6g} is not {'below' if strictly else 'at most'} {most:.6g}")


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


def momentum_costs(proof, leading, at, F_low, F, D, D2, size):
    """With memory, Eqs (16) to (19): J and q d_0 together, J in the limit, and κ."""
    beta, memory, past = Fraction(proof["momentum"]), exact(proof["memory"]), exact(proof["remembered"])
    if not 0 <= beta < 1 or len(past) != len(leading) or min(past) < 0 or len(memory) != len(proof["point"]):
        fail("momentum is below 1, and what is remembered has weights of at least 0")
    h, h_limit, rho = (Fraction(proof[name]) for name in ("longest", "limit", "tolerance"))
    b, b_limit = (beta * exp(up(length * D))[1] for length in (h, h_limit))
    need("gradients are forgotten faster than they fall", b if beta > 0 else 0, 1, strictly=True)
    if beta == 0:
        return 0, 0, 0
    J, J_limit = (b / (1 - b) * h * D2**2 / 4, b_limit / (1 - b_limit) * h_limit * D2**2 / 4)
    S = sum(past)
    if S == 0:
        if any(memory):
            fail("a memory without weights is zero")
        return J, J_limit, 0
    sigma = up(S / F_low)
    need("size of the memory", sigma * (1 - b), exp(h * D)[0])
    # The terms of F are known between two ends, so that u_0 is known up to a share of D.
    terms = [c[0] * delta * exp(-x)[0] for (_, _, delta, c), x in zip(leading, at, strict=True)]
    columns = list(zip(*(a for _, a, _, _ in leading), strict=True))
    mean, here = ([dot(weights, column) / sum(weights) for column in columns] for weights in (past, terms))
    blur = 2 * D * (F - sum(terms)) / sum(terms)
    away = size([x - y for x, y in zip(mean, here, strict=True)]) + blur + D2 * D2 * rho / 4
    kappa = size([x / S - y for x, y in zip(memory, mean, strict=True)]) + rho * D
    return J + beta * sigma / (1 + beta * sigma) * away, J_limit, kappa


def turns_hold(proof, leading, gamma, nu, size):
    """A sharper step, Eq. (14), at every vertex of the unit ball."""
    d, turns, norm = len(proof["point"]), exact(proof["turns"]), proof["norm"]
    g, h, low = (Fraction(proof[name]) for name in ("rate", "longest", "low"))
    if norm not in ("l1", "l-inf") or proof["momentum"] > 0 or len(turns) != (2 * d if norm == "l1" else 2**d):
        fail("without momentum, one row of numbers for each vertex of an l1 or l-inf ball")
    cube, cross = (
        product((1, -1), repeat=d),
        ([sign * (j == k) for j in range(d)] for sign in (1, -1) for k in range(d)),
    )
    for s, (kappa, *z) in zip(cross if norm == "l1" else cube, turns, strict=True):
        need("multipliers are at least 0", 0, kappa)
        slope, lead = kappa + size(z, dual=False), [dot(a, s) for _, a, _, _ in leading]
        pull = [dot(a, z) for _, a, _, _ in leading]
        left = max(exp(-h * x)[1] + slope * x - y for x, y in zip(lead, pull, strict=True)) - kappa * gamma
        need("every step lowers the potential", left + 2 * nu * slope, exp(-g * h)[0])
        if proof["limit"] > 0:
            need("lower bound on the margin", left, exp(-low * h)[0])


def check(proof):
    """Raise SystemExit at the first condition of X Theorem 4 that may fail."""
    norm, width = proof["norm"], int(proof["shape"][-1])
    if norm in ("spectral", "nuclear"):
        fail(f"the {norm} norm is not checked here")

    def size(x, dual=True):
        return length(x, norm, width, dual)

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
    need("the witness is in the unit ball", size(witness, dual=False), 1)
    gamma = min(dot(a, witness) for _, a, _, _ in leading)
    mean = [dot(pi, column) / sum(pi) for column in zip(*(a for _, a, _, _ in leading), strict=True)]
    need("upper bound on the margin", size(mean), Fraction(proof["high"]))
    D = max(size(a) for _, a, _, _ in leading)
    apart = [[x - y for x, y in zip(a[1], b[1], strict=True)] for a, b in combinations(leading, 2)]
    D2 = max((size(v) for v in apart), default=Fraction(0))
    # Eq. (2) at the point, and in the ball around it.
    limits = [(c[0] * delta, c[1] * delta) for _, _, delta, c in leading]
    at = [dot(a, point) for _, a, _, _ in leading]
    terms = [tuple(c * e for c, e in zip(limit, exp(-x), strict=True)) for limit, x in zip(limits, at, strict=True)]
    highest, spread = up(sum(high for _, high in terms)), exp(up(D * rho))[1]
    F, F_low = up(highest * spread), sum(low for low, _ in terms) / spread
    # Eqs (6) and (7): φ of leading rows and of the others.
    phi = {row[0]: up(F / low) for row, (low, _) in zip(leading, limits, strict=True)}
    logs = [log(phi[row[0]])[1] for row in leading]
    for row, m in zip(others, mu, strict=True):
        combined = [dot(m, column) for column in zip(*(a for _, a, _, _ in leading), strict=True)]
        rest = size([x - y for x, y in zip(row[1], combined, strict=True)])
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
            omega += up(bound * size(a) * phi[i, t] / F)
    # Eqs (11) and (12), with what momentum costs.
    lost, lost_in_limit, kappa = momentum_costs(proof, leading, at, F_low, highest, D, D2, size)
    nu = max(up(zeta * D + omega), kappa)
    if proof["turns"]:
        turns_hold(proof, leading, gamma, nu, size)
    else:
        need("every step lowers the potential", g + 2 * nu + lost + h * D2**2 / 8, gamma)
    if not proof["turns"] or h_limit == 0:
        need("lower bound on the margin", Fraction(proof["low"]) + lost_in_limit + h_limit * D2**2 / 8, gamma)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        try:
            check(json.load(file))
        except (ArithmeticError, LookupError, TypeError, ValueError) as problem:
            fail(f"the file is not a certificate of X Theorem 4 ({type(problem).__name__})")
    print("yes: every condition of X Theorem 4 holds")
