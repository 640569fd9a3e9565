"""Runs on next-token data and what theory predicts for them: correlation and distance along the run, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.graphs.cyclic import LocalRule, local_subset, local_subspace, pseudo_graphs
from marginlens.graphs.priority import PriorityGraph
from marginlens.losses.next_token import NextTokenLoss
from marginlens.nexttoken.correction import local_correction
from marginlens.result.palette import ACCENTS
from marginlens.typing import Axes, BoolArray, FloatArray, IntArray
from marginlens_papers.claim import Progress
from marginlens_papers.claims.drawing import mean_band, mean_curve
from marginlens_papers.claims.random_data import cyclic_sequences_as_coded, random_sequences, random_start

Graphs = Mapping[int, PriorityGraph]
GLOBAL, LOCAL = ACCENTS[1], ACCENTS[0]  # blue and orange, as in paper C's own figures
DISTANCE_TITLES = {"label's component": "labels' components", "selected component": "selected components"}
KINDS = ("global", "local")
RULES = {"label's component": LocalRule.LABELS_COMPONENT, "selected component": LocalRule.SELECTED_COMPONENT}
THRESHOLD = 0.01  # attention above which a token counts as selected: "s > 0" in the text


@dataclass(frozen=True)
class Recipe:
    """How a series of runs is made.

    Attributes:
        draw: makes a dataset, called with the four `sizes` K, d, n, T and a generator.
        own_head: the head is C = E; else C Eᵀ = I. step: size of the normalised steps.
        random_start: W(0) uniform in ±1/√d; else zero.
    """

    draw: Callable[..., ml.SequenceDataset]
    sizes: tuple[int, int, int, int]
    loss: NextTokenLoss = ml.LogLoss()  # noqa: RUF009
    own_head: bool = False
    step: float = 0.01
    random_start: bool = False


@dataclass(frozen=True, repr=False, eq=False)
class Runs:
    """Trained weights `points` (n_trials, n_saved, d_model, d_model) after the given `steps` (n_saved,), trial by trial."""

    recipe: Recipe
    datasets: list[ml.SequenceDataset]
    steps: IntArray
    points: FloatArray

    @property
    def final(self) -> FloatArray:
        """(n_trials, d_model, d_model) where the runs end."""
        return np.asarray(self.points[:, -1])

    def at(self, step: int) -> int:
        """The place of a kept step."""
        return int(np.searchsorted(self.steps, step))

    @property
    def graphs(self) -> list[Graphs]:
        """The priority graphs of every dataset, which its labels make."""
        return [ml.priority_graphs(data) for data in self.datasets]

    @property
    def local_graphs(self) -> list[Graphs]:
        """The pseudo-graphs of every dataset, which the final weights make."""
        return [pseudo_graphs(data, W, THRESHOLD) for data, W in zip(self.datasets, self.final, strict=True)]


def kept_steps(n_steps: int, *also: int) -> IntArray:
    """Steps spread evenly on a logarithmic axis from 1 to `n_steps`, and those that are named."""
    evenly = np.geomspace(1, n_steps, 60)
    return np.unique(np.append(evenly, [step for step in also if step <= n_steps]).round().astype(np.int64))


def train(recipe: Recipe, datasets: list[ml.SequenceDataset], steps: IntArray, rng: np.random.Generator) -> Runs:
    """Descend on every dataset by the recipe and keep the weights after `steps`."""
    start = random_start(datasets, rng) if recipe.random_start else None
    return Runs(recipe, datasets, steps, _descend(recipe, datasets, steps, start))


def draws(recipe: Recipe, trials: int, rng: np.random.Generator) -> list[ml.SequenceDataset]:
    """One dataset for each trial."""
    return [recipe.draw(*recipe.sizes, rng) for _ in range(trials)]


def _descend(recipe: Recipe, datasets: Sequence[ml.SequenceDataset], steps: IntArray, start: Any) -> FloatArray:
    run = ml.descend(
        list(datasets),
        head=[data.E for data in datasets] if recipe.own_head else None,
        loss=recipe.loss,
        optimizer=ml.NormalizedGD(recipe.step),
        n_steps=int(steps[-1]),
        start=start,
        record=ml.Record(steps=steps.tolist(), keep=("x",)),
    )
    return np.asarray(run.saved["x"])


@dataclass(frozen=True, repr=False, eq=False)
class Alignment:
    """How runs compare with the Graph-SVM solutions of one set of graphs per trial.

    Attributes:
        corr: (n_trials, n_saved) cosines with W^mm; nan if it is zero or does not exist, 0 if the run itself has no direction.
        status: how many of the problems ended in which `Status`.
    """

    corr: FloatArray
    status: Mapping[ml.Status, int]

    @property
    def undefined(self) -> int:
        """How many trials have no direction to converge to: W^mm is zero, or no W separates."""
        return len(self.corr) - self.status.get(ml.Status.OPTIMAL, 0)


def alignment(runs: Runs, graphs: list[Graphs]) -> Alignment:
    """Solve Graph-SVM for every trial and follow the runs' correlation with it."""
    return aligned(
        runs.points, [ml.graph_svm(data.E, graph) for data, graph in zip(runs.datasets, graphs, strict=True)]
    )


def aligned(points: FloatArray, solved: Sequence[ml.MarginSolution]) -> Alignment:
    """The correlation of weights (n_trials, n_saved, d_model, d_model) with the solutions of their trials."""
    targets = np.stack([solution.x for solution in solved])
    status = [solution.status for solution in solved]
    corr = np.asarray(ml.correlation(points, targets[:, None], axes=2))
    exists = np.array([state is ml.Status.OPTIMAL for state in status])
    corr[exists[:, None] & np.isnan(corr)] = 0.0  # such a run is a miss, not a trial to leave out
    return Alignment(corr, {kind: status.count(kind) for kind in set(status)})


@dataclass(frozen=True, repr=False, eq=False)
class Offset:
    """How far the cyclic parts of runs are from the cyclic corrections of one set of graphs per trial.

    Attributes:
        distance: (n_trials, n_saved) :math:`\\|\\Pi_{S_{cyc}}(W) - W^{cyc}\\|`; zero without cycles, nan if W^cyc is infinite.
        status: (n_trials,) how each correction was found, as `Status`.
    """

    distance: FloatArray
    status: list[ml.Status]

    def count(self, kind: ml.Status) -> int:
        """How many corrections ended with a status."""
        return self.status.count(kind)


def offset(runs: Runs, rule: LocalRule | None = None) -> Offset:
    """The distances to the converged corrections of the labels' graphs, or of the pseudo-graphs by a rule; each minimised from zero."""
    recipe, distance, status = runs.recipe, [], []
    for data, points in zip(runs.datasets, runs.points, strict=True):
        head = data.E if recipe.own_head else None
        if rule is None:
            found = ml.cyclic_correction(data, head=head, loss=recipe.loss)
        else:
            found = local_correction(data, points[-1], rule, threshold=THRESHOLD, head=head, loss=recipe.loss)
        distance.append(norms_of_matrices(found.subspace.project(points) - found.x))
        status.append(found.status)
    return Offset(np.stack(distance), status)


def offset_of_trained(
    runs: Runs, graphs: list[Graphs], rule: LocalRule = LocalRule.LABELS_COMPONENT
) -> tuple[FloatArray, BoolArray]:
    """Distances to corrections trained on the cyclic subsets from zero, each taken after as many steps as the run.

    This is how the authors' code makes corrections; for pseudo-graphs its rule is that of the label's component. For the labels' own
    graphs the rule makes no difference.

    Returns:
        (n_trials, n_saved) the distances, and (n_trials,) whether a trial's cyclic subset is empty, so that its distance is zero.
    """
    subsets = [local_subset(data, graph, rule) for data, graph in zip(runs.datasets, graphs, strict=True)]
    trained = np.zeros_like(runs.points)
    cyclic = [place for place, subset in enumerate(subsets) if len(subset)]
    if cyclic:
        cyclic_subsets: list[Any] = [subsets[place] for place in cyclic]
        trained[cyclic] = _descend(runs.recipe, cyclic_subsets, runs.steps, None)
    spaces = [local_subspace(graph, subset) for graph, subset in zip(graphs, subsets, strict=True)]
    parts = [space.project(points) for space, points in zip(spaces, runs.points, strict=True)]
    return norms_of_matrices(np.stack(parts) - trained), np.array([not len(subset) for subset in subsets])


def mean(values: FloatArray) -> float:
    """The mean of what is not nan; nan if nothing is left."""
    left = values[~np.isnan(values)]
    return float(left.mean()) if len(left) else float("nan")


def spread(values: FloatArray) -> str:
    """Mean and standard error of what is not nan, as text with two digits of the error."""
    left = values[~np.isnan(values)]
    error = float(left.std() / np.sqrt(len(left)))
    digits = 2 if error == 0.0 else int(np.clip(1 - np.floor(np.log10(error)), 2, 9))
    return f"{left.mean():.{digits}f} ± {error:.{digits}f}"


def norms_of_matrices(matrices: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.norm(matrices, axis=(-2, -1)))


@dataclass(frozen=True, repr=False, eq=False)
class Contrast:
    """Runs against both theories: that of the labels' graphs ("global") and that of the graphs of what is selected ("local").

    Attributes:
        corr: (n_trials, n_saved) for "global" and "local". distance: (n_trials, n_saved) for "global" and for each of `RULES`, by which
            the local correction is made. status: the `Status` of each trial, whose corrections converged, by the same names.
        empty: (n_trials,) by rule, whether the local cyclic subset is empty, so that the local distance is zero at every step.
        agrees: (n_trials,) whether the two kinds of graph are equal.
        undefined: Graph-SVMs, of either kind, that have no solution or a zero one.
    """

    runs: Runs
    corr: Mapping[str, FloatArray]
    distance: Mapping[str, FloatArray]
    status: Mapping[str, list[ml.Status]]
    empty: Mapping[str, BoolArray]
    agrees: BoolArray
    undefined: int

    @property
    def single(self) -> BoolArray:
        """(n_trials,) whether every component of the pseudo-graphs is a single token: no sequence selects tokens that tie."""
        return self.empty["selected component"]

    def final(self, kind: str) -> FloatArray:
        """(n_trials,) the correlation at the end with the "global" or the "local" solution."""
        return self.corr[kind][:, -1]

    def apart(self, kind: str) -> FloatArray:
        """(n_trials,) the distance at the end to the "global" correction, or to the local one by a rule's name."""
        return self.distance[kind][:, -1]

    def infinite(self, kind: str) -> int:
        """How many corrections are infinite, so that nothing can converge to them."""
        return self.status[kind].count(ml.Status.INFINITE)

    def always_zero(self, rule: str) -> BoolArray:
        """(n_trials,) whether the distance to the local correction is zero at every kept step."""
        return np.asarray(np.all(self.distance[rule] == 0.0, axis=1))

    @property
    def curves(self) -> dict[str, FloatArray]:
        """What `draw_contrasts` shows."""
        return {f"{kind} corr": self.corr[kind] for kind in KINDS} | dict(self.distance)


def contrast(runs: Runs, *, trained: bool = False) -> Contrast:
    """Compare runs with both theories; with corrections trained for as many steps if `trained`, else with converged ones."""
    graphs, local = runs.graphs, runs.local_graphs
    aligned = {kind: alignment(runs, graph_sets) for kind, graph_sets in zip(KINDS, (graphs, local), strict=True)}
    status: dict[str, list[ml.Status]] = {}
    distance, empty = {}, {}
    if trained:
        distance["global"] = offset_of_trained(runs, graphs)[0]
        for name, rule in RULES.items():
            distance[name], empty[name] = offset_of_trained(runs, local, rule)
    else:
        for name in ("global", *RULES):
            found = offset(runs, RULES.get(name))
            distance[name], status[name] = found.distance, found.status
            empty[name] = np.array([state is ml.Status.TRIVIAL for state in found.status])
    return Contrast(
        runs,
        {kind: aligned_runs.corr for kind, aligned_runs in aligned.items()},
        distance,
        status,
        empty,
        np.array([_same(a, b) for a, b in zip(graphs, local, strict=True)]),
        sum(aligned_runs.undefined for aligned_runs in aligned.values()),
    )


def local_series(text: NextTokenLoss, code: NextTokenLoss) -> dict[str, Recipe]:
    """The data and losses of C's Figures 5 and 6: the text's form on any and on cyclic data, and the data, loss and start of the code."""
    sizes = (8, 8, 4, 6)  # K, d, n, T
    return {
        "any data": Recipe(random_sequences, sizes, text, own_head=True, step=0.1),
        "cyclic data": Recipe(cyclic_sequences, sizes, text, own_head=True, step=0.1),
        "code's form": Recipe(cyclic_sequences_as_coded, sizes, code, own_head=True, step=0.1, random_start=True),
    }


def contrasts(
    series: Mapping[str, Recipe], trials: Sequence[int], n_steps: int, seed: int, progress: Progress
) -> dict[str, Contrast]:
    """Train every recipe of a series and compare it with both theories; the code's form, with random starts, has trained corrections."""
    found = {}
    for place, (name, recipe) in enumerate(series.items()):
        rng = np.random.default_rng([seed, place])
        runs = train(recipe, draws(recipe, trials[place], rng), kept_steps(n_steps), rng)
        found[name] = contrast(runs, trained=recipe.random_start)
        progress.advance()
    return found


def _same(first: Graphs, second: Graphs) -> bool:
    """Whether two sets of graphs have the same priorities and ties."""
    return all(
        np.array_equal(graph.strict, second[last].strict) and np.array_equal(graph.tied, second[last].tied)
        for last, graph in first.items()
    )


def draw_contrasts(
    axes: Sequence[Axes], steps: IntArray, series: Sequence[tuple[str, Mapping[str, FloatArray], str]]
) -> None:
    """Correlation at the left, then the distance by each rule; each series is its name, its `Contrast.curves` and a line style."""
    left = axes[0]
    for name, curves, line in series:
        for kind, colour in zip(KINDS, (GLOBAL, LOCAL), strict=True):
            label = f"{kind}, {name}"
            (mean_band if line == "-" else mean_curve)(
                left, steps, curves[f"{kind} corr"], label, color=colour, ls=line
            )
            for ax, rule in zip(axes[1:], RULES, strict=True):
                distance = curves["global"] if kind == "global" else curves[rule]
                mean_curve(ax, steps, distance, label, color=colour, ls=line)
    left.set(xscale="log", xlabel="normalised steps of .1", ylabel=r"correlation of $W$ with Graph-SVM")
    for ax, rule in zip(axes[1:], RULES, strict=True):
        ax.set(xscale="log", xlabel="normalised steps of .1", ylabel=r"distance of $\Pi(W)$ to $W^{\rm cyc}$")
        ax.set(title=f"Distance; local by {DISTANCE_TITLES[rule]}")
        ax.set_yscale("symlog", linthresh=0.01)
        ax.set_ylim(bottom=-0.003)  # so that a distance of zero is seen above the frame
    named, labels = left.get_legend_handles_labels()
    left.figure.legend(named, labels, loc="outside lower center", ncol=len(series), fontsize=9)
