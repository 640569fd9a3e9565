"""Whether a loss is of the kind that paper C's theorems ask for, on the outputs that a dataset and a head can produce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.data.sequences import SequenceDataset, as_sequences
from marginlens.losses.next_token import LabelLoss, LogLoss, NextTokenLoss, as_nexttoken_loss, scalar_of
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.next_token_heads import as_head
from marginlens.typing import FloatArray

_NODES = 2049  # points inside the range at which the loss is looked at, denser towards its ends
_HALVINGS = 50  # and points at so many halvings of the range from either end


@dataclass(frozen=True, repr=False)
class LossCheck(Described):
    r"""What a loss does on the outputs :math:`u = c_y^\top f` of a dataset, at finitely many of them.

    Attributes:
        name: the class of the loss.
        of_the_label: whether it is a function of the label's own output.
        low, high: the smallest and largest score of a token for the label of its sequence; outputs lie between them.
        points: at how many outputs the loss was evaluated.
        is_decreasing: whether its value falls, and no slope is positive, at all of them where it is finite.
        smallest_slope, largest_slope: of `|ℓ'|` there. nan for a loss of all outputs.
        finite_at_low: whether the loss is finite at `low`; if not, slopes are bounded wherever the risk is, and nowhere else.
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
    quantities = "{name}, {holds:holds|fails}, outputs {low:.4g} … {high:.4g}, slopes from {smallest_slope:.4g} to {largest_slope:.4g}"

    @property
    def holds(self) -> bool:
        """Whether Assumption 1 holds as the proofs use it: with slopes bounded from above and away from zero."""
        return (
            self.of_the_label
            and self.is_decreasing
            and self.smallest_slope > 0.0
            and bool(np.isfinite(self.largest_slope))
        )

    @property
    def sentence(self) -> str:
        """What was found."""
        if not self.of_the_label:
            return f"{self.name} depends on the outputs of other tokens, not on the label's alone"
        outputs = f"{self.name}, looked at {self.points:,} outputs from {self.low:.4g} to {self.high:.4g}"
        if not self.is_decreasing:
            return f"{outputs}: it does not fall strictly everywhere"
        if not self.smallest_slope > 0.0:
            return f"{outputs}: its slope vanishes, by which the proofs divide"
        if not np.isfinite(self.largest_slope):
            return f"{outputs}: its slope is not bounded"
        if not self.finite_at_low:
            return f"{outputs}: it falls strictly, with slopes of at least {self.smallest_slope:.4g} that are bounded wherever the risk is"
        return f"{outputs}: it falls strictly, with slopes from {self.smallest_slope:.4g} to {self.largest_slope:.4g}"

    def __bool__(self) -> bool:
        return self.holds


@implements("C", "Assumption 1")
def check_loss(data: SequenceDataset, head: Any = None, loss: NextTokenLoss | None = None) -> LossCheck:
    r"""Whether a loss is a strictly decreasing function of the label's own output with a bounded slope, on the outputs of a dataset.

    .. math:: \ell(y, v) = \ell(c_y^\top v), \qquad \ell' < 0, \quad c_{dn} \le |\ell'| \le c_{up}
        \quad \text{on } \big[\min_{it} c_{y_i}^\top x_{it},\ \max_{it} c_{y_i}^\top x_{it}\big]

    The assumption asks for a strictly decreasing loss with a bounded slope; its proofs divide by the smallest slope, so a slope of zero
    fails the check. A loss that is infinite at an end of the range, such as −log u at 0, passes when its slopes are finite wherever it
    is: the risk is infinite at the others. The check evaluates the loss at finitely many outputs and is no proof for one that it does
    not know.

    Args:
        head: C of shape (n_vocabulary, d_model), or None for C Eᵀ = I.
        loss: the log-loss by default.
    Returns:
        A `LossCheck`, true where the assumption holds.
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
    """The outputs at which a loss is looked at: its range with both ends, increasing."""
    if low == high:
        return np.array([low])
    inner = 0.5 * (1.0 - np.cos(np.linspace(0.0, np.pi, _NODES)))
    ends = 0.5 ** np.arange(1.0, _HALVINGS + 1.0)
    shares = np.unique(np.concatenate([inner, ends, 1.0 - ends]))
    return np.unique(np.concatenate([[low, high], np.clip(low + (high - low) * shares, low, high)]))
