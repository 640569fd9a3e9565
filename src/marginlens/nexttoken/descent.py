"""Gradient descent on the key-query weights W of next-token prediction: exact iterates of GD and NGD, for one dataset or hundreds."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.generators import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.directions import length
from marginlens.dynamics.gradient import ScaledVector
from marginlens.dynamics.risk import ExcessRisk
from marginlens.dynamics.steps import NormalizedStep, Record, StepRule, as_step, steps_to_save
from marginlens.dynamics.stepwise import descend_stepwise
from marginlens.dynamics.trajectory import ENDINGS, Saved, Trajectory, single
from marginlens.errors import n_axes, real_array, whole_number
from marginlens.nexttoken.batch import SequenceBatch, as_batch
from marginlens.nexttoken.heads import Head, as_heads
from marginlens.nexttoken.kernel import descend_problems
from marginlens.nexttoken.losses import LogLoss, NextTokenLoss, as_nexttoken_loss
from marginlens.nexttoken.model import check_excess, excess_of, gradient_of, loss_code, needs_whole_heads, risk_of
from marginlens.papers import implements
from marginlens.threads import over_problems

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
    Returns:
        A `Trajectory` with `final` W (…, d_model, d_model), `attention` (…, n_samples, n_tokens), zero where there is no token, and
        `selected` positions (…, n_samples), -1 where a smaller dataset of a batch has no sample. A run with the log-loss ends where
        a head makes c_yᵀ f nonpositive. Check it against theory with `correlation(run.final, graph_svm(...).x, axes=2)`.
    """
    datasets, loss, step = as_batch(ds), as_nexttoken_loss(loss), as_step(step)
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    save = steps_to_save(record, n_steps, "W")
    if record is not None and "excess_risk" in record.keep:
        check_excess(loss)
    heads, batch = as_heads(datasets, head), SequenceBatch.of(datasets)
    first = _start(start, batch)
    steps = np.append(save, n_steps)  # the final iterate rides along as one more saved step
    run = _in_numpy if loss.code < 0 else _compiled
    points, ends, logits = run(batch, heads, loss, step, first, steps)
    final = points[:, -1]
    attention = batch.attention(logits)
    trajectory = Trajectory(
        final=final,
        attention=attention,
        selected=batch.selected(attention),
        norm=length(final.reshape(len(batch), -1)),
        status=np.array(ENDINGS, dtype=object)[ends[:, 0]],
        steps_taken=ends[:, 1],
        saved=Saved(save, {} if record is None else _kept(batch, points[:, :-1], record, (heads, loss))),
    )
    return trajectory if isinstance(ds, list | tuple) else single(trajectory)


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


Outcome = tuple[
    FloatArray, IntArray, FloatArray
]  # W at the saved steps, (reason, steps taken), logits of all pairs at the end


def _compiled(
    batch: SequenceBatch,
    heads: tuple[Head, ...],
    loss: NextTokenLoss,
    step: StepRule,
    start: FloatArray,
    steps: IntArray,
) -> Outcome:
    points = np.empty((len(batch), len(steps), batch.d_model, batch.d_model))
    ends, logits = np.zeros((len(batch), 2), dtype=np.int64), np.empty(len(batch.keys))
    rule = (isinstance(step, NormalizedStep), float(step.size), loss_code(loss, heads), int(steps[-1]))
    problems = batch.packed(heads, needs_whole_heads(loss))
    over_problems(descend_problems, len(batch), problems, start, rule, steps, (points, ends, logits))
    return points, ends, logits


def _in_numpy(
    batch: SequenceBatch,
    heads: tuple[Head, ...],
    loss: NextTokenLoss,
    step: StepRule,
    start: FloatArray,
    steps: IntArray,
) -> Outcome:
    d = batch.d_model
    points, ends = np.empty((len(batch), len(steps), d, d)), np.zeros((len(batch), 2), dtype=np.int64)
    for b, ds in enumerate(batch.datasets):
        alone = SequenceBatch.of((ds,))

        def gradient(W: FloatArray, alone: SequenceBatch = alone, head: Head = heads[b]) -> ScaledVector:
            found = gradient_of(alone, W.reshape(1, d, d), head, loss)
            return ScaledVector(found.matrix.reshape(1, -1), np.array([found.log_scale]))

        flat, reason, taken = descend_stepwise(gradient, start[b].reshape(1, -1), step, int(steps[-1]), steps)
        points[b], ends[b] = flat.reshape(len(steps), d, d), (reason[0], taken[0])
    return points, ends, batch.pair_logits(points[:, -1])


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
