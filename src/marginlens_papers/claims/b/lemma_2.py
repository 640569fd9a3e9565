"""B Lemma 2: the first step moves every embedding by (η₀/2) α_s v, and what is left falls like 1/√d."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data.labelled import LabelledSequences
from marginlens.data.random_sequences import Levels, balanced_sequences, level_sequences
from marginlens.embeddings.first_step import first_step, first_step_errors
from marginlens.embeddings.models import Parameters, initial_parameters
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "B-L2"
LABELS = ("B Lemma 2", "B Eq. (4)", "B Eq. (5)", "B Eq. (6)")
TITLE = "After one step embeddings have moved along v by their signed frequency"
STATEMENT = (
    "One gradient step on all embeddings from E_s, p ~ N(0, I/d) moves E_s by (η₀/2) α_s v and p not at all, up to errors of norm at "
    "most 11 η₀ d^(-1/4), with probability at least 1 - δ for d beyond a polylogarithm of |S| and 1/δ."
)
PROTOCOL = (
    "Six kinds of data: uniform tokens and labels; K-level data; one decisive token per sequence (Assumption 4); lengths from 1 to 20; "
    "a token that fills every positive sequence; two sequences of two tokens. d from 16 to 262,144, several initialisations each; "
    "η₀ = 1, as both sides are proportional to it. The exponent of d is fitted to the mean over initialisations of the largest error."
)
PAPER_VALUE = "errors ≤ 11 η₀ d^(-1/4)"
EXPECTED = {
    "violations": Bound(high=0),
    "largest_ratio_to_bound": Bound(high=1),
    "slowest_exponent": Bound(high=-0.25),
    "alignment_error_at_largest_d": Bound(high=0.25),
    "steps": Bound(low=60),
}
SEED, DELTA, RATE = 21, 0.01, 1.0
MOST_TOKENS = 24


def compute(effort: Effort, progress: Progress) -> Finding:
    """Take the step for every kind of data, width and initialisation, and measure what is left besides α_s v."""
    paper = effort is Effort.PAPER
    widths = 2 ** np.arange(4, 19 if paper else 16, 1 if paper else 2)
    kinds = {name: make(np.random.default_rng([SEED, k])) for k, (name, make) in enumerate(KINDS.items())}
    progress.expect(len(widths))
    errors: dict[str, list[float]] = {name: [] for name in kinds}
    ratios, steps = [], 0
    for d in widths.tolist():
        seeds = max(2, min(30 if paper else 6, 2**16 // d))
        largest, relative = np.zeros((len(kinds), seeds)), []
        for seed in range(seeds):
            start = initial_parameters(MOST_TOKENS, d, np.random.default_rng([SEED, d, seed]), np.float64)
            for k, data in enumerate(kinds.values()):
                step = first_step(Parameters(start.E[: data.n_vocabulary], start.p, start.v), RATE, data)
                found = first_step_errors(step, DELTA)
                largest[k, seed], steps = found.value, steps + 1
                ratios.append(found.value / found.bound)
                relative.append(found.value / float(0.5 * RATE * np.abs(step.alpha).max()))
        for k, name in enumerate(kinds):
            errors[name].append(float(np.mean(largest[k])))
        progress.advance()
    exponents = {name: float(np.polyfit(np.log(widths), np.log(line), 1)[0]) for name, line in errors.items()}
    numbers = {
        "violations": float(np.sum(~(np.array(ratios) <= 1.0))),
        "largest_ratio_to_bound": float(np.max(ratios)),
        "slowest_exponent": float(np.max(list(exponents.values()))),
        "steepest_exponent": min(exponents.values()),
        "median_exponent": float(np.median(list(exponents.values()))),
        "alignment_error_at_largest_d": float(np.max(relative)),
        "steps": float(steps),
    }
    measured = (
        f"{numbers['violations']:.0f} of {steps:,} steps are above the bound; the largest error is {numbers['largest_ratio_to_bound']:.3f} "
        f"of it. Errors fall like d^({numbers['median_exponent']:.3f}) (median over kinds of data; from {min(exponents.values()):.3f} to "
        f"{max(exponents.values()):.3f}), where the bound has d^(-1/4). At d = {widths[-1]:,} the largest error is at most "
        f"{numbers['alignment_error_at_largest_d']:.3f} of the largest displacement (η₀/2) max|α_s|. The bound is below the largest "
        f"possible displacement η₀/2 only beyond d = 22⁴ = 234,256."
    )
    arrays = {"d": widths, "errors": errors, "exponents": exponents}
    return Finding(measured, numbers, arrays)


def _uniform(rng: np.random.Generator) -> LabelledSequences:
    return LabelledSequences(rng.integers(20, size=(60, 10)), rng.choice([-1.0, 1.0], size=60), 20)


def _levels(rng: np.random.Generator) -> LabelledSequences:
    return level_sequences(60, 12, rng, Levels(deltas=(0.3, 0.1), sizes=(4, 3), n_irrelevant=10, share=0.3))


def _ragged(rng: np.random.Generator) -> LabelledSequences:
    lists = [rng.integers(20, size=rng.integers(1, 21)) for _ in range(50)]
    return LabelledSequences(lists, rng.choice([-1.0, 1.0], size=50), 20)


def _filled(rng: np.random.Generator) -> LabelledSequences:
    positive = [[0] * 6] * 20
    return LabelledSequences([*positive, *rng.integers(1, 12, size=(20, 6)).tolist()], [1.0] * 20 + [-1.0] * 20, 12)


KINDS: dict[str, Callable[[np.random.Generator], LabelledSequences]] = {
    "uniform": _uniform,
    "K-level": _levels,
    "one decisive token": lambda rng: balanced_sequences(40, 8, 4, 14, rng),
    "lengths 1 to 20": _ragged,
    "one token fills half": _filled,
    "n = T = 2": lambda rng: LabelledSequences([[0, 1], [2, 1]], [1.0, -1.0], 3),
}


def draw(finding: Finding) -> dict[str, Figure]:
    """The largest error over the width for each kind of data, beside the bound."""
    fig, (ax,) = plotting.figure(1, width=7.4, height=4.6)
    d = finding.arrays["d"].astype(float)
    ax.loglog(d, 11.0 * d**-0.25, color=plotting.INK, lw=2.0)
    ax.text(d[1], 11.0 * d[1] ** -0.25 * 1.25, "bound 11 d$^{-1/4}$", ha="left", va="bottom")
    marks = "osD^vP"
    for (name, line), colour, mark in zip(finding.arrays["errors"].items(), plotting.ACCENTS, marks, strict=False):
        label = f"{name}: d$^{{{finding.arrays['exponents'][name]:.2f}}}$"
        ax.loglog(d, line, color=colour, lw=1.6, marker=mark, ms=4, label=label)
    guide = 0.3 * finding.arrays["errors"]["uniform"][0] * (d / d[0]) ** -0.5
    ax.loglog(d, guide, color=plotting.PATH, ls="--", lw=1.2)
    ax.text(d[len(d) // 2], 0.8 * guide[len(d) // 2], "slope −1/2", ha="right", va="top")
    ax.set(xlabel="width d", ylabel="largest ‖err‖ / η₀", ylim=(None, 60.0))
    ax.set_title("What the first step leaves besides α$_s$ v")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return {"errors": fig}
