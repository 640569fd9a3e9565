"""One row of the ledger: what a claim says and, where it has been run, what came out; as an object and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marginlens.errors import InputError
from marginlens_papers.claim import Bound, Claim, Effort, Verdict


@dataclass(frozen=True)
class Check:
    """One number that decided a verdict, and the bound it was held against; `number` is nan when it was never found.

    `as_stated` marks a bound that holds the claim to the paper's letter: missing it makes the claim partly reproduced.
    """

    name: str
    bound: Bound
    number: float
    as_stated: bool = False

    @property
    def holds(self) -> bool:
        """Whether the number is inside the bound."""
        return self.bound.holds(self.number)


@dataclass(frozen=True)
class Picture:
    """One figure of a claim: its name and its two files, relative to the report's folder."""

    name: str
    png: str
    svg: str


@dataclass(frozen=True)
class Result:
    """What one run of a claim gave.

    Args:
        verdict: what the numbers say.
        measured: the numbers and their spread, in words.
        note: where the result differs from the paper or needs a word; the error's sentence when the run stopped.
        seconds: wall-clock time of computing and drawing.
        effort: how much of the protocol was run.
        checks: the numbers that decided, each with its bound.
        numbers: every number worth keeping, by name.
        pictures: the figures.
        finished: when the run ended, in ISO 8601 with its time zone.
        versions: the software and the machine it ran on.
    """

    verdict: Verdict
    measured: str
    note: str
    seconds: float
    effort: Effort
    checks: tuple[Check, ...]
    numbers: Mapping[str, float]
    pictures: tuple[Picture, ...]
    finished: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """One claim of the ledger and its last result; `result` is None when it has not been run.

    `unfinished` is the effort of a run that was interrupted before this claim had its result; `result` is then an earlier one, or None.
    """

    id: str
    labels: tuple[str, ...]
    title: str
    statement: str
    protocol: str
    paper_value: str
    result: Result | None = None
    unfinished: Effort | None = None

    @classmethod
    def of(cls, claim: Claim, result: Result | None = None, unfinished: Effort | None = None) -> Entry:
        """The row of `claim`."""
        said = (claim.id, claim.labels, claim.title, claim.statement, claim.protocol, claim.paper_value)
        return cls(*said, result, unfinished)

    @property
    def label(self) -> str:
        """The papers' statements in one line."""
        return ", ".join(self.labels)

    @property
    def command(self) -> str:
        """The command that runs this claim alone, as it was last run."""
        quick = self.result is not None and self.result.effort is Effort.QUICK
        return f"marginlens reproduce --only {self.id}" + (" --quick" if quick else "")

    def __repr__(self) -> str:
        verdict = self.result.verdict.value if self.result else "not run"
        return f"Entry({self.id}: {verdict})"

    # ---- as JSON

    def row(self) -> dict[str, Any]:
        """The entry as plain JSON values: an infinite bound and a number that is not finite are null."""
        row: dict[str, Any] = {
            "id": self.id,
            "label": self.label,
            "labels": list(self.labels),
            "title": self.title,
            "statement": self.statement,
            "protocol": self.protocol,
            "paper_value": self.paper_value,
            "command": self.command,
        }
        if self.result is not None:
            row |= _result_row(self.result)
        if self.unfinished is not None:
            row["unfinished"] = self.unfinished.name.lower()
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Entry:
        """The entry that `row` was made from."""
        try:
            return cls(
                id=row["id"],
                labels=tuple(row["labels"]),
                title=row["title"],
                statement=row["statement"],
                protocol=row["protocol"],
                paper_value=row["paper_value"],
                result=_result(row) if "verdict" in row else None,
                unfinished=Effort[row["unfinished"].upper()] if "unfinished" in row else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise InputError(f"A row of the ledger cannot be read: {problem!r} is missing or malformed.") from problem


def _result_row(result: Result) -> dict[str, Any]:
    return {
        "measured": result.measured,
        "verdict": result.verdict.value,
        "seconds": result.seconds,
        "note": result.note,
        "effort": result.effort.name.lower(),
        "expected": [
            {
                "name": check.name,
                "low": _finite(check.bound.low),
                "high": _finite(check.bound.high),
                "number": _finite(check.number),
                "holds": check.holds,
                "as_stated": check.as_stated,
            }
            for check in result.checks
        ],
        "numbers": {name: _finite(number) for name, number in result.numbers.items()},
        "figures": [vars(picture) for picture in result.pictures],
        "finished": result.finished,
        "versions": dict(result.versions),
    }


def _result(row: Mapping[str, Any]) -> Result:
    return Result(
        verdict=Verdict(row["verdict"]),
        measured=row["measured"],
        note=row["note"],
        seconds=float(row["seconds"]),
        effort=Effort[row["effort"].upper()],
        checks=tuple(
            Check(
                one["name"],
                Bound(_number(one["low"], -math.inf), _number(one["high"], math.inf)),
                _number(one["number"], math.nan),
                bool(one.get("as_stated", False)),
            )
            for one in row["expected"]
        ),
        numbers={name: _number(number, math.nan) for name, number in row["numbers"].items()},
        pictures=tuple(Picture(one["name"], one["png"], one["svg"]) for one in row["figures"]),
        finished=row["finished"],
        versions=row["versions"],
    )


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _number(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else float(value)
