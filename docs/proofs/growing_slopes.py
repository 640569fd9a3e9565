"""X Theorem 1 for -2 arcsin √u: the conditions of the section on slopes that grow in attraction.md, with its equation numbers."""

from fractions import Fraction

from enclosures import Real, root
from setting import dot, fail, largest, need, total
from tube import PROVED, lasting, squared_spread


def slopes_that_grow(proof, rows, of_input, n, theta, gap, level, constants):
    """Slopes that grow, Eqs (17) to (20), with ρ̄ = level/2; selected tokens score 1."""
    P_0, deviation, R, K, psi, progress, h = constants
    if any(not 0 <= row.delta <= 1 for row in rows):
        fail("tokens score from 0 to 1")
    S, others = ([row for row in rows if hasattr(row, "weight") == carries] for carries in (True, False))
    kappa, added = K / (2 * R), {i: Real(Fraction(0)) for i in of_input}
    adding = [row for row in others if row.delta > 0 and of_input[row.i] > 0]
    for row in adding:  # Eq. (17)
        mean = [
            sum(column) / of_input[row.i]
            for column in zip(*([s.weight * x for x in s.a] for s in S if s.i == row.i), strict=True)
        ]
        v = [x - y for x, y in zip(row.a, mean, strict=True)]
        row.apart = (dot(v, v) - row.sigma * row.sigma).root()
        share = row.delta / (theta * theta * n**2 * of_input[row.i] ** 2)
        added[row.i] += share * (row.apart * R - level - row.sigma * P_0 - row.at).exp()
        row.fall = row.sigma - row.apart * kappa
        need("the tube stays beside the support", 0, row.fall, strictly=True)
    less = [-(1 - row.eps).log() / 2 - (1 - row.eps * row.plus / row.delta).log() for row in S]
    direct, most = Real(largest(less)), Real(largest(added.values()))
    mu = direct + most / 2  # -log m₋
    for row in rows:  # Eq. (18)
        row.size = Real(largest([Real(*root(row.delta)), row.eps * Real(*root(row.plus))])) / n
    for row in others:
        row.tau = theta * row.size * ((row.wide * R - level - row.sigma * P_0 - row.at) / 2 + mu).exp()
    need("progress along the direction", progress + total(row.tau * row.along for row in others), theta)
    e = total(row.tau * row.wide for row in others)
    if not proof["normalized"]:
        h *= total(row.size * gap[row.token].root() * Real(*root(dot(row.a, row.a))) for row in rows)

    # Eqs (12) and (13), then (19) and (20).
    A2 = squared_spread(rows) / (4 * (1 - psi))
    short = h * A2 <= progress
    sideways = h * e * e / (progress * psi) if short else e * e / (A2 * psi)
    need("the tube grows fast enough", (Real(Fraction(0)) if short else h * h * A2 / 4) / progress, K)
    for row in rows:
        row.s = row.along - row.wide * kappa
        need("the tube stays ahead of every row", 0, row.s, strictly=True)
    I = 2 * direct * (1 / Real(min(row.s.low for row in rows)) + h)
    if adding:
        I += most * (1 / Real(min(row.fall.low for row in adding)) + h)
    for row in others:
        row.d = (row.sigma - row.wide * kappa) / 2
        need("the tube stays away from other rows", 0, row.d, strictly=True)
        I += row.tau * row.wide * lasting(row.d, R, kappa, h)
    if others:
        I += sideways / 2 * (1 / (2 * Real(min(row.d.low for row in others))) + h)
    need("the drift fits into the tube", deviation**2 + 2 * I / progress, R**2)
    return PROVED
