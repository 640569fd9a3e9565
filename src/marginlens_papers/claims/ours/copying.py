"""X M: attention that learns to copy, under the squared loss, goes to the max-margin separator of the matching tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.arithmetic.directions import unit
from marginlens.risk import CopyRisk
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress

SEED = 81
N_INPUTS, N_TOKENS, WIDTH = 6, 8, 10
ENOUGH, FEW = 10, 2  # coordinates of a value: at least T - 1 of them, or fewer
STEP = 1.0
VANISHED = -50.0  # logarithm of the loss below which it counts as vanishing


class X_M(Claim):
    labels = ("X M",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train W on random matching problems with values of enough coordinates and of too few."""
        count, n_steps = (20, 3000) if effort is Effort.PAPER else (10, 1000)
        rng = np.random.default_rng(SEED)
        found = {width: _trained(*_problems(count, width, rng), n_steps) for width in progress.each((ENOUGH, FEW))}
        enough, few = found[ENOUGH], found[FEW]
        vanished = enough["log_loss"] < VANISHED
        numbers = {
            "share_whose_loss_vanishes": float(np.mean(vanished)),
            "share_of_these_that_select_the_match": float(np.mean(enough["selects"][vanished])),
            "smallest_share_of_the_margin": float(np.min(enough["share"][vanished], initial=1.0)),
            "smallest_cosine": float(np.min(enough["cosine"][vanished], initial=1.0)),
            "share_that_select_the_match_with_few_coordinates": float(np.mean(few["selects"])),
        }
        measured = (
            f"With values of {ENOUGH} coordinates the loss falls below $e^-{-VANISHED:g}$ in {int(np.sum(vanished))} of {count} runs of "
            f"{n_steps:,} normalised steps; {int(np.sum(enough['selects'][vanished]))} of these select all matching tokens, with "
            f"{numbers['smallest_share_of_the_margin']:.4f} of the best margin or more and a cosine of at least "
            f"{numbers['smallest_cosine']:.5f} with its direction. With {FEW} coordinates, where other averages of values have loss zero "
            f"too, {int(np.sum(few['selects']))} of {count} select them all."
        )
        return Finding(measured, numbers, {"found": found})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The share of the best margin of every run, for both widths."""
        figure, (axes,) = ml.plotting.figure(width=6.4, height=3.8)
        for width, colour in ((ENOUGH, ml.plotting.GLOBAL), (FEW, ml.plotting.LOCAL)):
            share = np.sort(finding.arrays["found"][width]["share"])[::-1]
            axes.plot(
                np.maximum(share, -0.05), "o-", color=colour, ms=5, lw=1.0, label=f"values of {width} coordinates"
            )
        axes.axhline(1.0, color=ml.plotting.INK, lw=1.0, ls=":")
        axes.set(xlabel="run, best first", ylabel="share of the best margin", ylim=(-0.1, 1.08))
        axes.legend(frameon=False, loc="center left")
        axes.set_title("Copying goes to the max-margin separator of the matches")
        return {"shares": figure}


def _problems(count: int, value_width: int, rng: np.random.Generator) -> tuple[ml.TokenDataset, IntArray]:
    """Gaussian tokens, queries and values, and a random match; with keys u_i ⊗ x_it the weights p are W."""
    tokens = rng.standard_normal((count, N_INPUTS, N_TOKENS, WIDTH))
    queries = rng.standard_normal((count, N_INPUTS, WIDTH)) / WIDTH
    values = rng.standard_normal((count, N_INPUTS, N_TOKENS, value_width))
    keys = (queries[:, :, None, :, None] * tokens[:, :, :, None, :]).reshape(count, N_INPUTS, N_TOKENS, -1)
    return ml.TokenDataset(values, np.ones((count, N_INPUTS)), K=keys), rng.integers(N_TOKENS, size=(count, N_INPUTS))


def _trained(data: ml.TokenDataset, match: IntArray, n_steps: int) -> dict[str, Any]:
    """The ends of runs from zero, and the max-margin direction of the matching tokens."""
    risk = CopyRisk.of(data, match)
    run = ml.descend(risk, optimizer=ml.NormalizedGD(STEP), n_steps=n_steps)
    best = ml.att_svm(data, match)
    return {
        "selects": np.all(run.selected == match, axis=-1),
        "share": _margin(data, match, unit(run.final)) / best.margin,
        "cosine": ml.correlation(run.final, best.x),
        "log_loss": risk.log_value(run.final),
    }


def _margin(data: ml.TokenDataset, match: IntArray, direction: FloatArray) -> FloatArray:
    """By how much the matching token's logit leads in the input in which it leads least, (count,)."""
    logits = np.einsum("bitd,bd->bit", data.K, direction)
    lead = np.take_along_axis(logits, match[..., None], axis=-1) - logits
    others = np.arange(N_TOKENS) != match[..., None]
    return np.asarray(np.min(np.where(others, lead, np.inf), axis=(-2, -1)))
