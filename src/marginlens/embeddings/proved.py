"""A bound that the paper proves for wide enough embeddings: both of its sides, and the width it asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from marginlens.errors import reject

SMALLEST_WIDTH = 256  # that every lemma about the first step asks for


@dataclass(frozen=True, repr=False)
class ProvedBound:
    """Both sides of an inequality `value <= bound` that a statement promises with probability 1 - δ.

    `width` is d and `log10_width_needed` the decimal logarithm of the d that the statement asks for, 0 where it asks for none and
    infinite where none is enough.
    """

    citation: str
    value: float
    bound: float
    width: int
    log10_width_needed: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the inequality is true here."""
        return self.value <= self.bound

    @property
    def promised(self) -> bool:
        """Whether d is as large as the statement asks for."""
        return math.log10(self.width) >= self.log10_width_needed

    @property
    def looseness(self) -> float:
        """The bound over the value, inf where the value is zero."""
        return self.bound / self.value if self.value else math.inf

    def __repr__(self) -> str:
        needed = f"d={self.width} {'meets' if self.promised else 'is below'} 1e{self.log10_width_needed:.2f}"
        needed = "no d is enough" if math.isinf(self.log10_width_needed) else needed
        sign = "<=" if self.holds else ">"
        return f"ProvedBound({self.citation}: {self.value:.4g} {sign} {self.bound:.4g}, {needed})"


def log_of_pairs(n_vocabulary: int, delta: Any) -> float:
    r"""The :math:`2 \log(|S|^2/\delta)` that all statements about the initialisation share."""
    try:
        chance = float(delta)
    except (TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise reject("delta", "a probability between 0 and 1", repr(delta)[:60]) from problem
    if not 0.0 < chance < 1.0:
        raise reject("delta", "a probability between 0 and 1", delta)
    return 2.0 * (2.0 * math.log(n_vocabulary) - math.log(chance))


def log10_width(n_vocabulary: int, delta: Any, rate: float | None = None) -> float:
    r"""log10 of the width that the lemmas ask for; with a rate η₀ also :math:`(88\eta_0^2 + 111\eta_0 + 2)^8`, as Eq. (10) does."""
    needed = max(math.log10(SMALLEST_WIDTH), 2.0 * math.log10(log_of_pairs(n_vocabulary, delta)))
    return needed if rate is None else max(needed, 8.0 * math.log10(88.0 * rate * rate + 111.0 * rate + 2.0))
