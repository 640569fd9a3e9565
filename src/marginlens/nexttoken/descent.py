"""Gradient descent on the key-query weights W of next-token prediction: exact iterates of GD and NGD, for one dataset or hundreds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from marginlens.data.generators import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length
from marginlens.dynamics.kernels.next_token_descent import descend_problems, moves_in_weights
from marginlens.dynamics.steps import NormalizedStep, Record, StepRule, as_step, steps_to_save
from marginlens.dynamics.stepwise import descend_stepwise
from marginlens.dynamics.trajectory import ENDINGS, Saved, Trajectory
from marginlens.errors import n_axes, real_array, whole_number
from marginlens.losses.next_token import LogLoss, NextTokenLoss, as_nexttoken_loss
from marginlens.papers import implements
from marginlens.risk.attention import ExcessRisk
from marginlens.risk.attention_gradient import ScaledVector
from marginlens.risk.next_token import check_excess, excess_of, gradient_of, loss_code, needs_whole_heads, risk_of
from marginlens.risk.next_token_heads import Head, as_heads
from marginlens.risk.sequence_batch import SequenceBatch, as_batch
from marginlens.threads import ProgressCallback, Work, as_progress, in_slices

_AT_ONCE = 2_000_000  # logits that are held at a time when risks along a run are kept


@implements("C", "Algo-GD")
def descend_nexttoken(
    ds: SequenceDataset | list[SequenceDataset],
    *,
    head: Any = None,
    loss: NextTokenLoss = LogLoss(),  # noqa: B008
    step: StepRule = NormalizedStep(0.01),  # noqa: B008
    n_steps: int = 4000,
    start: Any = None,
    record: Record | None = None,
    progress: ProgressCallback | None = None,
) -> Trajectory:
    r"""Train the key-query weights W by gradient descent, plain or normalised, with gradients that are exact at any norm.

    .. math:: W(\tau+1) = W(\tau) - \eta\, \nabla L(W(\tau)), \quad
        L(W) = \frac1n \sum_{i=1}^n \ell\big(y_i,\, C X_i^\top \mathbb S(X_i W \bar x_i)\big)

    Args:
        ds: a dataset, or a list of datasets of one width d_model as a batch; sizes, lengths and vocabularies may differ.
        head: None for C Eᵀ = I (Assumption 4), which needs no C; or C of shape (n_vocabulary, d_model); or a list with one per dataset.
        loss: `LogLoss()`, `SquaredLoss()`, `CrossEntropy()`, `SquaredProbability()`; losses of your own run in NumPy, slower.
        step: `NormalizedStep(size)` or `ConstantStep(size)`.
        start: W(0) of shape (d_model, d_model) or (batch, d_model, d_model); zero by default. `random_start` gives random ones.
        record: what to keep along the way; nothing by default. The iterates are kept as "W"; "excess_risk" is that over
            :math:`L_\star = \frac1n \sum_i \ell(c_{y_i}^\top e_{y_i})`.
        progress: called as `progress(done, total)` several times a second, in steps of all datasets together. What it raises ends
            the descent, as Ctrl-C does.
    Returns:
        A `Trajectory` with `final` W (…, d_model, d_model), `attention` (…, n_samples, n_tokens), zero where there is no token, and
        `selected` positions (…, n_samples), -1 where a smaller dataset of a batch has no sample; `run.resume(n_steps)` takes further
        steps. A run with the log-loss ends where a head makes c_yᵀ f nonpositive. Check it against theory with
        `correlation(run.final, graph_svm(...).x, axes=2)`.
    """
    datasets, loss, step = as_batch(ds), as_nexttoken_loss(loss), as_step(step)
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    steps_to_save(record, n_steps, "W")  # refuses what cannot be kept
    as_progress(progress)
    if record is not None and "excess_risk" in record.keep:
        check_excess(loss)
    heads, batch = as_heads(datasets, head), SequenceBatch.of(datasets)
    first = _start(start, batch)
    begin = CarriedState.compiled(batch) if loss.code >= 0 else CarriedState.in_numpy(first)
    several = isinstance(ds, list | tuple)
    return NextTokenDescent(batch, heads, loss, step, first, begin, several).resume(n_steps, record, progress)


def random_start(ds: SequenceDataset | list[SequenceDataset], rng: Any) -> FloatArray:
    r"""W(0) with entries uniform in ±1/√d, as the authors' code of C starts; (d_model, d_model), or one for each of a list of datasets.

    Args:
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    """
    datasets, generator = as_batch(ds), as_generator(rng)
    d = datasets[0].d_model
    W = generator.uniform(-1.0, 1.0, size=(len(datasets), d, d)) / np.sqrt(d)
    return W if isinstance(ds, list | tuple) else W[0]


def _start(start: Any, batch: SequenceBatch) -> FloatArray:
    shape = (len(batch), batch.d_model, batch.d_model)
    if start is None:
        return np.zeros(shape)
    axes = shape if n_axes(start) == 3 else shape[1:]
    return np.array(np.broadcast_to(real_array(start, "start", axes), shape), order="C")


@dataclass(frozen=True)
class CarriedState:
    """Where a batch of descents stands, with all that the next step depends on.

    Attributes:
        states: W, or its coefficients over the pairs that occur, of all problems one after the other. places: where each begins.
        logits: of all pairs. scales: (batch,) logarithms of the last weights' scales; neither is used in NumPy.
        ends: (batch, 2) how each run ended and after how many steps. n_steps: how many have been asked for.
    """

    states: FloatArray
    places: IntArray
    logits: FloatArray
    scales: FloatArray
    ends: IntArray
    n_steps: int = 0

    @classmethod
    def compiled(cls, batch: SequenceBatch) -> CarriedState:
        """Before the first compiled step, which fills it."""
        d, sizes = batch.d_model, np.diff(batch.parts[:, :2], axis=0).tolist()  # pairs and queries of each problem
        widths = [d * d if moves_in_weights(pairs, queries, d) else pairs for pairs, queries in sizes]
        places = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        return cls(np.empty(places[-1]), places, np.empty(len(batch.keys)), np.zeros(len(batch)), _no_ends(len(batch)))

    @classmethod
    def in_numpy(cls, start: FloatArray) -> CarriedState:
        """Before the first step in NumPy."""
        nothing = np.empty(0)
        return cls(start, np.empty(0, dtype=np.int64), nothing, nothing, _no_ends(len(start)))

    def copy(self, n_steps: int) -> CarriedState:
        """The same in arrays of its own, to be advanced to `n_steps`."""
        states, logits, scales = self.states.copy(), self.logits.copy(), self.scales.copy()
        return CarriedState(states, self.places, logits, scales, self.ends.copy(), n_steps)


def _no_ends(count: int) -> IntArray:
    return np.zeros((count, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class NextTokenDescent:
    """A descent that can go on: its problems, its rule and where it stands."""

    batch: SequenceBatch
    heads: tuple[Head, ...]
    loss: NextTokenLoss
    step: StepRule
    start: FloatArray
    carried: CarriedState
    several: bool

    def resume(self, n_steps: int, record: Record | None, progress: ProgressCallback | None) -> Trajectory:
        """The trajectory after `n_steps` more; steps are counted from the first start on, and those before are not kept again."""
        batch, begin = self.batch, self.carried.n_steps
        end = begin + n_steps
        save = steps_to_save(record, end, "W")
        save = save[save > begin] if begin else save
        steps, carried = (
            np.append(save, end),
            self.carried.copy(end),
        )  # the final iterate rides along as one more saved step
        advance = self._in_numpy if self.loss.code < 0 else self._compiled
        points, logits = advance(carried, begin, steps, progress)
        final, attention = points[:, -1], batch.attention(logits)
        trajectory = Trajectory(
            final=final,
            attention=attention,
            selected=batch.selected(attention),
            norm=length(final.reshape(len(batch), -1)),
            status=np.array(ENDINGS, dtype=object)[carried.ends[:, 0]],
            steps_taken=carried.ends[:, 1].copy(),
            saved=Saved(save, {} if record is None else _kept(batch, points[:, :-1], record, (self.heads, self.loss))),
        )
        trajectory = trajectory if self.several else trajectory[0]
        return replace(trajectory, continuation=replace(self, carried=carried))

    def _compiled(
        self, carried: CarriedState, begin: int, steps: IntArray, progress: ProgressCallback | None
    ) -> tuple[FloatArray, FloatArray]:
        """W at the saved steps (batch, n_saved, d, d), and the logits of all pairs at the end."""
        batch, n_steps, d = self.batch, carried.n_steps, self.batch.d_model
        points = np.empty((len(batch), len(steps), d, d))
        code = loss_code(self.loss, self.heads, batch)
        rule = (isinstance(self.step, NormalizedStep), float(self.step.size), code, n_steps)
        problems = batch.packed(self.heads, needs_whole_heads(self.loss))
        sizes = np.diff(batch.parts[:, :2], axis=0).tolist()
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, n_steps - begin)
            size = 0 if whole or moves_in_weights(sizes[first][0], sizes[first][1], d) else sizes[first][0]
            gram = grams.setdefault(first, (np.empty((size, size)), np.zeros(1, dtype=np.int64)))
            state = (carried.states, carried.places, carried.logits, carried.scales, carried.ends, *gram)
            descend_problems(first, last, problems, self.start, (*rule, begin + high), steps, state, points)
            if high == n_steps - begin:
                del grams[first]

        pairs = max(m for m, _ in sizes)
        queries = max(q for _, q in sizes)
        product = 2.0 * d * (pairs + queries * d) if moves_in_weights(pairs, queries, d) else float(pairs * pairs)
        cost = 2.0 * product + 20.0 * len(batch.reduced.tokens) / len(batch)
        in_slices(advance, Work(len(batch), n_steps - begin, cost), progress)
        return points, carried.logits

    def _in_numpy(
        self, carried: CarriedState, begin: int, steps: IntArray, progress: ProgressCallback | None
    ) -> tuple[FloatArray, FloatArray]:
        batch, d, n_steps = self.batch, self.batch.d_model, carried.n_steps
        points = np.empty((len(batch), len(steps), d, d))
        for b, ds in enumerate(batch.datasets):
            only = SequenceBatch.of((ds,))

            def gradient(W: FloatArray, only: SequenceBatch = only, head: Head = self.heads[b]) -> ScaledVector:
                found = gradient_of(only, W.reshape(1, d, d), head, self.loss)
                return ScaledVector(found.matrix.reshape(1, -1), np.array([found.log_scale]))

            def report(done: int, total: int, before: int = b) -> None:
                if progress is not None:
                    progress(before * total + done, len(batch) * total)

            begun = (carried.states[b].reshape(1, -1), carried.ends[b : b + 1])
            flat, reason, taken = descend_stepwise(gradient, begun, self.step, (begin, n_steps), steps, report)
            points[b], carried.ends[b] = flat.reshape(len(steps), d, d), (reason[0], taken[0])
            carried.states[b] = points[b, -1]
        return points, batch.pair_logits(points[:, -1])


def _kept(batch: SequenceBatch, points: FloatArray, record: Record, scoring: Any) -> dict[str, Any]:
    """Every asked-for quantity at every saved iterate, (batch, n_saved, …)."""
    heads, loss = scoring
    runs = [(ds, head, _some(W, ds)) for ds, head, W in zip(batch.datasets, heads, points, strict=True)]
    kept: dict[str, Any] = {}
    for name in record.keep:
        if name in ("p", "W"):
            kept["W"] = points
        elif name == "norm":
            kept[name] = length(points.reshape(*points.shape[:2], -1))
        elif name in ("attention", "selected"):
            attention = [batch.attention(batch.pair_logits(points[:, k])) for k in range(points.shape[1])]
            chosen = attention if name == "attention" else [batch.selected(one) for one in attention]
            kept[name] = np.stack(chosen, axis=1) if chosen else np.empty((len(batch), 0))
        elif name == "risk":
            kept[name] = np.stack([np.concatenate([risk_of(ds, W, head, loss) for W in Ws]) for ds, head, Ws in runs])
        else:
            found = [[excess_of(ds, W, head, loss) for W in Ws] for ds, head, Ws in runs]
            sign, log = (
                np.stack([np.concatenate([getattr(e, part) for e in row]) for row in found]) for part in ("sign", "log")
            )
            kept[name] = ExcessRisk(sign, log)
    return kept


def _some(points: FloatArray, ds: SequenceDataset) -> list[FloatArray]:
    """The iterates (n_saved, d, d) in groups whose logits fit into memory together."""
    size = max(1, _AT_ONCE // len(ds.tokens))
    return [points[k : k + size] for k in range(0, max(len(points), 1), size)]
