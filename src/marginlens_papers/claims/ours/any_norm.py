"""X P4 and X N9: how often X Theorem 4 proves the tokens of steps in other norms, and what the length of steps costs of the margin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import marginlens as ml
from marginlens.theory import SteepestCertificate
from marginlens.theory.any_norm import SteepestSteps, plan_for
from marginlens.theory.steepest_runs import Runs, outcomes_of
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import level
from marginlens_papers.claims.ours.norm_problems import (
    RULES,
    Geometry,
    Rule,
    Trained,
    contradicts,
    drawn,
    geometry,
)
from marginlens_papers.claims.ours.norm_proof_runs import archived_norm_proof_runs

SIZES = ((1, 3, 2), (2, 4, 3), (3, 5, 10), (4, 6, 90))  # n, T, d
MOMENTUM = 0.9
FORGETS = 0.2  # hD of steps with momentum, relative to log(1/β), at most
LEAST_FURTHER, MORE = 10_000, 10  # steps after a proof: ten times as many, at least 10,000
SIZE_N9 = (4, 6, 10)
LEAD = 400.0  # logits that steps at the full margin gain until the end of a run
MEASURED = 4  # the margin is that of the last quarter of a run, where even runs that take long to settle have settled
LOSSES_N9 = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0)  # medians of hD₂²/(8γ)
SETTLED = 0.002  # by which the shares of both halves of that quarter differ at most
FEWEST_STEPS, MOST_STEPS = 8_000, 40_000
EUCLIDEAN = "Euclidean"


class Length(NamedTuple):
    """How long the steps of X P4 are for the tokens that a run selects, and how many problems take them.

    Attributes:
        name: in words.
        of: computes h from γ, D₂ and D.
        momentum: β.
        n_problems: of each norm and size.
    """

    name: str
    of: Callable[[Geometry], float]
    momentum: float
    n_problems: int


def _by_range(share: float) -> Callable[[Geometry], float]:
    """Return h with hD₂²/(8γ) = share; of a single row, which has no range, h with hγ = .1."""
    return lambda at: 8.0 * share * at.margin / at.widest**2 if at.widest > 0.0 else 0.1 / at.margin


LENGTHS = {
    "quarter": Length("hD₂²/8 = γ/4", _by_range(1 / 4), 0.0, 8),
    "sixteenth": Length("hD₂²/8 = γ/16", _by_range(1 / 16), 0.0, 4),
    "long": Length("hγ = .15", lambda at: 0.15 / at.margin, 0.0, 4),
    "momentum": Length(
        "momentum .9, hD₂²/8 = γ/100",
        lambda at: min(_by_range(1 / 100)(at), FORGETS * np.log(1.0 / MOMENTUM) / at.longest),
        MOMENTUM,
        4,
    ),
}


def followed(trained: Trained, rule: Rule, length: Length) -> Any:
    """Follow a run from zero, with steps of a length for the tokens that it selects; None if there are none."""
    selected, outcome = trained.problem.optimal, None
    for _ in range(3):
        at = geometry(trained, rule.norm, selected, of_margin=True)
        if not at.margin > 0.0:
            return outcome
        optimizer = rule.make(length.of(at), length.momentum)
        runs = Runs([trained.risk], np.zeros((1, *trained.shape)))
        [outcome] = outcomes_of(trained.problem.as_batch(), runs, optimizer)
        if np.array_equal(outcome.selected, selected):
            return outcome
        selected = outcome.selected
    return outcome


def is_contradicted(trained: Trained, rule: Rule, proof: SteepestCertificate, n_steps: int) -> bool:
    """Return whether further steps of a run from zero, which came to the proof's point after `n_steps`, contradict it."""
    optimizer, more = rule.make(proof.longest, proof.momentum), max(MORE * n_steps, LEAST_FURTHER)
    # The run begins again from zero, so that it comes to the point with what it remembers.
    run = ml.descend(trained.risk, start=np.zeros(trained.shape), optimizer=optimizer, n_steps=n_steps)
    return contradicts(trained, proof, run.final, run.resume(more).final, more)


class Counts(NamedTuple):
    """Runs of one norm, size and length: those that saturate, are proved and verified, and whose proofs are contradicted."""

    saturated: int
    proved: int
    verified: int
    contradicted: int


def counted(rule: Rule, cell: int, length: Length, n_problems: int) -> Counts:
    """Follow runs on problems of a size, and go on after each proof."""
    outcomes = [(trained, followed(trained, rule, length)) for trained in drawn(rule, n_problems, SIZES[cell], cell)]
    settled = [(trained, each) for trained, each in outcomes if each is not None and (each.settled or each.proved)]
    certified = [(trained, each) for trained, each in settled if each.certificate is not None]
    return Counts(
        len(settled),
        sum(each.proved for _, each in settled),
        sum(each.verdict is not None and each.verdict.applies for _, each in certified),
        sum(is_contradicted(trained, rule, each.certificate, each.n_steps) for trained, each in certified),
    )


class X_P4(Claim):
    labels = ("X Thm 4",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow runs in every norm and size, count those that saturate and those that are proved, and go on after each proof."""
        progress.expect(len(LENGTHS) * len(SIZES) * len(RULES))
        counts = np.zeros((len(LENGTHS), len(RULES), len(SIZES), 4))
        for j, length in enumerate(LENGTHS.values()):
            n_problems = length.n_problems if effort is Effort.PAPER else 2
            for k, rule in enumerate(RULES.values()):
                for cell in range(len(SIZES)):
                    counts[j, k, cell] = counted(rule, cell, length, n_problems)
                    progress.advance()
        saturated, proved, verified, wrong = np.moveaxis(counts, -1, 0)
        shares, stored = proved / np.maximum(saturated, 1), archived_norm_proof_runs()
        numbers = {f"share_proved_{name}": _ratio(proved[j], saturated[j]) for j, name in enumerate(LENGTHS)}
        numbers |= {
            "contradictions": float(wrong.sum()),
            "stored_contradictions": float(stored.contradicted),
            "stored_proofs": float(stored.total("proved")),
            "stored_adversarial": float(stored.total("proved", "adversarial")),
            "proved": float(proved.sum()),
            "saturated": float(saturated.sum()),
            "share_verified": _ratio(verified, proved),
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
            f"Of the runs that saturate, these are proved: {by_length}. Further steps contradict {wrong.sum():.0f}, "
            f"and {stored.contradicted} of {stored.total('proved'):,} stored proofs near the border of what the theorem allows, "
            f"{stored.total('proved', 'adversarial'):,} of them on adversarial problems."
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


def _ratio(part: FloatArray, whole: FloatArray) -> float:
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
            drawn_ones = list(drawn(rule, n_problems, SIZE_N9, len(SIZES)))
            usual = [geometry(one, rule.norm, one.problem.optimal, of_margin=False) for one in drawn_ones]
            unit = float(np.median([8.0 * at.margin / at.widest**2 for at in usual if at.margin > 0.0]))
            rows = []
            for loss in LOSSES_N9:
                rows += [_loss_and_share(one, rule, loss * unit) for one in drawn_ones]
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
