"""The numbers of proofs: products are exact, intervals hold what they enclose, and what is not defined proves nothing."""

import threading
from fractions import Fraction

import flint
import numpy as np
import pytest

import marginlens as ml
from marginlens.theory.intervals import BITS, Exact, Proving

RNG = np.random.default_rng(12)


def fractions(array):
    return [[Fraction(x) for x in row] for row in np.asarray(array).tolist()]


def entries(exact):
    return [[int(entry) * Fraction(2) ** exact.power for entry in row] for row in exact.whole.tolist()]


@pytest.mark.parametrize("spread", [0, 40, 290])
def test_products_and_differences_of_doubles_are_exact(spread):
    left, right = (RNG.normal(size=shape) * 10.0 ** RNG.uniform(-spread, spread, shape) for shape in ((4, 3), (3, 2)))
    left[0, 0], right[1, 1], right[2, 0] = 0.0, -0.0, 5e-324
    a, b = fractions(left), fractions(right)
    expected = [[sum(a[i][k] * b[k][j] for k in range(3)) for j in range(2)] for i in range(4)]
    assert entries(Exact.of(left) @ Exact.of(right)) == expected
    assert entries(Exact.of(left).T) == [list(column) for column in zip(*a, strict=True)]
    assert entries(Exact.of(left).rows([2, 0])) == [a[2], a[0]]
    assert entries(Exact.of(left).differences([(1, 3)])) == [[x - y for x, y in zip(a[1], a[3], strict=True)]]
    assert entries(Exact.of(left[0])) == [[x] for x in a[0]]
    with flint.ctx.workprec(2100):  # enough for every double at once
        numbers = Proving().numbers(Exact.of(left))
        assert all(number.is_exact() for row in numbers for number in row)
    assert [[float(number) for number in row] for row in numbers] == left.tolist()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_not_converted(value):
    with pytest.raises((ValueError, ArithmeticError)):
        Exact.of([1.0, value])


def holds(small, large):
    """Whether the proof that `small(proving)` < `large(proving)` goes through."""
    proving = Proving()
    with proving.until_refuted():
        proving.demand("tube.drift", small(proving), large(proving))
    return all(proving.checks) and bool(proving.checks)


def test_a_comparison_holds_for_all_numbers_or_not_at_all():
    assert holds(lambda p: p.real(1.0), lambda p: p.real(np.nextafter(1.0, 2.0)))
    assert not holds(lambda p: p.real(1.0), lambda p: p.real(1.0))
    third, tiny = (lambda p: p.real(1) / 3), (lambda p: p.real(2.0**-200))
    assert holds(lambda p: third(p) - tiny(p), third)
    assert not holds(lambda p: third(p) - tiny(p) * tiny(p), third)  # closer than the intervals are wide


def test_nothing_is_proved_about_undefined_numbers():
    one, zero, below = (lambda p: p.real(1)), (lambda p: p.real(0)), (lambda p: p.real(-1))
    undefined = [lambda p: one(p) / zero(p), lambda p: p.log(zero(p)), lambda p: p.log(below(p)), lambda p: zero(p) / 0]
    for number in undefined:
        assert not holds(zero, number)
        assert not holds(number, one)
        for least in (lambda p, x=number: p.largest([one(p), x(p)]), lambda p, x=number: p.largest([x(p), one(p)])):
            assert not holds(least, lambda p: p.real(2))
        for most in (lambda p, x=number: p.smallest([one(p), x(p)]), lambda p, x=number: p.smallest([x(p), one(p)])):
            assert not holds(zero, most)
    assert not holds(lambda p: p.root(undefined[0](p)), one)


def test_roots_of_squares_that_may_go_below_zero_hold_the_root():
    proving = Proving()
    with proving.until_refuted():
        around = proving.real(1) / 3 - proving.real(1) / 3  # zero, and not exactly
        root = proving.root(around)
        assert root.contains(0)
        assert root.contains(around.upper().sqrt())
        assert root < 1e-40
        assert proving.root(proving.real(-1)) == 0
        assert proving.root(proving.real(2.25)) == 1.5
    assert proving.checks == []


def test_the_precision_of_flint_is_given_back():
    before = flint.ctx.prec
    proving = Proving()
    with proving.until_refuted():
        assert flint.ctx.prec == BITS
        proving.require("tube.multipliers", False)
    assert flint.ctx.prec == before
    with pytest.raises(KeyError), proving.until_refuted():
        raise KeyError
    assert flint.ctx.prec == before


def test_proofs_in_several_threads_do_not_disturb_each_other():
    data, heads = ml.data.sphere_tokens(1, n_inputs=3, n_tokens=4, d_model=5, rng=0)
    rule = ml.NormalizedGD(1.0)
    far = ml.descend(data, heads, optimizer=rule, n_steps=300).final[0]
    proof = ml.theory.certify(data[0], heads[0], far, optimizer=rule)
    alone = [proof.verify(), proof.verify(n_steps=300)]
    seen = []

    def verify():
        seen.append([str(proof.verify()) == str(alone[0]), str(proof.verify(n_steps=300)) == str(alone[1])])

    threads = [threading.Thread(target=verify) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[True, True]] * 4
    assert all(verdict.applies for verdict in alone)
