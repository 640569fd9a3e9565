"""A Fig 1: descent in the plane from several starts, with one input or three, and equal or unequal scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar

import marginlens as ml
from marginlens.data import figure_1a, figure_1b, figure_1c
from marginlens.theory.bias_table import ON_P
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a.textbook import textbook_iterates
from marginlens_papers.claims.drawing import (
    Limit,
    Note,
    Plane,
    gaps_and_norms,
    paths_in_plane,
    shaded_looks,
    starts_that_select,
)

HEIGHTS = (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)
STEP = 0.1
WINDOW_A: drawing.Window = ((-3.3, 1.7), (-1.8, 3.2))


def _descend(data: ml.TokenDataset, head: FloatArray, starts: FloatArray, n_steps: int) -> ml.Trajectory:
    """Normalised descent from every start, with the first 1,000 steps recorded one by one."""
    record = ml.Record(ml.plotting.recorded_steps(n_steps, dense=1000))
    optimizer = ml.NormalizedGD(STEP)
    return ml.descend(data.repeat(len(starts)), head, optimizer=optimizer, n_steps=n_steps, start=starts, record=record)


class A_F1a(Claim):
    labels = ("A Fig 1(a)", "A Thm 2")
    runs = (Run(ON_P, ml.NormalizedGD(STEP)),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Descend from the six starts and compare direction and norm with the SVM solution along the way."""
        n_steps = 100_000 if effort is Effort.PAPER else 10_000
        progress.expect(1)
        data, v = figure_1a()
        best = ml.token_optimality(data, v, data.optimal(v))
        start = np.array([(0.0, y) for y in HEIGHTS])
        run = _descend(data, v, start, n_steps)
        progress.advance()
        steps, points = run.saved.steps, run.saved["x"]  # (n_kept,), (n_starts, n_kept, 2)
        norm = np.linalg.norm(points, axis=-1)
        corr = 1.0 - drawing.misalignment(points, best.direction)
        corr[norm == 0.0] = -1.0  # the start at 0 has no direction yet
        late, settled = steps >= 1000, steps >= 100
        fall = np.maximum.accumulate(corr, axis=1) - corr
        early_fall = np.max(fall, axis=1)
        numbers = {
            "globally_optimal": float(best.is_globally_optimal),
            "corr_1000": float(corr[:, steps == 1000].min()),
            "corr_end": float(np.min(ml.correlation(run.final, best.direction))),
            "norm_growth": float(np.min((norm[:, -1] - norm[:, late][:, 0]) / (STEP * (n_steps - 1000)))),
            "smallest_rise_of_norm": float(np.min(np.diff(norm[:, settled], axis=1))),
            "largest_late_fall": float(-np.min(np.diff(corr[:, settled], axis=1))),
            "largest_early_fall": float(early_fall.max()),
        }
        fallen = early_fall > 1e-6
        measured = (
            f"Best direction ({best.direction[0]:.4f}, {best.direction[1]:.4f}). Smallest correlation over the six starts: "
            f"{numbers['corr_1000']:.5f} at step 1,000 and 1 - {1.0 - numbers['corr_end']:.0e} at step {n_steps:,}. From step 100 on the "
            f"norm changes by {numbers['smallest_rise_of_norm']:.3f} or more from one kept step to the next, and it ends at "
            f"{norm[:, -1].min():,.0f} … {norm[:, -1].max():,.0f}."
        )
        note = (
            f"The correlation does not rise from the first step everywhere. The {fallen.sum()} starts that already point near the best "
            f"direction first lose up to {early_fall.max():.3f} (to {corr[fallen].min():.3f}, at step "
            f"{steps[np.argmax(fall, axis=1)].max()} at the latest), because the token (1, 0), which is not a "
            "neighbour, still pulls while the softmax is soft. From step 100 on it rises at every kept step for all starts."
            if fallen.any()
            else ""
        )
        arrays = {
            "keys": data.K,
            "scores": data.scores(v),
            "direction": best.direction,
            "steps": steps,
            "points": points,
            "norm": norm,
            "gap": drawing.misalignment(points, best.direction),
        }
        return Finding(measured, numbers, arrays, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Paths among the tokens; distance from the predicted direction; norm."""
        at = finding.arrays
        key, limits = at["keys"][0], [Limit("best", at["direction"], [0])]
        notes = [Note("γ = 1", key[0], (18, 0)), Note("γ = .9", key[1], (0, 15), "center")]
        notes.append(Note("γ = .9", key[2], (9, 11)))
        look = Plane(WINDOW_A, "First steps of six runs among the tokens")
        fig, _, upper, lower = paths_in_plane(at, limits, notes, look, shaded=True)
        gaps_and_norms(upper, lower, at, shaded_looks([(0, y) for y in HEIGHTS]))
        upper.set(ylim=(3e-9, 5.0), title="The direction converges …")
        upper.legend(title="start", ncols=2, loc="lower left")
        lower.set(title="… while the norm diverges")
        return {"paths": fig}


WINDOW_B: drawing.Window = ((-2.4, 2.8), (-1.8, 3.2))


class A_F1b(Claim):
    labels = ("A Fig 1(b)", "A Thm 3", "A Def 2")
    runs = (Run(ON_P, ml.NormalizedGD(STEP)),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Certify both directions, descend from the six starts and from a grid of starts, and repeat two runs with rounding."""
        n_steps, n_grid, grid_steps = (100_000, 151, 1000) if effort is Effort.PAPER else (10_000, 31, 300)
        progress.expect(3)
        data, v = figure_1b()
        best, local = ml.token_optimality(data, v, [0]), ml.token_optimality(data, v, [1])
        directions = np.stack([best.direction, local.direction])
        start = np.array([(0.0, y) for y in HEIGHTS])
        run = _descend(data, v, start, n_steps)
        progress.advance()
        reaches_local = starts_that_select(data, v, WINDOW_B, n_grid, grid_steps, (0, 1))
        progress.advance()
        rounded_steps = 10_000 if effort is Effort.PAPER else 2000
        rounded = _descend_with_rounding(data, v, start[4:], local.direction, rounded_steps)
        progress.advance()
        steps, points = run.saved.steps, run.saved["x"]  # (n_kept,), (n_starts, n_kept, 2)
        gaps = np.stack([drawing.misalignment(points, direction) for direction in directions])  # (2, n_starts, n_kept)
        limit = np.array([0, 0, 0, 0, 1, 1])
        nearer = np.argmin(gaps, axis=0)
        gap = np.take_along_axis(gaps, limit[None, :, None], axis=0)[0]
        middle = int(np.flatnonzero(steps == 1000)[0])
        numbers = {
            "globally_optimal": float(best.is_globally_optimal),
            "locally_but_not_globally_optimal": float(local.is_locally_optimal and not local.is_globally_optimal),
            "local_score_gap": float(local.score_gap),
            "split_at_1000": float(np.array_equal(nearer[:, middle], limit)),
            "split_at_end": float(np.all(nearer[:, middle:] == limit[:, None])),
            "corr_1000": float(1.0 - gap[:, middle].max()),
            "corr_end": float(1.0 - gap[:, -1].max()),
            "share_of_starts_to_local": float(reaches_local.mean()),
            "rounded_corr_1000": float(1.0 - rounded.gap[:, 1000].min()),
            "rounded_corr_end": float(1.0 - rounded.gap[:, -1].min()),
            "rounded_norm_1000": float(rounded.norm[:, 1000].max()),
        }
        changes = int(np.sum(np.any(np.diff(nearer[:, middle:], axis=1) != 0, axis=1)))
        ended = [", ".join(f"{y:g}" for y, at in zip(HEIGHTS, nearer[:, -1], strict=True) if at == k) for k in (0, 1)]
        measured = (
            f"(1, 0) outscores its neighbours by {numbers['local_score_gap']:.1f} or more and is locally, not globally, optimal. At step "
            f"{n_steps:,}, y = {ended[0]} are at the best direction and y = {ended[1]} at the local one; the smallest correlation "
            f"with the limit that the paper names is {numbers['corr_1000']:.5f} at step 1,000 and 1 - {gap[:, -1].max():.0e} in the end; "
            f"{changes or 'no'} runs change sides in between. Of a grid of {n_grid}² starts over the window of the figure "
            f"below, [-2.4, 2.8] × [-1.8, 3.2], {100 * reaches_local.mean():.0f}% reach the local direction."
        )
        arrays = {
            "keys": data.K,
            "scores": data.scores(v),
            "directions": directions,
            "limit": limit,
            "steps": steps,
            "points": points,
            "gap": gap,
            "basins": reaches_local,
            "rounded_gap": rounded.gap,
            "rounded_norm": rounded.norm,
        }
        return Finding(measured, numbers, arrays, _note_on_rounding(rounded))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Paths over the shaded starts of each limit; distance from each run's limit and norm, exact and rounded."""
        at = finding.arrays
        key, names, colours = at["keys"][0], ("best", "local"), (ml.plotting.GLOBAL, ml.plotting.LOCAL)
        limits = [Limit(*limit) for limit in zip(names, at["directions"], ([0], [1]), colours, strict=True)]
        notes = [Note("γ = 1", key[0], (-16, 0), "right"), Note("γ = .9", key[1], (8, -13))]
        notes.append(Note("γ = 0", key[2], (-11, 6), "right"))
        look = Plane(WINDOW_B, "The start decides: shaded by the limit it leads to", legend="upper left")
        fig, _, upper, lower = paths_in_plane(at, limits, notes, look)
        gaps_and_norms(upper, lower, at, [{"color": colours[limit], "lw": 1.5} for limit in at["limit"]])
        rounded: dict[str, Any] = {"color": ml.plotting.INK, "ls": (0, (2, 1.5)), "lw": 1.3}
        steps = np.arange(at["rounded_gap"].shape[1])[1:]
        upper.loglog(steps, at["rounded_gap"][:, 1:].T, **rounded)
        lower.loglog(steps, at["rounded_norm"][:, 1:].T, **rounded)
        upper.set(title="Exact gradients stay, rounded ones drift …")
        for colour, name in zip(colours, names, strict=True):
            lower.plot([], [], color=colour, label=f"to the {name} direction")
        lower.plot([], [], label="to the local one, in float32", **rounded)
        lower.set(title="… and their norm stalls")
        lower.legend(loc="upper left")
        return {"paths": fig}


class _RoundedRuns(NamedTuple):
    """Runs whose gradients are rounded to single precision.

    Attributes:
        gap: (n_runs, n_steps + 1) 1 - the correlation with the local direction. norm: (n_runs, n_steps + 1).
    """

    gap: FloatArray
    norm: FloatArray

    @property
    def n_steps(self) -> int:
        """The steps of each run."""
        return self.gap.shape[1] - 1


def _descend_with_rounding(
    data: ml.TokenDataset, head: FloatArray, starts: FloatArray, direction: FloatArray, n_steps: int
) -> _RoundedRuns:
    """Descend by the textbook formula in single precision, and compare with a direction."""
    iterates = textbook_iterates(data.repeat(len(starts)), head, starts, STEP, n_steps, np.float32)
    points = np.stack(list(iterates), axis=1)  # (n_starts, n_steps + 1, 2)
    return _RoundedRuns(drawing.misalignment(points, direction), np.linalg.norm(points, axis=-1))


def _note_on_rounding(rounded: _RoundedRuns) -> str:
    return (
        "The split needs gradients that survive a saturated softmax. With the textbook formula in single precision, the score of the "
        "selected token and the output of the last two runs soon differ by one rounding unit or none. That token's own term is then "
        "on or off at random, while the pull towards the optimal token stays: at step 1,000 their norm is at most "
        f"{rounded.norm[:, 1000].max():.0f}, where exact runs have 100, and their correlation with the local direction has fallen to "
        f"{1.0 - rounded.gap[:, 1000].min():.3f} or less; at step {rounded.n_steps:,} to {1.0 - rounded.gap[:, -1].min():.3f} or less."
    )


STARTS = np.array([(x, 0.0) for x in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5)])
WINDOW_C: drawing.Window = ((-2.3, 3.1), (-2.6, 2.0))


class A_F1c(Claim):
    labels = ("A Fig 1(c)", "A ATT-SVM")
    runs = (Run(ON_P, ml.NormalizedGD(STEP)),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Solve the ATT-SVM of the optimal tokens and descend towards it from six starts."""
        n_steps = 100_000 if effort is Effort.PAPER else 10_000
        progress.expect(1)
        data, v = figure_1c()
        best = ml.token_optimality(data, v, data.optimal(v))
        run = _descend(data, v, STARTS, n_steps)
        progress.advance()
        steps, points = run.saved.steps, run.saved["x"]  # (n_kept,), (n_starts, n_kept, 2)
        gap = drawing.misalignment(points, best.direction)
        solution = best.solution.x
        tight = np.argwhere(best.neighbours)
        by_angle = max_margin_by_angle(data)
        numbers = {
            "globally_optimal": float(best.is_globally_optimal),
            "distance_to_best_angle": float(np.abs(solution - by_angle).max()),
            "kkt_residual": float(best.solution.kkt_residual()),
            "corr_1000": float(1.0 - gap[:, steps == 1000].max()),
            "corr_end": float(1.0 - gap[:, -1].max()),
            "corr_end_with_best_angle": float(np.min(ml.correlation(run.final, by_angle))),
            "n_neighbours": float(len(tight)),
        }
        measured = (
            f"The ATT-SVM gives $p^mm$ = ({solution[0]:.4f}, {solution[1]:.4f}), margin {best.margin:.4f}, held by "
            f"{len(tight)} neighbours "
            f"(KKT residual {numbers['kkt_residual']:.0e}). Smallest correlation over {len(STARTS)} starts: {numbers['corr_1000']:.5f} "
            f"at step 1,000, 1 - {gap[:, -1].max():.0e} at step {n_steps:,}; the norm there is {run.norm.min():,.0f} … "
            f"{run.norm.max():,.0f}."
        )
        arrays = {
            "keys": data.K,
            "scores": data.scores(v),
            "direction": best.direction,
            "neighbours": best.neighbours,
            "steps": steps,
            "points": points,
            "gap": gap,
            "attention": run.attention,
        }
        return Finding(measured, numbers, arrays)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Paths among the tokens of the three inputs; distance from the predicted direction; norm."""
        at = finding.arrays
        texts = (("γ = 1", (0.8, 0.0), (0, 32)), ("γ = .5", (-1.0, 1.3), (0, 14)), ("γ = .5", (-0.55, -0.8), (0, -14)))
        notes = [Note(*text, "center") for text in texts]
        limits = [Limit("best", at["direction"], [0, 0, 0])]
        look = Plane(WINDOW_C, "First steps of six runs among 3 × 7 tokens", "lower right", height=5.4, token_size=50.0)
        fig, _, upper, lower = paths_in_plane(at, limits, notes, look, shaded=True)
        gaps_and_norms(upper, lower, at, shaded_looks(STARTS))
        upper.set(ylim=(1e-9, 5.0), title="The direction converges …")
        upper.legend(title="start", loc="lower left")
        lower.set(title="… while the norm diverges")
        return {"paths": fig}


def max_margin_by_angle(data: ml.TokenDataset) -> FloatArray:
    """p^mm of the first tokens of a problem in the plane, found by trying angles: the direction of largest margin over that margin."""
    gaps = (data.K[:, :1] - data.K[:, 1:]).reshape(-1, 2)

    def margin(angle: float) -> float:
        return float(np.min(gaps @ (np.cos(angle), np.sin(angle))))

    angles = np.linspace(-np.pi, np.pi, 3601)
    near = float(angles[np.argmax([margin(angle) for angle in angles])])
    ends = (near - angles[1] + angles[0], near + angles[1] - angles[0])
    angle = float(
        minimize_scalar(lambda item: -margin(item), bounds=ends, method="bounded", options={"xatol": 1e-13}).x
    )
    return np.array([np.cos(angle), np.sin(angle)]) / margin(angle)
