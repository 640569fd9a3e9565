"""X Theorem 1: the conditions of attraction.md, in its order, letters and equation numbers.

Products and sums of the file's numbers are exact fractions, and so is θ², so that signs are decided exactly. The rest is `Real`.
"""

from fractions import Fraction

from enclosures import Real, root
from growing_slopes import slopes_that_grow
from setting import Problem, bounds_of_inputs, dot, fail, largest, need, numbers, positive, tokens, total
from tube import PROVED, lasting, squared_spread

STATED = Fraction(1, 10**9)  # by how much a stated direction, and a stated margin as a share, may differ from p̄ and θ
SLOW = Fraction(1, 10)  # rows with o_r/(θσ_r) above this share of R² count as slow; the theorem allows any


def inverse(matrix):
    """The exact inverse of a symmetric matrix, which has to be positive definite."""
    n = len(matrix)
    rows = [list(row) + [Fraction(int(i == j)) for j in range(n)] for i, row in enumerate(matrix)]
    for j in range(n):
        if rows[j][j] <= 0:
            fail("rows of the support are linearly independent")
        rows[j] = [entry / rows[j][j] for entry in rows[j]]
        for i in range(n):
            if i != j and rows[i][j]:
                rows[i] = [x - rows[i][j] * y for x, y in zip(rows[i], rows[j], strict=True)]
    return [row[n:] for row in rows]


def check(proof):
    """Raise NotProved at the first condition that may fail; return what is proved."""
    problem = Problem(proof)
    selected = tokens(proof, "selected", problem.n, below=problem.lengths)
    named = tokens(proof, "support", len(proof["support"]), 2, below=(problem.n, max(problem.lengths)))
    rows = list(problem.rows(selected))
    S = [row for row in rows if row.token in set(named)]
    beyond = [row for row in rows if row not in S]
    if not S or len(S) != len(named):
        fail("the support is made of different rows")
    if any(row.delta <= 0 for row in S):
        fail("tokens of the support score lower")

    # Eq. (1): p^mm = Σ w a with a · p^mm = 1 on S, θ = 1/‖p^mm‖, p̄ = θ p^mm and λ = θ w.
    solution = inverse([[dot(r.a, s.a) for s in S] for r in S])
    w = [total(row) for row in solution]
    if min(w) <= 0:
        fail("multipliers of the support are positive")
    theta2 = 1 / total(w)
    theta, shortest = Real(*root(theta2)), [dot(w, column) for column in zip(*(s.a for s in S), strict=True)]
    for row in rows:
        lead = dot(row.a, shortest)
        if row in beyond and lead <= 1:
            fail(f"token {row.token[1]} of input {row.i} is beyond the margin")
        row.along, row.sigma = theta * lead, theta * (lead - 1)
        row.wide = Real(*root(dot(row.a, row.a) - theta2 * lead**2))
    for stated, entry in zip(numbers(proof, "direction", problem.depth), shortest, strict=True):
        need("the direction is that of the largest margin", stated, theta * entry + STATED)
        need("the direction is that of the largest margin", theta * entry - STATED, stated)
    need("the margin is the largest", positive(proof, "margin"), theta * (1 + STATED))
    need("the margin is the largest", theta * (1 - STATED), positive(proof, "margin"))

    # The anchor q* = Σ y a, and where the point is.
    is_steep = problem.loss == "arcsine-loss"
    for row, weight in zip(S, w, strict=True):
        row.weight = weight
    if is_steep:  # Eq. (16)
        of_input = {row.i: total(other.weight for other in S if other.i == row.i) for row in rows}
        limits = [row.delta / (theta2 * problem.n**2 * row.weight * of_input[row.i]) + Real(Fraction(0)) for row in S]
    else:
        limits = [row.c * row.delta / (theta * row.weight) for row in S]
    rho = [limit.log() - row.lead for row, limit in zip(S, limits, strict=True)]
    level = theta2 * dot(rho, w)
    y = [dot([value - level for value in rho], row) for row in solution]
    for row in rows:
        row.at = dot(y, [dot(row.a, s.a) for s in S])
    point, delta = numbers(proof, "point", problem.depth), numbers(proof, "tolerance", least=0)
    P, at_point = theta * dot(point, shortest), [dot(s.a, point) for s in S]
    W = dot(point, point) - theta2 * dot(point, shortest) ** 2 - 2 * dot(y, at_point) + dot(y, [s.at for s in S])
    P_0, deviation = numbers(proof, "along"), numbers(proof, "deviation", least=0)
    need("P_0 is along the direction", P_0 + delta, P)
    need("the distance to the anchor", W.root() + delta, deviation)
    for row in rows:
        row.at += row.lead  # offsets enter here only: e^(b_t - b_α) multiplies the attention of every row

    # Bounds in the tube, Eqs (3) and (4).
    R, K, psi, progress = (
        positive(proof, "radius"),
        numbers(proof, "growth", least=0),
        *(positive(proof, n) for n in ("share", "progress")),
    )
    need("ψ is below 1", psi, 1, strictly=True)
    gap = {row.token: (row.wide * R - row.along * P_0 - row.at).exp() for row in rows}
    at_input = bounds_of_inputs(rows, gap)
    for row in rows:
        row.eps, row.plus, row.minus = at_input[row.i]
        need("attention on other tokens", row.eps, 1, strictly=True)
        row.steep = None if is_steep else problem.steepness(row, row.eps, row.plus)  # Λ
    for row in S:
        need("scores of the support stay lower", row.eps * row.plus, row.delta, strictly=True)
    h = Real(step_size(proof))
    if is_steep:
        return slopes_that_grow(
            proof, rows, of_input, problem.n, theta, gap, level, (P_0, deviation, R, K, psi, progress, h)
        )
    plus = Real(largest(row.eps * (row.steep * row.plus + row.minus / row.delta) for row in S))  # log m₊
    less = [-(1 - row.eps).log() - (1 - row.eps * row.plus / row.delta).log() for row in S]
    minus = Real(largest(row.eps * row.steep * row.minus + x for row, x in zip(S, less, strict=True)))  # -log m₋
    mu = plus + minus

    # Eqs (5) to (7): o_r of forward rows and τ_r of backward ones. Eq. (8): θ'.
    forward = [row for row in beyond if row.delta > 0 and row.eps * row.plus < row.delta]
    backward = [row for row in beyond if row not in forward]
    for row in rows:
        row.pull = row.c * (row.steep * row.eps * row.plus).exp()  # a bound on c_i
        row.lead = abs(row.delta) + row.eps * max(row.plus, row.minus)
    for row in beyond:
        mass = theta * row.pull * (-level - row.sigma * P_0 - row.at).exp()
        row.o = mass * (row.delta + row.eps * row.minus)
        row.tau = mass * row.lead * (row.wide * R + minus).exp()
    need("progress along the direction", progress + total(row.tau * row.along for row in backward), theta)

    # Eq. (11): e and D. One step: its length h, 0 for the flow.
    e = (
        Real(largest(row.wide for row in S)) * (mu.exp() - 1) / 2
        + total(row.o * row.wide for row in forward) * minus.exp()
    )
    e += total(row.tau * row.wide for row in backward)
    D2 = squared_spread(rows)
    if not proof["normalized"]:
        h *= total(row.pull * row.lead * gap[row.token] * Real(*root(dot(row.a, row.a))) for row in rows)

    # Eqs (12) and (13): K is large enough for steps, and for slow rows.
    A2 = D2 / (4 * (1 - psi))
    short = h * A2 <= progress
    sideways = h * e * e / (progress * psi) if short else e * e / (A2 * psi)
    growth = Real(Fraction(0)) if short else h * h * A2 / 4
    slow = [row for row in forward if not row.o < SLOW * R**2 * theta * row.sigma]
    if slow:
        growth += 2 * (1 + total(row.o for row in slow)).log() + sideways
    need("the tube grows fast enough", growth / progress, K)

    # Eq. (14), and the theorem.
    kappa = K / (2 * R)
    for row in rows:
        row.s, row.d = row.along - row.wide * kappa, row.sigma - row.wide * kappa
        need("the tube stays ahead of every row", 0, row.s, strictly=True)
    for row in backward:
        need("the tube stays away from backward rows", 0, row.d, strictly=True)
    fading = [row for row in forward if row not in slow]
    s = Real(min(row.s.low for row in rows))
    I = mu * (1 / s + h) + total(row.o * (1 / row.sigma + h) for row in fading)
    for row in backward:
        I += row.tau * row.wide * lasting(row.d, R, kappa, h)
    if not slow:
        d = Real(min([s.low, *(row.sigma.low for row in fading), *(row.d.low for row in backward)]))
        I += sideways / 2 * (1 / (2 * d) + h)
    need("the drift fits into the tube", deviation**2 + 2 * I / progress, R**2)
    return PROVED


def step_size(proof):
    """The size of steps, 0 for the flow."""
    size = numbers(proof, "size", least=0)
    if type(proof["normalized"]) is not bool or (proof["normalized"] and size == 0):
        fail("steps are normalised or not, and of a size")
    return size
