"""X N1 and X N2: steepest descent in a norm goes to the largest margin in that norm, on W and on p."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

import marginlens as ml
from marginlens.typing import Figure
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Run, Words
from marginlens_papers.claims.drawing import cumulative, heat_map, level
from marginlens_papers.claims.ours.norm_runs import SETTINGS, NormRuns, Setting, archived_norm_runs, norm_runs

STEPS, LONG_STEPS = 10_000, 100_000
PROBLEMS, FEW_PROBLEMS = 200, 8
OWN_SHARE, LONG_OWN_SHARE, OTHER_SHARE = 0.995, 0.999, 0.95  # bars on mean shares
LIMIT_DISTANCE = 0.05  # of a mean share from that of the exact solution; chosen after quick runs, whose largest is .03
SLOWEST = "ℓ1"  # whose descent has the longest way to its margin


def _names(variable: str) -> list[str]:
    return [geometry.name for geometry in SETTINGS[variable].geometries]


def _own_shares(variable: str) -> dict[str, Bound]:
    """The bounds on the share of a descent's own margin, for every norm and over all runs."""
    return {f"own_share_{name}": Bound(low=OWN_SHARE) for name in _names(variable)}


def _words(variable: str) -> dict[str, Words]:
    """The sentences on the numbers that both claims check."""
    own = {
        f"own_share_{name}": Words(f"Descent in {name}: mean share of its own margin after {STEPS:,} steps")
        for name in _names(variable)
    }
    others = {
        "largest_distance_from_the_limits": Words(
            "Largest difference of a mean share from what the exact solution of the descent's norm has"
        ),
    }
    return own | others


def _runs(variable: str) -> tuple[Run, ...]:
    return tuple(
        Run(variable, geometry.descent(STEPS), geometry.eta_gamma) for geometry in SETTINGS[variable].geometries
    )


def _steps(variable: str) -> str:
    return ", ".join(geometry.words for geometry in SETTINGS[variable].geometries)


class _OneNormOneMargin(Claim):
    """Descent in each of several norms, compared with the best margin in each of them."""

    variable: ClassVar[str]
    expected = {"largest_distance_from_the_limits": Bound(high=LIMIT_DISTANCE)}
    paper_value = (
        f"beyond the papers; aim: mean share of the own margin ≥ {OWN_SHARE:g} after {STEPS:,} steps, and ≥ {LONG_OWN_SHARE:g} "
        f"after {LONG_STEPS:,} in stored runs, which are shown and not judged"
    )

    @property
    def setting(self) -> Setting:
        """What is trained, and how."""
        return SETTINGS[self.variable]

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Compute the runs of 10,000 steps, and read the archived ones of 100,000."""
        geometries = self.setting.geometries
        progress.expect(len(geometries) + 1)
        problems = self.setting.draw(PROBLEMS if effort is Effort.PAPER else FEW_PROBLEMS)
        runs = norm_runs(problems, geometries, STEPS, progress.advance)
        long = archived_norm_runs(self.variable, LONG_STEPS)
        progress.advance()
        numbers = _numbers(runs, long)
        arrays = {"runs": runs, "long": long}
        stored = [name for name in numbers if "long" in name]
        sentence, note = _sentence(runs, long, numbers), self.note(runs, long)
        return Finding(sentence, numbers, arrays, note=note, archived=stored)

    @abstractmethod
    def note(self, runs: NormRuns, long: NormRuns) -> str:
        """A note on descents that miss their aim, and why."""

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The table of shares and that of the solutions themselves, and the progress of each descent to its own margin."""
        return {"table": _draw_tables(finding.arrays["runs"]), "own": _draw_course(finding.arrays)}


def _numbers(runs: NormRuns, long: NormRuns) -> dict[str, float]:
    """Means over all problems, the worst of them over norms."""
    own, long_own = np.diag(runs.table), np.diag(long.table)
    n = len(own)
    numbers = {
        "smallest_own_share": float(own.min()),
        "smallest_long_own_share": float(long_own.min()),
        "largest_other_share": float(runs.off_diagonal.max()),
        "largest_distance_from_the_limits": float(np.abs(runs.table - runs.limits.mean(axis=-1)).max()),
        "largest_share": float(max(runs.share.max(), long.share.max())),
        "own_margin_is_the_best_attained": float(np.mean(np.argmax(runs.share, axis=1) == np.arange(n)[:, None])),
        "solver_gap": max(runs.solver_gap, long.solver_gap),
        "smallest_own_share_of_a_run": float(runs.share[np.arange(n), np.arange(n)].min()),
        "smallest_long_own_share_of_a_run": float(long.share[np.arange(n), np.arange(n)].min()),
        "share_of_late_changes": float(runs.changed.mean()),
        "share_of_late_changes_in_long_runs": float(long.changed.mean()),
    }
    for k, name in enumerate(runs.names):
        numbers[f"own_share_{name}"], numbers[f"long_own_share_{name}"] = float(own[k]), float(long_own[k])
        numbers[f"long_settled_share_{name}"] = float(np.mean(long.share[k, k][~long.changed[k]]))
        numbers[f"median_run_gap_{name}"] = float(np.median(runs.gap[k]))
        numbers[f"median_long_run_gap_{name}"] = float(np.median(long.gap[k]))
    for k, row in enumerate(runs.names):
        numbers.update(
            {f"share_{row}_in_{column}": float(runs.table[k, j]) for j, column in enumerate(runs.names) if j != k}
        )
    return numbers


def _sentence(runs: NormRuns, long: NormRuns, numbers: dict[str, float]) -> str:
    own = ", ".join(f"{name} {numbers[f'own_share_{name}']:.4f}" for name in runs.names)
    later = ", ".join(f"{name} {numbers[f'long_own_share_{name}']:.4f}" for name in runs.names)
    gaps = ", ".join(f"{name} {100 * numbers[f'median_run_gap_{name}']:.2g}%" for name in runs.names)
    changes = [
        f"{int(those.changed.sum())} of {those.changed.size} runs of {int(those.steps[-1]):,} steps"
        for those in (runs, long)
    ]
    return (
        f"Mean share of the own margin over {runs.share.shape[-1]} problems after {STEPS:,} steps: {own}; over "
        f"{long.share.shape[-1]} after {LONG_STEPS:,}: {later}. Of the other margins at most {numbers['largest_other_share']:.3f}. "
        f"Each cell is within {numbers['largest_distance_from_the_limits']:.4f} of what the solution of the descent's "
        "own norm has. Median "
        f"gap of the runs' own brackets, without a solver: {gaps}. The selection changed over the second half of "
        f"{' and of '.join(changes)}, all of them counted. Every best margin is proved to a relative {numbers['solver_gap']:.0e}."
    )


def _slowest_words(runs: NormRuns, long: NormRuns) -> str:
    """Why descent in ℓ1 misses its aim; nothing if it does not."""
    k = runs.names.index(SLOWEST)
    short, later = runs.table[k, k], long.table[k, k]
    if short >= OWN_SHARE and later >= LONG_OWN_SHARE:
        return ""
    return (
        f"Coordinate descent needs more steps: it has {short:.4f} of its margin after {STEPS:,} and {later:.4f} after {LONG_STEPS:,}. "
        "A run lacks about log(number of constraints)/(margin × length of its path) of the best margin, and what steps of that length "
        "lose; in ℓ1 the margin "
        "is smallest, one entry moves at a time, and longer steps lose more than they gain, with momentum or falling sizes too."
    )


def _late_words(long: NormRuns) -> str:
    """How far runs that changed their tokens late have come, if there are any."""
    late = [
        f"{name} ({int(changed.sum())}, down to {share[k][changed].min():.3f}; {np.mean(share[k][~changed]):.4f} without)"
        for k, (name, changed, share) in enumerate(zip(long.names, long.changed, long.share, strict=True))
        if changed.any()
    ]
    if not late:
        return ""
    return (
        f"Runs of {LONG_STEPS:,} steps that switched to other tokens in their second half are still on their way to the margin of these, "
        f"and lower the mean: {', '.join(late)}."
    )


class X_N1(_OneNormOneMargin):
    labels = ("X N1",)
    protocol = (
        "n = 6 inputs, T = 8 tokens, d = 10, a query for each input; tokens, queries and head uniform on the sphere, labels ±1, logistic "
        "loss; 200 problems for each descent, from W = 0. Constant steps, the same for all problems, of size (runs of "
        "10,000; × $10^(-1/4)$ "
        f"in those of 100,000) {_steps('W')}. Share: $min_r ⟨a_r, W⟩/‖W‖$ of the last W over the largest such margin for the tokens it "
        "selects, which a bracket proves. Runs of 10,000 steps are taken anew; those of 100,000 are archived, by "
        "python -m experiments.norm_runs W --steps 100000 --problems 200. No run is left out."
    )
    as_stated = _own_shares("W") | {"largest_other_share": Bound(high=OTHER_SHARE)}  # "in no other"
    words = _words("W") | {"largest_other_share": Words("Largest mean share of a margin in another norm")}
    variable = "W"
    runs = _runs("W")

    def note(self, runs: NormRuns, long: NormRuns) -> str:
        """Why coordinate descent is last, if it misses its aim, and what late changes do to a mean."""
        return " ".join(filter(None, [_slowest_words(runs, long), _late_words(long)]))


class X_N2(_OneNormOneMargin):
    labels = ("X N2",)
    protocol = (
        "n = 4 inputs, T = 6 tokens, d = 30, tokens and head uniform on the sphere, labels ±1, logistic loss: 20 constraints in 30 "
        "unknowns, so that any tokens can be selected; 200 problems for each descent, from p = 0. Constant steps, the same for all "
        f"problems, of size (in runs of 10,000; × $10^(-1/4)$ in those of 100,000) {_steps('p')}. Share: "
        "$min_r ⟨a_r, p⟩/‖p‖$ of the last p "
        "over the largest such margin for the tokens it selects, which a bracket proves. Runs of 10,000 steps are taken anew; those of "
        "100,000 are archived, by python -m experiments.norm_runs p --steps 100000 --problems 200. No run is left out."
    )
    as_stated = _own_shares("p")
    words = _words("p")
    variable = "p"
    runs = _runs("p")

    def note(self, runs: NormRuns, long: NormRuns) -> str:
        """A note on margins in other norms of which a descent has most, and on the solutions, which have them too."""
        limits, n = runs.limits.mean(axis=-1), len(runs.names)
        above = [(i, j) for i in range(n) for j in range(n) if i != j and runs.table[i, j] > OTHER_SHARE]
        cells = ", ".join(
            f"{runs.names[i]} in {runs.names[j]} {runs.table[i, j]:.3f} ({limits[i, j]:.3f})" for i, j in above
        )
        close = (
            "Norms of neighbouring powers are so close that a descent has most of the other's margin too. "
            f"Those beyond {OTHER_SHARE:g} are {cells}. "
            "In brackets is what the exact max-margin solution of the descent's own norm has of it."
        )
        return " ".join(filter(None, [close if above else "", _slowest_words(runs, long), _late_words(long)]))


def _draw_tables(runs: NormRuns) -> Figure:
    fig, (left, right) = ml.plotting.figure(2, width=5.6, height=4.9)
    heat_map(left, runs.table, runs.names, runs.names, ".4f")
    left.set(
        xlabel="margin in",
        ylabel="descent in",
        title=f"Runs of {int(runs.steps[-1]):,} steps, {runs.share.shape[-1]} problems",
    )
    heat_map(right, runs.limits.mean(axis=-1), runs.names, runs.names, ".4f")
    right.set(
        xlabel="margin in", ylabel="solution of the margin problem in", title="The max-margin solutions themselves"
    )
    fig.suptitle("Share of the largest margin in each norm")
    return fig


def _draw_course(arrays: Any) -> Figure:
    fig, (left, right) = ml.plotting.figure(2, width=5.6, height=4.5)
    runs, long = arrays["runs"], arrays["long"]
    looks = [
        {"color": ml.plotting.ACCENTS[k], "marker": "osD^v"[k], "ms": 4.5, "label": name}
        for k, name in enumerate(runs.names)
    ]
    for k, look in enumerate(looks):
        left.loglog(long.steps, 1.0 - long.course[k].mean(axis=0), **look)
    level(left, 1.0 - OWN_SHARE, f"aim at {STEPS:,} steps", dash=":")
    level(left, 1.0 - LONG_OWN_SHARE, f"aim at {LONG_STEPS:,} steps")
    left.set(
        xlabel="step", ylabel="1 − mean share of the own margin", title="How far each descent is from its own margin"
    )
    left.legend(title="descent in")
    n = len(runs.names)
    for k, look in enumerate(looks):
        cumulative(right, np.maximum(1.0 - long.share[k, k], 1e-7), look["label"], look["color"])
    right.set(xscale="log", xlabel=f"1 − share of the own margin after {LONG_STEPS:,} steps", ylabel="share of runs")
    right.set(ylim=(0.0, 1.02), title=f"All {n} × {long.share.shape[-1]} runs")
    right.axvline(1.0 - LONG_OWN_SHARE, color=ml.plotting.INK, ls="--", lw=1.2)
    return fig
