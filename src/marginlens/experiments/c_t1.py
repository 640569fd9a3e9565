"""C Thm 1: on acyclic data the regularisation path turns into the max-margin direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens.data.sequence_generators import acyclic_sequences
from marginlens.data.tokens import FloatArray
from marginlens.experiments import drawing
from marginlens.experiments.c_l1 import SETTINGS, Setting, feasible_data
from marginlens.experiments.claim import Bound, Effort, Finding, Progress
from marginlens.nexttoken.path import nexttoken_path

ID = "C-T1"
LABELS = ("C Thm 1", "C Algo-RP")
TITLE = "The regularisation path of acyclic data converges to W^mm in direction"
STATEMENT = (
    "On acyclic data with a feasible Acyc-SVM and Assumptions 1 to 3, the matrix of smallest risk among all up to the norm R converges in "
    "direction to the solution of Acyc-SVM as R grows."
)
PROTOCOL = (
    "Random acyclic data (K, d, n, T) = (8, 8, 4, 6), (6, 12, 5, 5) and (10, 5, 6, 6) where Acyc-SVM is feasible; R from 1 to 1e5 over the "
    "margin. The log-loss with C Eᵀ = I, whose risk is convex; and, on fewer data, ℓ(u) = −u and ℓ(u) = e⁻ᵘ with the head C = E, which "
    "obeys Assumption 3 and makes the risk nonconvex. Minima are compared by the logarithm of the excess risk, which reaches "
    "e^-100000. The slope of log distance against log R is fitted from R = 1e3/margin on. Every point is checked by its KKT residual."
)
PAPER_VALUE = "–"
EXPECTED = {
    "smallest_corr_at_largest_radius": Bound(low=0.999),
    "slowest_slope": Bound(high=-0.8),
    "median_slope": Bound(low=-1.05, high=-0.95),
    "distance_grows": Bound(high=0),
    "largest_kkt_residual": Bound(high=1e-8),
    "problems": Bound(low=5),
}
SEED = 17
SHAPES = ((8, 8, 4, 6), (6, 12, 5, 5), (10, 5, 6, 6))  # K, d, n, T
SCALES = 10.0 ** np.arange(6)  # R · margin
FITTED = 3  # from this scale on
CONVEX, GENERAL = SETTINGS[0], (SETTINGS[2], SETTINGS[3])


@dataclass(frozen=True)
class _Line:
    """One path: its setting, shape, and distance, correlation and residual at each scale."""

    setting: Setting
    shape: tuple[int, ...]
    distance: FloatArray
    corr: FloatArray
    residual: FloatArray
    log_excess: FloatArray


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
        path = nexttoken_path(
            ds, SCALES / limit.margin, head=setting.head(ds, rng), loss=setting.loss, restarts=1, rng=j
        )
        lines.append(
            _Line(
                setting, shape, path.distance(limit.x), path.correlation(limit.x), path.kkt_residual(), path.log_excess
            )
        )
        progress.advance()
    distance = np.stack([one.distance for one in lines])
    slopes = np.polyfit(np.log(SCALES[FITTED:]), np.log(distance[:, FITTED:]).T, 1)[0]
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
        "largest_log_excess_at_the_end": float(max(one.log_excess[-1] for one in lines)),
        "largest_kkt_residual": float(np.max([one.residual for one in lines])),
        "problems": float(len(lines)),
        "infeasible_passed_over": float(missed),
    }
    measured = (
        f"In all {len(lines)} problems ({int(is_convex.sum())} with the log-loss and C Eᵀ = I, {int((~is_convex).sum())} with C = E) the "
        f"correlation with W^mm is at least {numbers['smallest_corr_at_1000_over_margin']:.5f} at R = 1e3/margin and "
        f"1 - {1.0 - numbers['smallest_corr_at_largest_radius']:.0e} at 1e5/margin. The distance of W_R/R to its direction falls with "
        f"slopes from {slopes.max():.3f} to {slopes.min():.3f} (median {np.median(slopes):.4f}); KKT residuals are up to "
        f"{numbers['largest_kkt_residual']:.0e}; {missed} infeasible datasets were passed over."
    )
    arrays: dict[str, Any] = {
        "distance": distance,
        "slopes": slopes,
        "is_convex": is_convex,
        "shape": [one.shape for one in lines],
    }
    return Finding(measured, numbers, arrays)


def draw(finding: Finding) -> dict[str, Figure]:
    """The distance to the max-margin direction over the radius: the log-loss at the left, other losses and heads at the right."""
    fig, axes = drawing.figure(2, width=5.2, height=4.5)
    distance, convex = finding.arrays["distance"], finding.arrays["is_convex"]
    titles = ("Log-loss, C Eᵀ = I", "ℓ(u) = −u and e⁻ᵘ, C = E")
    for ax, own, title in zip(axes, (convex, ~convex), titles, strict=True):
        for colour, shape in zip(drawing.ACCENTS, SHAPES, strict=False):
            chosen = np.array([one == shape for one in finding.arrays["shape"]]) & own
            for line in distance[chosen]:
                ax.loglog(SCALES, line, color=colour, lw=1.0, alpha=0.7)
            if chosen.any():
                ax.plot([], [], color=colour, label=f"K = {shape[0]}, d = {shape[1]}")
        guide = 10.0 / SCALES[2:]
        ax.loglog(SCALES[2:], guide, color=drawing.INK, ls="--", lw=1.3)
        ax.text(SCALES[3], 2.0 * guide[1], "slope −1", ha="left", va="bottom")
        ax.set(xlabel="R · margin", ylabel="‖W$_R$/R − W$^{mm}$/‖W$^{mm}$‖‖", title=f"{title}: {int(own.sum())} paths")
        ax.legend(loc="lower left")
    return {"distance": fig}
