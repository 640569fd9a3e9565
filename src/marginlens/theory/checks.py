"""Conditions and conclusion of a theorem on one problem, as facts: `marginlens.words` has the sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marginlens.result import Result, Tabular
from marginlens.words import Fact, render, title


@dataclass(frozen=True, repr=False)
class Check(Result, Tabular):
    """One condition of a theorem on one problem; `str` of it is a sentence.

    `to_frame()` has one row per number: number, value.

    Attributes:
        code: an entry of `words/texts.toml`, such as "condition.strict_optimum".

        holds: whether the condition holds; None if it cannot be decided.

        numbers: the numbers that decide it, and the names that its sentence needs.
    """

    code: str
    holds: bool | None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.holds)

    @property
    def name(self) -> str:
        """The short name of the condition, as tables show it."""
        return title(self.code)

    @property
    def sentence(self) -> str:
        """The condition as a sentence with its numbers."""
        return render(self)

    def __repr__(self) -> str:
        numbers = "".join(
            f", {name}={value:.4g}" for name, value in self.numbers.items() if isinstance(value, int | float)
        )
        return f"Check({self.code}: {_OUTCOMES[self.holds]}{numbers})"

    def __str__(self) -> str:
        return f"{'✓' if self.holds else '?' if self.holds is None else '✗'} {self.name}: {self.sentence}"

    def to_dict(self) -> dict[str, Any]:
        """Return the code, whether it holds, the numbers and the sentence."""
        return {**super().to_dict(), "sentence": self.sentence}

    def _columns(self) -> dict[str, Any]:
        measured = {name: float(value) for name, value in self.numbers.items() if isinstance(value, int | float)}
        return {"number": list(measured), "value": list(measured.values())}


_OUTCOMES = {True: "holds", False: "fails", None: "undecided"}


@dataclass(frozen=True, repr=False)
class TheoremVerdict(Result, Tabular):
    """The verdict of one theorem on one problem; `str` of it lists the conditions.

    `to_frame()` has one row per condition: theorem, condition, holds, sentence.

    Attributes:
        citation: the theorem, such as "A Thm 1".

        conditions: its conditions.

        conclusion: what it says if they all hold.

        of_descent: whether it is about descent and leaves its direction open.
    """

    citation: str
    conditions: tuple[Any, ...]
    conclusion: Fact
    of_descent: bool = False
    quantities = "{citation}: {applies:applies|does not apply}"

    @property
    def applies(self) -> bool:
        """True if every condition holds."""
        return all(self.conditions)

    @property
    def failed(self) -> tuple[Any, ...]:
        """The conditions that do not hold, or that cannot be decided."""
        return tuple(check for check in self.conditions if not check)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, in types that `json.dumps` takes."""
        return {"label": self.citation, "applies": self.applies, **super().to_dict()}

    def __str__(self) -> str:
        outcome = f"applies: {self.conclusion}" if self.applies else "does not apply"
        return "\n".join(
            [f"{self.citation} {outcome}.", *(f"  {str(check).rstrip('.')}." for check in self.conditions)]
        )

    def _columns(self) -> dict[str, Any]:
        return condition_columns([self])


def condition_columns(verdicts: Sequence[TheoremVerdict]) -> dict[str, Any]:
    """Return the table of the conditions of theorems, one row each."""
    rows = [(verdict.citation, check) for verdict in verdicts for check in verdict.conditions]
    return {
        "theorem": [citation for citation, _ in rows],
        "condition": [check.name for _, check in rows],
        "holds": np.array([bool(check) for _, check in rows], dtype=bool),
        "sentence": [check.sentence for _, check in rows],
    }
