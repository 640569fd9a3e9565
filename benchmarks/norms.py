"""How fast margin problems in norms other than the Euclidean one are solved: this library beside HiGHS, Clarabel and SCS, in one run."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from marginlens.data import sphere_queries
from marginlens.norms import L1, LInf, Lp, MaxRow, Norm, Nuclear, Spectral
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.svm import MarginSolution, least_distance
from marginlens.svm.solvers.norms import solve_in_norm
from marginlens.typing import FloatArray
from marginlens_papers.claims.random_data import class_clusters

SMALL = (1000, 6, 8, 10)  # problems, inputs, tokens, d_model: 42 rows of a matrix W (10, 10)
CLUSTERS = (10, 50, 25, 0.1)  # classes, points of each, features, spread: 4,500 rows of a matrix W (10, 25)
SCS_RTOL = 1e-8  # accuracy that SCS is asked for; its default leaves gaps of 1e-5
LOOPED = 20  # small problems that a competitor solves
Answer = tuple[FloatArray, FloatArray]  # x and the multipliers


class Rival(NamedTuple):
    """Another solver: what it is called, the package it needs, and what it makes of rows (n_rows, d) and lower bounds of one."""

    name: str
    package: str
    solve: Callable[[FloatArray], Answer]


class Case(NamedTuple):
    """A norm, how this library solves a batch of rows (batch, n_rows, d) in it, and who else can."""

    norm: Norm
    solve: Callable[[FloatArray], MarginSolution]
    rivals: tuple[Rival, ...]


class Problems(NamedTuple):
    """Rows (batch, n_rows, d) of problems in a matrix of this shape; all lower bounds are one."""

    rows: FloatArray
    shape: tuple[int, int]


def bench_norms(progress: ProgressCallback | None = None, *, seed: int = 0) -> list[dict[str, Any]]:
    """Time margin problems norm by norm, in seconds of CPU with every check and certificate, modelling included.

    Small problems are those of the W-form of ATT-SVM with one query per input, tokens and queries uniform on the sphere, the best
    token of each input selected under a random head. The large one separates clusters of several classes around unit means,
    rows (e_y - e_c) hᵀ. Everybody gets the same rows; `gap` is the largest relative gap of the bracket that x and the
    multipliers give after x is scaled until no row is violated.

    Returns:
        For every size and norm one row per solver, and one summary row with `times_faster` than the fastest other solver, in a
        loop and in one call.
    """
    watch = Progress(progress)
    sizes = [_attention(*SMALL, seed), _clusters(*CLUSTERS, seed)]
    listed = [(problems, case) for problems in sizes for case in cases(problems.shape)]
    watch.expect(len(listed))
    rows: list[dict[str, Any]] = []
    for problems, case in listed:
        _, n_rows, d = problems.rows.shape
        size = {"rows": n_rows, "unknowns": d, "norm": repr(case.norm)}
        rows += [{**size, **row} for row in _timed(problems.rows, case)]
        watch.advance()
    return rows


def cases(shape: tuple[int, int]) -> list[Case]:
    """The norms that are raced, on problems in matrices of this shape."""
    vector_norms: list[tuple[Norm, Rival]] = [
        (L1(), Rival("HiGHS through scipy", "scipy", _highs_l1)),
        (LInf(), Rival("HiGHS through scipy", "scipy", _highs_linf)),
        (Lp(1.75), Rival("Clarabel through cvxpy", "cvxpy", partial(_clarabel_power, p=1.75))),
        (Lp(3.0), Rival("Clarabel through cvxpy", "cvxpy", partial(_clarabel_power, p=3.0))),
    ]
    entries = [Case(norm, partial(_solve_entries, norm=norm), (rival,)) for norm, rival in vector_norms]
    matrix_norms: list[Norm] = [Nuclear(), Spectral(), MaxRow()]
    matrices = [
        Case(
            norm,
            partial(_solve_matrix, shape=shape, norm=norm),
            tuple(
                Rival(
                    f"{name} through cvxpy",
                    "cvxpy",
                    partial(_conic_matrix, shape=shape, norm=norm, solver=name.upper()),
                )
                for name in ("Clarabel", "SCS")
            ),
        )
        for norm in matrix_norms
    ]
    return [*entries, *matrices]


def _solve_entries(rows: FloatArray, norm: Norm) -> MarginSolution:
    return least_distance(rows, np.ones(rows.shape[:-1]), norm=norm)


def _solve_matrix(rows: FloatArray, shape: tuple[int, int], norm: Norm) -> MarginSolution:
    euclidean = least_distance(rows, np.ones(rows.shape[:-1]))
    return solve_in_norm(replace(euclidean, x=euclidean.x.reshape(*rows.shape[:-2], *shape)), norm)


def _attention(n_problems: int, n_inputs: int, n_tokens: int, d_model: int, seed: int) -> Problems:
    """Rows z_i (x_iα - x_it)ᵀ of the W-form, one query z_i per input."""
    data, head, queries = sphere_queries(n_problems, n_inputs, n_tokens, d_model, seed)
    best = data.optimal(head)[..., None]  # (problems, inputs, 1)
    others = np.arange(n_tokens - 1) + (np.arange(n_tokens - 1) >= best)
    differences = np.take_along_axis(data.X, best[..., None], 2) - np.take_along_axis(data.X, others[..., None], 2)
    rows = queries[:, :, None, :, None] * differences[..., None, :]  # (problems, inputs, tokens - 1, d_model, d_model)
    return Problems(rows.reshape(n_problems, n_inputs * (n_tokens - 1), d_model * d_model), (d_model, d_model))


def _clusters(n_classes: int, n_points: int, d_model: int, spread: float, seed: int) -> Problems:
    """Rows (e_y - e_c) hᵀ of a linear classifier with one row of W per class."""
    points, classes = class_clusters(n_classes, n_points, d_model, spread, seed)
    units = np.eye(n_classes)
    sides = units[classes][:, None] - units  # (points, classes, classes)
    other = np.arange(n_classes) != classes[:, None]
    rows = sides[other][:, :, None] * np.repeat(points, n_classes - 1, axis=0)[:, None, :]
    return Problems(rows.reshape(1, len(rows), n_classes * d_model), (n_classes, d_model))


def _timed(rows: FloatArray, case: Case) -> list[dict[str, Any]]:
    """One row per solver, and the summary."""
    case.solve(rows[:1])  # compile, or load what was compiled
    seconds, solution = _cpu(partial(case.solve, rows))
    ours = [_row("marginlens", "one call", len(rows), seconds, float(np.max(solution.bracket().gap)))]
    looped = min(LOOPED, len(rows))
    if len(rows) > 1:
        seconds, singles = _cpu(lambda: [case.solve(single) for single in rows[:looped]])
        gap = max(float(single.bracket().gap) for single in singles)
        ours.append(_row("marginlens", "in a loop", looped, seconds, gap))
    others = [_rival_row(rival, solution, rows[:looped]) for rival in case.rivals]
    timed = [row for row in others if row["seconds_per_problem"]]
    if not timed:
        return [*ours, *others]
    fastest = min(timed, key=lambda row: row["seconds_per_problem"])
    summary = {
        "solver": "summary",
        "form": f"{ours[0]['form']} beside {fastest['solver']}",
        "times_faster": fastest["seconds_per_problem"] / ours[0]["seconds_per_problem"],
        "times_faster_in_a_loop": fastest["seconds_per_problem"] / ours[-1]["seconds_per_problem"],
    }
    return [*ours, *others, summary]


def _rival_row(rival: Rival, solution: MarginSolution, rows: FloatArray) -> dict[str, Any]:
    if find_spec(rival.package) is None:
        note = f"the package {rival.package} is not installed"
        return _row(rival.name, "in a loop", 0, None, None, note)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of "almost solved": the gap in the table says how far
            if len(rows) > 1:
                rival.solve(rows[0])  # whatever a first call sets up
            seconds, answers = _cpu(lambda: [rival.solve(single) for single in rows])
    except Exception as problem:
        return _row(rival.name, "in a loop", 0, None, None, f"{type(problem).__name__}: {problem}")
    checked = [solution[j].in_norm(solution.norm, x.ravel(), weights) for j, (x, weights) in enumerate(answers)]
    return _row(rival.name, "in a loop", len(rows), seconds, max(float(answer.bracket().gap) for answer in checked))


def _cpu(function: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of CPU, over all threads, and what the function returns."""
    began = time.process_time()
    result = function()
    return time.process_time() - began, result


def _row(
    solver: str, form: str, n_problems: int, seconds: float | None, gap: float | None, note: str | None = None
) -> dict[str, Any]:
    each = None if seconds is None else seconds / n_problems
    return {
        "solver": solver,
        "form": form,
        "problems": n_problems,
        "seconds_per_problem": each,
        "gap": gap,
        "note": note,
    }


# ---- the others


def _highs_l1(rows: FloatArray) -> Answer:
    """min Σ (u + w) s.t. A (u - w) >= 1, u, w >= 0."""
    d = rows.shape[1]
    answer = linprog(np.ones(2 * d), A_ub=np.hstack([-rows, rows]), b_ub=-np.ones(len(rows)), method="highs")
    return answer.x[:d] - answer.x[d:], -answer.ineqlin.marginals


def _highs_linf(rows: FloatArray) -> Answer:
    """min t s.t. A x >= 1, -t <= x <= t."""
    n, d = rows.shape
    ones = np.ones((d, 1))
    sides = np.block([[np.eye(d), -ones], [-np.eye(d), -ones], [-rows, np.zeros((n, 1))]])
    goal = np.append(np.zeros(2 * d), -np.ones(n))
    answer = linprog(np.append(np.zeros(d), 1.0), A_ub=sides, b_ub=goal, bounds=(None, None), method="highs")
    return answer.x[:d], -answer.ineqlin.marginals[2 * d :]


def _clarabel_power(rows: FloatArray, p: float) -> Answer:
    """min ‖x‖_p s.t. A x >= 1, as power cones."""
    import cvxpy

    x = cvxpy.Variable(rows.shape[1])
    constraint = rows @ x >= np.ones(len(rows))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.pnorm(x, p)), [constraint]).solve(solver="CLARABEL")
    return np.asarray(x.value), np.asarray(constraint.dual_value)


def _conic_matrix(rows: FloatArray, shape: tuple[int, int], norm: Norm, solver: str) -> Answer:
    """min ‖W‖ s.t. A W >= 1, as semidefinite or second-order cones; SCS to 1e-8, which is as far as it is asked here."""
    import cvxpy

    W = cvxpy.Variable(shape)
    if isinstance(norm, MaxRow):
        size = cvxpy.max(cvxpy.norm(W, axis=1))
    else:
        size = cvxpy.normNuc(W) if isinstance(norm, Nuclear) else cvxpy.sigma_max(W)
    constraint = rows @ cvxpy.vec(W, order="C") >= np.ones(len(rows))
    settings = {"eps_abs": SCS_RTOL, "eps_rel": SCS_RTOL} if solver == "SCS" else {}
    cvxpy.Problem(cvxpy.Minimize(size), [constraint]).solve(solver=solver, **settings)
    return np.asarray(W.value), np.asarray(constraint.dual_value)
