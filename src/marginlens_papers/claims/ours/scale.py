"""X S: what ten million random problems of each width show of selections, beyond the reach of A's thousand."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.typing import Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a.scale_runs import (
    FIRST,
    GAP_EDGES,
    MISS_EDGES,
    NEGATIVE,
    WIDTHS,
    ScaleRuns,
    archived_scale_runs,
    counted,
    scale_plan,
)

TAIL = 1e-2  # of 1 - correlation: what lies beyond counts as the tail
WIDE = 100  # from this width on a share is known to ±1e-5


class X_S(Claim):
    labels = ("A Fig 9(a)", "A Fig 10")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Read the counts of the large sweep, and train the first problems of each width again."""
        runs = archived_scale_runs()
        n_again = min(FIRST if effort is Effort.PAPER else 100, runs.n_problems)
        progress.expect(1)
        with tempfile.TemporaryDirectory() as folder:
            again = counted(ml.sweep(scale_plan(n_again), Path(folder) / "sweep"))
        progress.advance()
        low, high = drawing.proportion_interval(runs.counts[:, NEGATIVE], runs.n_problems)
        half, tail = (high - low) / 2.0, runs.share_missing(TAIL)
        same = np.mean(again.first == runs.first[:, :n_again])
        wide = runs.widths >= WIDE
        numbers = {
            "largest_share_negative_from_d5": float(np.max(runs.share_negative[runs.widths >= 5])),
            "share_negative_falls": float(np.all(low[:-1] > high[1:])),
            "half_width_from_d100": float(half[wide].max()),
            "largest_half_width": float(half.max()),
            "largest_share_below_099": float(tail.max()),
            "same_outcome_on_this_machine": float(same),
            "problems_a_second": runs.n_problems * len(runs.widths) / runs.facts["seconds"],
            **{f"share_negative_d{d}": float(s) for d, s in zip(runs.widths, runs.share_negative, strict=True)},
            **{f"share_below_099_d{d}": float(s) for d, s in zip(runs.widths, tail, strict=True)},
            **{
                f"smallest_corr_d{d}": 1.0 - float(m) for d, m in zip(runs.widths, runs.largest_miss[:, 0], strict=True)
            },
        }
        stored = [name for name in numbers if name != "same_outcome_on_this_machine"]
        note = _note(runs, numbers, half, n_again)
        return Finding(_sentence(runs, numbers, half), numbers, {"runs": runs}, note=note, archived=stored)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Shares of negative gaps by width with intervals, the tail of the correlation, and the score gaps around zero."""
        return {"rare": _draw(finding)}


def _sentence(runs: ScaleRuns, numbers: dict[str, float], half: Any) -> str:
    shares = ", ".join(
        f"{100 * share:.4f}% ± {100 * h:.4f}% (d={d})"
        for d, share, h in zip(runs.widths, runs.share_negative, half, strict=True)
    )
    tail = ", ".join(f"{100 * numbers[f'share_below_099_d{d}']:.4f}% (d={d})" for d in runs.widths)
    return (
        f"{runs.n_problems:,} problems of each width. Saturated with a negative score gap (95% intervals): {shares}. Correlation below "
        f".99 among the saturated: {tail}. On this machine {100 * numbers['same_outcome_on_this_machine']:.2f}% of the "
        "first problems end "
        "the same way."
    )


def _note(runs: ScaleRuns, numbers: dict[str, float], half: Any, n_again: int) -> str:
    d = min(runs.widths, key=lambda width: numbers[f"smallest_corr_d{width}"])
    needed = runs.n_problems * (half / 1e-5) ** 2
    rarest = runs.widths[int(np.argmax(needed))]
    negative = ", ".join(
        f"{1.0 - miss:.4f} (d={width})"
        for width, miss, count in zip(runs.widths, runs.mean_miss[:, 1], runs.counts[:, NEGATIVE], strict=True)
        if count
    )
    return (
        f"The sweep ran at {numbers['problems_a_second']:,.0f} problems a second on {runs.facts['device']}, with all that is recorded. The "
        f"smallest correlation of all saturated runs is {numbers[f'smallest_corr_d{d}']:.3f}, at d = {d}; those with a negative gap have "
        f"mean correlation {negative}. If negative gaps are more frequent, ±1e-5 takes more problems, {needed.max():.1e} at d = {rarest}. "
        f"The counts were made by `{runs.facts['command']}`; {n_again:,} problems of each width were trained again for this report."
    )


def _draw(finding: Finding) -> Figure:
    runs = finding.arrays["runs"]
    fig, (left, middle, right) = ml.plotting.figure(3, width=4.4, height=4.4)
    place = np.arange(len(WIDTHS))
    look: dict[str, Any] = {"fmt": "o", "color": ml.plotting.INK, "capsize": 4, "ms": 5}
    drawing.share_points(left, place, runs.counts[:, NEGATIVE], runs.n_problems, **look)
    left.axhline(0.01, color=ml.plotting.PATH, ls=":", lw=1.2)
    left.annotate("the paper's bound, 1%", (place[-1], 0.01), (0, 4), textcoords="offset points", ha="right")
    left.set(yscale="log", xticks=place, xticklabels=[str(d) for d in runs.widths], xlabel="dimension d")
    left.set(ylabel="share of problems (95% intervals)", title="Saturated with a negative score gap")
    colours = ml.plotting.ACCENTS
    for k, d in enumerate(runs.widths):
        beyond = np.cumsum(runs.misses[k, 0][::-1])[::-1] / runs.n_saturated[k]
        middle.loglog(
            10.0 ** MISS_EDGES[:-1],
            np.where(beyond > 0, beyond, np.nan),
            color=colours[k % len(colours)],
            label=f"d = {d}",
        )
        width = np.diff(GAP_EDGES)[0]
        right.semilogy(
            GAP_EDGES[:-1] + width / 2,
            np.where(runs.gaps[k] > 0, runs.gaps[k], np.nan) / runs.n_saturated[k],
            color=colours[k % len(colours)],
        )
    middle.set(
        xlim=(1e-9, 2),
        ylim=(0.5 / runs.n_problems, 1.5),
        xlabel="1 − correlation",
        ylabel="share of saturated runs beyond",
    )
    middle.set_title("The tail of the correlation")
    right.axvline(0, color=ml.plotting.INK, ls="--", lw=1.2)
    right.set(xlim=(-0.3, 0.8), xlabel="smallest score gap to a neighbour", ylabel="probability (bins of .01)")
    right.set_title("Score gaps")
    fig.legend(*middle.get_legend_handles_labels(), loc="outside lower center", ncol=6)
    return fig
