"""C Thm 1: on acyclic data the regularisation path turns into the max-margin direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data.random_sequences import acyclic_sequences
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray
from marginlens.dynamics.paths.next_token import nexttoken_path
from marginlens.losses.next_token import LabelLoss
from marginlens.risk.next_token_heads import Head, as_head
from marginlens.risk.reduced_sequences import reduce_sequences
from marginlens_papers.claim import Bound, Effort, Finding, Progress
from marginlens_papers.claims.c.lemma_1 import SETTINGS, Setting, feasible_data

ID = "C-T1"
LABELS = ("C Thm 1", "C Algo-RP")
TITLE = "The regularisation path of acyclic data converges to W^mm in direction"
STATEMENT = (
    "On acyclic data with a feasible Acyc-SVM and Assumptions 1 to 3, the matrix of smallest risk among all up to the norm R converges in "
    "direction to the solution of Acyc-SVM as R grows."
)
PROTOCOL = (
    "Random acyclic data (K, d, n, T) = (8, 8, 4, 6), (6, 12, 5, 5) and (10, 5, 6, 6) where Acyc-SVM is feasible; R from 1 to 1e5 over "
    "the margin. The log-loss with C Eᵀ = I, whose risk is convex; and, on fewer data, ℓ(u) = −u and ℓ(u) = e⁻ᵘ with the head C = E, "
    "which obeys Assumption 3 and makes the risk nonconvex: there the search starts from the max-margin direction, from the radius "
    "before and, up to logits of 64, from 12 random matrices, and the lowest end is taken. That it is the lowest of all is not proved, "
    "and not needed: a matrix of norm R has some logit gap of at most R · margin, which bounds every risk in the ball from below, and "
    "what is not above the risk found must then lie within the distance √(2κ/(R · margin)) of the direction of W^mm, κ being the "
    "logarithm of found excess over bound. This certificate covers the true minimiser. Minima are compared by the logarithm of the "
    "excess risk, which reaches e^-100000. The slope of log distance against log R is fitted from R = 1e3/margin on. Every point is "
    "checked by its KKT residual."
)
PAPER_VALUE = "–"
EXPECTED = {
    "smallest_corr_at_largest_radius": Bound(low=0.999),
    "slowest_slope": Bound(high=-0.8),
    "median_slope": Bound(low=-1.05, high=-0.95),
    "distance_grows": Bound(high=0),
    "largest_certified_distance_at_the_end": Bound(high=0.05),
    "outside_their_certificate": Bound(high=0),
    "largest_kkt_residual": Bound(high=1e-8),
    "problems": Bound(low=5),
}
SEED = 17
SHAPES = ((8, 8, 4, 6), (6, 12, 5, 5), (10, 5, 6, 6))  # K, d, n, T
SCALES = 10.0 ** np.arange(6)  # R · margin
FITTED = 3  # from this scale on
RESTARTS = 12
CONVEX, GENERAL = SETTINGS[0], (SETTINGS[2], SETTINGS[3])


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


def compute(effort: Effort, progress: Progress) -> Finding:
    """Follow the path of every dataset and measure its distance to the max-margin direction."""
    convex, general = (20, 4) if effort is Effort.PAPER else (1, 1)
    tasks = [(CONVEX, shape, j) for shape in SHAPES for j in range(convex)]
    tasks += [
        (one, shape, 1000 + j) for one in GENERAL for shape in SHAPES[: 3 if general > 1 else 1] for j in range(general)
    ]
    progress.expect(len(tasks))
    lines, missed = [], 0
    for setting, shape, j in tasks:
        rng = np.random.default_rng([SEED, j, *shape])
        ds, limit, infeasible = feasible_data(acyclic_sequences, shape, rng)
        missed += infeasible
        head, radii = setting.head(ds, rng), SCALES / limit.margin
        path = nexttoken_path(ds, radii, head=head, loss=setting.loss, restarts=RESTARTS, rng=j)
        alone = path if setting is CONVEX else nexttoken_path(ds, radii, head=head, loss=setting.loss, restarts=0)
        excess, floor = path.log_excess, log_risk_bound(ds, as_head(ds, head), setting.loss)
        share = np.maximum(excess + SCALES - floor, 0.0) / SCALES  # κ over R · margin; from one on nothing is certain
        certified = np.where(share < 1.0, np.sqrt(2.0 * share), 2.0)
        distance, lowered = path.distance(limit.x), float(np.max(alone.log_excess - excess))
        lines.append(
            _Line(setting, shape, distance, path.correlation(limit.x), path.kkt_residual(), excess, certified, lowered)
        )
        progress.advance()
    distance = np.stack([one.distance for one in lines])
    slopes = np.polyfit(np.log(SCALES[FITTED:]), np.log(distance[:, FITTED:]).T, 1)[0]
    certified = np.stack([one.certified for one in lines])
    is_convex = np.array([one.setting is CONVEX for one in lines])
    corr = np.stack([one.corr for one in lines])
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
        "lowered_by_random_starts": float(sum(one.lowered > 1e-9 for one in lines)),
        "largest_log_excess_at_the_end": float(max(one.log_excess[-1] for one in lines)),
        "largest_kkt_residual": float(np.max([one.residual for one in lines])),
        "problems": float(len(lines)),
        "infeasible_passed_over": float(missed),
    }
    measured = (
        f"In all {len(lines)} problems ({int(is_convex.sum())} with the log-loss and C Eᵀ = I, {int((~is_convex).sum())} with C = E) the "
        f"correlation with W^mm is at least {numbers['smallest_corr_at_1000_over_margin']:.5f} at R = 1e3/margin and 1 - "
        f"{1.0 - numbers['smallest_corr_at_largest_radius']:.0e} at 1e5/margin. The distance of W_R/R to its direction falls with slopes "
        f"from {slopes.max():.3f} to {slopes.min():.3f} (median {np.median(slopes):.4f}); the true minimiser is certain to lie within "
        f"{certified[:, 3].max():.2f} of it at 1e3/margin and within {numbers['largest_certified_distance_at_the_end']:.3f} at "
        f"1e5/margin. In {numbers['lowered_by_random_starts']:.0f} of the {int((~is_convex).sum())} nonconvex problems random starts "
        f"found a lower risk than the max-margin direction led to. KKT residuals are up to {numbers['largest_kkt_residual']:.0e}; "
        f"{missed} infeasible datasets were passed over."
    )
    arrays: dict[str, Any] = {
        "distance": distance,
        "certified": certified,
        "slopes": slopes,
        "is_convex": is_convex,
        "shape": [one.shape for one in lines],
    }
    return Finding(measured, numbers, arrays)


def log_risk_bound(ds: SequenceDataset, head: Head, loss: LabelLoss) -> float:
    r"""log c with :math:`L(W) - L_\star \ge c\, e^{-R \cdot \text{margin}}` for all W of norm up to R; acyclic data, convex loss.

    .. math:: c = \min_{i,\, x \in X_i,\, x \ne y_i} \pi_i\, |\ell'(\gamma_{y_i})|\, (\gamma_{y_i} - \gamma_x)\, m_x / T_i

    Some pair has a logit gap of at most R · margin, because no unit matrix has larger gaps everywhere than the margin; if its sample
    has the smallest gap of all, token x has attention of at least :math:`m_x e^{-R\cdot\text{margin}}/T_i` there.
    """
    one = reduce_sequences(ds)
    labels, counts = one.labels[one.sample], np.exp(one.log_counts)
    slope = -loss.scalar(head.scores(one.labels, one.labels))[1]
    fall = head.scores(labels, labels) - head.scores(labels, one.tokens)
    length = np.add.reduceat(counts, one.offsets[:-1])
    return float(np.log(((one.share * slope / length)[one.sample] * fall * counts)[~one.is_label].min()))


def draw(finding: Finding) -> dict[str, Figure]:
    """The distance to the max-margin direction over the radius: the log-loss at the left, other losses and heads at the right."""
    fig, axes = plotting.figure(2, width=5.2, height=4.5)
    distance, convex = finding.arrays["distance"], finding.arrays["is_convex"]
    titles = ("Log-loss, C Eᵀ = I", "ℓ(u) = −u and e⁻ᵘ, C = E")
    for ax, own, title in zip(axes, (convex, ~convex), titles, strict=True):
        for colour, shape in zip(plotting.ACCENTS, SHAPES, strict=False):
            chosen = np.array([one == shape for one in finding.arrays["shape"]]) & own
            for line in distance[chosen]:
                ax.loglog(SCALES, line, color=colour, lw=1.0, alpha=0.7)
            if chosen.any():
                ax.plot([], [], color=colour, label=f"K = {shape[0]}, d = {shape[1]}")
        ax.loglog(SCALES, finding.arrays["certified"][own].max(axis=0), color=plotting.NEITHER, lw=1.8)
        ax.plot([], [], color=plotting.NEITHER, label="no true minimiser lies above")
        guide = 10.0 / SCALES[2:]
        ax.loglog(SCALES[2:], guide, color=plotting.INK, ls="--", lw=1.3)
        ax.text(SCALES[3], 2.0 * guide[1], "slope −1", ha="left", va="bottom")
        ax.set(xlabel="R · margin", ylabel="‖W$_R$/R − W$^{mm}$/‖W$^{mm}$‖‖", title=f"{title}: {int(own.sum())} paths")
        ax.legend(loc="lower left")
    return {"distance": fig}
