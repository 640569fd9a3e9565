"""B Lemmas 3, 6 and 19 to 21: max-margin directions of selections, which selection has the largest margin, and remarks on both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import nnls

import marginlens as ml
from marginlens.data.labelled import LabelledSequences
from marginlens.embeddings import Parameters, first_step, initial_parameters
from marginlens.svm.vocabulary import closed_form_candidate, token_lists
from marginlens.theory.embedding_limits import decisive_tokens, predict_embedding_limit, selected_tokens
from marginlens.typing import Axes, BoolArray, Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Verdict
from marginlens_papers.claims import drawing
from marginlens_papers.claims.b.embedding_limits import all_selecting_directions, check_lemma_19, decisive_margin
from marginlens_papers.claims.b.feasible_selections import (
    FeasibleSelections,
    feasible_selections,
    untied_vocabulary_svm,
)
from marginlens_papers.claims.b.flow_ends import embedding_flow_end
from marginlens_papers.claims.random_data import balanced_sequences

SOLUTION_SEED, RATE, SAME = 24, 10.0, 1e-7
KINDS = ("one token each", "with ties", "decisive tokens")
WIDTHS, COUNTS = (4, 8, 16, 64, 256, 1024), (1, 2, 4, 8, 16)  # d at n = 4, and n at d = 64
VOCABULARY, TOKENS = 10, 4


class B_L3(Claim):
    labels = ("B Lemma 3", "B Eq. (8)", "B Eq. (9)")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Solve random selections twice, prove the solutions, and prove contradictory selections infeasible."""
        trials = _trials(effort)
        rows = [_solved(*problem) for _, _, problem in _selections(trials, progress, more=1)]
        contradictions, unproved = _contradictions(trials, np.random.default_rng([SOLUTION_SEED, 99]))
        progress.advance()
        table = {name: np.array([row[name] for row in rows if row]) for name in ("optimal", "residual", "distance")}
        count = len(table["optimal"])
        numbers = {
            "selections_without_a_proved_solution": float(np.sum(~table["optimal"])),
            "largest_kkt_residual": float(table["residual"].max()),
            "largest_distance_to_nnls": float(table["distance"].max()),
            "infeasible_without_proof": float(unproved),
            "infeasible_selections": float(contradictions),
            "selections": float(count),
        }
        measured = (
            f"{np.sum(table['optimal']):,} of {count:,} selections have a proved solution (KKT residual up to "
            f"{numbers['largest_kkt_residual']:.0e}), which NNLS finds too (distance up to {numbers['largest_distance_to_nnls']:.0e}); "
            f"{contradictions - unproved} of {contradictions} contradictory ones are proved infeasible."
        )
        return Finding(measured, numbers, table)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How exact the proofs are, and how close the two solvers."""
        fig, (ax,) = ml.plotting.figure(1, width=6.4, height=4.0)
        for name, checked, label, colour in (
            ("residual", "largest_kkt_residual", "KKT residual of the solution", ml.plotting.ACCENTS[1]),
            ("distance", "largest_distance_to_nnls", "distance to that of NNLS", ml.plotting.ACCENTS[0]),
        ):
            drawing.cumulative(ax, np.maximum(finding.arrays[name], np.finfo(np.float64).eps), label, colour)
            ax.axvline(self.expected[checked].high, color=colour, ls=":", lw=1.4)
        ax.set(xscale="log", xlabel="relative residual or distance (dotted: its bound)", ylabel="share up to that")
        ax.set(xlim=(1e-16, 1e-6), ylim=(0, 1.02), title="Every selection has one proved solution")
        ax.legend(loc="lower right")
        return {"proofs": fig}


class B_D2(Claim):
    labels = ("B Eq. (18)",)
    known = Verdict.DOES_NOT_HOLD

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Compare p̂ = M⁺1 and the solution of Eq. (18) with the solution of Eq. (9)."""
        rows = []
        for cell, kind, problem in _selections(_trials(effort), progress):
            judged = _remarks(*problem)
            if judged is not None:
                rows.append({"cell": cell, "kind": kind, **judged})
        table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        refused, untight = ~table["certified"], table["untight"]
        negative = refused & ~untight
        shares = [float(np.mean(refused[table["kind"] == kind])) for kind in range(len(KINDS))]
        ties, differs = table["ties"], table["untied_over"] < 1.0 - SAME
        numbers = {
            "closed_form_misjudged": float(np.sum(table["same"] != table["certified"])),
            "closed_form_failure_rate": float(np.mean(refused)),
            "eq_18_differs_with_ties": float(np.mean(differs[ties])),
            "eq_18_differs_without_ties": float(np.sum(differs[~ties])),
            "longest_of_eq_18_over_eq_9": float(table["untied_over"].max()),
            "shortest_of_eq_18_over_eq_9": float(table["untied_over"].min()),
            "failures_by_negative_multipliers": float(np.sum(negative)),
            "failures_by_contradicting_equations": float(np.sum(untight)),
            "selections": float(len(rows)),
        }
        low, high = drawing.proportion_interval(refused.sum(), len(rows))
        longer = table["longer"][negative]
        wide = float(np.mean(refused[(table["kind"] == 2) & (table["cell"] == len(WIDTHS) - 1)]))
        measured = (
            f"The closed form fails for {np.mean(refused):.1%} of {len(rows):,} selections (95% interval {float(low):.1%} to "
            f"{float(high):.1%}): {shares[0]:.0%} with one token each, {shares[1]:.0%} with ties, {shares[2]:.0%} for decisive tokens; "
            f"{negative.sum()} times by negative multipliers, {untight.sum()} times because no p makes all constraints equalities. Eq. "
            f"(18) has another solution than Eq. (9) for {int(differs[ties].sum())} of the {int(ties.sum())} selections with ties."
        )
        note = (
            "Two shortcuts in the proof of Lemma 3 give other directions than the max-margin one; the lemma itself holds (claim B-L3). "
            "p̂ = M⁺1 drops complementary slackness, and if its "
            f"multipliers are negative it is longer than the solution by {np.median(longer) - 1.0:.1%} in the median and up to "
            f"{longer.max():.1f} times as long. For decisive tokens after a first step it comes true as d grows: it fails for {wide:.0%} "
            f"of them at d = {WIDTHS[-1]:,}. Eq. (18) drops p ∈ 𝒫, that tokens selected together tie: its solution is shorter, down to "
            f"{table['untied_over'].min():.2f} of that of Eq. (9), and selects other tokens."
        )
        return Finding(measured, numbers, {"table": table}, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How often the closed form fails, over the width and over the number of sequences."""
        fig, axes = ml.plotting.figure(2, width=5.2, height=4.2)
        table = finding.arrays["table"]
        panels = (("width d (n = 4)", WIDTHS, 0), ("sequences n (d = 64)", COUNTS, len(WIDTHS)))
        for ax, (label, places, first) in zip(axes, panels, strict=True):
            for kind, (name, colour, mark) in enumerate(zip(KINDS, ml.plotting.ACCENTS, "osD", strict=False)):
                cells = []
                for k, place in enumerate(places):
                    in_cell = (table["cell"] == first + k) & (table["kind"] == kind)
                    if in_cell.any():
                        failed = np.sum(~table["certified"][in_cell])
                        cells.append((place * (1.0 + 0.04 * (kind - 1)), failed, in_cell.sum()))
                look: dict[str, Any] = {"color": colour, "marker": mark, "ms": 5, "lw": 1.6, "label": name}
                drawing.share_points(ax, *np.array(cells).T, **look)
            ax.set(xscale="log", xlabel=label, ylim=(-0.03, 1.03))
            ax.set_xticks(places, [f"{place:,}" for place in places], minor=False)
            ax.minorticks_off()
        axes[0].set_ylabel("share where M⁺1 is not the solution")
        axes[0].set_title("How often the closed form fails, by width")
        axes[1].set_title("and by the number of sequences")
        axes[1].legend(loc="upper left")
        return {"closed_form": fig}


def _trials(effort: Effort) -> int:
    """Selections of each kind in a cell."""
    return 40 if effort is Effort.PAPER else 6


def _selections(trials: int, progress: Progress, more: int = 0) -> Iterator[tuple[int, int, tuple[Any, Any, Any]]]:
    """Cell, kind and problem of every random selection."""
    cells = [(d, 4) for d in WIDTHS] + [(64, n) for n in COUNTS]
    for cell, (d, n) in enumerate(progress.each(cells, more=more)):
        for kind in range(len(KINDS)):
            if (kind and d < VOCABULARY) or (kind == 2 and n == 1):
                continue
            for trial in range(trials):
                yield cell, kind, _problem(kind, d, n, np.random.default_rng([SOLUTION_SEED, cell, kind, trial]))


def _problem(kind: int, d: int, n: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Embeddings, sequences and a selection that some p makes."""
    if kind == 2:
        even = n + n % 2
        data = balanced_sequences(even, TOKENS, min(2, even // 2), min(6, even // 2 * (TOKENS - 1)), rng)
        E = first_step(initial_parameters(data.n_vocabulary, d, rng, np.float64), RATE, data).after.E
        decisive = np.flatnonzero(np.abs(ml.token_statistics(data).kind) == 2)
        return E, data, [np.intersect1d(data[i][0], decisive) for i in range(len(data))]
    E = rng.normal(size=(VOCABULARY, d)) / np.sqrt(d)
    sequences = rng.integers(VOCABULARY, size=(n, TOKENS))
    if kind == 0:
        return E, sequences, selected_tokens(E, rng.normal(size=d), sequences)
    level = rng.integers(3, size=VOCABULARY)
    return E, sequences, [np.unique(ids[level[ids] == level[ids].max()]) for ids in sequences]


def _solved(E: Any, sequences: Any, selection: Any) -> dict[str, Any] | None:
    """How well a selection's solution is proved, and how close NNLS comes; None if everything is selected."""
    solution = ml.vocabulary_svm(E, sequences, selection)
    if solution.status is ml.Status.TRIVIAL:
        return None
    other = _nonnegative_least_squares(E, token_lists(sequences, len(E)), selection)
    return {
        "optimal": solution.status is ml.Status.OPTIMAL,
        "residual": solution.kkt_residual(),
        "distance": float(np.linalg.norm(solution.x - other) / np.linalg.norm(solution.x)),
    }


def _remarks(E: Any, sequences: Any, selection: Any) -> dict[str, Any] | None:
    """The closed form and the solution of Eq. (18), compared with that of Eq. (9); None if everything is selected."""
    solution = ml.vocabulary_svm(E, sequences, selection)
    if solution.status is ml.Status.TRIVIAL:
        return None
    candidate, untied = closed_form_candidate(E, sequences, selection), untied_vocabulary_svm(E, sequences, selection)
    size = float(np.linalg.norm(solution.x))
    return {
        "certified": candidate.certified,
        "untight": candidate.equation_residual > SAME,
        "same": float(np.linalg.norm(candidate.x - solution.x)) <= SAME * size,
        "longer": float(np.linalg.norm(candidate.x)) / size,
        "ties": any(len(ids) > 1 for ids in selection),
        "untied_over": float(np.linalg.norm(untied.x)) / size,
    }


def _nonnegative_least_squares(E: Any, sequences: list[Any], selection: Any) -> Any:
    """The shortest p from one nonnegative least squares: every pair of every sequence, ties as two inequalities each."""
    rows, ties = [], [np.zeros((0, E.shape[1]))]
    for ids, chosen in zip(sequences, selection, strict=True):
        rows += [E[chosen] - E[s] for s in set(ids.tolist()) - set(chosen.tolist())]
        ties += [E[chosen] - E[s] for s in chosen if len(chosen) > 1]
    strict, equal = np.concatenate(rows), np.concatenate(ties)  # a tie comes with both signs
    floor = np.repeat([1.0, 0.0], [len(strict), len(equal)])
    target = np.append(np.zeros(E.shape[1]), 1.0)
    matrix = np.concatenate([np.concatenate([strict, equal]).T, floor[None]])
    left = matrix @ nnls(matrix, target, maxiter=200 * len(floor))[0] - target
    return -left[:-1] / left[-1]


def _contradictions(trials: int, rng: np.random.Generator) -> tuple[int, int]:
    """How many random lists of selected tokens are infeasible, and how many of these are not proved so."""
    found, unproved = 0, 0
    for _ in range(4 * trials):
        E = rng.normal(size=(6, 8))
        sequences = [rng.permutation(6)[:3] for _ in range(5)]
        solution = ml.vocabulary_svm(E, sequences, [ids[:1] for ids in sequences])
        if solution.status is ml.Status.INFEASIBLE:
            found, unproved = found + 1, unproved + (solution.certificate_residual() > 1e-12)
        unproved += solution.status is ml.Status.INACCURATE
    return found, unproved


MARGIN_SEED, D_MODEL, FAR = 6, 2048, 500.0
SIZES = ((8, 0.5), (16, 3.0), (64, 3.0), (64, 10.0), (256, 3.0), (256, 10.0), (2048, 3.0), (2048, 10.0))  # d and η₀
RATES = (30.0, 100.0)
TILTS = (0.0, 6.0, 3.0)  # c, how far apart decisive and irrelevant tokens start along a common direction
SIGNAL = 6.0  # standard deviations of a random score by which the step moves every decisive one


class B_L6(Claim):
    labels = ("B Lemma 6", "B Lemma 20", "B Lemma 21")

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """List the selections of every dataset and follow its flow."""
        n_datasets = 24 if effort is Effort.PAPER else 3
        rows = [_one(j) for j in progress.each(range(n_datasets))]
        table = {name: np.array([row[name] for row in rows]) for name in rows[0] if name != "ratios"}
        numbers = {
            "limits_that_select_everything": float(np.sum(table["everything"])),
            "largest_drift_where_all_tie": float(table["drift"].max()),
            "flows_to_the_decisive_tokens": float(np.sum(table["decisive"])),
            "largest_slack_of_the_tightest_constraint": float(table["slack"].max()),
            "largest_norm_over_4n": float(table["over_4n"].max()),
            "limits_not_among_the_selections": float(np.sum(table["place"] < 0)),
            "selections": float(np.sum(table["selections"])),
            "smallest_corr": float(table["corr"].min()),
            "datasets": float(n_datasets),
        }
        measured = (
            f"Among {numbers['selections']:.0f} selections of {n_datasets} datasets: {numbers['limits_that_select_everything']:.0f} "
            "limits select everything, and along the directions that would the flow moves by "
            f"{numbers['largest_drift_where_all_tie']:.0e} of $‖p‖$ at most; the tightest constraint is within "
            f"{numbers['largest_slack_of_the_tightest_constraint']:.0e} of equality; $‖p̂‖$ is at most "
            f"{numbers['largest_norm_over_4n']:.2f} · 4n."
        )
        return Finding(measured, numbers, {**table, "ratios": [row["ratios"] for row in rows]})

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """The length of every selection's solution relative to that of the decisive tokens, and its norm relative to 4n."""
        fig, (left, right) = ml.plotting.figure(2, width=5.4, height=4.2)
        _draw_lengths(left, finding)
        m, over, tilt = (finding.arrays[name] for name in ("irrelevant", "over_4n", "tilt"))
        colours = (ml.plotting.GLOBAL, ml.plotting.LOCAL, ml.plotting.ACCENTS[3])
        for k, (colour, c) in enumerate(zip(colours, sorted(set(tilt.tolist())), strict=False)):
            of_tilt = tilt == c
            right.scatter(m[of_tilt] + 0.12 * (k - 1), over[of_tilt], s=30, color=colour, label=f"c = {c:g}")
        right.axhline(1.0, color=ml.plotting.INK, ls="--", lw=1.2)
        right.text(0.8, 0.9, "bound of Lemma 21", va="top")
        right.set(
            xlabel="irrelevant tokens", ylabel="‖p̂‖ of the decisive tokens over 4n", yscale="log", ylim=(1e-3, 2.0)
        )
        right.set_xticks([1, 2, 3, 4])
        right.set_title("Lemma 21 holds with room")
        right.legend(loc="lower left")
        return {"margins": fig}


class B_L19(Claim):
    labels = ("B Lemma 19",)
    known = Verdict.DOES_NOT_HOLD

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Compute which datasets have the lead in margin, and where their flows go."""
        paper = effort is Effort.PAPER
        n_flows, sizes = (24, SIZES) if paper else (4, (SIZES[0], SIZES[-1]))
        tasks = [(size, tilt) for size in sizes for tilt in (TILTS[1], 0.0)]
        flows = [_flow(j, size, tilt) for size, tilt in progress.each(tasks) for j in range(n_flows)]
        rates = {name: np.array([flow[name] for flow in flows]) for name in flows[0]}
        ahead, away, untilted = rates["lead"] > 0.0, ~rates["decisive"], rates["tilt"] == 0.0
        of_size = {size: (rates["d"] == size[0]) & (rates["rate"] == size[1]) for size in sizes}
        near, far = of_size[sizes[0]], of_size[sizes[-1]]
        expected = untilted & rates["alike"]
        numbers = {
            "cases_that_meet_lemma_19": float(np.sum(rates["applies"])),
            "counter_examples_to_lemma_19": float(np.sum(rates["applies"] & away)),
            "largest_difference_of_leads": float(np.nanmax(np.abs(rates["lead"] - rates["listed_lead"]))),
            "elsewhere_with_the_lead_at_the_smallest_size": _share(away[near & ahead]),
            "elsewhere_with_the_lead_at_the_largest_size": _share(away[far & ahead]),
            "elsewhere_without_the_lead": _share(away[untilted & ~ahead]),
            "elsewhere_with_the_lead": _share(away[ahead]),
            "lead_from_the_papers_start": _share(ahead[expected]),
        }
        by_size = ", ".join(
            f"{int(away[ahead & of_cell].sum())} of {int((ahead & of_cell).sum())} at d = {d}, η₀ = {rate:g}"
            for (d, rate), of_cell in of_size.items()
        )
        measured = (
            f"From the paper's embeddings {int(ahead[expected].sum())} of {int(expected.sum())} datasets with all $α_s$ alike have the "
            f"widest margin at the decisive tokens. With it, the flow goes elsewhere in {by_size}."
        )
        asked, plain = float(np.nanmin(rates["log10_width"])), far & untilted
        note = (
            "From the paper's embeddings the decisive tokens rarely have the widest margin, although it expects this next to its lemma; "
            "the lemma itself is not refuted. If all $α_s$ are alike, the paper's initial embeddings, which are nearly orthonormal, give "
            f"{int(ahead[expected].sum())} of "
            f"{int(expected.sum())} datasets the lead in margin. Selecting one decisive token in its sequences and everything in the "
            "others takes $‖p̂'‖$ ≈ √((|S| − 1)/|S|) at most; k decisive tokens above m irrelevant ones that all meet take √(km/(k + m)). "
            f"The lemma's conditions hold in no run: besides Eq. (10), it asks for widths from $10^{asked:.0f}$ on. At sizes that exist "
            f"its lead does not decide: with it {numbers['elsewhere_with_the_lead']:.0%} of the flows go elsewhere over these sizes, and "
            f"without it, from the paper's embeddings, {numbers['elsewhere_without_the_lead']:.0%}; at d = {sizes[-1][0]:,} and η₀ = "
            f"{sizes[-1][1]:g} {int(np.sum(~away & plain))} of {int(plain.sum())} go to the decisive tokens without it, since scores "
            "decide, not margins. Among all selections, as the lemma is worded, the condition cannot hold if every constraint is tight: "
            "−p̂ selects the irrelevant tokens with the same margin."
        )
        return Finding(measured, numbers, {"flows": rates, "sizes": sizes}, note)

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """How many flows go elsewhere, by width and step."""
        fig, (ax,) = ml.plotting.figure(1, width=7.0, height=4.2)
        _draw_flows(ax, finding)
        return {"flows": fig}


def _dataset(j: int, rng: np.random.Generator) -> LabelledSequences:
    """Small data whose decisive tokens move by SIGNAL standard deviations; the number of irrelevant tokens runs through 1 to 4."""
    while True:
        n, n_important = 2 * int(rng.integers(2, 4)), int(rng.integers(1, 3))
        data = balanced_sequences(n, 3, n_important, 1 + j % 4, rng)
        alpha = np.abs(ml.token_statistics(data).alpha)
        if 0.5 * RATES[0] * float(alpha[alpha > 0.0].min()) * np.sqrt(D_MODEL) >= SIGNAL:
            return data


def _tilted(data: LabelledSequences, d: int, tilt: float, rng: np.random.Generator) -> Parameters:
    """Initial embeddings with decisive and irrelevant tokens `tilt` apart along a common direction."""
    start = initial_parameters(data.n_vocabulary, d, rng, np.float64)
    common = rng.standard_normal(d)
    common *= 0.5 * tilt / np.linalg.norm(common)
    side = np.where(np.abs(ml.token_statistics(data).kind) == 2, 1.0, -1.0)
    return Parameters(start.E + np.outer(side, common), start.p, start.v)


def _flow(j: int, size: tuple[int, float], tilt: float) -> dict[str, Any]:
    """The lead in margin of one small dataset's decisive tokens, and whether its flow goes to them.

    At the largest size the lead is also computed among all selections, and Lemma 19's own conditions are checked.
    """
    d, rate = size
    rng = np.random.default_rng([MARGIN_SEED, 1, j, d])
    data = balanced_sequences(2 * int(rng.integers(2, 4)), 3, int(rng.integers(1, 3)), 1 + j % 4, rng)
    step = first_step(_tilted(data, d, tilt, rng), rate, data)
    E, decisive = step.after.E, decisive_tokens(data)
    narrow = np.linalg.qr(E.T)[1].T if d > len(E) else E
    end = embedding_flow_end(step.after, data, 100.0, 1e-4)
    lemma = check_lemma_19(step) if size == SIZES[-1] else None
    widths = [check.numbers.get("log10_least", 0.0) for check in lemma.conditions[-2:]] if lemma else [np.nan]
    return {
        "d": d,
        "rate": rate,
        "tilt": tilt,
        "alike": bool(np.ptp(np.abs(step.alpha[np.unique(np.concatenate(decisive))])) < 1e-12),
        "lead": feasible_selections(narrow, data, required=decisive).margin_lead(decisive),
        "listed_lead": _lead(feasible_selections(narrow, data), decisive) if lemma else np.nan,
        "applies": lemma is not None and lemma.applies,
        "log10_width": max(widths),
        "decisive": all(map(np.array_equal, selected_tokens(E, end, data), decisive)),
    }


def _one(j: int) -> dict[str, Any]:
    """The numbers of one dataset for all lemmas."""
    rng = np.random.default_rng([MARGIN_SEED, j])
    data, tilt = _dataset(j, rng), TILTS[j % len(TILTS)]
    tilted = _tilted(data, D_MODEL, tilt, rng)
    found = predict_embedding_limit(tilted, RATES[j // 12 % 2], data, until=ml.UntilNorm(FAR)).details
    E = found.step.after.E
    narrow = np.linalg.qr(E.T)[1].T  # the embeddings in coordinates of their span, which keeps every margin
    decisive = decisive_tokens(data)
    listed = feasible_selections(narrow, data)
    ties = all_selecting_directions(E, data)
    moved = ties @ (found.run.final - found.step.after.p) / np.linalg.norm(ties, axis=1)
    _, short = decisive_margin(narrow, data)
    finite, place = np.isfinite(listed.margins), listed.index(found.selection)
    margin_of_decisive = float(listed.margins[listed.index(decisive)])
    return {
        "irrelevant": 1 + j % 4,
        "tilt": tilt,
        "everything": all(len(ids) == len(np.unique(data[i][0])) for i, ids in enumerate(found.selection)),
        "drift": float(np.max(np.abs(moved))) / float(found.run.norm),
        "decisive": all(map(np.array_equal, found.selection, decisive)),
        "slack": float(np.max(_tightest(narrow, data, listed))),
        "over_4n": short.numbers["norm"] / short.numbers["bound"],
        "place": place,
        "selections": int(finite.sum()),
        "corr": found.correlation,
        "end": margin_of_decisive / float(listed.margins[place]),
        "ratios": margin_of_decisive / listed.margins[finite],  # ‖p̂'‖/‖p̂‖
    }


def _lead(listed: FeasibleSelections, decisive: Any) -> float:
    """The same lead of the decisive tokens, from the margins of all selections that hold every one of them."""
    decisive_index = listed.index(decisive)
    rivals = [
        float(margin)
        for k, (ids, margin) in enumerate(zip(listed.selections, listed.margins, strict=True))
        if k != decisive_index
        and np.isfinite(margin)
        and all(np.isin(a, b).all() for a, b in zip(decisive, ids, strict=True))
    ]
    return 1.0 - max(rivals, default=0.0) / float(listed.margins[decisive_index])


def _tightest(E: FloatArray, data: LabelledSequences, listed: FeasibleSelections) -> FloatArray:
    """|smallest lead - 1| of each selection but that of everything: how far the tightest constraint of its solution is from equality."""
    finite = np.flatnonzero(np.isfinite(listed.margins))
    solutions = listed.directions[finite] / listed.margins[finite, None]
    lead, logits = np.full(len(finite), np.inf), solutions @ E.T
    for i in range(len(data)):
        tokens = np.unique(data[i][0])
        chosen = np.array([np.isin(tokens, listed.selections[k][i]) for k in finite])  # (n_finite, n_tokens)
        lowest = np.where(chosen, logits[:, tokens], np.inf).min(axis=1)
        lead = np.minimum(lead, lowest - np.where(chosen, -np.inf, logits[:, tokens]).max(axis=1))
    return np.abs(lead - 1.0)


def _draw_flows(ax: Axes, finding: Finding) -> None:
    """How many flows go elsewhere, with the lead in margin and without it, by width and step."""
    rates, sizes = finding.arrays["flows"], finding.arrays["sizes"]
    groups = (
        (TILTS[1], ml.plotting.GLOBAL, "o", "with the widest margin (c = 6)"),
        (0.0, ml.plotting.LOCAL, "s", "the paper's embeddings"),
    )
    for k, (tilt, colour, mark, label) in enumerate(groups):
        for x, (d, rate) in enumerate(sizes):
            of_cell = (rates["d"] == d) & (rates["rate"] == rate) & (rates["tilt"] == tilt)
            look: dict[str, Any] = {"color": colour, "fmt": mark, "ms": 6, "capsize": 3}
            look["label"] = label if x == 0 else None
            elsewhere = ~rates["decisive"][of_cell]
            drawing.share_points(ax, x + 0.2 * (k - 0.5), elsewhere.sum(), len(elsewhere), **look)
    ax.set_xticks(range(len(sizes)), [f"{d:,}\n{rate:g}" for d, rate in sizes])
    ax.set(xlabel="width d, and step η₀ below", ylabel="share of flows that go elsewhere", ylim=(-0.05, 1.35))
    ax.set_yticks([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    ax.set_title("Width and step decide, not the margin")
    ax.legend(loc="upper right")


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
            color=ml.plotting.NEITHER,
            label="a selection" if first else None,
        )
        ax.scatter(
            [x],
            [finding.arrays["end"][k]],
            s=60,
            facecolors="none",
            edgecolors=ml.plotting.GLOBAL,
            lw=1.8,
            zorder=4,
            label="where the flow goes" if first else None,
        )
    ax.axhline(1.0, color=ml.plotting.INK, ls="--", lw=1.2)
    edges = np.flatnonzero(np.diff(tilt[order])) + 0.5
    for edge in edges:
        ax.axvline(edge, color=ml.plotting.FAINT, lw=1.2, zorder=1)
    ax.set_yscale("log")
    starts = np.concatenate([[-0.5], edges, [len(order) - 0.5]])
    ax.set_xticks((starts[1:] + starts[:-1]) / 2.0, [f"c = {c:g}" for c in sorted(set(tilt.tolist()))])
    ax.set(xlabel="datasets, by c and number of irrelevant tokens", ylabel="‖p̂'‖ over ‖p̂‖ of the decisive tokens")
    ax.set_title("Below the line the margin is wider")
    ax.legend(loc="upper left")


def _share(cases: BoolArray) -> float:
    """The share of cases that are so; nan if there are none, which no bound accepts."""
    return float(np.mean(cases)) if len(cases) else float("nan")
