"""`marginlens solve`: what the theorems predict for a problem in a file, and its max-margin directions with their proofs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from marginlens.cli import _rows
from marginlens.cli._exit import one_sentence
from marginlens.cli._options import (
    AsJson,
    DropUnrealizable,
    PlotPlace,
    ProblemFile,
    coordinates,
    for_sequences_only,
    for_tokens_only,
    token_indices,
)
from marginlens.data import TokenDataset, read_problem
from marginlens.data.files import holds_sequences
from marginlens.data.tokens import FloatArray
from marginlens.errors import reject
from marginlens.svm import Status
from marginlens.theory import predict_limit, token_optimality

_ROWS = 20  # directions of one problem that the terminal shows; JSON has all


def solve(
    file: ProblemFile,
    selected: Annotated[
        str | None,
        typer.Option(metavar="0,1,2", help="Solve the ATT-SVM of these tokens alone, one index per input, from 0."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="0.5,-1", help="Where training will start, one number per coordinate: A Thm 3 asks for it."
        ),
    ] = None,
    drop: DropUnrealizable = False,
    as_json: AsJson = False,
    plot: PlotPlace = None,
) -> None:
    """Predict where training goes: which theorems apply, and the max-margin directions with their proofs.

    GMM is the max-margin direction of the highest-scoring tokens, an LMM that of tokens which outscore their neighbours. Where several
    tokens of an input share its highest score, G^mm are the global minima of ATT-SVM', which asks that one of them be selected.

    A file of sequences is a next-token problem: its Graph-SVM, its cyclic correction, and what C Thms 1 to 3 say.
    """
    with one_sentence():
        if holds_sequences(file):
            from marginlens.cli import next_tokens

            for_tokens_only(selected=selected, start=start, plot=plot)
            row = next_tokens.solved(file, drop=drop)
            if as_json:
                typer.echo(_rows.as_json(row))
            else:
                next_tokens.show_solved(row)
            return
        for_sequences_only(drop=drop or None)
        data, v = read_problem(file)
        if plot is not None:
            from marginlens.plotting.plane import check_plot

            check_plot(data, plot)
        if selected is None:
            begin = None if start is None else data.as_batch().point(coordinates(start), "start")
            problems = _solved(data, v, begin)
        else:
            if start is not None:
                raise reject("start", "left out when selected is given, which predicts nothing", repr(start))
            found = token_optimality(data.as_batch(), v, data.as_batch().selection(token_indices(selected)))
            rows = _rows.solution_rows(found)
            problems = [{"problem": j, "prediction": None, "solutions": [row]} for j, row in enumerate(rows)]
        if plot is not None:
            from marginlens.plotting.files import write_figure
            from marginlens.plotting.plane import problem_figure

            write_figure(plot, problem_figure(data, v, [one["solutions"] for one in problems]))
        if as_json:
            typer.echo(_rows.as_json({"file": str(file), "size": _rows.size_of(data), "problems": problems}))
        else:
            _show(file, data, problems, plot)


def _solved(data: TokenDataset, v: FloatArray, start: FloatArray | None) -> list[dict[str, Any]]:
    """The prediction and every max-margin direction of each problem, the global ones first."""
    from marginlens.cli._terminal import Bars, console

    batch = data.as_batch()
    head = batch.head(v)
    problems: list[dict[str, Any]] = []
    with Bars(console(stderr=True)) as bars:
        bar = bars.bar("Solving")
        bar.expect(len(batch))
        for j in range(len(batch)):
            prediction = predict_limit(batch[j], head[j], start=None if start is None else start[j])
            rows = _rows.candidate_rows(batch[j], head[j], prediction)
            told = {**_rows.prediction_row(prediction), "every_direction_listed": prediction.candidates.complete}
            problems.append({"problem": j, "prediction": told, "solutions": rows})
            bar.advance()
    return problems


# ---- the terminal


def _show(file: Path, data: TokenDataset, problems: list[dict[str, Any]], plot: Path | None) -> None:
    from marginlens.cli._terminal import console

    out = console()
    out.print(f"{file}: {_rows.size_of(data)}", markup=False)
    if data.is_batch:
        _show_batch(out, problems)
    else:
        _show_one(out, problems[0])
    if plot is not None:
        out.print(f"The picture is at {plot}", markup=False)


def _show_one(out: Console, problem: dict[str, Any]) -> None:
    from marginlens.cli._terminal import rows_table

    rows, prediction = problem["solutions"], problem["prediction"]
    title = "The hard-margin problem of these tokens" if prediction is None else "Max-margin directions"
    out.print(rows_table(title, [_direction_cells(row) for row in rows[:_ROWS]]))
    if len(rows) > _ROWS:
        out.print(f"and {len(rows) - _ROWS} more; --json lists them all.")
    if prediction is None:
        out.print(Status[rows[0]["status"]].value)
        if rows[0]["proof"]:
            out.print(_meaning(rows[0]))
            out.print(rows_table("", rows[0]["proof"][:_ROWS]))
        if len(rows[0]["proof"]) > _ROWS:
            out.print(f"and {len(rows[0]['proof']) - _ROWS} more; --json lists them all.")
        return
    listed = prediction["every_direction_listed"]
    tied = any(row["kind"] == "G^mm" for row in rows)
    beside = " and of G^mm" if tied else ""
    shown = "G^mm alone is" if tied else "the GMM alone is"
    out.print(f"These are all of P^mm{beside}." if listed else f"P^mm is too large to list in full; {shown} shown.")
    for text, indent in _rows.theorem_lines(prediction["theorems"]):
        out.print(Padding(Text(text), (0, 0, 0, indent)))
    out.print(prediction["why"], markup=False, style="bold")
    missing = [row for row in rows if row["kind"] == "GMM" and row["status"] == Status.INFEASIBLE.name]
    if missing:
        tokens = ",".join(map(str, missing[0]["selected"]))
        out.print(f"The GMM does not exist: --selected {tokens} shows the proof.")


def _meaning(row: dict[str, Any]) -> str:
    if row["status"] == "INFEASIBLE":
        return "Its proof: these multiples of k_selected - k_other add up to zero, so no p makes all of them positive."
    return "Its proof: p is the sum of these multiples of k_selected - k_other, each of which it gives margin one."


def _direction_cells(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": row["kind"],
        "selects": _rows.selection(row["selected"]),
        "direction": _rows.vector(row["direction"]),
        "margin": _rows.number(row["margin"]),
        "score gap": _rows.number(row["score_gap"]),
        "status": row["status"].lower(),
        "residual": _rows.proof(row),
    }


def _show_batch(out: Console, problems: list[dict[str, Any]]) -> None:
    from marginlens.cli._terminal import rows_table

    rows = []
    for problem in problems:
        first, prediction = problem["solutions"][0], problem["prediction"]
        cells = {"problem": problem["problem"], **_direction_cells(first)}
        del cells["direction"]
        if prediction is not None:
            del cells["kind"]
            listed = prediction["every_direction_listed"]
            found = sum(row["kind"] == "LMM" for row in problem["solutions"])
            cells["LMM"] = str(found) if listed else "not listed"
            applying = [one["label"] for one in prediction["theorems"] if one["applies"]]
            cells["theorems"] = ", ".join(applying) or "none"
            cells["certain"] = "no" if prediction["direction"] is None else "yes"
        rows.append(cells)
    every = all(problem["prediction"] for problem in problems)
    out.print(rows_table("The GMM of each problem" if every else "The hard-margin problem of each", rows))
