"""X Theorem 2: the conditions at the end of attraction.md, in its letters."""

from fractions import Fraction

from enclosures import Real, root
from setting import Problem, dot, fail, largest, need, numbers, positive, total


def differences(problem, keys, scores, point, radius):
    """Bound the gradient and the Hessian of one input's loss, and its third derivatives within the radius by M."""
    logits, d = [dot(key, point) for key in keys], range(problem.depth)
    best = logits.index(max(logits))
    powers = [Real(logit - logits[best]).exp() for logit in logits]
    shares = [power / total(powers) for power in powers]
    mean = dot(shares, scores)
    moved = [[x - y for x, y in zip(key, keys[best], strict=True)] for key in keys]  # keys, from the leading one on
    centre = [dot(shares, [row[k] for row in moved]) for k in d]
    apart = [[row[k] - centre[k] for k in d] for row in moved]
    pull = [share * (score - mean) for share, score in zip(shares, scores, strict=True)]
    # Cov(γ, x) and E (γ - γ̄)(x - x̄)² of all directions, then the chain rule.
    slope = [dot(pull, [row[k] for row in apart]) for k in d]
    first = -problem.slope(mean)
    second = {"logistic": -first * (1 + first), "exponential": -first}.get(problem.loss, Real(Fraction(0)))
    hessian = [
        [
            first * total(p * row[k] * row[j] for p, row in zip(pull, apart, strict=True))
            + second * slope[k] * slope[j]
            for j in d
        ]
        for k in d
    ]
    # The bound M.
    away = [Real(*root(dot(row, row))) for row in moved]
    others = [(x * radius + logit - logits[best]).exp() for x, logit in zip(away, logits, strict=True)]
    eps = Real(min(Fraction(1), largest([total(others[:best] + others[best + 1 :])])))
    D = Real(root(max(dot(v, v) for v in ([x - y for x, y in zip(a, b, strict=True)] for a in keys for b in keys)))[1])
    span, largest_slope = max(scores) - min(scores), problem.slope(min(scores))
    bounds = {
        "logistic": (largest_slope, Fraction(1, 4), Fraction(1, 10)),
        "exponential": (largest_slope,) * 3,
        "correlation-loss": (1, 0, 0),
    }[problem.loss]
    size = eps * span * D
    third = (
        bounds[0] * Fraction(7, 2) * size * D * D
        + 12 * bounds[1] * size * size * D
        + 8 * bounds[2] * size * size * size
    )
    return [first * entry for entry in slope], hessian, third


def check(proof):
    """Raise NotProved at the first condition that may fail; return what is proved."""
    problem = Problem(proof).without_offsets()
    if problem.loss in ("log-probability", "arcsine-loss"):
        fail("the theorem is about the logistic, the exponential and the correlation loss")
    point, tolerance = numbers(proof, "point", problem.depth), numbers(proof, "tolerance", least=0)
    radius, curvature = positive(proof, "radius"), positive(proof, "curvature")
    inputs = [
        differences(problem, keys, scores, point, radius)
        for keys, scores in zip(problem.keys, problem.scores, strict=True)
    ]
    gradient = [total(each[0][k] for each in inputs) / problem.n for k in range(problem.depth)]
    third = total(each[2] for each in inputs) / problem.n
    matrix = [
        [total(each[1][max(k, j)][min(k, j)] for each in inputs) / problem.n for j in range(problem.depth)]
        for k in range(problem.depth)
    ]
    # ∇²L(p_0) - (m + rM) is positive definite if elimination has positive pivots.
    for k in range(problem.depth):
        matrix[k][k] -= curvature + radius * third
    for j, pivots in enumerate(matrix):
        if not pivots[j] > 0:
            fail("second derivatives in the ball are at least the curvature")
        for i in range(j + 1, problem.depth):
            factor = matrix[i][j] / pivots[j]
            matrix[i] = [x - factor * y for x, y in zip(matrix[i], pivots, strict=True)]
    size = dot(gradient, gradient).root()
    need("the minimum lies in the ball", tolerance + 2 * size / curvature, radius)
    return "X Theorem 2: from the point on, the gradient flow converges to the one minimum within the radius"
