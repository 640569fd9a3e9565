"""Numerical proofs: exact products of doubles, intervals for everything else, inequalities, and training steps in intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.losses.margin import CorrelationLoss, Exponential, Logistic, Loss
from marginlens.optimizers import NormalizedGD
from marginlens.theory.checks import Check

if TYPE_CHECKING:
    from mpmath.ctx_iv import MPIntervalContext, ivmpf

    from marginlens.theory.certificate import Certificate
    from marginlens.typing import ArrayLike

BITS = 300  # of the intervals' ends
BITS_A_STEP = 12  # by which intervals may widen in a step


class Exact(NamedTuple):
    """An array of whole numbers times one power of two, so that sums of products are exact."""

    whole: Any
    power: int

    @classmethod
    def of(cls, values: ArrayLike) -> Exact:
        """Convert an array of doubles."""
        mantissa, exponent = np.frexp(np.asarray(values, dtype=np.float64))
        lowest = int(exponent[mantissa != 0.0].min(initial=0))
        pairs = zip((mantissa * 2.0**53).flat, exponent.flat, strict=True)
        whole = [int(m) << int(e - lowest) if m else 0 for m, e in pairs]
        return cls(np.array(whole, dtype=object).reshape(mantissa.shape), lowest - 53)

    def __matmul__(self, other: Exact) -> Exact:
        return Exact(self.whole @ other.whole, self.power + other.power)


class _Refuted(Exception):
    """A check failed, so there is nothing more to prove."""


class Proving:
    """Intervals of mpmath, and the inequalities shown for them so far.

    A comparison of two intervals is true if it holds for all their numbers.
    """

    def __init__(self) -> None:
        import mpmath

        self.mpmath, self.iv = mpmath, type(mpmath.iv)()
        self.iv.prec = BITS
        self.checks: list[Check] = []

    def number(self, exact: Exact, *place: int) -> Any:
        """Return an interval for an entry of an exact array, or for an exact number."""
        return self.iv.mpf(exact.whole[place] if place else exact.whole) * self.iv.mpf(2) ** exact.power

    @contextmanager
    def until_refuted(self) -> Iterator[None]:
        """End a proof at the first check that fails, or when an interval holds a number for which the next operation is not defined."""
        try:
            yield
        except _Refuted:
            pass
        except (ArithmeticError, ValueError) as problem:
            self._fail("proof.intervals", error=type(problem).__name__)

    def demand(self, code: str, small: ivmpf, large: ivmpf, **numbers: Any) -> None:
        """Check small < large, and end the proof unless it holds for all numbers of both intervals.

        The check's numbers are `room`, the share of `large` that is left between them, and the deciding ends `small` and `large`.
        """
        self._compare(code, bool(small < large), small, large, numbers)

    def at_most(self, code: str, small: ivmpf, large: ivmpf) -> None:
        """Check small ≤ large, as `demand` does for strict inequality."""
        self._compare(code, bool(small <= large), small, large, {})

    def _compare(self, code: str, holds: bool, small: ivmpf, large: ivmpf, numbers: Mapping[str, object]) -> None:
        room = float(self.mpmath.mpf(1) - self.mpmath.mpf((small / large).b)) if large.a > 0 else 0.0
        sides = {"small": float(self.mpmath.mpf(small.b)), "large": float(self.mpmath.mpf(large.a))}
        self.checks.append(Check(code, holds, {"room": room if holds else float("nan"), **sides, **numbers}))
        if not holds:
            raise _Refuted

    def require(self, code: str, holds: bool, **numbers: Any) -> None:
        """End the proof with a check that fails unless something holds."""
        if not holds:
            self._fail(code, **numbers)
            raise _Refuted

    def _fail(self, code: str, **numbers: Any) -> None:
        self.checks.append(Check(code, False, {"room": float("nan"), **numbers}))

    def sum(self, values: Iterable[ivmpf]) -> Any:
        """Return a sum; 0 for no terms."""
        return sum(values, self.iv.mpf(0))

    def dot(self, x: Iterable[ivmpf], y: Iterable[ivmpf]) -> Any:
        """Return an inner product."""
        return self.sum(a * b for a, b in zip(x, y, strict=True))

    def largest(self, values: Iterable[ivmpf]) -> Any:
        """Return an upper bound on all the numbers; 0 for none."""
        return self.iv.mpf(max((value.b for value in values), default=0))

    def smallest(self, values: Iterable[ivmpf]) -> Any:
        """Return a lower bound on all the numbers."""
        return self.iv.mpf(min(value.a for value in values))

    def not_negative(self, square: ivmpf) -> Any:
        """Return the interval of a number known to be at least zero, without its negative part."""
        return self.iv.mpf([max(square.a, 0), max(square.b, 0)])

    def eliminated(self, code: str, matrix: list[list[ivmpf]]) -> tuple[list[list[Any]], list[tuple[int, int, Any]]]:
        """Reduce a positive definite matrix to upper triangular form; also return the multiples of rows that were subtracted.

        All pivots are positive, which proves that the matrix is positive definite; the check with this code fails if it may not
        be. Entries below the diagonal are neither read nor changed, because the remaining part of a symmetric matrix stays
        symmetric.
        """
        upper, factors = [list(row) for row in matrix], []
        for j, pivots in enumerate(upper):
            self.require(code, bool(pivots[j] > 0), case="pivot")
            for i in range(j + 1, len(upper)):
                factor = pivots[i] / pivots[j]
                factors.append((i, j, factor))
                for k in range(i, len(upper)):
                    upper[i][k] = upper[i][k] - factor * pivots[k]
        return upper, factors

    def solver(self, code: str, matrix: list[list[ivmpf]]) -> Callable[[list[Any]], list[Any]]:
        """Return a solver of linear systems with a positive definite matrix; `code` names the check that it is positive definite."""
        upper, factors = self.eliminated(code, matrix)

        def solve(right: list[ivmpf]) -> list[Any]:
            x = list(right)
            for i, j, factor in factors:
                x[i] = x[i] - factor * x[j]
            for i in reversed(range(len(x))):
                rest = self.dot(upper[i][i + 1 :], x[i + 1 :])
                x[i] = (x[i] - rest) / upper[i][i]
            return x

        return solve


def steepness_of(iv: MPIntervalContext, loss: Loss) -> Any:
    """Return Λ, a bound on the slope of log|ℓ'|."""
    return iv.mpf(0 if type(loss) is CorrelationLoss else 1)


def slope_in(iv: MPIntervalContext, loss: Loss, margin: ivmpf) -> Any:
    """Return -ℓ' at a margin."""
    if type(loss) is Logistic:
        return 1 / (1 + iv.exp(margin))
    return iv.exp(-margin) if type(loss) is Exponential else iv.mpf(1)


def distance_after(proving: Proving, proof: Certificate, start: ArrayLike, n_steps: int) -> Any:
    """Enclose the distance between the point of a proof and the end of exact steps from a start.

    The state is the logit of every token and the coefficient of every key in p. With p = start + Σ c k, logits are k·start + Σ
    c k·k', so a step needs only the exact inner products of keys. Sums are of differences to the leading token of an input,
    never of numbers that nearly cancel.
    """
    proving.iv.prec += BITS_A_STEP * n_steps
    iv, number, data = proving.iv, proving.number, proof.data
    real = [(i, t) for i in range(data.n_inputs) for t in range(int(data.lengths[i]))]
    rows = tuple(np.array(real).T)
    keys, begin = Exact.of(data.K[rows]), Exact.of(np.asarray(start, dtype=np.float64))
    exact_scores = Exact.of(data.X[rows]) @ Exact.of(proof.head)
    signs = [int(data.y[i]) for i, _ in real]
    scores = [sign * number(exact_scores, r) for r, sign in enumerate(signs)]
    products = Exact(keys.whole @ keys.whole.T, 2 * keys.power)
    tokens = range(len(real))
    gram = [[number(products, r, s) for s in tokens] for r in tokens]
    at_start = keys @ begin
    logits, added = [number(at_start, r) for r in tokens], [iv.mpf(0) for _ in tokens]
    size = iv.mpf(proof.optimizer.size)
    inputs = [[r for r in tokens if real[r][0] == i] for i in range(data.n_inputs)]
    for _ in range(n_steps):
        weights, pulls = [iv.mpf(0) for _ in tokens], [iv.mpf(0) for _ in tokens]
        led: list[tuple[int, int]] = []
        for members in inputs:
            top = max(members, key=lambda r: logits[r].mid)
            powers = {r: iv.exp(logits[r] - logits[top]) for r in members}
            total = sum(powers.values(), iv.mpf(0))
            mean = sum((powers[r] * scores[r] for r in members), iv.mpf(0)) / total
            slope = slope_in(iv, proof.loss, mean) / data.n_inputs
            for r in members:
                above = sum((powers[s] * (scores[r] - scores[s]) for s in members if s != r), iv.mpf(0)) / total
                weights[r] = slope * powers[r] / total * above
            for r in members:
                if r != top:
                    pulls = [pull + weights[r] * (g - h) for pull, g, h in zip(pulls, gram[r], gram[top], strict=True)]
            led += [(r, top) for r in members if r != top]
        scale = size
        if type(proof.optimizer) is NormalizedGD:
            square = sum((weights[r] * (pulls[r] - pulls[top]) for r, top in led), iv.mpf(0))
            scale = size / iv.sqrt(proving.not_negative(square))
        logits = [logit + scale * pull for logit, pull in zip(logits, pulls, strict=True)]
        added = [c + scale * w for c, w in zip(added, weights, strict=True)]
    point = Exact.of(proof.point)
    shift = min(begin.power, point.power)
    apart = Exact(begin.whole * 2 ** (begin.power - shift) - point.whole * 2 ** (point.power - shift), shift)
    beside = keys @ apart
    square = number(apart @ apart) + sum((2 * c * number(beside, r) for r, c in enumerate(added)), iv.mpf(0))
    square += sum(
        (c * g * other for c, row in zip(added, gram, strict=True) for g, other in zip(row, added, strict=True)),
        iv.mpf(0),
    )
    return iv.sqrt(proving.not_negative(square))
