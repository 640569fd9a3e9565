"""Descent on the key-query matrix W, and its correspondence with descent on p."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import length
from marginlens.dynamics.steps import ConstantStep, NormalizedStep, StepRule, as_step
from marginlens.dynamics.stepwise import descend_stepwise
from marginlens.dynamics.trajectory import ENDINGS, Saved, Trajectory
from marginlens.errors import float_array, n_axes, real_array, reject, whole_number
from marginlens.losses.margin import Logistic, Loss, as_loss, slope_of
from marginlens.papers import implements, uses
from marginlens.risk.attention_gradient import ScaledVector, pairwise_gradient
from marginlens.risk.heads import as_head
from marginlens.risk.softmax import logits, softmax

FloatArray = npt.NDArray[np.float64]


@implements("A", "Lemma 1")
def matrix_from_vector(p: Any, u: Any) -> FloatArray:
    r"""The matrix that attends to X with query u exactly as p does.

    .. math:: W = \frac{u\, p^\top}{\|u\|^2}, \qquad W^\top u = p

    Args:
        p: (…, d_model). u: a nonzero query (d_query,).
    Returns:
        (…, d_query, d_model).
    """
    query = _query(u)
    vectors = float_array(p, "p")
    if vectors.ndim == 0:
        raise reject("p", "weights of shape (…, d_model)", f"the number {vectors}")
    size = length(query)
    return (query / size)[:, None] * (vectors / size)[..., None, :]


@implements("A", "Lemma 1", "Eq. (15b)")
@uses(
    "A",
    {
        "Eq. (12c)": "The gradient in W of a nonlinear head, of rank one with the query on the left.",
        "Eq. (13c)": "The gradient in W of a linear head, of rank one with the query on the left.",
        "Eq. (14b)": "The mean of these over inputs, weighted by the slopes of the loss: the step that W takes.",
    },
)
def descend_matrix(
    data: TokenDataset,
    v: Any,
    u: Any,
    *,
    loss: Loss = Logistic(),  # noqa: B008
    step: StepRule = NormalizedStep(1.0),  # noqa: B008
    n_steps: int = 1000,
    start: Any = None,
) -> Trajectory:
    r"""Train W with the query u fixed, by gradient descent in all of W's entries.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(X_i W^\top u))\big)

    Lemma 1: started from `matrix_from_vector(p(0), u)`, W(t) stays `matrix_from_vector(p(t), u)` when p takes steps η on data whose keys
    are the tokens and W takes η/‖u‖² (plain) or η/‖u‖ (normalised); `matching_step` gives that step.

    Args:
        data: the tokens; their keys must be the tokens themselves, because W is what is trained.
        v: a linear or nonlinear head, as for `descend`.
        u: the query (d_query,), not zero.
        start: W(0) of shape (d_query, d_model) or (batch, d_query, d_model); zero by default.
    Returns:
        A `Trajectory` whose `final` is W, (…, d_query, d_model); it keeps nothing along the way.
    """
    loss, step, query = as_loss(loss), as_step(step), _query(u)
    n_steps = whole_number(n_steps, "n_steps", at_least=0)
    if not np.array_equal(as_dataset(data).K, data.X):
        raise reject("data", "a dataset whose keys are its tokens (neither K nor W given)", "one with keys of its own")
    batch = data.as_batch()
    shape = (len(batch), len(query), data.d_model)
    first = np.zeros(shape)
    if start is not None:
        axes: tuple[str | int, ...] = shape if n_axes(start) == 3 else shape[1:]
        first = np.broadcast_to(real_array(start, "start", axes), shape)
    head = as_head(batch, v)

    def gradient(flat: FloatArray) -> ScaledVector:
        W = flat.reshape(shape)
        at, margin = head.attend(logits(batch, np.einsum("bqd,q->bd", W, query)))
        slope = pairwise_gradient(batch.X, at, slope_of(loss, margin))
        return ScaledVector((query[:, None] * slope.vector[:, None, :]).reshape(len(batch), -1), slope.log_scale)

    flat = np.array(first).reshape(len(batch), -1)
    begun = (flat, np.zeros((len(batch), 2), dtype=np.int64))
    points, reason, taken = descend_stepwise(gradient, begun, step, (0, n_steps), np.array([n_steps]))
    W = points[:, -1].reshape(shape)
    p = np.einsum("bqd,q->bd", W, query)
    attention = softmax(batch, p)
    norm, status = length(points[:, -1]), np.array(ENDINGS, dtype=object)[reason]
    nothing = Saved(np.empty(0, dtype=np.int64))
    trajectory = Trajectory(W, attention, np.argmax(attention, axis=-1), norm, status, taken, nothing)
    return trajectory if data.is_batch else trajectory[0]


@implements("A", "Lemma 1")
def matching_step(step: StepRule, u: Any) -> StepRule:
    """The step on W that corresponds to `step` on p for the query u."""
    size = float(length(_query(u)))
    if isinstance(as_step(step), ConstantStep):
        return ConstantStep(step.size / size / size)
    return NormalizedStep(step.size / size)


def _query(u: Any) -> FloatArray:
    query = real_array(u, "u", ("d_query",))
    if not query.any():
        raise reject("u", "a query that is not zero", "the zero vector")
    return query
