"""The arithmetic of proofs a second time, in mpmath's intervals instead of Arb's: a second opinion on what `verify()` says."""

from contextlib import ExitStack, contextmanager
from unittest import mock

import mpmath

from marginlens.theory import intervals, minimum_conditions, tube_conditions
from marginlens.theory.checks import Check
from marginlens.theory.intervals import BITS, Proving


class MpmathProving(Proving):
    """`Proving` with other numbers: intervals have two ends of 300 bits, and what is not defined raises an error."""

    def __init__(self, bits=BITS):
        super().__init__(bits)
        self.iv = type(mpmath.iv)()
        self.iv.prec = bits

    def _compare(self, code, holds, small, large, numbers):
        room = float(mpmath.mpf(1) - mpmath.mpf((small / large).b)) if large.a > 0 else 0.0
        sides = {"small": float(mpmath.mpf(small.b)), "large": float(mpmath.mpf(large.a))}
        self.checks.append(Check(code, holds, {"room": room if holds else float("nan"), **sides, **numbers}))
        if not holds:
            raise intervals._Refuted

    def real(self, value):
        return self.iv.mpf(value)

    def number(self, whole, power):
        return self.iv.mpf(int(whole)) * self.iv.mpf(2) ** power

    def numbers(self, exact):
        return [[self.number(entry, exact.power) for entry in row] for row in exact.whole.tolist()]

    def middle(self, x):
        return float(mpmath.mpf(x.mid))

    def exp(self, x):
        return self.iv.exp(x)

    def log(self, x):
        return self.iv.log(x)

    def square(self, x):
        return x**2

    def root(self, square):
        return self.iv.sqrt(self.iv.mpf([max(square.a, 0), max(square.b, 0)]))

    def product(self, left, right):
        columns = list(zip(*right, strict=True))
        return [[self.dot(row, column) for column in columns] for row in left]

    def largest(self, values):
        return self.iv.mpf(max((value.b for value in values), default=0))

    def smallest(self, values):
        return self.iv.mpf(min(value.a for value in values))


@contextmanager
def by_mpmath():
    """Let `verify()` compute in mpmath's intervals."""
    with ExitStack() as replaced:
        for module in (intervals, minimum_conditions, tube_conditions):
            replaced.enter_context(mock.patch.object(module, "Proving", MpmathProving))
        yield
