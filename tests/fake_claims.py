"""Small claims with every kind of ending, for tests of the report and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy

import numpy as np
from matplotlib.figure import Figure

from marginlens_papers.claim import Bound, Claim, Effort, FigureText, Finding, Progress, Words

Computation = Callable[[Effort, Progress], Finding]


class FakeClaim(Claim):
    """A claim about a mean correlation that must reach .999."""

    labels = ("A Fig 9(a)", "A Thm 4")
    statement = "On random data the trained weights align with a max-margin direction <for almost every> draw."
    protocol = "n = 4, T = 6, d = 10; 20 draws."
    paper_value = "average correlation .997"
    expected = {"mean_corr": Bound(low=0.999)}  # noqa: RUF012
    words = {"mean_corr": Words("Mean correlation of $p$ with $p^mm$")}  # noqa: RUF012
    paper_numbers = {"mean_corr": "$.997$"}  # noqa: RUF012
    figures = {  # noqa: RUF012
        "correlation": FigureText(
            "The correlation with $p^mm$ over the steps.", "One line that rises from 0 to almost 1."
        )
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        return finding(0.9996)(effort, progress)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        return curve(finding)


def fake_claim(
    claim_id: str = "A-F9",
    compute: Computation | None = None,
    draw: Callable[[Finding], dict[str, Figure]] | None = None,
    expected: Mapping[str, Bound] | None = None,
) -> Claim:
    """A fake claim with another id and, where they are given, another computation, drawing or bounds."""
    given = {"compute": compute, "draw": draw, "expected": expected}
    changes = {name: value for name, value in given.items() if value is not None}
    return changed(FakeClaim(), id=claim_id, title=f"Random data select a token ({claim_id})", **changes)


def changed(claim: Claim, **attributes: object) -> Claim:
    """The claim with other attributes."""
    other = copy(claim)
    for name, value in attributes.items():
        setattr(other, name, value)
    return other


def finding(corr: float, note: str = "", assumption_met: bool = True) -> Computation:
    """A computation that always finds this correlation, in three steps."""

    def compute(effort: Effort, progress: Progress) -> Finding:
        for _ in progress.each(range(3)):
            pass
        sizes = {"n_draws": 1000.0 if effort is Effort.PAPER else 20.0}
        return Finding(
            measured=f"mean correlation {corr:.4f} ± .0002",
            numbers={"mean_corr": corr, **sizes},
            arrays={"corr": np.linspace(0, corr, 30)},
            note=note,
            assumption_met=assumption_met,
        )

    return compute


def raising(error: BaseException) -> Computation:
    """A computation that stops with this error."""

    def compute(effort: Effort, progress: Progress) -> Finding:
        progress.expect(10)
        progress.advance()
        raise error

    return compute


def curve(found: Finding) -> dict[str, Figure]:
    """One figure: the correlation over the steps."""
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(found.arrays["corr"])
    axes.set(xlabel="step", ylabel="correlation")
    return {"correlation": figure}
