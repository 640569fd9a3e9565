"""C Fig 4, Thm 3: on cyclic data the direction converges to Graph-SVM, and the cyclic part to the cyclic correction."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data.random_sequences import cyclic_sequences, cyclic_sequences_as_coded
from marginlens.status import Status
from marginlens_papers.claim import Bound, Effort, Finding, Progress
from marginlens_papers.claims.c.training_curves import (
    GLOBAL,
    Recipe,
    Runs,
    alignment,
    band,
    curve,
    draws,
    kept_steps,
    mean,
    offset,
    offset_of_trained,
    spread,
    train,
)

ID = "C-F4"
LABELS = ("C Fig 4", "C Thm 3")
TITLE = "On cyclic data descent finds Graph-SVM and the cyclic correction"
STATEMENT = (
    "Trained by gradient descent on any data with the log-loss and C Eᵀ = I, the direction of W converges to the Graph-SVM solution "
    "W^mm, and its part in S_cyc to the finite correction W^cyc."
)
PROTOCOL = (
    "K = 6, d = 8, n = 6, T = 4; normalised steps of .01; 100 trials, every one counted: none may be without a W^mm or a finite W^cyc. "
    "The text's form decides: tokens drawn with replacement, each label a random token of its sequence, drawn again until some tokens "
    "tie, W(0) = 0. Beside it the form of the authors' code: no token twice in a sequence, W(0) uniform in ±1/√d, and W^cyc trained on "
    "the cyclic subset for as many steps. Everywhere else W^cyc is the converged one, with a gradient of at most 1e-10. The runs go on "
    "to 40,000 steps; 4,000 decide. Normalised steps are the figure's, not the theorem's: C-T3 takes constant ones."
)
PAPER_VALUE = "corr ≈ .987, distance < .01"
EXPECTED = {
    "corr_at_4000": Bound(low=0.987),
    "distance_at_4000": Bound(high=0.01),
    "infinite": Bound(high=0),
    "undefined": Bound(high=0),
    "code_undefined": Bound(high=0),
}
SEED = 11
SIZES = (6, 8, 6, 4)  # K, d, n, T
TEXT = Recipe(cyclic_sequences, SIZES)
CODE = Recipe(cyclic_sequences_as_coded, SIZES, random_start=True)
PAPER_STEPS, LONG = 4_000, 40_000


def compute(effort: Effort, progress: Progress) -> Finding:
    """Train in both forms; follow the correlation with W^mm and the distance of the cyclic part to W^cyc."""
    trials, last = (100, LONG) if effort is Effort.PAPER else (20, PAPER_STEPS)
    progress.expect(3)
    steps = kept_steps(last, PAPER_STEPS - 1, PAPER_STEPS)
    rng = np.random.default_rng(SEED)
    run = train(TEXT, draws(TEXT, trials, rng), steps, rng)
    graphs = run.graphs
    text, apart = alignment(run, graphs), offset(run)
    progress.advance()
    between = offset(_halfway(run)).distance[:, 0]
    progress.advance()
    rng = np.random.default_rng([SEED, 1])
    coded = train(CODE, draws(CODE, trials, rng), steps, rng)
    code, code_apart = alignment(coded, coded.graphs), offset(coded)
    same_step, _ = offset_of_trained(coded, coded.graphs)
    progress.advance()
    at = run.at(PAPER_STEPS)
    corr, distance = text.corr[:, at], apart.distance[:, at]
    numbers = {
        "corr_at_4000": mean(corr),
        "distance_at_4000": mean(distance),
        "undefined": float(text.undefined),
        "infinite": float(trials - apart.count(Status.FINITE)),
        "smallest_corr_at_4000": float(np.nanmin(corr)),
        "largest_distance_at_4000": float(np.nanmax(distance)),
        "distance_between_iterates": mean(between),
        "corr_at_the_end": mean(text.corr[:, -1]),
        "code_corr_at_4000": mean(code.corr[:, at]),
        "code_distance_at_4000": mean(code_apart.distance[:, at]),
        "code_distance_same_step": mean(same_step[:, at]),
        "code_undefined": float(code.undefined),
    }
    measured = (
        f"At 4,000 steps, over {trials} trials: correlation {spread(corr)} (smallest {np.nanmin(corr):.3f}), distance to the converged "
        f"W^cyc {spread(distance)} (largest {np.nanmax(distance):.4f}); at {last:,} steps the correlation is "
        f"{mean(text.corr[:, -1]):.4f}. W^mm is zero or does not exist in {text.undefined} trials, W^cyc is infinite in "
        f"{numbers['infinite']:.0f}. The code's form gives {spread(code.corr[:, at])} and {spread(code_apart.distance[:, at])}; to W^cyc "
        f"trained for as many steps {mean(same_step[:, at]):.4f}."
    )
    note = (
        f"Steps of fixed length cannot settle: the cyclic part ends up stepping to and fro across W^cyc at half a step, .005, on either "
        f"side. Halfway between two consecutive iterates the mean distance is {mean(between):.4f}."
    )
    arrays = {
        "steps": steps, "corr": text.corr, "distance": apart.distance,
        "code_corr": code.corr, "code_distance": code_apart.distance, "same_step": same_step,
    }  # fmt: skip
    return Finding(measured, numbers, arrays, note)


def _halfway(run: Runs) -> Runs:
    """The middle of the last two iterates up to the paper's end, in place of the runs."""
    at = run.at(PAPER_STEPS)
    middle = 0.5 * (run.points[:, at - 1] + run.points[:, at])
    return Runs(run.recipe, run.datasets, run.steps[at : at + 1], middle[:, None])


def draw(finding: Finding) -> dict[str, Figure]:
    """Correlation and distance over the steps."""
    arrays = finding.arrays
    steps = arrays["steps"]
    fig, (left, right) = plotting.figure(2, width=5.2, height=4.2)
    band(left, steps, arrays["corr"], "text's form, W(0) = 0", color=GLOBAL)
    curve(left, steps, arrays["code_corr"], "code's form, random W(0)", color=plotting.INK, ls="--")
    band(right, steps, arrays["distance"], "text's form", color=GLOBAL)
    curve(right, steps, arrays["code_distance"], "code's form", color=plotting.INK, ls="--")
    curve(right, steps, arrays["same_step"], "code's, same step", color=plotting.ACCENTS[3], ls=":")
    for ax in (left, right):
        ax.axvline(PAPER_STEPS, color=plotting.PATH, ls=":", lw=1.2)
        ax.set(xscale="log", xlabel="normalised steps of .01")
    left.set(ylabel=r"correlation of $W$ with $W^{\rm mm}$", title="Cyclic data: the direction", ylim=(None, 1.02))
    left.legend(loc="lower right", frameon=True, framealpha=1.0, edgecolor="none")
    plotting.note_at(left, "the paper's\nfigure ends", (PAPER_STEPS, 0.5), (6, 0), fontsize=9)
    right.axhline(0.5 * TEXT.step, color=plotting.PATH, lw=1.0, ls="-.")
    plotting.note_at(right, "half a step", (1.0, 0.5 * TEXT.step), (0, -9), color=plotting.PATH, fontsize=9)
    right.set(
        yscale="log", ylabel=r"$\|\Pi(W) - W^{\rm cyc}\|$", title="The part in the cyclic subspace", ylim=(1e-3, None)
    )
    right.legend(loc="upper right", fontsize=9, frameon=True, framealpha=1.0, edgecolor="none")
    return {"convergence": fig}
