"""The cyclic correction W^cyc: how attention shares itself among tokens of equal priority."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

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
from marginlens.typing import ArrayLike, Axes, FloatArray

GRADIENT_ATOL = 1e-10  # gradient, by embeddings near length one, at which a minimum counts as found
START_LOGIT_STDS = (1.0, 3.0, 8.0)  # standard deviations of the logits at random starts, in turn
SAME_RISK_RTOL = 1e-9  # relative difference at which two minima are equally low
SAME_LOGITS_RTOL = (
    1e-5  # largest difference of logits, relative to one and the largest, at which two minima are one point
)
_CONVEX = "The log-loss with C Eᵀ = I is convex (C Lemma 3), and the minimum is isolated: it is the only one."
MAX_FLAT_LOGIT_GAP = 15.0  # logits of one component closer than this: where the risk is flat it has not run out there


@implements("C", "Def 3", "Lemma 7", "Eq. (27)")
def cyclic_correction(
    data: SequenceDataset,
    *,
    head: Any = None,
    loss: NextTokenLoss | None = None,
    graphs: Mapping[int, PriorityGraph] | None = None,
    start: Any = None,
    restarts: int = 0,
    rng: Any = 0,
) -> CyclicCorrection:
    r"""The shortest minimiser of the risk over the cyclic subset: the soft mix of tokens that no priority separates.

    .. math:: W^{\rm cyc} = \arg\min_{W \in \arg\min \bar{\mathcal L}} \|W\|_F, \quad
        \bar{\mathcal L}(W) = \frac{1}{|\bar{\mathcal D}|} \sum_{(X, y) \in \bar{\mathcal D}} \ell(c_y^\top X^\top \mathbb S(X W \bar x))

    The risk depends on W only through its part in S_cyc, so the shortest minimiser lies there. With the log-loss and C Eᵀ = I it is
    strictly convex on S_cyc, and for the data's own graphs the minimum is unique, finite and independent of the start. Otherwise it need
    not be convex: what comes back is the minimum reached from the start. For other graphs, heads and losses the risk may fall for ever,
    which is said with a direction that shows it.

    Args:
        head: C (n_vocabulary, d_model), or None for C Eᵀ = I.
        loss: the log-loss by default.
        graphs: the data's priority graphs by default. With `pseudo_graphs(data, W, threshold)` every sequence keeps the tokens in the
            component of the selected ones; `local_correction` offers that rule and the paper's by name.
        start: (d_model, d_model) where to start, of which the part in S_cyc is taken; zero by default, and for the log-loss with
            C Eᵀ = I always, because its minimum is the only one.
        restarts: random starts beside it, of which the lowest minimum is taken, and the shortest of several. They also decide, in numbers,
            whether there is another: `.is_unique`.
        rng: their seed or generator.
    Returns:
        A `CyclicCorrection` with W^cyc in `.x`; `.residual()` recomputes its gradient from the samples.
    """
    whole_number(restarts, "restarts", at_least=0)
    as_sequences(data)
    if head is None:
        check_realizable(data)
    graphs = priority_graphs(data, head=head) if graphs is None else graphs
    space = cyclic_subspace(data.E, graphs)
    return _shortest(_Samples(data, leading_subset(data, graphs), space, space), head, loss, start, (restarts, rng))


@implements("C", "§6")
def local_correction(
    data: SequenceDataset,
    W: ArrayLike,
    rule: LocalRule,
    *,
    threshold: float = 0.01,
    head: Any = None,
    loss: NextTokenLoss | None = None,
    start: Any = None,
) -> CyclicCorrection:
    r"""The cyclic correction of the priorities that trained weights have chosen, in place of those that the labels ask for.

    Definition 3 over the local cyclic subset, which the paper leaves open ("we defer a rigorous definition"): `rule` names what a
    sequence keeps of the pseudo-graphs' components. Where no sequence keeps two different tokens it is zero, and so is the local S_cyc.

    Args:
        W: (d_model, d_model) trained weights.
        threshold: attention above which a token counts as selected; "s > 0" in the text.
        rule: `LocalRule.LABELS_COMPONENT`, the paper's Eqs (4) and (5) and the authors' code, or `LocalRule.SELECTED_COMPONENT`.
        head, loss, start: as in `cyclic_correction`. The label's component needs every label in its own sequence.
    Returns:
        A `CyclicCorrection` whose `.subspace` is the local S_cyc: `‖.subspace.project(W) - .x‖` is the distance of Figures 5 and 6.
        Its `.curvature` is that along the differences of tokens which samples keep together. By the label's component these
        may span less than S_cyc; the risk does not depend on the rest, and the shortest minimiser is zero there.
    """
    graphs = pseudo_graphs(as_sequences(data), W, threshold)
    subset = local_subset(data, graphs, rule)
    return _shortest(
        _Samples(data, subset, local_subspace(graphs, subset), _compared(subset)), head, loss, start, (0, 0)
    )


def _compared(subset: CyclicSubset) -> CyclicSubspace:
    """The span of the differences of tokens that samples of a subset keep together, on which alone the risk depends."""
    first = np.repeat(subset.tokens[subset.offsets[:-1]], subset.lengths)  # a star through the tokens of each sample
    query = subset.last[subset.sample]
    heads, tails = np.concatenate([first, subset.tokens]), np.concatenate([subset.tokens, first])
    graphs = graphs_of_edges(np.concatenate([query, query]), heads, tails, subset.n_vocabulary)
    return cyclic_subspace(subset.E, graphs)


class _Samples(NamedTuple):
    """The data, what a rule keeps of them, S_cyc, and the part of it on which the risk depends."""

    data: SequenceDataset
    subset: CyclicSubset
    space: CyclicSubspace
    compared: CyclicSubspace


def _shortest(
    samples: _Samples, head: Any, loss: NextTokenLoss | None, start: Any, search: tuple[int, Any]
) -> CyclicCorrection:
    """The shortest minimiser of the risk over the subset, from `start` and from as many random starts as `search` says."""
    data, subset, space, compared = samples
    restarts, generator = search[0], as_generator(search[1])
    loss = LogLoss() if loss is None else as_nexttoken_loss(loss)
    scores = as_head(data, head).table
    if scores is None:
        check_realizable(data)  # the loss of a sequence without its label does not depend on W
    at = None if start is None else data.weights(start, "start")
    nothing = np.zeros((data.d_model, data.d_model))
    if not len(subset):
        reason = "No sequence keeps two different tokens of one component."
        return CyclicCorrection(nothing, Status.TRIVIAL, reason, 0.0, 0.0, None, subset, space, is_unique=True)
    objective = CyclicRisk(subset, compared, scores, loss)
    if objective.is_likelihood:
        at = None  # one minimum, and far out Newton's steps are lost in an exponentially small curvature
    origin = nothing if at is None else np.ldexp(compared.project(at), 2 * objective.power)
    first = objective.at(objective.space.cells(origin))
    if not np.isfinite(first.value):
        i = int(subset.samples[int(np.argmax(~np.isfinite(first.losses[objective.problem.merged])))])
        problem = "its label, or an output that the loss can take, is missing from the tokens it keeps"
        raise InputError("start", "a point of finite risk", f"an infinite loss at sample {i}: {problem}")
    parts = (subset, space, objective)
    correction = _found(objective, origin, "zero" if at is None else "the start's part in S_cyc", parts)
    if objective.is_likelihood:
        unique = correction.status is Status.FINITE and not correction.flat
        return replace(correction, is_unique=unique, uniqueness=_CONVEX if unique else "")
    if not restarts:
        return correction
    spreads = np.resize(START_LOGIT_STDS, restarts)
    starts = [_anywhere(objective, generator, spread) for spread in spreads]
    return _lowest([correction, *(_found(objective, start, "a random start", parts) for start in starts)])


def _anywhere(objective: CyclicRisk, rng: np.random.Generator, spread: float) -> FloatArray:
    """A random matrix in S_cyc whose logits within components have this standard deviation, up to the dependence of embeddings."""
    space = objective.space
    direction = space.lift(space.centre(rng.standard_normal(len(space.tokens))))
    size = float(np.std(space.centre(space.cells(direction))))
    return direction * (spread / size) if size > 0.0 else direction


def _lowest(corrections: list[CyclicCorrection]) -> CyclicCorrection:
    """The lowest of several minima, the shortest of equal ones, with what the others say about its being the only one."""
    lowest = min(correction.risk for correction in corrections)
    blur = SAME_RISK_RTOL * max(1.0, abs(lowest))
    best = [correction for correction in corrections if correction.risk <= lowest + blur]
    finite = [correction for correction in best if correction.status is Status.FINITE]
    running = [correction for correction in best if correction.status is Status.INFINITE]
    looked = f"{len(corrections)} starts were followed"
    if not finite:
        return replace(best[0], is_unique=False, uniqueness=f"No finite minimum was found as low; {looked}.")
    norms = np.array([length(correction.x.ravel()) for correction in finite])
    chosen = finite[int(np.argmax(norms <= norms.min() * (1.0 + SAME_LOGITS_RTOL)))]
    space = chosen.subspace
    unit = float(np.abs(space.centre(space.cells(chosen.x))).max())
    spread = max(float(np.abs(space.centre(space.cells(correction.x - chosen.x))).max()) for correction in finite)
    if running:
        said = "the risk comes as low along a direction, for ever"
    elif spread > SAME_LOGITS_RTOL * (1.0 + unit):
        said = f"another minimum of the same risk has logits that differ by {spread:.3g}"
    elif chosen.flat:
        said = f"the risk is flat along {chosen.flat} directions of S_cyc"
    else:
        said = f"{looked}, and all that came as low ended within {spread:.0e} of it in logits"
        return replace(chosen, is_unique=True, uniqueness=f"No other was found: {said}.")
    return replace(chosen, is_unique=False, uniqueness=f"It is not the only one: {said}; {looked}.")


def _found(
    objective: CyclicRisk, origin: FloatArray, named: str, parts: tuple[CyclicSubset, CyclicSubspace, CyclicRisk]
) -> CyclicCorrection:
    """Minimise, and say how that ended."""
    end, space, power = minimise(objective, origin), objective.space, 2 * objective.power
    near = float(np.linalg.norm(objective.gradient(end.W)))
    with np.errstate(over="ignore"):
        x, gradient = np.ldexp(end.W, -power), float(np.ldexp(near, power))
    risk = objective.at(space.cells(end.W)).value
    flight = None if end.converged and not end.flat else runaway(objective, end.W)
    if flight is not None:
        limit = (flight.sentence, flight.limit, 0.0, np.ldexp(flight.direction, -power))
        return CyclicCorrection(np.full_like(x, np.nan), Status.INFINITE, *limit, *parts)
    spread = float(np.ptp(space.centre(space.cells(end.W))))
    if (
        end.converged
        and near <= GRADIENT_ATOL
        and (not end.flat or spread <= MAX_FLAT_LOGIT_GAP)
        and np.isfinite(x).all()
    ):
        if objective.is_likelihood:
            reason = f"The log-loss is strictly convex on S_cyc; Newton's method took {end.steps} steps."
        else:
            reason = f"Newton's method reached a local minimum from {named} in {end.steps} steps; elsewhere there may be lower ones."
        if end.flat:
            reason += f" To second order the risk is flat there along {end.flat} directions of S_cyc."
        return CyclicCorrection(x, Status.FINITE, reason, risk, gradient, None, *parts, flat=end.flat)
    reason = (
        f"From {named}, the gradient was still {gradient:.1e} after {end.steps} steps at norm {length(x.ravel()):.3g}."
    )
    return CyclicCorrection(x, Status.INACCURATE, reason, risk, gradient, None, *parts)


@dataclass(frozen=True, repr=False, eq=False)
class CyclicCorrection(Displayed):
    r"""W^cyc with what checks it.

    Attributes:
        x: (d_model, d_model) W^cyc; zero where nothing is tied, nan where it is infinite.
        status: a `Status`.
        reason: what happened, in a sentence; for an infinite one the last token, component and tokens.
        risk: the mean loss over the cyclic subset at x, its limit where x is infinite, 0 without a cyclic subset.
        gradient_norm: the norm of the risk's gradient by W at x.
        direction: (d_model, d_model) where x is infinite, a matrix in S_cyc along which the risk falls for ever; else None.
        subset: the cyclic subset.
        subspace: S_cyc.
        objective: the risk that was minimised, or None.
        flat: along how many directions of S_cyc slope and curvature are rounding at x.
        is_unique: whether every other minimising sequence ends there too, as C Thm 2 needs; None where that was not looked at.
        uniqueness: on what that rests: a proof, or how many starts.
    """

    x: FloatArray
    status: Status
    reason: str
    risk: float
    gradient_norm: float
    direction: FloatArray | None
    subset: CyclicSubset
    subspace: CyclicSubspace
    objective: CyclicRisk | None = None
    flat: int = 0
    is_unique: bool | None = None
    uniqueness: str = ""
    quantities = (
        "{status.name}, norm={x:norm}, gradient={gradient_norm:.1e}, {subspace.n_groups} components, d_model={x:#}"
    )

    @property
    def basis(self) -> FloatArray:
        """(rank, d_model, d_model) orthonormal matrices that span S_cyc."""
        return self.subspace.basis

    @cached_property
    def curvature(self) -> float:
        """The smallest eigenvalue of the risk's Hessian inside S_cyc at x; infinite where that is empty, nan where x is infinite."""
        if self.objective is None:
            return float("inf")
        if not np.isfinite(self.x).all():
            return float("nan")
        power = self.objective.power
        smallest = self.objective.smallest_eigenvalue(np.ldexp(self.x, 2 * power))
        with np.errstate(over="ignore", under="ignore"):
            return float(np.ldexp(smallest, 4 * power))

    def residual(self) -> float:
        """The norm of the risk's gradient at x, recomputed from the samples position by position; nan where x is infinite."""
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
        """Draw W^cyc by colour; if embeddings are one-hot, entry (x, k) is the mixing logit of token x after k. Returns the axes."""
        ax = axes_for(ax)
        if not np.isfinite(self.x).all():
            draw_sentence(ax, self.reason)
            return ax
        draw_matrix(ax, self.x)
        ax.set(xlabel="coordinate of the last token", ylabel="coordinate of the token")
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
def limit_risk(data: SequenceDataset, *, loss: NextTokenLoss = LogLoss(), cyclic_part: Any = None) -> float:  # noqa: B008
    r"""The risk that R W^mm + W^∥ tends to, under C Eᵀ = I: for W^∥ = W^cyc the limit of the regularisation path's risk.

    .. math:: \lim_{R \to \infty} \mathcal L(R\,W^{mm} + W^\parallel) = \frac1n \sum_i
        \ell\Big(\frac{\sum_{t \in \mathcal O_i} e^{b_{it}}}{\sum_{t \in \mathcal R_i} e^{b_{it}}}\Big)
        = \frac{|\bar{\mathcal I}|}{n} \ell(1) + \frac{|\mathcal I|}{n} \bar{\mathcal L}(W^\parallel), \quad b_i = X_i W^\parallel \bar x_i

    Args:
        data: data whose Graph-SVM is feasible.
        loss: one of the label's own output.
        cyclic_part: W^∥ (d_model, d_model), W^cyc by default.
    Returns:
        The limit. Check it with `path(data, radii)`, whose risk falls to it.
    """
    check_realizable(as_sequences(data))
    rule = label_loss(loss)
    if cyclic_part is None:
        found = cyclic_correction(data, loss=rule, restarts=0 if isinstance(rule, LogLoss) else 8)
        if found.status not in (Status.FINITE, Status.TRIVIAL):
            raise InputError("loss", "one with a finite cyclic correction", type(rule).__name__, found.reason)
        W = found.x
    else:
        W = data.weights(cyclic_part, "cyclic_part")
    inside, total, _ = component_sums(data, W)
    return float(np.mean(scalar_of(rule, inside / total)[0]))


def component_sums(data: SequenceDataset, W: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """c_i and d_i (n_samples,): sums of e^b over O_i and over R_i; and the largest |b|, with b_i = X_i W x̄_i."""
    b = np.sum((data.E[data.tokens] @ W) * data.E[np.repeat(data.last, data.lengths)], axis=1)
    weights, first = np.exp(b), data.offsets[:-1]
    inside = np.add.reduceat(np.where(data.is_label, weights, 0.0), first)
    return inside, np.add.reduceat(np.where(tied_positions(data), weights, 0.0), first), float(np.abs(b).max())


def label_loss(loss: Any) -> LabelLoss:
    rule = as_nexttoken_loss(loss)
    if not isinstance(rule, LabelLoss):
        raise InputError("loss", "a loss of the label's own output (C Assumption 1)", type(rule).__name__)
    return rule
