"""Numerical proofs: exact products of doubles, intervals for everything else, inequalities, and training steps in intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flint import arb, arb_mat, ctx, fmpz, fmpz_mat

from marginlens.losses.margin import ArcsineLoss, CorrelationLoss, Exponential, Logistic, LogProbability, Loss
from marginlens.optimizers import NormalizedGD
from marginlens.theory.checks import Check

if TYPE_CHECKING:
    from marginlens.theory.certificate import Certificate
    from marginlens.typing import ArrayLike, FloatArray

BITS = 300  # of the midpoints of intervals
BITS_A_STEP = 12  # by which intervals may widen in a step
_PRECISION = RLock()  # held while flint's precision is set, which all threads share


class Exact(NamedTuple):
    """A matrix of whole numbers times one power of two, so that sums of products are exact."""

    whole: fmpz_mat
    power: int

    @classmethod
    def of(cls, values: ArrayLike) -> Exact:
        """Convert a matrix of doubles, or a vector as a matrix of one column."""
        array = np.asarray(values, dtype=np.float64)
        mantissa, exponent = np.frexp(array)
        lowest = int(exponent[mantissa != 0.0].min(initial=0))
        shifts = (exponent - lowest).ravel().tolist()
        # int() also refuses what is not finite.
        whole = [int(m) << shift for m, shift in zip((mantissa * 2.0**53).ravel().tolist(), shifts, strict=True)]
        n_rows = array.shape[0]
        return cls(fmpz_mat(n_rows, array.size // max(n_rows, 1), whole), lowest - 53)

    def __matmul__(self, other: Exact) -> Exact:
        return Exact(self.whole * other.whole, self.power + other.power)

    @property
    def T(self) -> Exact:
        """The transpose."""
        return Exact(self.whole.transpose(), self.power)

    def rows(self, which: Iterable[int]) -> Exact:
        """Take some of the rows."""
        every = self.whole.tolist()
        return Exact(fmpz_mat([every[r] for r in which]), self.power)

    def differences(self, pairs: Iterable[tuple[int, int]]) -> Exact:
        """Subtract the second row of each pair from the first."""
        every = self.whole.tolist()
        return Exact(fmpz_mat([[a - b for a, b in zip(every[r], every[s], strict=True)] for r, s in pairs]), self.power)


class _Refuted(Exception):
    """A check failed, so there is nothing more to prove."""


class Proving:
    """Intervals of some number of bits, and the inequalities shown for them so far.

    An interval is a ball of Arb. A comparison of two intervals is true if it holds for all their numbers, and false if it fails
    for some of them, or for numbers that are not defined.

    Attributes:
        checks: the inequalities so far.

        decided: False if the last check failed because intervals were too wide to tell, so that more bits may help.
    """

    def __init__(self, bits: int = BITS) -> None:
        self.bits = bits
        self.checks: list[Check] = []
        self.decided = True

    @contextmanager
    def until_refuted(self) -> Iterator[None]:
        """Compute with this many bits, and end at the first check that fails or at a number that is not defined."""
        with _PRECISION, ctx.workprec(self.bits):
            try:
                yield
            except _Refuted:
                pass
            except (ArithmeticError, ValueError) as problem:
                self.decided = False
                self._fail("proof.intervals", error=type(problem).__name__)

    # ---- checks

    def demand(self, code: str, small: arb, large: arb, **numbers: Any) -> None:
        """Check small < large, and end the proof unless it holds for all numbers of both intervals.

        The check's numbers are `room`, the share of `large` that is left between them, and the deciding ends `small` and `large`.
        """
        self.decided = bool(small < large or small >= large)
        self._compare(code, bool(small < large), small, large, numbers)

    def at_most(self, code: str, small: arb, large: arb) -> None:
        """Check small ≤ large, as `demand` does for strict inequality."""
        self.decided = bool(small <= large or small > large)
        self._compare(code, bool(small <= large), small, large, {})

    def _compare(self, code: str, holds: bool, small: arb, large: arb, numbers: Mapping[str, object]) -> None:
        room = float("nan") if not holds else float(1 - (small / large).upper()) if large > 0 else 0.0
        sides = {"small": float(small.upper()), "large": float(large.lower())}
        self.checks.append(Check(code, holds, {"room": room, **sides, **numbers}))
        if not holds:
            raise _Refuted

    def require(self, code: str, holds: bool, **numbers: Any) -> None:
        """End the proof with a check that fails unless something holds."""
        if not holds:
            self._fail(code, **numbers)
            raise _Refuted

    def _fail(self, code: str, **numbers: Any) -> None:
        self.checks.append(Check(code, False, {"room": float("nan"), **numbers}))

    # ---- numbers

    def real(self, value: float) -> Any:
        """Return the interval of a double or a whole number and nothing else."""
        return arb(value)

    def number(self, whole: fmpz | int, power: int) -> Any:
        """Return the interval of whole · 2^power and nothing else."""
        return arb((whole, power))

    def numbers(self, exact: Exact) -> list[list[Any]]:
        """Return an interval for each entry of an exact matrix, row by row."""
        return (arb_mat(exact.whole) * arb((1, exact.power))).tolist()

    def middle(self, x: arb) -> float:
        """Return the double next to the middle of an interval."""
        return float(x)

    def exp(self, x: arb) -> Any:
        """Return e^x."""
        return x.exp()

    def log(self, x: arb) -> Any:
        """Return the natural logarithm, not defined unless all numbers are positive."""
        return x.log()

    def square(self, x: arb) -> Any:
        """Return x²."""
        # Not x**2: Arb takes powers of an interval around zero by logarithms.
        return x * x

    def root(self, square: arb) -> Any:
        """Return the square root of a number known to be at least zero, also if its interval goes below."""
        if square >= 0:
            return square.sqrt()
        highest = self.largest([arb(0), square]).sqrt()
        return arb(highest / 2, highest / 2)

    def sum(self, values: Iterable[arb]) -> Any:
        """Return a sum; 0 for no terms."""
        return sum(values, self.real(0))

    def dot(self, x: Iterable[arb], y: Iterable[arb]) -> Any:
        """Return an inner product."""
        return self.sum(a * b for a, b in zip(x, y, strict=True))

    def product(self, left: Sequence[Sequence[arb]], right: Sequence[Sequence[arb]]) -> list[list[Any]]:
        """Return the product of two matrices, given and returned row by row."""
        return (arb_mat(left) * arb_mat(right)).tolist()

    def largest(self, values: Iterable[arb]) -> Any:
        """Return an upper bound on all the numbers; 0 for none."""
        return max(_defined(value.upper() for value in values), default=arb(0))

    def smallest(self, values: Iterable[arb]) -> Any:
        """Return a lower bound on all the numbers."""
        return min(_defined(value.lower() for value in values))

    # ---- linear systems

    def eliminated(self, code: str, matrix: list[list[arb]]) -> tuple[list[list[Any]], list[tuple[int, int, Any]]]:
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

    def solver(self, code: str, matrix: list[list[arb]]) -> Callable[[list[Any]], list[Any]]:
        """Return a solver of linear systems with a positive definite matrix; `code` names the check that it is positive definite."""
        upper, factors = self.eliminated(code, matrix)

        def solve(right: list[arb]) -> list[Any]:
            x = list(right)
            for i, j, factor in factors:
                x[i] = x[i] - factor * x[j]
            for i in reversed(range(len(x))):
                rest = self.dot(upper[i][i + 1 :], x[i + 1 :])
                x[i] = (x[i] - rest) / upper[i][i]
            return x

        return solve


def _defined(ends: Iterable[arb]) -> Iterator[arb]:
    """Return the ends of intervals; max() and min() would pass over one that is not a number."""
    for end in ends:
        if end.is_nan():
            raise ArithmeticError
        yield end


def steepness_in(
    proving: Proving, codes: tuple[str, str], loss: Loss, scores: list[Any], epsilon: list[Any], plus: list[Any]
) -> list[Any]:
    """Return Λ for every row, a bound on the slope of log|ℓ'| for margins from γ_α - εΔ⁺ on.

    For -log u it is 1/(γ_α - εΔ⁺), where γ_α is the score of the row's selected token. `codes` are those of its two conditions.
    """
    if type(loss) is not LogProbability:
        return [proving.real(0 if type(loss) is CorrelationLoss else 1)] * len(scores)
    proving.require(codes[0], all(bool(score > 0) for score in scores))
    lost = [e * up / score for e, up, score in zip(epsilon, plus, scores, strict=True)]
    proving.demand(codes[1], proving.largest(lost), proving.real(1))
    return [1 / (score * (1 - part)) for score, part in zip(scores, lost, strict=True)]


def slope_in(proving: Proving, loss: Loss, margin: arb) -> Any:
    """Return -ℓ' at a margin."""
    if type(loss) is Logistic:
        return 1 / (1 + proving.exp(margin))
    if type(loss) is LogProbability:
        return 1 / margin
    if type(loss) is ArcsineLoss:
        return 1 / proving.root(margin * (1 - margin))
    return proving.exp(-margin) if type(loss) is Exponential else proving.real(1)


# ---- training steps


def exact_steps(proof: Certificate, start: FloatArray, n_steps: int) -> list[Check]:
    """Check that exact steps from a start end within the tolerance of the point of a proof, with as many bits as it takes."""
    bits = BITS
    while True:
        proving = Proving(bits)
        with proving.until_refuted():
            distance = distance_after(proving, proof, start, n_steps)
            proving.demand("tube.exact_steps", distance, proving.real(proof.tolerance), n_steps=n_steps)
        if proving.decided or bits >= BITS + BITS_A_STEP * n_steps:
            return proving.checks
        bits *= 2


def distance_after(proving: Proving, proof: Certificate, start: FloatArray, n_steps: int) -> Any:
    """Enclose the distance between the point of a proof and the end of exact steps from a start.

    The state is the logit of every token and the coefficient of every key in p. With p = start + Σ c k, logits are k·start + Σ
    c k·k' and the offset, so a step needs only the exact inner products of keys. Sums are of differences to the leading token of an input,
    never of numbers that nearly cancel.
    """
    data = proof.data
    real = [(i, t) for i in range(data.n_inputs) for t in range(int(data.lengths[i]))]
    rows = tuple(np.array(real).T)
    keys, begin = Exact.of(data.K[rows]), Exact.of(start)
    scores = [
        int(data.y[i]) * score for (i, _), [score] in zip(real, proving.numbers(_scores(proof, rows)), strict=True)
    ]
    gram = proving.numbers(keys @ keys.T)
    offsets = _column(proving, Exact.of(data.offsets[rows][:, None]))
    logits = [logit + offset for logit, offset in zip(_column(proving, keys @ begin), offsets, strict=True)]
    added = [proving.real(0)] * len(real)
    inputs = [[r for r, (j, _) in enumerate(real) if j == i] for i in range(data.n_inputs)]
    for _ in range(n_steps):
        weights, led = _weights(proving, proof, scores, logits, inputs)
        between = [[g - h for g, h in zip(gram[r], gram[top], strict=True)] for r, top in led]
        [pulls] = proving.product([[weights[r] for r, _ in led]], between) if led else [[proving.real(0)] * len(real)]
        scale = proving.real(proof.optimizer.size)
        if type(proof.optimizer) is NormalizedGD:
            square = proving.sum(weights[r] * (pulls[r] - pulls[top]) for r, top in led)
            scale = scale / proving.root(square)
        logits = [logit + scale * pull for logit, pull in zip(logits, pulls, strict=True)]
        added = [c + scale * w for c, w in zip(added, weights, strict=True)]
    apart = Exact.of(np.stack([start, proof.point])).differences([(0, 1)])
    beside = _column(proving, keys @ apart.T)
    [[square]] = proving.numbers(apart @ apart.T)
    square += 2 * proving.dot(added, beside)
    [moved] = proving.product([added], gram)
    return proving.root(square + proving.dot(moved, added))


def _scores(proof: Certificate, rows: tuple[Any, ...]) -> Exact:
    """Return v·x of some tokens."""
    return Exact.of(proof.data.X[rows]) @ Exact.of(proof.head)


def _column(proving: Proving, exact: Exact) -> list[Any]:
    """Return the numbers of a matrix of one column."""
    return [number for [number] in proving.numbers(exact)]


def _weights(
    proving: Proving, proof: Certificate, scores: list[arb], logits: list[arb], inputs: list[list[int]]
) -> tuple[list[Any], list[tuple[int, int]]]:
    """Return the weight of every key in -∇L, and every token with the leading one of its input, if that is another."""
    weights = [proving.real(0)] * len(logits)
    led: list[tuple[int, int]] = []
    for members in inputs:
        top = max(members, key=lambda r: proving.middle(logits[r]))
        powers = {r: proving.exp(logits[r] - logits[top]) for r in members}
        total = proving.sum(powers.values())
        mean = proving.sum(powers[r] * scores[r] for r in members) / total
        slope = slope_in(proving, proof.loss, mean) / proof.data.n_inputs
        for r in members:
            above = proving.sum(powers[s] * (scores[r] - scores[s]) for s in members if s != r) / total
            weights[r] = slope * powers[r] / total * above
        led += [(r, top) for r in members if r != top]
    return weights, led
