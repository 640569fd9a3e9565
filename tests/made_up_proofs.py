"""Certificates and margin solutions of random problems, whether what one states is true by formulas in doubles, and random changes."""

from dataclasses import fields, replace
from functools import cache
from itertools import product

import numpy as np

import marginlens as ml
from marginlens.arithmetic.directions import length
from marginlens.errors import InputError
from marginlens.losses import ArcsineLoss, CorrelationLoss, Exponential, Logistic, LogProbability
from marginlens.norms.choice import norm_named
from marginlens.theory import SteepestCertificate, certify
from marginlens.theory.finite_minimum import certify_minimum
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_runs import Runs, outcomes_of

DOUBLES = 1e-6  # share by which the formulas in doubles may miss what exact numbers decide
STATED = 1.001e-9  # by how much a stated direction and margin may differ from the exact ones, and rounding


LOGISTIC = Logistic()
LOSSES = (Logistic(), Exponential(), CorrelationLoss(), LogProbability(), ArcsineLoss())
RULES = (None, ml.NormalizedGD(0.7), ml.GradientDescent(0.3))
SHAPES = ((1, 2, 1), (2, 3, 2), (2, 3, 4))


@cache
def tube(k, seed=77):
    """The k-th certificate of a tube: problems of all shapes in turn, with all rules and losses, labels of both signs, padding, and
    offsets of the logits for every other one.
    """
    rng = np.random.default_rng([seed, k])
    n, T, d = SHAPES[k % 3]
    rule, loss = RULES[k // 3 % 3], LOSSES[(k + k // 9) % 5]
    for _ in range(1000):
        lengths = [T] * (n - 1) + [max(2, T - 1)]
        X, K = ([rng.normal(size=(m, w)) for m in lengths] for w in (3, d))
        offsets = [rng.normal(size=m).tolist() for m in lengths] if k % 2 else None
        y, v = rng.choice([-1, 1], n), rng.normal(size=3)
        if isinstance(loss, LogProbability | ArcsineLoss):
            X, v = _with_positive_scores(rng, X, y, loss), np.eye(3)[0]
        data = ml.TokenDataset(X, y, K=K, offsets=offsets)
        solved = ml.att_svm(data, data.optimal(v))
        if solved.status is ml.Status.OPTIMAL and solved.margin > 0.2:
            break
    else:
        raise AssertionError("no problem with a wide margin")
    for norm in 2.0 ** np.arange(2, 12):
        try:
            proof = certify(
                data, v, norm * solved.x * solved.margin + 0.1 * rng.normal(size=d), optimizer=rule, loss=loss
            )
        except InputError:
            continue
        assert proof.verify().applies
        return proof
    raise AssertionError("no tube")


def _with_positive_scores(rng, X, y, loss):
    """Tokens whose first coordinate is their score times the label: one of 1 and others of 0, or any from 0 to 2, or up to 1."""
    is_binary = rng.random() < 0.5
    for x, label in zip(X, y, strict=True):
        scores = rng.permutation(np.arange(len(x)) == 0) if is_binary else rng.uniform(0.0, 2.0, len(x))
        x[:, 0] = label * (scores / scores.max() if type(loss) is ArcsineLoss else scores)
    return X


@cache
def minimum(k, seed=78, loss=LOGISTIC):
    """The k-th certificate of a minimum: inputs that pull in opposite directions."""
    rng, d = np.random.default_rng([seed, k]), 1 + k % 2
    for _ in range(100):
        ways = np.concatenate([np.eye(d), -np.eye(d)])
        K = np.stack([ways + 0.1 * rng.normal(size=ways.shape), np.zeros_like(ways)], axis=1)
        X = np.array([[1.0, 0.2], [0.0, -0.1]]) + 0.1 * rng.normal(size=(2 * d, 2, 2))
        data, v = ml.TokenDataset(X, np.ones(2 * d), K=K), np.array([1.0, 0.1])
        end = ml.descend(data, v, optimizer=ml.GradientDescent(5.0), loss=loss, n_steps=20_000).final
        proof = certify_minimum(ScoredTokens(data, v, loss), end)
        if proof is not None:
            assert proof.verify().applies
            return proof
    raise AssertionError("no minimum")


NORMS = {
    "sign": ml.LInf(),
    "coordinate": ml.L1(),
    "l3": ml.Lp(3.0),
    "l1.5": ml.Lp(1.5),
    "l1.4": ml.Lp(1.4),
    "euclidean": ml.L2(),
    "max-row": ml.MaxRow(),
    "frobenius": ml.Frobenius(),
    "spectral": ml.Spectral(),
    "nuclear": ml.Nuclear(),
}
MATRICES = ("max-row", "frobenius", "spectral", "nuclear")
KINDS = (*NORMS, "sign, long", "coordinate, long")
MATRIX_SHAPE = (2, 3)


@cache
def steepest(k, seed=79):
    """The k-th certificate of steepest descent from zero: all norms in turn, losses, padding, queries, momentum, falling steps."""
    rng, kind = np.random.default_rng([seed, k]), KINDS[k % len(KINDS)]
    norm, around = NORMS[kind.removesuffix(", long")], k // len(KINDS)
    loss = LOSSES[(around + around // 4) % 4]
    is_matrix, is_long = kind in MATRICES, kind.endswith("long")
    momentum, falls = 0.4 * (around % 3 == 1 and not is_long), around % 4 == 2
    for _ in range(200):
        risk, problem, form = _drawn(rng, is_matrix, loss, 2 + around % 2)
        solved = ml.att_svm(problem.data, problem.optimal)
        if solved.status is not ml.Status.OPTIMAL or solved.margin < 0.2 * length(solved.rows).max():
            continue
        rows = solved.rows.reshape(-1, *form)
        gamma = 1.0 / norm.value(solved.x.reshape(form))  # no more than the margin in this norm
        widest = max(norm.dual(r - s) for r in rows for s in rows)
        share = 1.2 if is_long else 0.02 if momentum else 0.3
        size = 8.0 * share * gamma / widest**2 if widest > 0.0 else 0.1
        rule = ml.SteepestDescent(
            norm, ml.optimizers.PowerDecay(size, 0.5) if falls and not is_long else size, momentum=momentum
        )
        [outcome] = outcomes_of(problem.as_batch(), Runs([risk], np.zeros((1, *form))), rule)
        proof = outcome.certificate
        if isinstance(proof, SteepestCertificate) and (len(proof.turns) > 0 or not is_long):
            return proof
    raise AssertionError(f"no proof for {kind}")


def _drawn(rng, is_matrix, loss, n_inputs):
    """A risk, its problem of vectors, and the shape of its weights; the last input is shorter by a token."""
    lengths, width = [3] * (n_inputs - 1) + [2], MATRIX_SHAPE[1] if is_matrix else 4
    X, y, v = [rng.normal(size=(m, width)) for m in lengths], rng.choice([-1.0, 1.0], n_inputs), rng.normal(size=width)
    if type(loss) is LogProbability:
        X, v = _with_positive_scores(rng, X, y, loss), np.eye(width)[0]
    data = ml.TokenDataset(X, y)
    if not is_matrix:
        return ml.AttentionRisk(data, v, loss), ScoredTokens(data, v, loss), (width,)
    U = rng.normal(size=(n_inputs, MATRIX_SHAPE[0]))
    wide = [np.einsum("q,td->tqd", u, x).reshape(len(x), -1) for u, x in zip(U, X, strict=True)]
    problem = ScoredTokens(ml.TokenDataset(X, y, K=wide), v, loss)
    return ml.AttentionRisk(data, v, loss).as_matrix(U), problem, MATRIX_SHAPE


def margin(k, seed=80):
    """The k-th solution of a margin problem: all norms in turn, rows of one or of zero, equalities, infeasible ones."""
    rng, norm = np.random.default_rng([seed, k]), (ml.L2(), ml.L1(), ml.LInf(), ml.Lp(3.0), ml.Lp(1.75))[k % 5]
    n_inputs, width = 2 + k // 5 % 3, 2 + k // 15 % 4
    data = ml.TokenDataset(rng.normal(size=(n_inputs, 3, width)), np.ones(n_inputs))
    selected = rng.integers(0, 3, n_inputs)
    if k % 4 == 3:
        return ml.graph_svm(ml.data.cyclic_sequences(3, 4, 3, 4, k), norm=(ml.Frobenius(), ml.MaxRow())[k // 4 % 2])
    if k % 4 == 2:
        return ml.relaxed_svm(data, selected, np.arange(n_inputs - 1), norm=norm)
    return ml.att_svm(data, selected, norm=norm)


# ---- whether the statements of a certificate are true


def holds(small, large):
    return bool(small <= large + DOUBLES * (abs(small) + abs(large)))


def slope(loss, score):
    """-ℓ', nan where it is infinite."""
    of_probability = 1.0 / score if score > 0.0 else np.nan
    slopes = {Logistic: 1.0 / (1.0 + np.exp(score)), Exponential: np.exp(-score), LogProbability: of_probability}
    return slopes.get(type(loss), 1.0)


def steepness(loss, top, eps, up):
    """Λ for margins from top - ε Δ⁺ on, of every row."""
    if type(loss) is LogProbability:
        return 1.0 / (top - eps * up)
    return np.full(len(top), 0.0 if type(loss) is CorrelationLoss else 1.0)


def is_true(c):
    """Whether a tube's certificate states the truth, and a tube is proved by it: docs/proofs/attraction.md in doubles."""
    if not (
        0.0 < c.radius < np.inf and 0.0 < c.share < 1.0 and 0.0 <= c.tolerance < np.inf and c.growth >= 0.0 < c.progress
    ):
        return False
    scores, n, K = c.data.scores(c.head), c.data.n_inputs, c.data.K
    places = [(i, t) for i in range(n) for t in range(c.data.lengths[i]) if t != c.selected[i]]
    of = np.array([i for i, _ in places])
    a = np.array([K[i, c.selected[i]] - K[i, t] for i, t in places])
    delta = np.array([scores[i, c.selected[i]] - scores[i, t] for i, t in places])
    lead = np.array([c.data.offsets[i, c.selected[i]] - c.data.offsets[i, t] for i, t in places])
    S = np.array([place in {tuple(x) for x in c.support.tolist()} for place in places])
    if S.sum() != len(c.support) or np.linalg.matrix_rank(a[S]) < S.sum() or (delta[S] <= 0.0).any():
        return False
    x = np.linalg.pinv(a[S]) @ np.ones(S.sum())
    theta = 1.0 / np.linalg.norm(x)
    ray = theta * x
    lam, along = np.linalg.pinv(a[S].T) @ ray, a @ ray
    sigma, wide = along - theta, np.linalg.norm(a - np.outer(along, ray), axis=1)
    if (lam <= 0.0).any() or (sigma[~S] <= 0.0).any():
        return False
    if np.abs(ray - c.direction).max() > STATED or abs(theta - c.margin) > STATED * theta:
        return False
    if type(c.loss) is ArcsineLoss:
        return _is_steep_tube(c, scores, of, a, delta, lead, S, ray, theta, lam)
    big = np.array([slope(c.loss, scores[i, c.selected[i]]) for i in of]) / n * np.exp(-lead)
    if not (big >= 0.0).all():
        return False
    rho = np.log((big * delta)[S] / lam)
    level = theta * lam @ rho
    anchor = np.linalg.pinv(a[S]) @ (rho - level)
    P = c.point @ ray
    q = np.linalg.norm(c.point - P * ray - anchor)
    at, top = a @ anchor, scores[of, np.asarray(c.selected)[of]]
    near = np.exp(wide * c.radius - along * c.along - at - lead)
    eps = np.bincount(of, near, n)[of]
    up, down = (np.array([max(0.0, (sign * delta[of == i]).max()) for i in of]) for sign in (1.0, -1.0))
    if not (holds(c.along, P - c.tolerance) and holds(q + c.tolerance, c.deviation) and (eps < 1.0).all()):
        return False
    steep = steepness(c.loss, top, eps, up)
    if (eps * up >= delta)[S].any() or not (steep >= 0.0).all():
        return False
    more = (eps * (steep * up + down / delta))[S].max()
    less = (eps * steep * down - np.log1p(-eps) - np.log1p(-eps * up / np.where(S, delta, np.inf)))[S].max()
    ahead, behind = ~S & (delta > 0.0) & (eps * up <= delta), ~S & ~((delta > 0.0) & (eps * up <= delta))
    pull, worst = big * np.exp(steep * eps * up), np.abs(delta) + eps * np.maximum(up, down)
    mass = theta * pull * np.exp(-level - sigma * c.along - at)
    o = np.where(ahead, mass * (delta + eps * down), 0.0)
    tau = np.where(behind, mass * worst * np.exp(wide * c.radius + less), 0.0)
    h = 0.0 if c.optimizer is None else c.optimizer.size
    h *= (
        1.0
        if isinstance(c.optimizer, ml.NormalizedGD)
        else (pull * np.exp(lead) * worst * near) @ np.linalg.norm(a, axis=1)
    )
    e = 0.5 * wide[S].max() * np.expm1(more + less) + np.exp(less) * (o @ wide) + tau @ wide
    beside = (a - np.outer(along, ray))[delta > 0.0]
    D = np.linalg.norm(beside[:, None] - beside, axis=-1).max()
    A2 = max(D**2 / (4.0 * (1.0 - c.share)), c.progress / h if h else np.inf)
    slow = o > 0.1 * c.radius**2 * theta * np.where(S, 1.0, sigma)
    K_ = h**2 * A2 / 4.0 if h * D**2 / (4.0 * (1.0 - c.share)) > c.progress * (1.0 + DOUBLES) else 0.0
    K_ = (K_ + 2.0 * np.log1p(o[slow].sum()) + (e**2 / (A2 * c.share) if slow.any() else 0.0)) / c.progress
    kappa = c.growth / (2.0 * c.radius)
    s, d = along - kappa * wide, sigma - kappa * wide
    if not (
        holds(c.progress, theta - tau @ along) and holds(K_, c.growth) and (s > 0.0).all() and (d[behind] > 0.0).all()
    ):
        return False
    rates = [s.min(), *sigma[ahead & ~slow], *d[behind]]
    integral = (more + less) * (1.0 / s.min() + h) + np.sum((o * (1.0 / np.where(S, 1.0, sigma) + h))[~slow])
    least = np.array([_integral(c.radius, kappa, rate, h) for rate in d[behind]])
    integral += (tau * wide)[behind] @ least if behind.any() else 0.0
    integral += 0.0 if slow.any() else e**2 / (2.0 * A2 * c.share) * (0.5 / min(rates) + h)
    return holds(c.deviation**2 + 2.0 * integral / c.progress, c.radius**2)


def _is_steep_tube(c, scores, of, a, delta, lead, S, ray, theta, lam):
    """The rest of `is_true` for the arcsine: the paragraph on slopes that grow in doubles, for a problem with these rows."""
    n, R = c.data.n_inputs, c.radius
    if (scores[of, np.asarray(c.selected)[of]] != 1.0).any() or (delta < 0.0).any() or (delta > 1.0).any():
        return False
    along, beside = a @ ray, a - np.outer(a @ ray, ray)
    wide, sigma, inputs = np.linalg.norm(beside, axis=1), np.where(S, 0.0, along - theta), range(n)
    mass = np.array([lam[of[S] == i].sum() for i in inputs])
    log_u = np.log(delta[S]) - lead[S] - np.log(lam) - np.log(mass[of[S]]) - 2.0 * np.log(n)  # ρ, less offsets
    twice = theta * lam @ log_u  # 2ρ̄
    anchor = np.linalg.pinv(a[S]) @ (log_u - twice)
    q = c.point - (c.point @ ray) * ray - anchor
    if not (holds(c.along, c.point @ ray - c.tolerance) and holds(np.linalg.norm(q) + c.tolerance, c.deviation)):
        return False
    at = a @ anchor + lead
    near = np.exp(wide * R - along * c.along - at)
    eps = np.array([near[of == i].sum() for i in inputs])
    top = np.array([delta[of == i].max(initial=0.0) for i in inputs])
    if (eps >= 1.0).any() or ((eps * top)[of] >= delta)[S].any():
        return False
    kappa, added, falls = c.growth / (2.0 * R), np.zeros(n), []
    for r in np.flatnonzero(~S & (delta > 0.0) & (mass[of] > 0.0)):
        of_support = (lam[of[S] == of[r]] @ beside[S][of[S] == of[r]]) / mass[of[r]]
        gap = np.linalg.norm(beside[r] - of_support)
        added[of[r]] += delta[r] / (n * mass[of[r]]) ** 2 * np.exp(gap * R - twice - sigma[r] * c.along - at[r])
        falls.append(sigma[r] - gap * kappa)
    direct = max(
        -0.5 * np.log1p(-eps[i]) - np.log1p(-eps[i] * top[i] / x) for i, x in zip(of[S], delta[S], strict=True)
    )
    size = np.maximum(np.sqrt(delta), (eps * np.sqrt(top))[of]) / n
    tau = theta * size * np.exp(0.5 * (wide * R - twice - sigma * c.along - at + added.max()) + direct)
    tau, e = np.where(S, 0.0, tau), np.sum(np.where(S, 0.0, tau * wide))
    h = 0.0 if c.optimizer is None else c.optimizer.size
    if not isinstance(c.optimizer, ml.NormalizedGD):
        h *= np.sum(size * np.sqrt(near) * np.linalg.norm(a, axis=1))
    lower = beside[delta > 0.0]
    D = np.linalg.norm(lower[:, None] - lower, axis=-1).max()
    A2 = max(D**2 / (4.0 * (1.0 - c.share)), c.progress / h if h else np.inf)
    grown = h**2 * A2 / 4.0 if h * D**2 / (4.0 * (1.0 - c.share)) > c.progress * (1.0 + DOUBLES) else 0.0
    s, d = (along - kappa * wide).min(), 0.5 * (sigma - kappa * wide)[~S]
    if min(s, *falls, *d) <= 0.0 or not (
        holds(c.progress, theta - tau @ along) and holds(grown, c.growth * c.progress)
    ):
        return False
    integral = 2.0 * direct * (1.0 / s + h) + (added.max() * (1.0 / min(falls) + h) if falls else 0.0)
    integral += sum(x * _integral(R, kappa, rate, h) for x, rate in zip((tau * wide)[~S], d, strict=True))
    integral += e**2 / (2.0 * A2 * c.share) * (0.5 / d.min() + h) if len(d) else 0.0
    return holds(c.deviation**2 + 2.0 * integral / c.progress, R**2)


def _integral(R, kappa, d, h):
    """∫ sup over x' ≥ x of (R + κx') e^(-dx') plus h times its start, which no bound that decreases undercuts."""
    x = np.linspace(0.0, 60.0 / d, 20_001)
    falling = np.maximum.accumulate(((R + kappa * x) * np.exp(-d * x))[::-1])[::-1]
    return np.trapezoid(falling, x) * (1.0 - 1e-3) + h * falling[0]


def is_minimum(c):
    """Whether a minimum lies in the ball of a certificate, with second derivatives of at least its curvature wherever one looks."""
    if not (0.0 < c.radius < np.inf and 0.0 < c.curvature < np.inf and 0.0 <= c.tolerance < c.radius):
        return False
    risk, rng = ml.AttentionRisk(c.data, c.head, c.loss), np.random.default_rng(0)
    away = rng.normal(size=(20, len(c.point)))
    points = c.point + c.radius * np.concatenate([0.0 * away[:1], away / np.linalg.norm(away, axis=1)[:, None]])
    at = risk.second_order(points)
    smallest = np.linalg.eigvalsh(np.exp(at.log_scale)[:, None, None] * at.hessian)[:, 0]
    gradient = np.linalg.norm(np.exp(at.log_scale[0]) * at.gradient[0])
    return all(holds(c.curvature, value) for value in smallest) and holds(
        c.tolerance + gradient / smallest[0], c.radius
    )


def is_steepest(c):
    """Whether the conditions of X Theorem 4 hold: docs/proofs/any_norm.md in doubles."""
    norm, g, h, rho, beta = c.steepest_in, c.rate, c.longest, c.tolerance, c.momentum
    if not (
        0.0 < g < np.inf
        and 0.0 <= c.limit <= h < np.inf
        and 0.0 <= rho < np.inf
        and 0.0 <= beta < 1.0
        and h > 0.0 < c.high
    ):
        return False

    def dual(x):
        return norm.dual(x.reshape(c.shape))

    scores, n, K = c.data.scores(c.head), c.data.n_inputs, c.data.K
    places = [(i, t) for i in range(n) for t in range(c.data.lengths[i]) if t != c.selected[i]]
    of = np.array([i for i, _ in places])
    a = np.array([K[i, c.selected[i]] - K[i, t] for i, t in places])
    delta = np.array([scores[i, c.selected[i]] - scores[i, t] for i, t in places])
    G = np.array([place in {tuple(x) for x in c.leading.tolist()} for place in places])
    if G.sum() != len(c.leading) or (delta[G] <= 0.0).any() or c.multipliers.shape != ((~G).sum(), G.sum()):
        return False
    if min(c.multipliers.min(initial=0.0), c.weights.min(), c.remembered.min()) < 0.0 or c.weights.sum() <= 0.0:
        return False
    lead, gamma, D = a[G], (a[G] @ c.witness).min(), max(map(dual, a[G]))
    widest = max(dual(r - s) for r in lead for s in lead)
    if not (
        holds(norm.value(c.witness.reshape(c.shape)), 1.0) and holds(dual(c.weights @ lead / c.weights.sum()), c.high)
    ):
        return False
    big = np.array([slope(c.loss, scores[i, c.selected[i]]) for i in of]) / n
    if not (big >= 0.0).all():
        return False
    limit = (big * delta)[G]
    logs = np.log(limit) - lead @ c.point  # of the terms of F, which may underflow
    log_F, shares = np.logaddexp.reduce(logs) + D * rho, np.exp(logs - np.logaddexp.reduce(logs))
    mass, rest = c.multipliers.sum(axis=1), np.array([dual(v) for v in a[~G] - c.multipliers @ lead])
    if not all(holds(x, y) for x, y in zip(rest, (mass - 1.0) * g, strict=True)) or (mass < 1.0).any():
        return False
    log_phi = np.empty(len(a))
    log_phi[G] = log_F - np.log(limit)
    behind = c.multipliers @ (lead @ c.point) - a[~G] @ c.point + rest * rho
    log_phi[~G] = behind + c.multipliers @ log_phi[G]
    eps = np.bincount(of, np.exp(np.minimum(log_phi, 700.0)), n)[of]
    up, down = (np.array([max(0.0, (sign * delta[of == i]).max()) for i in of]) for sign in (1.0, -1.0))
    if not ((eps < 1.0).all() and (eps * up < delta)[G].all()):
        return False
    steep = steepness(c.loss, scores[of, np.asarray(c.selected)[of]], eps, up)
    if not (steep >= 0.0).all():
        return False
    more = np.expm1(eps * (steep * up + down / delta))[G]
    less = (1.0 - (1.0 - eps) * (1.0 - eps * up / delta) * np.exp(-eps * steep * down))[G]
    pull = (
        big
        * np.exp(steep * eps * up)
        * (np.abs(delta) + eps * np.maximum(up, down))
        * np.exp(np.minimum(log_phi - log_F, 700.0))
    )
    nu = max(more.max(), less.max()) * D + sum(x * dual(r) for x, r in zip(pull[~G], a[~G], strict=True))
    lost = lost_in_limit = 0.0
    if beta > 0.0:
        b, b_limit = beta * np.exp(h * D), beta * np.exp(c.limit * D)
        if b >= 1.0:
            return False
        lost, lost_in_limit = (x / (1.0 - x) * y * widest**2 / 4.0 for x, y in ((b, h), (b_limit, c.limit)))
        S = c.remembered.sum()
        if S == 0.0 and c.memory.any():
            return False
        if S > 0.0:
            sigma, mean = np.exp(np.log(S) - log_F + 2.0 * D * rho), c.remembered @ lead / S
            if not holds(sigma * (1.0 - b), np.exp(h * D)):
                return False
            away = dual(mean - shares @ lead) + widest * np.tanh(widest * rho / 4.0)
            lost += beta * sigma / (1.0 + beta * sigma) * away
            nu = max(nu, dual(c.memory / S - mean) + rho * D)
    if not len(c.turns):
        low = c.low + lost_in_limit + c.limit * widest**2 / 8.0
        return holds(g + 2.0 * nu + lost + h * widest**2 / 8.0, gamma) and holds(low, gamma)
    vertices = _vertices(norm, len(c.point))
    if beta > 0.0 or c.turns.shape != (len(vertices), 1 + len(c.point)) or (c.turns[:, 0] < 0.0).any():
        return False
    for s, (kappa, *z) in zip(vertices, c.turns, strict=True):
        size = kappa + norm.value(np.array(z))
        left = (np.exp(-h * lead @ s) + size * (lead @ s) - lead @ z).max() - kappa * gamma
        if not holds(left + 2.0 * nu * size, np.exp(-g * h)) or (c.limit > 0.0 and not holds(left, np.exp(-c.low * h))):
            return False
    return c.limit > 0.0 or holds(c.low, gamma)


def _vertices(norm, d):
    if type(norm) is ml.L1:
        return np.concatenate([np.eye(d), -np.eye(d)])
    return np.array(list(product((1.0, -1.0), repeat=d))) if type(norm) is ml.LInf else np.empty((0, d))


def is_bracket(stated):
    """Whether the entries of a margin's file prove its bracket, in doubles."""
    norm, form = norm_named(stated["norm"]), tuple(stated["shape"])
    A, C = (
        _formed(stated[name]) if name in stated else np.zeros((0, len(stated["x"]))) for name in ("rows", "equalities")
    )
    b, x, weights, mu = (
        np.array(stated.get(name, [])) for name in ("lower", "x", "multipliers", "equality_multipliers")
    )
    if (weights < 0.0).any() or (b < 0.0).any() or b @ weights <= 0.0 or not 0.0 <= stated["low"] <= stated["high"]:
        return False
    pull = weights @ A + mu @ C
    blur = 1e-15 * (weights @ np.abs(A).sum(axis=1) + np.abs(mu) @ np.abs(C).sum(axis=1))
    if not holds(norm.dual(pull.reshape(form)) - blur, stated["high"] * (b @ weights)):
        return False
    if stated["low"] == 0.0:
        return True
    size = 1e-6 * norm.value(x.reshape(form))
    if (A @ x < -size * np.abs(A).sum(axis=1)).any() or (np.abs(C @ x) > size * np.abs(C).sum(axis=1)).any():
        return False
    return holds(stated["low"] * norm.value(x.reshape(form)), ((A @ x)[b > 0.0] / b[b > 0.0]).min())


def _formed(rows):
    if isinstance(rows, list):
        return np.array(rows)
    X, Q, triples, scale = (np.array(rows[name]) for name in ("X", "Q", "triples", "scale"))
    k, i, j = triples.T
    return (scale[:, None, None] * (X[i] - X[j])[:, :, None] * Q[k][:, None, :]).reshape(len(scale), -1)


# ---- random changes


def changed(c, rng):
    """One field of a certificate changed at random, by a little or a lot."""
    name = str(
        rng.choice(
            [field.name for field in fields(c) if field.name not in ("loss", "optimizer", "steepest_in", "shape")]
        )
    )
    value, size = getattr(c, name), 10.0 ** rng.uniform(-12, 1)
    if isinstance(value, float):
        ways = [
            value * (1.0 + size * rng.normal()),
            value * 10.0 ** rng.normal(),
            float(rng.normal()),
            value + size * rng.normal(),
        ]
        return replace(c, **{name: ways[rng.integers(4)]})
    if name == "data":
        if c.data.has_offsets and rng.random() < 0.5:
            arrays = {"X": c.data.X, "y": c.data.y, "K": c.data.K}
            offsets = c.data.offsets + size * rng.normal(size=c.data.offsets.shape)
            other = ml.TokenDataset(**arrays, offsets=offsets)
            return replace(c, data=other.shortened(c.data.lengths))
        keys = np.where(c.data.mask[..., None], c.data.K + size * rng.normal(size=c.data.K.shape), 0.0)
        return replace(c, data=c.data.with_keys(keys))
    if value.dtype == np.float64:
        some = rng.random(value.shape) < 0.5
        ways = [
            value + size * rng.normal(size=value.shape) * some,
            value * (1.0 + size),
            rng.permutation(value),
            -value,
        ]
        return replace(c, **{name: ways[rng.integers(4)]})
    return replace(c, **{name: np.where(rng.random(value.shape) < 0.4, value + rng.integers(-1, 3), value)})
