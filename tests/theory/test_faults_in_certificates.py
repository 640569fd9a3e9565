"""verify() with a fault in every field of both kinds of certificates: none that is false verifies, and none raises.

Planted faults make a statement false on purpose. Random changes may leave all of them true; whether they do is decided by formulas in
doubles that share nothing with the checker.
"""

import ast
import importlib.util
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from made_up_proofs import changed, is_minimum, is_true, minimum, tube
from marginlens.errors import InputError
from marginlens.losses import Logistic
from marginlens.theory import Certificate
from mpmath_intervals import by_mpmath


class SignedSteps(ml.NormalizedGD):
    def update(self, gradient, state):
        return -self.size * np.sign(gradient.value()), state


class OtherLoss(Logistic):
    pass


class OtherData(ml.TokenDataset):
    pass


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
