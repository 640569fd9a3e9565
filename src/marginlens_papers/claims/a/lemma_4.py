"""A Lemmas 4, 5 and 7: how the gradient correlates with the max-margin direction."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, scored_tokens, sphere_tokens
from marginlens.svm import Status, att_svm
from marginlens.theory import (
    basin_cone,
    descent_correlation,
    gradient_ratio,
    gradient_ratio_radius,
    local_gradient_bounds,
    locally_optimal_directions,
)
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-L4"
LABELS = ("A Lemma 4", "A Lemma 5", "A Lemma 7", "A Assumption B")
TITLE = "The gradient points away from the max-margin direction, and p cannot beat it by much"
STATEMENT = (
    "Under Assumption B the GMM direction is a direction of descent at every p (Lemma 4); for one input, beyond some norm, p itself "
    "is at most 1 + π times as good (Lemma 5); and inside the cone of a locally optimal direction the same holds without Assumption "
    "B, with two-sided bounds on the gradient (Lemma 7)."
)
PROTOCOL = (
    "Random problems; points p of norms from 1e-2 to 1e4 for Lemma 4, from the explicit radius on for Lemma 5 (π from .02 to 1), and "
    "inside the cone of Eq. (32) beyond the radii of Eq. (39) and of the explicit Lemma 7 (L3). Gradients are exact relative to their own "
    "size. Controls: for Lemma 4 scores that break Assumption B, for Lemma 7 points at a millionth of its radius. The paper leaves a "
    "constant ν implicit; ours follows from the multipliers."
)
PAPER_VALUE = "–"
EXPECTED = {
    "lemma_4_violations": Bound(high=0),
    "lemma_5_violations": Bound(high=0),
    "lemma_7_bound_violations": Bound(high=0),
    "lemma_7_ratio_violations": Bound(high=0),
    "share_violating_without_assumption_B": Bound(low=0.01),
    "share_violating_lemma_7_near_0": Bound(low=0.01),
    "largest_ratio_less_one_over_pi": Bound(low=0.0, high=1.0),
}
SEED = 4


def compute(effort: Effort, progress: Progress) -> Finding:
    """Evaluate the three lemmas at random points of random problems."""
    problems, points = (200, 50) if effort is Effort.PAPER else (20, 20)
    progress.expect(4)
    lemma_4 = _lemma_4(problems, points, equal=True)
    progress.advance()
    control = _lemma_4(problems, points, equal=False)
    progress.advance()
    lemma_5 = _lemma_5(problems, points)
    progress.advance()
    lemma_7 = _lemma_7(max(8, problems // 4), points)
    progress.advance()
    numbers = {
        "lemma_4_violations": float(np.sum(~(lemma_4 > 0))),
        "smallest_cosine": float(lemma_4.min()),
        "share_violating_without_assumption_B": float(np.mean(control < 0)),
        "lemma_5_violations": float(np.sum(~(lemma_5["excess"] <= 0))),
        "lemma_7_bound_violations": float(np.sum(~lemma_7["hold"])),
        "share_violating_lemma_7_near_0": float(np.mean(~lemma_7["near_0"])),
        "lemma_7_ratio_violations": float(np.sum(~(lemma_7["excess"] <= 0))),
        "largest_ratio_less_one_over_pi": float(np.max(lemma_5["excess"] / lemma_5["pi"] + 1)),
    }
    measured = (
        f"Lemma 4: {numbers['lemma_4_violations']:.0f} violations in {lemma_4.size:,} gradients (smallest cosine {lemma_4.min():.1e}); "
        f"without Assumption B {100 * numbers['share_violating_without_assumption_B']:.1f}% have the wrong sign. "
        f"Lemma 5: {numbers['lemma_5_violations']:.0f} in {lemma_5['excess'].size:,}, the largest (ratio - 1)/π being "
        f"{numbers['largest_ratio_less_one_over_pi']:.1e}. "
        f"Lemma 7: {numbers['lemma_7_bound_violations']:.0f} in {lemma_7['hold'].size:,} "
        f"for (31a) to (31c) (at a millionth of the radius {100 * numbers['share_violating_lemma_7_near_0']:.0f}%), "
        f"{numbers['lemma_7_ratio_violations']:.0f} in {lemma_7['excess'].size:,} for (L3)."
    )
    return Finding(measured, numbers, {"cosine": lemma_4, "control": control, "lemma_5": lemma_5, "lemma_7": lemma_7})


def _lemma_4(problems: int, points: int, *, equal: bool) -> Any:
    """Cosines of descent with the GMM direction at random points, where that exists; scores obey Assumption B or not."""
    rng = np.random.default_rng([SEED, int(equal)])
    keys = rng.normal(size=(problems, 3, 4, 6))
    scores = (
        np.repeat(rng.normal(size=(problems, 3, 1)), 4, axis=-1) if equal else rng.normal(size=(problems, 3, 4)) - 3
    )
    scores[..., 0] = scores.max(axis=-1) + rng.exponential(size=(problems, 3))
    data, v = scored_tokens(keys, scores)
    feasible = att_svm(data, np.zeros((problems, 3), dtype=int)).status == Status.OPTIMAL
    data, _ = scored_tokens(keys[feasible], scores[feasible])
    found = []
    for _ in range(points):
        size = 10.0 ** rng.uniform(-2, 4, size=(len(data), 1))
        found.append(descent_correlation(data, v, size * rng.normal(size=(len(data), 6))))
    return np.concatenate(found)


def _lemma_5(problems: int, points: int) -> dict[str, Any]:
    """How far the gradient ratio exceeds 1 + π, for one input beyond the explicit radius."""
    excess, room = [], []
    for j in range(problems):
        rng = np.random.default_rng([SEED, 5, j])
        scores = np.full((1, 5), 0.3)
        scores[0, 0] = 1.0
        data, v = scored_tokens(rng.normal(size=(1, 5, 4)), scores)
        pi = float(rng.choice([0.02, 0.1, 0.5, 1.0]))
        radius = gradient_ratio_radius(data, v, pi)
        if not np.isfinite(radius):
            continue
        p = rng.normal(size=(points, 4))
        closeness = 10.0 ** rng.uniform(
            -5, 1, size=(points, 1)
        )  # half of the points crowd around p^mm, where the ratio is largest
        near = att_svm(data, np.zeros(1, dtype=int)).direction + closeness * p / np.linalg.norm(
            p, axis=-1, keepdims=True
        )
        p = np.where(np.arange(points)[:, None] % 2 == 0, p, near)
        p *= radius * 10.0 ** rng.uniform(0, 1, size=(points, 1)) / np.linalg.norm(p, axis=-1, keepdims=True)
        ratio = gradient_ratio(data.repeat(points), v, p, np.zeros(1, dtype=int))
        excess.append(ratio - (1 + pi))
        room.append(np.full(points, pi))
    return {"excess": np.concatenate(excess), "pi": np.concatenate(room)}


def _lemma_7(problems: int, points: int) -> dict[str, Any]:
    """Eqs (31) beyond Eq. (39), and (L3) beyond the explicit radius, inside the cones of random locally optimal directions."""
    hold, near_0, excess = [], [], []
    for j in range(problems):
        rng = np.random.default_rng([SEED, 7, j])
        data, v = _single(rng)
        optima = locally_optimal_directions(data, v)
        if not len(optima.selections):
            continue
        cone = basin_cone(data, v, optima.selections[int(rng.integers(len(optima.selections)))])
        if cone.every_input_has_neighbours:
            near = cone.sample(points, rng, cone.no_stationary_radius)
            hold.append(local_gradient_bounds(data, v, cone, near).hold)
            near_0.append(local_gradient_bounds(data, v, cone, 1e-6 * near).hold)
        far = cone.sample(points, rng, cone.correlation_radius)
        selected = cone.optimality.selected
        excess.append(gradient_ratio(data.repeat(points), v, far, selected) - (1 + cone.pi))
    return {"hold": np.concatenate(hold), "near_0": np.concatenate(near_0), "excess": np.concatenate(excess)}


def _single(rng: np.random.Generator) -> tuple[TokenDataset, Any]:
    data, v = sphere_tokens(1, int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(3, 7)), rng)
    return data[0], v[0]


def draw(finding: Finding) -> dict[str, Figure]:
    """Cosines with and without Assumption B, and how much of π the ratio uses."""
    fig, (left, right) = plotting.figure(2, width=5.2, height=3.8)
    bins = np.linspace(-1, 1, 61)
    for values, colour, label in (
        (finding.arrays["cosine"], plotting.GLOBAL, "Assumption B holds"),
        (finding.arrays["control"], plotting.NEITHER, "scores differ: it does not"),
    ):
        heights, edges = np.histogram(values[np.isfinite(values)], bins=bins)
        left.stairs(heights / heights.sum(), edges, fill=colour == plotting.NEITHER, color=colour, lw=2, label=label)
    left.axvline(0, color=plotting.INK, ls="--", lw=1.2)
    left.set(xlabel="cosine of descent with the GMM direction", ylabel="share of gradients")
    left.set_title("Lemma 4")
    left.set_ylim(top=1.3 * left.get_ylim()[1])  # room for the legend above what stands at 0
    left.legend(loc="upper left")
    used = finding.arrays["lemma_5"]["excess"] / finding.arrays["lemma_5"]["pi"] + 1
    right.hist(np.clip(used, -3, None), bins=60, color=plotting.LOCAL, weights=np.full(used.size, 1 / used.size))
    right.axvline(1, color=plotting.INK, ls="--", lw=1.2)
    right.text(0.93, 0.9, "bound", ha="right", transform=right.get_xaxis_transform())
    right.set(xlabel="(ratio − 1)/π, cut at −3", ylabel="share of gradients")
    right.set_title("Lemma 5, beyond its explicit radius")
    return {"correlation": fig}
