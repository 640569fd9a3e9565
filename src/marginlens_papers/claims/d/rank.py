"""D's rank figure: the ranks of the Frobenius and nuclear solutions of W-SVM against the dimension."""

from __future__ import annotations

from typing import Any

import numpy as np

import marginlens as ml
from marginlens.data import sphere_queries
from marginlens.typing import Figure, FloatArray, IntArray
from marginlens_papers.claim import Claim, Effort, Finding, Progress
from marginlens_papers.claims.drawing import level

SEED = 12
SETTINGS = ((5, 5), (5, 10), (5, 15), (10, 5), (15, 5))  # n, T: one of them is 5
DIMENSIONS = (2, 3, 4, 5, 10, 15, 20)
RANK_RTOL = 1e-5  # of the largest singular value, up to which one counts as none
FACE_RTOL = 1e-3  # below the largest singular value of Σ λ_r A_r, up to which one counts as equal to it
ABSOLUTE_TOL = 1e-7  # of the authors' rank
SOLVER_ERROR = 3e-7  # of an entry of W, as a solver leaves that stops at usual tolerances


class D_2(Claim):
    labels = ("D Fig (rank)",)

    def compute(self, effort: Effort, progress: Progress) -> Finding:
        """Solve all problems of all settings in both norms and count."""
        paper = effort is Effort.PAPER
        settings = SETTINGS if paper else ((5, 5), (15, 5))
        dimensions = DIMENSIONS if paper else (4, 5, 15)
        n_problems = 100 if paper else 6
        rng = np.random.default_rng(SEED)
        rows = [
            _ranks(n, T, d, n_problems, rng)
            for n, T, d in progress.each([(*nt, d) for nt in settings for d in dimensions])
        ]
        numbers = _numbers(rows)
        return Finding(_sentence(numbers), numbers, {"rows": rows}, note=_note(numbers))

    # ---- figures

    def draw(self, finding: Finding) -> dict[str, Figure]:
        """Mean ranks against d, as in the paper, and the singular values of the nuclear solutions at n = d = 15."""
        return {"rank": _draw_ranks(finding), "singular": _draw_singular_values(finding)}


def _ranks(n: int, T: int, d: int, n_problems: int, rng: np.random.Generator) -> dict[str, Any]:
    """The ranks of one setting: of both solutions, and the bound from the nuclear multipliers; -1 if no W separates."""
    data, v, queries = sphere_queries(n_problems, n, T, d, rng)
    selected = data.optimal(v)
    frobenius = ml.att_svm(data, selected, norm=ml.Frobenius(), query=queries)
    nuclear = ml.att_svm(data, selected, norm=ml.Nuclear(), query=queries)
    solved = np.array([status is ml.Status.OPTIMAL for status in frobenius.status])
    values = np.full((n_problems, d), np.nan)
    values[solved] = np.linalg.svd(nuclear.x[solved], compute_uv=False)
    errors = SOLVER_ERROR * rng.spawn(1)[0].standard_normal(nuclear.x[solved].shape)
    inexact = np.linalg.svd(nuclear.x[solved] + errors, compute_uv=False)
    proved = np.array([status is ml.Status.OPTIMAL for status in nuclear.status])
    return {
        "n": n,
        "T": T,
        "d": d,
        "solved": solved,
        "frobenius": np.asarray(frobenius.rank(RANK_RTOL)),
        "nuclear": np.asarray(nuclear.rank(RANK_RTOL)),
        "absolute": np.sum(values > ABSOLUTE_TOL, axis=-1),
        "inexact": np.sum(inexact > ABSOLUTE_TOL, axis=-1),
        "face": _face_dimensions(nuclear, solved),
        "gap": float(np.max(nuclear.bracket().gap[solved], initial=0.0)),
        "proved": proved,
        "singular_values": values,
    }


def _face_dimensions(nuclear: ml.MarginSolution, solved: Any) -> IntArray:
    """How many singular values of Σ λ_r A_r equal the largest, (batch,): no optimal W has a larger rank."""
    combined: FloatArray = np.einsum("br,brk->bk", np.nan_to_num(nuclear.multipliers), nuclear.rows)
    values = np.linalg.svd(combined.reshape(nuclear.x.shape), compute_uv=False)
    return np.where(solved, np.sum(values >= (1.0 - FACE_RTOL) * values[:, :1], axis=-1), -1)


def _numbers(rows: list[dict[str, Any]]) -> dict[str, float]:
    def all_of(name: str) -> FloatArray:
        return np.concatenate([row[name][row["solved"]] for row in rows]).astype(np.float64)

    least = np.concatenate([np.full(int(row["solved"].sum()), min(row["n"], row["d"])) for row in rows])
    square = next(row for row in rows if (row["n"], row["T"], row["d"]) == (15, 5, 15))
    solved = square["solved"]
    return {
        "n_solved": float(2 * len(least)),
        "share_infeasible": 1.0 - float(np.mean(np.concatenate([row["solved"] for row in rows]))),
        "share_of_frobenius_ranks_min_n_d": float(np.mean(all_of("frobenius") == least)),
        "largest_frobenius_rank_over_min_n_d": float(np.max(all_of("frobenius") - least)),
        "largest_nuclear_rank_over_frobenius": float(np.max(all_of("nuclear") - all_of("frobenius"))),
        "share_of_nuclear_ranks_within_face": float(np.mean(all_of("nuclear") <= all_of("face"))),
        "share_of_nuclear_ranks_equal_to_face": float(np.mean(all_of("nuclear") == all_of("face"))),
        "mean_nuclear_rank_n15_d15": float(np.mean(square["nuclear"][solved])),
        "mean_nuclear_rank_n15_d15_tol_1e-7": float(np.mean(square["absolute"][solved])),
        "mean_nuclear_rank_n15_d15_tol_1e-7_inexact": float(np.mean(square["inexact"])),
        "mean_frobenius_rank_n15_d15": float(np.mean(square["frobenius"][solved])),
        "share_of_nuclear_solutions_proved": float(np.mean(all_of("proved"))),
        "largest_bracket_gap": max(row["gap"] for row in rows),
    }


def _sentence(numbers: dict[str, float]) -> str:
    return (
        f"{numbers['n_solved']:,.0f} solutions ({numbers['share_infeasible']:.1%} of the problems are infeasible): the "
        "Frobenius solution "
        f"has rank min(n, d) in {numbers['share_of_frobenius_ranks_min_n_d']:.1%}, never more; the nuclear one never more than that. At "
        f"n = 15, d = 15 nuclear solutions have mean rank {numbers['mean_nuclear_rank_n15_d15']:.2f} (Frobenius "
        f"{numbers['mean_frobenius_rank_n15_d15']:.2f}), and the multipliers allow no more in "
        f"{numbers['share_of_nuclear_ranks_within_face']:.1%}. {numbers['share_of_nuclear_solutions_proved']:.1%} of the nuclear "
        f"solutions are proved to 1e-8, the others to {numbers['largest_bracket_gap']:.0e}."
    )


def _note(numbers: dict[str, float]) -> str:
    return (
        "The paper's 13.9 at n = d = 15 is not a rank: it counts singular values above 1e-7 outright. Solutions that are proved have "
        f"{numbers['mean_nuclear_rank_n15_d15_tol_1e-7']:.2f} such, and their multipliers allow no higher rank. With random errors of "
        f"{SOLVER_ERROR:g} in every entry, as a solver leaves that stops at usual tolerances, the same solutions have "
        f"{numbers['mean_nuclear_rank_n15_d15_tol_1e-7_inexact']:.1f}; that size of errors was chosen to give the paper's number."
    )


# ---- figures


def _draw_ranks(finding: Finding) -> Figure:
    fig, axes = ml.plotting.figure(2, width=5.2, height=4.2)
    rows = finding.arrays["rows"]
    for ax, by, fixed in ((axes[0], "n", "T"), (axes[1], "T", "n")):
        counts = sorted({row[by] for row in rows if row[fixed] == 5})
        for colour, count in zip(ml.plotting.shades(3), counts, strict=False):
            chosen = [row for row in rows if row[by] == count and row[fixed] == 5 and row["solved"].any()]
            d = [row["d"] for row in chosen]
            for name, style in (("frobenius", "o-"), ("nuclear", "s--")):
                heights = [np.mean(row[name][row["solved"]]) for row in chosen]
                ax.plot(d, heights, style, color=colour, label=f"{by} = {count}, {name.capitalize()}")
        ax.set(xlabel="dimension d", ylabel="mean rank of the solution", title=f"{fixed} = 5", ylim=(0, None))
        ax.legend(fontsize=9)
    return fig


def _draw_singular_values(finding: Finding) -> Figure:
    fig, (ax,) = ml.plotting.figure(1, width=6.4, height=4.0)
    row = next(row for row in finding.arrays["rows"] if (row["n"], row["T"], row["d"]) == (15, 5, 15))
    values = row["singular_values"][row["solved"]]
    ax.semilogy(
        np.arange(1, 16), np.maximum(values / values[:, :1], 1e-17).T, color=ml.plotting.LOCAL, lw=0.8, alpha=0.5
    )
    level(ax, RANK_RTOL, "counted above this line", side="right")
    ax.set(
        xlabel="singular value, by size",
        ylabel="relative to the largest",
        title="Nuclear solutions, n = 15, T = 5, d = 15",
    )
    return fig
