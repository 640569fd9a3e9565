"""X P1 to X P3: how many limits are proved and from which norm on, whether a proved one is ever wrong, and how fast it is approached."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.arithmetic.directions import length
from marginlens.data.counter_based import sphere_problems
from marginlens.theory.outcome import Outcome, outcomes
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import Figure
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims import drawing
from marginlens_papers.claims.ours.proof_runs import (
    CHUNK,
    COUNTS,
    MARKS,
    SHAPES,
    ProofRuns,
    archived_proof_runs,
    proof_runs,
)

SEED = 31
SIZES = ((1, 3, 2), (2, 4, 3), (3, 5, 10), (4, 6, 90))  # n, T, d
RULES = {"flow": None, "steps": ml.NormalizedGD(1.0)}
MOST_CONES = 50  # of a size and a rule, whose norms are compared
CONTROL = 4  # steps after which predictions are made without a proof
AFTER = (
    10,
    100,
    1_000,
    10_000,
)  # further steps for which norms and angles are predicted; lengths of the flow up to the third


class X_P1(Claim):
    labels = ("X Thm 1", "X Thm 2", "A Thm 3")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow every problem until its limit is proved, count what `verify` confirms, and ask A's Theorem 3 about the same points."""
        n_problems, n_flows = (100, 50) if effort is Effort.PAPER else (5, 5)
        progress.expect(4 * len(SIZES))
        numbers: dict[str, float] = {}
        norms: dict[tuple[str, Any], Any] = {}
        verified, by_cone, radii = [], [], {}
        for cell, size in enumerate(SIZES):
            data, v = sphere_problems(0, n_problems, *size, SEED, cell)
            starts = np.random.default_rng([SEED, cell]).standard_normal((n_problems, size[-1]))
            starts /= length(starts)[:, None]
            for rule, optimizer in RULES.items():
                count = n_problems if optimizer else n_flows
                problem = ScoredTokens(data, v)[:count]
                found: list[Outcome] = []
                for start in (None, starts[:count]):
                    found += outcomes(problem, start, optimizer)
                    progress.advance()
                proofs = [outcome.certificate for outcome in found if outcome.proved]
                tubes = [proof for proof in proofs if isinstance(proof, ml.Certificate)]
                circling = sum(outcome.finite and optimizer is not None for outcome in found)
                verified += [outcome.verdict.applies for outcome in found if outcome.verdict is not None]
                compared = _spread(tubes, MOST_CONES)
                cones = [ml.basin_cone(proof.data, proof.head, proof.selected) for proof in compared]
                radii[rule, size] = [cone.proven_radius for cone in cones]
                by_cone += [
                    cone.contains(proof.point, radius)
                    for cone, proof, radius in zip(cones, compared, radii[rule, size], strict=True)
                ]
                norms[rule, size] = np.array([proof.norm for proof in tubes])
                name = f"{rule}_{'_'.join(map(str, size))}"
                numbers[f"proved_{name}"] = len(proofs) / (len(found) - circling)
                numbers[f"finite_{name}"] = float(np.mean([outcome.finite for outcome in found]))
                numbers[f"median_norm_{name}"] = float(np.median(norms[rule, size]))
        for rule in RULES:
            shares = [share for name, share in numbers.items() if name.startswith(f"proved_{rule}")]
            numbers[f"share_proved_{rule}"] = min(shares)
        numbers["median_norm_largest"] = max(
            numbers[f"median_norm_{rule}_{'_'.join(map(str, SIZES[-1]))}"] for rule in RULES
        )
        numbers["share_verified"], numbers["certificates_verified"] = float(np.mean(verified)), float(len(verified))
        numbers["share_by_cone"] = float(np.mean(by_cone))
        numbers["median_radius_of_cones"] = float(np.median(np.concatenate(list(radii.values()))))
        return Finding(_sentence(numbers, n_problems, n_flows), numbers, {"norms": norms, "radii": radii})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """From which norm on limits are proved, for the flow and for steps, and the norms of A's Theorem 3."""
        fig, axes = ml.plotting.figure(2, width=5.2, height=4.4)
        for ax, rule in zip(axes, RULES, strict=True):
            for size, colour in zip(SIZES, ml.plotting.ACCENTS, strict=False):
                ax.ecdf(finding.arrays["norms"][rule, size], color=colour, lw=2.0, label=_of(size))
                ax.ecdf(finding.arrays["radii"][rule, size], color=colour, ls=":", lw=1.6)
            ax.set(xscale="log", xlim=(1.0, 1e12), ylim=(0.0, 1.02), xlabel="norm of p")
            ax.set_title("The gradient flow" if rule == "flow" else "Normalised steps of length 1")
        axes[0].set_ylabel("share of proved limits")
        axes[1].tick_params(labelleft=False)
        axes[0].plot([], [], color=ml.plotting.INK, ls=":", label="Theorem 3 of paper A")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=5)
        return {"norms": fig}


def _of(size: tuple[int, ...]) -> str:
    return "n = {}, T = {}, d = {}".format(*size)


def _spread(items: list[Any], count: int) -> list[Any]:
    """About this many of some items, evenly spread over them."""
    return [items[k] for k in np.unique(np.linspace(0, len(items) - 1, count).astype(int))] if items else []


def _sentence(numbers: dict[str, float], n_problems: int, n_flows: int) -> str:
    medians = ", ".join(
        f"{numbers[f'median_norm_{rule}_' + '_'.join(map(str, size))]:.0f}" for rule in RULES for size in SIZES
    )
    finite = 100 * numbers["finite_flow_2_4_3"]
    return (
        f"{n_problems} problems of each size, the flow on {n_flows} of them, from zero and from a random unit vector. Of the size with the "
        "fewest proofs "
        f"{100 * numbers['share_proved_flow']:.1f}% of the flows are proved (finite minima, {finite:.0f}% at n = 2, T = 4, d = 3, by X "
        f"Theorem 2), and {100 * numbers['share_proved_steps']:.1f}% of the runs with steps of 1 that do not circle around a finite "
        f"minimum. Median norms at which proofs begin: {medians} (flow, then steps, by size). "
        f"{numbers['certificates_verified']:.0f} proofs were found and checked in interval arithmetic, of which "
        f"{100 * numbers['share_verified']:.2f}% hold. A's Theorem 3 proves "
        f"{100 * numbers['share_by_cone']:.1f}% of the same points; its median norm is {numbers['median_radius_of_cones']:.1e}."
    )


class X_P2(Claim):
    labels = ("X Thm 1",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Take steps until a limit is proved, go on for ten times as many, and count what contradicts it; the same without a proof."""
        n_problems = 8_000 if effort is Effort.PAPER else 500
        progress.expect(len(SHAPES) * -(-n_problems // (len(SHAPES) * CHUNK)))
        chunks = []
        for chunk in proof_runs(n_problems, SEED):
            chunks.append(chunk)
            progress.advance()
        runs, stored = reduce(add, chunks), archived_proof_runs()
        place = MARKS.index(CONTROL)
        numbers = {
            "contradictions": float(runs.contradicted + stored.contradicted),
            "share_proved": runs.total("proved") / n_problems,
            "share_without_proof_wrong": float(runs.open_wrong[:, place].sum() / max(1, runs.open[:, place].sum())),
            "share_outscored": runs.total("outscored") / max(1, runs.total("proved")),
            "proved": float(runs.total("proved")),
            "steps_after_proofs": float(runs.total("further_steps")),
        }
        archived = {f"stored_{name}": float(stored.total(name)) for name in COUNTS}
        archived["stored_contradictions"] = float(stored.contradicted)
        measured = _counted(runs, numbers) + (
            f" Of {archived['stored_proved']:,.0f} proved limits of `{stored.facts['command']}` "
            f"{archived['stored_contradictions']:.0f} are contradicted."
        )
        return Finding(measured, numbers | archived, {"runs": runs + stored}, archived=tuple(archived))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How often the leading tokens are not those of the limit before there is a proof, and how many runs have one, over steps."""
        runs: ProofRuns = finding.arrays["runs"]
        fig, (left, right) = ml.plotting.figure(2, width=5.2, height=4.4)
        marks, problems, proved = np.array(MARKS), runs.counts[:, 0], runs.counts[:, 1]
        for k, (shape, colour) in enumerate(zip(SHAPES, ml.plotting.ACCENTS, strict=False)):
            with np.errstate(divide="ignore", invalid="ignore"):
                share = runs.open_wrong[k] / runs.open[k]
            left.plot(
                marks,
                np.where(share > 0.0, share, np.nan),
                "o-",
                ms=4,
                color=colour,
                label=_of(shape),
            )
            right.plot(marks, (proved[k] - runs.open[k]) / problems[k], "o-", ms=4, color=colour)
        most = float(drawing.proportion_interval(runs.contradicted, max(1, runs.total("proved")))[1])
        left.axhline(most, color=ml.plotting.INK, ls="--", lw=1.4)
        words = f"with a proof: {runs.contradicted} of {runs.total('proved'):,}; 95% bound"
        left.annotate(words, (marks[0], most), (0, 5), textcoords="offset points")
        left.set(xscale="log", yscale="log", ylim=(0.5 * most, 1.3), xlabel="steps after which tokens are predicted")
        left.set(ylabel="share that later steps contradict", title="Without a proof yet: the tokens that lead")
        right.set(xscale="log", ylim=(0.0, 1.0), xlabel="steps", ylabel="share of all problems", title="Limit proved")
        fig.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncol=3)
        return {"contradictions": fig}


def _counted(runs: ProofRuns, numbers: dict[str, float]) -> str:
    return (
        f"{runs.contradicted} of {numbers['proved']:,.0f} proved limits are contradicted by {numbers['steps_after_proofs']:,.0f} further "
        f"steps, although in {100 * numbers['share_outscored']:.0f}% of them a token scores higher than the selected one. Of predictions "
        f"by the leading tokens after {CONTROL} steps, before a proof, "
        f"{100 * numbers['share_without_proof_wrong']:.0f}% are. "
        f"{100 * numbers['share_proved']:.0f}% of the problems are proved within {MARKS[-1]:,} steps."
    )


class X_P3(Claim):
    labels = ("X Thm 1", "X O")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Predict norm and angle from the point of each proof, and go on from there to see."""
        n_problems = 20 if effort is Effort.PAPER else 4
        rules = {"flow": None, "steps of 1": ml.NormalizedGD(1.0), "steps of 0.1": ml.NormalizedGD(0.1)}
        progress.expect(len(SIZES) * len(rules))
        found: dict[str, list[Any]] = {"inside": [], "norm": [], "angle": [], "control": []}
        angles: dict[str, Any] = {}
        for cell, size in enumerate(SIZES):
            data, v = sphere_problems(0, n_problems, *size, SEED + 1, cell)
            for rule, optimizer in rules.items():
                ends = outcomes(ScoredTokens(data, v), None, optimizer)
                proofs = [end.certificate for end in ends if isinstance(end.certificate, ml.Certificate)]
                after = AFTER if optimizer else AFTER[:-1]
                for proof, points in zip(proofs, _points_after(proofs, optimizer, after), strict=True):
                    ahead = proof.forecast(after)
                    angle = np.radians([_angle(point, proof.direction) for point in points])
                    now, norm = np.radians(_angle(proof.point, proof.direction)), length(points)
                    inside = (ahead.angle.low <= angle) & (angle <= ahead.angle.high)
                    found["inside"] += [*(inside & (ahead.norm.low <= norm) & (norm <= ahead.norm.high))]
                    found["norm"] += [*np.abs(ahead.norm.predicted / norm - 1.0)]
                    found["angle"] += [*np.abs(ahead.angle.predicted / angle - 1.0)]
                    found["control"] += [*np.abs(now * proof.norm / norm / angle - 1.0)]
                    angles.setdefault(rule, []).append(np.stack([angle, *ahead.angle]))
                progress.advance()
        numbers = {
            "share_in_bracket": float(np.mean(found["inside"])),
            "median_error_of_angle": float(np.median(found["angle"])),
            "p90_error_of_angle": float(np.percentile(found["angle"], 90)),
            "p90_error_of_norm": float(np.percentile(found["norm"], 90)),
            "p90_error_without_the_law": float(np.percentile(found["control"], 90)),
            "predictions": float(len(found["inside"])),
        }
        measured = (
            f"All {numbers['predictions']:,.0f} norms and angles lie in their brackets."
            if all(found["inside"])
            else f"{100 * numbers['share_in_bracket']:.2f}% of {numbers['predictions']:,.0f} norms and angles lie in their brackets."
        ) + (
            f" Predicted angles are off by {100 * numbers['median_error_of_angle']:.2g}% in the median and "
            f"{100 * numbers['p90_error_of_angle']:.2g}% in the 90th percentile, norms by {100 * numbers['p90_error_of_norm']:.2g}%. "
            "If the angle only fell like one over the norm, from what it is at the proof, the 90th percentile would be "
            f"{100 * numbers['p90_error_without_the_law']:.0f}%."
        )
        return Finding(measured, numbers, {"angles": {rule: np.array(rows) for rule, rows in angles.items()}})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Angles after further steps over what was predicted, and the brackets."""
        fig, axes = ml.plotting.figure(3, width=3.9, height=3.9)
        for ax, (rule, rows) in zip(axes, finding.arrays["angles"].items(), strict=True):
            angle, predicted, low, high = np.moveaxis(np.degrees(rows), 1, 0)
            for k, colour in zip(range(angle.shape[1]), ml.plotting.ACCENTS, strict=False):
                ax.vlines(predicted[:, k], low[:, k], high[:, k], color=colour, alpha=0.12, lw=1.5)
                ax.plot(predicted[:, k], angle[:, k], "o", ms=3, color=colour, label=f"after {AFTER[k]:,}")
            ax.axline((1.0, 1.0), slope=1.0, color=ml.plotting.INK, lw=0.8)
            ax.set(
                xscale="log",
                yscale="log",
                xlim=(1e-4, 40.0),
                ylim=(1e-4, 40.0),
                title=f"The gradient {rule}" if rule == "flow" else f"Normalised {rule}",
            )
            ax.set_xlabel("predicted angle, degrees")
        axes[0].set_ylabel("angle, degrees")
        fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncol=4)
        return {"angles": fig}


def _angle(point: Any, direction: Any) -> float:
    along = float(point @ direction)
    return float(np.degrees(np.arctan2(length(point - along * direction), along)))


def _points_after(proofs: list[ml.Certificate], optimizer: Any, after: tuple[int, ...]) -> list[Any]:
    """The points of each run after further steps, (n_times, d_key)."""
    taken, points = 0, [proof.point for proof in proofs]
    kept: list[list[Any]] = [[] for _ in proofs]
    for steps in after:
        for k, proof in enumerate(proofs):
            options: dict[str, Any] = {"loss": proof.loss, "start": points[k]}
            if optimizer is None:
                points[k] = ml.flow(proof.data, proof.head, until=ml.UntilLength(float(steps - taken)), **options).final
            else:
                points[k] = ml.descend(
                    proof.data, proof.head, optimizer=optimizer, n_steps=steps - taken, **options
                ).final
            kept[k].append(points[k])
        taken = steps
    return [np.array(rows) for rows in kept]
