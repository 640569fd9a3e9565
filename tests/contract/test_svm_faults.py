"""Hundreds of problems with planted faults: every status is right, and every proof holds in exact arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

import tolerances
from marginlens.data import TokenDataset
from marginlens.svm import MarginSolution, Status, att_svm

N_PROBLEMS = 540
NEAR = 1e-9


@dataclass(frozen=True)
class Planted:
    """A problem whose answer is known by construction: along `witness` every selected token wins, or nothing can."""

    kind: str
    X: np.ndarray
    selected: np.ndarray
    witness: np.ndarray | None


class Planter:
    """Tokens of a random small problem, on which the kinds below plant their fault."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.n, self.T, self.d = (int(rng.integers(low, high)) for low, high in ((1, 7), (3, 7), (2, 13)))
        self.p = rng.normal(size=self.d)

    def tokens(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=(*(shape or (self.n, self.T)), self.d))

    def best(self, X: np.ndarray) -> np.ndarray:
        return np.argmax(X @ self.p, axis=1)

    def losers(self, X: np.ndarray) -> np.ndarray:
        """Two tokens of each input that are not selected, (n_inputs, 2)."""
        return np.argsort(X @ self.p, axis=1)[:, :2]

    def scales(self, *shape: int) -> np.ndarray:
        return 10.0 ** self.rng.uniform(-6, 6, size=shape)

    def feasible(self, kind: str, X: np.ndarray) -> Planted:
        return Planted(kind, X, self.best(X), self.p)

    def contradiction(self, kind: str, X: np.ndarray, one: np.ndarray, other: np.ndarray) -> Planted:
        """Two more inputs with the same two tokens, `one` and `other`, of which each selects another; shuffled in."""
        extra = np.repeat(self.tokens(1, X.shape[1]), 2, axis=0)
        extra[0, :2], extra[1, :2] = (one, other), (other, one)
        order = self.rng.permutation(len(X) + 2)
        both = np.concatenate([X, extra])[order]
        return Planted(kind, both, np.concatenate([self.best(X), [0, 0]])[order], None)


def plain(plant: Planter) -> Planted:
    return plant.feasible("plain", plant.tokens())


def narrow(plant: Planter) -> Planted:
    plant.d, plant.p = 1, plant.rng.normal(size=1)
    return plant.feasible("d = 1", plant.tokens())


def narrow_conflict(plant: Planter) -> Planted:
    plant.d, plant.p = 1, plant.rng.normal(size=1)
    return plant.contradiction("d = 1, conflict", plant.tokens(), *plant.tokens(2))


def one_input(plant: Planter) -> Planted:
    plant.n = 1
    return plant.feasible("n = 1", plant.tokens())


def one_token(plant: Planter) -> Planted:
    plant.T = 1
    return plant.feasible("T = 1", plant.tokens())


def scaled_problem(plant: Planter) -> Planted:
    return plant.feasible("one scale", plant.tokens() * plant.scales(1, 1, 1))


def scaled_tokens(plant: Planter) -> Planted:
    return plant.feasible("token scales", plant.tokens() * plant.scales(plant.n, plant.T, 1))


def zero_tokens(plant: Planter) -> Planted:
    X = plant.tokens()
    X[plant.rng.random((plant.n, plant.T)) < 0.3] = 0.0
    X[:, 0] = (plant.rng.random((plant.n, 1)) + 0.1) * plant.p
    return plant.feasible("zero tokens", X)


def duplicated_other(plant: Planter) -> Planted:
    X = plant.tokens()
    losers, rows = plant.losers(X), np.arange(plant.n)
    X[rows, losers[:, 0]] = X[rows, losers[:, 1]]
    return plant.feasible("duplicate of another token", X)


def duplicated_selected(plant: Planter) -> Planted:
    X = plant.tokens()
    selected, i = plant.best(X), int(plant.rng.integers(plant.n))
    X[i, plant.losers(X)[i, 0]] = X[i, selected[i]]
    return Planted("duplicate of the selected token", X, selected, None)


def repeated_inputs(plant: Planter) -> Planted:
    X = plant.tokens()
    return plant.feasible("ties", np.concatenate([X, X[:, ::-1], X]))


def nearly_parallel(plant: Planter) -> Planted:
    X = plant.tokens()
    losers, rows = plant.losers(X), np.arange(plant.n)
    X[rows, losers[:, 0]] = X[rows, losers[:, 1]] + NEAR * plant.tokens(plant.n)
    return plant.feasible("nearly parallel", X)


def nearly_opposite(plant: Planter) -> Planted:
    """Two inputs whose rows are u and NEAR w - u, with u·p in the middle of the sliver that is left."""
    p = plant.p / np.linalg.norm(plant.p)
    u, w, a = plant.tokens(3)
    w *= np.sign(w @ p)
    u += (0.5 * NEAR * (w @ p) - u @ p) * p
    extra = np.repeat((a - 9.0 * p)[None, None] + 0.1 * plant.tokens(1, plant.T), 2, axis=0)
    extra[0, :2], extra[1, :2] = (a, a - u), (a - u + NEAR * w, a)
    X = np.concatenate([plant.tokens(), extra])
    return Planted("nearly opposite", X, np.concatenate([plant.best(X[:-2]), [0, 0]]), plant.p)


def everything(plant: Planter) -> Planted:
    X = plant.tokens() * plant.scales(plant.n, plant.T, 1)
    losers, rows = plant.losers(X), np.arange(plant.n)
    X[rows, losers[:, 0]] = X[rows, losers[:, 1]] * (1.0 + NEAR)
    X = np.concatenate([X, X])
    best = plant.best(X)
    other = (best + 1) % plant.T
    X[0, other[0]] = 0.0 if X[0, best[0]] @ plant.p > 0 else X[0, other[0]]
    return plant.feasible("everything at once", X)


def conflict(plant: Planter) -> Planted:
    return plant.contradiction("conflict", plant.tokens(), *plant.tokens(2))


def scaled_conflict(plant: Planter) -> Planted:
    X = plant.tokens() * plant.scales(plant.n, plant.T, 1)
    return plant.contradiction("conflict between scales", X, *(plant.tokens(2) * plant.scales(2, 1)))


def near_conflict(plant: Planter) -> Planted:
    X = plant.tokens()
    losers, rows = plant.losers(X), np.arange(plant.n)
    X[rows, losers[:, 0]] = X[rows, losers[:, 1]] + NEAR * plant.tokens(plant.n)
    return plant.contradiction("conflict among nearly parallel rows", X, *plant.tokens(2))


def cycle(plant: Planter) -> Planted:
    """Three inputs with the same three tokens, of which each prefers its own: the rows add up to zero exactly."""
    three = plant.rng.integers(-50, 50, size=(3, plant.d)).astype(float)
    extra = np.repeat(three[0][None, None], 3, axis=0) + 1000.0 * np.ones((3, plant.T, 1))
    for i in range(3):
        extra[i, 0], extra[i, 1:] = three[i], three[(i + 1) % 3]
    X = plant.tokens()
    return Planted("cycle of three", np.concatenate([extra, X]), np.concatenate([[0, 0, 0], plant.best(X)]), None)


KINDS: tuple[Callable[[Planter], Planted], ...] = (
    plain, narrow, narrow_conflict, one_input, one_token, scaled_problem, scaled_tokens, zero_tokens, duplicated_other,
    duplicated_selected, repeated_inputs, nearly_parallel, nearly_opposite, everything, conflict, scaled_conflict,
    near_conflict, cycle,
)  # fmt: skip


@dataclass(frozen=True)
class Exact:
    """An array of binary fractions without rounding: whole numbers times one power of two."""

    numbers: np.ndarray
    power: int

    def __matmul__(self, other: Exact) -> Exact:
        return Exact(np.dot(self.numbers, other.numbers), self.power + other.power)

    @property
    def T(self) -> Exact:
        return Exact(self.numbers.T, self.power)

    def fractions(self) -> list[Fraction]:
        scale = Fraction(2) ** self.power
        return [int(number) * scale for number in np.atleast_1d(self.numbers)]

    def length(self) -> float:
        """The Euclidean norm, its square summed exactly."""
        largest = max(abs(number) for number in self.numbers)
        square = Fraction(int(np.dot(self.numbers, self.numbers)), largest**2) if largest else Fraction(0)
        return float(largest * Fraction(2) ** self.power) * float(np.sqrt(float(square)))


def exact(array: np.ndarray) -> Exact:
    mantissa, exponent = np.frexp(array)
    power = int(np.min(exponent, where=array != 0.0, initial=0)) - 53
    shifted = [
        int(m * 2.0**53) << max(0, int(e) - 53 - power) for m, e in zip(mantissa.flat, exponent.flat, strict=True)
    ]
    return Exact(np.array(shifted, dtype=object).reshape(array.shape), power)


def certainly_feasible(planted: Planted, rows: Exact) -> bool:
    """Whether the witness satisfies every row strictly, in exact arithmetic: a multiple of it is then feasible."""
    assert planted.witness is not None
    return all(number > 0 for number in (rows @ exact(planted.witness)).numbers)


def certainly_infeasible(rows: Exact) -> bool:
    """Whether some rows, added as they are, vanish exactly: one zero row, two opposite rows, or three in a cycle."""
    present = {tuple(row) for row in rows.numbers}
    if any(tuple(-row) in present for row in rows.numbers):
        return True
    return any(tuple(-(a + b)) in present for a in rows.numbers for b in rows.numbers)


def check_solution(solution: MarginSolution, rows: Exact, kind: str) -> None:
    """x is feasible up to rounding, and weak duality bounds how much shorter a feasible vector could be, all exactly."""
    x, weights = exact(solution.x), exact(solution.multipliers)
    assert min(weights.numbers) >= 0
    products = (rows @ x).fractions()
    roundings = [tolerances.SVM_DISTANCE * size * x.length() for size in np.linalg.norm(solution.rows, axis=1)]
    assert all(float(1 - product) <= rounding for product, rounding in zip(products, roundings, strict=True)), kind
    lowest = products.index(min(products))
    combined = rows.T @ weights
    assert products[lowest] > 0
    upper = (x @ x).fractions()[0] / products[lowest] ** 2 / 2  # of x stretched until it is feasible without tolerance
    lower = sum(weights.fractions()) - (combined @ combined).fractions()[0] / 2
    assert float((upper - lower) / upper) <= tolerances.SVM_EXACT_GAP + 4 * roundings[lowest], kind
    assert solution.kkt_residual() <= max(tolerances.SVM_KKT, 32 * solution.rounding_floor()), kind


def check_certificate(solution: MarginSolution, rows: Exact, kind: str) -> None:
    """y >= 0 is not zero and its combination of rows vanishes up to rounding, exactly evaluated."""
    assert solution.certificate is not None
    y, size = solution.certificate, np.linalg.norm(solution.rows, axis=1)
    assert (y >= 0.0).all()
    weight = float(np.sum(y * np.where(size == 0.0, 1.0, size)))
    assert weight > 0.0
    residual = (rows.T @ exact(y)).length() / weight
    assert residual <= tolerances.SVM_FARKAS, kind
    assert solution.certificate_residual() == pytest.approx(residual, abs=tolerances.SVM_FARKAS, rel=0.0)
    assert np.isnan(solution.x).all()
    assert solution.margin == 0.0


@pytest.mark.statement("A ATT-SVM")
def test_planted_faults_get_their_status_and_a_proof() -> None:
    rng = np.random.default_rng(20240607)
    seen: Counter[str] = Counter()
    for _ in range(2 * N_PROBLEMS):
        if seen.total() == N_PROBLEMS:
            break
        planted = KINDS[seen.total() % len(KINDS)](Planter(rng))
        solution = att_svm(TokenDataset(planted.X, np.ones(len(planted.X))), planted.selected)
        rows = exact(solution.rows)
        if planted.witness is None:
            assert certainly_infeasible(rows), planted.kind
            assert solution.status is Status.INFEASIBLE, planted.kind
            check_certificate(solution, rows, planted.kind)
        elif not certainly_feasible(planted, rows):
            continue  # the rows were rounded to the wrong side of the witness
        elif planted.X.shape[1] == 1:
            assert solution.status is Status.TRIVIAL
            assert (solution.x == 0.0).all()
        else:
            assert solution.status is Status.OPTIMAL, planted.kind
            check_solution(solution, rows, planted.kind)
        seen[planted.kind] += 1
    assert seen.total() == N_PROBLEMS
    assert len(seen) == len(KINDS)
    assert min(seen.values()) >= N_PROBLEMS // len(KINDS)
