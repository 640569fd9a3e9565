"""Check of a loss against the assumption of paper C's theorems, on the outputs that a dataset and a head can produce."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, as_nexttoken_loss, scalar_of
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.next_token_heads import as_head
from marginlens.typing import ArrayLike, FloatArray
from marginlens.words import Fact

# Chebyshev points inside the range of outputs, denser towards its ends.
_NODES = 2049
# Points at so many halvings of the range from either end.
_HALVINGS = 50


@dataclass(frozen=True, repr=False)
class LossCheck(Described):
    r"""Values and slopes of a loss at finitely many outputs :math:`u = c_y^\top f` of a dataset; `str` of it is a sentence.

    Attributes:
        name: the class of the loss.

        of_the_label: whether it is a function of the label's own output.

        low: the smallest score of a token for the label of its sequence. Outputs lie between `low` and `high`.

        high: the largest score.

        points: number of outputs at which the loss was evaluated.

        is_decreasing: whether its value falls, and no slope is positive, at all outputs with a finite loss.

        smallest_slope: the smallest `|ℓ'|` there; nan for a loss of all outputs.

        largest_slope: the largest `|ℓ'|` there; nan for a loss of all outputs.

        finite_at_low: whether the loss is finite at `low`; if not, slopes are bounded only where the risk is.
    """

    name: str
    of_the_label: bool
    low: float
    high: float
    points: int
    is_decreasing: bool
    smallest_slope: float
    largest_slope: float
    finite_at_low: bool
    quantities = (
        "{name}, {holds:holds|fails}, outputs={low:.4g} … {high:.4g}, slopes={smallest_slope:.4g} … {largest_slope:.4g}"
    )

    @property
    def holds(self) -> bool:
        """True if Assumption 1 holds as the proofs use it: with slopes bounded above and away from zero."""
        return (
            self.of_the_label
            and self.is_decreasing
            and self.smallest_slope > 0.0
            and bool(np.isfinite(self.largest_slope))
        )

    @property
    def fact(self) -> Fact:
        """The reason why the assumption holds or fails."""
        if not self.of_the_label:
            return Fact("loss_check.other_outputs", {"loss": self.name})
        code = "holds" if self.finite_at_low else "holds_where_finite"
        if not self.is_decreasing:
            code = "not_decreasing"
        elif not self.smallest_slope > 0.0:
            code = "zero_slope"
        elif not np.isfinite(self.largest_slope):
            code = "unbounded_slope"
        numbers = {"loss": self.name, "points": self.points, "low": self.low, "high": self.high}
        slopes = {"smallest": self.smallest_slope, "largest": self.largest_slope}
        return Fact(f"loss_check.{code}", {**numbers, **slopes})

    @property
    def sentence(self) -> str:
        """The fact as a sentence."""
        return str(self.fact)

    def __str__(self) -> str:
        return self.sentence

    def __bool__(self) -> bool:
        return self.holds


@implements("C", "Assumption 1")
def check_loss(data: SequenceDataset, head: ArrayLike | None = None, loss: NextTokenLoss | None = None) -> LossCheck:
    r"""Check that a loss is a strictly decreasing function of the label's own output with a bounded slope, on the outputs of a dataset.

    .. math:: \ell(y, v) = \ell(c_y^\top v), \qquad \ell' < 0, \quad c_{dn} \le |\ell'| \le c_{up}
        \quad \text{on } \big[\min_{it} c_{y_i}^\top x_{it},\ \max_{it} c_{y_i}^\top x_{it}\big]

    The assumption requires a strictly decreasing loss with a bounded slope. The proofs divide by the smallest slope, so a slope
    of zero fails the check. A loss that is infinite at an end of the range, such as −log u at 0, passes if its slopes are
    finite wherever the loss is: at other outputs the risk is infinite too. The check evaluates the loss at finitely many
    outputs, so it proves nothing about the outputs between them.

    Args:
        data: the sequences with their labels.

        head: C of shape (n_vocabulary, d_model), or None for C Eᵀ = I.

        loss: the log-loss by default.

    Returns:
        A `LossCheck`, true if the assumption holds.

    Examples:
        >>> import numpy as np
        >>> import marginlens as ml
        >>> from marginlens.nexttoken import CrossEntropy, check_loss
        >>> data = ml.SequenceDataset([[0, 1], [1, 0]], [0, 1], np.eye(2))
        >>> bool(check_loss(data)), bool(check_loss(data, loss=CrossEntropy()))
        (True, False)
    """
    data = as_sequences(data)
    rule = LogLoss() if loss is None else as_nexttoken_loss(loss)
    scores = as_head(data, head).scores(np.repeat(data.labels, data.lengths), data.tokens)
    low, high, name = float(scores.min()), float(scores.max()), type(rule).__name__
    if not isinstance(rule, LabelLoss):
        return LossCheck(name, False, low, high, 0, False, np.nan, np.nan, True)
    u = _outputs(low, high)
    with np.errstate(all="ignore"):
        value, slope, _ = scalar_of(rule, u)
    finite = np.isfinite(value)
    falls = bool(finite[-1] and not np.isnan(value).any() and (slope[finite] <= 0.0).all())
    falls = falls and bool(np.all(np.diff(value[finite]) <= 8.0 * np.finfo(float).eps * np.abs(value[finite][1:])))
    falls = falls and bool(np.all(value[~finite] == np.inf) and np.all(np.diff(finite.astype(int)) >= 0))
    size = np.abs(slope[finite]) if finite.any() else np.array([np.nan])
    return LossCheck(name, True, low, high, len(u), falls, float(size.min()), float(size.max()), bool(finite[0]))


def _outputs(low: float, high: float) -> FloatArray:
    """Choose the outputs at which a loss is evaluated: its range with both ends, increasing."""
    if low == high:
        return np.array([low])
    inner = 0.5 * (1.0 - np.cos(np.linspace(0.0, np.pi, _NODES)))
    ends = 0.5 ** np.arange(1.0, _HALVINGS + 1.0)
    shares = np.unique(np.concatenate([inner, ends, 1.0 - ends]))
    return np.unique(np.concatenate([[low, high], np.clip(low + (high - low) * shares, low, high)]))
