"""The cyclic correction W^cyc: the shares of attention among tokens of equal priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable
from marginlens.errors import InputError, whole_number
from marginlens.graphs.cyclic import (
    CyclicSubset,
    LocalRule,
    leading_subset,
    local_subset,
    local_subspace,
    pseudo_graphs,
    tied_positions,
)
from marginlens.graphs.from_data import priority_graphs
from marginlens.graphs.priority import PriorityGraph, graphs_of_edges
from marginlens.graphs.subspace import CyclicSubspace, cyclic_subspace
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, as_nexttoken_loss, scalar_of
from marginlens.nexttoken.cyclic_minimum import minimise, runaway
from marginlens.nexttoken.cyclic_risk import CyclicRisk
from marginlens.papers import implements, uses
from marginlens.result import Displayed, axes_for, draw_matrix
from marginlens.result.drawing import draw_sentence
from marginlens.risk.next_token_heads import as_head
from marginlens.status import Status
from marginlens.typing import ArrayLike, Axes, FloatArray, Seed
from marginlens.words import Fact, text

# Largest gradient of a minimum, for embeddings near length one.
GRADIENT_ATOL = 1e-10
# Standard deviations of the logits at random starts, in turn.
START_LOGIT_STDS = (1.0, 3.0, 8.0)
# Relative difference up to which two minima are equally low.
SAME_RISK_RTOL = 1e-9
# Largest difference of logits, relative to one and the largest, up to which two minima are one point.
SAME_LOGITS_RTOL = 1e-5
# A flat minimum whose logits differ by less than this within components has not run off to infinity.
MAX_FLAT_LOGIT_GAP = 15.0


@implements("C", "Def 3", "Lemma 7", "Eq. (27)")
def cyclic_correction(
    data: SequenceDataset,
    *,
    head: ArrayLike | None = None,
    loss: NextTokenLoss | None = None,
    graphs: Mapping[int, PriorityGraph] | None = None,
    start: ArrayLike | None = None,
    restarts: int = 0,
    rng: Seed = 0,
) -> CyclicCorrection:
    r"""Find the shortest minimiser of the risk over the cyclic subset: the soft mix of tokens that no priority separates.

    .. math:: W^{\rm cyc} = \arg\min_{W \in \arg\min \bar{\mathcal L}} \|W\|_F, \quad
        \bar{\mathcal L}(W) = \frac{1}{|\bar{\mathcal D}|} \sum_{(X, y) \in \bar{\mathcal D}} \ell(c_y^\top X^\top \mathbb S(X W \bar x))

    The risk depends on W only through its part in S_cyc, so the shortest minimiser lies there. With the log-loss and C Eᵀ = I the risk is
    strictly convex on S_cyc, and for the data's own graphs the minimum is unique, finite and independent of the start.
    Otherwise the risk may not be convex, and the result is the minimum reached from the start. For other graphs, heads and
    losses the risk may decrease without a minimum; then the result has a direction that shows it.

    Args:
        data: the sequences with their labels.

        head: C of shape (n_vocabulary, d_model), or None for C Eᵀ = I.

        loss: the log-loss by default.

        graphs: the data's priority graphs by default. With `pseudo_graphs(data, W, threshold)` every sequence keeps the tokens in the
            component of the selected ones; `local_correction` offers that rule and the paper's by name.

        start: (d_model, d_model) matrix whose part in S_cyc is the start; zero by default. The log-loss with C Eᵀ = I always starts from
            zero, because its minimum is unique.

        restarts: number of additional random starts. The result is the lowest minimum found, and the shortest among equal ones.
            The restarts also show numerically whether the minimum is unique: `.is_unique`.

        rng: a `numpy.random.Generator` for the random starts, or a whole number to seed one.

    Returns:
        A `CyclicCorrection` with W^cyc in `.x`; `.residual()` recomputes its gradient from the samples.

    Examples:
        Token 0 follows the prompt twice and token 1 once, so after token 1 attention tends to the shares 2/3 and 1/3:

        >>> import numpy as np
        >>> import marginlens as ml
        >>> data = ml.SequenceDataset([[0, 1], [0, 1], [0, 1]], [0, 0, 1], np.eye(2))
        >>> mix = ml.cyclic_correction(data)
        >>> weights = np.exp(mix.x[:, 1])
        >>> print((weights / weights.sum()).round(4))
        [0.6667 0.3333]
    """
    whole_number(restarts, "restarts", at_least=0)
    as_sequences(data)
    if head is None:
        check_realizable(data)
    graphs = priority_graphs(data, head=head) if graphs is None else graphs
    space = cyclic_subspace(data.E, graphs)
    samples = _Samples(data, leading_subset(data, graphs), space, space)
    return _shortest(samples, head, loss, _Search(start, restarts, rng))


@implements("C", "§6")
def local_correction(
    data: SequenceDataset,
    W: ArrayLike,
    rule: LocalRule,
    *,
    threshold: float = 0.01,
    head: ArrayLike | None = None,
    loss: NextTokenLoss | None = None,
    start: ArrayLike | None = None,
) -> CyclicCorrection:
    r"""Find the cyclic correction for the priorities in trained weights, instead of those in the labels.

    This is Definition 3 over the local cyclic subset, which the paper leaves open ("we defer a rigorous definition"): `rule`
    determines the tokens that a sequence keeps, given the components of the pseudo-graphs. If no sequence keeps two different
    tokens, the correction and the local S_cyc are zero.

    Args:
        data: the sequences with their labels.

        W: (d_model, d_model) trained weights.

        rule: `LocalRule.LABELS_COMPONENT`, the paper's Eqs (4) and (5) and the authors' code, or `LocalRule.SELECTED_COMPONENT`.

        threshold: attention above which a token counts as selected; "s > 0" in the text.

        head: as in `cyclic_correction`. The label's component needs every label in its own sequence.

        loss: as in `cyclic_correction`.

        start: as in `cyclic_correction`.

    Returns:
        A `CyclicCorrection` whose `.subspace` is the local S_cyc: `‖.subspace.project(W) - .x‖` is the distance of Figures 5 and 6.
        Its `.curvature` is that along the differences of tokens which samples keep together. With the label's component these may
        span less than S_cyc; the risk does not depend on the rest, and the shortest minimiser is zero there.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.graphs import LocalRule
        >>> from marginlens.nexttoken import local_correction
        >>> data = ml.SequenceDataset([[0, 1], [0, 1], [0, 1]], [0, 0, 1], np.eye(2))
        >>> local_correction(data, np.zeros((2, 2)), LocalRule.LABELS_COMPONENT).status
        Status.FINITE
    """
    graphs = pseudo_graphs(as_sequences(data), W, threshold)
    subset = local_subset(data, graphs, rule)
    return _shortest(
        _Samples(data, subset, local_subspace(graphs, subset), _compared(subset)), head, loss, _Search(start)
    )


def _compared(subset: CyclicSubset) -> CyclicSubspace:
    """Compute the span of the differences of tokens that samples of a subset keep together: the risk depends on nothing else."""
    # A star through the tokens of each sample spans their differences.
    first = np.repeat(subset.tokens[subset.offsets[:-1]], subset.lengths)
    query = subset.last[subset.sample]
    heads, tails = np.concatenate([first, subset.tokens]), np.concatenate([subset.tokens, first])
    graphs = graphs_of_edges(np.concatenate([query, query]), heads, tails, subset.n_vocabulary)
    return cyclic_subspace(subset.E, graphs)


class _Samples(NamedTuple):
    """The data, the part of them that a rule keeps, S_cyc, and the part of S_cyc on which the risk depends."""

    data: SequenceDataset
    subset: CyclicSubset
    space: CyclicSubspace
    compared: CyclicSubspace


class _Search(NamedTuple):
    """The starts of a search for a minimum: a given one, and random ones."""

    start: ArrayLike | None
    restarts: int = 0
    rng: Seed = 0


def _shortest(
    samples: _Samples, head: ArrayLike | None, loss: NextTokenLoss | None, search: _Search
) -> CyclicCorrection:
    """Find the shortest minimiser of the risk over the subset."""
    data, subset, space, compared = samples
    generator = as_generator(search.rng)
    loss = LogLoss() if loss is None else as_nexttoken_loss(loss)
    scores = as_head(data, head).table
    if scores is None:
        # The loss of a sequence without its label does not depend on W.
        check_realizable(data)
    at = None if search.start is None else data.weights(search.start, "start")
    nothing = np.zeros((data.d_model, data.d_model))
    if not len(subset):
        reason = Fact("correction.nothing_tied")
        return CyclicCorrection(nothing, Status.TRIVIAL, reason, 0.0, 0.0, None, subset, space, is_unique=True)
    objective = CyclicRisk(subset, compared, scores, loss)
    if objective.is_likelihood:
        # There is one minimum, and far out Newton's steps are lost in an exponentially small curvature.
        at = None
    origin = nothing if at is None else np.ldexp(compared.project(at), 2 * objective.power)
    first = objective.at(objective.space.cells(origin))
    if not np.isfinite(first.value):
        i = int(subset.samples[int(np.argmax(~np.isfinite(first.losses[objective.problem.merged])))])
        raise InputError(
            "start",
            "a point of finite risk",
            f"an infinite loss at sample {i}",
            "The label, or an output that the loss can take, is missing from the tokens that the sample keeps.",
        )
    parts = (subset, space, objective)
    start = Fact("correction_start.zero" if at is None else "correction_start.given")
    correction = _minimised(objective, origin, start, parts)
    if objective.is_likelihood:
        unique = correction.status is Status.FINITE and not correction.flat
        return replace(correction, is_unique=unique, uniqueness=Fact("uniqueness.convex") if unique else None)
    if not search.restarts:
        return correction
    spreads = np.resize(START_LOGIT_STDS, search.restarts)
    starts = [_anywhere(objective, generator, spread) for spread in spreads]
    start = Fact("correction_start.random")
    return _lowest([correction, *(_minimised(objective, origin, start, parts) for origin in starts)])


def _anywhere(objective: CyclicRisk, rng: np.random.Generator, spread: float) -> FloatArray:
    """Draw a matrix in S_cyc whose logits within components have this standard deviation, up to the dependence of embeddings."""
    space = objective.space
    direction = space.lift(space.centre(rng.standard_normal(len(space.tokens))))
    size = float(np.std(space.centre(space.cells(direction))))
    return direction * (spread / size) if size > 0.0 else direction


def _lowest(corrections: list[CyclicCorrection]) -> CyclicCorrection:
    """Choose the lowest of several minima, the shortest of equal ones; the others decide whether it is unique."""
    lowest = min(correction.risk for correction in corrections)
    blur = SAME_RISK_RTOL * max(1.0, abs(lowest))
    best = [correction for correction in corrections if correction.risk <= lowest + blur]
    finite = [correction for correction in best if correction.status is Status.FINITE]
    running = [correction for correction in best if correction.status is Status.INFINITE]
    starts = len(corrections)
    if not finite:
        return replace(best[0], is_unique=False, uniqueness=Fact("uniqueness.no_minimum", {"starts": starts}))
    norms = np.array([length(correction.x.ravel()) for correction in finite])
    shortest = finite[int(np.argmax(norms <= norms.min() * (1.0 + SAME_LOGITS_RTOL)))]
    space = shortest.subspace
    unit = float(np.abs(space.centre(space.cells(shortest.x))).max())
    spread = max(float(np.abs(space.centre(space.cells(correction.x - shortest.x))).max()) for correction in finite)
    if running:
        uniqueness = Fact("uniqueness.unbounded", {"starts": starts})
    elif spread > SAME_LOGITS_RTOL * (1.0 + unit):
        uniqueness = Fact("uniqueness.another", {"starts": starts, "logits": spread})
    elif shortest.flat:
        uniqueness = Fact("uniqueness.flat", {"starts": starts, "directions": shortest.flat})
    else:
        uniqueness = Fact("uniqueness.same_end", {"starts": starts, "logits": spread})
        return replace(shortest, is_unique=True, uniqueness=uniqueness)
    return replace(shortest, is_unique=False, uniqueness=uniqueness)


def _minimised(
    objective: CyclicRisk, origin: FloatArray, start: Fact, parts: tuple[CyclicSubset, CyclicSubspace, CyclicRisk]
) -> CyclicCorrection:
    """Minimise from one start, with the reason why the minimum counts or not."""
    end, space, power = minimise(objective, origin), objective.space, 2 * objective.power
    near = float(np.linalg.norm(objective.gradient(end.W)))
    with np.errstate(over="ignore"):
        x, gradient = np.ldexp(end.W, -power), float(np.ldexp(near, power))
    risk = objective.at(space.cells(end.W)).value
    flight = None if end.converged and not end.flat else runaway(objective, end.W)
    if flight is not None:
        limit = (flight.fact, flight.limit, 0.0, np.ldexp(flight.direction, -power))
        return CyclicCorrection(np.full_like(x, np.nan), Status.INFINITE, *limit, *parts)
    spread = float(np.ptp(space.centre(space.cells(end.W))))
    if (
        end.converged
        and near <= GRADIENT_ATOL
        and (not end.flat or spread <= MAX_FLAT_LOGIT_GAP)
        and np.isfinite(x).all()
    ):
        code = "correction.convex" if objective.is_likelihood else "correction.local"
        numbers = {"start": start, "steps": end.steps, "directions": end.flat}
        reason = Fact(code, {**numbers, "case": "flat"} if end.flat else numbers)
        return CyclicCorrection(x, Status.FINITE, reason, risk, gradient, None, *parts, flat=end.flat)
    numbers = {"start": start, "steps": end.steps, "gradient": gradient, "norm": length(x.ravel())}
    return CyclicCorrection(x, Status.INACCURATE, Fact("correction.unfinished", numbers), risk, gradient, None, *parts)


@dataclass(frozen=True, repr=False, eq=False)
class CyclicCorrection(Displayed):
    r"""The cyclic correction W^cyc with its checks.

    Attributes:
        x: (d_model, d_model) W^cyc; zero if nothing is tied, nan if it is infinite.

        status: a `Status`.

        reason: why the search ended; if x is infinite, the component that separates.

        risk: the mean loss over the cyclic subset at x, its limit if x is infinite, 0 without a cyclic subset.

        gradient_norm: the norm of the risk's gradient by W at x.

        direction: (d_model, d_model) if x is infinite, a matrix in S_cyc along which the risk decreases without a minimum;
            otherwise None.

        subset: the cyclic subset.

        subspace: S_cyc.

        objective: the risk that was minimised, or None.

        flat: number of directions of S_cyc along which slope and curvature are rounding at x.

        is_unique: whether every minimising sequence ends at x, as C Thm 2 requires; None if that was not checked.

        uniqueness: the evidence for `is_unique`, a proof or a number of starts; None if it was not checked.
    """

    x: FloatArray
    status: Status
    reason: Fact
    risk: float
    gradient_norm: float
    direction: FloatArray | None
    subset: CyclicSubset
    subspace: CyclicSubspace
    objective: CyclicRisk | None = None
    flat: int = 0
    is_unique: bool | None = None
    uniqueness: Fact | None = None
    quantities = (
        "{status.name}, norm={x:norm}, gradient={gradient_norm:.1e}, {subspace.n_groups} components, d_model={x:#}"
    )

    @property
    def basis(self) -> FloatArray:
        """Orthonormal matrices (rank, d_model, d_model) that span S_cyc."""
        return self.subspace.basis

    @cached_property
    def curvature(self) -> float:
        """The smallest eigenvalue of the risk's Hessian inside S_cyc at x; infinite if S_cyc is empty, nan if x is infinite."""
        if self.objective is None:
            return float("inf")
        if not np.isfinite(self.x).all():
            return float("nan")
        power = self.objective.power
        smallest = self.objective.smallest_eigenvalue(np.ldexp(self.x, 2 * power))
        with np.errstate(over="ignore", under="ignore"):
            return float(np.ldexp(smallest, 4 * power))

    def residual(self) -> float:
        """Recompute the norm of the risk's gradient at x from the samples, position by position; nan if x is infinite."""
        if self.objective is None:
            return 0.0
        if not np.isfinite(self.x).all():
            return float("nan")
        data, loss, scores = self.subset, self.objective.loss, self.objective.scores
        attention, gradient = data.attention(self.x), np.zeros_like(self.x)
        for i in range(len(data)):
            ids, label = data[i]
            s = attention[data.offsets[i] : data.offsets[i + 1]]
            share = np.asarray(np.bincount(ids, weights=s, minlength=data.n_vocabulary), dtype=np.float64)
            outputs = share if scores is None else scores @ share
            slope = loss.derivative(outputs[None], np.array([label]))[0]
            gains = (slope if scores is None else slope @ scores)[ids]
            gradient += np.outer((s * (gains - s @ gains)) @ data.E[ids], data.E[data.last[i]])
        return float(length(gradient.ravel() / len(data)))

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw W^cyc as colours; if embeddings are one-hot, entry (x, k) is the mixing logit of token x after k. Return the axes."""
        ax = axes_for(ax)
        if not np.isfinite(self.x).all():
            draw_sentence(ax, str(self.reason))
            return ax
        draw_matrix(ax, self.x)
        ax.set(xlabel=text("axis.last_token"), ylabel=text("axis.token"))
        return ax


@implements("C", "Eq. (16)")
@uses(
    "C",
    {
        "Eq. (12)": "Within R_i the shares depend on the part of W in S_cyc alone: the limit is computed over R_i.",
        "Eq. (14)": "The limit of the path's risk, sample by sample.",
        "Eq. (15)": "The risk over the cyclic subset, which the samples of I contribute.",
    },
)
def limit_risk(
    data: SequenceDataset,
    *,
    loss: NextTokenLoss = LogLoss(),  # noqa: B008
    cyclic_part: ArrayLike | None = None,
) -> float:
    r"""Compute the limit of the risk along R W^mm + W^∥, under C Eᵀ = I; for W^∥ = W^cyc that of the regularisation path.

    .. math:: \lim_{R \to \infty} \mathcal L(R\,W^{mm} + W^\parallel) = \frac1n \sum_i
        \ell\Big(\frac{\sum_{t \in \mathcal O_i} e^{b_{it}}}{\sum_{t \in \mathcal R_i} e^{b_{it}}}\Big)
        = \frac{|\bar{\mathcal I}|}{n} \ell(1) + \frac{|\mathcal I|}{n} \bar{\mathcal L}(W^\parallel), \quad b_i = X_i W^\parallel \bar x_i

    Args:
        data: data whose Graph-SVM is feasible.

        loss: a loss of the label's own output.

        cyclic_part: W^∥ of shape (d_model, d_model), W^cyc by default.

    Returns:
        The limit. Check it with `path(data, radii)`, whose risk falls to it.

    Raises:
        InputError: if the cyclic correction of the loss is not finite.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.nexttoken import limit_risk
        >>> data = ml.SequenceDataset([[0, 1], [0, 1], [0, 1]], [0, 0, 1], np.eye(2))
        >>> round(limit_risk(data), 4)  # the entropy of the shares 2/3 and 1/3
        0.6365
    """
    check_realizable(as_sequences(data))
    rule = label_loss(loss)
    if cyclic_part is None:
        mix = cyclic_correction(data, loss=rule, restarts=0 if isinstance(rule, LogLoss) else 8)
        if mix.status not in (Status.FINITE, Status.TRIVIAL):
            raise InputError("loss", "one with a finite cyclic correction", type(rule).__name__, str(mix.reason))
        W = mix.x
    else:
        W = data.weights(cyclic_part, "cyclic_part")
    inside, total, _ = component_sums(data, W)
    return float(np.mean(scalar_of(rule, inside / total)[0]))


def component_sums(data: SequenceDataset, W: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Compute c_i and d_i (n_samples,), the sums of e^b over O_i and over R_i, and the largest |b|, with b_i = X_i W x̄_i."""
    b = np.sum((data.E[data.tokens] @ W) * data.E[np.repeat(data.last, data.lengths)], axis=1)
    weights, first = np.exp(b), data.offsets[:-1]
    inside = np.add.reduceat(np.where(data.is_label, weights, 0.0), first)
    return inside, np.add.reduceat(np.where(tied_positions(data), weights, 0.0), first), float(np.abs(b).max())


def label_loss(loss: NextTokenLoss) -> LabelLoss:
    """Return a loss if it is a function of the label's own output."""
    rule = as_nexttoken_loss(loss)
    if not isinstance(rule, LabelLoss):
        raise InputError("loss", "a loss of the label's own output (C Assumption 1)", type(rule).__name__)
    return rule
