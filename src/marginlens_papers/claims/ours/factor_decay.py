"""X N8: weight decay balances the factors of W by an exact law, and makes their minima those of the nuclear norm."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data import sphere_queries
from marginlens.risk import FactorRisk
from marginlens.theory import factor_balance, nuclear_stationarity
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Words

SEED = 69
DECAYS = (0.0, 0.1, 0.2, 0.4)  # of which zero is the control
STEP, TIME = 0.02, 5.0
LONG_DECAYS, LONG_STEP, LONG_STEPS = (0.0, 0.003, 0.01), 3.0, 3_000
NOTHING = 1e-6  # nuclear norm below which W counts as zero
RANK_RTOL = 1e-6  # singular values below this share of the largest are none
CHECKED = {
    "largest_deviation_from_the_law": (
        Bound(high=0.03),
        "Imbalance at $t = 5$ less $e^(-2λt)$ of the first, over the first: largest",
    ),
    "smallest_imbalance_kept_without_decay": (
        Bound(low=0.97),
        "Control, λ = 0: share of the imbalance that is left, at least",
    ),
    "largest_excess_with_decay": (
        Bound(high=1e-6),
        "$½(‖Q‖² + ‖K‖²)/‖Q Kᵀ‖_* - 1$ after long training with decay, at most",
    ),
    "largest_misalignment_with_decay": (
        Bound(high=0.01),
        "$|1 + ⟨∇L, W⟩/(λ‖W‖_*)|$ after long training with decay, at most",
    ),
    "smallest_slack_with_decay": (Bound(low=-0.05), "$1 - ‖∇L‖₂/λ$ after long training with decay, at least"),
    "smallest_excess_without_decay": (Bound(low=1e-4), "Control, λ = 0: the same excess of squares, at least"),
    "share_of_ranks_that_fall": (
        Bound(low=1.0),
        "Problems in which rank never rises with decay, and falls from none to the most",
    ),
}


class X_N8(Claim):
    labels = ("X N8",)
    protocol = (
        "n = 4 inputs, T = 6 tokens, d = 8, a query for each input, all on the sphere; factors of width 6 from normal entries, logistic "
        f"loss. Law: standard deviation 1, steps of {STEP:g} to $t = {TIME:g}$, λ = 0, .1, .2, .4. Minima: standard deviation .3, "
        f"{LONG_STEPS:,} steps of {LONG_STEP:g}, λ = 0, .003, .01; rank: singular values of W above {RANK_RTOL:g} of the largest; W counts "
        f"as zero if its nuclear norm is below {NOTHING:g}. 8 problems."
    )
    expected = {name: bound for name, (bound, _) in CHECKED.items()}
    words = {name: Words(sentence) for name, (_, sentence) in CHECKED.items()}

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train by every decay, for a short time by small steps and for a long one."""
        count, rng = 8 if effort is Effort.PAPER else 3, np.random.default_rng(SEED)
        data, heads, queries = sphere_queries(count, 4, 6, 8, rng)
        risk = ml.AttentionRisk(data, heads).as_factors(queries, 6)
        start, small = rng.normal(size=(count, *risk.shape)), 0.3 * rng.normal(size=(count, *risk.shape))
        progress.expect(len(DECAYS) + len(LONG_DECAYS))
        marks = np.linspace(0, round(TIME / STEP), 11).astype(int)
        sizes, deviations = [], []
        for decay in DECAYS:
            run = _run(risk, start, decay, STEP, marks)
            imbalance = np.array([[_imbalance(risk[j], x) for x in run[j]] for j in range(count)])
            first, times = imbalance[:, 0], STEP * marks
            law = np.exp(-2.0 * decay * times)[None, :, None, None] * first[:, None]
            scale = np.linalg.norm(first, axis=(-2, -1))[:, None]
            sizes.append(np.linalg.norm(imbalance, axis=(-2, -1)) / scale)
            deviations.append(np.linalg.norm(imbalance - law, axis=(-2, -1)) / scale)
            progress.advance()
        minima, n_steps = [], LONG_STEPS if effort is Effort.PAPER else LONG_STEPS // 2
        for decay in LONG_DECAYS:
            run = _run(risk, small, decay, LONG_STEP, np.array([n_steps]))[:, 0]
            minima.append([_minimum(risk[j], x, decay) for j, x in enumerate(run)])
            progress.advance()
        found = np.array(minima)  # (n_decays, count, 4): excess, misalignment, slack, rank
        ranks = found[..., 3]
        falls = (np.diff(ranks, axis=0) <= 0).all(axis=0) & (ranks[-1] < ranks[0])
        numbers = {
            "largest_deviation_from_the_law": float(np.max(deviations)),
            "smallest_imbalance_kept_without_decay": float(sizes[0][:, -1].min()),
            "largest_excess_with_decay": float(found[1:, :, 0].max()),
            "largest_misalignment_with_decay": float(np.abs(found[1:, :, 1]).max()),
            "smallest_slack_with_decay": float(found[1:, :, 2].min()),
            "smallest_excess_without_decay": float(found[0, :, 0].min()),
            "share_of_ranks_that_fall": float(falls.mean()),
        }
        for decay, rank in zip(LONG_DECAYS, ranks, strict=True):
            numbers[f"mean_rank_at_{decay:g}"] = float(rank.mean())
        arrays = {"times": STEP * marks, "sizes": np.array(sizes), "ranks": ranks}
        return Finding(_sentence(numbers), numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The imbalance over time with its law, and the ranks."""
        fig, (left, right) = ml.plotting.figure(2, width=4.6, height=3.8)
        times = finding.arrays["times"]
        for k, (decay, sizes) in enumerate(zip(DECAYS, finding.arrays["sizes"], strict=True)):
            colour = ml.plotting.ACCENTS[k]
            left.semilogy(times, np.exp(-2.0 * decay * times), "--", color=colour, lw=1.2)
            left.semilogy(np.tile(times, len(sizes)), sizes.ravel(), "o", color=colour, ms=3.5, label=f"λ = {decay:g}")
        left.set(
            xlabel="time: steps times their size", ylabel="imbalance over the first", title="QᵀQ − KᵀK, and e^(−2λt)"
        )
        left.legend()
        ranks = finding.arrays["ranks"]
        right.plot(range(len(LONG_DECAYS)), ranks, "o-", color=ml.plotting.LOCAL, alpha=0.5)
        right.set_xticks(range(len(LONG_DECAYS)), [f"{decay:g}" for decay in LONG_DECAYS])
        right.set(xlabel="weight decay λ", ylabel="rank of W", ylim=(-0.3, 6.4), title="Rank after long training")
        return {"law": fig}


def _run(risk: FactorRisk, start: FloatArray, decay: float, size: float, marks: Any) -> FloatArray:
    """The factors after the steps `marks`, (count, n_marks, *shape)."""
    rule = ml.GradientDescent(size, weight_decay=decay)
    record = ml.Record(marks.tolist())
    points: FloatArray = ml.descend(risk, optimizer=rule, n_steps=int(marks[-1]), start=start, record=record).saved["x"]
    return points


def _imbalance(risk: FactorRisk, x: FloatArray) -> FloatArray:
    return factor_balance(*risk.split(x)).imbalance


def _minimum(risk: FactorRisk, x: FloatArray, decay: float) -> tuple[float, float, float, float]:
    """Relative excess of the squares over the nuclear norm, the residual of the conditions of a minimum, and the rank of W."""
    balance, W = factor_balance(*risk.split(x)), risk.matrix(x)
    left = (0.0, 0.0)
    if decay > 0.0:
        found = nuclear_stationarity(risk.of_p.as_matrix(risk.query).gradient(W).value(), W, decay)
        left = (found.misalignment, found.slack)
    if balance.nuclear_norm < NOTHING:
        return 0.0, 0.0, left[1], 0.0
    values = np.linalg.svd(W, compute_uv=False)
    return balance.excess / balance.nuclear_norm, *left, float(np.sum(values > RANK_RTOL * values[0]))


def _sentence(numbers: dict[str, float]) -> str:
    ranks = ", ".join(f"{numbers[f'mean_rank_at_{decay:g}']:.3g} at λ = {decay:g}" for decay in LONG_DECAYS)
    return (
        f"The imbalance is within {numbers['largest_deviation_from_the_law']:.2g} of its law at every time and decay; without decay "
        f"{numbers['smallest_imbalance_kept_without_decay']:.3f} of it or more is left. After long training with decay the squares exceed "
        f"the nuclear norm by {numbers['largest_excess_with_decay']:.1g} of it at most (without by "
        f"{numbers['smallest_excess_without_decay']:.2g} at least), and the conditions of a minimum of L + λ $‖W‖_*$ are met to "
        f"{numbers['largest_misalignment_with_decay']:.1g}. Mean rank of W: {ranks}."
    )
