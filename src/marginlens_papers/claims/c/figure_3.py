"""C Fig 3, Thm 3: on acyclic data, normalised descent turns the key-query weights into the Graph-SVM solution."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data.random_sequences import acyclic_sequences, acyclic_sequences_as_coded
from marginlens_papers.claim import Bound, Effort, Finding, Progress
from marginlens_papers.claims.c.training_curves import (
    GLOBAL,
    Recipe,
    alignment,
    band,
    curve,
    draws,
    kept_steps,
    mean,
    spread,
    train,
)

ID = "C-F3"
LABELS = ("C Fig 3", "C Thm 3")
TITLE = "On acyclic data descent converges to Graph-SVM"
STATEMENT = (
    "Trained by gradient descent on acyclic data with the log-loss and C Eᵀ = I, the weights W grow without bound and their direction "
    "converges to the Graph-SVM solution W^mm."
)
PROTOCOL = (
    "K = d = 8, n = 4, T = 6; normalised steps of .01. The text's form decides: tokens drawn with replacement, the label is the token "
    "highest in one random order, W(0) = 0. One hundred trials run for 100,000 steps; 2,900 more run for 4,000, because the mean of a "
    "hundred is uncertain by .0003. Beside it 100 trials in the form of the authors' code: no token twice in a sequence, random labels "
    "drawn again until no tokens tie, W(0) uniform in ±1/√d. Every trial counts. The bars of .995 and .9995 are ours and stricter than "
    "the paper, which says > .99 at 4,000 steps and nothing beyond. Normalised steps are the figure's, not the theorem's: C-T3 takes "
    "constant ones."
)
PAPER_VALUE = "> .99 after 4,000 steps (.9927 in the figure)"
EXPECTED = {"corr_at_4000": Bound(low=0.995), "corr_at_100000": Bound(low=0.9995), "undefined": Bound(high=0)}
SEED = 11
SIZES = (8, 8, 4, 6)  # K, d, n, T
TEXT = Recipe(acyclic_sequences, SIZES)
CODE = Recipe(acyclic_sequences_as_coded, SIZES, random_start=True)
PAPER_STEPS, LONG = 4_000, 100_000


def compute(effort: Effort, progress: Progress) -> Finding:
    """Train in both forms and follow the correlation with W^mm."""
    paper = effort is Effort.PAPER
    trials, many, long_runs, code_steps = (100, 3_000, 100, 20_000) if paper else (20, 40, 6, PAPER_STEPS)
    progress.expect(4)
    rng = np.random.default_rng(SEED)
    datasets = draws(TEXT, many, rng)
    progress.advance()
    short = train(TEXT, datasets, np.array([PAPER_STEPS]), rng)
    wide = alignment(short, short.graphs)
    at_4000 = wide.corr[:, 0]
    progress.advance()
    run = train(TEXT, datasets[:long_runs], kept_steps(LONG, PAPER_STEPS), rng)
    text = alignment(run, run.graphs).corr
    progress.advance()
    rng = np.random.default_rng([SEED, 1])
    coded = train(CODE, draws(CODE, trials, rng), kept_steps(code_steps, PAPER_STEPS), rng)
    code = alignment(coded, coded.graphs)
    progress.advance()
    numbers = {
        "corr_at_4000": mean(at_4000),
        "corr_at_100000": mean(text[:, -1]),
        "undefined": float(wide.undefined + code.undefined),
        "first_hundred_at_4000": mean(at_4000[:100]),
        "smallest_at_4000": float(at_4000.min()),
        "smallest_at_100000": float(text[:, -1].min()),
        "code_at_4000": mean(code.corr[:, coded.at(PAPER_STEPS)]),
    }
    measured = (
        f"Mean correlation at 4,000 steps {mean(at_4000):.5f} over {many} trials (smallest {at_4000.min():.3f}), "
        f"{spread(at_4000[:100])} over the first {len(at_4000[:100])}; at 100,000 steps {mean(text[:, -1]):.6f} over {len(text)} "
        f"(smallest {text[:, -1].min():.5f}). The code's form gives {spread(code.corr[:, coded.at(PAPER_STEPS)])} at 4,000 steps. W^mm "
        f"is zero or does not exist in {numbers['undefined']:.0f} trials."
    )
    return Finding(
        measured,
        numbers,
        {"steps": run.steps, "text": text, "code_steps": coded.steps, "code": code.corr},
        note=_note(at_4000) if paper else "",
    )


def _note(at_4000: np.ndarray) -> str:
    hundreds = at_4000.reshape(-1, 100).mean(axis=1)
    return (
        f"The mean at 4,000 steps lies at our own bar of .995, above the paper's .99 ({spread(at_4000)}): of {len(hundreds)} batches of "
        f"one hundred, {int(np.sum(hundreds >= 0.995))} reach it and the others are at least {hundreds.min():.4f}. The paper's .9927 "
        f"agrees with the code's form."
    )


def draw(finding: Finding) -> dict[str, Figure]:
    """The correlation with W^mm over the steps, and what is missing from one."""
    arrays = finding.arrays
    fig, (left, right) = plotting.figure(2, width=5.2, height=4.2)
    for ax, of in ((left, lambda corr: corr), (right, lambda corr: 1.0 - corr)):
        band(ax, arrays["steps"], of(arrays["text"]), "text's form, W(0) = 0", color=GLOBAL)
        curve(ax, arrays["code_steps"], of(arrays["code"]), "code's form, random W(0)", color=plotting.INK, ls="--")
        ax.axvline(PAPER_STEPS, color=plotting.PATH, ls=":", lw=1.2)
        ax.set_xscale("log")
        ax.set_xlabel("normalised steps of .01")
    left.set(
        ylabel=r"correlation of $W$ with $W^{\rm mm}$", title="Acyclic data: the direction converges", ylim=(None, 1.01)
    )
    left.legend(loc="lower right", frameon=True, framealpha=1.0, edgecolor="none")
    plotting.note_at(left, "the paper's\nfigure ends", (PAPER_STEPS, 0.5), (6, 0), fontsize=9)
    right.set(yscale="log", ylabel="1 − correlation", title="What is missing falls with the steps")
    right.legend(loc="lower left")
    return {"correlation": fig}
