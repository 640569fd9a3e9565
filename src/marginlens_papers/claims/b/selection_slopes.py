"""Slopes of paper B's loss along directions of p: Lemmas 8 to 10, 17 and 18."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.embeddings.models import Parameters, as_parameters, distinct_tokens
from marginlens.errors import InputError, real_array
from marginlens.papers import implements, uses
from marginlens.status import Status
from marginlens.svm import MarginSolution
from marginlens.svm.vocabulary import vocabulary_svm
from marginlens.theory.embedding_limits import TIE_RTOL, TokenRanks, selected_tokens, token_ranks
from marginlens.typing import ArrayLike, FloatArray


@implements("B", "Eq. (8)")
def equivalent_directions(E: ArrayLike, p: ArrayLike, q: Any, sequences: Any, *, tie: float | None = None) -> bool:
    r"""Whether two directions select the same tokens in every sequence, :math:`p \approx q`."""
    both = [selected_tokens(E, direction, sequences, tie=tie) for direction in (p, q)]
    return all(np.array_equal(mine, other) for mine, other in zip(*both, strict=True))


class LocalOptimality(NamedTuple):
    """Whether a direction is locally optimal: `gaps` (n_samples,) the smallest sum of score differences in each sequence.

    A sequence without a secondary selection has the gap inf.
    """

    gaps: FloatArray

    @property
    def mu(self) -> float:
        """The largest constant μ that serves for all sequences."""
        return float(self.gaps.min())

    @property
    def holds(self) -> bool:
        """Whether μ > 0."""
        return self.mu > 0.0


@implements("B", "Definition 16")
def local_optimality(
    E: ArrayLike, p: ArrayLike, head: Any, sequences: Any, y: ArrayLike | None = None, *, tie: float | None = None
) -> LocalOptimality:
    r"""Whether the selected positions of every sequence together score more than the secondary ones.

    .. math:: \sum_{i \in \mathcal S_X(p)} (\gamma_i - \gamma_j) \ge \mu > 0 \quad \text{for all } j \in \mathcal S^2_X(p),\ (X, y),
        \qquad \gamma_i = y E_{x_i}^\top v

    The sum runs over positions, as in Lemma 8: a token that occurs twice counts twice.

    Args:
        E: embeddings (n_vocabulary, d_model). p, head: (d_model,). sequences, y: labelled sequences, or token-id lists and their labels.
        tie: as `token_ranks` takes it.
    """
    data = as_labelled(sequences, y)
    table = real_array(E, "E", ("n_vocabulary", "d_model"))
    score = table @ real_array(head, "v", (table.shape[1],))
    ranks = token_ranks(table, p, data, tie=tie)
    gaps = np.full(len(data), np.inf)
    for i, (first, second) in enumerate(zip(ranks.selected, ranks.secondary, strict=True)):
        ids, label = data[i]
        chosen = ids[np.isin(ids, first)]
        sums = np.sum(label * (score[chosen][:, None] - score[second]), axis=0)
        gaps[i] = np.min(sums, initial=np.inf)
    return LocalOptimality(gaps)


@implements("B", "Lemma 8")
def directional_slope(model: Parameters, direction: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> float:
    r"""How fast the loss of the one-layer model falls when p moves along a direction.

    .. math:: -\hat p^\top \nabla_p L(E, p) = \hat{\mathbb E}\Big[ g(X, y) \sum_{i<j} (\hat a_i - \hat a_j)\, q_i q_j\,
        (\gamma_i - \gamma_j) \Big],\quad \hat a_i = E_{x_i}^\top \hat p,\ \gamma_i = y E_{x_i}^\top v,\ g = \frac{1}{1 + e^{y f(X)}}

    Differences are used because means of them would cancel under a saturated softmax. Positions of the same token are one term.

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,). direction: p̂ (d_model,), of any norm.
        sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        The slope; `-direction @ loss_and_gradients(model, sequences)[1].p` is the same number up to rounding.
    """
    E, p, v, data = _problem(model, sequences, y)
    slope = _PairTerms(E, p, v, data).slope(E @ real_array(direction, "direction", p.shape))
    return slope.mantissa * float(np.exp(slope.log_scale))


class WeightBounds(NamedTuple):
    """The softmax weight of every position between its bounds, as logarithms, each (n_positions,), sequence after sequence."""

    log_weight: FloatArray
    log_lower: FloatArray
    log_upper: FloatArray


@implements("B", "Lemma 10")
def softmax_weight_bounds(E: ArrayLike, p: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> WeightBounds:
    r"""The softmax weight of each position, and what bounds it by the gap τ of its logit to the selected ones.

    .. math:: \frac1T \le q_{i_*} \le 1, \qquad \frac{1}{T e^{\tau}} \le q_j \le \frac{1}{1 + e^{\tau}}, \quad
        \tau = p^\top (E_{x_{i_*}} - E_{x_j}),\ x_{i_*} \in \mathcal S_X(p),\ x_j \notin \mathcal S_X(p)

    Args:
        E: embeddings (n_vocabulary, d_model). p: (d_model,). sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        Logarithms, exact at any norm: `log_lower <= log_weight <= log_upper` up to rounding.
    """
    data, table = as_labelled(sequences, y), real_array(E, "E", ("n_vocabulary", "d_model"))
    logits = table @ real_array(p, "p", (table.shape[1],))
    selected = token_ranks(table, p, data).selected
    weight, lower, upper = np.empty((3, len(data.tokens)))
    for i in range(len(data)):
        part = slice(data.offsets[i], data.offsets[i + 1])
        ids = data.tokens[part]
        a, T = logits[ids], len(ids)
        gap = a.max() - a
        chosen = np.isin(ids, selected[i])
        weight[part] = -gap - np.log(np.sum(np.exp(-gap)))
        lower[part] = np.where(chosen, 0.0, -gap) - np.log(T)
        upper[part] = np.where(chosen, 0.0, -np.logaddexp(0.0, gap))
    return WeightBounds(weight, lower, upper)


class DominantSlope(NamedTuple):
    r"""The share of the slope along a direction that comes from the first and second selections, and Lemma 17's bound on the rest.

    Attributes:
        ratio: the slope over its part (B0). log_bound: logarithm of (T + T²) C₃ C₄ e^(−τ₁R), which |ratio − 1| does not exceed.
        tau_1: the smallest gap between first, second and further tokens along p/‖p‖. tau_2: the smallest lead along the direction.
        mu: of local optimality. C_3, C_4: the constants of Eqs (23) and (25).
    """

    ratio: float
    log_bound: float
    tau_1: float
    tau_2: float
    mu: float
    C_3: float
    C_4: float

    @property
    def applies(self) -> bool:
        """Whether p is locally optimal and all gaps are positive, as the lemma asks."""
        return self.mu > 0.0 and self.tau_1 > 0.0 and self.tau_2 > 0.0

    @property
    def holds(self) -> bool:
        """Whether the bound is true here."""
        return abs(self.ratio - 1.0) <= np.exp(min(self.log_bound, 700.0))


@implements("B", "Lemma 17")
@uses(
    "B",
    {
        "Eq. (22)": "The gaps τ₁ between first, second and further tokens along p/‖p‖, its attribute tau_1.",
        "Eq. (23)": "The constant C₃ = 2‖p̂‖ max‖E_s‖/τ₂, its attribute C_3.",
        "Eq. (24)": "The weights of further tokens next to those of second ones, at most e^(−τ₁R).",
        "Eq. (25)": "The constant C₄ = 2T max‖E_s‖/μ, its attribute C_4.",
    },
)
def dominant_slope(
    model: Parameters, direction: ArrayLike, sequences: Any, y: ArrayLike | None = None
) -> DominantSlope:
    r"""How the slope along a direction compares with the part that the selected tokens and the second ones make up.

    .. math:: -\hat p^\top \nabla_p L(E, p) = (1 + \epsilon)\, \hat{\mathbb E}\Big[
        \sum_{i \in \mathcal S_X(p)} \sum_{j \in \mathcal S^2_X(p)} (\hat a_i - \hat a_j)\, h_{ij} \Big],
        \quad |\epsilon| \le (T + T^2)\, C_3 C_4\, e^{-\tau_1 R}, \quad
        h_{ij} = g\, q_i q_j (\gamma_i - \gamma_j),\ R = \|p\|

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,), v of unit norm. direction: p̂ (d_model,), which selects what p selects.
        sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        A `DominantSlope`; slopes are formed relative to their largest term, so the ratio is exact at any norm.
    """
    E, p, v, data = _problem(model, sequences, y)
    moved = real_array(direction, "direction", (E.shape[1],))
    if not equivalent_directions(E, p, moved, data):
        raise InputError(
            "direction", "one that selects in every sequence the tokens that p selects", "another selection"
        )
    ranks, radius = token_ranks(E, p, data), float(length(p))
    terms = _PairTerms(E, p, v, data)
    along = E @ moved
    ratio = terms.slope(along).over(terms.slope(along, ranks))
    T, longest = int(data.lengths.max()), float(np.max(length(E[np.unique(data.tokens)])))
    tau_1 = _smallest_gap(E @ p / radius, ranks, both=True)
    tau_2 = _smallest_gap(along, ranks, both=False)
    mu = local_optimality(E, p, v, data).mu
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        C_3, C_4 = 2.0 * float(length(moved)) * longest / np.float64(tau_2), 2.0 * T * longest / np.float64(mu)
        bound = np.log((T + T**2) * C_3 * C_4) - tau_1 * radius
    return DominantSlope(ratio, float(bound), tau_1, tau_2, mu, float(C_3), float(C_4))


@implements("B", "Lemma 9")
@uses("B", {"Eq. (15)": "The comparison of two slopes; what comes back is the smallest ε for which it holds."})
def slope_deficit(model: Parameters, direction: ArrayLike, sequences: Any, y: ArrayLike | None = None) -> float:
    r"""By which share the loss falls more slowly along a direction than along p itself, the smallest ε of Eq. (15).

    .. math:: -\frac{\hat p^\top}{\|\hat p\|} \nabla_p L(E, p) \ge -(1 - \epsilon) \frac{p^\top}{\|p\|} \nabla_p L(E, p)

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,). direction: p̂ (d_model,). sequences, y: labelled sequences, or ids and labels.
    Returns:
        ε, negative if it falls faster along the direction; nan if it does not fall along p.
    """
    E, p, v, data = _problem(model, sequences, y)
    moved = real_array(direction, "direction", (E.shape[1],))
    terms = _PairTerms(E, p, v, data)
    along_p, other = terms.slope(E @ p), terms.slope(E @ moved)
    if not along_p.mantissa > 0.0:
        return float("nan")
    return 1.0 - other.over(along_p) * float(length(p)) / float(length(moved))


@implements("B", "Lemma 9")
def convergence_bound(points: Any, direction: ArrayLike, deficits: Any) -> FloatArray:
    r"""The cosine with a direction that a gradient flow must have reached, from how the slopes compared on its way.

    .. math:: \frac{\hat p^\top p_t}{\|\hat p\| \|p_t\|} \ge (1 - \epsilon) \Big(1 - \frac{\|p_{\bar t}\|}{\|p_t\|}\Big)
        + \frac{\hat p^\top p_{\bar t}}{\|\hat p\| \|p_t\|}, \quad \epsilon = \max_{[\bar t, t]} \epsilon(p)

    With ‖p_t‖ → ∞ and ε → 0 the right-hand side tends to one: so a limit, if there is one, is p̂.

    Args:
        points: (n_points, d_model) along a flow, the first being p at time t̄, close enough to each other that none of the largest ε is
            missed. direction: p̂ (d_model,). deficits: (n_points,) `slope_deficit` at each.
    Returns:
        (n_points,) the right-hand side, a lower bound on the cosine at each point.
    """
    path = real_array(points, "points", ("n_points", "d_model"))
    along = real_array(direction, "direction", (path.shape[1],))
    worst = np.maximum.accumulate(real_array(deficits, "deficits", (len(path),)))
    norms = np.asarray(length(path))
    return (1.0 - worst) * (1.0 - norms[0] / norms) + float(along @ path[0]) / float(length(along)) / norms


class OwnMaxMargin(NamedTuple):
    r"""What Lemma 18 compares at p: the slope along the max-margin direction of p's own selection, and that along p.

    Attributes:
        solution: p̂, the max-margin solution of what p selects. ratio: the slope along p̂/‖p̂‖ over that along p/‖p‖.
    least: a lower bound of the ratio, up to terms that vanish as ‖p‖ grows: one over the margin of p scaled to the length of p̂.
        C_5: Eq. (27)'s bound on g(X')/g(X) for two sequences. odds: the largest such ratio.
    """

    solution: MarginSolution
    ratio: float
    least: float
    C_5: float
    odds: float


@implements("B", "Lemma 18")
@uses(
    "B",
    {
        "Eq. (26)": "The comparison of the slopes along p̂ and along p scaled to its length, its attribute ratio.",
        "Eq. (27)": "The bound C₅ on how differently two sequences weigh, its attribute C_5, with the outputs at hand for η₀.",
    },
)
def own_max_margin(model: Parameters, sequences: Any, y: ArrayLike | None = None) -> OwnMaxMargin:
    r"""How much faster the loss falls along the max-margin direction of what p selects than along p, far out.

    .. math:: \frac{-\hat p^\top \nabla_p L(E, p)}{-\bar p^\top \nabla_p L(E, p)} \ \gtrsim\ \frac{1}{\min \bar p^\top (E_s - E_{s'})} > 1,
        \quad \hat p \in \mathcal P_*(p),\ \bar p = \|\hat p\| \frac{p}{\|p\|}

    If p's direction is not that of p̂, its margin is below one, so the flow turns towards p̂: by Lemma 9 no other direction is a limit.

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,), p locally optimal. sequences, y: labelled sequences, or ids and labels.
    Returns:
        An `OwnMaxMargin`; the inequality is asymptotic, with errors that fall like e^(−τ‖p‖/‖p̂‖).
    """
    E, p, v, data = _problem(model, sequences, y)
    ranks = token_ranks(E, p, data)
    solution = vocabulary_svm(E, data, ranks.selected)
    if solution.status is not Status.OPTIMAL:
        raise InputError("model.p", "a vector that selects some tokens and leaves others", solution.status.sentence)
    terms = _PairTerms(E, p, v, data)
    scale = float(length(solution.x)) / float(length(p))
    ratio = terms.slope(E @ solution.x).over(terms.slope(E @ p)) / scale
    least = 1.0 / (scale * _smallest_gap(E @ p, ranks, both=False))
    bound = 1.0 + float(np.exp(min(terms.margins.max(), 700.0)))
    odds = float(np.exp(terms.log_g.max() - terms.log_g.min()))
    return OwnMaxMargin(solution, ratio, least, bound, odds)


class _Slope(NamedTuple):
    """A slope as `mantissa` · e^`log_scale`, which no norm of p makes underflow."""

    mantissa: float
    log_scale: float

    def over(self, other: _Slope) -> float:
        """The ratio of two slopes; nan if the other is zero."""
        if other.mantissa == 0.0:
            return float("nan")
        return self.mantissa / other.mantissa * float(np.exp(self.log_scale - other.log_scale))


class _PairTerms:
    """A slope as its sum over pairs of tokens (Lemma 8), from logarithms of its weights."""

    def __init__(self, E: FloatArray, p: FloatArray, v: FloatArray, data: LabelledSequences) -> None:
        self.pairs = distinct_tokens(data)
        self.scores, logits = E @ v, E @ p
        self.log_q: list[FloatArray] = []
        self.margins = np.empty(len(self.pairs))  # y f
        for i in range(len(self.pairs)):
            token, count = self._tokens(i)
            weights = logits[token] - logits[token].max() + np.log(count)
            self.log_q.append(weights - np.logaddexp.reduce(weights))
            self.margins[i] = float(self.pairs.y[i]) * float(np.exp(self.log_q[i]) @ self.scores[token])
        self.log_g = -np.logaddexp(0.0, self.margins)  # g = 1 / (1 + e^{y f})

    def _tokens(self, i: int) -> tuple[Any, Any]:
        part = slice(self.pairs.offsets[i], self.pairs.offsets[i + 1])
        return self.pairs.token[part], self.pairs.count[part]

    def slope(self, along: FloatArray, ranks: TokenRanks | None = None) -> _Slope:
        """-p̂ᵀ∇L, `along` being E p̂; with ranks only the part of selected tokens with second ones."""
        logs, values = [np.zeros(0)], [np.zeros(0)]
        for i in range(len(self.pairs)):
            token, _ = self._tokens(i)
            upper, lower = np.triu_indices(len(token), k=1)
            apart = along[token][upper] - along[token][lower]
            apart[np.abs(apart) <= TIE_RTOL * np.abs(along[token]).max()] = 0.0  # ties, up to rounding
            score = float(self.pairs.y[i]) * (self.scores[token][upper] - self.scores[token][lower])
            value = apart * score
            if ranks is not None:
                first, second = np.isin(token, ranks.selected[i]), np.isin(token, ranks.secondary[i])
                counted = (first[upper] & second[lower]) | (second[upper] & first[lower])
                value = np.where(counted, value, 0.0)
            logs.append(np.where(value == 0.0, -np.inf, self.log_q[i][upper] + self.log_q[i][lower] + self.log_g[i]))
            values.append(value / len(self.pairs))
        weight = np.concatenate(logs)
        scale = float(np.max(weight, initial=-np.inf))
        if not np.isfinite(scale):
            return _Slope(0.0, 0.0)
        return _Slope(float(np.exp(weight - scale) @ np.concatenate(values)), scale)


def _smallest_gap(logits: FloatArray, ranks: TokenRanks, *, both: bool) -> float:
    """The smallest lead of selected tokens over all others; with `both` over second ones, and of these over the rest."""
    gaps = [np.inf]
    for first, second, below in zip(ranks.selected, ranks.secondary, ranks.below, strict=True):
        if len(second):
            gaps.append(float(logits[first].min() - logits[second].max()))
        if len(below):
            above = second if both else first
            gaps.append(float(logits[above].min() - logits[below].max()))
    return min(gaps)


def _problem(model: Parameters, sequences: Any, y: Any) -> tuple[FloatArray, FloatArray, FloatArray, LabelledSequences]:
    data = as_labelled(sequences, y)
    known = as_parameters(model, "model", data.n_vocabulary)
    return known.E, known.p, known.v, data
