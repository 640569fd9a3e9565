"""How verdicts, numbers and times are worded, the same on the page and in the terminal."""

from __future__ import annotations

from marginlens_papers.claim import Effort, Verdict

MARKS: dict[Verdict, str] = {
    Verdict.REPRODUCED: "✓",
    Verdict.REPRODUCED_WITH_NOTE: "✎",
    Verdict.PARTLY_REPRODUCED: "◐",
    Verdict.NOT_REPRODUCED: "✗",
    Verdict.ASSUMPTION_NOT_MET: "○",
}


def number(value: float) -> str:
    """A number with six significant digits and a true minus sign; "not found" when it is nan."""
    return "not found" if value != value else f"{value:.6g}".replace("-", "−")


def tally(verdicts: list[Verdict]) -> str:
    """How many claims have which verdict: "3 claims: 2 reproduced, 1 not reproduced"."""
    counts = [f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict if verdict in verdicts]
    return f"{len(verdicts)} claim{'s' * (len(verdicts) != 1)}: {', '.join(counts) or 'none run'}"


def resume_command(effort: Effort) -> str:
    """The command that runs what an interrupted run of this effort left unfinished."""
    return "marginlens reproduce --resume" + " --quick" * (effort is Effort.QUICK)


def sizes(efforts: set[Effort]) -> str:
    """At which sizes the claims were run."""
    if efforts == {Effort.PAPER}:
        return "the papers' own sizes"
    return (
        "reduced sizes (--quick)" if efforts == {Effort.QUICK} else "the papers' own sizes and reduced ones, as marked"
    )
