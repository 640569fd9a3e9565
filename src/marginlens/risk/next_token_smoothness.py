"""How smooth the next-token risk is under the log-loss and C Eᵀ = I, which bounds the steps that the theorems allow."""

from __future__ import annotations

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.directions import length
from marginlens.papers import implements
from marginlens.risk.reduced_sequences import reduce_sequences


@implements("C", "Eq. (23)", "Lemma 5")
def nexttoken_smoothness(ds: SequenceDataset) -> float:
    r"""The paper's Lipschitz constant of ∇L; gradient descent with steps up to 1/L never increases the risk (Lemma 5).

    .. math:: \|\nabla L(W) - \nabla L(\dot W)\|_F \le L \|W - \dot W\|_F, \qquad L = 2 \sqrt{T_{\max}}\, \|E\|^4

    Here ‖E‖ is the spectral norm. The paper bounds ‖X_i‖ by ‖E‖, which repeated tokens break; the constant holds for them too, because it
    is never below `sharp_smoothness(ds)`, which counts a repeated token once.
    """
    ds = as_sequences(ds)
    with np.errstate(over="ignore"):
        return float(2.0 * np.sqrt(ds.lengths.max()) * np.linalg.norm(ds.E, 2) ** 4)


def sharp_smoothness(ds: SequenceDataset) -> float:
    r"""A Lipschitz constant of ∇L from the spread of each sequence's own tokens.

    .. math:: L = \frac{1}{4n} \sum_{i=1}^n \max_{t, u} \|x_{it} - x_{iu}\|^2\, \|\bar x_i\|^2

    The curvature of a sample along D is the variance of :math:`x_{it}^\top D \bar x_i` under its attention, and a variance is at most a
    quarter of the squared range. A sample of two different tokens attains it.
    """
    reduced = reduce_sequences(as_sequences(ds))
    E, total = reduced.E, np.float64(0.0)
    sizes = length(E)
    for i, share in enumerate(reduced.share):
        rows = E[reduced.tokens[reduced.offsets[i] : reduced.offsets[i + 1]]]
        with np.errstate(over="ignore"):
            reach = length(rows[:, None] - rows[None]).max() * sizes[reduced.queries[reduced.column[i]]]
            total += share * reach**2
    return 0.25 * float(total)
