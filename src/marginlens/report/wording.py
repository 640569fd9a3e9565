"""How verdicts, numbers and times are worded, the same on the page and in the terminal."""

from __future__ import annotations

from marginlens.experiments.claim import Effort, Verdict

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


def duration(seconds: float) -> str:
    """A time as people say it: 0.4 s, 12 s, 3 min 4 s, 1 h 2 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


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
