"""C Thm 3 as stated: constant steps from any start turn W to the max-margin direction and its cyclic part to the correction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import marginlens as ml
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.theory.bias_table import ON_SEQUENCES
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run
from marginlens_papers.claims.c.training_curves import norms_of_matrices

SEED = 23
SHAPE = (6, 8, 6, 4)  # K, d, n, T
SHORTEST_CORRECTION = 0.1
WRONG_FACTOR = 1.1  # the control's W^cyc
DATASETS = 8
DECADE_POINTS = 12  # saved steps for each factor of ten


@dataclass(frozen=True)
class Series:
    """Runs of one kind: the norm of W(0), whose Lipschitz constant L gives the step 1/L, how many steps, as a multiple, and on how many
    of the datasets, the first ones.
    """

    name: str
    start_norm: float
    papers_constant: bool = False
    times: int = 1
    datasets: int = DATASETS


SERIES = (
    Series("W(0) = 0", 0.0),
    Series("‖W(0)‖ = 16", 16.0),
    Series("‖W(0)‖ = 32", 32.0),
    Series("W(0) = 0, L of Eq. (23)", 0.0, papers_constant=True),
    Series("‖W(0)‖ = 32, L of Eq. (23)", 32.0, papers_constant=True, times=10, datasets=3),
)


class C_T3(Claim):
    labels = ("C Thm 3", "C Eq. (2)", "C Eq. (3)")
    runs = (Run(ON_SEQUENCES, ml.GradientDescent(1.0)),)  # of size 1/L

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Descend on every dataset from every kind of start."""
        paper = effort is Effort.PAPER
        n_datasets, n_steps = (DATASETS, 1_000_000) if paper else (2, 500_000)
        chosen = SERIES if paper else SERIES[:3]
        n_runs = sum(min(n_datasets, series.datasets) for series in chosen)
        progress.expect(n_runs)
        found: dict[str, list[Curves]] = {chosen_row.name: [] for chosen_row in chosen}
        for j in range(n_datasets):
            rng = np.random.default_rng([SEED, j])
            data, automaton = _problem(rng)
            for series in (some for some in chosen if j < some.datasets):
                start = rng.standard_normal((data.d_model, data.d_model))
                start *= series.start_norm / np.linalg.norm(start)
                found[series.name].append(follow(data, automaton, series, start, n_steps))
                progress.advance()
        numbers, slopes = _numbers(found)
        far = [series.name for series in chosen if series.start_norm == 32.0]
        measured = (
            f"{n_datasets} datasets, {n_runs} runs of {n_steps * max(series.times for series in chosen):,} steps at "
            f"most. Slopes on logarithms over the last two factors of ten: distance within $S_cyc$ {np.median(slopes[0]):.3f} in the "
            f"median ({slopes[0].max():.3f} to {slopes[0].min():.3f}), attention to its limit {np.median(slopes[1]):.3f} "
            f"({slopes[1].max():.3f} to {slopes[1].min():.3f}); distances end between {numbers['smallest_final_distance']:.0e} and "
            f"{numbers['largest_final_distance']:.0e}. Correlation with $W^mm$, rising in all but {numbers['runs_that_turn_away']:.0f} "
            f"runs: {'; '.join(f'{name}: {_range(found, name)}' for name in found)}. Of the growth over the last factor of ten it is "
            f"{numbers['median_corr_of_growth']:.5f} in the median and at least {numbers['smallest_corr_of_growth']:.3f}, and that "
            f"growth is {numbers['median_length_of_growth']:.3f} as long as $W^mm$ log 10 in the median. Controls: to a "
            "$W^cyc$ too long by "
            f"a tenth the distance ends {numbers['control_smallest_distance_ratio']:.0f} times as large or more; with the first step's "
            f"direction the growth's correlation is lower by {numbers['control_smallest_lead_of_growth']:.2f} or more."
        )
        needed = [result.steps_needed for name in far for result in found[name]]
        note = (
            "Eq. (3) is reached, but from far starts Eq. (2) is only under way: W grows like $W^mm$ log τ, so the part of W(0) "
            "orthogonal to it fades like 1/log τ. From norm 32 the correlations end at "
            f"{' and '.join(_range(found, name) for name in far)}; at "
            f"that pace .99 takes from $10^{min(needed):.0f}$ to $10^{max(needed):.0f}$ steps. That the limit is $W^mm$ is shown by the "
            "growth, not by W itself. 1/τ is a bound rather than a law: if its coefficient nearly vanishes, the distance falls faster "
            f"(slope {slopes[0].min():.2f}), and from far starts the fit still holds a transient."
        )
        arrays = {name: [run._asdict() for run in runs] for name, runs in found.items()}
        return Finding(measured, numbers, arrays, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The distance within S_cyc, the attention's distance to its limit, and the correlations, over the steps."""
        fig, (left, middle, right) = ml.plotting.figure(3, width=4.9, height=4.8)
        for series, colour in zip(SERIES, ml.plotting.ACCENTS, strict=False):
            line = "--" if series.papers_constant else "-"
            if series.name not in finding.arrays:
                continue
            for run in finding.arrays[series.name]:
                look = {"color": colour, "lw": 1.1, "alpha": 0.75, "ls": line}
                left.loglog(run["steps"], run["distance"], **look)
                middle.loglog(run["steps"], run["attention"], **look)
                right.semilogx(run["steps"], run["corr"], **look)
            left.plot([], [], color=colour, ls=line, label=series.name)
        for array in finding.arrays[SERIES[0].name]:
            left.loglog(array["steps"], array["wrong_distance"], color=ml.plotting.NEITHER, lw=1.1, zorder=1)
        left.plot([], [], color=ml.plotting.NEITHER, label="control: W$^{cyc}$ too long by a tenth")
        for run in finding.arrays[SERIES[2].name]:
            right.semilogx(run["steps"], run["growth"], color=ml.plotting.INK, lw=1.1, ls=":", alpha=0.8)
        right.plot([], [], color=ml.plotting.INK, ls=":", label="growth W(τ) − W(τ/10), ‖W(0)‖ = 32")
        last = max(float(run["steps"][-1]) for runs in finding.arrays.values() for run in runs)
        guide = np.array([last / 1e3, last])
        for ax in (left, middle):
            ax.loglog(guide, 1e4 / guide, color=ml.plotting.INK, lw=1.6, ls=(0, (6, 2)))
            ax.text(0.09 * last, 1.4e5 / last, "slope −1", ha="left", va="bottom")
        left.set(ylabel=r"$\|\Pi(W) - W^{\rm cyc}\|$", title="The part in S$_{cyc}$ → W$^{cyc}$, like 1/τ")
        middle.set(ylabel="largest total variation to the limit", title="Attention → its limit, like 1/τ")
        right.set(
            ylabel="correlation with $W^{\\rm mm}$", title="The direction → W$^{mm}$, like 1/log τ", ylim=(None, 1.03)
        )
        for ax in (left, middle, right):
            ax.set_xlabel("constant steps τ")
        named, labels = left.get_legend_handles_labels()
        more, texts = right.get_legend_handles_labels()
        fig.legend(named + more, labels + texts, loc="outside lower center", ncol=4, fontsize=9)
        return {"limits": fig}


class Curves(NamedTuple):
    """One run over its saved steps: distances within S_cyc, total variations, correlations, and those of the growth."""

    steps: IntArray
    distance: FloatArray
    wrong_distance: FloatArray
    attention: FloatArray
    corr: FloatArray
    growth: FloatArray  # nan in the first factor of ten
    growth_length: float  # of the last growth, over that of W^mm log 10
    first_step: float  # correlation of the last growth with the first step from zero
    steps_needed: (
        float  # log10 of the steps after which the correlation will be .99, if W goes on growing by W^mm log τ
    )


def _problem(rng: np.random.Generator) -> tuple[ml.SequenceDataset, ml.NextTokenAutomaton]:
    """The first drawn dataset that satisfies the theorem's conditions, with W^mm, W^cyc and the limit of attention."""
    while True:
        data = cyclic_sequences(*SHAPE, rng)
        if ml.graph_svm(data.E, ml.priority_graphs(data)).status is ml.Status.OPTIMAL:
            automaton = ml.NextTokenAutomaton.fit(data)
            if np.linalg.norm(automaton.mix.x) > SHORTEST_CORRECTION:
                return data, automaton


def follow(
    data: ml.SequenceDataset, automaton: ml.NextTokenAutomaton, series: Series, start: FloatArray, n_steps: int
) -> Curves:
    """One run from `start`, compared with the automaton's limits."""
    n_steps = n_steps * series.times
    factors = round(np.log10(n_steps) * DECADE_POINTS)
    steps = np.unique((n_steps * 10.0 ** (-np.arange(factors) / DECADE_POINTS)).round().astype(np.int64))
    L = ml.NextTokenRisk(data).smoothness() if series.papers_constant else ml.NextTokenRisk(data).sharp_smoothness()
    run = ml.descend(
        data,
        optimizer=ml.GradientDescent(1.0 / L),
        n_steps=n_steps,
        start=start,
        record=ml.Record(steps=steps.tolist(), keep=("x",)),
    )
    W = np.asarray(run.saved["x"])
    direction, mix = np.asarray(automaton.priority.x), automaton.mix
    inside = mix.subspace.project(W)
    limit = _limit_attention(data, automaton)
    growth = W[DECADE_POINTS:] - _tenth(W, steps)
    corr = np.asarray(ml.correlation(growth, direction, axes=2))
    first = -ml.NextTokenRisk(data).gradient(np.zeros_like(start)).value()
    return Curves(
        steps,
        norms_of_matrices(inside - mix.x),
        norms_of_matrices(inside - WRONG_FACTOR * mix.x),
        np.array([_total_variation(data, point, limit) for point in W]),
        np.asarray(ml.correlation(W, direction, axes=2)),
        np.concatenate([np.full(len(W) - len(corr), np.nan), corr]),
        float(np.linalg.norm(growth[-1]) / (np.log(10.0) * np.linalg.norm(direction))),
        float(ml.correlation(growth[-1], first, axes=2)),
        _steps_needed(W[-1], direction, n_steps),
    )


def _tenth(W: FloatArray, steps: IntArray) -> FloatArray:
    """The iterates after a tenth of the steps, for all saved ones but the first factor of ten."""
    return np.asarray(W[np.searchsorted(steps, np.round(steps[DECADE_POINTS:] / 10))])


def _limit_attention(data: ml.SequenceDataset, automaton: ml.NextTokenAutomaton) -> FloatArray:
    """(n_positions,) the limit of attention: a token's probability, shared equally among its positions."""
    parts = []
    for i in range(len(data)):
        ids, _ = data[i]
        parts.append((automaton.predict_proba(ids) / np.maximum(np.bincount(ids, minlength=data.n_vocabulary), 1))[ids])
    return np.concatenate(parts)


def _total_variation(data: ml.SequenceDataset, W: FloatArray, limit: FloatArray) -> float:
    """The largest total variation, over the sequences, between the attention at W and its limit."""
    return 0.5 * float(np.add.reduceat(np.abs(data.attention(W) - limit), data.offsets[:-1]).max())


def _steps_needed(W: FloatArray, direction: FloatArray, n_steps: int, target: float = 0.99) -> float:
    """log10 of the steps at which W + W^mm log(τ/n_steps) has the target correlation with W^mm."""
    along = float(np.sum(W * direction)) / float(np.linalg.norm(direction))
    across = float(np.sqrt(max(np.sum(W * W) - along**2, 0.0)))
    missing = max(across * target / np.sqrt(1.0 - target**2) - along, 0.0)
    return float(np.log10(n_steps) + missing / np.linalg.norm(direction) / np.log(10.0))


def _slope(steps: IntArray, values: FloatArray) -> float:
    """Of log values by log steps, over the last two factors of ten."""
    late = slice(-2 * DECADE_POINTS - 1, None)
    return float(np.polyfit(np.log(steps[late]), np.log(values[late]), 1)[0])


def _numbers(found: dict[str, list[Curves]]) -> tuple[dict[str, float], FloatArray]:
    runs = [recipe for series in found.values() for recipe in series]
    slopes = np.array([[_slope(run.steps, run.distance), _slope(run.steps, run.attention)] for run in runs]).T
    zero = [series_runs for name, series in found.items() if "W(0) = 0" in name for series_runs in series]
    growth = np.array([run.growth[-1] for run in runs])
    ends = np.array([run.distance[-1] for run in runs])
    numbers = {
        "median_distance_slope": float(np.median(slopes[0])),
        "slowest_distance_slope": float(slopes[0].max()),
        "steepest_distance_slope": float(slopes[0].min()),
        "median_attention_slope": float(np.median(slopes[1])),
        "slowest_attention_slope": float(slopes[1].max()),
        "steepest_attention_slope": float(slopes[1].min()),
        "smallest_final_distance": float(ends.min()),
        "largest_final_distance": float(ends.max()),
        "largest_final_attention": float(max(run.attention[-1] for run in runs)),
        "median_corr_from_zero": float(np.median([run.corr[-1] for run in zero])),
        "smallest_corr_from_zero": float(min(run.corr[-1] for run in zero)),
        "smallest_corr_from_16": float(min(result.corr[-1] for result in found[SERIES[1].name])),
        "smallest_corr_from_32": float(min(result.corr[-1] for result in found[SERIES[2].name])),
        "median_corr_of_growth": float(np.median(growth)),
        "smallest_corr_of_growth": float(growth.min()),
        "median_length_of_growth": float(np.median([run.growth_length for run in runs])),
        "runs_that_turn_away": float(sum(run.corr[-1] <= run.corr[-1 - DECADE_POINTS] for run in runs)),
        "control_smallest_distance_ratio": float(min(run.wrong_distance[-1] / run.distance[-1] for run in runs)),
        "control_smallest_lead_of_growth": float(min(growth - [run.first_step for run in runs])),
    }
    return numbers, slopes


def _range(found: dict[str, list[Curves]], name: str) -> str:
    ends = [result.corr[-1] for result in found[name]]
    return f"{min(ends):.3f} to {max(ends):.3f}"
