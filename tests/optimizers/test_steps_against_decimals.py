"""Steps of every optimizer against decimals of eighty digits and more, from weights of norm up to 1e4: right to ten digits.

The iterates are the library's, as the doubles that they are; gradients and all that optimizers remember are decimals.
"""

from decimal import Decimal

import numpy as np
import pytest

import marginlens as ml
from decimal_oracle import DIGITS, decimals, gradients_by_input, long_decimals
from marginlens.dynamics.loops import StepwiseLoop, compiled_loop

STEP_RTOL = 1e-10
N_STEPS = 4
EXCESS_DIGITS = 1_000  # differences of risks that agree in up to 870 digits
POLAR_DIGITS = 12_000  # determinants of terms that differ by e^10000


def problem():
    rng = np.random.default_rng(3)
    data = ml.TokenDataset(rng.normal(size=(2, 3, 4)), [1.0, -1.0])
    return ml.AttentionRisk(data, rng.normal(size=4)), rng.normal(size=(2, 2))


def rooted(x, exponent):
    """sign(x) |x|^exponent."""
    return Decimal(0) if x == 0 else (abs(x) ** Decimal(exponent)).copy_sign(x)


def lp_direction(g, p):
    q = Decimal(p) / (Decimal(p) - 1)
    norm = sum(abs(x) ** q for x in g) ** (1 / q)
    return [rooted(x / norm, 1 / (Decimal(p) - 1)) for x in g]


def signs(g):
    return [Decimal(1).copy_sign(x) for x in g]


def largest(g):
    place = max(range(len(g)), key=lambda k: abs(g[k]))
    return [Decimal(1).copy_sign(x) if k == place else Decimal(0) for k, x in enumerate(g)]


def steepest(direction, momentum=0.0, nesterov=False):
    def follow(points, gradients):
        total, steps, mu = [Decimal(0)] * len(points[0]), [], Decimal(momentum)
        for g in gradients:
            total = [mu * m + x for m, x in zip(total, g, strict=True)]
            ahead = [mu * m + x for m, x in zip(total, g, strict=True)] if nesterov else total
            steps.append([-x for x in direction(ahead)])
        return steps

    return follow


def adam(betas, eps):
    first, second = (Decimal(beta) for beta in betas)

    def follow(points, gradients):
        m, v, steps = [Decimal(0)] * len(points[0]), [Decimal(0)] * len(points[0]), []
        for t, g in enumerate(gradients, start=1):
            m = [first * a + (1 - first) * x for a, x in zip(m, g, strict=True)]
            v = [second * a + (1 - second) * x * x for a, x in zip(v, g, strict=True)]
            hats = zip(m, v, strict=True)
            steps.append([-(a / (1 - first**t)) / ((b / (1 - second**t)).sqrt() + Decimal(eps)) for a, b in hats])
        return steps

    return follow


def mirror(p, normalized):
    power = Decimal(p) - 1

    def follow(points, gradients):
        image, steps = [rooted(x, power) for x in points[0]], []
        for x, g in zip(points, gradients, strict=True):
            q = Decimal(p) / power
            norm = sum(abs(each) ** q for each in g) ** (1 / q) if normalized else Decimal(1)
            image = [y - each / norm for y, each in zip(image, g, strict=True)]
            steps.append([rooted(y, 1 / power) - each for y, each in zip(image, x, strict=True)])
        return steps

    return follow


CASES = {
    "sign": (ml.SignDescent(1.0), steepest(signs)),
    "Signum": (ml.SignDescent(1.0, 0.9), steepest(signs, 0.9)),
    "coordinate": (ml.CoordinateDescent(1.0), steepest(largest)),
    "l3, heavy ball": (ml.SteepestDescent(ml.Lp(3.0), 1.0, 0.9), steepest(lambda g: lp_direction(g, 3.0), 0.9)),
    "l1.75, Nesterov": (
        ml.SteepestDescent(ml.Lp(1.75), 1.0, 0.8, nesterov=True),
        steepest(lambda g: lp_direction(g, 1.75), 0.8, nesterov=True),
    ),
    "Euclidean, heavy ball": (ml.SteepestDescent(ml.L2(), 1.0, 0.9), steepest(lambda g: lp_direction(g, 2.0), 0.9)),
    "Adam": (ml.Adam(1.0), adam((0.9, 0.999), 0.0)),
    "Adam, eps": (ml.Adam(1.0, (0.8, 0.9), 1e-60), adam((0.8, 0.9), 1e-60)),
    "mirror": (ml.MirrorDescent(1.75, 1.0), mirror(1.75, False)),
    "normalised mirror": (ml.MirrorDescent(3.0, 1.0, normalized=True), mirror(3.0, True)),
}


def taken(loop, start, n_steps):
    """The iterates of a loop and its steps."""
    state = loop.begin(start[None].copy())
    points = loop.advance(state, (0, n_steps), np.arange(n_steps + 1), None)[0]
    return points[:-1], np.diff(points, axis=0)


@pytest.mark.parametrize("size", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("name", CASES)
def test_steps_on_p_agree_with_decimals(name, size):
    risk, _ = problem()
    optimizer, follow = CASES[name]
    start = size * np.array([0.5, -0.1, 0.7, 0.5])
    for loop in (compiled_loop(risk, optimizer), StepwiseLoop(risk, optimizer)):
        points, steps = taken(loop, start, N_STEPS)
        with long_decimals():
            gradients = [
                [
                    sum(column)
                    for column in zip(*gradients_by_input(risk.data, risk.head, [x, x], "Logistic"), strict=True)
                ]
                for x in points
            ]
            exact = follow([decimals(x) for x in points], gradients)
        close(steps, exact, size)


def close(steps, exact, size):
    """Relative to the step, plus what the difference of two iterates of this size has lost to their rounding."""
    for step, right in zip(steps, exact, strict=True):
        values = np.array([float(x) for x in right])
        blur = 4.0 * size * np.finfo(float).eps
        assert np.linalg.norm(step.ravel() - values) <= STEP_RTOL * np.linalg.norm(values) + blur


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_muon_on_w_agrees_with_decimals(size):
    """The polar factor (A Aᵀ)^-1/2 A of the running sum, whose two singular values differ by up to e^thousands."""
    risk, queries = problem()
    risk = risk.as_matrix(queries)
    start = size * np.random.default_rng(5).normal(size=risk.shape)
    optimizer = ml.Muon(1.0, momentum=0.9, nesterov=True)
    points, steps = taken(StepwiseLoop(risk, optimizer), start, 3)
    compiled = taken(compiled_loop(risk, optimizer), start, 3)[1]
    with long_decimals(POLAR_DIGITS) as context:
        exact, total = [], [[Decimal(0)] * 4, [Decimal(0)] * 4]
        mu = Decimal(optimizer.momentum)
        for W in points:
            context.prec = DIGITS
            columns = [decimals(column) for column in W.T]
            p = [[sum(a * b for a, b in zip(column, decimals(z), strict=True)) for column in columns] for z in queries]
            parts = gradients_by_input(risk.of_p.data, risk.of_p.head, p, "Logistic")
            total = [[mu * m + g for m, g in zip(ms, gs, strict=True)] for ms, gs in zip(total, parts, strict=True)]
            ahead = [[mu * m + g for m, g in zip(ms, gs, strict=True)] for ms, gs in zip(total, parts, strict=True)]
            context.prec = POLAR_DIGITS
            exact.append([-x for row in polar(ahead, queries) for x in row])
    close(steps, exact, size)
    close(compiled, exact, size)


def polar(rights, queries):
    """(A Aᵀ)^-1/2 A of A = Σ_i z_i r_iᵀ with two rows."""
    A = [
        [sum(Decimal(float(z[i])) * r[k] for z, r in zip(queries, rights, strict=True)) for k in range(4)]
        for i in range(2)
    ]
    B = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in A] for x in A]
    root = (B[0][0] * B[1][1] - B[0][1] * B[1][0]).sqrt()
    scale = (B[0][0] + B[1][1] + 2 * root).sqrt()
    S = [[(B[i][j] + (root if i == j else 0)) / scale for j in range(2)] for i in range(2)]  # (A Aᵀ)^1/2
    inverse = [[S[1][1] / root, -S[0][1] / root], [-S[1][0] / root, S[0][0] / root]]
    return [[sum(inverse[i][j] * A[j][k] for j in range(2)) for k in range(4)] for i in range(2)]


def test_excess_risk_agrees_with_decimals():
    """Where the best tokens are selected with a margin it is far below the smallest float64."""
    data, v = ml.data.sphere_tokens(1, 2, 3, 4, 1)
    risk, size = ml.AttentionRisk(data[0], v[0]), 2000.0
    x = size * ml.att_svm(risk.data, risk.best_tokens()).direction
    excess = risk.excess(x)
    assert -2000.0 < excess.log < -745.0
    with long_decimals() as context:
        context.prec = EXCESS_DIGITS
        exact = sum(excess_of_input(risk, x, i) for i in range(2)) / 2
        assert excess.sign == 1.0
        blur = Decimal(4.0 * size * np.finfo(float).eps)  # rounding of the logits
        assert abs(Decimal(float(excess.log)) - exact.ln()) < blur


def excess_of_input(risk, x, i):
    """ℓ(f_i) - ℓ(γ_i) of the best token of input i, by subtraction, with digits enough for it."""
    head, label = decimals(risk.head), Decimal(float(risk.data.y[i]))
    scores = [label * sum(a * b for a, b in zip(decimals(token), head, strict=True)) for token in risk.data.X[i]]
    logits = [sum(a * b for a, b in zip(decimals(key), decimals(x), strict=True)) for key in risk.data.K[i]]
    weights = [(a - max(logits)).exp() for a in logits]
    output = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
    return (1 + (-output).exp()).ln() - (1 + (-scores[risk.best_tokens()[i]]).exp()).ln()
