"""`marginlens train`: descend on a problem in a file, and hold the trained direction against the theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from marginlens.cli import _rows
from marginlens.cli._exit import one_sentence
from marginlens.cli._options import (
    AsJson,
    DropUnrealizable,
    LossName,
    PlotPlace,
    ProblemFile,
    StartPoint,
    for_sequences_only,
    for_tokens_only,
)
from marginlens.data import TokenDataset, read_problem
from marginlens.data.files import holds_sequences
from marginlens.svm import Status
from marginlens.theory import globally_optimal_direction

N_STEPS = 1000  # unless said otherwise


def train(
    file: ProblemFile,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="How many steps to take.", show_default="1000; 4000 for sequences")
    ] = None,
    step_size: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Length of a step; with --constant the factor of the gradient.",
            show_default="1; 0.01 for sequences",
        ),
    ] = None,
    constant: Annotated[
        bool, typer.Option("--constant", help="Plain gradient descent; its step size is 1/L unless given.")
    ] = False,
    loss: LossName = None,
    start: StartPoint = None,
    drop: DropUnrealizable = False,
    as_json: AsJson = False,
    plot: PlotPlace = None,
) -> None:
    """Train the attention weights, and compare where they went with the max-margin theory.

    Steps are normalised (every step has the same length) unless --constant is given. A file of sequences is a next-token problem: W is
    trained and compared with its Graph-SVM, its cyclic correction and its automaton.
    """
    with one_sentence():
        if holds_sequences(file):
            from marginlens.cli import next_tokens

            for_tokens_only(plot=plot)
            problem = next_tokens.read(file, drop=drop)
            how = next_tokens.chosen(problem.named.data, (steps, step_size, constant, loss, start))
            row = next_tokens.trained(file, how, problem)
            if as_json:
                typer.echo(_rows.as_json(row))
            else:
                next_tokens.show_trained(row, how)
            return
        for_sequences_only(drop=drop or None)
        from marginlens.cli import training

        data, v = read_problem(file)
        if plot is not None:
            from marginlens.plotting.plane import check_plot

            check_plot(data, plot)
        choices = training.chosen(
            data, v, (N_STEPS if steps is None else steps, step_size, constant, loss or "logistic", start)
        )
        run, paths = training.descended(data, v, choices, keep_path=plot is not None)
        problems = training.compared(data, v, choices, run)
        if plot is not None:
            from marginlens.plotting.files import write_figure
            from marginlens.plotting.plane import problem_figure

            best = _rows.solution_rows(globally_optimal_direction(data.as_batch(), v))
            drawn = [[gmm, one["solution"]] for gmm, one in zip(best, problems, strict=True)]
            write_figure(plot, problem_figure(data, v, drawn, paths, choices.loss))
        if as_json:
            told = {"file": str(file), "size": _rows.size_of(data), "training": choices.told(), "problems": problems}
            typer.echo(_rows.as_json(told))
        else:
            _show(file, data, choices, problems, plot)


# ---- the terminal


def _show(file: Path, data: TokenDataset, choices: object, problems: list[dict[str, Any]], plot: Path | None) -> None:
    from marginlens.cli._terminal import console, rows_table

    out = console()
    out.print(f"{file}: {_rows.size_of(data)}", markup=False)
    out.print(str(choices), markup=False)
    if data.is_batch:
        out.print(rows_table("Training beside the ATT-SVM of what it selects", _cells(problems)))
        found = np.array([row["correlation"] for row in problems])
        if np.isfinite(found).any():
            out.print(f"Cosine with the ATT-SVM: mean {np.nanmean(found):.6f}, smallest {np.nanmin(found):.6f}.")
    else:
        _show_one(out, problems[0])
    if plot is not None:
        out.print(f"The picture is at {plot}", markup=False)


def _show_one(out: Console, row: dict[str, Any]) -> None:
    from marginlens.cli._terminal import facts_table

    solution = row["solution"]
    trained = {
        "direction": _rows.vector(row["direction"]),
        "norm": _rows.number(row["norm"]),
        "selects": _rows.selection(row["selected"]),
        "probability": f"at least {row['smallest_probability']:.6g} for every selected token",
        "ended": f"{Status[row['status']].value} ({row['steps_taken']:,} steps)",
    }
    out.print(facts_table("Trained", trained))
    kinds = {"GMM": "globally optimal (GMM)", "LMM": "locally optimal (LMM)", "neither": "not locally optimal"}
    tied = ", tied with a neighbour" if solution["kind"] == "GMM" and solution["score_gap"] == 0.0 else ""
    margin = {
        "direction": _rows.vector(solution["direction"]),
        "margin": _rows.number(solution["margin"]),
        "these tokens are": kinds.get(solution["kind"], "selected by no direction") + tied,
        "score gap": _rows.number(solution["score_gap"]),
        "status": f"{Status[solution['status']].value} ({_rows.proof(solution)})",
        "cosine": "–" if np.isnan(row["correlation"]) else _closeness(row),
    }
    out.print(facts_table("The ATT-SVM of what it selects", margin))
    out.print(row["agreement"], style="bold")
    out.print(row["prediction"]["why"], markup=False)
    if row["advice"]:
        out.print(row["advice"], markup=False)


def _closeness(row: dict[str, Any]) -> str:
    return f"{row['correlation']:.8f} with the trained direction, an angle of {row['angle']:.2e}"


def _certainty(row: dict[str, Any]) -> str:
    """Whether the limit is certain, or only observed, with the cosine of the trained direction with it."""
    certain, observed = row["correlation_with_prediction"], row["correlation_with_observed"]
    if certain is not None:
        return f"yes: {certain:.6f}"
    return "no" if observed is None else f"observed: {observed:.6f}"


def _cells(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for row in problems:
        solution = row["solution"]
        cells = {
            "problem": row["problem"],
            "selects": _rows.selection(row["selected"]),
            "kind": solution["kind"],
            "norm": _rows.number(row["norm"]),
            "probability": _rows.number(row["smallest_probability"]),
            "cosine": "–" if np.isnan(row["correlation"]) else f"{row['correlation']:.6f}",
            "score gap": _rows.number(solution["score_gap"]),
            "residual": _rows.proof(solution),
            "certain": _certainty(row),
        }
        if any(one["status"] != "COMPLETED" for one in problems):
            cells["ended"] = row["status"].lower().replace("_", "-")
        rows.append(cells)
    return rows
