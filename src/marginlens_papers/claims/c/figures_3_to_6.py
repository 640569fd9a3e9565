"""C Figs 3 to 6: normalised descent against Graph-SVM and cyclic corrections, of the labels and of what is selected."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.graphs.cyclic import LocalRule, local_subset, selected_positions
from marginlens.losses.next_token import SquaredProbability
from marginlens.svm.solvers.rows import BilinearRows
from marginlens.sweeps import Plan
from marginlens.theory.bias_table import ON_SEQUENCES
from marginlens.typing import BoolArray, Figure, FloatArray, IntArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress, Run, Unit, Words
from marginlens_papers.claims.c.training_curves import (
    GLOBAL,
    RULES,
    THRESHOLD,
    Contrast,
    Recipe,
    Runs,
    aligned,
    alignment,
    contrasts,
    draw_contrasts,
    draws,
    kept_steps,
    local_series,
    mean,
    offset,
    offset_of_trained,
    spread,
    train,
)
from marginlens_papers.claims.drawing import mean_band, mean_curve
from marginlens_papers.claims.random_data import acyclic_sequences_as_coded, cyclic_sequences_as_coded

SEED = 11
ACYCLIC_SIZES = (8, 8, 4, 6)  # K, d, n, T
ACYCLIC_TEXT = Recipe(acyclic_sequences, ACYCLIC_SIZES)
ACYCLIC_CODE = Recipe(acyclic_sequences_as_coded, ACYCLIC_SIZES, random_start=True)
PAPER_STEPS, ACYCLIC_STEPS = 4_000, 100_000
OWN_BAR = 0.995  # for the mean correlation at 4,000 steps, before many trials were run


class C_F3(Claim):
    labels = ("C Fig 3", "C Thm 3")
    runs = (Run(ON_SEQUENCES, ml.NormalizedGD(0.01)),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train in both forms and follow the correlation with W^mm."""
        paper = effort is Effort.PAPER
        trials, many, long_runs, code_steps = (100, 2_000, 100, 20_000) if paper else (20, 40, 6, PAPER_STEPS)
        progress.expect(3)
        steps = kept_steps(ACYCLIC_STEPS, PAPER_STEPS)
        with tempfile.TemporaryDirectory() as folder:
            short = ml.sweep(_acyclic_plan(many, PAPER_STEPS), Path(folder) / "short").table()
            progress.advance()
            long = ml.sweep(_acyclic_plan(long_runs, ACYCLIC_STEPS, steps), Path(folder) / "long").table()
            progress.advance()
        at_4000, text = (np.array(table["curve"].to_pylist()) for table in (short, long))
        at_4000 = at_4000[:, -1]
        undefined = int(np.sum(np.array(short["svm_status"].to_pylist()) != ml.Status.OPTIMAL.name))
        rng = np.random.default_rng([SEED, 1])
        coded = train(ACYCLIC_CODE, draws(ACYCLIC_CODE, trials, rng), kept_steps(code_steps, PAPER_STEPS), rng)
        code = alignment(coded, coded.graphs)
        progress.advance()
        numbers = {
            "corr_at_4000": mean(at_4000),
            "corr_at_100000": mean(text[:, -1]),
            "undefined": float(undefined + code.undefined),
            "first_hundred_at_4000": mean(at_4000[:100]),
            "smallest_at_4000": float(at_4000.min()),
            "smallest_at_100000": float(text[:, -1].min()),
            "code_at_4000": mean(code.corr[:, coded.at(PAPER_STEPS)]),
        }
        measured = (
            f"Mean correlation at 4,000 steps {mean(at_4000):.5f} over {many:,} trials (smallest {at_4000.min():.3f}), "
            f"{spread(at_4000[:100])} over the first {len(at_4000[:100])}; at 100,000 steps {mean(text[:, -1]):.6f} over {len(text)} "
            f"(smallest {text[:, -1].min():.5f}). The code's form gives {spread(code.corr[:, coded.at(PAPER_STEPS)])} at 4,000 steps. "
            f"$W^mm$ is zero or does not exist in {numbers['undefined']:.0f} trials."
        )
        return Finding(
            measured,
            numbers,
            {"steps": steps, "text": text, "code_steps": coded.steps, "code": code.corr},
            note=_acyclic_note(at_4000) if paper else "",
        )

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The correlation with W^mm over the steps, and what is missing from one."""
        arrays = finding.arrays
        fig, (left, right) = ml.plotting.figure(2, width=5.2, height=4.2)
        for ax, of in ((left, lambda corr: corr), (right, lambda corr: 1.0 - corr)):
            mean_band(ax, arrays["steps"], of(arrays["text"]), "text's form, W(0) = 0", color=GLOBAL)
            mean_curve(
                ax, arrays["code_steps"], of(arrays["code"]), "code's form, random W(0)", color=ml.plotting.INK, ls="--"
            )
            ax.axvline(PAPER_STEPS, color=ml.plotting.PATH, ls=":", lw=1.2)
            ax.set_xscale("log")
            ax.set_xlabel("normalised steps of .01")
        left.set(
            ylabel=r"correlation of $W$ with $W^{\rm mm}$",
            title="Acyclic data: the direction converges",
            ylim=(None, 1.01),
        )
        left.legend(loc="lower right", frameon=True, framealpha=1.0, edgecolor="none")
        ml.plotting.note_at(left, "the paper's\nfigure ends", (PAPER_STEPS, 0.5), (6, 0), fontsize=9)
        right.set(yscale="log", ylabel="1 − correlation", title="What is missing falls with the steps")
        right.legend(loc="lower left")
        return {"correlation": fig}


def _acyclic_plan(n_problems: int, n_steps: int, saved_steps: IntArray | None = None) -> Plan:
    """Trials in the text's form; the correlation with W^mm after the saved steps, of which the last one is the only one by default."""
    return Plan(
        problem="next-token",
        data=acyclic_problems,
        n_steps=n_steps,
        n_problems=n_problems,
        seed=SEED,
        record=("svm_status",),
        measures={"curve": correlation_curve},
        saved_steps=(n_steps,) if saved_steps is None else tuple(saved_steps.tolist()),
    )


def acyclic_problems(rng: np.random.Generator, n_problems: int, cell: Any) -> tuple[list[ml.SequenceDataset], None]:
    """Datasets of a chunk in the text's form."""
    return draws(ACYCLIC_TEXT, n_problems, rng), None


def correlation_curve(run: Any) -> FloatArray:
    """(n_problems, n_saved) cosines with W^mm after the saved steps; nan if W^mm is zero or does not exist."""
    return aligned(run.trajectory.saved["x"], run.solution).corr


def _acyclic_note(at_4000: np.ndarray) -> str:
    hundreds = at_4000.reshape(-1, 100).mean(axis=1)
    reached = int(np.sum(hundreds >= OWN_BAR))
    return (
        f"Our own bar for the mean at 4,000 steps was {OWN_BAR:g}, set when a few hundred trials had been run. {len(at_4000):,} trials "
        f"show that the mean is {spread(at_4000)}, above the paper's .99: of {len(hundreds)} batches of one hundred, {reached} reach our "
        f"bar and the others are at least {hundreds.min():.4f}. The paper's .9927 agrees with the code's form."
    )


CYCLIC_SIZES = (6, 8, 6, 4)  # K, d, n, T
CYCLIC_TEXT = Recipe(cyclic_sequences, CYCLIC_SIZES)
CYCLIC_CODE = Recipe(cyclic_sequences_as_coded, CYCLIC_SIZES, random_start=True)
CYCLIC_STEPS = 40_000


class C_F4(Claim):
    labels = ("C Fig 4", "C Thm 3")
    runs = (Run(ON_SEQUENCES, ml.NormalizedGD(0.01)),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train in both forms; follow the correlation with W^mm and the distance of the cyclic part to W^cyc."""
        trials, last = (100, CYCLIC_STEPS) if effort is Effort.PAPER else (20, PAPER_STEPS)
        progress.expect(3)
        steps = kept_steps(last, PAPER_STEPS - 1, PAPER_STEPS)
        rng = np.random.default_rng(SEED)
        run = train(CYCLIC_TEXT, draws(CYCLIC_TEXT, trials, rng), steps, rng)
        graphs = run.graphs
        text, apart = alignment(run, graphs), offset(run)
        progress.advance()
        between = offset(_halfway(run)).distance[:, 0]
        progress.advance()
        rng = np.random.default_rng([SEED, 1])
        coded = train(CYCLIC_CODE, draws(CYCLIC_CODE, trials, rng), steps, rng)
        code, code_apart = alignment(coded, coded.graphs), offset(coded)
        same_step, _ = offset_of_trained(coded, coded.graphs)
        progress.advance()
        at = run.at(PAPER_STEPS)
        corr, distance = text.corr[:, at], apart.distance[:, at]
        numbers = {
            "corr_at_4000": mean(corr),
            "distance_at_4000": mean(distance),
            "undefined": float(text.undefined),
            "infinite": float(trials - apart.count(ml.Status.FINITE)),
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
            f"At 4,000 steps, over {trials} trials: correlation {spread(corr)} (smallest {np.nanmin(corr):.3f}), distance to the "
            f"converged $W^cyc$ {spread(distance)} (largest {np.nanmax(distance):.4f}); at {last:,} steps the correlation is "
            f"{mean(text.corr[:, -1]):.4f}. $W^mm$ is zero or does not exist in {text.undefined} trials, $W^cyc$ is infinite in "
            f"{numbers['infinite']:.0f}. The code's form gives {spread(code.corr[:, at])} and {spread(code_apart.distance[:, at])}; to "
            f"$W^cyc$ trained for as many steps {mean(same_step[:, at]):.4f}."
        )
        note = (
            "Steps of fixed length cannot settle: the cyclic part ends up stepping to and fro across $W^cyc$ at half a step, .005, on "
            f"either side. Halfway between two consecutive iterates the mean distance is {mean(between):.4f}."
        )
        arrays = {
            "steps": steps, "corr": text.corr, "distance": apart.distance,
            "code_corr": code.corr, "code_distance": code_apart.distance, "same_step": same_step,
        }  # fmt: skip
        return Finding(measured, numbers, arrays, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Correlation and distance over the steps."""
        arrays = finding.arrays
        steps = arrays["steps"]
        fig, (left, right) = ml.plotting.figure(2, width=5.2, height=4.2)
        mean_band(left, steps, arrays["corr"], "text's form, W(0) = 0", color=GLOBAL)
        mean_curve(left, steps, arrays["code_corr"], "code's form, random W(0)", color=ml.plotting.INK, ls="--")
        mean_band(right, steps, arrays["distance"], "text's form", color=GLOBAL)
        mean_curve(right, steps, arrays["code_distance"], "code's form", color=ml.plotting.INK, ls="--")
        mean_curve(right, steps, arrays["same_step"], "code's, same step", color=ml.plotting.ACCENTS[3], ls=":")
        for ax in (left, right):
            ax.axvline(PAPER_STEPS, color=ml.plotting.PATH, ls=":", lw=1.2)
            ax.set(xscale="log", xlabel="normalised steps of .01")
        left.set(ylabel=r"correlation of $W$ with $W^{\rm mm}$", title="Cyclic data: the direction", ylim=(None, 1.02))
        left.legend(loc="lower right", frameon=True, framealpha=1.0, edgecolor="none")
        ml.plotting.note_at(left, "the paper's\nfigure ends", (PAPER_STEPS, 0.5), (6, 0), fontsize=9)
        right.axhline(0.5 * CYCLIC_TEXT.step, color=ml.plotting.PATH, lw=1.0, ls="-.")
        ml.plotting.note_at(
            right, "half a step", (1.0, 0.5 * CYCLIC_TEXT.step), (0, -9), color=ml.plotting.PATH, fontsize=9
        )
        right.set(
            yscale="log",
            ylabel=r"$\|\Pi(W) - W^{\rm cyc}\|$",
            title="The part in the cyclic subspace",
            ylim=(1e-3, None),
        )
        right.legend(loc="upper right", fontsize=9, frameon=True, framealpha=1.0, edgecolor="none")
        return {"convergence": fig}


def _halfway(run: Runs) -> Runs:
    """The runs with one point each: the middle of the two iterates at the paper's last step."""
    at = run.at(PAPER_STEPS)
    middle = 0.5 * (run.points[:, at - 1] + run.points[:, at])
    return Runs(run.recipe, run.datasets, run.steps[at : at + 1], middle[:, None])


ZERO_SHARE, ZERO_LEVEL = 0.98, 0.01  # share of trials with distance zero that is tested, and the level of the test
SQUARED_SERIES = local_series(ml.SquaredLoss(), SquaredProbability())
N_STEPS = 4_000
DATA = {"": "Any data", "cyclic_": "Cyclic data", "code_": "Code's series"}  # by how the names of their numbers begin
LOCAL_CORR = {
    f"{key}local_corr": Words(f"{data}: mean correlation with the local solution") for key, data in DATA.items()
}


class C_F5(Claim):
    labels = ("C Fig 5", "C §6")
    protocol = (
        "K = d = 8, n = 4, T = 6, head C = E (unit embeddings, so Assumption 3 holds), normalised steps of .1, 100 trials; the paper "
        "does not state the number of steps, here 4,000. A token is selected when its attention at the end exceeds .01. Three series: "
        "the text's loss $(1 - c_yᵀ f)²$ and W(0) = 0 on any dataset, that is labels drawn at random from their "
        "sequence; the same on data "
        "drawn again until some tokens tie; and the data, loss, start and corrections of the authors' code: no token twice in a "
        "sequence, cyclic, $(1 - softmax_y)²$, W(0) uniform in ±1/√d, corrections trained for as many steps, with 500 more trials to count "
        "how often the local distance is zero. The local correction is made by both rules: of the pseudo-graph a sequence keeps its "
        "label's component (Eqs (4) and (5), and the code), or the component of what it selects. Every trial counts. What must hold is "
        "the contrast between local and global, on any data and in the code's series, and a local distance of zero in the code's series as "
        f"often as a share of {ZERO_SHARE:g} allows at the level {ZERO_LEVEL:g}, whatever the number of trials. What the "
        "paper says about its figure is expected of every series; the lead over the global curve, which they do not state, is judged only "
        "on trials whose two kinds of graph differ and in the code's series."
    )
    expected = {
        "gap_where_differing": Bound(low=0.25),
        "paced_corr": Bound(low=0.999),
        "code_gap": Bound(low=0.25),
        "code_zero_tail": Bound(low=ZERO_LEVEL),
        "undefined": Bound(high=0),
    }
    words = {
        **LOCAL_CORR,
        "code_gap": Words("Code's series: lead of the local over the global correlation"),
        **{
            f"{key}single_share": Words(f"{data}: trials in which each sequence selects one token", Unit.SHARE)
            for key, data in DATA.items()
        },
        **{
            f"{key}zero_share_by_label": Words(
                f"{DATA[key]}: trials whose local distance is zero at every step", Unit.SHARE
            )
            for key in ("", "cyclic_")
        },
        "gap_where_differing": Words("Any data, graphs differing: lead of the local over the global correlation"),
        "paced_corr": Words("Single tokens selected: mean correlation with the local solution of margins 1/2 and 1"),
        "code_zero_tail": Words(
            f"Code's series: probability of so few trials, or fewer, whose local distance is zero if it is in {ZERO_SHARE:.0%}",
        ),
        "undefined": Words("Trials without a solution to compare with", Unit.COUNT),
        "code_zero_share_in_other_draws": Words(
            "Code's series, other draws: trials whose local distance is zero",
            Unit.SHARE,
        ),
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train on the three kinds of data and compare the weights with both kinds of graph."""
        trials = (100, 100, 100) if effort is Effort.PAPER else (40, 12, 12)
        others = 500 if effort is Effort.PAPER else 12
        progress.expect(len(SQUARED_SERIES) + 2)
        found = contrasts(SQUARED_SERIES, trials, N_STEPS, SEED, progress)
        text, cyclic, code = found.values()
        paced = np.concatenate([_paced_corr(contrast) for contrast in (text, cyclic)])
        progress.advance()
        zero = _zero_in_other_draws(others)
        progress.advance()
        apart = ~text.agrees  # where the two kinds of graph agree, so do the two solutions
        numbers = {
            **_ends(found, _squared_ends),
            "code_zero_share_in_other_draws": float(zero.mean()),
            "code_zero_tail": float(binom.cdf(_zero(code), trials[2], ZERO_SHARE)),
            "paced_corr": mean(paced),
            "smallest_paced_corr": float(paced.min()),
            "differing": float(np.sum(apart)),
            "global_corr_where_differing": mean(text.final("global")[apart]),
            "local_corr_where_differing": mean(text.final("local")[apart]),
            "gap_where_differing": mean((text.final("local") - text.final("global"))[apart]),
            "undefined": float(sum(contrast.undefined for contrast in found.values())),
        }
        measured = (
            f"Correlation with the local and the global solution: {spread(text.final('local'))} and {spread(text.final('global'))} in "
            f"{trials[0]} trials on any data ({numbers['local_corr_where_differing']:.3f} and "
            f"{numbers['global_corr_where_differing']:.3f} in the {numbers['differing']:.0f} where the graphs differ), "
            f"{spread(cyclic.final('local'))} and {spread(cyclic.final('global'))} on cyclic data, {spread(code.final('local'))} and "
            f"{spread(code.final('global'))} in the code's series. The local distance is 0 at every step, by the label's component, in "
            f"{_zero(text)}, {_zero(cyclic)} and {_zero(code)} trials; all components are single tokens in {int(text.single.sum())}, "
            f"{int(cyclic.single.sum())} and {int(code.single.sum())}."
        )
        arrays = {"steps": text.runs.steps, **{name: result.curves for name, result in found.items()}}
        return Finding(measured, numbers, arrays, note=_squared_note(found, paced, zero))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Correlation over the steps, global and local, and the distance with the local correction by either rule."""
        return {"local": _draw_series(finding, SQUARED_SERIES, "Squared loss: the direction")}


def _ends(found: dict[str, Contrast], numbers_of: Callable[[Contrast], dict[str, float]]) -> dict[str, float]:
    """The numbers of all series, each name with its series' beginning."""
    several = zip(DATA, found.values(), strict=True)
    return {key + name: number for key, series in several for name, number in numbers_of(series).items()}


def _draw_series(finding: Finding, series: Iterable[str], title: str) -> Figure:
    """Correlation and distances of the three series over the steps."""
    fig, axes = ml.plotting.figure(3, width=4.7, height=4.8)
    lines = zip(series, ("-", ":", "--"), strict=True)
    draw_contrasts(axes, finding.arrays["steps"], [(name, finding.arrays[name], line) for name, line in lines])
    axes[0].set_title(title)
    return fig


def _squared_ends(series: Contrast) -> dict[str, float]:
    local, far = mean(series.final("local")), mean(series.final("global"))
    return {
        "local_corr": local,
        "global_corr": far,
        "gap": local - far,
        "zero_share_by_label": float(series.always_zero("label's component").mean()),
        "single_share": float(series.single.mean()),
        "local_distance_by_label": mean(series.apart("label's component")),
        "local_distance_by_selected": mean(series.apart("selected component")),
        "global_distance": mean(series.apart("global")),
    }


def _zero_in_other_draws(trials: int) -> BoolArray:
    """(trials,) whether no label ties with another token at the end, in the code's series on data of their own."""
    recipe, rng = SQUARED_SERIES["code's form"], np.random.default_rng([SEED, len(SQUARED_SERIES)])
    runs = train(recipe, draws(recipe, trials, rng), np.array([N_STEPS]), rng)
    pairs = zip(runs.datasets, runs.local_graphs, strict=True)
    return np.array([not len(local_subset(data, graphs, LocalRule.LABELS_COMPONENT)) for data, graphs in pairs])


def _zero(series: Contrast) -> int:
    return int(series.always_zero("label's component").sum())


def _squared_note(found: dict[str, Contrast], paced: FloatArray, zero: BoolArray) -> str:
    text, cyclic, code = found.values()
    norms = np.linalg.norm(cyclic.runs.final, axis=(1, 2))
    plain = np.concatenate([contrast.final("local")[contrast.single] for contrast in (text, cyclic)])
    tied = int(np.sum(~text.single)), int(np.sum(~cyclic.single)), int(np.sum(~code.single))
    on_the_way = float(np.nanmax(np.mean(code.distance["selected component"], axis=0)))
    rules = [f"{text.infinite(rule)} and {cyclic.infinite(rule)} by the {rule}" for rule in RULES]
    return (
        "With the loss of the paper's text and cyclic data the mean correlation stays below its .99, for two reasons. If a sequence "
        "selects its label, the loss vanishes and its "
        f"slope with it, so it needs half the margin of a sequence that selects another token: in the {len(paced)} trials with single "
        f"tokens the correlation is {mean(plain):.4f} with the plain local solution and {mean(paced):.5f} (smallest {paced.min():.4f}) "
        "with that of margins 1/2 and 1. If tokens stay tied, fixed steps circle around the correction at about half a step and the "
        f"norm hardly grows (cyclic data: {norms[~cyclic.single].mean():.0f} against {norms[cyclic.single].mean():.0f}). 'Remains zero' "
        f"holds in the code's series, by the code's own rule, in {_zero(code)} of {len(code.agrees)} trials and in {int(zero.sum())} of "
        f"{len(zero)} of other draws; but not because all components are single tokens, as the text says: tokens tie in {tied[2]} "
        f"trials there ({tied[0]} on any and {tied[1]} on cyclic data), other than the label. By the component of the selected tokens, "
        f"which counts these ties, the mean distance of that series rises to {on_the_way:.2f} before it ends at "
        f"{mean(code.apart('selected component')):.3f}. Local corrections are infinite, as tokens are still coming apart, in "
        f"{' and '.join(rules)} (any and cyclic data). On any data the two kinds of graph are the same in {int(text.agrees.sum())} "
        "trials, hence the small gap; the paper's values are closest to the code's series."
    )


def _paced_corr(series: Contrast) -> FloatArray:
    """The correlation with the local solution of two paces, for the trials in which every sequence selects one token."""
    pairs = [
        (data, W)
        for data, W, single in zip(series.runs.datasets, series.runs.final, series.single, strict=True)
        if single
    ]
    return np.array([ml.correlation(W, paced_solution(data, W), axes=2) for data, W in pairs])


def paced_solution(data: ml.SequenceDataset, W: FloatArray) -> FloatArray:
    r"""The shortest matrix that separates what W selects, by 1 if that is not the label and by 1/2 if it is.

    .. math:: \min_V \|V\|_F \ \text{s.t.}\ (e_{\alpha_i} - e_x)^\top V \bar x_i \ge 1 - \tfrac12 [\alpha_i = y_i]
        \quad (x \in X_i,\ x \ne \alpha_i)

    The squared loss has slope 2 (1 - u): if the label is selected, 1 - u itself vanishes like the attention of the other tokens.
    The pull of those tokens is then of second order in their attention, and the direction balances both kinds at twice the exponent.

    Args:
        W: (d_model, d_model) weights with which every sequence selects one token.
    """
    chosen = selected_positions(data, W, THRESHOLD)
    triples, floor = [], []
    for i in range(len(data)):
        ids, label = data[i]
        selected = ids[chosen[data.offsets[i] : data.offsets[i + 1]]][0]
        others = np.setdiff1d(ids, selected)
        triples += [(data.last[i], selected, other) for other in others]
        floor += [0.5 if selected == label else 1.0] * len(others)
    found = ml.least_distance(np.asarray(BilinearRows(data.E, data.E, np.array(triples))), np.array(floor))
    return found.x.reshape(W.shape)


_LOCAL = Bound(high=0.095)  # .09 in the paper's digits
CROSS_ENTROPY_SERIES = local_series(ml.CrossEntropy(), ml.CrossEntropy())
LABEL, SELECTED = RULES
BY_RULE = {"label": LABEL, "selected": SELECTED}
ONE_STEP = 0.1  # normalised steps circle a correction within one of them


class C_F6(Claim):
    labels = ("C Fig 6", "C §6")
    expected = {
        "local_corr": Bound(low=0.985),
        "cyclic_local_corr": Bound(low=0.985),
        "local_distance_by_selected": Bound(high=ONE_STEP),
        "cyclic_local_distance_by_selected": Bound(high=ONE_STEP),
        "infinite_by_selected": Bound(high=0),
        "undefined": Bound(high=0),
    }
    as_stated = {
        **{f"{series}local_corr": Bound(low=0.99) for series in ("", "cyclic_", "code_")},
        **{f"{series}local_distance_by_label": _LOCAL for series in ("", "cyclic_", "code_")},
        **{f"{series}local_distance_by_selected": _LOCAL for series in ("", "cyclic_", "code_")},
        "infinite_by_label": Bound(high=0),
    }
    words = {
        **LOCAL_CORR,
        **{
            f"{key}local_distance_by_{name}": Words(f"{data}: mean distance from the local correction, by the {rule}")
            for name, rule in BY_RULE.items()
            for key, data in DATA.items()
        },
        **{
            f"infinite_by_{name}": Words(f"Trials whose local correction by the {rule} is infinite", Unit.COUNT)
            for name, rule in BY_RULE.items()
        },
        "undefined": Words("Trials without a solution to compare with", Unit.COUNT),
    }

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Train on the three kinds of data and compare the weights with both kinds of graph."""
        trials = (100, 100, 100) if effort is Effort.PAPER else (40, 24, 8)
        progress.expect(len(CROSS_ENTROPY_SERIES))
        found = contrasts(CROSS_ENTROPY_SERIES, trials, N_STEPS, SEED, progress)
        text, cyclic, code = found.values()
        numbers = {
            **_ends(found, _cross_entropy_ends),
            "global_infinite": float(text.infinite("global")),
            "cyclic_global_infinite": float(cyclic.infinite("global")),
            "infinite_by_label": float(text.infinite(LABEL) + cyclic.infinite(LABEL)),
            "infinite_by_selected": float(text.infinite(SELECTED) + cyclic.infinite(SELECTED)),
            "undefined": float(sum(contrast.undefined for contrast in found.values())),
        }
        measured = (
            f"{trials[0]} trials on any data: correlation {spread(text.final('local'))} with the local and "
            f"{spread(text.final('global'))} with the global solution, {_words(text)}. Cyclic data: {spread(cyclic.final('local'))} and "
            f"{spread(cyclic.final('global'))}, {_words(cyclic)}. The code's series: {spread(code.final('local'))} and "
            f"{spread(code.final('global'))}, {_words(code)}."
        )
        passing = _when(code, 9.59)
        note = (
            "No reading of 'local' gives both distances of the paper, .09 and 9.59, at the same number of steps. "
            "The global correction is infinite in "
            f"{text.infinite('global')} trials on any data and {cyclic.infinite('global')} on cyclic data: within a component the risk "
            "keeps falling. The global distance grows with the steps, so its value says how long a run was: in the code's series its mean "
            f"passes the paper's 9.59 at about {code.runs.steps[passing]:.0f} steps, at which the local one is "
            f"{mean(code.distance[LABEL][:, passing]):.2f} by the label's component and {mean(code.distance[SELECTED][:, passing]):.2f} by "
            "the selected one. By the paper's own rule the local distance of the code's series grows as well, to "
            f"{mean(code.apart(LABEL)):.1f}: in {int(np.sum(code.apart(LABEL) > 1.0))} trials two sequences tie the same tokens and one of "
            "them has its label elsewhere; that one drops out, and the correction of the other keeps driving the tokens apart while W "
            "keeps them together. If a local correction by the selected component is not zero, W circles around it at half a step, .05."
        )
        arrays = {"steps": text.runs.steps, **{name: result.curves for name, result in found.items()}}
        return Finding(measured, numbers, arrays, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Correlation over the steps, global and local, and the distance with the local correction by either rule."""
        return {"local": _draw_series(finding, CROSS_ENTROPY_SERIES, "Cross-entropy: the direction")}


def _cross_entropy_ends(series: Contrast) -> dict[str, float]:
    far = mean(series.apart("global"))
    numbers = {
        "local_corr": mean(series.final("local")),
        "global_corr": mean(series.final("global")),
        "smallest_local_corr": float(np.nanmin(series.final("local"))),
        "global_distance": far,
        "tied": float(np.sum(~series.single)),
    }
    for name, rule in BY_RULE.items():
        near = mean(series.apart(rule))
        numbers[f"local_distance_by_{name}"] = near
        numbers[f"distance_ratio_by_{name}"] = far / near if near > 0.0 else float("inf")
    return numbers


def _when(series: Contrast, distance: float) -> int:
    """The place of the first kept step at which the mean global distance exceeds a value."""
    return int(np.argmax(np.mean(series.distance["global"], axis=0) > distance))


def _words(series: Contrast) -> str:
    infinite = f" (infinite in {series.infinite('global')})" if series.status else ""
    return (
        f"distance {mean(series.apart(LABEL)):.4f} to the local correction by the label's component and "
        f"{mean(series.apart(SELECTED)):.4f} by the selected one (not zero in {int(np.sum(~series.empty[LABEL]))} and "
        f"{int(np.sum(~series.single))} trials), {mean(series.apart('global')):.1f} to the global one{infinite}"
    )
