"""C Lemma 2: the finite part of the weights and the direction in which they diverge are orthogonal."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize

from marginlens import plotting
from marginlens.data.random_sequences import cyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray
from marginlens.graphs.cyclic import CyclicSubset
from marginlens.graphs.priority import priority_graphs
from marginlens.nexttoken.correction import cyclic_correction
from marginlens.svm.graph import graph_svm
from marginlens.svm.solution import Status
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "C-L2"
LABELS = ("C Lemma 2", "C Def 3")
TITLE = "The cyclic correction is orthogonal to the max-margin matrix"
STATEMENT = (
    "The minimum-norm minimiser W^cyc of the risk over the cyclic subset lies in S_cyc, the Graph-SVM solution W^mm is orthogonal to "
    "S_cyc, and so ⟨W^cyc, W^mm⟩ = 0."
)
PROTOCOL = (
    "200 random cyclic datasets, 40 of each of five shapes, two of them with fewer dimensions than tokens; log-loss with C Eᵀ = I. "
    "Datasets whose Graph-SVM is infeasible, or in which W^mm or W^cyc is zero, do not meet the lemma's assumption; they are counted and "
    "drawn again. W^cyc is minimised within S_cyc to a gradient of 1e-10 at most. That it lies there and is the shortest minimiser of "
    "all is checked without S_cyc: the risk over the cyclic subset is minimised by L-BFGS over all matrices, from zero and from a random "
    "start as long as W^cyc. The first minimiser must be W^cyc, with nothing outside the span of the generators (e_j - ē)e_kᵀ; the "
    "second must not be shorter. The curvature in S_cyc is positive, and a random step as long as W^cyc and orthogonal to S_cyc leaves "
    "the risk as it is. W^mm is compared with every generator by its cosine with it. All deviations are relative to the norms; the inner "
    "product also stands unscaled."
)
PAPER_VALUE = "exact"
_BAR = 1e-10
_OUTSIDE_BAR = 1e-7  # of a minimiser that is a sum of thousands of rounded gradients
_FREE_BAR = 1e-4  # L-BFGS stops at a gradient of about 1e-9, and the curvature can be small
EXPECTED = {
    "free_outside": Bound(high=_OUTSIDE_BAR),
    "free_distance": Bound(high=_FREE_BAR),
    "shorter_minimisers": Bound(high=0),
    "mm_inside": Bound(high=_BAR),
    "cosine": Bound(high=_BAR),
    "inner_product": Bound(high=_BAR),
    "gradient": Bound(high=_BAR),
    "risk_change": Bound(high=_BAR),
    "smallest_curvature": Bound(low=1e-8),
}
SEED = 22
SHAPES = ((6, 8, 6, 4), (8, 8, 12, 4), (9, 6, 7, 4), (16, 8, 8, 4), (20, 30, 60, 6))  # K, d, n, T
NAMES = (
    "free_outside", "free_distance", "shorter_minimisers", "mm_inside", "cosine", "inner_product", "gradient", "risk_change",
    "curvature",
)  # fmt: skip
SHOWN = (  # what the figure shows
    ("free_outside", "‖minimiser over all W, outside S_cyc‖ / ‖W^cyc‖"),
    ("mm_inside", "largest cosine of W^mm with a generator"),
    ("cosine", "|cosine of W^cyc and W^mm|"),
)


def compute(effort: Effort, progress: Progress) -> Finding:
    """Solve both problems on every dataset and measure how far they are from orthogonal."""
    each = 40 if effort is Effort.PAPER else 3
    rng = np.random.default_rng(SEED)
    rows: list[tuple[float, ...]] = []
    infeasible = trivial = 0
    progress.expect(each * len(SHAPES))
    for shape in SHAPES:
        found = 0
        while found < each:
            row = _measure(cyclic_sequences(*shape, rng), rng)
            infeasible += row is Status.INFEASIBLE
            trivial += row is Status.TRIVIAL
            if isinstance(row, tuple):
                rows.append(row)
                found += 1
                progress.advance()
    table = np.array(rows)  # (n_datasets, one column per name)
    worst = {name: float(table[:, place].max()) for place, name in enumerate(NAMES[:-1])}
    worst["shorter_minimisers"] = float(np.sum(table[:, NAMES.index("shorter_minimisers")]))
    numbers = {**worst, "smallest_curvature": float(table[:, -1].min()), "infeasible": infeasible, "trivial": trivial}
    measured = (
        f"{len(rows)} datasets: ⟨W^cyc, W^mm⟩ at most {worst['cosine']:.1e} relative and {worst['inner_product']:.1e} unscaled (median "
        f"cosine {np.median(table[:, NAMES.index('cosine')]):.1e}). The minimiser over all matrices is at most "
        f"{worst['free_outside']:.1e} outside S_cyc and {worst['free_distance']:.1e} from W^cyc, and none from a random start is shorter "
        f"({worst['shorter_minimisers']:.0f}); W^mm is at most {worst['mm_inside']:.1e} inside S_cyc. Drawn again: {infeasible} "
        f"infeasible, {trivial} with W^mm or W^cyc zero."
    )
    return Finding(measured, numbers, {"table": table, "each": each})


def _measure(ds: SequenceDataset, rng: np.random.Generator) -> tuple[float, ...] | Status:
    """One row of `NAMES`, or why the dataset does not meet the assumption."""
    graphs = priority_graphs(ds)
    margin = graph_svm(ds.E, graphs)
    if margin.status is not Status.OPTIMAL:
        return Status.TRIVIAL if margin.status is Status.TRIVIAL else Status.INFEASIBLE
    cyc = cyclic_correction(ds, graphs=graphs)
    W, size = cyc.x, float(np.linalg.norm(cyc.x))
    if cyc.status is not Status.FINITE or cyc.landscape is None:
        return (np.inf,) * (len(NAMES) - 1) + (0.0,)
    if size <= 1e-9:
        return Status.TRIVIAL
    space, mm = cyc.subspace, np.asarray(margin.x)
    aside = space.complement(rng.normal(size=W.shape))
    moved = cyc.landscape.at(space.cells(W + size * aside / np.linalg.norm(aside))).value
    inner = abs(float(np.sum(W * mm)))
    free = minimise_over_all(cyc.subset, np.zeros_like(W))
    start = rng.normal(size=W.shape)
    other = minimise_over_all(cyc.subset, start * (size / np.linalg.norm(start)))
    return (
        float(np.linalg.norm(_outside(ds.E, graphs, free))) / size,
        float(np.linalg.norm(free - W)) / size,
        float(np.linalg.norm(other) < size * (1.0 - _FREE_BAR)),
        _largest_cosine(ds.E, graphs, mm),
        inner / (size * float(np.linalg.norm(mm))),
        inner,
        cyc.residual(),
        abs(moved - cyc.risk),
        cyc.curvature,
    )


def minimise_over_all(subset: CyclicSubset, start: FloatArray) -> FloatArray:
    """A minimiser of the log-loss over a cyclic subset among all matrices, by L-BFGS on sums over its positions."""
    x, ends = subset.E[subset.tokens], subset.E[subset.last[subset.sample]]

    def risk(flat: FloatArray) -> tuple[float, FloatArray]:
        s = subset.attention(flat.reshape(start.shape))
        of_label = np.add.reduceat(s * subset.is_label, subset.offsets[:-1])
        pull = s - s * subset.is_label / np.repeat(of_label, subset.lengths)
        return -float(np.mean(np.log(of_label))), ((x * pull[:, None]).T @ ends).ravel() / len(subset)

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 0.0, "gtol": 1e-10, "maxcor": 40}
    return np.asarray(minimize(risk, start.ravel(), jac=True, method="L-BFGS-B", options=options).x).reshape(
        start.shape
    )


def _outside(E: FloatArray, graphs: Any, W: FloatArray) -> FloatArray:
    """The part of W outside the span of the matrices (e_j - ē)e_kᵀ, by least squares on the definition."""
    rows = [
        np.outer(E[j] - E[members].mean(axis=0), E[last]).ravel()
        for last, graph in graphs.items()
        for members in graph.components
        if len(members) > 1
        for j in members
    ]
    span = np.array(rows).T
    return np.asarray(W.ravel() - span @ np.linalg.lstsq(span, W.ravel(), rcond=1e-12)[0])


def _largest_cosine(E: FloatArray, graphs: Any, W: FloatArray) -> float:
    """The largest cosine of W with a matrix (e_j - ē)e_kᵀ that spans S_cyc, from the definition."""
    largest = 0.0
    for last, graph in graphs.items():
        for members in graph.components:
            if len(members) > 1:
                apart = E[members] - E[members].mean(axis=0)
                size = np.linalg.norm(apart, axis=1) * np.linalg.norm(E[last]) * np.linalg.norm(W)
                largest = max(largest, float(np.max(np.abs(apart @ W @ E[last]) / size)))
    return largest


def draw(finding: Finding) -> dict[str, Figure]:
    """The three deviations of every dataset, shape by shape, below the bar."""
    table, each = finding.arrays["table"], finding.arrays["each"]
    fig, (ax,) = plotting.figure(1, width=8.4, height=4.4)
    jitter = np.linspace(-0.11, 0.11, each)
    for place, (name, label) in enumerate(SHOWN):
        values = np.maximum(table[:, NAMES.index(name)], 1e-19).reshape(len(SHAPES), each)
        at = np.arange(len(SHAPES))[:, None] + 0.27 * (place - 1) + jitter
        ax.semilogy(
            at.ravel(), values.ravel(), "o^s"[place], ms=4, color=plotting.ACCENTS[place], alpha=0.75, label=label
        )
    ax.axhline(_BAR, color=plotting.INK, lw=1.2, ls=":")
    ax.text(-0.45, 1.6e-10, "bar of the claim for W^mm and the cosine", va="bottom")
    names = [f"K={K}, d={d}\nn={n}, T={T}" for K, d, n, T in SHAPES]
    ax.set_xticks(np.arange(len(SHAPES)), names)
    ax.grid(visible=False, axis="x")
    ax.set(
        ylabel="deviation from orthogonal, relative", ylim=(4e-20, 1e-8), title="W^cyc lies in S_cyc, W^mm across it"
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=1)
    return {"orthogonality": fig}
