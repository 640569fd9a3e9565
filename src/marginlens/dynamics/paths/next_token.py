"""The regularisation path of next-token prediction: where the risk is smallest among all W up to a norm, as the norm grows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset, as_sequences, check_realizable
from marginlens.data.tokens import FloatArray
from marginlens.directions import correlation, unit
from marginlens.dynamics.paths.next_token_ball import Conditions, smallest_risk, smallest_tail
from marginlens.dynamics.paths.split_risk import SplitRisk
from marginlens.errors import n_axes, real_array, reject, whole_number
from marginlens.graphs.priority import PriorityGraph, is_acyclic, priority_graphs
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, as_nexttoken_loss, scalar_of
from marginlens.nexttoken.correction import CyclicCorrection, cyclic_correction
from marginlens.papers import implements
from marginlens.risk.next_token_heads import Head, as_head
from marginlens.svm.graph import GraphSolution, graph_svm
from marginlens.svm.solution import Status

_SOFT = 64.0  # largest logit at which the risk is still smooth enough for a start from anywhere
_FARTHEST = 1e100  # a radius whose square, and that of its inverse, is a number
_LARGE = 1e60  # length of embeddings whose products of four, and those of their inverses, are still numbers
_GRID = 201  # outputs of a label at which a loss is asked whether it decreases
_STARTS = 8  # random starts in the search for another minimum along S_cyc
_VISIBLE = np.log(1e-8)  # log of a tail below which it is all of the excess, to eight digits


@dataclass(frozen=True, repr=False, eq=False)
class NextTokenPath:
    r"""A finished regularisation path.

    Attributes:
        radii: (n_radii,) the norms R. points: (n_radii, d_model, d_model) :math:`\bar W_R`.
        log_excess: (n_radii,) the logarithm of the risk less its infimum; nan where Graph-SVM is infeasible, which leaves the infimum
            unknown. About -R · margin far out.
        limit: the Graph-SVM of the data, whose direction the path turns into.
        correction: the cyclic correction, to which `cyclic_part()` tends.
    """

    radii: FloatArray
    points: FloatArray
    log_excess: FloatArray
    limit: GraphSolution
    correction: CyclicCorrection
    _risk: SplitRisk
    _coordinates: FloatArray  # what a matrix of norm 1e5 rounds off along S_cyc is still in these
    _held: FloatArray | None

    @property
    def norm(self) -> FloatArray:
        """(n_radii,) ‖W̄_R‖: R where the ball binds."""
        return np.linalg.norm(self.points, axis=(-2, -1))

    def cyclic_part(self) -> FloatArray:
        """(n_radii, d_model, d_model) the projections onto S_cyc."""
        m = self._risk.n_cyclic
        return np.einsum("rde,kr->kde", self._risk.basis[:m], self._coordinates[:, :m])

    def strict_part(self) -> FloatArray:
        """(n_radii, d_model, d_model) the projections onto the complement of S_cyc."""
        m = self._risk.n_cyclic
        return np.einsum("rde,kr->kde", self._risk.basis[m:], self._coordinates[:, m:])

    def correlation(self, W: Any) -> FloatArray:
        """(n_radii,) the cosine of W̄_R with a matrix (d_model, d_model)."""
        return np.asarray(correlation(self.points, self._matrix(W), axes=2))

    def distance(self, W: Any) -> FloatArray:
        """(n_radii,) ‖W̄_R/R - W/‖W‖‖ for a matrix (d_model, d_model)."""
        direction = unit(self._matrix(W).reshape(-1))
        flat = self.points.reshape(len(self.points), -1)
        return np.linalg.norm(flat / self.radii[:, None] - direction, axis=-1)

    def risk(self) -> FloatArray:
        """(n_radii,) the training risk, recomputed."""
        c = self._coordinates
        return self._risk.body(c) + np.exp(self._risk.log_tail(c))

    def kkt_residual(self) -> FloatArray:
        r"""What is left of the conditions of a minimum, (n_radii,); recomputed from the stored problem.

        .. math:: \max_{P} \frac{\|P(\nabla L(\bar W_R) + \nu \bar W_R)\|}{\sum_{it} |w_{it}| \|P a_{it}\|}, \quad \nu \ge 0

        over the projections P onto S_cyc and onto its complement, with :math:`\nabla L = \sum_{it} w_{it} a_{it}`. Far out the second is
        :math:`e^{-R\cdot\text{margin}}` and is computed as exactly as the first. Where the part along S_cyc was given, P is the
        second alone.
        """
        left = np.zeros(len(self.radii))
        for k, (radius, c) in enumerate(zip(self.radii, self._coordinates, strict=True)):
            inside = c[: self._risk.n_cyclic]
            if self._held is None:
                left[k] = Conditions.at(self._risk, c, float(radius)).left
            else:
                left[k] = Conditions.at(self._risk, c, float(np.hypot(radius, np.linalg.norm(inside)))).outer_left
        return left

    def _matrix(self, W: Any) -> FloatArray:
        return real_array(W, "W", self.points.shape[1:])

    def __repr__(self) -> str:
        spread = f"{len(self.radii)} radii {self.radii[0]:.4g} … {self.radii[-1]:.4g}"
        return f"NextTokenPath({spread}, norm={self.norm[-1]:.4g} and log excess {self.log_excess[-1]:.6g} at the last)"


@implements("C", "Algo-RP", "Eq. (11)", "Lemma 4", "Thm 1", "Thm 2")
def nexttoken_path(
    ds: SequenceDataset,
    radii: Any,
    *,
    head: Any = None,
    loss: NextTokenLoss = LogLoss(),  # noqa: B008
    cyclic_part: Any = None,
    restarts: int = 4,
    rng: Any = 0,
) -> NextTokenPath:
    r"""The matrix of smallest training risk in each ball.

    .. math:: \bar W_R = \arg\min_{\|W\|_F \le R} \mathcal L(W), \qquad
        \bar W^\perp_R = \arg\min_{W \in \mathcal S_{\rm cyc}^\perp,\ \|W\|_F \le R} \mathcal L(W + W^\parallel)

    Where Graph-SVM is feasible the path turns into its solution and its part along S_cyc tends to the cyclic correction. The log-loss
    with C Eᵀ = I is convex, so that the minimum is the only one. For other heads and losses, minima that random starts, the cyclic
    correction with the max-margin direction, and the radius before lead to are compared by the logarithm of their excess risk.
    Radii of 1e5/margin are no less exact than small ones; where Graph-SVM is infeasible, what vanishes beside what stays is resolved
    only as far as the residual says. Meant for small problems: the rows :math:`(e_x - e_y) e_k^\top` are formed, d_model² wide.

    Args:
        ds: data of any kind for C Eᵀ = I, acyclic data for other heads. On cyclic data the risk over the cyclic subset must have one finite
            minimiser, which is looked for with `cyclic_correction(ds, loss=loss, restarts=8)`: without it C Thm 2 does not hold.
        radii: (n_radii,) positive and increasing.
        head: C (n_vocabulary, d_model) under which every label scores highest in its sequences (Assumption 3); None for C Eᵀ = I.
        loss: a decreasing loss of the label's own output (Assumption 1).
        cyclic_part: W^∥ (d_model, d_model) in S_cyc, for the second problem; the balls then hold the other part alone.
        restarts: random starts at each radius small enough for logits of 64, where the risk is not convex.
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    Returns:
        A `NextTokenPath`. Check it with `path.kkt_residual()`.
    """
    graphs = priority_graphs(check_realizable(as_sequences(ds)))
    limits, scorer = _increasing(radii), as_head(ds, head)
    one = _label_loss(loss)
    whole_number(restarts, "restarts", at_least=0)
    _check_setting(ds, scorer, one, acyclic=is_acyclic(graphs))
    correction = _correction(ds, graphs, one, needed=cyclic_part is None)
    with threadpool_limits(1, "blas"):  # matrices this small only wait for each other's threads
        risk, limit = SplitRisk(ds, graphs, scorer.table, one), graph_svm(ds.E, graphs)
        held = None if cyclic_part is None else _inside(risk, ds.weights(cyclic_part, "cyclic_part"))
        cyclic = risk.coordinates(correction.x)[: risk.n_cyclic] if held is None else held
        c = np.stack(_follow(risk, limits, limit, held, cyclic, as_generator(rng), restarts))
        known = limit.status in (Status.OPTIMAL, Status.TRIVIAL)
        floor = None if held is not None else float(risk.body(risk.coordinates(correction.x)[None])[0])
        excess = _log_excess(risk, c, floor) if known else np.full(len(c), np.nan)
        return NextTokenPath(limits, risk.matrix(c), excess, limit, correction, risk, c, held)


def _follow(
    risk: SplitRisk,
    radii: FloatArray,
    limit: GraphSolution,
    held: FloatArray | None,
    cyclic: FloatArray,
    generator: np.random.Generator,
    restarts: int,
) -> list[FloatArray]:
    """The point (r,) of each radius, starting from the one before, the max-margin direction and, where not convex, from `cyclic`
    (n_cyclic,), the minimum along S_cyc, and from anywhere.
    """
    m, r = risk.n_cyclic, len(risk.basis)
    search = smallest_risk if held is None else smallest_tail
    fixed = np.zeros(m) if held is None else held
    direction = np.zeros(r)
    if limit.status is Status.OPTIMAL:
        direction = unit(risk.coordinates(limit.x))
    soft = _SOFT / risk.reach if risk.reach > 0.0 else np.inf
    points: list[FloatArray] = []
    for k, radius in enumerate(radii.tolist()):
        last = np.concatenate([fixed, np.zeros(r - m)]) if k == 0 else points[-1]
        starts = [np.append(last[:m], last[m:] * (radius / radii[k - 1])), np.append(last[:m], radius * direction[m:])]
        if risk.likelihood:  # one minimum only: start from the better
            starts = [starts[int(np.argmin(risk.log_tail(np.stack(starts))))]]
        elif m and held is None:
            room = radius**2 - float(cyclic @ cyclic)
            inside = cyclic if room > 0.0 else cyclic * (radius / np.linalg.norm(cyclic))
            starts.append(np.append(inside, np.sqrt(max(room, 0.0)) * direction[m:]))
        if not risk.likelihood and restarts and (radius <= soft or k == 0):
            ball = min(radius, soft)
            anywhere = unit(generator.standard_normal((restarts, r))) * ball
            starts.append(search(risk, anywhere, ball) * (radius / ball))
        points.append(search(risk, np.stack(starts), radius))
    return points


def _correction(
    ds: SequenceDataset, graphs: Mapping[int, PriorityGraph], loss: LabelLoss, *, needed: bool
) -> CyclicCorrection:
    """The cyclic correction under C Eᵀ = I; where it is needed, refused for another loss than the log-loss if it is not the only one."""
    found = cyclic_correction(ds, graphs=graphs, loss=loss, restarts=_STARTS if needed else 0)
    if found.is_unique or isinstance(loss, LogLoss) or not needed:
        return found
    expected = "one whose risk over the cyclic subset has one finite minimiser, as C Thm 2 needs on cyclic data"
    raise reject("loss", expected, type(loss).__name__, found.uniqueness)


def _log_excess(risk: SplitRisk, c: FloatArray, floor: float | None) -> FloatArray:
    """log(L - inf L) at points (n_radii, r); `floor` is the smallest L̄, None where x does not move."""
    tail = risk.log_tail(c)
    if floor is None or risk.n_cyclic == 0:
        return tail
    with np.errstate(divide="ignore"):
        rest = np.log(np.maximum(risk.body(c) - floor, 0.0))  # of the order of the tail, squared
    return np.where(tail < _VISIBLE, tail, np.logaddexp(tail, rest))


def _label_loss(loss: Any) -> LabelLoss:
    one = as_nexttoken_loss(loss)
    if not isinstance(one, LabelLoss):
        raise reject(
            "loss", "a loss of the label's own output, such as ml.LogLoss() (C Assumption 1)", type(one).__name__
        )
    return one


def _check_setting(ds: SequenceDataset, head: Head, loss: LabelLoss, *, acyclic: bool) -> None:
    largest = float(np.abs(ds.E).max())
    if not 1.0 / _LARGE <= largest <= _LARGE and largest > 0.0:
        remedy = "Multiply E by a number; W is then divided by its square."
        expected = f"of embeddings whose largest entry is between {1.0 / _LARGE:g} and {_LARGE:g}"
        raise reject("ds", expected, f"a largest entry of {largest:g}", remedy)
    likelihood = head.table is None and isinstance(loss, LogLoss)
    if likelihood:
        return
    if not acyclic and head.table is not None:
        raise reject(
            "ds",
            "acyclic unless C Eᵀ = I",
            "tokens of equal priority",
            "Leave out 'head' to follow the path of cyclic data.",
        )
    owner = np.repeat(ds.labels, ds.lengths)
    rivals = np.flatnonzero(~ds.is_label & (head.scores(owner, ds.tokens) >= head.scores(owner, owner)))
    if len(rivals):
        x, y = int(ds.tokens[rivals[0]]), int(owner[rivals[0]])
        raise reject(
            "head",
            "one under which each label scores highest in its sequences (C Assumption 3)",
            f"token {x} scoring as high as label {y} or higher",
        )
    value, slope, _ = scalar_of(loss, head.scores(ds.labels, ds.labels))
    wrong = np.flatnonzero(~(np.isfinite(value) & (slope < 0.0)))
    if len(wrong):
        y = int(ds.labels[wrong[0]])
        output = float(head.scores(ds.labels, ds.labels)[wrong[0]])
        raise reject(
            "loss",
            "decreasing at the output of a label that is selected outright (C Assumption 1)",
            f"{type(loss).__name__} with slope {slope[wrong[0]]:.4g} at output {output:.4g} of label {y}",
        )
    if isinstance(loss, LogLoss):
        return
    lowest = np.minimum.reduceat(head.scores(owner, ds.tokens), ds.offsets[:-1])
    outputs = np.linspace(lowest, head.scores(ds.labels, ds.labels), _GRID)  # no output of a label leaves this interval
    rising = scalar_of(loss, outputs)[1] > 0.0
    if rising.any():
        raise reject(
            "loss",
            "decreasing on every output that a label can have (C Assumption 1)",
            f"{type(loss).__name__}, which increases at {outputs[rising][0]:.4g}",
        )


def _inside(risk: SplitRisk, W: FloatArray) -> FloatArray:
    """The coordinates (n_cyclic,) of a matrix in S_cyc."""
    c = risk.coordinates(W)[: risk.n_cyclic]
    rest = float(np.linalg.norm(W - np.einsum("rde,r->de", risk.basis[: risk.n_cyclic], c)))
    if rest > 1e-8 * float(np.linalg.norm(W)):
        raise reject(
            "cyclic_part", "a matrix in S_cyc", f"one whose part outside has norm {rest:.4g}", "Project it first."
        )
    return c


def _increasing(radii: Any) -> FloatArray:
    limits = real_array(radii if n_axes(radii) else [radii], "radii", ("n_radii",))
    if len(limits) == 0 or limits[0] <= 0.0 or np.any(np.diff(limits) <= 0.0):
        wrong = limits[limits <= 0.0]
        got = f"{wrong[0]:g}" if len(wrong) else "none" if len(limits) == 0 else "radii that do not increase"
        raise reject("radii", "positive numbers, each larger than the one before", got)
    if not 1.0 / _FARTHEST <= limits[0] <= limits[-1] <= _FARTHEST:
        expected = f"between {1.0 / _FARTHEST:g} and {_FARTHEST:g}, so that their squares are numbers"
        raise reject("radii", expected, f"{limits[0]:g} to {limits[-1]:g}")
    return limits
