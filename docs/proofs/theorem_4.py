"""X Theorem 4: the conditions of any_norm.md, in its order, letters and equation numbers."""

from fractions import Fraction
from itertools import product

from dual_norms import Norm
from enclosures import Real, exp, log, up
from setting import Problem, bounds_of_inputs, dot, fail, need, numbers, positive, tokens, total


def combined(weights, leading):
    """The sum of the leading rows with these weights."""
    return [dot(weights, column) for column in zip(*(row.a for row in leading), strict=True)]


def momentum_costs(proof, leading, F_low, F, D, D2, norm):
    """With memory, Eqs (16) to (19): J and q d_0 together, J in the limit, and κ."""
    beta, past = numbers(proof, "momentum", least=0), numbers(proof, "remembered", len(leading), least=0)
    memory = numbers(proof, "memory", norm.size)
    h, h_limit, rho = (numbers(proof, name, least=0) for name in ("longest", "limit", "tolerance"))
    if beta == 0:
        return 0, 0, 0
    b, b_limit = (beta * exp(up(length * D))[1] for length in (h, h_limit))
    need("gradients are forgotten faster than they fall", b, 1, strictly=True)
    J, J_limit = (b / (1 - b) * h * D2**2 / 4, b_limit / (1 - b_limit) * h_limit * D2**2 / 4)
    S = sum(past)
    if S == 0:
        if any(memory):
            fail("a memory without weights is zero")
        return J, J_limit, 0
    sigma = up(S / F_low)
    need("size of the memory", sigma * (1 - b), exp(up(h * D))[0])
    # The terms of F are known between two ends, so that u_0 is known up to a share of D.
    terms = [row.term.low for row in leading]
    mean, here = ([x / sum(weights) for x in combined(weights, leading)] for weights in (past, terms))
    blur = 2 * D * (F - sum(terms)) / sum(terms)
    away = norm.dual([x - y for x, y in zip(mean, here, strict=True)]) + blur + D2 * D2 * rho / 4
    kappa = norm.dual([x / S - y for x, y in zip(memory, mean, strict=True)]) + rho * D
    return J + beta * sigma / (1 + beta * sigma) * away, J_limit, kappa


def turns_hold(proof, turns, leading, gamma, nu, norm):
    """A sharper step, Eq. (14), at every vertex of the unit ball."""
    d = norm.size
    if norm.name not in ("l1", "l-inf") or numbers(proof, "momentum") > 0:
        fail("the sharper step is for the l1 and the l-inf norm, without momentum")
    if len(turns) != (2 * d if norm.name == "l1" else 2**d):
        fail("the sharper step has numbers for every vertex of the unit ball")
    g, h, low, limit = (numbers(proof, name) for name in ("rate", "longest", "low", "limit"))
    cross = ([sign * (j == k) for j in range(d)] for sign in (1, -1) for k in range(d))
    for s, (kappa, *z) in zip(cross if norm.name == "l1" else product((1, -1), repeat=d), turns, strict=True):
        need("multipliers are at least 0", 0, kappa)
        slope, ends = kappa + norm.value(z), []
        for row in leading:
            along = dot(row.a, s)
            ends.append(exp(-h * along)[1] + slope * along - dot(row.a, z))
        left = max(ends) - kappa * gamma
        need("every step lowers the potential", left + 2 * nu * slope, exp(-g * h)[0])
        if limit > 0:
            need("lower bound on the margin", left, exp(-low * h)[0])


def check(proof):
    """Raise NotProved at the first condition that may fail; return what is proved."""
    problem = Problem(proof).without_offsets()
    if problem.loss == "arcsine-loss":
        fail("the theorem needs a slope that is bounded where attention saturates")
    norm = Norm(proof["norm"], proof["shape"], problem.depth)
    selected = tokens(proof, "selected", problem.n, below=problem.lengths)
    named = tokens(proof, "leading", len(proof["leading"]), 2, below=(problem.n, max(problem.lengths)))
    rows = list(problem.rows(selected))
    leading, others = ([row for row in rows if (row.token in set(named)) == is_leading] for is_leading in (True, False))
    if not leading or [row.token for row in leading] != named or any(row.delta <= 0 for row in leading):
        fail("leading rows are rows of tokens that score lower, in their order")
    g, h = positive(proof, "rate"), positive(proof, "longest")
    h_limit, rho = numbers(proof, "limit", least=0), numbers(proof, "tolerance", least=0)
    need("the limit of lengths is at most the longest", h_limit, h)
    point, witness = numbers(proof, "point", norm.size), numbers(proof, "witness", norm.size)
    pi = numbers(proof, "weights", len(leading), least=0)
    mu = numbers(proof, "multipliers", len(others), len(leading), least=0)

    # Eq. (3): γ from below by the witness, and from above by the weights. D and D₂.
    need("the witness is in the unit ball", norm.value(witness), 1)
    gamma = min(dot(row.a, witness) for row in leading)
    need("weights are not all 0", 0, sum(pi), strictly=True)
    need("upper bound on the margin", norm.dual([x / sum(pi) for x in combined(pi, leading)]), positive(proof, "high"))
    D, D2 = max(norm.dual(row.a) for row in leading), norm.widest([row.a for row in leading])

    # Eq. (2) at the point, and in the ball around it.
    for row in leading:
        row.limit, row.at = row.c * row.delta, dot(row.a, point)
        row.term = row.limit * Real(-row.at).exp()
    spread = exp(up(D * rho))[1]
    potential = total(row.term for row in leading)
    F, F_low = up(potential.high * spread), potential.low / spread

    # Eqs (6) and (7): φ of leading rows and of the others.
    phi = {row.token: up(F / row.limit.low) for row in leading}
    logs = [log(phi[row.token])[1] for row in leading]
    at = [row.at for row in leading]
    for row, m in zip(others, mu, strict=True):
        rest = norm.dual([x - y for x, y in zip(row.a, combined(m, leading), strict=True)])
        need(f"token {row.token[1]} of input {row.i} stays behind", rest, (sum(m) - 1) * g, strictly=True)
        phi[row.token] = exp(up(dot(m, at) - dot(row.a, point) + rest * rho + dot(m, logs)))[1]

    # Eqs (9) and (10): ε, ζ, ω and ν.
    zeta, omega, at_input = Fraction(0), Fraction(0), bounds_of_inputs(rows, phi)
    for row in rows:
        eps, plus, minus = at_input[row.i]
        need("attention on other tokens", eps, 1, strictly=True)
        steep = problem.steepness(row, eps, plus)  # Λ
        if row in leading:
            need("scores of leading rows stay lower", eps * plus, row.delta, strictly=True)
            more = exp(up(eps * (steep * plus + minus / row.delta)))[1] - 1
            less = 1 - (1 - eps) * (1 - eps * plus / row.delta) * exp(-up(eps * steep * minus))[0]
            zeta = max(zeta, up(more), up(less))
        else:
            bound = row.c.high * exp(up(steep * eps * plus))[1] * (abs(row.delta) + eps * max(plus, minus))
            omega += up(bound * norm.dual(row.a) * phi[row.token] / F)

    # Eqs (11) and (12), with what momentum costs.
    lost, lost_in_limit, kappa = momentum_costs(proof, leading, F_low, potential.high, D, D2, norm)
    nu, low = max(up(zeta * D + omega), kappa), numbers(proof, "low")
    turns = numbers(proof, "turns", len(proof["turns"]), 1 + norm.size)
    if turns:
        turns_hold(proof, turns, leading, gamma, nu, norm)
    else:
        need("every step lowers the potential", g + 2 * nu + lost + h * D2**2 / 8, gamma)
    if not turns or h_limit == 0:
        need("lower bound on the margin", low + lost_in_limit + h_limit * D2**2 / 8, gamma)
    return f"X Theorem 4: steepest descent in the {norm.name} norm selects the tokens from the point on"
