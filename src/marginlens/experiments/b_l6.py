"""B Lemmas 6, 19, 20, 21: all selections of small vocabularies, their margins, and which of them the flow ends at."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from marginlens.data.labelled import LabelledSequences
from marginlens.data.levels import balanced_sequences
from marginlens.data.tokens import FloatArray
from marginlens.dynamics.flow import UntilNorm
from marginlens.embeddings import Parameters, initial_parameters, token_statistics
from marginlens.experiments import drawing
from marginlens.experiments.claim import Bound, Effort, Finding, Progress
from marginlens.theory.embedding_limits import (
    all_selecting_directions,
    decisive_margin,
    decisive_tokens,
    predict_embedding_limit,
)
from marginlens.theory.vocabulary_selections import FeasibleSelections, feasible_selections

ID = "B-L6"
LABELS = ("B Lemma 6", "B Lemma 19", "B Lemma 20", "B Lemma 21")
TITLE = "The limit never selects everything, and which selections have the widest margin"
STATEMENT = (
    "The direction that gradient flow converges to cannot select all tokens (Lemma 6). If the max-margin solution that selects the "
    "decisive tokens alone is shorter than that of every other selection, the flow converges to it (Lemma 19). Each max-margin solution "
    "has a tight constraint (Lemma 20), and that of the decisive tokens has norm at most 4n (Lemma 21)."
)
PROTOCOL = (
    "Small random datasets with irrelevant tokens balanced to the count (n = 4 or 6, T = 3, 2 or 4 decisive and 1 to 4 irrelevant tokens), "
    "d = 2048, one step with η₀ = 30 or 100; the decisive scores move by at least 6/√d. Every selection that some p makes is listed with "
    "its max-margin solution, and the flow is followed to ‖p‖ = 500. A third of the datasets start from the paper's embeddings; in the "
    "others a common direction is added to those of the decisive tokens and taken from the rest, c = 3 or 6 apart, to widen the margin in "
    "question. Lemma 19 is read as its proof has it: the other selections are those that hold every decisive token."
)
PAPER_VALUE = "–"
EXPECTED = {
    "limits_that_select_everything": Bound(low=0, high=0),
    "largest_drift_where_all_tie": Bound(high=1e-8),
    "counter_examples_to_lemma_19": Bound(low=0, high=0),
    "largest_difference_of_leads": Bound(high=1e-9),
    "cases_of_lemma_19": Bound(low=1),
    "largest_slack_of_the_tightest_constraint": Bound(high=1e-8),
    "largest_norm_over_4n": Bound(high=1),
    "limits_not_among_the_selections": Bound(low=0, high=0),
    "selections": Bound(low=50),
}
SEED, D_MODEL, FAR = 6, 2048, 500.0
RATES = (30.0, 100.0)
TILTS = (0.0, 6.0, 3.0)  # c, how far apart decisive and irrelevant tokens start along a common direction
SIGNAL = 6.0  # standard deviations of a random score by which the step moves every decisive one


def compute(effort: Effort, progress: Progress) -> Finding:
    """List the selections of every dataset and follow its flow."""
    n_datasets = 24 if effort is Effort.PAPER else 3
    progress.expect(n_datasets)
    rows = []
    for j in range(n_datasets):
        rows.append(_one(j))
        progress.advance()
    table = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "ratios"}
    holds, plain = table["lead"] > 0.0, table["tilt"] == 0.0
    numbers = {
        "limits_that_select_everything": float(np.sum(table["everything"])),
        "largest_drift_where_all_tie": float(table["drift"].max()),
        "counter_examples_to_lemma_19": float(np.sum(holds & ~table["decisive"])),
        "largest_difference_of_leads": float(np.max(np.abs(table["lead"] - table["listed_lead"]))),
        "cases_of_lemma_19": float(np.sum(holds)),
        "cases_of_lemma_19_from_the_papers_start": float(np.sum(holds & plain)),
        "flows_to_the_decisive_tokens": float(np.sum(table["decisive"])),
        "largest_slack_of_the_tightest_constraint": float(table["slack"].max()),
        "largest_norm_over_4n": float(table["over_4n"].max()),
        "limits_not_among_the_selections": float(np.sum(table["place"] < 0)),
        "selections": float(np.sum(table["selections"])),
        "smallest_corr": float(table["corr"].min()),
        "datasets": float(n_datasets),
    }
    measured = (
        f"Among {numbers['selections']:.0f} selections of {n_datasets} datasets: {numbers['limits_that_select_everything']:.0f} limits "
        f"select everything, and along the directions that would the flow moves by {numbers['largest_drift_where_all_tie']:.0e} of ‖p‖ at "
        f"most; the tightest constraint is within {numbers['largest_slack_of_the_tightest_constraint']:.0e} of equality; ‖p̂‖ is at most "
        f"{numbers['largest_norm_over_4n']:.2f} · 4n; in {int(np.sum(holds & table['decisive']))} of the {int(holds.sum())} datasets where "
        "the decisive tokens have the widest margin the flow goes there."
    )
    note = (
        f"Lemma 19's condition, which the paper expects to hold, holds in {int(np.sum(holds & plain))} of the {int(plain.sum())} datasets "
        "with the paper's initial embeddings, which are nearly orthonormal: selecting one decisive token where it stands and everything "
        "elsewhere takes ‖p̂'‖ ≈ √((|S| − 1)/|S|) at most; k decisive tokens above m irrelevant ones that all meet take √(km/(k + m)). "
        f"The flow goes to the decisive tokens all the same in {int(np.sum(table['decisive'] & plain))} of them: scores decide there, not "
        "margins. Among all selections, as the lemma is worded, the condition cannot hold where every constraint is tight: −p̂ selects "
        "the irrelevant tokens with the same margin."
    )
    return Finding(measured, numbers, {**table, "ratios": [row["ratios"] for row in rows]}, note)


def _dataset(j: int, rng: np.random.Generator) -> LabelledSequences:
    """Small data whose decisive tokens move by SIGNAL standard deviations; the number of irrelevant tokens runs through 1 to 4."""
    while True:
        n, n_important = 2 * int(rng.integers(2, 4)), int(rng.integers(1, 3))
        data = balanced_sequences(n, 3, n_important, 1 + j % 4, rng)
        alpha = np.abs(token_statistics(data).alpha)
        if 0.5 * RATES[0] * float(alpha[alpha > 0.0].min()) * np.sqrt(D_MODEL) >= SIGNAL:
            return data


def _one(j: int) -> dict[str, Any]:
    """Everything that one dataset says about the lemmas."""
    rng = np.random.default_rng([SEED, j])
    data = _dataset(j, rng)
    start, tilt = initial_parameters(data.n_vocabulary, D_MODEL, rng, np.float64), TILTS[j % len(TILTS)]
    common = rng.standard_normal(D_MODEL)
    common *= 0.5 * tilt / np.linalg.norm(common)
    side = np.where(np.abs(token_statistics(data).kind) == 2, 1.0, -1.0)
    tilted = Parameters(start.E + np.outer(side, common), start.p, start.v)
    found = predict_embedding_limit(tilted, RATES[j // 12 % 2], data, until=UntilNorm(FAR))
    E = found.step.after.E
    narrow = np.linalg.qr(E.T)[1].T  # the embeddings in coordinates of their span, which keeps every margin
    decisive = decisive_tokens(data)
    listed = feasible_selections(narrow, data)
    ties = all_selecting_directions(E, data)
    moved = ties @ (found.run.final - found.step.after.p) / np.linalg.norm(ties, axis=1)
    _, short = decisive_margin(narrow, data)
    finite, place = np.isfinite(listed.margins), listed.index(found.selection)
    own = float(listed.margins[listed.index(decisive)])
    return {
        "irrelevant": 1 + j % 4,
        "tilt": tilt,
        "everything": all(len(ids) == len(np.unique(data[i][0])) for i, ids in enumerate(found.selection)),
        "drift": float(np.max(np.abs(moved))) / float(found.run.norm),
        "decisive": all(map(np.array_equal, found.selection, decisive)),
        "lead": feasible_selections(narrow, data, required=decisive).margin_lead(decisive),
        "listed_lead": _lead(listed, decisive),
        "slack": float(np.max(_tightest(narrow, data, listed))),
        "over_4n": short.numbers["norm"] / short.numbers["bound"],
        "place": place,
        "selections": int(finite.sum()),
        "corr": found.correlation,
        "end": own / float(listed.margins[place]),
        "ratios": own / listed.margins[finite],  # ‖p̂'‖/‖p̂‖
    }


def _lead(listed: FeasibleSelections, decisive: Any) -> float:
    """The same lead of the decisive tokens, from the margins of all selections that hold every one of them."""
    own = listed.index(decisive)
    rivals = [
        float(margin)
        for k, (ids, margin) in enumerate(zip(listed.selections, listed.margins, strict=True))
        if k != own and np.isfinite(margin) and all(np.isin(a, b).all() for a, b in zip(decisive, ids, strict=True))
    ]
    return 1.0 - max(rivals, default=0.0) / float(listed.margins[own])


def _tightest(E: FloatArray, data: LabelledSequences, listed: FeasibleSelections) -> FloatArray:
    """|smallest lead - 1| of each selection but that of everything: how far the tightest constraint of its solution is from equality."""
    finite = np.flatnonzero(np.isfinite(listed.margins))
    solutions = listed.directions[finite] / listed.margins[finite, None]
    lead = np.full(len(finite), np.inf)
    for k, logits in zip(range(len(finite)), solutions @ E.T, strict=True):
        for i, ids in enumerate(listed.selections[finite[k]]):
            others = np.setdiff1d(data[i][0], ids)
            if len(others):
                lead[k] = min(lead[k], logits[ids].min() - logits[others].max())
    return np.abs(lead - 1.0)


def draw(finding: Finding) -> dict[str, Figure]:
    """The length of every selection's solution beside that of the decisive tokens, and its norm beside 4n."""
    fig, (left, right) = drawing.figure(2, width=5.6, height=4.2)
    _draw_lengths(left, finding)
    m, over, tilt = (finding.arrays[name] for name in ("irrelevant", "over_4n", "tilt"))
    colours = (drawing.GLOBAL, drawing.LOCAL, drawing.ACCENTS[3])
    for k, (colour, c) in enumerate(zip(colours, sorted(set(tilt.tolist())), strict=False)):
        here = tilt == c
        right.scatter(m[here] + 0.12 * (k - 1), over[here], s=30, color=colour, label=f"c = {c:g}")
    right.axhline(1.0, color=drawing.INK, ls="--", lw=1.2)
    right.text(0.8, 0.9, "bound of Lemma 21", va="top")
    right.set(xlabel="irrelevant tokens", ylabel="‖p̂‖ of the decisive tokens over 4n", yscale="log", ylim=(1e-3, 2.0))
    right.set_xticks([1, 2, 3, 4])
    right.set_title("Lemma 21 holds with room")
    right.legend(loc="lower left")
    return {"margins": fig}


def _draw_lengths(ax: Axes, finding: Finding) -> None:
    tilt = finding.arrays["tilt"]
    order = np.lexsort([finding.arrays["irrelevant"], tilt])
    for x, k in enumerate(order):
        ratios = finding.arrays["ratios"][k]
        first = x == 0
        ax.scatter(
            np.full(len(ratios), x),
            ratios,
            s=8,
            alpha=0.5,
            color=drawing.NEITHER,
            label="a selection" if first else None,
        )
        ax.scatter(
            [x],
            [finding.arrays["end"][k]],
            s=60,
            facecolors="none",
            edgecolors=drawing.GLOBAL,
            lw=1.8,
            zorder=4,
            label="where the flow goes" if first else None,
        )
    ax.axhline(1.0, color=drawing.INK, ls="--", lw=1.2)
    edges = np.flatnonzero(np.diff(tilt[order])) + 0.5
    for edge in edges:
        ax.axvline(edge, color=drawing.FAINT, lw=1.2, zorder=1)
    ax.set_yscale("log")
    starts = np.concatenate([[-0.5], edges, [len(order) - 0.5]])
    ax.set_xticks((starts[1:] + starts[:-1]) / 2.0, [f"c = {c:g}" for c in sorted(set(tilt.tolist()))])
    ax.set(xlabel="datasets, by c and number of irrelevant tokens", ylabel="‖p̂'‖ over ‖p̂‖ of the decisive tokens")
    ax.set_title("Below the line the margin is wider")
    ax.legend(loc="upper left")
