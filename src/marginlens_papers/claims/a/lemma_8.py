"""A Def 3 and Lemma 8: of two directions that select the same tokens, which has the lower risk at large norm."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from marginlens import plotting
from marginlens.data import TokenDataset, sphere_tokens
from marginlens.directions import unit
from marginlens.risk import excess_risk
from marginlens.theory import directional_margin, dominance
from marginlens_papers.claim import Bound, Effort, Finding, Progress

ID = "A-L8"
LABELS = ("A Def 3", "A Lemma 8", "A Eq. (63)")
TITLE = "Which of two directions wins at large norm"
STATEMENT = (
    "Of two unit directions with the same unique selected tokens, the one with the larger margin has the lower risk at every large "
    "norm when the other is neighbour-optimal; the one with the smaller margin does when its only directional neighbour outscores the "
    "selected token."
)
PROTOCOL = (
    "Random sphere tokens (n = 2, T = 4, d = 3) and random pairs of nearby directions with the same selected tokens. Log excess risks "
    "are compared at the proven radius, 1.5, 4 and 30 times it. The proven radius counts non-neighbours with higher scores, which the "
    "paper's proof of the first case leaves out. Looseness: that radius over the last norm at which the order is still the other way "
    "round."
)
PAPER_VALUE = "–"
EXPECTED = {
    "violations_case_1": Bound(high=0),
    "violations_case_2": Bound(high=0),
    "pairs_case_1": Bound(low=50),
    "pairs_case_2": Bound(low=50),
}
SEED = 8
MULTIPLES = (1.0 + 1e-9, 1.5, 4.0, 30.0)


def compute(effort: Effort, progress: Progress) -> Finding:
    """Compare excess risks beyond the proven radius, and look for the norm where the order settles."""
    tries = 20_000 if effort is Effort.PAPER else 3_000
    progress.expect(3)
    data, v, p, q = _pairs(tries)
    found = dominance(data, v, p, q)
    progress.advance()
    wrong = np.zeros(len(data), dtype=bool)
    decided = found.case > 0
    for multiple in MULTIPLES:
        wrong |= decided & (_p_lower(data, v, p, q, multiple * found.radius) != found.p_wins)
    progress.advance()
    settled = _settling(data, v, (p, q), found)
    loose = found.radius / settled
    hidden = decided & (found.case == 1) & _hidden_rival(data, v, p, q)
    progress.advance()
    numbers = {
        "violations_case_1": float(np.sum(wrong & (found.case == 1))),
        "violations_case_2": float(np.sum(wrong & (found.case == 2))),
        "pairs_case_1": float(np.sum(found.case == 1)),
        "pairs_case_2": float(np.sum(found.case == 2)),
        "case_1_pairs_with_a_higher_scoring_non_neighbour": float(np.sum(hidden)),
        "median_looseness": float(np.median(loose[np.isfinite(loose)])) if np.isfinite(loose).any() else float("nan"),
    }
    late = np.isfinite(loose)
    measured = (
        f"{int(np.sum(wrong))} violations: the first case decides {numbers['pairs_case_1']:.0f} pairs, the second "
        f"{numbers['pairs_case_2']:.0f}. The order was the other way round at some smaller norm for {int(np.sum(late))} of them, "
        f"and there the proven radius is a median {numbers['median_looseness']:.1f} × the last such norm. In "
        f"{int(np.sum(hidden))} pairs of the first case some token that is no neighbour outscores the selected one."
    )
    note = (
        "The paper's proof of the first case bounds all score gaps from below, but neighbour-optimality speaks only of the "
        "neighbours; our radius includes the missing terms."
    )
    return Finding(measured, numbers, {"case": found.case, "radius": found.radius, "settled": settled}, note=note)


def _pairs(tries: int) -> tuple[TokenDataset, Any, Any, Any]:
    """Random problems with two nearby directions that select the same unique tokens."""
    rng = np.random.default_rng(SEED)
    data, v = sphere_tokens(tries, 2, 4, 3, rng)
    q = unit(rng.normal(size=(tries, 3)))
    p = unit(q + rng.normal(size=(tries, 3)) * 10.0 ** rng.uniform(-2, 0, size=(tries, 1)))
    at = [directional_margin(data, x) for x in (p, q)]
    same = at[0].unique & at[1].unique & np.all(at[0].selected == at[1].selected, axis=-1)
    return TokenDataset(data.X[same], data.y[same]), v[same], p[same], q[same]


def _p_lower(data: TokenDataset, v: Any, p: Any, q: Any, radius: Any) -> Any:
    """Whether p has the strictly lower risk at this norm, per pair."""
    size = np.where(np.isfinite(radius), radius, 1.0)[:, None]
    return excess_risk(data, v, size * q).above(excess_risk(data, v, size * p))


def _settling(data: TokenDataset, v: Any, pair: tuple[Any, Any], found: Any) -> Any:
    """The last norm below the proven radius, on a fine grid, where the order is still reversed; nan where it never is."""
    last = np.full(len(data), np.nan)
    radius = np.where(found.case > 0, found.radius, np.nan)
    for share in np.geomspace(1e-3, 1, 25):
        norm = share * radius
        reversed_order = (found.case > 0) & (_p_lower(data, v, *pair, norm) != found.p_wins)
        last = np.where(reversed_order, norm, last)
    return last


def _hidden_rival(data: TokenDataset, v: Any, p: Any, q: Any) -> Any:
    """Whether a token that is no directional neighbour of either direction outscores the selected one."""
    at = [directional_margin(data, x) for x in (p, q)]
    scores = data.scores(v)
    chosen = np.take_along_axis(scores, at[0].selected[..., None], axis=-1)
    return np.any((scores > chosen) & ~at[0].neighbours & ~at[1].neighbours, axis=(-2, -1))


def draw(finding: Finding) -> dict[str, Figure]:
    """Proven radius against the norm where the order settles, by case."""
    fig, axes = plotting.figure(2, width=4.8, height=4.4)
    case, radius, settled = (finding.arrays[name] for name in ("case", "radius", "settled"))
    low, high = 0.5 * np.nanmin(settled), 2 * np.nanmax(radius[np.isfinite(settled)])
    titles = ("Case 1: the larger margin wins", "Case 2: the smaller margin wins")
    for ax, number, colour, title in zip(axes, (1, 2), (plotting.GLOBAL, plotting.LOCAL), titles, strict=True):
        shown = (case == number) & np.isfinite(settled)
        ax.loglog(settled[shown], radius[shown], ".", color=colour, ms=4, alpha=0.4, rasterized=True)
        ax.plot([low, high], [low, high], color=plotting.INK, ls="--", lw=1.2)
        ax.text(0.97, 0.06, "dashed: proven = observed", ha="right", transform=ax.transAxes)
        ax.set(xlabel="last norm with the order reversed", xlim=(low, high), ylim=(low, high))
        ax.set_title(title)
    axes[0].set_ylabel("radius from which on it is proven")
    return {"radius": fig}
