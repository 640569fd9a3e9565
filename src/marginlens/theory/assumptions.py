"""Conditions of paper A's theorems, each checked on data with its numbers and a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import FloatArray, IntArray, TokenDataset, as_dataset
from marginlens.errors import reject, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.optimizers import GradientDescent, NormalizedGD, as_optimizer
from marginlens.papers import implements
from marginlens.risk.smoothness import loss_on_scores, smoothness
from marginlens.svm import Status
from marginlens.theory.optimality import (
    all_tied,
    each_problem,
    globally_optimal_direction,
    one_problem,
    power,
    score_blur,
    score_differences,
)


@dataclass(frozen=True, repr=False)
class Check:
    """One condition of a theorem on one problem: what it is called, whether it holds, the numbers that decide it, a sentence."""

    name: str
    holds: bool
    sentence: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={value:.4g}" for name, value in self.numbers.items())
        return f"Check({self.name}: {'holds' if self.holds else 'fails'}{', ' if numbers else ''}{numbers})"

    def __str__(self) -> str:
        return f"[{'x' if self.holds else ' '}] {self.name}: {self.sentence}"


@implements("A", "Assumption A")
def check_assumption_a(data: TokenDataset, v: Any, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""Whether the loss strictly decreases with a bounded, Lipschitz slope on the scores of the problem.

    .. math:: \ell' < 0,\quad |\ell'| \le M_1,\quad |\ell'(u) - \ell'(w)| \le M_0 |u - w| \quad \text{on } [\min\gamma, \max\gamma]

    A slope of exactly zero fails the check although the loss may still strictly decrease: the proofs divide by the smallest slope.

    Returns:
        A `Check` with M0, M1, smallest_slope, their logarithms, which decide, low and high; a list of them for a batch.
    """
    name = type(as_loss(loss)).__name__

    def question(one: TokenDataset, head: FloatArray) -> Check:
        found = loss_on_scores(one, head, loss)[0]
        scores = one.scores(head)[one.mask]
        holds = (
            found.decreasing
            and found.log_lipschitz < np.inf
            and -np.inf < found.log_smallest
            and found.log_bound < np.inf
        )
        low, high = float(scores.min()), float(scores.max())
        sentence = (
            f"on the scores [{low:.4g}, {high:.4g}] {name} {'strictly decreases' if holds else 'does not strictly decrease'}"
            f" with slopes from {power(found.log_smallest)} to M1 = {power(found.log_bound)}, which are M0 = "
            f"{power(found.log_lipschitz)} Lipschitz"
        )
        numbers = {
            "M0": found.lipschitz,
            "M1": found.bound,
            "smallest_slope": found.smallest,
            "log_M0": found.log_lipschitz,
            "log_M1": found.log_bound,
            "log_smallest_slope": found.log_smallest,
            "low": low,
            "high": high,
        }
        return Check("A Assumption A", holds, sentence, numbers)

    return each_problem(data, v, question)


@implements("A", "Assumption B")
def check_assumption_b(data: TokenDataset, v: Any) -> Any:
    r"""Whether all non-optimal tokens of an input score the same, below the optimal one.

    .. math:: \gamma_{it} = \gamma_{i\tau} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t, \tau \ne \mathrm{opt}_i

    Returns:
        A `Check` with spread, the largest difference among non-optimal scores of one input, and smallest_gap, the smallest
        difference to the optimal one; a list of them for a batch. Equal means equal up to rounding.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        gaps, other = score_differences(one, head, one.optimal(head))
        spread = float(np.max(np.max(gaps, axis=-1) - np.min(np.where(other, gaps, np.inf), axis=-1), initial=0.0))
        spread, gap = max(spread, 0.0), float(np.min(gaps[other], initial=np.inf))
        holds = bool(all_tied(one.scores(head), score_blur(one, head), other).all() and gap > 0.0)
        sentence = f"the non-optimal scores of an input differ by up to {spread:.4g} and lie at least {gap:.4g} below the optimal one"
        return Check("A Assumption B", holds, sentence, {"spread": spread, "smallest_gap": gap})

    return each_problem(data, v, question)


@implements("A", "Thm 1")
def check_strict_optimum(data: TokenDataset, v: Any) -> Any:
    r"""Whether the highest score of every input belongs to one token.

    .. math:: \gamma_{it} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t \ne \mathrm{opt}_i

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        gaps, other = score_differences(one, head, one.optimal(head))
        gap = float(np.min(gaps[other], initial=np.inf))
        beats = f"beats the rest of its input by at least {gap:.4g}" if gap > 0.0 else "ties with another in some input"
        return Check("strict optimum", gap > 0.0, f"the highest-scoring token {beats}", {"smallest_gap": gap})

    return each_problem(data, v, question)


@implements("A", "Thm 4")
def check_distinct_scores(data: TokenDataset, v: Any) -> Any:
    r"""Whether no two tokens of an input score the same.

    .. math:: \gamma_{it} \ne \gamma_{i\tau} \quad \text{for all } t \ne \tau

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        scores, blur = np.where(one.mask, one.scores(head), np.inf), score_blur(one, head)
        order = np.argsort(scores, axis=-1, kind="stable")
        scores, blur = np.take_along_axis(scores, order, axis=-1), np.take_along_axis(blur, order, axis=-1)
        with np.errstate(invalid="ignore"):
            steps = np.diff(scores, axis=-1)
        real = np.isfinite(steps)
        gap = float(np.min(steps[real], initial=np.inf))
        holds = bool(np.all(steps[real] > (blur[..., 1:] + blur[..., :-1])[real]))
        sentence = f"two scores of one input differ by at least {gap:.4g}"
        return Check("distinct scores", holds, sentence, {"smallest_gap": gap})

    return each_problem(data, v, question)


@implements("A", "Def 1")
def check_separable(data: TokenDataset, v: Any) -> Any:
    r"""Whether the GMM direction exists: some p selects the optimal token of every input.

    .. math:: \exists p:\ (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1 \quad \text{for all } t \ne \mathrm{opt}_i

    Theorems 1 and 2 speak of this direction without saying that it must exist; where it does not they say nothing.

    Returns:
        A `Check` with the margin 1/‖p‖, zero where there is no such p; a list of them for a batch.
    """

    def question(one: TokenDataset, head: FloatArray) -> Check:
        found = globally_optimal_direction(one, head)
        status = found.solution.status
        sentence = {
            Status.OPTIMAL: f"one direction selects every optimal token, with margin {found.margin:.4g}",
            Status.TRIVIAL: "no input has two tokens, so there is nothing to select",
            Status.INFEASIBLE: "no direction selects every optimal token",
        }.get(status, "rounding decides whether a direction selects every optimal token")
        return Check("separable optimum", status is Status.OPTIMAL, sentence, {"margin": float(found.margin)})

    return each_problem(data, v, question)


@implements("A", "Lemma 6")
def check_step(data: TokenDataset, v: Any, optimizer: Any, loss: Loss = Logistic()) -> Any:  # noqa: B008
    r"""Whether an optimizer is one that the theorems on gradient descent speak of.

    .. math:: p(t+1) = p(t) - \eta \nabla L(p(t)), \quad \eta \le 1/L_p

    Returns:
        A `Check` with L_p, largest_step = 1/L_p, log_L_p, and from_keys, the sharper constant that serves as well; a list for a batch.
    """
    rule = as_optimizer(optimizer)

    def question(one: TokenDataset, head: FloatArray) -> Check:
        found = smoothness(one, head, loss)
        numbers = {
            "L_p": found.L_p,
            "largest_step": found.largest_step,
            "from_keys": found.from_keys,
            "log_L_p": found.log_L_p,
        }
        if not isinstance(rule, GradientDescent):
            return Check(
                "step size", False, f"the theorems speak of plain gradient descent, not of {_steps_of(rule)}", numbers
            )
        holds = bool(rule.size <= found.largest_step)
        relation = "does not exceed" if holds else "exceeds"
        return Check("step size", holds, f"η = {rule.size:.4g} {relation} 1/L_p = {power(-found.log_L_p)}", numbers)

    return each_problem(data, v, question)


def _steps_of(optimizer: Any) -> str:
    return "normalised steps" if isinstance(optimizer, NormalizedGD) else f"{type(optimizer).__name__}"


@dataclass(frozen=True, repr=False)
class Verdict:
    """What one theorem says about one problem: its conditions one by one, and its conclusion where they all hold."""

    citation: str
    conditions: tuple[Check, ...]
    conclusion: str

    @property
    def applies(self) -> bool:
        """Whether every condition holds."""
        return all(self.conditions)

    def __repr__(self) -> str:
        return f"Verdict({self.citation}: {'applies' if self.applies else 'does not apply'})"

    def __str__(self) -> str:
        outcome = f"applies: {self.conclusion}" if self.applies else "does not apply"
        return "\n".join([f"{self.citation} {outcome}.", *(f"  {check}." for check in self.conditions)])


GENERAL_POSITION_TOLERANCE = (
    1e-9  # relative singular value or distance up to which rounding may hide a degenerate position
)
_AT_ONCE = 4096  # matrices that are decomposed together
Row = tuple[int, int, int]  # input, selected token, other token


@implements("A", "Thm 7")
def check_general_position(data: TokenDataset, *, max_problems: int = 50_000, rng: Any = 0) -> Check:
    r"""Whether key differences to one selected token per input are as independent as their number allows.

    .. math:: \mathrm{rank}\, \bar K = d \ \text{for all } \bar K \in \mathbb R^{d \times d}, \qquad
        \mathbf 1 \notin \mathrm{range}\, \bar K \ \text{for all } \bar K \in \mathbb R^{(d+1) \times d},
        \qquad \text{rows } k_{it} - k_{i\alpha_i}

    A matrix takes all its rows of one input from the same selected token; rows from several would be dependent whatever the keys.
    Where all rows together are fewer than d they must be independent, which is what the proof uses.

    Args:
        data: one problem.
        max_problems: the most matrices of each kind that are looked at; `matrix_count` says beforehand how many there are.
        rng: for the sample that is taken where there are more: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `Check` with singular_value, the smallest one met of a matrix with unit rows; distance, the smallest one met from the
        normalised vector of ones to a range (inf where there are too few rows); looked_at and matrices. A sample can only refute,
        and the sentence says when it was one.
    """
    one_problem(data)
    whole_number(max_problems, "max_problems", at_least=1)
    generator, counts = as_generator(rng), matrix_count(data)
    n_rows = min(data.d_key, _all_rows(data)), data.d_key + 1
    met, looked_at = [np.inf, np.inf], 0
    for kind, (count, height) in enumerate(zip(counts, n_rows, strict=True)):
        if count == 0:
            continue
        matrices = (
            _every(data, height, kind == 1) if count <= max_problems else _sample(data, height, max_problems, generator)
        )
        for chunk in _chunks(matrices):
            looked_at += len(chunk)
            met[kind] = min(met[kind], _distance_of_ones(data, chunk) if kind else _singular_value(data, chunk))
    how = f"all {looked_at}" if max(counts) <= max_problems else f"a sample of {looked_at} of the {sum(counts)}"
    sentence = f"in {how} matrices of key differences the smallest singular value is {met[0]:.3g}"
    if np.isfinite(met[1]):
        sentence += f" and ones stay {met[1]:.3g} away from the range"
    numbers = {"singular_value": met[0], "distance": met[1], "looked_at": looked_at, "matrices": sum(counts)}
    holds = min(met) > GENERAL_POSITION_TOLERANCE
    return Check("general position", holds, sentence, {name: float(value) for name, value in numbers.items()})


def matrix_count(data: TokenDataset) -> tuple[int, int]:
    """How many matrices the two conditions speak of: whose rank is asked for, and whose range must not hold the vector of ones.

    The rank depends on which tokens of an input are compared and not on which of them is the selected one, so these are counted once.
    """
    lengths, n_rows = [int(length) for length in one_problem(data).lengths], _all_rows(data)
    square = _coefficient([[comb(T, k + 1) if k else 1 for k in range(T)] for T in lengths], min(data.d_key, n_rows))
    tall = _coefficient([[T * comb(T - 1, k) if k else 1 for k in range(T)] for T in lengths], data.d_key + 1)
    return (square if n_rows else 0), tall


def _all_rows(data: TokenDataset) -> int:
    """Key differences to one selection."""
    return int(np.sum(data.lengths - 1))


def _coefficient(factors: list[list[int]], power: int) -> int:
    """The coefficient of x^power in a product of polynomials."""
    product = [1]
    for factor in factors:
        grown = [0] * (len(product) + len(factor) - 1)
        for a, left in enumerate(product):
            for b, right in enumerate(factor):
                grown[a + b] += left * right
        product = grown
    return product[power] if power < len(product) else 0


def _every(data: TokenDataset, height: int, each_selection: bool, first: int = 0) -> Iterator[list[Row]]:
    """Every set of `height` rows from the inputs `first` on; with `each_selection`, for every token that may be the selected one."""
    if height == 0:
        yield []
        return
    if first == data.n_inputs:
        return
    T = int(data.lengths[first])
    for k in range(min(height, T - 1) + 1):
        for rest in _every(data, height - k, each_selection, first + 1):
            if k == 0:
                yield rest
                continue
            for tokens in combinations(range(T), k + 1):
                for chosen in tokens if each_selection else tokens[:1]:
                    yield [*((first, chosen, t) for t in tokens if t != chosen), *rest]


def _sample(data: TokenDataset, height: int, count: int, generator: np.random.Generator) -> Iterator[list[Row]]:
    """`count` random sets of `height` rows, each from a random selection."""
    for _ in range(count):
        alpha = [int(generator.integers(length)) for length in data.lengths]
        rows = [(i, alpha[i], t) for i in range(data.n_inputs) for t in range(int(data.lengths[i])) if t != alpha[i]]
        yield [rows[k] for k in generator.choice(len(rows), size=height, replace=False)]


def _chunks(matrices: Iterator[list[Row]]) -> Iterator[IntArray]:
    """The matrices in arrays (count, height, 3)."""
    waiting: list[list[Row]] = []
    for one in matrices:
        waiting.append(one)
        if len(waiting) == _AT_ONCE:
            yield np.array(waiting)
            waiting = []
    if waiting:
        yield np.array(waiting)


def _rows(data: TokenDataset, names: IntArray) -> FloatArray:
    """Key differences (count, height, d_key)."""
    return data.K[names[..., 0], names[..., 2]] - data.K[names[..., 0], names[..., 1]]


def _singular_value(data: TokenDataset, names: IntArray) -> float:
    """The smallest singular value of the matrices with their rows normalised; zero where a row is."""
    rows = _rows(data, names)
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return float(np.min(np.linalg.svd(rows / np.where(length > 0.0, length, 1.0), compute_uv=False)))


def _distance_of_ones(data: TokenDataset, names: IntArray) -> float:
    """The smallest distance from the normalised vector of ones to the range of a matrix."""
    left, singular, _ = np.linalg.svd(_rows(data, names), full_matrices=False)
    counts = singular > GENERAL_POSITION_TOLERANCE * np.maximum(singular[:, :1], np.finfo(float).tiny)
    ones = np.full(names.shape[1], 1.0 / np.sqrt(names.shape[1]))
    along = np.where(counts, np.einsum("bmk,m->bk", left, ones), 0.0)
    return float(np.min(np.linalg.norm(ones - np.einsum("bmk,bk->bm", left, along), axis=-1)))


RANGE_TOLERANCE = 1e-9  # how much of v, relative to its length, may lie outside the range of Wᵀ
RANK_TOLERANCE = 1e-12  # singular values of W below this share of the largest count as zero


@dataclass(frozen=True, repr=False, eq=False)
class Separator:
    """A direction that selects every optimal token, made from the head.

    Attributes:
        p: (d_key,) the separator; nan where a tie leaves it undefined, zero where no input has two tokens.
        margin: the smallest (k_opt - k_t)·p, recomputed from the keys; at least 1 up to rounding when every condition holds.
        conditions: positive labels, a strict optimum, and v in the range of Wᵀ, each a `Check`.
    """

    p: FloatArray
    margin: float
    conditions: tuple[Check, ...]

    @property
    def applies(self) -> bool:
        """Whether the lemma's conditions all hold."""
        return all(self.conditions)

    def __repr__(self) -> str:
        return f"Separator(margin={self.margin:.4g}, applies={self.applies})"


@implements("A", "Lemma 2", "Lemma 11")
def constructive_separator(data: TokenDataset, v: Any) -> Any:
    r"""A direction that selects every optimal token when all labels are +1 and the head lies in the range of Wᵀ.

    .. math:: p = \underline\gamma^{-1} (W^\top)^\dagger v, \quad
        \underline\gamma = \min_{i,\, t \ne \mathrm{opt}_i} \gamma_{i\,\mathrm{opt}_i} - \gamma_{it}
        \quad\Rightarrow\quad (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1

    Args:
        data: one problem or a batch whose keys come from a matrix W, square or not; full rank puts every v in its range.
        v: head (d_model,) or (batch, d_model).
    Returns:
        A `Separator`, whose `margin` is the check; a list of them for a batch. `att_svm` gives the shortest such p.
    """
    if as_dataset(data).W is None:
        raise reject("data", "a dataset made with W, because the separator is read off W", "keys K given outright")
    return each_problem(data, v, _separator)


def _separator(data: TokenDataset, v: FloatArray) -> Separator:
    W = np.asarray(data.W)
    direction = np.linalg.pinv(W.T, rcond=RANK_TOLERANCE) @ v
    length = float(np.linalg.norm(v))
    outside = float(np.linalg.norm(W.T @ direction - v)) / length if length > 0.0 else 0.0
    optimal = data.optimal(v)
    gaps, other = score_differences(data, v, optimal)
    smallest = float(np.min(gaps[other], initial=np.inf))
    p = direction / smallest if smallest > 0.0 else np.full_like(direction, np.nan)
    margin = float("nan")
    if smallest > 0.0:
        chosen = np.take_along_axis(data.K, optimal[:, None, None], axis=-2)
        margin = float(np.min(np.where(other, (chosen - data.K) @ p, np.inf)))
    negative = int(np.sum(data.y < 0.0))
    conditions = (
        Check("positive labels", negative == 0, f"{negative} of {data.n_inputs} labels are -1", {"negative": negative}),
        check_strict_optimum(data, v),
        Check(
            "head in the range of Wᵀ",
            outside <= RANGE_TOLERANCE,
            f"{outside:.4g} of the head's length lies outside the range of Wᵀ",
            {"outside": outside},
        ),
    )
    return Separator(p, margin, conditions)
