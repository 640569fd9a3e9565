"""A Thm 1: as the ball grows, the point of smallest risk turns into the globally optimal max-margin direction."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, figure_1b, sphere_tokens
from marginlens.dynamics import regularization_path
from marginlens.theory import globally_optimal_direction
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-T1"
LABELS = ("A Thm 1", "A Eq. (2)")
TITLE = "The regularisation path converges to the globally optimal direction"
STATEMENT = (
    "Where every input has one token of highest score, the point of smallest risk among all p up to the norm R converges in direction "
    "to the max-margin separator of these tokens (GMM) as R grows."
)
PROTOCOL = (
    "Random sphere problems (n = 3, T = 4) with d from 2 to 50 whose optimal tokens one direction selects; logistic loss; R from 1 to "
    "1e5 over the margin. At each R all local minima found so far are followed and new starts added; candidates are compared by the "
    "logarithm of the excess risk, which reaches e^-100000. The slope of log distance against log R is fitted from R = 1e3/margin on. "
    "Every point is checked by its KKT residual."
)
PAPER_VALUE = "–"
EXPECTED = {
    "smallest_corr_at_largest_radius": Bound(low=0.999),
    "slowest_slope": Bound(high=-0.9),
    "median_slope": Bound(high=-0.98),
    "distance_grows": Bound(high=0),
    "largest_kkt_residual": Bound(high=1e-7),
    "problems": Bound(low=4),
}
SEED = 5
SCALES = 10.0 ** np.arange(6)  # R · margin
FITTED = 3  # from this scale on


def compute(effort: Effort, progress: Progress) -> Finding:
    """Follow the path of every problem and measure its distance to the GMM direction."""
    widths = (
        np.unique(np.linspace(2, 50, 49).round().astype(int)) if effort is Effort.PAPER else np.array([2, 12, 25, 50])
    )
    widths = np.concatenate([[2], widths]) if effort is Effort.PAPER else widths
    progress.expect(len(widths) + 1)
    distance, corr, residual, margins = [], [], [], []
    for j, d in enumerate(widths.tolist()):
        data, v, direction, margin = _separable(d, np.random.default_rng([SEED, j]))
        path = regularization_path(data, v, SCALES / margin, restarts=1, rng=j)
        distance.append(path.distance(direction))
        corr.append(path.correlation(direction))
        residual.append(path.kkt_residual())
        margins.append(margin)
        progress.advance()
    distances = np.stack(distance)  # (n_problems, n_radii)
    slopes = np.polyfit(np.log(SCALES[FITTED:]), np.log(distances[:, FITTED:]).T, 1)[0]
    planar = _planar()
    progress.advance()
    numbers = {
        "smallest_corr_at_largest_radius": float(np.min(np.stack(corr)[:, -1])),
        "smallest_corr_at_1000_over_margin": float(np.min(np.stack(corr)[:, FITTED])),
        "slowest_slope": float(slopes.max()),
        "median_slope": float(np.median(slopes)),
        "steepest_slope": float(slopes.min()),
        "largest_distance_at_the_end": float(distances[:, -1].max()),
        "distance_grows": float(np.sum(~(np.diff(distances, axis=1) <= 0.0))),
        "largest_kkt_residual": float(np.max(residual)),
        "problems": float(len(widths)),
    }
    measured = (
        f"In all {len(widths)} problems the correlation with the GMM is at least {numbers['smallest_corr_at_1000_over_margin']:.5f} at "
        f"R = 1e3/margin and 1 - {1.0 - numbers['smallest_corr_at_largest_radius']:.0e} at 1e5/margin. The distance of p̄(R)/R to it falls "
        f"with R, with slopes from {slopes.max():.3f} to {slopes.min():.3f} (median {np.median(slopes):.4f}); KKT residuals are up to "
        f"{numbers['largest_kkt_residual']:.0e}."
    )
    arrays = {"d": widths, "distance": distances, "slopes": slopes, "margins": np.array(margins), "planar": planar}
    return Finding(measured, numbers, arrays)


def _separable(d: int, rng: np.random.Generator) -> tuple[TokenDataset, Any, Any, float]:
    """A random problem whose optimal tokens one direction selects, its head, that direction and its margin."""
    while True:
        data, v = sphere_tokens(20, 3, 4, d, rng)
        found = globally_optimal_direction(data, v)
        good = np.flatnonzero(found.is_feasible & found.optimum_is_unique)
        if len(good):
            j = int(good[0])
            return data[j], v[j], found.direction[j], float(found.margin[j])


def _planar() -> dict[str, Any]:
    """The path of Figure 1(b)'s problem from the origin on."""
    data, v = figure_1b()
    path = regularization_path(data, v, np.geomspace(0.1, 8.0, 16), restarts=2)
    found = globally_optimal_direction(data, v)
    return {
        "keys": data.K,
        "scores": data.scores(v),
        "direction": found.direction,
        "radii": path.radii,
        "points": path.points,
    }


def draw(finding: Finding) -> dict[str, Figure]:
    """The distance to the GMM direction over the radius for every problem, and one path that bends into it."""
    fig, (left, right) = plotting.figure(2, width=5.4, height=4.6)
    distance, widths = finding.arrays["distance"], finding.arrays["d"]
    low, high = float(widths.min()), float(widths.max())
    shade = plotting.shades(101)
    for d, line in zip(widths, distance, strict=True):
        left.loglog(SCALES, line, color=shade[round(100 * (d - low) / (high - low))], lw=1.0, alpha=0.8)
    for d in (low, (low + high) / 2.0, high):
        left.plot([], [], color=shade[round(100 * (d - low) / (high - low))], label=f"d = {d:.0f}")
    guide = 30.0 / SCALES[1:]
    left.loglog(SCALES[1:], guide, color=plotting.INK, ls="--", lw=1.3)
    left.text(SCALES[3], 2.0 * guide[2], "slope −1", ha="left", va="bottom")
    left.set(xlabel="R · margin", ylabel="‖p̄(R)/R − GMM direction‖")
    left.set_title(f"{len(widths)} problems: the distance falls like 1/R")
    left.legend(loc="lower left")
    _draw_plane(right, finding.arrays["planar"])
    return {"path": fig}


def _draw_plane(ax: Axes, planar: dict[str, Any]) -> None:
    points, direction, radii = planar["points"], planar["direction"], planar["radii"]
    window: plotting.Window = ((-2.6, 2.6), (-0.6, 4.4))
    turn = np.linspace(0.0, 2.0 * np.pi, 200)
    for radius in (1.0, 2.0, 3.0, 4.0):
        ax.plot(radius * np.cos(turn), radius * np.sin(turn), color=plotting.FAINT, lw=1.0, zorder=1)
        plotting.note_at(
            ax,
            f"R = {radius:g}",
            radius * np.array([-0.5, 0.866]),
            (0, 0),
            ha="center",
            fontsize=9,
            color=plotting.PATH,
        )
    plotting.ray(ax, direction, 20.0, color=plotting.GLOBAL, label="GMM direction")
    start = points[0] / radii[0]
    ax.plot(*np.stack([0 * start, 20.0 * start]).T, color=plotting.PATH, ls=":", lw=1.4, label="steepest descent at 0")
    ax.plot(*points.T, color=plotting.INK, lw=2.0, marker="o", ms=4, zorder=5, label="p̄(R)")
    plotting.scatter_tokens(ax, planar["keys"], planar["scores"])
    ax.set(xlim=window[0], ylim=window[1], aspect="equal", xlabel="p₁ and first coordinate of the keys", ylabel="p₂")
    ax.set_title("One path bends into the max-margin direction")
    ax.legend(loc="lower left", fontsize=9, frameon=True, framealpha=0.9, edgecolor="none")
