"""What a claim of the papers is here: a statement, a protocol, a computation, a drawing and the numbers it must reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

from marginlens.plotting import in_style
from marginlens.runtime.progress import Progress, Silence


class Effort(Enum):
    """How much of a protocol to run."""

    PAPER = "the paper's own sizes"
    QUICK = "a few seconds, for tests and a first look"


class Verdict(Enum):
    """What the measured numbers say about a claim."""

    REPRODUCED = "reproduced"
    REPRODUCED_WITH_NOTE = "reproduced with a note"
    PARTLY_REPRODUCED = "partly reproduced"
    NOT_REPRODUCED = "not reproduced"
    ASSUMPTION_NOT_MET = "assumption not met"


@dataclass(frozen=True)
class Bound:
    """One number that a claim must reach: `low <= number <= high`."""

    low: float = -float("inf")
    high: float = float("inf")

    def holds(self, number: float) -> bool:
        """Whether `number` is inside; nan never is."""
        return self.low <= number <= self.high

    def __str__(self) -> str:
        if self.low == self.high:
            return f"= {self.low:g}"
        if self.high == float("inf"):
            return f"≥ {self.low:g}"
        if self.low == -float("inf"):
            return f"≤ {self.high:g}"
        return f"{self.low:g} … {self.high:g}"


@dataclass(frozen=True)
class Finding:
    """What a computation found.

    Args:
        measured: one or two sentences with the numbers and their spread, for the ledger.
        numbers: the numbers that the claim's bounds are held against, and others worth keeping, by name.
        arrays: plain arrays and tables from which `draw` makes the figures.
        note: where the result differs from the paper or needs a word; a non-empty note makes "reproduced with a note".
        assumption_met: False when the data at hand do not satisfy what the statement supposes.
    """

    measured: str
    numbers: Mapping[str, float]
    arrays: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    assumption_met: bool = True


@dataclass(frozen=True)
class Claim:
    """One row of the ledger, made from the module that holds its computation and its drawing.

    Such a module defines `ID`, `LABELS` (the papers' statements, such as "A Thm 3"), `TITLE`, `STATEMENT`, `PROTOCOL`, `PAPER_VALUE`,
    `EXPECTED` (name → Bound: what must hold for the claim to be reproduced at all), `compute(effort, progress) -> Finding` and
    `draw(finding) -> {name: Figure}`; it may define `AS_STATED` (name → Bound: what the paper's words and figures say beyond that).
    A number outside its bound in `EXPECTED` makes the claim not reproduced, one in `AS_STATED` partly reproduced.
    """

    id: str
    labels: tuple[str, ...]
    title: str
    statement: str
    protocol: str
    paper_value: str
    expected: Mapping[str, Bound]
    compute: Callable[[Effort, Progress], Finding]
    draw: Callable[[Finding], dict[str, Figure]]
    as_stated: Mapping[str, Bound] = field(default_factory=dict)
    module: str = ""  # where another process finds it; empty for a claim made by hand

    @classmethod
    def of(cls, module: ModuleType) -> Claim:
        """The claim that an experiment module defines."""
        return cls(
            id=module.ID,
            labels=module.LABELS,
            title=module.TITLE,
            statement=module.STATEMENT,
            protocol=module.PROTOCOL,
            paper_value=module.PAPER_VALUE,
            expected=module.EXPECTED,
            compute=module.compute,
            draw=in_style(module.draw),
            as_stated=getattr(module, "AS_STATED", {}),
            module=module.__name__,
        )

    @property
    def label(self) -> str:
        """The papers' statements in one line."""
        return ", ".join(self.labels)

    def judge(self, finding: Finding) -> Verdict:
        """Hold the found numbers against the expected ones; nothing else decides."""
        if not finding.assumption_met:
            return Verdict.ASSUMPTION_NOT_MET

        def all_hold(bounds: Mapping[str, Bound]) -> bool:
            return all(bound.holds(finding.numbers[name]) for name, bound in bounds.items())

        if not all_hold(self.expected):
            return Verdict.NOT_REPRODUCED
        if not all_hold(self.as_stated):
            return Verdict.PARTLY_REPRODUCED
        return Verdict.REPRODUCED_WITH_NOTE if finding.note else Verdict.REPRODUCED


__all__ = ["Bound", "Claim", "Effort", "Finding", "Progress", "Silence", "Verdict"]
