"""X P4 and X N9: how often X Theorem 4 proves the tokens of steps in other norms, and what the length of steps costs of the margin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import marginlens as ml
from marginlens.theory.any_norm import SteepestSteps, plan_for
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import level
from marginlens_papers.claims.ours.norm_problems import RULES, SIZES, Rule, Trained, drawn, geometry
from marginlens_papers.claims.ours.norm_proof_runs import archived_norm_proof_runs
from marginlens_papers.claims.ours.norm_proof_shares import (
    LENGTHS,
    N_CELLS,
    NormProofShares,
    archived_norm_proof_shares,
    norm_proof_shares,
)

AGAIN = {Effort.PAPER: 2, Effort.QUICK: 1}  # problems of each length, norm and size that X P4 follows again
SIZE_N9 = (4, 6, 10)
LEAD = 400.0  # logits that steps at the full margin gain until the end of a run
MEASURED = 4  # the margin is that of the last quarter of a run, where even runs that take long to settle have settled
LOSSES_N9 = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)  # medians of hD₂²/(8γ)
SETTLED = 0.002  # by which the shares of both halves of that quarter differ at most
FEWEST_STEPS, MOST_STEPS = 8_000, 40_000
EUCLIDEAN = "Euclidean"


class X_P4(Claim):
    labels = ("X Thm 4",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Read how many runs are proved, follow some of them again, and compare what is found with what is stored."""
        stored, near, again = archived_norm_proof_shares(), archived_norm_proof_runs(), NormProofShares.none()
        progress.expect(N_CELLS)
        for chunk in norm_proof_shares(AGAIN[effort] * N_CELLS, stored.seed):
            again = again + chunk
            progress.advance()
        saturated, proved, contradicted = (
            stored.count("saturated"),
            stored.count("proved"),
            stored.count("contradicted"),
        )
        shares = proved / np.maximum(saturated, 1)
        numbers = {f"share_proved_{name}": _ratio(proved[j], saturated[j]) for j, name in enumerate(LENGTHS)}
        numbers |= {
            "contradictions": float(contradicted.sum() + again.count("contradicted").sum()),
            "near_contradictions": float(near.contradicted),
            "near_proofs": float(near.total("proved")),
            "near_adversarial": float(near.total("proved", "adversarial")),
            "proved": float(proved.sum()),
            "saturated": float(saturated.sum()),
            "share_proved_again": _ratio(again.count("proved"), again.count("saturated")),
        }
        numbers |= {
            f"share_{length}_{rule}_{'_'.join(map(str, size))}": shares[j, k, cell]
            for j, length in enumerate(LENGTHS)
            for k, rule in enumerate(RULES)
            for cell, size in enumerate(SIZES)
        }
        by_length = "; ".join(
            f"{length.name}: {proved[j].sum():,.0f} of {saturated[j].sum():,.0f} ({100 * numbers[f'share_proved_{name}']:.0f}%)"
            for j, (name, length) in enumerate(LENGTHS.items())
        )
        measured = (
            f"Of the runs that saturate, these are proved: {by_length}. Further steps contradict {numbers['contradictions']:.0f}, "
            f"and {near.contradicted} of {near.total('proved'):,} stored proofs near the border of what the theorem allows, "
            f"{near.total('proved', 'adversarial'):,} of them on adversarial problems."
        )
        return Finding(measured, numbers, {"proved": proved, "saturated": saturated})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Draw the share of runs that are proved, by length of steps, norm and size."""
        fig, axes = ml.plotting.figure(len(LENGTHS), width=3.4, height=3.8)
        places = np.arange(len(SIZES))
        shares = finding.arrays["proved"] / np.maximum(finding.arrays["saturated"], 1)
        for ax, length, of_length in zip(axes, LENGTHS.values(), shares, strict=True):
            for k, (name, heights) in enumerate(zip(RULES, of_length, strict=True)):
                ax.bar(places + 0.16 * (k - 2), heights, width=0.15, color=ml.plotting.ACCENTS[k], label=name)
            ax.set_xticks(places, ["{}, {}, {}".format(*size) for size in SIZES])
            ax.set(ylim=(0.0, 1.05), title=length.name, xlabel="n, T, d")
        axes[0].set_ylabel("share of saturated runs that is proved")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=len(RULES))
        return {"shares": fig}


def _ratio(part: IntArray, whole: IntArray) -> float:
    return float(part.sum() / max(1.0, whole.sum()))


class X_N9(Claim):
    labels = ("X Thm 4",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Run steps of many lengths in every norm, and compare their margins with the largest ones and with the bound."""
        n_problems = 30 if effort is Effort.PAPER else 3
        rules = {**RULES, EUCLIDEAN: Rule(ml.L2())}
        progress.expect(len(rules) * len(LOSSES_N9))
        points: dict[str, FloatArray] = {}
        for name, rule in rules.items():
            unit, rows = 0.0, []
            for k, loss in enumerate(LOSSES_N9):
                problems = list(drawn(rule, n_problems, SIZE_N9, len(SIZES), first=k * n_problems))
                unit = unit or _unit(problems, rule)
                rows += [_loss_and_share(one, rule, loss * unit) for one in problems]
                progress.advance()
            points[name] = np.array([row for row in rows if row is not None])
        below = {name: float((share < 1.0 - loss - 0.02).sum()) for name, (loss, share) in _columns(points)}
        short = {name: float(share[loss <= 0.1].min()) for name, (loss, share) in _columns(points)}
        long = {name: float(share[loss >= 1.0].min()) for name, (loss, share) in _columns(points)}
        control = float(points[EUCLIDEAN][:, 1].min())
        numbers = {
            "runs_below_the_bound": sum(below.values()) - below[EUCLIDEAN],
            "least_share_of_short_steps": min(share for name, share in short.items() if name != EUCLIDEAN),
            "least_share_of_long_steps": min(share for name, share in long.items() if name != EUCLIDEAN),
            "least_share_euclidean": control,
            "runs": float(sum(map(len, points.values()))),
        }
        numbers |= {f"runs_{name}": float(len(rows)) for name, rows in points.items()}
        measured = (
            f"Of {numbers['runs']:,.0f} runs that settle, {numbers['runs_below_the_bound']:.0f} in other norms have less than "
            f"1 - hD₂²/(8γ) of the margin. Steps with hD₂²/(8γ) up to .1 have at least {numbers['least_share_of_short_steps']:.3f} of it, "
            f"those from 1 on down to {numbers['least_share_of_long_steps']:.2f}. Euclidean steps of any of these lengths have at "
            f"least {control:.3f}."
        )
        return Finding(measured, numbers, {"points": points})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Draw the share of the margin over the bound's loss, a dot for every run."""
        fig, [ax] = ml.plotting.figure(1, width=7.6, height=4.6)
        for k, (name, (loss, share)) in enumerate(_columns(finding.arrays["points"])):
            colour = ml.plotting.INK if name == EUCLIDEAN else ml.plotting.ACCENTS[k]
            ax.plot(loss, share, "x" if name == EUCLIDEAN else "o", ms=3.5, alpha=0.7, color=colour, label=name)
        along = np.geomspace(0.005, 1.0, 200)
        ax.plot(along, 1.0 - along, "--", color=ml.plotting.INK, lw=1.4, label="1 − hD₂²/(8γ)")
        ax.set(
            xscale="log", xlim=(0.005, 40.0), ylim=(0.0, 1.03), xlabel="hD₂²/(8γ)", ylabel="share of the largest margin"
        )
        level(ax, 1.0, "")
        fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncol=4)
        return {"shares": fig}


def _columns(points: dict[str, FloatArray]) -> Iterator[tuple[str, FloatArray]]:
    return ((name, rows.T) for name, rows in points.items())


def _unit(problems: list[Trained], rule: Rule) -> float:
    """Return the length of steps whose hD₂²/(8γ) is 1 in the median of problems."""
    usual = [geometry(one, rule.norm, one.problem.optimal, of_margin=False) for one in problems]
    return float(np.median([8.0 * at.margin / at.widest**2 for at in usual if at.margin > 0.0]))


def _loss_and_share(trained: Trained, rule: Rule, size: float) -> tuple[float, float] | None:
    """Compute hD₂²/(8γ) and the share of the margin γ of the tokens that a run selects; None if it selects none."""
    usual = geometry(trained, rule.norm, trained.problem.optimal, of_margin=True).margin
    if not usual > 0.0:
        return None
    last = int(np.clip(LEAD / (size * usual), FEWEST_STEPS, MOST_STEPS))
    first, part = last - last // MEASURED, last // MEASURED // 2
    run = ml.descend(trained.risk, start=np.zeros(trained.shape), optimizer=rule.make(size), n_steps=first)
    points = [run.final]
    for _ in range(2):
        run = run.resume(part)
        points.append(run.final)
    data = trained.problem.data
    leading = [np.argmax(np.where(data.mask, data.K @ x.ravel(), -np.inf), axis=-1) for x in points]
    if (np.diff(leading, axis=0) != 0).any():
        return None
    margin, widest, _ = geometry(trained, rule.norm, leading[-1], of_margin=False)
    if not margin > 0.0:
        return None
    rows = plan_for(trained.problem, leading[-1], SteepestSteps(rule.norm, 1e-300, 0.0), trained.shape).rows.a
    ways = np.diff(points, axis=0)
    if not all(np.any(way) for way in ways):
        return None
    shares = [float(np.min(rows @ way.ravel())) / rule.norm.value(way) / margin for way in ways]
    # A run that circles around a finite minimum, or whose tokens still change, has no limit to measure.
    grows = rule.norm.value(points[-1]) > 1.1 * rule.norm.value(points[0])
    settled = grows and abs(shares[1] - shares[0]) < SETTLED
    return (size * widest**2 / (8.0 * margin), shares[1]) if settled else None
