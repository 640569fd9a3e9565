"""Label margins of selected tokens, the selections with the largest one, and Assumption C."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import scipy

from marginlens.data.random_tokens import as_generator
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, array_of_any, whole_number
from marginlens.papers import implements
from marginlens.risk.softmax import logits, probabilities
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm, label_svm, least_distance
from marginlens.svm.pairs import token_pairs
from marginlens.theory.checks import Check
from marginlens.theory.optimality import one_problem
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray
from marginlens.words import Fact

SAME_MARGIN_RTOL = 1e-10  # label margins that agree to this share are the same
NO_COST_RTOL = 1e-7  # a cost of mixing below this share of the label margin is no cost
_SETTLED_LOGIT_MARGIN = 40.0  # logit margin at which the other inputs of a counter-example are settled
_MIXTURE_SHARES = (1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # shares of the other token in a mixture of two
_VANISHED_OUTPUT = 1e-90  # entries of an attention output below this are zero
_FADING_RTOL = 1e-6  # how much slower a token must fade to count as the last
_MIN_VISIBLE_SHARE = 1e-5  # shares above which a cost per share is not rounding


class LabelMargin(NamedTuple):
    """The head's SVM on selected tokens.

    Attributes:
        selected: (n_inputs,) the tokens α.

        head: the solution v^mm; its `active` marks the support set.

        margin: Γ = 1/‖v^mm‖, zero if the labels cannot be separated.

        support: (n_inputs,) whether an input is a support vector.

        slack: (n_inputs,) by how much the margin of an input at unit v exceeds Γ.
    """

    selected: IntArray
    head: MarginSolution
    margin: float
    support: BoolArray
    slack: FloatArray

    @property
    def support_or_all(self) -> BoolArray:
        """The support set, (n_inputs,); all inputs if the labels cannot be separated."""
        return self.support if self.support.any() else np.ones_like(self.support)


@implements("A", "(SVM)")
def label_margin(data: TokenDataset, selected: ArrayLike) -> LabelMargin:
    r"""Find the label margin of a selection, and the inputs that are support vectors of the head.

    .. math:: \Gamma = 1/\|v^{mm}\|, \quad v^{mm} = \arg\min \|v\|\ \text{s.t.}\ Y_i v^\top x_{i\alpha_i} \ge 1, \qquad
        \mathcal S = \{i : Y_i x_{i\alpha_i}^\top v^{mm} = 1\}

    Args:
        data: one problem.

        selected: (n_inputs,) the token index α_i of each input.

    Returns:
        A `LabelMargin`; `.head.kkt_residual()` checks it.

    Examples:
        >>> import marginlens as ml
        >>> data = ml.TokenDataset([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]], [1.0, -1.0])
        >>> round(ml.theory.label_margin(data, [0, 0]).margin, 6)
        1.0
    """
    alpha = one_problem(data).selection(selected)
    head = label_svm(np.take_along_axis(data.X, alpha[:, None, None], axis=1)[:, 0], data.y)
    slack = head.rows @ head.direction - head.margin
    return LabelMargin(alpha, head, float(head.margin), head.active, np.where(head.active, 0.0, slack))


class BestSelections(NamedTuple):
    """The selections with the largest label margin.

    Attributes:
        selections: (n_best, n_inputs).

        margin: their label margin Γ.

        runner_up: the next smaller one among all selections.

        complete: whether every selection was examined; if not, these are the best found by local search from many selections.
    """

    selections: IntArray
    margin: float
    runner_up: float
    complete: bool


@implements("A", "Assumption C")
def best_selections(data: TokenDataset, *, max_problems: int = 10_000) -> BestSelections:
    r"""Find the selections whose tokens let a head separate the labels with the largest margin.

    .. math:: \max_\alpha \Gamma(\alpha), \quad \Gamma(\alpha) = \max_{\|v\| \le 1} \min_i Y_i v^\top x_{i\alpha_i}

    Args:
        data: one problem.

        max_problems: how many selections may be tried one by one. If there are more, a local search exchanges single tokens
            from 64 random selections for as long as the margin grows, and the result is not complete.

    Examples:
        >>> import marginlens as ml
        >>> data = ml.TokenDataset([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]], [1.0, -1.0])
        >>> best = ml.theory.best_selections(data)
        >>> best.selections.tolist(), round(best.margin, 6)
        ([[0, 0]], 1.0)
    """
    whole_number(max_problems, "max_problems", at_least=1)
    lengths = [int(length) for length in one_problem(data).lengths]
    complete = prod(lengths) <= max_problems
    tried = all_selections(lengths) if complete else _climb(data)
    margins = margins_of_outputs(data, data.X[np.arange(data.n_inputs), tried])
    top = float(margins.max())
    best = margins >= top * (1.0 - SAME_MARGIN_RTOL)
    return BestSelections(tried[best], top, float(np.max(margins[~best], initial=0.0)), complete)


def all_selections(lengths: list[int]) -> IntArray:
    """List every choice of one token per input, (prod(lengths), n_inputs)."""
    return np.stack([axis.ravel() for axis in np.indices(lengths)], axis=-1)


def _climb(data: TokenDataset) -> IntArray:
    """Exchange single tokens for as long as the label margin grows, and return the selections met."""
    rng = np.random.default_rng(0)
    selections = rng.integers(data.lengths, size=(64, data.n_inputs))
    value = margins_of_outputs(data, data.X[np.arange(data.n_inputs), selections])
    grew = True
    while grew:
        before = value.copy()
        for i in range(data.n_inputs):
            for t in range(int(data.lengths[i])):
                exchanged = selections.copy()
                exchanged[:, i] = t
                margin = margins_of_outputs(data, data.X[np.arange(data.n_inputs), exchanged])
                better = margin > value * (1.0 + SAME_MARGIN_RTOL)  # what differs by rounding is no better
                selections[better], value[better] = exchanged[better], margin[better]
        grew = bool(np.any(value > before))
    return np.unique(selections, axis=0)


def margins_of_outputs(data: TokenDataset, outputs: FloatArray, inputs: BoolArray | None = None) -> FloatArray:
    """Compute the label margins of attention outputs (batch, n_inputs, d_model), over some inputs only if asked; (batch,)."""
    chosen = slice(None) if inputs is None else inputs
    outputs = np.where(np.abs(outputs) < _VANISHED_OUTPUT, 0.0, outputs)  # tokens that cancel leave no direction
    return np.asarray(label_svm(outputs[:, chosen], data.y[chosen]).margin)


@dataclass(frozen=True, repr=False)
class MixingCheck(Check):
    """Assumption C on one problem: a `Check` with numbers Γ (margin), ν (nu, the smallest cost found) and proved_nu (a lower bound).

    `counterexample` is a p (d_key,) at which mixing costs almost nothing or even gains margin, None if none was found. `proved`
    says whether a positive ν is proved for all p; `inputs` (n_inputs,) is the mask of the inputs in question.
    """

    counterexample: FloatArray | None = None
    proved: bool = False
    inputs: BoolArray | None = None


@implements("A", "Assumption C")
def check_assumption_c(
    data: TokenDataset,
    selected: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    n_samples: int = 2000,
    max_problems: int = 20_000,
    rng: np.random.Generator | int = 0,
) -> MixingCheck:
    r"""Check that attending to other tokens than the selected ones always costs label margin, in proportion to the attention they take.

    .. math:: \Gamma(p) \le \Gamma - \nu \max_i (1 - s_{i\alpha_i}) \quad \text{for all } p

    A lower bound on ν is proved if there are few enough selections β: with multipliers λ of the head's SVM, the label margin of
    any mixture is at most the average of :math:`\|\sum_i \lambda_i Y_i x_{i\beta_i}\|` over its selections. So it is enough
    that no such norm exceeds Γ, and that all selections other than α fall short of it. Upper bounds come from trial points p:
    mixtures of two tokens of one input while all others are settled, full selections, and random p of all sizes, the best of
    which are improved. For diverging p, linear programs decide: a ray that selects α violates the statement if the token that
    fades last costs nothing to first order.

    Args:
        data: one problem.

        selected: α, (n_inputs,).

        inputs: (n_inputs,) mask of the inputs that the statement is limited to, such as the support set (Theorem 6); all by default.

        n_samples: how many random p to try.

        max_problems: the largest number of selections for which the bound and full selections are tried.

        rng: a `numpy.random.Generator`, or a whole number to seed one.

    Returns:
        A `MixingCheck`. It fails if some p costs no more than rounding; `counterexample` is then such a p.

    Examples:
        >>> import marginlens as ml
        >>> data = ml.TokenDataset([[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, 1.0]]], [1.0, -1.0])
        >>> check = ml.theory.check_assumption_c(data, [0, 0])
        >>> check.holds
        True
    """
    alpha = one_problem(data).selection(selected)
    whole_number(n_samples, "n_samples", at_least=1)
    whole_number(max_problems, "max_problems", at_least=0)
    asked = _asked_inputs(data, inputs)
    rows = np.take_along_axis(data.X, alpha[:, None, None], axis=1)[asked, 0]
    head = label_svm(rows, data.y[asked])
    if head.status is not Status.OPTIMAL:
        numbers = {"margin": 0.0, "nu": 0.0, "proved_nu": 0.0, "selected": alpha.tolist(), "case": "no_head"}
        return MixingCheck("mixing.cost", False, numbers, inputs=asked)
    cost = _Cost(data, alpha, asked, float(head.margin))
    margin = Fact("mixing.margin", {"margin": cost.gamma, "case": "default" if asked.all() else "support"})
    if np.all(data.lengths[asked] == 1):
        numbers = {"margin": cost.gamma, "nu": np.inf, "proved_nu": np.inf, "label_margin": margin, "case": "one_token"}
        return MixingCheck("mixing.cost", True, numbers, None, True, asked)
    nu, worst = _search(cost, n_samples, max_problems, as_generator(rng))
    if nu > 0.0 and (free := _free_ray(cost, head)) is not None:
        nu, worst = 0.0, free
    return _mixing_check(cost, margin, nu, worst, _proved(data, alpha, asked, head, max_problems))


def _asked_inputs(data: TokenDataset, inputs: ArrayLike | None) -> BoolArray:
    """Return the mask of the inputs that the statement is limited to."""
    mask = f"a mask of shape ({data.n_inputs},) with an input in it"
    asked = np.ones(data.n_inputs, dtype=bool) if inputs is None else array_of_any(inputs, "inputs", mask)
    if asked.shape != (data.n_inputs,) or asked.dtype.kind != "b" or not asked.any():
        raise InputError("inputs", mask, f"{inputs!r}")
    return asked


def _mixing_check(cost: _Cost, margin: Fact, nu: float, worst: FloatArray | None, proved_nu: float) -> MixingCheck:
    """Make the check from the smallest cost found and the proved one."""
    gamma = cost.gamma
    holds, proved = nu > NO_COST_RTOL * gamma, proved_nu > NO_COST_RTOL * gamma
    gains = nu < -NO_COST_RTOL * gamma
    case = ("proved" if proved else "default") if holds else ("gains" if gains else "default")
    numbers = {"margin": gamma, "nu": nu, "proved_nu": proved_nu, "gain": -nu, "label_margin": margin, "case": case}
    return MixingCheck("mixing.cost", holds, numbers, None if holds else worst, proved, cost.asked)


@dataclass(frozen=True, eq=False)
class _Cost:
    """The cost (Γ - Γ(p)) / max_i (1 - s_iα) over the inputs in question."""

    data: TokenDataset
    alpha: IntArray
    asked: BoolArray
    gamma: float

    def at(self, points: FloatArray) -> FloatArray:
        """Compute the costs at points (batch, d_key); infinite if so little is mixed that rounding would decide."""
        many = self.data.repeat(len(points))
        return self.of(probabilities(logits(many, points), many.mask))

    def of(self, shares: FloatArray) -> FloatArray:
        """Compute the costs of attention probabilities (batch, n_inputs, n_tokens)."""
        chosen = np.arange(self.data.n_tokens) == self.alpha[:, None]
        mixed = np.max(np.sum(np.where(chosen, 0.0, shares), axis=-1)[:, self.asked], axis=-1)
        outputs = np.einsum("bit,itd->bid", shares, self.data.X)
        lost = self.gamma - margins_of_outputs(self.data, outputs, self.asked)
        return np.where(mixed > _MIN_VISIBLE_SHARE, lost / np.maximum(mixed, _MIN_VISIBLE_SHARE), np.inf)


def _search(
    cost: _Cost, n_samples: int, max_problems: int, rng: np.random.Generator
) -> tuple[float, FloatArray | None]:
    """Search for the smallest cost; return it and a p that attains it."""
    points = [_two_token_mixtures(cost), _outright(cost, max_problems), _random(cost, n_samples, rng)]
    tried = np.concatenate([part for part in points if len(part)])
    costs = cost.at(tried)
    width = 1.0
    for _ in range(12):  # improve the best few by shrinking random moves
        order = np.argsort(costs)[:16]
        tried, costs = tried[order], costs[order]
        scale = width * np.maximum(np.linalg.norm(tried, axis=-1), 1.0)
        around = np.repeat(tried, 8, axis=0) + np.repeat(scale, 8)[:, None] * rng.standard_normal(
            (8 * len(tried), cost.data.d_key)
        )
        tried, costs, width = np.concatenate([tried, around]), np.concatenate([costs, cost.at(around)]), 0.5 * width
    best = int(np.argmin(costs))
    return float(costs[best]), tried[best]


def _free_ray(cost: _Cost, head: MarginSolution) -> FloatArray | None:
    """Find a p far along a ray that selects α, on which the last other token to fade costs no label margin to first order."""
    rows, pairs = token_pairs(cost.data, cost.alpha)
    asked_rows = cost.asked[pairs[:, 0]]
    rows, pairs = rows[asked_rows], pairs[asked_rows]
    where = np.flatnonzero(cost.asked)
    weight = np.array([_multipliers(head, i)[i] for i in range(len(where))])[np.searchsorted(where, pairs[:, 0])]
    scores = cost.data.y[:, None] * (cost.data.X @ head.direction)
    gap = scores[pairs[:, 0], pairs[:, 1]] - scores[pairs[:, 0], pairs[:, 2]]
    costs = (weight > NO_COST_RTOL) & (gap > NO_COST_RTOL * cost.gamma)
    inside = least_distance(rows, np.ones(len(rows)))  # a ray on which every other token fades
    if inside.status is not Status.OPTIMAL:
        return None
    for r in np.flatnonzero(~costs):
        found: Any = scipy.optimize.linprog(
            rows[r], A_ub=-rows, b_ub=-costs.astype(float), bounds=(None, None), method="highs"
        )
        if found.status == 0 and found.fun < 1.0 - _FADING_RTOL:
            speed, low = float(rows[r] @ inside.x), max(float(found.fun), 0.0)
            middle = 0.5 * (1.0 + low)  # the free token fades at this speed, what costs at a speed of at least 1
            share = max(speed - middle, 0.0) / (speed - low)
            ray = share * found.x + (1.0 - share) * inside.x
            return np.asarray(-np.log(NO_COST_RTOL) / (1.0 - middle) * ray)
    return None


def _random(cost: _Cost, n_samples: int, rng: np.random.Generator) -> FloatArray:
    """Draw random p, half of them around a separator of α if there is one, of 0.1 to 30 times its natural length."""
    data = cost.data
    spread = float(np.max(np.linalg.norm(data.K - data.K[:, :1], axis=-1), where=data.mask, initial=0.0))
    directions = rng.standard_normal((n_samples, data.d_key)) / np.sqrt(data.d_key)
    solution = att_svm(data, cost.alpha)
    if solution.status is Status.OPTIMAL:
        directions[::2] += solution.direction
    return directions * (10.0 ** rng.uniform(-1.0, 1.5, (n_samples, 1)) / (spread or 1.0))


def _outright(cost: _Cost, max_problems: int) -> FloatArray:
    """Find a p for each selection other than α that some p makes."""
    lengths = [int(length) for length in cost.data.lengths]
    if prod(lengths) > min(max_problems, 1000):
        return np.empty((0, cost.data.d_key))
    every = all_selections(lengths)
    every = every[np.any(every != cost.alpha, axis=1)]
    if not len(every):
        return np.empty((0, cost.data.d_key))
    found = att_svm(cost.data.repeat(len(every)), every)
    return _SETTLED_LOGIT_MARGIN * found.x[np.array([status is Status.OPTIMAL for status in found.status])]


def _two_token_mixtures(cost: _Cost) -> FloatArray:
    """Find points at which one input mixes α with one other token while every other input has settled on α as far as possible."""
    data = cost.data
    rows, pairs = token_pairs(data, cost.alpha)
    points = []
    for r in np.flatnonzero(cost.asked[pairs[:, 0]]):
        others = np.arange(len(rows)) != r
        ray = least_distance(rows[others], np.ones(len(rows) - 1), equalities=rows[r : r + 1])
        size = float(rows[r] @ rows[r])
        if ray.status not in (Status.OPTIMAL, Status.TRIVIAL) or size == 0.0:
            continue
        offsets = [np.log((1.0 - q) / q) * rows[r] / size for q in _MIXTURE_SHARES]
        stretch = 1.0 + float(np.max(np.abs(rows[others] @ np.array(offsets).T), initial=0.0)) / _SETTLED_LOGIT_MARGIN
        points += [_SETTLED_LOGIT_MARGIN * stretch * ray.x + offset for offset in offsets]
    return np.array(points).reshape(-1, data.d_key)


def _proved(data: TokenDataset, alpha: IntArray, asked: BoolArray, head: MarginSolution, max_problems: int) -> float:
    """Prove a lower bound on ν over all mixtures, whether or not some p makes them; zero if there is none, or too many selections."""
    where = np.flatnonzero(asked)
    lengths = [int(data.lengths[i]) for i in where]
    if prod(lengths) > max_problems:
        return 0.0
    every = all_selections(lengths)
    leaves = every != alpha[where]  # (n_selections, n_asked)
    if not leaves.any():
        return float("inf")
    signed = data.y[where, None] * data.X[where, every]  # (n_selections, n_asked, d_model)
    gamma, bound = float(head.margin), np.inf
    for i in range(len(where)):
        if not leaves[:, i].any():
            continue
        norms = np.linalg.norm(np.einsum("i,sid->sd", _multipliers(head, i), signed), axis=-1)
        if np.max(norms[~leaves[:, i]]) > gamma * (1.0 + SAME_MARGIN_RTOL):
            return 0.0
        bound = min(bound, gamma - float(np.max(norms[leaves[:, i]])))
    return max(float(bound), 0.0)


def _multipliers(head: MarginSolution, i: int) -> FloatArray:
    """Find multipliers of the head's SVM that sum to one, with the largest weight on input i that optimality allows."""
    active = np.flatnonzero(head.active)
    weights = np.where(head.active, head.multipliers, 0.0) * float(head.margin) ** 2
    if i not in active:
        return weights
    equal = np.vstack([head.rows[active].T, np.ones(len(active))])
    right = np.append(head.x * float(head.margin) ** 2, 1.0)
    found: Any = scipy.optimize.linprog(-(active == i).astype(float), A_eq=equal, b_eq=right, method="highs")
    if found.status == 0:
        weights = np.zeros(len(weights))
        weights[active] = np.maximum(found.x, 0.0)
    return weights
