"""A Figs 9(a), 9(b), 10 and Thm 4: on random data, what descent converges to, how often, and with which score gaps."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data.counter_based import sphere_problems
from marginlens.risk import softmax
from marginlens.sweeps import Sweep
from marginlens.theory.bias_table import ON_P
from marginlens.typing import Figure, FloatArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress, Run, Unit, Words
from marginlens_papers.claims import drawing
from marginlens_papers.claims.a.scale_runs import (
    GLOBAL,
    LOCAL,
    N_INPUTS,
    N_STEPS,
    N_TOKENS,
    NEGATIVE,
    SATURATED,
    SEED,
    UNSATURATED,
    WIDTHS,
    outcomes,
    scale_plan,
)
from marginlens_papers.claims.a.textbook import textbook_iterates

EPSILONS = (0.0, 1e-9, 1e-12)  # added to the norm of the textbook gradient
LONG = 100_000


class A_F9(Claim):
    labels = ("A Fig 9(a)", "A Fig 9(b)", "A Fig 10", "A Def 2", "A Thm 3")
    words = {
        "smallest_mean_corr": Words(
            "Mean correlation with the max-margin direction of the selected tokens, at the width at which it is lowest"
        ),
        "share_of_negative_gaps": Words("Saturated runs with a negative score gap", Unit.SHARE),
        "global_share_grows": Words("The share of globally optimal selections grows with $d$", Unit.TRUTH),
        "saturated_share_d2": Words("Runs that saturate at $d = 2$", Unit.SHARE),
        "saturated_share_d5": Words("Runs that saturate at $d = 5$", Unit.SHARE),
        "smallest_saturated_share_from_d10": Words(
            "Runs that saturate, at the width of 10 or more at which they are fewest",
            Unit.SHARE,
        ),
        "mean_corr_with_negative_gap": Words("Mean correlation of the runs with a negative score gap, over all widths"),
        "mean_corr_textbook_1e-12": Words(
            "Mean correlation with the textbook gradient divided by its norm $+ 10⁻¹²$, as in the authors' notebooks"
        ),
    }
    runs = (Run(ON_P, ml.NormalizedGD()),)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Descend every random problem, solve the ATT-SVM of what it selected, and classify; then again with the textbook gradient."""
        trials, n_judged, n_shown = (10_000, 1000, 250) if effort is Effort.PAPER else (150, 30, 30)
        progress.expect((2 + len(EPSILONS)) * len(WIDTHS))
        with tempfile.TemporaryDirectory() as folder:
            rows = _classify(ml.sweep(scale_plan(trials), Path(folder) / "sweep"))
        for k, (d, row) in enumerate(zip(WIDTHS, rows, strict=True)):
            progress.advance()
            row |= _continued(*_problems(k, d, row.pop("odd")))
            progress.advance()
            row["textbook"] = {}
            for epsilon in EPSILONS:
                count = n_judged if epsilon == EPSILONS[-1] else n_shown
                few, heads = sphere_problems(0, count, N_INPUTS, N_TOKENS, d, SEED, k)
                row["textbook"][epsilon] = _textbook(few, heads, epsilon)
                progress.advance()
        mean = np.array([np.mean(row["corr"]) for row in rows])
        gaps, corr = (np.concatenate([row[name] for row in rows]) for name in ("gap", "corr"))
        odd = corr[gaps < 0]
        share_global, share_saturated = (
            np.array([np.sum(row[k]) for row in rows]) / trials for k in ("is_global", "saturated")
        )
        controls = {epsilon: _summary(rows, epsilon) for epsilon in EPSILONS}
        odd_of = {d: row["corr"][row["gap"] < 0] for d, row in zip(WIDTHS, rows, strict=True)}
        numbers = {
            "smallest_mean_corr": float(mean.min()),
            **{f"mean_corr_with_negative_gap_d{d}": float(np.mean(some)) for d, some in odd_of.items() if some.size},
            **{f"negative_gaps_d{d}": float(some.size) for d, some in odd_of.items()},
            "mean_corr": float(corr.mean()),
            "share_of_negative_gaps": odd.size / gaps.size,
            "median_corr_with_negative_gap": float(np.median(odd)) if odd.size else 1.0,
            "mean_corr_with_negative_gap": float(np.mean(odd)) if odd.size else 1.0,
            "global_share_grows": float(np.all(np.diff(share_global) >= 0) and share_global[-1] > share_global[0]),
            "smallest_saturated_share_from_d10": float(np.min(share_saturated[2:])),
            **{f"saturated_share_d{d}": float(share) for d, share in zip(WIDTHS, share_saturated, strict=True)},
            **{f"global_share_d{d}": float(share) for d, share in zip(WIDTHS, share_global, strict=True)},
            **{f"mean_corr_d{d}": float(m) for d, m in zip(WIDTHS, mean, strict=True)},
            **{f"{name}_textbook_{e:g}": value for e, found in controls.items() for name, value in found.items()},
        }
        measured = (
            f"Mean correlation {corr.mean():.5f} over all saturated runs; by d: "
            + ", ".join(
                f"{m:.5f} ± {np.std(r['corr']):.5f} (d={d})" for d, m, r in zip(WIDTHS, mean, rows, strict=True)
            )
            + f". Negative score gap in {100 * odd.size / gaps.size:.2f}% of them ({odd.size} of {gaps.size})"
            + (
                f", mean correlation there {np.mean(odd):.4f} ± {_standard_error(odd):.4f} (standard error)"
                if odd.size
                else ""
            )
            + ". "
            + _shares(rows, trials)
            + " ".join(_control_words(epsilon, found) for epsilon, found in controls.items())
        )
        return Finding(measured, numbers, {"rows": rows, "trials": trials}, note=_note(rows, odd_of, controls))

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Stacked shares by d with confidence intervals; correlations; histogram and distribution of the score gap."""
        return {"shares": _draw_shares(finding), "gaps": _draw_gaps(finding)}


def _summary(rows: list[dict[str, Any]], epsilon: float) -> dict[str, float]:
    """The paper's three numbers for the textbook runs with this ε, over all widths."""
    corr, gap = (np.concatenate([row["textbook"][epsilon][name] for row in rows]) for name in ("corr", "gap"))
    negative = gap < 0
    return {
        "mean_corr": float(np.mean(corr)),
        "share_of_negative_gaps": float(np.mean(negative)),
        "mean_corr_with_negative_gap": float(np.mean(corr[negative])) if negative.any() else 1.0,
        **{
            f"mean_corr_d{d}": float(np.mean(r["textbook"][epsilon]["corr"])) for d, r in zip(WIDTHS, rows, strict=True)
        },
    }


def _control_words(epsilon: float, found: dict[str, float]) -> str:
    name = f"with ε = {epsilon:g}" if epsilon else "without ε"
    by_width = ", ".join(f"{found[f'mean_corr_d{d}']:.4f}" for d in WIDTHS)
    return f"Textbook gradient in float64 {name}: mean correlation {found['mean_corr']:.4f} (by d: {by_width}), {_negative_gaps(found)}."


def _negative_gaps(found: dict[str, float]) -> str:
    share = found["share_of_negative_gaps"]
    where = f" with mean correlation {found['mean_corr_with_negative_gap']:.4f}" if share else ""
    return f"negative gaps in {100 * share:.2f}%{where}"


def _standard_error(values: FloatArray) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(values.size)) if values.size > 1 else 0.0


def _shares(rows: list[dict[str, Any]], trials: int) -> str:
    """How many runs ended in each way at each d, with the exact 95% interval of the share of globally optimal ones."""
    words = []
    for d, row in zip(WIDTHS, rows, strict=True):
        best, local, saturated = (int(np.sum(row[name])) for name in ("is_global", "is_local", "saturated"))
        low, high = drawing.proportion_interval(best, trials)
        words.append(
            f"{trials - saturated}, {local - best}, {best} (d={d}; best {100 * low:.1f}% to {100 * high:.1f}%)"
        )
    ends = "not saturated, at a local direction only and at the best one (with 95% intervals)"
    return f"Of {trials:,} runs each, {ends}: {'; '.join(words)}. "


def _note(rows: list[dict[str, Any]], odd_of: dict[int, FloatArray], controls: dict[float, dict[str, float]]) -> str:
    """What becomes of the runs with a negative score gap, by width and when they are continued, and what the authors' ε does."""
    epsilon, odd = EPSILONS[-1], np.concatenate(list(odd_of.values()))
    theirs = controls[epsilon]
    text = (
        f"The paper's average of .997 is what dividing by $‖∇L‖$ + {epsilon:g} gives in float64, {theirs['mean_corr']:.4f}: such runs "
        f"stall before their direction has settled. They have {_negative_gaps(theirs)} (paper: in less than 1%, above .99). "
    )
    if odd.size == 0:
        return text.strip()
    by_width = ", ".join(f"{np.mean(some):.4f} ({some.size} at d = {d})" for d, some in odd_of.items() if some.size)
    error = f" ± {_standard_error(odd):.4f} (standard error)"
    settled, finite = sum(row["settled"] for row in rows), sum(row["finite"] for row in rows)
    text += (
        f"With exact gradients the {odd.size} runs with a negative score gap have mean correlation {np.mean(odd):.4f}{error}, while the "
        f"paper says above .99 on average over all. By width, which the paper does not mention, it is {by_width}; the median is "
        f"{np.median(odd):.4f} and the smallest {np.min(odd):.4f}. "
        f"Continued to {LONG:,} steps, "
        f"{settled} of them have moved on to tokens with a positive gap, and {finite} ({rows[0]['finite']} of these at d = {WIDTHS[0]}) "
        "do not grow: finite minima beyond the saturation threshold, to which no max-margin theorem applies."
    )
    if settled + finite == odd.size:
        text += " So none of them is a divergent run that settles on a negative gap."
    relaxed = np.concatenate([row["set_corr"] for row in rows])
    return text + (
        " If the neighbours that outscore a selected token count as optimal too (ATT-SVM'), the correlations have median "
        f"{np.median(relaxed):.4f} and mean {np.mean(relaxed):.4f}."
    )


def _classify(run: Sweep) -> list[dict[str, Any]]:
    """For every width: which runs saturated, and for those the correlation with their own max-margin direction, score gap and kind."""
    rows: list[dict[str, Any]] = []
    whole = run.table()
    each = len(whole) // len(WIDTHS)
    for table in (whole.slice(k * each, each) for k in range(len(WIDTHS))):
        kind = outcomes(table)
        saturated = kind != UNSATURATED
        rows.append(
            {
                "odd": np.flatnonzero(kind == NEGATIVE),
                "saturated": saturated,
                "corr": table["correlation"].to_numpy()[saturated],
                "gap": table["score_gap"].to_numpy()[saturated],
                "is_local": ((kind == GLOBAL) | (kind == LOCAL))[saturated],
                "is_global": (kind == GLOBAL)[saturated],
            }
        )
    return rows


def _problems(cell: int, d: int, which: Any) -> tuple[ml.TokenDataset, FloatArray] | tuple[None, None]:
    """Some problems of a cell, and their heads; none if none is asked for."""
    made = [sphere_problems(int(j), int(j) + 1, N_INPUTS, N_TOKENS, d, SEED, cell) for j in which]
    if not made:
        return None, None
    X, y, v = (np.concatenate(parts) for parts in zip(*((data.X, data.y, head) for data, head in made), strict=True))
    return ml.TokenDataset(X, y), v


def _continued(data: ml.TokenDataset | None, v: FloatArray | None) -> dict[str, Any]:
    """What becomes of the runs with a negative gap: continued, how many settle on a positive one, and how many have stopped growing.

    And as they are: their correlation with ATT-SVM', for which neighbours that outscore the selected token count as optimal too.
    """
    if data is None or v is None:
        return {"settled": 0, "finite": 0, "set_corr": np.zeros(0)}
    run = ml.descend(data, v, n_steps=LONG, record=ml.Record([N_STEPS, LONG // 2], ("x", "norm")))
    gap = ml.token_optimality(data, v, run.selected).score_gap
    finite = run.norm < 1.05 * run.saved["norm"][:, 1]
    set_corr = _set_correlation(data, v, run.saved["x"][:, 0])
    return {"settled": int(np.sum((gap > 0) & ~finite)), "finite": int(np.sum(finite)), "set_corr": set_corr}


def _set_correlation(data: ml.TokenDataset, v: FloatArray, final: FloatArray) -> FloatArray:
    corr = []
    for j in range(len(data)):
        problem, scores = data[j], data[j].scores(v[j])
        found = ml.token_optimality(problem, v[j], np.argmax(np.einsum("itd,d->it", problem.K, final[j]), axis=-1))
        selected_score = np.take_along_axis(scores, found.selected[:, None], axis=-1)
        sets = (found.neighbours & (scores > selected_score)) | (np.arange(problem.n_tokens) == found.selected[:, None])
        points = ml.set_svm(problem, [np.flatnonzero(row) for row in sets]).points
        corr.append(max(float(ml.correlation(final[j], point)) for point in points))
    return np.array(corr)


def _textbook(data: ml.TokenDataset, v: FloatArray, epsilon: float) -> dict[str, FloatArray]:
    """Correlation and score gap of the saturated runs of the textbook gradient; a selection that nothing separates counts as zero."""
    flat = data.K.reshape(len(data), -1, data.d_key)
    if data.d_key > flat.shape[1]:  # an orthonormal basis of the keys' span changes nothing but the cost
        triangular: Any = np.linalg.qr(flat.transpose(0, 2, 1), mode="r")
        flat = triangular.transpose(0, 2, 1)
    small = ml.TokenDataset(data.X, data.y, K=flat.reshape(*data.mask.shape, -1))
    start = np.zeros((len(data), small.d_key))
    for p in textbook_iterates(small, v, start, 1.0, 1000, np.float64, epsilon):  # noqa: B007
        pass
    probabilities = softmax(small, p)
    found = ml.token_optimality(small, v, np.argmax(probabilities, axis=-1))
    saturated = probabilities.max(axis=-1).mean(axis=-1) >= SATURATED
    feasible = found.solution.status == ml.Status.OPTIMAL
    corr = np.where(feasible, np.asarray(ml.correlation(p, found.solution.x)), 0.0)
    return {"corr": corr[saturated], "gap": np.where(feasible, found.score_gap, np.inf)[saturated]}


def _draw_shares(finding: Finding) -> Figure:
    rows, trials = finding.arrays["rows"], finding.arrays["trials"]
    fig, (left, right) = ml.plotting.figure(2, width=5.4, height=4.4)
    position, names = np.arange(len(rows)), [str(d) for d in WIDTHS]
    counts = {
        "best (globally optimal)": (ml.plotting.GLOBAL, [row["is_global"].sum() for row in rows]),
        "local (locally optimal only)": (
            ml.plotting.LOCAL,
            [(row["is_local"] & ~row["is_global"]).sum() for row in rows],
        ),
        "saturated, negative score gap": ("#E3B23C", [(~row["is_local"]).sum() for row in rows]),
        "not saturated": (ml.plotting.NEITHER, [trials - row["saturated"].sum() for row in rows]),
    }
    bottom = np.zeros(len(rows))
    for name, (colour, count) in counts.items():
        share = np.array(count) / trials
        left.bar(position, share, bottom=bottom, color=colour, width=0.72, label=name, edgecolor="white", linewidth=0.6)
        bottom += share
    edges = np.cumsum([count for _, count in counts.values()], axis=0)[[0, 1]]
    for offset, level in zip((-0.12, 0.12), edges, strict=True):
        look: dict[str, Any] = {"fmt": "none", "color": ml.plotting.INK, "capsize": 3, "lw": 1.2}
        drawing.share_points(left, position + offset, level, trials, **look)
    left.set(xticks=position, xticklabels=names, xlabel="dimension d", ylabel="share of problems", ylim=(0, 1))
    left.set_title("What descent converges to (95% intervals)")
    exact = [1 - np.mean(row["corr"]) for row in rows]
    for epsilon, marker, colour in zip(EPSILONS, "s^v", (ml.plotting.PATH, *ml.plotting.ACCENTS[3:5]), strict=True):
        height = [1 - np.mean(row["textbook"][epsilon]["corr"]) for row in rows]
        label = f"textbook, ÷ (‖∇L‖ + {epsilon:.0e})".replace("e-0", "e-") if epsilon else "textbook, ÷ ‖∇L‖"
        right.semilogy(position, height, f"{marker}--", color=colour, label=label)
    right.axhline(1 - 0.997, color=ml.plotting.INK, lw=1.2, ls=":", label="paper's average, .997")
    right.semilogy(position, exact, "o-", color=ml.plotting.GLOBAL, label="exact gradient")
    right.set(xticks=position, xticklabels=names, xlabel="dimension d", ylabel="1 − mean correlation")
    right.set_title("Distance to the max-margin direction")
    handles, labels = (
        first + other for first, other in zip(*(ax.get_legend_handles_labels() for ax in (left, right)), strict=True)
    )
    fig.legend(handles, labels, loc="outside lower center", ncol=3)
    return fig


def _draw_gaps(finding: Finding) -> Figure:
    gaps = np.concatenate([row["gap"] for row in finding.arrays["rows"]])
    finite = gaps[np.isfinite(gaps)]
    fig, (left, right) = ml.plotting.figure(2, width=5.4, height=3.8)
    bins = np.arange(np.floor(finite.min() * 100) / 100, finite.max() + 0.01, 0.01)
    heights, edges = np.histogram(finite, bins=bins)
    colours = [ml.plotting.LOCAL if edge >= 0 else "#E3B23C" for edge in edges[:-1]]
    left.bar(edges[:-1], heights / finite.size, width=np.diff(edges), align="edge", color=colours)
    left.axvline(0, color=ml.plotting.INK, ls="--", lw=1.2)
    left.set(xlabel="smallest score gap to a neighbour", ylabel="probability (bins of .01)", xlim=(-0.15, 0.6))
    left.set_title("Score gaps of saturated runs")
    right.plot(np.sort(finite), np.arange(1, finite.size + 1) / finite.size, color=ml.plotting.LOCAL)
    right.axvline(0, color=ml.plotting.INK, ls="--", lw=1.2)
    below = np.mean(finite < 0)
    right.annotate(
        f"{100 * below:.2f}% below zero",
        xy=(0, below),
        xytext=(0.25, 0.25),
        arrowprops={"arrowstyle": "->", "color": ml.plotting.INK},
    )
    right.set(
        xlabel="smallest score gap to a neighbour", ylabel="cumulative probability", ylim=(0, 1.02), xlim=(-0.15, 0.6)
    )
    right.set_title("Their distribution")
    return fig
