"""The first step of gradient descent on all embeddings: where it leads, and what is left besides α_s v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.data.tokens import FloatArray
from marginlens.embeddings.one_layer import loss_and_gradients
from marginlens.embeddings.parameters import Parameters, as_parameters
from marginlens.errors import positive_number, reject
from marginlens.papers import implements


@dataclass(frozen=True, repr=False, eq=False)
class FirstStep:
    r"""One step of descent from the initialisation, :math:`E^1_s = E^0_s + \frac{\eta_0}{2}\alpha_s v + err_s,\ p^1 = p^0 + err_p`.

    Attributes:
        data: the sequences. start, after: the parameters before and after; v stays. rate: η₀.
        alpha: (n_vocabulary,) α_s; where lengths differ the mean of y_i times the share of s in sequence i, see `mean_signed_share`.
        error_E: (n_vocabulary, d_model) err_s. error_p: (d_model,) err_p.
        loss_before: L at the start.
    """

    data: LabelledSequences
    start: Parameters
    after: Parameters
    rate: float
    alpha: FloatArray
    error_E: FloatArray
    error_p: FloatArray
    loss_before: float

    @property
    def errors(self) -> FloatArray:
        """(n_vocabulary + 1,) ‖err_s‖ of every token, then ‖err_p‖."""
        return np.append(np.sqrt(np.einsum("sd,sd->s", self.error_E, self.error_E)), np.linalg.norm(self.error_p))

    @property
    def loss_after(self) -> float:
        """L(E¹, p¹)."""
        return loss_and_gradients(self.after.E, self.after.p, self.after.v, self.data)[0]

    def __repr__(self) -> str:
        size = f"{len(self.alpha)} tokens, d={len(self.error_p)}"
        return f"FirstStep({size}, rate={self.rate:g}, largest error {self.errors.max():.4g})"


@implements("B", "Eq. (4)", "Eq. (5)", "Lemma 2")
def first_step(start: Parameters, rate: float, sequences: Any, y: Any = None) -> FirstStep:
    r"""One step of gradient descent on E and p, and its parts.

    .. math:: E^1_s = E^0_s - \eta_0 \nabla_{E_s} L(E^0, p^0) = E^0_s + \frac{\eta_0}{2} \alpha_s v + err_s,\quad
        p^1 = p^0 - \eta_0 \nabla_p L(E^0, p^0) = p^0 + err_p

    Args:
        start: E⁰ (n_vocabulary, d_model), p⁰ and v (d_model,), as `initial_parameters` draws them. rate: η₀ > 0.
        sequences, y: labelled sequences, or token-id lists and their labels.
    Returns:
        A `FirstStep` in float64; `first_step_errors`, `first_step_norms` and `first_step_loss` hold it against the lemmas.
    """
    as_parameters(start, "start")
    eta, data = positive_number(rate, "rate"), as_labelled(sequences, y)
    loss, slopes = loss_and_gradients(start.E, start.p, start.v, data)
    v = np.asarray(start.v, dtype=np.float64)
    after = Parameters(start.E - eta * slopes.E, start.p - eta * slopes.p, v)
    alpha = np.zeros(len(after.E))
    alpha[: data.n_vocabulary] = mean_signed_share(data)
    error_E = -eta * (slopes.E + 0.5 * np.outer(alpha, v))
    return FirstStep(data, start, after, eta, alpha, error_E, -eta * slopes.p, loss)


def as_first_step(step: Any) -> FirstStep:
    """`step` if it is a first step, else the sentence that says what is expected."""
    if not isinstance(step, FirstStep):
        raise reject("step", "a FirstStep, as first_step gives it", type(step).__name__)
    return step


def mean_signed_share(sequences: Any, y: Any = None) -> FloatArray:
    r"""(n_vocabulary,) how the first step weighs a token: the mean over sequences of its share in them, signed by the label.

    .. math:: \frac1n \sum_i \frac{y_i}{T_i} \sum_{t=1}^{T_i} 1_{x_{it} = s}

    Where all sequences are of one length it is α_s of Eq. (3); otherwise `token_statistics` weighs positions alike and this sequences.
    """
    data = as_labelled(sequences, y)
    weights = np.repeat(data.y / data.lengths, data.lengths)
    return np.bincount(data.tokens, weights=weights, minlength=data.n_vocabulary) / len(data)
