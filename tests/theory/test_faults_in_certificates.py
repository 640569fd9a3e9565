"""verify() with a fault in every field of both kinds of certificates: none that is false verifies, and none raises.

Planted faults make a statement false on purpose. Random changes may leave all of them true; whether they do is decided by formulas in
doubles that share nothing with the checker.
"""

import ast
import importlib.util
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens.errors import InputError
from marginlens.losses import CorrelationLoss, Exponential, Logistic
from marginlens.theory import Certificate, certify
from marginlens.theory.finite_minimum import certify_minimum
from marginlens.theory.scored_tokens import ScoredTokens
from mpmath_intervals import by_mpmath

DOUBLES = 1e-6  # share by which the formulas in doubles may miss what exact numbers decide
STATED = 1.001e-9  # by how much a stated direction and margin may differ from the exact ones, and rounding


class SignedSteps(ml.NormalizedGD):
    def update(self, gradient, state):
        return -self.size * np.sign(gradient.value()), state


class OtherLoss(Logistic):
    pass


class OtherData(ml.TokenDataset):
    pass


RULES = (None, ml.NormalizedGD(0.7), ml.GradientDescent(0.3))
SHAPES = ((1, 2, 1), (2, 3, 2), (2, 3, 4))


@cache
def tube(k):
    """The k-th certificate of a tube: problems of all shapes in turn, with all rules and losses, labels of both signs and padding."""
    rng = np.random.default_rng([77, k])
    n, T, d = SHAPES[k % 3]
    rule, loss = RULES[k // 3 % 3], (Logistic(), Exponential(), CorrelationLoss())[k % 2 + k // 9 % 2]
    for _ in range(1000):
        lengths = [T] * (n - 1) + [max(2, T - 1)]
        X, K = ([rng.normal(size=(m, w)) for m in lengths] for w in (3, d))
        data, v = ml.TokenDataset(X, rng.choice([-1, 1], n), K=K), rng.normal(size=3)
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


@cache
def minimum(k):
    """The k-th certificate of a minimum: inputs that pull in opposite directions."""
    rng, d = np.random.default_rng([78, k]), 1 + k % 2
    ways = np.concatenate([np.eye(d), -np.eye(d)])
    K = np.stack([ways + 0.1 * rng.normal(size=ways.shape), np.zeros_like(ways)], axis=1)
    X = np.array([[1.0, 0.2], [0.0, -0.1]]) + 0.1 * rng.normal(size=(2 * d, 2, 2))
    data, v = ml.TokenDataset(X, np.ones(2 * d), K=K), np.array([1.0, 0.1])
    end = ml.descend(data, v, optimizer=ml.GradientDescent(5.0), n_steps=20_000).final
    proof = certify_minimum(ScoredTokens(data, v, Logistic()), end)
    assert proof.verify().applies
    return proof


# ---- whether the statements of a certificate are true


def holds(small, large):
    return bool(small <= large + DOUBLES * (abs(small) + abs(large)))


def slope(loss, score):
    return {Logistic: 1.0 / (1.0 + np.exp(score)), Exponential: np.exp(-score)}.get(type(loss), 1.0)


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
    big = np.array([slope(c.loss, scores[i, c.selected[i]]) for i in of]) / n
    rho = np.log((big * delta)[S] / lam)
    level = theta * lam @ rho
    anchor = np.linalg.pinv(a[S]) @ (rho - level)
    P = c.point @ ray
    q = np.linalg.norm(c.point - P * ray - anchor)
    steep, at = 0.0 if type(c.loss) is CorrelationLoss else 1.0, a @ anchor
    near = np.exp(wide * c.radius - along * c.along - at)
    eps = np.bincount(of, near, n)[of]
    up, down = (np.array([max(0.0, (sign * delta[of == i]).max()) for i in of]) for sign in (1.0, -1.0))
    if not (holds(c.along, P - c.tolerance) and holds(q + c.tolerance, c.deviation) and (eps < 1.0).all()):
        return False
    if (eps * up >= delta)[S].any():
        return False
    more = (eps * (steep * up + down / delta))[S].max()
    less = (eps * steep * down - np.log1p(-eps) - np.log1p(-eps * up / np.where(S, delta, np.inf)))[S].max()
    ahead, behind = ~S & (delta > 0.0) & (eps * up <= delta), ~S & ~((delta > 0.0) & (eps * up <= delta))
    pull, worst = big * np.exp(steep * eps * up), np.abs(delta) + eps * np.maximum(up, down)
    mass = theta * pull * np.exp(-level - sigma * c.along - at)
    o = np.where(ahead, mass * (delta + eps * down), 0.0)
    tau = np.where(behind, mass * worst * np.exp(wide * c.radius + less), 0.0)
    h = 0.0 if c.optimizer is None else c.optimizer.size
    h *= 1.0 if isinstance(c.optimizer, ml.NormalizedGD) else (pull * worst * near) @ np.linalg.norm(a, axis=1)
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


# ---- planted faults


def no_numbers(x):
    return [np.nan, np.inf, -np.inf, -x, "1.0", None, 1j, np.array([x]), [x], np.float32(x), 10**400, np.array(x)]


def no_vectors(x):
    wrong = [-x, 10.0 * x, x[:, None], x.astype(np.float32), x.tolist(), np.append(x, 0.0), x.astype(object), None, "x"]
    return [*wrong, x.astype(complex), np.ma.array(x), np.where(x == x[0], np.nan, x), np.where(x == x[-1], np.inf, x)]


def tampered(rule, size):
    rule = replace(rule)
    object.__setattr__(rule, "size", size)
    return rule


def other_data(c):
    d = c.data
    ragged = [[x[:m] for x, m in zip(array, d.lengths, strict=True)] for array in (d.X, d.K)]
    other_kinds = [None, "data", d.as_batch(), d.X, d.repeat(2), OtherData(ragged[0], d.y, K=ragged[1])]
    moved = d.K + 1e-6 * np.sin(1.0 + np.arange(d.K.size)).reshape(d.K.shape)
    other_keys = [d.with_keys(K) for K in (-d.K, 0.0 * d.K, 2.0 * d.K, moved)]
    return [*other_kinds, ml.TokenDataset(ragged[0], -d.y, K=ragged[1]), *other_keys]


def other_losses(c):
    return [None, Logistic, OtherLoss(), ml.losses.Loss(), "Logistic", 3]


def other_optimizers(c):
    rules = [ml.Adam(0.01), ml.SignDescent(0.01), SignedSteps(0.01), ml.NormalizedGD, "NormalizedGD", 0.01, c.data]
    rules += [
        ml.NormalizedGD(0.01, momentum=0.9),
        ml.GradientDescent(0.01, momentum=0.5),
        ml.NormalizedGD(0.01, weight_decay=0.5),
    ]
    rules += [ml.NormalizedGD(1e9), ml.GradientDescent(1e99)]
    return rules + [
        tampered(ml.NormalizedGD(0.01), size)
        for size in (0.0, -0.01, np.nan, np.inf, "0.01", None, 1j, np.array([0.01]))
    ]


def other_growths(c):
    wrong = [*no_numbers(c.growth or 1.0), -1e-300]
    wrong += [1e9] if len(c.point) > 1 else []  # rows on the ray let a tube grow as fast as it likes
    return [*wrong, 0.999 * c.growth] if c.growth else wrong


def other_tokens(c):
    a, lengths = c.selected, c.data.lengths
    wrong = [
        (a + 1) % lengths,
        a - lengths,
        lengths,
        a.astype(float),
        a.tolist(),
        a[:, None],
        a[:0],
        None,
        np.append(a, 0),
        -1 - a,
    ]
    return [*wrong, a.astype(bool), a.astype(object), a + 2**40, (a + 1) % (lengths + 1)]


def other_margins(c):
    s = c.support
    wrong = [
        s[1:],
        s[:0],
        s[:, :1],
        s.ravel(),
        s.astype(float),
        s.tolist(),
        None,
        np.repeat(s, 2, axis=0),
        s - 100,
        s + 100,
        s[:, ::-1] + [[9, 0]],
    ]
    selected = np.column_stack([s[:, 0], c.selected[s[:, 0]]])
    padding = np.column_stack([s[:, 0], c.data.lengths[s[:, 0]]])
    return [*wrong, selected, padding, s.astype(object), np.concatenate([s, selected[:1]]), s[None], s.astype(bool)]


FAULTS = {
    "data": other_data,
    "head": lambda c: [*no_vectors(c.head)[2:], -c.head, 0.0 * c.head],
    "loss": other_losses,
    "point": lambda c: [*no_vectors(c.point)[2:], -c.point, 1e-3 * c.point, 0.0 * c.point],
    "tolerance": lambda c: [*no_numbers(c.tolerance), -1e-300, 1.1 * c.tolerance, c.norm, True],
    "radius": lambda c: [*no_numbers(c.radius), -200.0, 0.0, 0.99 * c.deviation, *([1e9 * c.radius] if len(c.point) > 1 else [])],
}  # fmt: skip
TUBE_FAULTS = FAULTS | {
    "selected": other_tokens,
    "support": other_margins,
    "optimizer": other_optimizers,
    "direction": lambda c: [*no_vectors(c.direction), c.direction + 2e-9, c.direction - 2e-9, 0.0 * c.direction],
    "margin": lambda c: [*no_numbers(c.margin), *(c.margin * x for x in (10.0, 0.1, 1.0 + 2e-9, 1.0 - 2e-9)), 0.0],
    "along": lambda c: [*no_numbers(c.along), 10.0 * c.along, c.along + 0.02 * c.tolerance, c.norm + 1.0, 0.0],
    "deviation": lambda c: [*no_numbers(c.deviation), 0.0, c.deviation - 0.03 * c.tolerance - 2e-4 * c.deviation, 2.0 * c.radius, 1e-300],
    "growth": other_growths,
    "share": lambda c: [*no_numbers(c.share), 0.0, 1.0, 5.0, -1e9, np.nextafter(1.0, 2.0), -1e-300],
    "progress": lambda c: [*no_numbers(c.progress), 0.0, 10.0 * c.progress, 1.00001 * c.margin, 1e-300],
}  # fmt: skip
MINIMUM_FAULTS = FAULTS | {
    "data": lambda c: [*other_data(c)[:6], c.data.with_keys(0.0 * c.data.K)],
    "head": lambda c: [*no_vectors(c.head)[2:], -c.head, 0.0 * c.head],
    "point": lambda c: [*no_vectors(c.point)[2:], c.point + 2.0 * c.radius],
    "tolerance": lambda c: [*no_numbers(c.tolerance), -1e-300, c.radius, 10.0 * c.radius, True],
    "radius": lambda c: [*no_numbers(c.radius), 0.0, 1e4 * c.radius, 1e-300, c.tolerance],
    "curvature": lambda c: [*no_numbers(c.curvature), -10.0, 0.0, 10.0 * c.curvature, 1e-300 * 0.0],
}


@pytest.mark.statement("X Thm 1")
@pytest.mark.statement("X Thm 2")
@pytest.mark.parametrize(("make", "faults", "count"), [(tube, TUBE_FAULTS, 6), (minimum, MINIMUM_FAULTS, 2)])
def test_every_field_has_faults_and_none_of_them_verifies(make, faults, count):
    assert set(faults) == {field.name for field in fields(make(0))}
    planted = 0
    for right in map(make, range(count)):
        for name, wrong_values in faults.items():
            for wrong in wrong_values(right):
                changed, planted = replace(right, **{name: wrong}), planted + 1
                assert not changed.verify().applies, (name, wrong)
    assert planted > 80 * count


def changed(c, rng):
    """One field of a certificate changed at random, by a little or a lot."""
    name = str(rng.choice([field.name for field in fields(c) if field.name not in ("loss", "optimizer")]))
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


def check_random_changes(count, seed):
    rng, verified, false = np.random.default_rng(seed), 0, 0
    for k in range(count):
        right, truth = (minimum(k % 4), is_minimum) if k % 6 == 5 else (tube(k % 18), is_true)
        wrong = changed(right, rng)
        if wrong.verify().applies:
            verified += 1
            assert truth(wrong), [
                field.name for field in fields(wrong) if getattr(wrong, field.name) is not getattr(right, field.name)
            ]
        else:
            false += 1
    assert false > 0.4 * count
    assert verified > 0.1 * count  # the formulas were asked


def test_random_changes_verify_only_if_true():
    for k in range(9):
        assert is_true(tube(k))
    assert is_minimum(minimum(0))
    check_random_changes(240, 1)


@pytest.mark.slow
def test_many_random_changes_verify_only_if_true():
    check_random_changes(2_400, 2)


def check_second_opinion(proofs):
    """Intervals of mpmath decide as those of Arb do, check by check, and by the same numbers."""
    for proof in proofs:
        first = proof.verify()
        with by_mpmath():
            second = proof.verify()
        assert [bool(check) for check in first.conditions] == [bool(check) for check in second.conditions]
        for ours, theirs in zip(first.conditions, second.conditions, strict=True):
            assert (ours.code, ours.numbers.keys()) == (theirs.code, theirs.numbers.keys())
            for name in ours.numbers.keys() & {"room", "small", "large"}:
                np.testing.assert_allclose(ours.numbers[name], theirs.numbers[name], rtol=1e-12, atol=1e-15)


def test_other_intervals_give_the_same_verdicts():
    rng, right = np.random.default_rng(3), [tube(k) for k in range(9)] + [minimum(k) for k in range(2)]
    check_second_opinion(right)
    check_second_opinion([changed(proof, rng) for proof in right for _ in range(3)])


@pytest.mark.slow
def test_other_intervals_give_the_same_verdicts_on_many_changes():
    rng = np.random.default_rng(4)
    for _ in range(20):
        check_second_opinion([changed(tube(k), rng) for k in range(18)])
        check_second_opinion([changed(minimum(k), rng) for k in range(4)])


def test_the_smallest_false_change_is_detected():
    data = ml.TokenDataset([[[1.0], [0.0]]], [1], K=[[[2.0], [0.0]]])  # θ = 2 and q* = 0, all exact
    below, above = (lambda x: float(np.nextafter(x, 0.0))), (lambda x: float(np.nextafter(x, 1e9)))
    numbers = {"along": below(7.5), "deviation": above(0.5), "progress": below(2.0), "margin": 2.0, "growth": 0.0}
    arrays = {"head": np.ones(1), "point": np.array([8.0]), "direction": np.ones(1)}
    tokens = {"selected": np.array([0]), "support": np.array([[0, 1]])}
    right = Certificate(
        data=data, loss=Logistic(), optimizer=None, tolerance=0.5, radius=1.0, share=0.5, **numbers, **arrays, **tokens
    )
    assert right.verify().applies
    assert replace(right, optimizer=ml.NormalizedGD(0.1)).verify().applies  # all rows on the ray: D = 0
    wrong = {"along": above(7.5), "deviation": below(0.5), "progress": above(2.0), "growth": -5e-324, "share": 1.0}
    wrong |= {"radius": 0.5, "tolerance": 0.5 + 8.0 * np.spacing(0.5), "margin": 2.0 + 2.1e-9}
    wrong |= {"point": np.array([below(8.0)]), "direction": np.array([1.0 - 1.1e-9])}
    for name, value in wrong.items():
        assert not replace(right, **{name: value}).verify().applies, name
    twice = ml.TokenDataset([[[1.0], [0.0], [0.0]]], [1], K=[[[2.0], [0.0], [0.0]]])
    both = replace(right, data=twice, support=np.array([[0, 1], [0, 2]])).verify()
    assert [check.code for check in both.failed] == ["tube.independent"]


def loads_and_verifies(kind, place):
    try:
        return kind.load(place).verify().applies
    except InputError as error:
        return "\n" in str(error)  # a refusal is one sentence


def test_tampered_files_are_refused_or_do_not_verify(tmp_path):
    place = tmp_path / "proof.npz"
    for right in (tube(1), tube(4), minimum(1)):
        right.save(place)
        arrays = dict(np.load(place))
        for name in arrays:
            if name == "format":
                continue
            for wrong in (
                np.array("x"),
                np.array([]),
                np.array([[np.nan, -1.0]]),
                -np.ones(3),
                np.array(np.nan),
                np.zeros((2, 2, 2, 2, 2)),
            ):
                if name in ("normalized", "W") or (name == "lengths" and wrong.ndim == 0):
                    continue
                np.savez(place, **(arrays | {name: wrong}))
                assert not loads_and_verifies(type(right), place), (name, wrong)


def test_the_checker_shares_nothing_with_the_search():
    """Not even through what it imports: the modules that decide reach the search, its core and its solvers nowhere."""
    for checker in ("tube_conditions", "minimum_conditions", "any_norm_conditions", "exact_rows", "intervals"):
        direct = _imports(f"marginlens.theory.{checker}")
        allowed = {"losses.margin", "norms", "optimizers", "theory.exact_rows", "theory.intervals", "theory.checks"}
        assert {name.removeprefix("marginlens.") for name in direct} <= allowed, checker
        reached, to_read = set(), [f"marginlens.theory.{checker}"]
        while to_read:
            name = to_read.pop()
            if name not in reached:
                reached.add(name)
                to_read += _imports(name)
        search = {
            f"marginlens.theory.{name}"
            for name in ("any_norm", "attraction", "certificate", "finite_minimum", "forecast", "residual_law")
        }
        assert not reached & search


def _imports(module):
    """The modules of the library that a module imports, when it is run rather than type-checked."""
    spec = importlib.util.find_spec(module)
    if (
        spec is None
        or spec.origin is None
        or not spec.origin.endswith(".py")
        or Path(spec.origin).name == "__init__.py"
    ):
        return []
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in typing]
    return [node.module for node in found if node.module and node.module.startswith("marginlens")]
