"""The ledger of claims: entries with their last results, as a sequence, as JSON on disk and as a data frame."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

from marginlens.errors import InputError
from marginlens.names import nearest
from marginlens.papers import Paper
from marginlens.result import Displayed, Tabular
from marginlens.words import Fact, text
from marginlens_papers.claim import Bound, Claim, Effort, NoteKind, Unit, Verdict
from marginlens_papers.claims import catalogue

LEDGER = "ledger.json"
FOLDER = "report"
MARKS: dict[Verdict, str] = {
    Verdict.HOLDS_AS_STATED: "✓",
    Verdict.HOLDS_BY_OUR_OWN_BOUNDS: "≥",
    Verdict.HOLDS_WITH_CAVEATS: "✎",
    Verdict.HOLDS_IN_PART: "◐",
    Verdict.DOES_NOT_HOLD: "✗",
    Verdict.ASSUMPTION_NOT_MET: "○",
}


@dataclass(frozen=True)
class BoundCheck:
    """One number that decided a verdict, and its bound; `number` is nan when it was never found.

    `as_stated` marks a bound that holds the claim to the letter of its statement: missing it, the claim holds in part at best.
    `sentence` says what the number is, `unit` how it is shown, and `paper` what the paper has in its place, if it has something.
    """

    name: str
    bound: Bound
    number: float
    as_stated: bool = False
    sentence: str = ""
    unit: Unit = Unit.NUMBER
    paper: str = ""

    @property
    def holds(self) -> bool:
        """Whether the number is inside the bound."""
        return self.bound.holds(self.number)


@dataclass(frozen=True)
class Picture:
    """One figure of a claim: its name, its files, relative to the report's folder, and its words.

    The page shows `file`, an SVG or a PNG; `pdf` is the same figure for print, and `small` that of the first figure for a tile.
    """

    name: str
    file: str
    pdf: str
    caption: str = ""
    alt: str = ""
    brightness_speaks: bool = False
    small: str = ""


@dataclass(frozen=True)
class ClaimResult:
    """What one run of a claim gave.

    Args:
        verdict: what the numbers say. measured: the numbers and their spread, in words.
        note: where the result differs from the paper or needs an explanation, of this kind; the error's sentence when the run stopped.
        seconds: wall-clock time of computing and drawing. effort: how much of the protocol was run.
        checks: the numbers that decided, each with its bound. numbers: every number, by name. pictures: the figures.
        finished: when the run ended, in ISO 8601 with its time zone. versions: the software and the machine it ran on.
        known: whether the claim declares this verdict as that of the last reading, so that it is not a failure.
        archived: the numbers that were read from `results/` and not computed in the run.
    """

    verdict: Verdict
    measured: str
    note: str
    seconds: float
    effort: Effort
    checks: tuple[BoundCheck, ...]
    numbers: Mapping[str, float]
    pictures: tuple[Picture, ...]
    finished: str
    versions: Mapping[str, str]
    known: bool = False
    archived: tuple[str, ...] = ()
    note_kind: NoteKind = NoteKind.CAVEAT

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values: an infinite bound and a number that is not finite are null."""
        checks = [
            {
                "name": check.name,
                "low": _finite(check.bound.low),
                "high": _finite(check.bound.high),
                "number": _finite(check.number),
                "holds": check.holds,
                "as_stated": check.as_stated,
                "sentence": check.sentence,
                "unit": check.unit.value,
                "paper": check.paper,
            }
            for check in self.checks
        ]
        return {
            "measured": self.measured,
            "verdict": self.verdict.value,
            "known": self.known,
            "seconds": self.seconds,
            "note": self.note,
            "note_kind": self.note_kind.value,
            "effort": self.effort.name.lower(),
            "expected": checks,
            "numbers": {name: _finite(number) for name, number in self.numbers.items()},
            "archived": list(self.archived),
            "figures": [vars(picture) for picture in self.pictures],
            "finished": self.finished,
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> ClaimResult:
        """The result that `to_dict` was called on."""
        checks = tuple(
            BoundCheck(
                check["name"],
                Bound(_number(check["low"], -math.inf), _number(check["high"], math.inf)),
                _number(check["number"], math.nan),
                bool(check.get("as_stated", False)),
                check.get("sentence", ""),
                Unit(check.get("unit", Unit.NUMBER.value)),
                check.get("paper", ""),
            )
            for check in row["expected"]
        )
        return cls(
            Verdict(row["verdict"]),
            row["measured"],
            row["note"],
            float(row["seconds"]),
            Effort[row["effort"].upper()],
            checks,
            {name: _number(number, math.nan) for name, number in row["numbers"].items()},
            tuple(_picture(picture) for picture in row["figures"]),
            row["finished"],
            row["versions"],
            bool(row.get("known", False)),
            tuple(row.get("archived", ())),
            NoteKind(row.get("note_kind", NoteKind.CAVEAT.value)),
        )


@dataclass(frozen=True)
class Entry:
    """One claim of the ledger and its last result; `result` is None when it has not been run.

    `unfinished` is the effort of a run that was interrupted before this claim had its result; `result` is then an earlier one, or None.
    `package` is the installed package that ships the claim, empty for this library's own, and `source` the paper if it brings one.
    """

    id: str
    labels: tuple[str, ...]
    title: str
    statement: str
    protocol: str
    paper_value: str
    result: ClaimResult | None = None
    unfinished: Effort | None = None
    headline: str = ""
    source: Paper | None = None
    package: str = ""

    @classmethod
    def of(cls, claim: Claim, result: ClaimResult | None = None, unfinished: Effort | None = None) -> Entry:
        """The row of `claim`."""
        texts = (claim.id, claim.labels, claim.title, claim.statement, claim.protocol, claim.paper_value)
        return cls(*texts, result, unfinished, claim.headline, claim.source, claim.package)

    @property
    def label(self) -> str:
        """The papers' statements in one line."""
        return ", ".join(self.labels)

    @property
    def paper(self) -> str:
        """The letter of the paper whose claim this is, as its id begins; X for our own."""
        return self.id.split("-")[0]

    @property
    def key_check(self) -> BoundCheck | None:
        """The checked number that stands on the claim's tile: the `headline`, or the first; None if nothing was checked."""
        checks = self.result.checks if self.result else ()
        return next((check for check in checks if check.name == self.headline), checks[0] if checks else None)

    @property
    def verdict(self) -> str:
        """The verdict of the last result, or "not run"."""
        return self.result.verdict.title if self.result else text("claim.run.not_run")

    @property
    def command(self) -> str:
        """The command that runs only this claim, as it was last run."""
        quick = self.result is not None and self.result.effort is Effort.QUICK
        return f"marginlens reproduce --only {self.id}" + " --quick" * quick

    def __repr__(self) -> str:
        return f"Entry({self.id}: {self.verdict})"

    def to_dict(self) -> dict[str, Any]:
        """The entry as JSON values."""
        row: dict[str, Any] = {
            "id": self.id,
            "label": self.label,
            "labels": list(self.labels),
            "title": self.title,
            "statement": self.statement,
            "protocol": self.protocol,
            "paper_value": self.paper_value,
            "headline": self.headline,
            "command": self.command,
        }
        row |= {"package": self.package} if self.package else {}
        row |= {"source": asdict(self.source)} if self.source else {}
        row |= self.result.to_dict() if self.result else {}
        return row | ({"unfinished": self.unfinished.name.lower()} if self.unfinished else {})

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Entry:
        """The entry that `to_dict` was called on."""
        try:
            texts = (row["title"], row["statement"], row["protocol"], row["paper_value"])
            result = ClaimResult.from_dict(row) if "verdict" in row else None
            unfinished = Effort[row["unfinished"].upper()] if "unfinished" in row else None
            source = Paper(**row["source"]) if "source" in row else None
            shipped = (row.get("headline", ""), source, row.get("package", ""))  # earlier versions wrote no headline
            return cls(row["id"], tuple(row["labels"]), *texts, result, unfinished, *shipped)
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise InputError(
                "row", "an entry of the ledger", f"one in which {problem!r} is missing or wrong"
            ) from problem


class Ledger(Sequence[Entry], Displayed, Tabular):
    """The entries of all claims, in the order of the papers; `ledger["A-F9"]` is the entry of one claim.

    `to_frame()` has one row per claim: claim, statement, title, verdict, measured.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int | str) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Ledger: ...
    def __getitem__(self, index: int | str | slice) -> Entry | Ledger:
        if isinstance(index, slice):
            return Ledger(self._entries[index])
        if not isinstance(index, str):
            return self._entries[index]
        for entry in self._entries:
            if entry.id.lower() == index.lower():
                return entry
        ids = [entry.id for entry in self._entries]
        raise InputError("index", "a number, or the id of a claim", repr(index), nearest(index, ids))

    def __repr__(self) -> str:
        return f"Ledger({summary(self._entries)})"

    def to_dict(self) -> dict[str, Any]:
        """Every entry as JSON values, by the id of its claim."""
        return {entry.id: entry.to_dict() for entry in self._entries}

    def _columns(self) -> dict[str, Any]:
        return {
            "claim": [entry.id for entry in self._entries],
            "statement": [entry.label for entry in self._entries],
            "title": [entry.title for entry in self._entries],
            "verdict": [entry.verdict for entry in self._entries],
            "measured": [entry.result.measured if entry.result else "" for entry in self._entries],
        }


def ledger(folder: str | os.PathLike[str] = FOLDER) -> Ledger:
    """List every claim that marginlens knows, with its last result if `folder` holds one.

    Claims are in the order of the papers, followed by those of installed packages.
    """
    stored = {entry.id: (entry.result, entry.unfinished) for entry in read_ledger(Path(folder))}
    return Ledger(Entry.of(claim, *stored.get(claim.id, ())) for claim in catalogue.known_claims())


def read_ledger(folder: Path) -> list[Entry]:
    """The entries stored in `folder`; none when it holds no ledger."""
    path = folder / LEDGER
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ValueError("it is not a list of objects")
        return [Entry.from_dict(row) for row in rows]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as problem:  # an InputError is a ValueError
        raise InputError(
            "folder",
            "one whose ledger can be read",
            f"{str(path)!r} ({problem})",
            "Delete it and run the claims again.",
        ) from problem


def write_ledger(entries: Iterable[Entry], folder: Path) -> None:
    """Store the entries in `folder` as strict JSON, one object per claim."""
    rows = json.dumps([entry.to_dict() for entry in entries], indent=2, ensure_ascii=False, allow_nan=False)
    (folder / LEDGER).write_text(rows + "\n", encoding="utf-8")


class VerdictGroup(NamedTuple):
    """The claims of one verdict with a text on how many they are; `named` are those that a summary lists by their ids."""

    verdict: Verdict
    tally: Fact
    entries: list[Entry]
    named: list[Entry]


def verdict_groups(entries: Iterable[Entry]) -> list[VerdictGroup]:
    """The claims that have been run by their verdict: those that hold as stated, however many, and every other verdict that occurs."""
    ran = [entry for entry in entries if entry.result]
    found = []
    for verdict in Verdict:
        group = [entry for entry in ran if entry.result and entry.result.verdict is verdict]
        if not group and verdict is not Verdict.HOLDS_AS_STATED:
            continue
        holds = (Verdict.HOLDS_AS_STATED, Verdict.HOLDS_BY_OUR_OWN_BOUNDS, Verdict.HOLDS_WITH_CAVEATS)
        tally = Fact(f"claim.verdict.{verdict.value}", {"count": len(group), "ran": len(ran)})
        found.append(VerdictGroup(verdict, tally, group, [] if verdict in holds else group))
    return found


def summary(entries: Iterable[Entry]) -> str:
    """What holds and what does not, by name: "3 of 6 claims hold as stated; 2 hold with caveats; 1 does not: B-F3"."""
    groups = verdict_groups(entries)
    ids = [", ".join(entry.id for entry in group.named) for group in groups]
    return "; ".join(
        f"{group.tally}: {names}" if names else str(group.tally) for group, names in zip(groups, ids, strict=True)
    )


def resume_command(effort: Effort) -> str:
    """The command that runs what an interrupted run of this effort left unfinished."""
    return "marginlens reproduce --resume" + " --quick" * (effort is Effort.QUICK)


def _picture(row: Mapping[str, Any]) -> Picture:
    """The figure of a row; earlier versions wrote each as PNG and as SVG, and no PDF."""
    words = {name: value for name, value in row.items() if name not in ("png", "svg")}
    return Picture(**({"file": row["svg"], "pdf": ""} if "svg" in row else {}), **words)


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
