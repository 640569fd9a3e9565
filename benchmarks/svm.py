"""How fast hard-margin problems are solved: this library beside quadprog, PIQP, Clarabel, cvxopt and scikit-learn, in one run."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.qp_solvers import Competitor, competitors, recovered_multipliers
from marginlens.data import TokenDataset
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.runtime.threads import n_threads
from marginlens.svm import MarginSolution, Status, least_distance
from marginlens.svm.pairs import token_pairs
from marginlens.typing import FloatArray

SIZES = ((4, 6, 10, 1000), (4, 6, 100, 1000), (4, 6, 500, 1000), (20, 20, 200, 1), (100, 10, 500, 1))
LOOPED = 100  # problems of a batch that a competitor is looped over, or as many as the budget allows
BUDGET = 0.1  # seconds per competitor and repeat
HOPELESS = 5.0  # so many times slower than the fastest competitor, a solver is timed twice and no more


def bench_svm(progress: ProgressCallback | None = None, *, repeats: int = 12, seed: int = 0) -> list[dict[str, Any]]:
    """Time ATT-SVM problems: tokens uniform on the sphere, the best token of every input selected under a random head.

    Everybody gets the same rows and floors. We solve a whole batch in one call, threads, checks and certificates included; the
    others are called in a loop over some of the same problems. All take turns in every repeat, and the fastest repeat and
    form of each counts. Residuals are those of `MarginSolution.kkt_residual`; for scikit-learn's LinearSVC, which keeps its multipliers to
    itself, they are recovered from x and not timed.

    Returns:
        For every size (n inputs, T tokens, d coordinates, batch) one row per solver and form with `seconds_per_problem`
        and the largest `kkt_residual`, solvers that are not installed or failed with a `note`, and one summary row with
        `times_faster` than the fastest competitor.
    """
    watch = Progress(progress)
    watch.expect(len(SIZES) * repeats)
    rows: list[dict[str, Any]] = []
    for n, T, d, batch in SIZES:
        A, b = _problems(n, T, d, batch, np.random.default_rng(seed))
        rows += [{"n": n, "T": T, "d": d, "batch": batch, **row} for row in _one_size(A, b, repeats, watch)]
    return rows


def _problems(n: int, T: int, d: int, batch: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Rows and floors of feasible ATT-SVMs: p along the head separates its best tokens."""
    X = rng.normal(size=(batch, n, T, d))
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    data = TokenDataset(X, np.ones((batch, n)))
    rows, _ = token_pairs(data, data.optimal(rng.normal(size=(batch, d))))
    return rows, np.ones(rows.shape[:-1])


def _one_size(A: FloatArray, b: FloatArray, repeats: int, progress: Progress) -> list[dict[str, Any]]:
    ours = {count: _Timed("marginlens", f"one call, threads: {count}") for count in {1, min(n_threads(), len(A))}}
    least_distance(A[:1], b[:1])  # compile, or load what was compiled
    others = [_Looped(one, *A.shape[1:]) for one in competitors(*A.shape[1:])]
    for _ in range(repeats):
        for threads, timed in ours.items():
            with _on_threads(threads):
                began = time.perf_counter()
                solution = least_distance(A, b)
                timed.count(len(A), time.perf_counter() - began)
        leader = min((other.seconds for other in others), default=np.inf)
        for other in others:
            if other.n_runs < 2 or other.seconds <= HOPELESS * leader:
                other.run(A, b)
        progress.advance()
    mine = [timed.row(float(np.max(solution.kkt_residual()))) for timed in ours.values()]
    theirs = [other.row(A, b) for other in others]
    if all(row["seconds_per_problem"] is None for row in theirs):
        return [*mine, *theirs]
    best, rival = _fastest(mine), _fastest(theirs)
    summary = {
        "solver": "summary",
        "form": f"{best['form']} beside {rival['solver']}, {rival['form']}",
        "seconds_per_problem": best["seconds_per_problem"],
        "kkt_residual": best["kkt_residual"],
        "times_faster": rival["seconds_per_problem"] / best["seconds_per_problem"],
    }
    return [*mine, *theirs, summary]


def _fastest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return min((row for row in rows if row["seconds_per_problem"]), key=lambda row: row["seconds_per_problem"])


@contextmanager
def _on_threads(count: int) -> Iterator[None]:
    """Run on this many threads, through the setting that users have for it."""
    before = os.environ.get("MARGINLENS_THREADS")
    os.environ["MARGINLENS_THREADS"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("MARGINLENS_THREADS")
        if before is not None:
            os.environ["MARGINLENS_THREADS"] = before


class _Timed:
    """The fastest of several timings of one solver."""

    def __init__(self, solver: str, form: str) -> None:
        self.solver, self.form = solver, form
        self.seconds: float | None = None
        self.problems = 0

    def count(self, problems: int, seconds: float) -> None:
        """One more timing, of this many problems."""
        self.problems = max(self.problems, problems)
        self.seconds = min(seconds / problems, self.seconds or np.inf)

    def row(self, residual: float | None, note: str | None = None) -> dict[str, Any]:
        """The row of the table."""
        return {
            "solver": self.solver,
            "form": self.form,
            "problems": self.problems,
            "seconds_per_problem": self.seconds,
            "kkt_residual": residual,
            "note": note,
        }


class _Looped:
    """A competitor, called problem by problem."""

    def __init__(self, competitor: Competitor, n_rows: int, d: int) -> None:
        self._timed = _Timed(competitor.solver, competitor.form)
        self.n_runs = 0
        self._solve: Callable[..., Any] | None = None
        self._answers: list[tuple[FloatArray, FloatArray]] = []
        self._note: str | None = None
        if competitor.installed:
            self._solve = competitor.prepare(n_rows, d)
        else:
            self._note = f"the package {competitor.package} is not installed"

    @property
    def seconds(self) -> float:
        """The best time per problem so far; infinite before the first."""
        return np.inf if self._timed.seconds is None else self._timed.seconds

    def run(self, A: FloatArray, b: FloatArray) -> None:
        """Time one pass over as many problems as the budget allows; a failure ends this solver's part with a note."""
        self.n_runs += 1
        if self._solve is None:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of "almost solved": the residual in the table says how far
                if not self._answers:
                    self._solve(A[0], b[0])  # whatever a first call sets up
                began, answers = time.perf_counter(), []
                for rows, floor in zip(A[:LOOPED], b, strict=False):
                    answers.append(self._solve(rows, floor))
                    if time.perf_counter() - began > BUDGET:
                        break
                self._timed.count(len(answers), time.perf_counter() - began)
            self._answers = max(self._answers, answers, key=len)
        except Exception as problem:
            self._solve, self._note = None, f"{type(problem).__name__}: {problem}"

    def row(self, A: FloatArray, b: FloatArray) -> dict[str, Any]:
        """The row of the table, with the largest residual over the problems solved."""
        worst: float | None = None
        for rows, floor, (x, weights) in zip(A, b, self._answers, strict=False):
            known = weights if len(weights) else recovered_multipliers(rows, floor, x)
            tight = rows @ x <= floor
            checked = MarginSolution(rows, floor, None, x, Status.OPTIMAL, known, None, tight, None)
            worst = max(worst or 0.0, float(checked.kkt_residual()))
        return self._timed.row(worst, self._note)
