"""C Thms 1 and 2: regularisation paths of next-token risks converge to Graph-SVM, plus the cyclic correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data.sequence_generators import acyclic_sequences, cyclic_sequences
from marginlens.losses.next_token import LabelLoss
from marginlens.risk.next_token_heads import NextTokenHead, as_head
from marginlens.risk.sequence_batch import reduce_sequences
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Verdict
from marginlens_papers.claims.c.lemmas import SETTINGS, Setting, feasible_data
from marginlens_papers.claims.c.next_token_paths import path_law

ACYCLIC_SEED = 17
ACYCLIC_SHAPES = ((8, 8, 4, 6), (6, 12, 5, 5), (10, 5, 6, 6))  # K, d, n, T
ACYCLIC_SCALES = 10.0 ** np.arange(6)  # R · margin
FITTED = 3  # from this scale on
RESTARTS = 12
CONVEX, GENERAL = SETTINGS[0], (SETTINGS[2], SETTINGS[3])


class C_T1(Claim):
    labels = ("C Thm 1", "C Algo-RP")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow the path of every dataset and measure its distance to the max-margin direction."""
        lines = [_follow(*task) for task in progress.each(_tasks(effort))]
        missed = sum(line.infeasible for line in lines)
        distance = np.stack([line.distance for line in lines])
        slopes = np.polyfit(np.log(ACYCLIC_SCALES[FITTED:]), np.log(distance[:, FITTED:]).T, 1)[0]
        certified = np.stack([line.certified for line in lines])
        is_convex = np.array([line.setting is CONVEX for line in lines])
        corr = np.stack([line.corr for line in lines])
        numbers = {
            "smallest_corr_at_largest_radius": float(corr[:, -1].min()),
            "smallest_corr_at_1000_over_margin": float(corr[:, FITTED].min()),
            "slowest_slope": float(slopes.max()),
            "median_slope": float(np.median(slopes)),
            "steepest_slope": float(slopes.min()),
            "largest_distance_at_the_end": float(distance[:, -1].max()),
            "distance_grows": float(np.sum(~(np.diff(distance, axis=1) <= 0.0))),
            "largest_certified_distance_at_the_end": float(certified[:, -1].max()),
            "outside_their_certificate": float(np.sum(~(distance <= certified * (1.0 + 1e-9)))),
            "lowered_by_random_starts": float(sum(line.lowered > 1e-9 for line in lines)),
            "largest_log_excess_at_the_end": float(max(line.log_excess[-1] for line in lines)),
            "largest_kkt_residual": float(np.max([line.residual for line in lines])),
            "problems": float(len(lines)),
            "infeasible_passed_over": float(missed),
        }
        measured = (
            f"In all {len(lines)} problems ({int(is_convex.sum())} with the log-loss and C Eᵀ = I, {int((~is_convex).sum())} with C = E) "
            f"the correlation with $W^mm$ is at least {numbers['smallest_corr_at_1000_over_margin']:.5f} at R = 1e3/margin and 1 - "
            f"{1.0 - numbers['smallest_corr_at_largest_radius']:.0e} at 1e5/margin. The distance of $W_R/R$ to its direction falls with "
            f"slopes from {slopes.max():.3f} to {slopes.min():.3f} (median {np.median(slopes):.4f}); the true minimiser is certain to "
            f"lie within {certified[:, 3].max():.2f} of it at 1e3/margin and within "
            f"{numbers['largest_certified_distance_at_the_end']:.3f} at 1e5/margin. In {numbers['lowered_by_random_starts']:.0f} of the "
            f"{int((~is_convex).sum())} nonconvex problems random starts found a lower risk than the max-margin direction led to. KKT "
            f"residuals are up to {numbers['largest_kkt_residual']:.0e}; {missed} infeasible datasets were passed over."
        )
        arrays: dict[str, Any] = {
            "distance": distance,
            "certified": certified,
            "slopes": slopes,
            "is_convex": is_convex,
            "shape": [line.shape for line in lines],
        }
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The distance to the max-margin direction over the radius: the log-loss at the left, other losses and heads at the right."""
        fig, axes = ml.plotting.figure(2, width=5.2, height=4.5)
        distance, convex = finding.arrays["distance"], finding.arrays["is_convex"]
        titles = ("Log-loss, C Eᵀ = I", "ℓ(u) = −u and e⁻ᵘ, C = E")
        for ax, of_setting, title in zip(axes, (convex, ~convex), titles, strict=True):
            for colour, shape in zip(ml.plotting.ACCENTS, ACYCLIC_SHAPES, strict=False):
                chosen = np.array([shape_of == shape for shape_of in finding.arrays["shape"]]) & of_setting
                for line in distance[chosen]:
                    ax.loglog(ACYCLIC_SCALES, line, color=colour, lw=1.0, alpha=0.7)
                if chosen.any():
                    ax.plot([], [], color=colour, label=f"K = {shape[0]}, d = {shape[1]}")
            ax.loglog(
                ACYCLIC_SCALES, finding.arrays["certified"][of_setting].max(axis=0), color=ml.plotting.NEITHER, lw=1.8
            )
            ax.plot([], [], color=ml.plotting.NEITHER, label="no true minimiser lies above")
            guide = 10.0 / ACYCLIC_SCALES[2:]
            ax.loglog(ACYCLIC_SCALES[2:], guide, color=ml.plotting.INK, ls="--", lw=1.3)
            ax.text(ACYCLIC_SCALES[3], 2.0 * guide[1], "slope −1", ha="left", va="bottom")
            ax.set(
                xlabel="R · margin",
                ylabel="‖W$_R$/R − W$^{mm}$/‖W$^{mm}$‖‖",
                title=f"{title}: {int(of_setting.sum())} paths",
            )
            ax.legend(loc="lower left")
        return {"distance": fig}


@dataclass(frozen=True)
class _Line:
    """One path: its setting, shape, and at each scale its distance, correlation, residual, excess and certified distance."""

    setting: Setting
    shape: tuple[int, ...]
    distance: FloatArray
    corr: FloatArray
    residual: FloatArray
    log_excess: FloatArray
    certified: FloatArray
    lowered: float  # by how much random starts lowered the log excess, at most
    infeasible: int  # how many drawn datasets were passed over


def _tasks(effort: Effort) -> Sequence[tuple[Setting, tuple[int, ...], int]]:
    """The setting, shape and seed of every path: of all shapes with the log-loss, and fewer with other losses and heads."""
    convex, general = (20, 4) if effort is Effort.PAPER else (1, 1)
    shapes = ACYCLIC_SHAPES if effort is Effort.PAPER else ACYCLIC_SHAPES[:1]
    return [(CONVEX, shape, j) for shape in ACYCLIC_SHAPES for j in range(convex)] + [
        (setting, shape, 1000 + j) for setting in GENERAL for shape in shapes for j in range(general)
    ]


def _follow(setting: Setting, shape: tuple[int, ...], j: int) -> _Line:
    """Draw a dataset, follow its path, and bound from the excess risk how far its true minimisers can be from the limit."""
    rng = np.random.default_rng([ACYCLIC_SEED, j, *shape])
    data, limit, infeasible = feasible_data(acyclic_sequences, shape, rng)
    head, radii = setting.head(data, rng), ACYCLIC_SCALES / limit.margin
    path = ml.path(data, radii, head=head, loss=setting.loss, restarts=RESTARTS, rng=j)
    without_restarts = path if setting is CONVEX else ml.path(data, radii, head=head, loss=setting.loss, restarts=0)
    excess, floor = path.log_excess, log_risk_bound(data, as_head(data, head), setting.loss)
    # κ over R · margin: from one on nothing is certain.
    share = np.maximum(excess + ACYCLIC_SCALES - floor, 0.0) / ACYCLIC_SCALES
    return _Line(
        setting=setting,
        shape=shape,
        distance=path.distance(limit.x),
        corr=path.correlation(limit.x),
        residual=path.kkt_residual(),
        log_excess=excess,
        certified=np.where(share < 1.0, np.sqrt(2.0 * share), 2.0),
        lowered=float(np.max(without_restarts.log_excess - excess)),
        infeasible=infeasible,
    )


def log_risk_bound(data: ml.SequenceDataset, head: NextTokenHead, loss: LabelLoss) -> float:
    r"""log c with :math:`L(W) - L_\star \ge c\, e^{-R \cdot \text{margin}}` for all W of norm up to R; acyclic data, convex loss.

    .. math:: c = \min_{i,\, x \in X_i,\, x \ne y_i} \pi_i\, |\ell'(\gamma_{y_i})|\, (\gamma_{y_i} - \gamma_x)\, m_x / T_i

    Some pair has a logit gap of at most R · margin, because no unit matrix has larger gaps everywhere than the margin; if its sample
    has the smallest gap of all, token x has attention of at least :math:`m_x e^{-R\cdot\text{margin}}/T_i` there.
    """
    reduced = reduce_sequences(data)
    labels, counts = reduced.labels[reduced.sample], np.exp(reduced.log_counts)
    slope = -loss.scalar(head.scores(reduced.labels, reduced.labels))[1]
    fall = head.scores(labels, labels) - head.scores(labels, reduced.tokens)
    length = np.add.reduceat(counts, reduced.offsets[:-1])
    return float(np.log(((reduced.share * slope / length)[reduced.sample] * fall * counts)[~reduced.is_label].min()))


CYCLIC_SEED = 23
CYCLIC_SHAPES = ((6, 8, 6, 4), (8, 6, 10, 5), (7, 5, 9, 4))  # K, d, n, T
CYCLIC_SCALES = np.array([2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 1e2, 1e3, 1e4, 1e5])  # R · margin
RATE = (CYCLIC_SCALES >= 8.0) & (CYCLIC_SCALES <= 24.0)
FAR = CYCLIC_SCALES >= 1e3


class C_T2(Claim):
    labels = ("C Thm 2", "C Algo-RP")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Follow the path of every dataset and split it into its parts."""
        per_shape = 12 if effort is Effort.PAPER else 1
        progress.expect(per_shape * len(CYCLIC_SHAPES) + 1)
        recorded: dict[str, list[FloatArray]] = {
            name: [] for name in ("distance", "corr", "gap", "residual", "deviation")
        }
        shapes, norms, errors, offsets, missed = [], [], [], [], 0
        for shape in CYCLIC_SHAPES:
            for j in range(per_shape):
                data, limit, infeasible = feasible_data(
                    cyclic_sequences, shape, np.random.default_rng([CYCLIC_SEED, j, *shape])
                )
                missed += infeasible
                path = ml.path(data, CYCLIC_SCALES / limit.margin)
                law = path_law(path)
                recorded["distance"].append(path.distance(limit.x))
                recorded["corr"].append(path.correlation(limit.x))
                recorded["gap"].append(np.linalg.norm(path.split().cyclic - ml.cyclic_correction(data).x, axis=(1, 2)))
                recorded["residual"].append(path.kkt_residual())
                recorded["deviation"].append(law.deviation() if law.holds else np.full(len(CYCLIC_SCALES), np.nan))
                norms.append(np.linalg.norm(law.remainder(), axis=(1, 2)))
                errors.append(np.linalg.norm(law.remainder() - law.offset, axis=(1, 2)))
                offsets.append(float(np.linalg.norm(law.offset)))
                shapes.append(shape)
                progress.advance()
        arrays: dict[str, Any] = {name: np.stack(values) for name, values in recorded.items()}
        arrays |= {
            "remainder": np.stack(norms),
            "offset_error": np.stack(errors),
            "offset": np.array(offsets),
            "shape": shapes,
        }
        arrays["other"] = _other_loss(4 if effort is Effort.PAPER else 1)
        progress.advance()
        return Finding(*_summary(arrays, missed))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The two limits, and the remainder with its prediction."""
        fig, (left, middle, right) = ml.plotting.figure(3, width=4.9, height=4.5)
        near = CYCLIC_SCALES <= 40.0
        for colour, shape in zip(ml.plotting.ACCENTS, CYCLIC_SHAPES, strict=False):
            of_shape = [k for k, shape_of in enumerate(finding.arrays["shape"]) if shape_of == shape]
            for k in of_shape:
                left.loglog(CYCLIC_SCALES, finding.arrays["distance"][k], color=colour, lw=1.0, alpha=0.7)
                middle.semilogy(CYCLIC_SCALES[near], finding.arrays["gap"][k][near], color=colour, lw=1.0, alpha=0.7)
                if np.isfinite(finding.arrays["offset"][k]):
                    right.loglog(CYCLIC_SCALES, finding.arrays["offset_error"][k], color=colour, lw=1.0, alpha=0.7)
                right.loglog(
                    CYCLIC_SCALES,
                    finding.arrays["remainder"][k],
                    color=ml.plotting.NEITHER,
                    lw=1.0,
                    alpha=0.8,
                    zorder=1,
                )
            left.plot([], [], color=colour, label=f"K = {shape[0]}, d = {shape[1]}, n = {shape[2]}")
        far = CYCLIC_SCALES >= 1e2
        left.loglog(CYCLIC_SCALES[far], 30.0 / CYCLIC_SCALES[far], color=ml.plotting.INK, ls="--", lw=1.3)
        left.text(1.2e3, 40.0 / 1e3, "slope −1", ha="left", va="bottom")
        left.set(xlabel="R · margin", ylabel="‖W$_R$/R − W$^{mm}$/‖W$^{mm}$‖‖", title="Direction → W$^{mm}$, like 1/R")
        left.legend(loc="lower left", fontsize=9)
        middle.semilogy(
            CYCLIC_SCALES[near], 10.0 * np.exp(-CYCLIC_SCALES[near]), color=ml.plotting.INK, ls="--", lw=1.3
        )
        middle.text(16.5, 12.0 * np.exp(-15.0), "e$^{-R·margin}$", ha="left", va="bottom")
        middle.set(xlabel="R · margin", ylabel="‖Π(W$_R$) − W$^{cyc}$‖", title="Cyclic part → W$^{cyc}$, exponentially")
        right.plot([], [], color=ml.plotting.NEITHER, label="norm of the remainder")
        right.plot([], [], color=ml.plotting.ACCENTS[0], label="in colour: distance to its prediction")
        right.set(
            xlabel="R · margin", ylabel="‖W$_R$ − C$_R$W$^{mm}$ − Π(W$_R$)‖", title="The remainder is the dual's offset"
        )
        right.legend(loc="lower left", fontsize=9)
        return {"limits": fig}


@dataclass(frozen=True)
class Steep(LabelLoss):
    r""":math:`\ell(u) = e^{-2u}`, whose risk over a cyclic subset may have one finite minimiser or none."""

    def scalar(self, u: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """e^-2u and its derivatives."""
        value = np.exp(-2.0 * u)
        return value, -2.0 * value, 4.0 * value


def _other_loss(wanted: int) -> FloatArray:
    """(n, 2) for e^(-2u), the correlation with W^mm and the distance of Π(W_R) to W^cyc at the largest radius."""
    found: list[tuple[float, float]] = []
    for j in range(40 * wanted):
        if len(found) == wanted:
            break
        data, limit, _ = feasible_data(
            cyclic_sequences, CYCLIC_SHAPES[0], np.random.default_rng([CYCLIC_SEED, 1000 + j])
        )
        if ml.cyclic_correction(data, loss=Steep(), restarts=8).is_unique:
            path = ml.path(data, np.array([1e2, 1e5]) / limit.margin, loss=Steep(), restarts=0)
            gap = np.linalg.norm(path.split().cyclic[-1] - ml.cyclic_correction(data, loss=Steep()).x)
            found.append((float(path.correlation(limit.x)[-1]), float(gap)))
    return np.array(found).reshape(-1, 2)


def _summary(arrays: dict[str, Any], missed: int) -> tuple[str, dict[str, float], dict[str, Any], str]:
    gap, distance = arrays["gap"], arrays["distance"]
    visible = np.log(np.maximum(gap[:, RATE], np.finfo(float).tiny))
    rates = np.polyfit(CYCLIC_SCALES[RATE], visible.T, 1)[0]
    slopes = np.polyfit(np.log(CYCLIC_SCALES[FAR]), np.log(distance[:, FAR]).T, 1)[0]
    lawful = np.isfinite(arrays["offset"])
    deviation, error = arrays["deviation"][lawful, -1], arrays["offset_error"][lawful, -1]
    remainder = arrays["remainder"][:, -1]
    numbers = {
        "smallest_corr_at_largest_radius": float(arrays["corr"][:, -1].min()),
        "median_direction_slope": float(np.median(slopes)),
        "slowest_direction_slope": float(slopes.max()),
        "largest_cyclic_gap_at_the_end": float(gap[:, -1].max()),
        "slowest_cyclic_rate": float(rates.max()),
        "median_cyclic_rate": float(np.median(rates)),
        "fastest_cyclic_rate": float(rates.min()),
        "median_remainder": float(np.median(remainder)),
        "largest_remainder": float(remainder.max()),
        "law_applies": float(np.sum(lawful)),
        "median_law_deviation_at_the_end": float(np.median(deviation)),
        "largest_law_deviation_at_the_end": float(deviation.max()),
        "median_offset_error_at_the_end": float(np.median(error)),
        "largest_offset_error_at_the_end": float(error.max()),
        "largest_kkt_residual": float(arrays["residual"].max()),
        "problems": float(len(gap)),
        "infeasible_passed_over": float(missed),
        "other_loss_smallest_corr": float(np.min(arrays["other"][:, 0], initial=1.0)),
        "other_loss_largest_cyclic_gap": float(np.max(arrays["other"][:, 1], initial=0.0)),
        "other_loss_problems": float(len(arrays["other"])),
    }
    measured = (
        f"With the log-loss, in all {len(gap)} problems the correlation with $W^mm$ is at least 1 - "
        f"{1.0 - numbers['smallest_corr_at_largest_radius']:.0e} at R = 1e5/margin (distance slopes: median {np.median(slopes):.4f}, "
        f"slowest {slopes.max():.3f}). $‖Π(W_R) − W^cyc‖$ falls like e^(ρ R·margin) with ρ from {rates.max():.3f} to {rates.min():.3f} "
        f"down to {gap[:, -1].max():.0e}; KKT residuals are up to {numbers['largest_kkt_residual']:.0e}. {missed} infeasible datasets "
        "were passed over. With $e^(−2u)$ and one minimiser the correlation is at least 1 - "
        f"{1.0 - numbers['other_loss_smallest_corr']:.0e} in {len(arrays['other'])} problems, and $Π(W_R)$ within "
        f"{numbers['other_loss_largest_cyclic_gap']:.0e} of $W^cyc$."
    )
    note = (
        "It holds for the log-loss, whose risk over the cyclic subset has one minimiser (Lemma 7), but not for every loss of Assumption 1 "
        "(claim C-T2a). The decomposition "
        "$W_R ≈ C_R W^mm + W^cyc$ holds up to a constant, not to zero: the remainder at R = 1e5/margin has norm "
        f"{np.median(remainder):.2f} in the median and up to {remainder.max():.2f}. It is the offset that Graph-SVM's multipliers "
        f"predict: residual attention on active pairs is proportional to them, in the {int(lawful.sum())} problems where every active "
        f"pair can carry one, with a largest log ratio of {np.median(deviation):.0e} in the median ({deviation.max():.0e} at most), and "
        f"the remainder is the predicted one to {np.median(error):.0e} ({error.max():.0e} at most), both falling like 1/R."
    )
    return measured, numbers, arrays, note


class C_T2a(Claim):
    labels = ("C Thm 2",)
    known = Verdict.DOES_NOT_HOLD

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Search all directions for the best matrix of each norm, under both losses."""
        progress.expect(1)
        radii = np.geomspace(1.0, 1000.0, 31 if effort is Effort.PAPER else 7)
        best = _best_of_the_plane(radii)
        progress.advance()
        corr, cyclic = best["ℓ(u) = −u"][-1]
        numbers = {
            "corr_without_one_minimiser": float(corr),
            "cyclic_share_without_one_minimiser": float(cyclic),
            "corr_of_the_log_loss": float(best["log-loss"][-1, 0]),
        }
        measured = (
            f"With $ℓ(u) = −u$, [a, b, c] → a and → b, the correlation of $W_R$ with $W^mm$ is {corr:.3f} at R = 1000 and "
            f"$‖Π(W_R)‖/R$ is {cyclic:.2f}; with the log-loss on the same data the correlation is 1 - "
            f"{1.0 - numbers['corr_of_the_log_loss']:.0e}."
        )
        note = (
            "For the log-loss the theorem holds (claim C-T2); for every loss of Assumption 1, as it is stated, it is false. That asks for "
            "a loss that is strictly decreasing with a bounded derivative, as $ℓ(u) = −u$ is. On one-hot tokens with [a, b, c] → a and → b "
            "its risk does not see how a and b share: $W^cyc$ = 0 is one of many minimisers, and the best matrix of norm R puts a above b "
            "by R/√2. The proof takes for granted that a minimising sequence on $S_cyc$ converges; it does if the risk over the cyclic "
            "subset has one minimiser."
        )
        return Finding(measured, numbers, {"radii": radii, "best": best}, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The correlation with W^mm, and the part along S_cyc, over the norm."""
        fig, axes = ml.plotting.figure(2, width=4.9, height=4.0)
        for (name, rows), colour, mark in zip(finding.arrays["best"].items(), ml.plotting.ACCENTS, "os", strict=False):
            for ax, values in zip(axes, rows.T, strict=True):
                ax.semilogx(finding.arrays["radii"], values, f"{mark}-", color=colour, ms=4, label=name)
        for ax, label, title in zip(
            axes,
            ("correlation of $W_R$ with $W^{mm}$", "$‖Π(W_R)‖/R$"),
            ("Direction of the best matrix", "Its part along $S_{cyc}$"),
            strict=True,
        ):
            ax.set(xlabel="R", ylabel=label, title=title, ylim=(-0.05, 1.05))
        axes[0].legend(loc="lower right")
        return {"counterexample": fig}


def _best_of_the_plane(radii: FloatArray) -> dict[str, FloatArray]:
    """By loss (n_radii, 2) on [a, b, c] → a, b: the correlation of the best direction with W^mm, and ‖Π(W_R)‖/R.

    Only differences of a, b, c count, so the best matrix of norm R lies on a circle; all its points are tried.
    """
    turn = np.linspace(-np.pi, np.pi, 200_001)
    along, across = np.array([1.0, 1.0, -2.0]) / np.sqrt(6.0), np.array([1.0, -1.0, 0.0]) / np.sqrt(2.0)
    unit = np.cos(turn)[:, None] * along + np.sin(turn)[:, None] * across
    found: dict[str, list[tuple[float, float]]] = {"ℓ(u) = −u": [], "log-loss": []}
    for radius in radii:
        a, b, c = radius * unit.T
        gains = (
            np.logaddexp(a - c, b - c),
            0.5 * (a + b) - np.logaddexp(np.logaddexp(a, b), c),
        )  # s_c smallest; -log-loss
        for rows, gain in zip(found.values(), gains, strict=True):
            best = unit[int(np.argmax(gain))]
            rows.append((float(best @ along), abs(float(best @ across))))
    return {name: np.array(rows) for name, rows in found.items()}
