"""Conditions of paper A's theorems, each checked on data with its numbers and a sentence; `Check` and `TheoremVerdict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from math import comb
from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss
from marginlens.optimizers import GradientDescent, NormalizedGD, as_optimizer
from marginlens.papers import implements
from marginlens.result import Result, Tabular, axes_for
from marginlens.result.drawing import draw_bars, draw_checklist
from marginlens.result.notebook import Headline
from marginlens.result.palette import FAILS, HOLDS
from marginlens.risk.smoothness import loss_on_scores, smoothness
from marginlens.status import Status
from marginlens.theory.optimality import (
    all_tied,
    globally_optimal_direction,
    one_problem,
    power_text,
    score_blur,
    score_differences,
)
from marginlens.typing import FloatArray

GENERAL_POSITION_RTOL = 1e-9  # singular value or distance up to which rounding may hide a degenerate position
_MATRICES_AT_ONCE = 4096  # that are decomposed together


@dataclass(frozen=True, repr=False)
class Check(Result, Tabular):
    """One condition of a theorem on one problem: what it is called, whether it holds, the numbers that decide it, a sentence.

    `to_frame()` has one row per number that decides: number, value.
    """

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

    def plot(self, ax: Any = None) -> Any:
        """Draw the numbers that decide, in green where the condition holds and in red where it does not. Returns the axes."""
        ax = axes_for(ax)
        if not self.numbers:
            draw_checklist(ax, [("", self.name, self.holds)])
            return ax
        colour = HOLDS if self.holds else FAILS
        names = [f"{name} = {value:.4g}" for name, value in self.numbers.items()]
        draw_bars(ax, names, list(self.numbers.values()), self.name, colours=colour, ylabel="number", log=True)
        return ax

    def _columns(self) -> dict[str, Any]:
        return {"number": list(self.numbers), "value": [float(value) for value in self.numbers.values()]}

    def _headline(self) -> Headline:
        return Headline(f"{self.name} {'holds' if self.holds else 'fails'}", f"{self.sentence}.", self.holds)

    def _facts(self) -> Mapping[str, Any]:
        return self.numbers


@dataclass(frozen=True, repr=False)
class TheoremVerdict(Result, Tabular):
    """What one theorem says about one problem: its conditions one by one, and its conclusion where they all hold.

    `to_frame()` has one row per condition: theorem, condition, holds, sentence.
    """

    citation: str
    conditions: tuple[Check, ...]
    conclusion: str

    @property
    def applies(self) -> bool:
        """Whether every condition holds."""
        return all(self.conditions)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The conditions that do not hold."""
        return tuple(check for check in self.conditions if not check)

    def __repr__(self) -> str:
        return f"TheoremVerdict({self.citation}: {'applies' if self.applies else 'does not apply'})"

    def __str__(self) -> str:
        outcome = f"applies: {self.conclusion}" if self.applies else "does not apply"
        return "\n".join([f"{self.citation} {outcome}.", *(f"  {check}." for check in self.conditions)])

    def plot(self, ax: Any = None) -> Any:
        """Draw the conditions as a checklist. Returns the axes."""
        ax = axes_for(ax)
        draw_checklist(ax, [(self.citation, check.name, check.holds) for check in self.conditions])
        return ax

    def _columns(self) -> dict[str, Any]:
        return condition_columns([self])

    def _headline(self) -> Headline:
        word = f"{self.citation} {'applies' if self.applies else 'does not apply'}"
        failed = "; ".join(f"{check.name}: {check.sentence}" for check in self.failed)
        return Headline(word, f"{self.conclusion if self.applies else failed}.", self.applies)

    def _facts(self) -> Mapping[str, Any]:
        return {check.name: f"{'yes' if check else 'no'}: {check.sentence}" for check in self.conditions}


def condition_columns(verdicts: Sequence[TheoremVerdict]) -> dict[str, Any]:
    """The table of the conditions of theorems: one row each."""
    rows = [(verdict.citation, check) for verdict in verdicts for check in verdict.conditions]
    return {
        "theorem": [citation for citation, _ in rows],
        "condition": [check.name for _, check in rows],
        "holds": np.array([check.holds for _, check in rows], dtype=bool),
        "sentence": [check.sentence for _, check in rows],
    }


def each_problem(data: TokenDataset, head: Any, ask: Callable[[TokenDataset, FloatArray], Any]) -> Any:
    """`ask(data, v)` for one problem; for a batch the list of the answers, in order."""
    v = as_dataset(data).head(head)
    return [ask(data[j], v[j]) for j in range(len(data))] if data.is_batch else ask(data, v)


# ---- loss, scores and step


@implements("A", "Assumption A")
def check_assumption_a(data: TokenDataset, head: Any, loss: Loss = Logistic()) -> Check | Any:  # noqa: B008
    r"""Whether the loss strictly decreases with a bounded, Lipschitz slope on the scores of the problem.

    .. math:: \ell' < 0,\quad |\ell'| \le M_1,\quad |\ell'(u) - \ell'(w)| \le M_0 |u - w| \quad \text{on } [\min\gamma, \max\gamma]

    A slope of exactly zero fails the check although the loss may still strictly decrease: the proofs divide by the smallest slope.

    Returns:
        A `Check` with M0, M1, smallest_slope, their logarithms, which decide, low and high; a list of them for a batch.
    """
    name = type(as_loss(loss)).__name__

    def ask(data: TokenDataset, v: FloatArray) -> Check:
        found = loss_on_scores(data, v, loss)[0]
        scores = data.scores(v)[data.mask]
        low, high = float(scores.min()), float(scores.max())
        bounded = max(found.log_lipschitz, found.log_bound) < np.inf and found.log_smallest > -np.inf
        holds = found.decreasing and bounded
        sentence = (
            f"on the scores [{low:.4g}, {high:.4g}] {name} {'strictly decreases' if holds else 'does not strictly decrease'}"
            f" with slopes from {power_text(found.log_smallest)} to M1 = {power_text(found.log_bound)}, which are M0 = "
            f"{power_text(found.log_lipschitz)} Lipschitz"
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

    return each_problem(data, head, ask)


@implements("A", "Assumption B")
def check_assumption_b(data: TokenDataset, head: Any) -> Check | Any:
    r"""Whether all non-optimal tokens of an input score the same, below the optimal one.

    .. math:: \gamma_{it} = \gamma_{i\tau} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t, \tau \ne \mathrm{opt}_i

    Returns:
        A `Check` with spread, the largest difference among non-optimal scores of one input, and smallest_gap, the smallest
        difference to the optimal one; a list of them for a batch. Equal means equal up to rounding.
    """

    def ask(data: TokenDataset, v: FloatArray) -> Check:
        gaps, other = score_differences(data, v, data.optimal(v))
        spread = max(float(np.max(np.max(gaps, axis=-1) - np.min(np.where(other, gaps, np.inf), axis=-1))), 0.0)
        gap = float(np.min(gaps[other], initial=np.inf))
        holds = bool(all_tied(data.scores(v), score_blur(data, v), other).all() and gap > 0.0)
        sentence = f"the non-optimal scores of an input differ by up to {spread:.4g} and lie at least {gap:.4g} below the optimal one"
        return Check("A Assumption B", holds, sentence, {"spread": spread, "smallest_gap": gap})

    return each_problem(data, head, ask)


@implements("A", "Thm 1")
def check_strict_optimum(data: TokenDataset, head: Any) -> Check | Any:
    r"""Whether the highest score of every input belongs to one token.

    .. math:: \gamma_{it} < \gamma_{i\,\mathrm{opt}_i} \quad \text{for all } t \ne \mathrm{opt}_i

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """

    def ask(data: TokenDataset, v: FloatArray) -> Check:
        gaps, other = score_differences(data, v, data.optimal(v))
        gap = float(np.min(gaps[other], initial=np.inf))
        beats = f"beats the rest of its input by at least {gap:.4g}" if gap > 0.0 else "ties with another in some input"
        return Check("strict optimum", gap > 0.0, f"the highest-scoring token {beats}", {"smallest_gap": gap})

    return each_problem(data, head, ask)


@implements("A", "Thm 4")
def check_distinct_scores(data: TokenDataset, head: Any) -> Check | Any:
    r"""Whether no two tokens of an input score the same.

    .. math:: \gamma_{it} \ne \gamma_{i\tau} \quad \text{for all } t \ne \tau

    Returns:
        A `Check` with smallest_gap; a list of them for a batch.
    """

    def ask(data: TokenDataset, v: FloatArray) -> Check:
        scores, blur = np.where(data.mask, data.scores(v), np.inf), score_blur(data, v)
        order = np.argsort(scores, axis=-1, kind="stable")
        scores, blur = np.take_along_axis(scores, order, axis=-1), np.take_along_axis(blur, order, axis=-1)
        with np.errstate(invalid="ignore"):
            steps = np.diff(scores, axis=-1)
        real = np.isfinite(steps)
        gap = float(np.min(steps[real], initial=np.inf))
        holds = bool(np.all(steps[real] > (blur[..., 1:] + blur[..., :-1])[real]))
        return Check(
            "distinct scores", holds, f"two scores of one input differ by at least {gap:.4g}", {"smallest_gap": gap}
        )

    return each_problem(data, head, ask)


@implements("A", "Def 1")
def check_separable(data: TokenDataset, head: Any) -> Check | Any:
    r"""Whether the GMM direction exists: some p selects the optimal token of every input.

    .. math:: \exists p:\ (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1 \quad \text{for all } t \ne \mathrm{opt}_i

    Theorems 1 and 2 speak of this direction without saying that it must exist; where it does not they say nothing.

    Returns:
        A `Check` with the margin 1/‖p‖, zero where there is no such p; a list of them for a batch.
    """

    def ask(data: TokenDataset, v: FloatArray) -> Check:
        found = globally_optimal_direction(data, v)
        status = found.solution.status
        sentence = {
            Status.OPTIMAL: f"one direction selects every optimal token, with margin {found.margin:.4g}",
            Status.TRIVIAL: "no input has two tokens, so there is nothing to select",
            Status.INFEASIBLE: "no direction selects every optimal token",
        }.get(status, "rounding decides whether a direction selects every optimal token")
        return Check("separable optimum", status is Status.OPTIMAL, sentence, {"margin": float(found.margin)})

    return each_problem(data, head, ask)


@implements("A", "Lemma 6")
def check_step(data: TokenDataset, head: Any, optimizer: Any, loss: Loss = Logistic()) -> Check | Any:  # noqa: B008
    r"""Whether an optimizer is one that the theorems on gradient descent speak of.

    .. math:: p(t+1) = p(t) - \eta \nabla L(p(t)), \quad \eta \le 1/L_p

    Returns:
        A `Check` with L_p, largest_step = 1/L_p, log_L_p, and from_keys, the sharper constant that serves as well; a list for a batch.
    """
    rule = as_optimizer(optimizer)

    def ask(data: TokenDataset, v: FloatArray) -> Check:
        found = smoothness(data, v, loss)
        numbers = {name: getattr(found, name) for name in ("L_p", "largest_step", "from_keys", "log_L_p")}
        if not isinstance(rule, GradientDescent):
            steps = "normalised steps" if isinstance(rule, NormalizedGD) else type(rule).__name__
            return Check("step size", False, f"the theorems speak of plain gradient descent, not of {steps}", numbers)
        holds = bool(rule.size <= found.largest_step)
        relation = "does not exceed" if holds else "exceeds"
        return Check(
            "step size", holds, f"η = {rule.size:.4g} {relation} 1/L_p = {power_text(-found.log_L_p)}", numbers
        )

    return each_problem(data, head, ask)


# ---- general position


@implements("A", "Thm 7")
def check_general_position(data: TokenDataset, *, max_problems: int = 50_000, rng: Any = 0) -> Check:
    r"""Whether key differences to one selected token per input are as independent as their number allows.

    .. math:: \mathrm{rank}\, \bar K = d \ \text{for all } \bar K \in \mathbb R^{d \times d}, \qquad
        \mathbf 1 \notin \mathrm{range}\, \bar K \ \text{for all } \bar K \in \mathbb R^{(d+1) \times d},
        \qquad \text{rows } k_{it} - k_{i\alpha_i}

    A matrix takes all its rows of one input from the same selected token; rows from several would be dependent whatever the keys.
    Where all rows together are fewer than d they must be independent, which is what the proof uses. The rank depends on which tokens of
    an input are compared and not on which of them is the selected one, so these are counted once.

    Args:
        data: one problem.
        max_problems: the most matrices of each kind that are looked at.
        rng: for the sample that is taken where there are more: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `Check` with singular_value, the smallest one met of a matrix with unit rows; distance, the smallest one met from the
        normalised vector of ones to a range (inf where there are too few rows); looked_at and matrices. A sample can only refute,
        and the sentence says when it was one.
    """
    lengths = [int(n) for n in one_problem(data).lengths]
    whole_number(max_problems, "max_problems", at_least=1)
    generator, n_rows = as_generator(rng), sum(lengths) - len(lengths)
    heights = min(data.d_key, n_rows), data.d_key + 1
    square = (
        _coefficient([[comb(T, k + 1) if k else 1 for k in range(T)] for T in lengths], heights[0]) if n_rows else 0
    )
    tall = _coefficient([[T * comb(T - 1, k) if k else 1 for k in range(T)] for T in lengths], heights[1])
    smallest, looked_at, counts = [np.inf, np.inf], 0, (square, tall)
    for kind, (count, height, measure) in enumerate(
        zip(counts, heights, (_singular_value, _distance_of_ones), strict=True)
    ):
        if count == 0:
            continue
        listed = (
            _every(lengths, height, kind == 1)
            if count <= max_problems
            else _sample(lengths, height, max_problems, generator)
        )
        while chunk := list(islice(listed, _MATRICES_AT_ONCE)):
            names = np.array(chunk)  # (count, height, 3): input, selected token, other token
            looked_at += len(names)
            smallest[kind] = min(
                smallest[kind], measure(data.K[names[..., 0], names[..., 2]] - data.K[names[..., 0], names[..., 1]])
            )
    how = f"all {looked_at}" if max(counts) <= max_problems else f"a sample of {looked_at} of the {sum(counts)}"
    sentence = f"in {how} matrices of key differences the smallest singular value is {smallest[0]:.3g}"
    if np.isfinite(smallest[1]):
        sentence += f" and ones stay {smallest[1]:.3g} away from the range"
    numbers = {
        "singular_value": float(smallest[0]),
        "distance": float(smallest[1]),
        "looked_at": float(looked_at),
        "matrices": float(sum(counts)),
    }
    return Check("general position", min(smallest) > GENERAL_POSITION_RTOL, sentence, numbers)


def _coefficient(factors: list[list[int]], power: int) -> int:
    """The coefficient of x^power in a product of polynomials, in whole numbers of any size."""
    product = np.array([1], dtype=object)
    for factor in factors:
        product = np.convolve(product, np.array(factor, dtype=object))
    return int(product[power]) if power < len(product) else 0


def _every(
    lengths: list[int], height: int, each_selection: bool, first: int = 0
) -> Iterator[list[tuple[int, int, int]]]:
    """Every set of `height` rows from the inputs `first` on; with `each_selection`, for every token that may be the selected one."""
    if height == 0:
        yield []
    elif first < len(lengths):
        T = lengths[first]
        for k in range(min(height, T - 1) + 1):
            for rest in _every(lengths, height - k, each_selection, first + 1):
                if k == 0:
                    yield rest
                    continue
                for tokens in combinations(range(T), k + 1):
                    for chosen in tokens if each_selection else tokens[:1]:
                        yield [*((first, chosen, t) for t in tokens if t != chosen), *rest]


def _sample(
    lengths: list[int], height: int, count: int, generator: np.random.Generator
) -> Iterator[list[tuple[int, int, int]]]:
    """`count` random sets of `height` rows, each from a random selection."""
    for _ in range(count):
        alpha = [int(generator.integers(T)) for T in lengths]
        rows = [(i, alpha[i], t) for i, T in enumerate(lengths) for t in range(T) if t != alpha[i]]
        yield [rows[k] for k in generator.choice(len(rows), size=height, replace=False)]


def _singular_value(rows: FloatArray) -> float:
    """The smallest singular value of matrices (count, height, d_key) with their rows normalised; zero where a row is."""
    size = np.linalg.norm(rows, axis=-1, keepdims=True)
    return float(np.min(np.linalg.svd(rows / np.where(size > 0.0, size, 1.0), compute_uv=False)))


def _distance_of_ones(rows: FloatArray) -> float:
    """The smallest distance from the normalised vector of ones to the range of matrices (count, height, d_key)."""
    left, singular, _ = np.linalg.svd(rows, full_matrices=False)
    counts = singular > GENERAL_POSITION_RTOL * np.maximum(singular[:, :1], np.finfo(float).tiny)
    ones = np.full(rows.shape[1], 1.0 / np.sqrt(rows.shape[1]))
    along = np.where(counts, np.einsum("bmk,m->bk", left, ones), 0.0)
    return float(np.min(np.linalg.norm(ones - np.einsum("bmk,bk->bm", left, along), axis=-1)))
