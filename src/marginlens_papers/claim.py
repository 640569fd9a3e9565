"""A claim of a paper: statement, protocol, computation, figures, and the bounds that its numbers must meet."""

from __future__ import annotations

import re
import sys
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple

from marginlens.papers import OWN, Paper
from marginlens.runtime.progress import Progress
from marginlens.typing import Figure
from marginlens.words import text, title


class Effort(Enum):
    """How much of a protocol to run."""

    PAPER = "paper"  # the paper's own sizes
    QUICK = "quick"  # a few seconds, for tests and a first look


class Verdict(Enum):
    """What the measured numbers say about a claim; the value is a code."""

    HOLDS_AS_STATED = "holds_as_stated"
    HOLDS_BY_OUR_OWN_BOUNDS = "holds_by_our_own_bounds"  # a statement of ours: most bounds were set after first runs
    HOLDS_WITH_CAVEATS = "holds_with_caveats"
    HOLDS_IN_PART = "holds_in_part"
    DOES_NOT_HOLD = "does_not_hold"
    ASSUMPTION_NOT_MET = "assumption_not_met"

    @property
    def title(self) -> str:
        """The verdict on one claim in words."""
        return title(f"claim.verdict.{self.value}")


class NoteKind(Enum):
    """What the note of a claim is about; the first two make "holds with caveats" of a paper's claim that holds."""

    PAPER_DIFFERS = "paper_differs"  # it states, prints or proves something else
    CAVEAT = "caveat"  # the claim holds under conditions that its words do not show
    REMARK = "remark"  # worth knowing, and no reservation

    @property
    def title(self) -> str:
        """The heading of such a note."""
        return text(f"claim.note.{self.value}")


@dataclass(frozen=True)
class Bound:
    """One number that a claim must reach: `low <= number <= high`."""

    low: float = -float("inf")
    high: float = float("inf")

    def holds(self, number: float) -> bool:
        """Whether `number` is inside; nan never is."""
        return self.low <= number <= self.high


class Unit(Enum):
    """How a checked number is shown to a reader."""

    NUMBER = "number"
    COUNT = "count"
    SHARE = "share"
    TRUTH = "yes or no"


@dataclass(frozen=True)
class Words:
    """What a checked number is, in one sentence or the name of a quantity; formulas stand between dollar signs."""

    sentence: str
    unit: Unit = Unit.NUMBER


@dataclass(frozen=True)
class FigureText:
    """What a figure shows, as its caption, and what is seen in it, for those who cannot see it.

    `brightness_speaks` marks a figure whose light and dark are values, such as a photograph or a map: a dark page leaves it as drawn.
    """

    caption: str
    alt: str
    brightness_speaks: bool = False


@dataclass(frozen=True)
class Finding:
    """What a computation found.

    Args:
        measured: one or two sentences with the numbers and their spread, for the ledger.
        numbers: the numbers that the claim's bounds apply to, and others worth reporting, by name.
        arrays: plain arrays and tables from which `draw` makes the figures.
        note: where the result differs from the paper or needs an explanation, of the claim's `note_kind`.
            Its first sentence is short and says what matters; the page shows the others on demand.
        assumption_met: False when the data at hand do not satisfy what the statement supposes.
        archived: the names of numbers that were read from `results/` and not computed in this run.
    """

    measured: str
    numbers: Mapping[str, float]
    arrays: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    assumption_met: bool = True
    archived: Collection[str] = ()


class Run(NamedTuple):
    """A descent that a claim follows to its limit.

    Attributes:
        variable: what is trained, in the words of `ImplicitBias.variable`. optimizer: by which optimizer.
        eta_gamma: the largest ηγ of its constant steps, γ being the best margin in their norm; None if steps fall or are Euclidean.
        widths: the smallest and the largest width, if factors are trained.
    """

    variable: str
    optimizer: Any
    eta_gamma: float | None = None
    widths: tuple[int, int] | None = None


class Claim(ABC):
    """One row of the ledger. A subclass is named after its id, `A_F9` for A-F9, and says what the paper states and how it is checked.

    Attributes that the class does not have are taken from the file `claims.toml` next to its module, from the table of its id:
    [A-F9] with title, statement and so on, [A-F9.expected] and [A-F9.as_stated] with bounds as [low, high], [A-F9.words.share] with a
    sentence for each number that is shown as a share (number, count, share or truth), [A-F9.paper_numbers] with what the paper has in the
    place of a number, and [A-F9.figures.widths] with caption and alt of the figure "widths". Line breaks count as spaces.

    Attributes:
        labels: the papers' statements, such as "A Thm 3". title, statement, protocol, paper_value: sentences of the report.
        expected: what must hold for the claim to hold at all, by the name of the number.
        as_stated: what the paper's words and figures say beyond that, or those of our own statement: the claim holds in part if only
            some of it does, and does not hold if none of it does.
        known: the verdict of the last reading, declared if it is "does not hold": a run with that verdict again has not failed.
        note_kind: what a note is about, if a run leaves one.
        words: what each of these numbers is. headline: the number that stands on the claim's tile, the first if it is empty.
        paper_numbers: what the paper has in the place of a number, by the name of ours, wherever it prints or states one.
        figures: caption and alternative text of each figure that `draw` makes, the first of them that of the tile.
        own_statement: whether the statement is ours although it carries on a paper's and has its letter.
        seconds: about how long it takes at the paper's sizes on one core, if that is long: such claims begin first.
        runs: the descents whose limits its numbers are about; `ml.predict` cites the claim for these, with steps of any size.
        source: the paper, if it is not one of this library's; the ids of its claims begin with its key.
        package: the installed package that ships the claim, filled in when it is found there; empty for this library's own.
    """

    id: str
    labels: tuple[str, ...]
    title: str
    statement: str
    protocol: str
    paper_value: str
    expected: Mapping[str, Bound]
    as_stated: Mapping[str, Bound] = {}
    known: Verdict | None = None
    words: Mapping[str, Words] = {}
    note_kind: NoteKind = NoteKind.CAVEAT
    headline: str = ""
    paper_numbers: Mapping[str, str] = {}
    figures: Mapping[str, FigureText] = {}
    own_statement: bool = False
    seconds: float = 0.0
    runs: tuple[Run, ...] = ()
    source: Paper | None = None
    package: str = ""

    def __init_subclass__(cls) -> None:
        cls.id = cls.__name__.replace("_", "-")
        module = getattr(sys.modules.get(cls.__module__), "__file__", None)  # none in a notebook
        for name, value in _attributes(Path(module).parent).get(cls.id, {}).items() if module else ():
            if name not in vars(cls):
                setattr(cls, name, value)
        if "draw" in vars(cls):
            cls.draw = _in_style(cls.draw)  # type: ignore[method-assign]

    @abstractmethod
    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Run the protocol."""

    @abstractmethod
    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The figures of a finding, by name."""

    @property
    def label(self) -> str:
        """The papers' statements in one line."""
        return ", ".join(self.labels)

    @property
    def is_ours(self) -> bool:
        """Whether the statement is our own, so that nobody but us has set the bounds."""
        return self.own_statement or self.id.partition("-")[0] == OWN.key

    def judge(self, finding: Finding) -> Verdict:
        """Compare the numbers with their bounds; nothing else decides.

        Archived numbers can lower a verdict, but a claim holds in part at best unless a number computed in this run meets its bound.
        """
        if not finding.assumption_met:
            return Verdict.ASSUMPTION_NOT_MET

        def meets(bounds: Mapping[str, Bound]) -> dict[str, bool]:
            return {name: bound.holds(finding.numbers[name]) for name, bound in bounds.items()}

        expected, stated = meets(self.expected), meets(self.as_stated)
        if not all(expected.values()) or (stated and not any(stated.values())):
            return Verdict.DOES_NOT_HOLD
        computed = any(
            holds for met in (expected, stated) for name, holds in met.items() if name not in finding.archived
        )
        if not all(stated.values()) or not computed:
            return Verdict.HOLDS_IN_PART
        if self.is_ours:
            return Verdict.HOLDS_BY_OUR_OWN_BOUNDS
        has_caveat = finding.note and self.note_kind is not NoteKind.REMARK
        return Verdict.HOLDS_WITH_CAVEATS if has_caveat else Verdict.HOLDS_AS_STATED


@cache
def _attributes(folder: Path) -> dict[str, dict[str, Any]]:
    """The entries of `claims.toml` in a folder of claims, by id; nothing if there is no such file."""
    file = folder / "claims.toml"
    if not file.is_file():
        return {}
    tables = in_one_line(tomllib.loads(file.read_text(encoding="utf-8")))
    for table in tables.values():
        if "words" in table:
            units = {unit.name.lower(): unit for unit in Unit}
            table["words"] = {
                name: Words(sentence, units[unit])
                for unit, sentences in table["words"].items()
                for name, sentence in sentences.items()
            }
        for kind in {"expected", "as_stated"} & set(table):
            table[kind] = {name: Bound(*map(float, limits)) for name, limits in table[kind].items()}
        if "note_kind" in table:
            table["note_kind"] = NoteKind(table["note_kind"])
        if "figures" in table:
            table["figures"] = {name: FigureText(**texts) for name, texts in table["figures"].items()}
    return tables


def in_one_line(value: Any) -> Any:
    """The value with the lines of every text joined; other kinds of spaces are left as they are."""
    if isinstance(value, dict):
        return {name: in_one_line(part) for name, part in value.items()}
    return re.sub(r"[ \n]+", " ", value).strip(" ") if isinstance(value, str) else value


def _in_style(draw: Callable[..., Any]) -> Callable[..., Any]:
    """`draw` in the style of the library's figures; matplotlib is imported when it draws, so that a ledger is read without it."""

    @wraps(draw)
    def styled(claim: Any, finding: Finding) -> Any:
        from marginlens.plotting.style import in_style

        return in_style(draw)(claim, finding)

    return styled


__all__ = [
    "Bound",
    "Claim",
    "Effort",
    "FigureText",
    "Finding",
    "NoteKind",
    "Paper",
    "Progress",
    "Run",
    "Unit",
    "Verdict",
    "Words",
]
