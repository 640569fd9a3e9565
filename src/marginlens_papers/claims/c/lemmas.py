"""C Lemmas 1, 2 and 3: feasibility of Graph-SVM, where its solution lies, and the cyclic correction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.dynamics.paths.split_risk import SplitRisk
from marginlens.graphs.cyclic import CyclicSubset
from marginlens.graphs.subspace import cyclic_subspace
from marginlens.losses.next_token import LabelLoss
from marginlens.risk.next_token_heads import NextTokenHead, as_head
from marginlens.svm.graph import GraphSolution
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Bound, Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import histogram, level

FEASIBILITY_SEED = 31
FEASIBILITY_SHAPES = ((8, 8, 4, 6), (6, 12, 5, 5), (10, 5, 6, 6))  # K, d, n, T
HEIGHTS = 10.0 ** np.arange(0.0, 5.01, 0.25)  # R
FAR = 1e4  # from here on the slope is fitted; a pair that misses being active by σ bends it by σ e^(-σR) ≤ 1/(eR)
MODERATE = 10.0  # norm up to which L(W) - L* by subtraction has digits to spare
N_NEAR_LIMIT, HIGHEST = (
    20,
    15.0,
)  # matrices r W^mm + noise of norm one, with r up to the second, at which about e^-15 is left


@dataclass(frozen=True)
class Setting:
    """A loss, and how the head is made from the embeddings; `narrow` if that takes K ≤ d."""

    name: str
    loss: LabelLoss
    head: Callable[[ml.SequenceDataset, np.random.Generator], Any]
    narrow: bool = False


@dataclass(frozen=True)
class LinearLabelLoss(LabelLoss):
    r""":math:`\ell(u) = -u`."""

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """-u, -1 and 0."""
        return -u, np.full_like(u, -1.0), np.zeros_like(u)


@dataclass(frozen=True)
class ExponentialLabelLoss(LabelLoss):
    r""":math:`\ell(u) = e^{-u}`."""

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """e^-u, -e^-u and e^-u."""
        value = np.exp(-u)
        return value, -value, value


def positive_head(data: ml.SequenceDataset, rng: np.random.Generator) -> FloatArray:
    """A head with scores one for the label and between .1 and .8 for other tokens; needs independent embeddings."""
    H = rng.uniform(0.1, 0.8, size=(data.n_vocabulary, data.n_vocabulary))
    np.fill_diagonal(H, 1.0)
    return np.asarray(H @ np.linalg.pinv(data.E).T)


SETTINGS = (
    Setting("log-loss, C Eᵀ = I", ml.LogLoss(), lambda data, rng: None),
    Setting("log-loss, scores .1 to .8", ml.LogLoss(), positive_head, narrow=True),
    Setting("ℓ(u) = −u, C = E", LinearLabelLoss(), lambda data, rng: data.E),
    Setting("ℓ(u) = e⁻ᵘ, C = E", ExponentialLabelLoss(), lambda data, rng: data.E),
    Setting("(1 − u)², C = E/2", ml.SquaredLoss(), lambda data, rng: 0.5 * data.E),
)


class C_L1(Claim):
    labels = ("C Lemma 1",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """The excess risk at random matrices and along the max-margin direction, for every setting and dataset."""
        per_shape, n_random = (30, 200) if effort is Effort.PAPER else (1, 50)
        progress.expect(per_shape * len(FEASIBILITY_SHAPES))
        excesses: dict[str, list[_Excess]] = {setting.name: [] for setting in SETTINGS}
        missed = 0
        for j in range(per_shape):
            for k, shape in enumerate(FEASIBILITY_SHAPES):
                rng = np.random.default_rng([FEASIBILITY_SEED, j, k])
                data, limit, infeasible = feasible_data(acyclic_sequences, shape, rng)
                missed += infeasible
                for setting in SETTINGS:
                    if not (setting.narrow and shape[0] > shape[1]):
                        excesses[setting.name].append(_measure_excess(data, limit, setting, n_random, rng))
                progress.advance()
        arrays = {
            "curves": {name: np.stack([each.along for each in found]) for name, found in excesses.items()},
            "random": {
                name: np.concatenate([each.at_random for each in found], axis=1) for name, found in excesses.items()
            },
        }
        every = [each for found in excesses.values() for each in found]
        log_excess = np.concatenate([each.at_random[1] for each in every])
        subtracted = np.concatenate([each.subtracted for each in every])
        control = np.concatenate([each.control for each in every])
        lost = np.concatenate([each.lost for each in every])
        numbers = {
            "subtracted_not_above": float(np.sum(~(subtracted > 0.0))),
            "smallest_subtracted": float(np.min(subtracted)),
            "control_not_above_share": float(np.mean(~(control > 0.0))),
            "largest_disagreement_with_subtraction": float(max(each.disagreement for each in every)),
            "smallest_log_excess_at_random": float(log_excess.min()),
            "largest_slope_error": float(max(each.slope_error for each in every)),
            "largest_constant_error": float(max(abs(each.along[-1]) for each in every)),
            "share_lost_to_subtraction_along_limit": float(np.mean(lost)),
            "random_matrices": float(len(log_excess)),
            "datasets": float(per_shape * len(FEASIBILITY_SHAPES)),
            "infeasible_passed_over": float(missed),
        }
        measured = (
            f"Of {len(subtracted)} random matrices of norm up to {MODERATE:.0f} or near r $W^mm$, r up to {HIGHEST:.0f}, over "
            f"{per_shape * len(FEASIBILITY_SHAPES)} datasets and five losses and heads, {numbers['subtracted_not_above']:.0f} have a "
            f"risk that is not above L* (smallest excess {np.min(subtracted):.1e}), and {numbers['control_not_above_share']:.1%} of the "
            "control's. At R $W^mm$ it is c $e^-R$: the slope of its logarithm is -1 to within "
            f"{numbers['largest_slope_error']:.0e}, and c "
            f"agrees with its formula to {numbers['largest_constant_error']:.0e}. Subtracting L* in double precision would leave nothing "
            f"at {np.mean(lost):.0%} of these R. {missed} drawn datasets had no Acyc-SVM solution and were passed over."
        )
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How the excess along W^mm settles on c e^-R, and the excess at random matrices."""
        fig, (left, right) = ml.plotting.figure(2, width=5.8, height=4.6)
        near = HEIGHTS <= 1e3
        for colour, (name, lines) in zip(ml.plotting.ACCENTS, finding.arrays["curves"].items(), strict=False):
            left.semilogx(HEIGHTS[near], np.median(lines, axis=0)[near], color=colour, label=name)
            left.fill_between(
                HEIGHTS[near], lines.min(axis=0)[near], lines.max(axis=0)[near], color=colour, alpha=0.1, lw=0
            )
            norms, logs = finding.arrays["random"][name]
            right.scatter(norms, logs, s=5, color=colour, alpha=0.45, lw=0, rasterized=True, label=name)
        left.axhline(0.0, color=ml.plotting.INK, lw=1.0, ls="--", zorder=1)
        left.set(xlabel="R", ylabel="log(L(R W$^{mm}$) − L$_*$) − log(c e$^{-R}$)")
        left.set_title("Along W$^{mm}$ the excess becomes c e$^{-R}$\n(medians; bands from smallest to largest)")
        left.legend(loc="upper right", fontsize=9)
        right.set_xscale("log")
        right.set_yscale("symlog", linthresh=10.0)
        right.set(
            xlabel="‖W‖",
            ylabel="log(L(W) − L$_*$)",
            title="At random W, in logarithms;\nup to norm 10 as by subtraction",
        )
        return {"excess": fig}


class _Excess(NamedTuple):
    """The excess risk of one dataset and setting, from the logarithm of its tail and, as a check, by subtracting L*.

    Attributes:
        at_random: (2, n_random) the norms of random matrices and the logarithms of their excess.
        along: (n_heights,) at R W^mm, the logarithm of the excess over that of c e^-R. slope_error: how far the slope is from -1.
        disagreement: the largest difference between the two ways at random matrices of moderate norm.
        subtracted: by subtraction, at those and near W^mm. control: by subtraction with the head -E; empty for the log-loss.
        lost: for some of the heights, whether subtraction leaves nothing.
    """

    at_random: FloatArray
    along: FloatArray
    slope_error: float
    disagreement: float
    subtracted: FloatArray
    control: FloatArray
    lost: npt.NDArray[np.bool_]


def _measure_excess(
    data: ml.SequenceDataset, limit: GraphSolution, setting: Setting, n_random: int, rng: np.random.Generator
) -> _Excess:
    """Draw random matrices, and measure the excess risk at them and along the max-margin direction."""
    head = as_head(data, setting.head(data, rng))
    risk = SplitRisk(data, ml.priority_graphs(data), head.table, setting.loss)
    norms = 10.0 ** rng.uniform(-2.0, 4.0, n_random)
    W = rng.standard_normal((n_random, data.d_model, data.d_model))
    W *= (norms / np.linalg.norm(W, axis=(1, 2)))[:, None, None]
    at_random = risk.log_tail(risk.coordinates(W))
    along = risk.log_tail(HEIGHTS[:, None] * risk.coordinates(limit.x))
    far = HEIGHTS >= FAR

    def subtracted(matrices: Any, head: NextTokenHead = head) -> FloatArray:
        return np.array([subtracted_excess(data, head, setting.loss, W) for W in matrices])

    near = norms <= MODERATE
    excess = subtracted(W[near])
    noise = rng.standard_normal((N_NEAR_LIMIT, data.d_model, data.d_model)) / data.d_model
    aimed = rng.uniform(0.0, HIGHEST, N_NEAR_LIMIT)[:, None, None] * limit.x + noise
    # The log-loss is infinite at negative outputs, which the head -E has.
    has_control = not isinstance(setting.loss, ml.LogLoss)
    return _Excess(
        at_random=np.stack([norms, at_random]),
        along=along + HEIGHTS - _log_constant(risk, limit, head),
        slope_error=abs(float(np.polyfit(HEIGHTS[far], along[far], 1)[0]) + 1.0),
        disagreement=max((abs(a - np.exp(b)) for a, b in zip(excess, at_random[near], strict=True)), default=0.0),
        subtracted=np.concatenate([excess, subtracted(aimed)]),
        control=subtracted(W[near], as_head(data, -data.E)) if has_control else np.empty(0),
        lost=subtracted([height * limit.x for height in HEIGHTS[::4]]) <= 0.0,
    )


def feasible_data(
    make: Callable[..., ml.SequenceDataset], shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[ml.SequenceDataset, GraphSolution, int]:
    """The first drawn dataset whose Graph-SVM has a solution other than zero, that solution, and how many were infeasible."""
    infeasible = 0
    while True:
        data = make(*shape, rng)
        found = ml.graph_svm(data.E, ml.priority_graphs(data))
        if found.status is ml.Status.OPTIMAL:
            return data, found, infeasible
        infeasible += found.status is ml.Status.INFEASIBLE


def subtracted_excess(data: ml.SequenceDataset, head: NextTokenHead, loss: LabelLoss, W: FloatArray) -> float:
    """L(W) - L* by softmax and subtraction, sequence by sequence."""
    labels = np.repeat(data.labels, data.lengths)
    outputs = np.add.reduceat(data.attention(W) * head.scores(labels, data.tokens), data.offsets[:-1])
    return float(np.mean(loss.scalar(outputs)[0]) - np.mean(loss.scalar(head.scores(data.labels, data.labels))[0]))


def _log_constant(risk: SplitRisk, limit: GraphSolution, head: NextTokenHead) -> float:
    """log of Σ share · |ℓ'| · (γ_y - γ_x) · m_x/m_y over pairs whose logit gap at W^mm is one."""
    problem = risk.problem
    labels = problem.labels[problem.sample]
    table = problem.table(limit.x)
    gap = table[labels, problem.column[problem.sample]] - table[problem.tokens, problem.column[problem.sample]]
    active = ~problem.is_label & (gap < 1.0 + 1e-7)
    label_scores = head.scores(problem.labels, problem.labels)
    slope = -risk.loss.scalar(label_scores)[1][problem.sample]
    fall = head.scores(labels, labels) - head.scores(labels, problem.tokens)
    counts = np.exp(problem.log_counts - problem.log_counts[problem.is_label][problem.sample])
    return float(np.log(np.sum((problem.share[problem.sample] * slope * fall * counts)[active])))


_BAR = 1e-10
_OUTSIDE_BAR = 1e-7  # of a minimiser that is a sum of thousands of rounded gradients
_FREE_BAR = 1e-4  # L-BFGS stops at a gradient of about 1e-9, and the curvature can be small
SEPARATION_SEED = 22
SEPARATION_SHAPES = ((6, 8, 6, 4), (8, 8, 12, 4), (9, 6, 7, 4), (16, 8, 8, 4), (20, 30, 60, 6))  # K, d, n, T
NAMES = (
    "free_outside", "free_distance", "shorter_minimisers", "mm_inside", "cosine", "inner_product", "gradient", "risk_change",
    "curvature",
)  # fmt: skip
SHOWN = (  # what the figure shows
    ("free_outside", r"‖minimiser over all W, outside $S_{\rm cyc}$‖ / ‖$W^{\rm cyc}$‖"),
    ("mm_inside", r"largest cosine of $W^{\rm mm}$ with a generator"),
    ("cosine", r"|cosine of $W^{\rm cyc}$ and $W^{\rm mm}$|"),
)


class C_L2(Claim):
    labels = ("C Lemma 2", "C Def 3")
    expected = {
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

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Solve both problems on every dataset and measure how far they are from orthogonal."""
        each = 40 if effort is Effort.PAPER else 3
        rng = np.random.default_rng(SEPARATION_SEED)
        rows: list[tuple[float, ...]] = []
        infeasible = trivial = 0
        progress.expect(each * len(SEPARATION_SHAPES))
        for shape in SEPARATION_SHAPES:
            found = 0
            while found < each:
                row = _measure(cyclic_sequences(*shape, rng), rng)
                infeasible += row is ml.Status.INFEASIBLE
                trivial += row is ml.Status.TRIVIAL
                if isinstance(row, tuple):
                    rows.append(row)
                    found += 1
                    progress.advance()
        table = np.array(rows)  # (n_datasets, one column per name)
        worst = {name: float(table[:, place].max()) for place, name in enumerate(NAMES[:-1])}
        worst["shorter_minimisers"] = float(np.sum(table[:, NAMES.index("shorter_minimisers")]))
        numbers = {
            **worst,
            "smallest_curvature": float(table[:, -1].min()),
            "infeasible": infeasible,
            "trivial": trivial,
        }
        measured = (
            f"{len(rows)} datasets: $⟨W^cyc, W^mm⟩$ at most {worst['cosine']:.1e} relative and {worst['inner_product']:.1e} unscaled "
            f"(median cosine {np.median(table[:, NAMES.index('cosine')]):.1e}). The minimiser over all matrices is at most "
            f"{worst['free_outside']:.1e} outside $S_cyc$ and {worst['free_distance']:.1e} from $W^cyc$, and none from a random start is "
            f"shorter ({worst['shorter_minimisers']:.0f}); $W^mm$ is at most {worst['mm_inside']:.1e} inside $S_cyc$. Drawn again: "
            f"{infeasible} infeasible, {trivial} with $W^mm$ or $W^cyc$ zero."
        )
        return Finding(measured, numbers, {"table": table, "each": each})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The three deviations of every dataset, shape by shape, below the bar."""
        table, each = finding.arrays["table"], finding.arrays["each"]
        fig, (ax,) = ml.plotting.figure(1, width=8.4, height=4.4)
        jitter = np.linspace(-0.11, 0.11, each)
        for place, (name, label) in enumerate(SHOWN):
            values = np.maximum(table[:, NAMES.index(name)], 1e-19).reshape(len(SEPARATION_SHAPES), each)
            at = np.arange(len(SEPARATION_SHAPES))[:, None] + 0.27 * (place - 1) + jitter
            ax.semilogy(
                at.ravel(),
                values.ravel(),
                "o^s"[place],
                ms=4,
                color=ml.plotting.ACCENTS[place],
                alpha=0.75,
                label=label,
            )
        level(ax, _BAR, r"bar of the claim for $W^{\rm mm}$ and the cosine", dash=":")
        names = [f"K={K}, d={d}\nn={n}, T={T}" for K, d, n, T in SEPARATION_SHAPES]
        ax.set_xticks(np.arange(len(SEPARATION_SHAPES)), names)
        ax.grid(visible=False, axis="x")
        ax.set(
            ylabel="deviation from orthogonal, relative",
            ylim=(4e-20, 1e-8),
            title=r"$W^{\rm cyc}$ lies in $S_{\rm cyc}$, $W^{\rm mm}$ across it",
        )
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=1)
        return {"orthogonality": fig}


def _measure(data: ml.SequenceDataset, rng: np.random.Generator) -> tuple[float, ...] | ml.Status:
    """One row of `NAMES`, or why the dataset does not meet the assumption."""
    graphs = ml.priority_graphs(data)
    margin = ml.graph_svm(data.E, graphs)
    if margin.status is not ml.Status.OPTIMAL:
        return ml.Status.TRIVIAL if margin.status is ml.Status.TRIVIAL else ml.Status.INFEASIBLE
    cyc = ml.cyclic_correction(data, graphs=graphs)
    W, size = cyc.x, float(np.linalg.norm(cyc.x))
    if cyc.status is not ml.Status.FINITE or cyc.objective is None:
        return (np.inf,) * (len(NAMES) - 1) + (0.0,)
    if size <= 1e-9:
        return ml.Status.TRIVIAL
    space, mm = cyc.subspace, np.asarray(margin.x)
    aside = space.complement(rng.normal(size=W.shape))
    moved = cyc.objective.at(space.cells(W + size * aside / np.linalg.norm(aside))).value
    inner = abs(float(np.sum(W * mm)))
    free = minimise_over_all(cyc.subset, np.zeros_like(W))
    start = rng.normal(size=W.shape)
    other = minimise_over_all(cyc.subset, start * (size / np.linalg.norm(start)))
    return (
        float(np.linalg.norm(_outside(data.E, graphs, free))) / size,
        float(np.linalg.norm(free - W)) / size,
        float(np.linalg.norm(other) < size * (1.0 - _FREE_BAR)),
        _largest_cosine(data.E, graphs, mm),
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


CORRECTION_SEED = 24


class C_L3(Claim):
    labels = ("C Lemma 3", "C Thm 4", "C Eq. (24)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Compare chords, spectra and long runs of plain descent with the two statements."""
        count, n_steps = (100, 100_000) if effort is Effort.PAPER else (10, 10_000)
        found: dict[str, list[Any]] = {
            name: [] for name in ("log", "squared", "general", "whole", "cyclic", "formula", "rank")
        }
        strict: list[ml.SequenceDataset] = []
        for j in progress.each(range(count), more=1):
            rng = np.random.default_rng([CORRECTION_SEED, j])
            data = cyclic_sequences(int(rng.integers(3, 7)), int(rng.integers(2, 6)), int(rng.integers(5, 16)), 4, rng)
            mean, risk = data.E.mean(axis=0), ml.NextTokenRisk(data)
            found["log"].append(_above_chord(risk, rng))
            found["squared"].append(_above_chord(ml.NextTokenRisk(data, loss=ml.SquaredLoss()), rng))
            found["general"].append(_above_chord(ml.NextTokenRisk(data, data.E + 2.0 * mean / np.sum(mean**2)), rng))
            W = rng.normal(size=risk.shape) * rng.uniform(0.0, 2.0)
            hessian, formula = _hessian(risk, W), risk.hessian(W)
            found["formula"].append(np.abs(hessian - formula).max() / np.abs(formula).max())
            found["whole"].append(np.linalg.eigvalsh(hessian)[0] / np.linalg.norm(hessian, 2))
            basis = cyclic_subspace(data.E, ml.priority_graphs(data)).basis.reshape(-1, W.size)
            inside = (W.ravel() @ basis.T) @ basis  # the lemma speaks of points of S_cyc
            on_subspace = _hessian(risk, inside.reshape(W.shape))
            found["cyclic"].append(
                np.linalg.eigvalsh(basis @ on_subspace @ basis.T)[0] / np.linalg.norm(on_subspace, 2)
            )
            found["rank"].append(len(basis))
            solution = ml.graph_svm(data.E, ml.priority_graphs(data)).x
            if np.linalg.norm(solution) > 0.0:
                strict.append(data)
        steps, norms, slopes = _descents(strict[:20], n_steps)
        progress.advance()
        chords = {name: np.concatenate(found[name]) for name in ("log", "squared", "general")}
        numbers = {
            "largest_excess_over_the_chord": float(np.max(chords["log"])),
            "share_above_the_chord_squared_loss": float(np.mean(chords["squared"] > 1e-9)),
            "share_above_the_chord_general_head": float(np.nanmean(chords["general"] > 1e-9)),
            "smallest_eigenvalue": float(np.min(found["whole"])),
            "hessian_against_eq_24": float(np.max(found["formula"])),
            "smallest_eigenvalue_on_S_cyc": float(np.min(found["cyclic"])),
            "norms_that_do_not_grow": float(np.sum(~(np.diff(norms[:, -20:], axis=1) > 0.0))),
            "gradients_that_do_not_shrink": float(np.sum(~(np.diff(slopes[:, -20:], axis=1) < 0.0))),
            "smallest_log_gradient": float(slopes.min()),
            "runs": float(len(norms)),
        }
        above = {name: 100 * numbers[f"share_above_the_chord_{name}"] for name in ("squared_loss", "general_head")}
        measured = (
            f"Of {chords['log'].size:,} points between random pairs {np.sum(~(chords['log'] <= 1e-13))} lie above their chord by more "
            f"than rounding; with the squared loss {above['squared_loss']:.0f}% do, with a general head {above['general_head']:.1f}%. "
            f"Relative to the largest, the smallest eigenvalue is {numbers['smallest_eigenvalue']:.0e} on the whole space and "
            f"{numbers['smallest_eigenvalue_on_S_cyc']:.1e} on $S_cyc$. In {len(norms)} runs of {n_steps:,} steps the norm grows to "
            f"{norms[:, -1].min():.1f} … {norms[:, -1].max():.1f}, and log $‖∇L‖$ falls to {slopes[:, -1].min():.1f} … "
            f"{slopes[:, -1].max():.1f}."
        )
        arrays = {
            **chords,
            "whole": np.array(found["whole"]),
            "cyclic": np.array(found["cyclic"]),
            "rank": np.array(found["rank"]),
        }
        return Finding(measured, numbers, {**arrays, "steps": steps, "norms": norms, "slopes": slopes})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Chords for the log-loss and the two controls, spectra on S_cyc, and the growth of the norm."""
        fig, (left, middle, right) = ml.plotting.figure(3, width=4.4, height=3.8)
        arrays = finding.arrays
        bins = np.linspace(-0.5, 0.3, 65)
        for name, colour, label in (
            ("log", ml.plotting.LOCAL, "log-loss, C Eᵀ = I"),
            ("squared", ml.plotting.ACCENTS[3], "squared loss"),
            ("general", ml.plotting.NEITHER, "log-loss, general head"),
        ):
            values = np.clip(arrays[name][np.isfinite(arrays[name])], -0.5, 0.3)
            histogram(left, values, bins, fill=name == "general", color=colour, lw=2, label=label)
        left.axvline(0.0, color=ml.plotting.INK, ls="--", lw=1.2)
        left.set(xlabel="risk between two points less the chord,\nrelative", ylabel="share of pairs", yscale="log")
        left.set_title("Lemma 3: below the chord")
        left.legend(loc="upper left", fontsize=9)
        jitter = np.random.default_rng(0).uniform(-0.15, 0.15, size=len(arrays["rank"]))
        middle.scatter(
            arrays["rank"] + jitter, arrays["cyclic"], s=22, color=ml.plotting.GLOBAL, label=r"on $S_{\rm cyc}$"
        )
        middle.scatter(
            arrays["rank"] + jitter,
            np.maximum(np.abs(arrays["whole"]), 1e-18),
            s=22,
            color=ml.plotting.NEITHER,
            label="on all W (modulus)",
        )
        middle.set(
            yscale="log",
            xlabel=r"dimension of $S_{\rm cyc}$",
            ylabel="smallest eigenvalue\nover the largest",
            ylim=(1e-19, 5),
        )
        middle.set_xticks(np.unique(arrays["rank"]).tolist())
        middle.set_title(r"Strictly convex on $S_{\rm cyc}$")
        middle.legend(loc="center right")
        for line in arrays["norms"]:
            right.plot(arrays["steps"], line, color=ml.plotting.PATH, lw=1.2, alpha=0.8)
        right.set(xscale="log", xlabel="steps of plain descent, η = 1/L", ylabel="‖W‖", title="Theorem 4: W diverges")
        return {"convexity": fig}


def _above_chord(risk: ml.NextTokenRisk, rng: np.random.Generator, count: int = 20) -> Any:
    """L(λ W + (1-λ) V) less the chord, relative to 1 + its ends, for random pairs; nan if a risk is not finite."""
    out = []
    for _ in range(count):
        W, V = rng.normal(size=(2, *risk.shape)) * 10.0 ** rng.uniform(-1, 1.5)
        share = rng.uniform(0.1, 0.9)
        inner, first, last = (risk.value(point) for point in (share * W + (1 - share) * V, W, V))
        ends = share * first + (1 - share) * last
        out.append((inner - ends) / (1.0 + abs(first) + abs(last)) if np.isfinite(inner + ends) else np.nan)
    return np.array(out)


def _hessian(risk: ml.NextTokenRisk, W: Any, h: float = 2e-4) -> Any:
    """(d², d²) from central differences of exact gradients, extrapolated once; symmetrised."""
    out = np.empty((W.size, W.size))
    for k, unit in enumerate(np.eye(W.size).reshape(-1, *W.shape)):
        near, far = (
            (risk.gradient(W + a * unit).value() - risk.gradient(W - a * unit).value()) / (2 * a) for a in (h, 2 * h)
        )
        out[k] = ((4.0 * near - far) / 3.0).ravel()
    return 0.5 * (out + out.T)


def _descents(datasets: list[ml.SequenceDataset], n_steps: int) -> tuple[Any, Any, Any]:
    """Plain descent with η = 1/L: steps kept, norms and log gradient norms (n_runs, n_kept)."""
    steps = np.unique(np.geomspace(1, n_steps, 60).astype(int))
    norms, slopes = [], []
    for risk in map(ml.NextTokenRisk, datasets):
        record, rule = ml.Record(steps=steps.tolist(), keep=("x", "norm")), ml.GradientDescent(1.0 / risk.smoothness())
        run = ml.descend(risk, optimizer=rule, n_steps=n_steps, record=record)
        norms.append(run.saved["norm"])
        slopes.append([risk.gradient(W).log_norm for W in run.saved["x"]])
    return steps, np.array(norms), np.array(slopes)
