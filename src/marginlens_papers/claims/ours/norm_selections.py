"""X N4: which tokens descents in different norms select on the same data, and whose tokens have the larger margin in which norm."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing
from marginlens_papers.claims.ours.norm_runs import SETTINGS, Setting

SLOWER = 0.1  # sizes of steps relative to those of X-N1 and X-N2, so that paths hardly depend on them
STEPS = 4000
PROBLEMS, FEW_PROBLEMS = 200, 8
CONTROLLED = 20  # problems of the control, whose runs are the longest
FEWEST_DIFFERENT = 0.25  # share of problems in which two descents select differently
VARIABLES = tuple(SETTINGS)


class X_N4(Claim):
    labels = ("X N1", "X N2")
    protocol = (
        f"{PROBLEMS} problems each of X-N1 (five norms on W, n = 6, T = 8, d = 10) and of X-N2 (five norms on p, n = 4, T = 6, d = 30), "
        f"from zero, {STEPS:,} steps of a tenth of the sizes there, without momentum. Selections differ if any of the n tokens does. "
        f"Control: the same descent with steps half as long and twice as many, on {CONTROLLED} of them. Best margins of what was "
        "selected, in every norm, with their brackets. Globally optimal: the token of the highest score $y_i v·x_it$ in every input."
    )
    as_stated = {
        "largest_difference_W": Bound(low=FEWEST_DIFFERENT),
        "largest_difference_p": Bound(low=FEWEST_DIFFERENT),
        "larger_own_margin_W": Bound(low=0.5),
        "larger_own_margin_p": Bound(low=0.5),
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train all problems by all descents, with the control, and compare what they select."""
        count = PROBLEMS if effort is Effort.PAPER else FEW_PROBLEMS
        progress.expect(sum(len(SETTINGS[variable].geometries) for variable in VARIABLES))
        found = {variable: _selections(SETTINGS[variable], count, progress) for variable in VARIABLES}
        numbers: dict[str, float] = {"solver_gap": max(part["solver_gap"] for part in found.values())}
        excess = []
        for variable, part in found.items():
            pairs = ~np.eye(len(part["names"]), dtype=bool)
            numbers[f"largest_difference_{variable}"] = float(part["differ"][pairs].max())
            numbers[f"mean_difference_{variable}"] = float(part["differ"][pairs].mean())
            numbers[f"largest_difference_of_the_control_{variable}"] = float(np.diag(part["differ"]).max())
            excess.append(part["differ"][pairs].mean() - np.diag(part["differ"]).mean())
            numbers[f"larger_own_margin_{variable}"] = part["larger_own"]
            numbers[f"cases_{variable}"] = float(part["cases"])
            for name, share in zip(part["names"], part["best"], strict=True):
                numbers[f"best_tokens_{variable}_{name}"] = float(share)
        numbers["smallest_excess_over_the_control"] = float(min(excess))
        return Finding(_sentence(found, numbers), numbers, {"found": found}, note=_note(found))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """For W and for p: how often two descents differ, who has the larger margin, and how often the best tokens are selected."""
        found = finding.arrays["found"]
        return {f"selections_{variable}": _draw(variable, found[variable]) for variable in found}


def _selections(setting: Setting, count: int, progress: Progress) -> dict[str, Any]:
    """What each descent selects on the setting's problems, and the best margin of that in every norm."""
    problems = setting.draw(count)
    n = len(setting.geometries)
    selected, control, margins, gaps = [], [], [], []
    for geometry in setting.geometries:
        slow, slower = (ml.SteepestDescent(geometry.norm, factor * geometry.size) for factor in (SLOWER, 0.5 * SLOWER))
        selected.append(ml.descend(problems.risk, optimizer=slow, n_steps=STEPS).selected)
        control.append(ml.descend(problems.risk[:CONTROLLED], optimizer=slower, n_steps=2 * STEPS).selected)
        solutions = [problems.best(selected[-1], other.norm) for other in setting.geometries]
        margins.append([solution.margin for solution in solutions])
        gaps.append(max(float(np.max(solution.bracket().gap)) for solution in solutions))
        progress.advance()
    chosen, margin = np.stack(selected), np.array(margins)  # (n, batch, n_inputs), (n, n_norms, batch)
    unlike = np.any(chosen[:, None] != chosen[None], axis=-1)  # (n, n, batch)
    differ = unlike.mean(axis=-1)
    differ[np.arange(n), np.arange(n)] = np.any(chosen[:, :CONTROLLED] != np.stack(control), axis=-1).mean(axis=-1)
    wins, cases = _larger_margins(unlike, margin)
    own = np.arange(n)
    return {
        "names": [geometry.name for geometry in setting.geometries],
        "differ": differ,
        "wins": wins,
        "cases": int(np.triu(unlike.sum(axis=-1), 1).sum()),
        "larger_own": float(np.nansum(wins[own, :, own] * cases) / max(cases.sum(), 1)),
        "best": np.all(chosen == np.asarray(problems.risk.best_tokens()), axis=-1).mean(axis=-1),
        "count": count,
        "solver_gap": max(gaps),
    }


def _larger_margins(unlike: Any, margin: FloatArray) -> tuple[FloatArray, FloatArray]:
    """wins[i, j, k]: of the problems on which descents i and j differ, the share in which i's tokens have the larger margin in norm k.

    Args:
        unlike: (n, n, batch) whether they differ. margin: (n, n_norms, batch).
    Returns:
        wins (n, n, n_norms), nan if they never differ, and in how many problems they do, (n, n).
    """
    larger = (margin[:, None] > margin[None]) & unlike[:, :, None]  # (n, n, n_norms, batch)
    cases = unlike.sum(axis=-1).astype(np.float64)
    with np.errstate(invalid="ignore"):
        return larger.sum(axis=-1) / cases[..., None], cases


def _sentence(found: dict[str, dict[str, Any]], numbers: dict[str, float]) -> str:
    words = []
    for variable, part in found.items():
        pairs = ~np.eye(len(part["names"]), dtype=bool)
        differ = part["differ"]
        low, high = differ[pairs].min(), differ[pairs].max()
        best = ", ".join(f"{name} {100 * share:.0f}%" for name, share in zip(part["names"], part["best"], strict=True))
        words.append(
            f"On {variable}, {part['count']} problems: two descents select differently in {100 * low:.1f}% to {100 * high:.1f}% of "
            f"problems (mean {100 * differ[pairs].mean():.1f}%; the control, steps half as long, {100 * np.diag(differ).mean():.1f}%). If "
            f"they differ, a descent's tokens have the larger margin in its own norm in {100 * part['larger_own']:.0f}% of the "
            f"comparisons. The best token in every input: {best}."
        )
    return " ".join(words) + f" Margins are proved to a relative {numbers['solver_gap']:.0e}."


def _note(found: dict[str, dict[str, Any]]) -> str:
    """The comparisons in which the tokens of the other descent have the larger margin in a descent's own norm."""
    misses = []
    for variable, part in found.items():
        names, wins = part["names"], part["wins"]
        pairs = [(i, j) for i in range(len(names)) for j in range(len(names)) if i != j and wins[i, j, i] < 0.5]
        if pairs:
            words = ", ".join(f"{names[i]} against {names[j]} ({100 * wins[i, j, i]:.0f}%)" for i, j in pairs)
            misses.append(f"on {variable} {words}")
    if not misses:
        return ""
    return f"For some pairs it is less often than the other's in its own norm. These are {'; '.join(misses)}."


def _draw(variable: str, part: dict[str, Any]) -> Figure:
    fig, (left, middle, right) = ml.plotting.figure(3, width=4.9, height=4.9)
    names = part["names"]
    n = len(names)
    drawing.heat_map(left, 100.0 * part["differ"], names, names, ".0f", max(10.0, 100.0 * float(part["differ"].max())))
    left.set(
        xlabel="descent in",
        ylabel="descent in",
        title="Select differently, % of problems\n(diagonal: steps half as long)",
    )
    own = np.array([[100.0 * part["wins"][i, j, i] if i != j else np.nan for j in range(n)] for i in range(n)])
    drawing.heat_map(middle, own, names, names, ".0f", 100.0)
    middle.set(xlabel="than the descent in", ylabel="descent in")
    middle.set_title("Larger margin in its own norm,\n% of problems where the two differ")
    successes = np.round(part["best"] * part["count"])
    low, high = drawing.proportion_interval(successes, part["count"])
    place = np.arange(n)
    right.bar(place, 100 * part["best"], color=ml.plotting.LOCAL, width=0.66)
    error = 100 * np.stack([part["best"] - low, high - part["best"]])
    right.errorbar(place, 100 * part["best"], error, fmt="none", color=ml.plotting.INK, capsize=4, lw=1.3)
    right.set(xticks=place, xticklabels=names, xlabel="descent in", ylabel="% of problems", ylim=(0, 100))
    right.set_title("Select the best token in every input\n(95% intervals)")
    right.grid(visible=False, axis="x")
    fig.suptitle(f"Tokens that five descents on {variable} select, {part['count']} problems")
    return fig
