"""The first step of gradient descent on all embeddings, and the flow along p after it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled, embedding_tokens
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.flow import UntilLength, UntilNorm, flow
from marginlens.dynamics.record import Record, Saved
from marginlens.dynamics.trajectory import Trajectory
from marginlens.embeddings.models import Parameters, as_parameters, loss_and_gradients
from marginlens.errors import InputError, positive_number
from marginlens.papers import implements
from marginlens.result import Result, Tabular
from marginlens.typing import ArrayLike, FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class FirstStep(Result, Tabular):
    r"""One step of descent from the initialisation, :math:`E^1_s = E^0_s + \frac{\eta_0}{2}\alpha_s v + err_s,\ p^1 = p^0 + err_p`.

    Attributes:
        data: the sequences.

        start: the parameters before the step.

        after: the parameters after the step, with the same v.

        rate: η₀.

        alpha: (n_vocabulary,) α_s; if lengths differ, the mean of y_i times the share of s in sequence i (see
            `mean_signed_share`).

        error_E: (n_vocabulary, d_model) err_s.

        error_p: (d_model,) err_p.

        loss_before: the loss at the start.

    `to_frame()` has one row per token: token, alpha, step (the length of its step along v), error (‖err_s‖).
    """

    data: LabelledSequences = field(repr=False)
    start: Parameters = field(repr=False)
    after: Parameters = field(repr=False)
    rate: float
    alpha: FloatArray
    error_E: FloatArray
    error_p: FloatArray
    loss_before: float
    quantities = "{alpha:#} tokens, d={error_p:#}, rate={rate:g}, largest error {errors.max:.4g}"

    @property
    def errors(self) -> FloatArray:
        """The norms ‖err_s‖ of all tokens, then ‖err_p‖, (n_vocabulary + 1,)."""
        return np.append(np.sqrt(np.einsum("sd,sd->s", self.error_E, self.error_E)), np.linalg.norm(self.error_p))

    @property
    def loss_after(self) -> float:
        """The loss after the step, L(E¹, p¹)."""
        return loss_and_gradients(self.after, self.data)[0]

    def _columns(self) -> dict[str, Any]:
        step = 0.5 * self.rate * np.abs(self.alpha) * np.linalg.norm(self.after.v)
        return {"token": np.arange(len(step)), "alpha": self.alpha, "step": step, "error": self.errors[:-1]}


@implements("B", "Eq. (4)", "Eq. (5)", "Lemma 2")
def first_step(
    start: Parameters, rate: float, sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None
) -> FirstStep:
    r"""Take one step of gradient descent on E and p, and return its parts.

    .. math:: E^1_s = E^0_s - \eta_0 \nabla_{E_s} L(E^0, p^0) = E^0_s + \frac{\eta_0}{2} \alpha_s v + err_s,\quad
        p^1 = p^0 - \eta_0 \nabla_p L(E^0, p^0) = p^0 + err_p

    Args:
        start: E⁰ (n_vocabulary, d_model), p⁰ and v (d_model,), as `initial_parameters` draws them.

        rate: η₀ > 0.

        sequences: labelled sequences, or token-id lists.

        y: (n_samples,) the labels of token-id lists; must be left out for labelled sequences.

    Returns:
        A `FirstStep` in float64; `marginlens_papers.claims.b.first_step_bounds` compares it with the lemmas.
    """
    as_parameters(start, "start")
    eta, data = positive_number(rate, "rate"), as_labelled(sequences, y)
    loss, slopes = loss_and_gradients(start, data)
    v = np.asarray(start.v, dtype=np.float64)
    after = Parameters(start.E - eta * slopes.E, start.p - eta * slopes.p, v)
    alpha = np.zeros(len(after.E))
    alpha[: data.n_vocabulary] = mean_signed_share(data)
    error_E = -eta * (slopes.E + 0.5 * np.outer(alpha, v))
    return FirstStep(data, start, after, eta, alpha, error_E, -eta * slopes.p, loss)


def as_first_step(step: object) -> FirstStep:
    """Return `step` if it is a first step, otherwise raise."""
    if not isinstance(step, FirstStep):
        raise InputError("step", "a FirstStep, as first_step gives it", type(step).__name__)
    return step


def mean_signed_share(sequences: LabelledSequences | Iterable[ArrayLike], y: ArrayLike | None = None) -> FloatArray:
    r"""Compute the weight of each token in the first step, (n_vocabulary,): the mean over sequences of its share, signed by the label.

    .. math:: \frac1n \sum_i \frac{y_i}{T_i} \sum_{t=1}^{T_i} 1_{x_{it} = s}

    If all sequences have the same length, it is α_s of Eq. (3). Otherwise `token_statistics` gives all positions equal weight,
    and this function gives all sequences equal weight.
    """
    data = as_labelled(sequences, y)
    weights = np.repeat(data.y / data.lengths, data.lengths)
    return np.bincount(data.tokens, weights=weights, minlength=data.n_vocabulary) / len(data)


def log_of_pairs(n_vocabulary: int, delta: Any) -> float:
    r"""Return :math:`2 \log(|S|^2/\delta)`, which all statements about the initialisation share."""
    try:
        chance = float(delta)
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise InputError("delta", "a probability between 0 and 1", repr(delta)[:60]) from problem
    if not 0.0 < chance < 1.0:
        raise InputError("delta", "a probability between 0 and 1", delta)
    return 2.0 * (2.0 * math.log(n_vocabulary) - math.log(chance))


@implements("B", "Eq. (7)")
def embedding_flow(
    model: Parameters,
    sequences: LabelledSequences | Iterable[ArrayLike],
    y: ArrayLike | None = None,
    *,
    until: UntilNorm | UntilLength = UntilNorm(500.0),
    record: Record | None = None,
    tolerance: float = 1e-7,
) -> Trajectory:
    r"""Follow :math:`\dot p_t = -\nabla_p L(E, p_t)` from p, by arc length, with E and v fixed.

    The flow depends on E, p and v only through their inner products, so it is followed with as many coordinates as there are
    tokens.

    Args:
        model: E (n_vocabulary, d_model), p and v (d_model,), such as `first_step(...).after`.

        sequences: labelled sequences, or token-id lists.

        y: (n_samples,) the labels of token-id lists; must be left out for labelled sequences.

        until: as in `flow`.

        record: as in `flow`.

        tolerance: as in `flow`.

    Returns:
        The same `Trajectory` as `flow(embedding_tokens(E, sequences, y), v, start=p)`, up to rounding.
    """
    span = in_their_span(model, as_labelled(sequences, y))
    run = flow(span.tokens, span.head, start=span.start, until=until, record=record, rtol=tolerance)
    saved = {name: span.point(value) if name == "x" else value for name, value in run.saved.items()}
    return replace(run, final=span.point(run.final), saved=Saved(run.saved.steps, saved))


class Span(NamedTuple):
    """Labelled embeddings, head v and start in the coordinates of an orthonormal `basis` (d_model, r), or in their own if it is None."""

    tokens: TokenDataset
    head: FloatArray
    start: FloatArray
    p: FloatArray
    basis: FloatArray | None

    def point(self, x: FloatArray) -> FloatArray:
        """Return the points (…, d_model) of a flow from p with coordinates x (…, r)."""
        return x if self.basis is None else self.p + (x - self.start) @ self.basis.T


def in_their_span(model: Parameters, data: LabelledSequences) -> Span:
    """Return a model in the span of p, v and the tokens that occur, or in its own coordinates if these are hardly more."""
    E, p, v = vars(as_parameters(model, "model", data.n_vocabulary)).values()
    used = np.unique(data.tokens)
    if 2 * (len(used) + 2) > E.shape[1]:
        return Span(embedding_tokens(E, data), v, p, p, None)
    basis, coordinates = np.linalg.qr(np.concatenate([E[used], p[None], v[None]]).T)  # (d, r), (r, n_used + 2)
    narrow = np.zeros((len(E), len(coordinates)))
    narrow[used] = coordinates[:, : len(used)].T
    return Span(embedding_tokens(narrow, data), coordinates[:, -1], coordinates[:, -2], p, basis)
