"""`marginlens solve`: what the theorems predict for a problem in a file, and its max-margin directions with their proofs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli._completions import norm_names
from marginlens.cli._deferred import errors, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import (
    OF_PROBLEM_FILE,
    AsJson,
    DropUnrealizable,
    PlotPlace,
    ProblemFile,
    Quiet,
    TokenProblem,
    numbers,
    read_token_problem,
    refuse_options,
)

if TYPE_CHECKING:
    from rich.console import Console

_MAX_ROWS = 20  # directions of one problem that the terminal shows; JSON has all


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
    norm: Annotated[
        str | None,
        typer.Option(
            "--norm",
            autocompletion=norm_names,
            metavar="linf",
            help="Solve the ATT-SVM of the selected, or else the highest-scoring, tokens in this norm: l1, l2, linf, l3 and so on.",
        ),
    ] = None,
    drop: DropUnrealizable = False,
    as_json: AsJson = False,
    plot: PlotPlace = None,
    quiet: Quiet = False,
) -> None:
    """Predict where training goes: which theorems apply, and the max-margin directions with their proofs.

    GMM is the max-margin direction of the highest-scoring tokens, an LMM that of tokens which outscore their neighbours. Where several
    tokens of an input share its highest score, G^mm are the global minima of ATT-SVM', which asks that one of them be selected.

    Descent in another norm, such as sign descent in linf, heads for that norm's margin: --norm solves it, with bounds that prove it.

    A problem that the lab saved is predicted for its own start, loss and optimizer; where its head is trained too, by A Thms 5 and 6.

    A file of sequences is a next-token problem: its Graph-SVM, its cyclic correction, and what C Thms 1 to 3 say.

    Examples:
        marginlens solve problem.npz
        marginlens solve problem.npz --start 0.5,-1 --plot directions.svg
        marginlens solve problem.npz --selected 0,1,2 --norm linf
        marginlens solve sequences.json --drop --json
    """
    with errors_as_sentences(**OF_PROBLEM_FILE):
        from marginlens.data.files import holds_sequences

        if holds_sequences(file):
            refuse_options("for a file of sequences", selected=selected, start=start, norm=norm, plot=plot)
            row = _solve_sequences(file, drop=drop)
            if as_json:
                typer.echo(_rows.as_json(row))
            else:
                _show_sequences(row)
            return
        refuse_options("unless the file holds sequences", drop=drop)
        problem = read_token_problem(file)
        if not isinstance(problem, TokenProblem):
            refuse_options("where the head is trained too", selected=selected, start=start, norm=norm, plot=plot)
            from marginlens.cli._joint import show_joint, solve_joint

            row = solve_joint(file, problem)
            if as_json:
                typer.echo(_rows.as_json(row))
            else:
                show_joint(row)
            return
        data, v = problem.data, problem.head
        if plot is not None:
            from marginlens.plotting.files import write_figure
            from marginlens.plotting.plane import check_plot, problem_figure

            check_plot(data, plot)
        if norm is not None:
            problems = _in_norm(data, v, selected, start, ml.norms.norm_named(norm))
        else:
            problems = _predicted(problem, start) if selected is None else _selected(data, v, selected, start)
        if plot is not None:
            write_figure(plot, problem_figure(data, v, [problem["solutions"] for problem in problems]))
        if as_json:
            typer.echo(_rows.as_json({"file": str(file), "size": _rows.size_of(data), "problems": problems}))
        else:
            _show(file, data, problems, plot)


def _selected(data: ml.TokenDataset, v: Any, selected: str, start: str | None) -> list[dict[str, Any]]:
    """The ATT-SVM of the named tokens in each problem."""
    if start is not None:
        raise errors.reject("start", "left out when selected is given, which predicts nothing", repr(start))
    batch = data.as_batch()
    rows = _rows.solution_rows(ml.token_optimality(batch, v, batch.selection(_tokens(selected, batch))))
    return [{"problem": j, "prediction": None, "solutions": [row]} for j, row in enumerate(rows)]


def _tokens(selected: str, data: ml.TokenDataset) -> list[int]:
    return numbers(selected, "selected", data.n_inputs, int)


def _in_norm(
    data: ml.TokenDataset, v: Any, selected: str | None, start: str | None, norm: ml.Norm
) -> list[dict[str, Any]]:
    """The ATT-SVM in a norm of the named tokens, or of the highest-scoring ones, in each problem."""
    refuse_options("when norm is given, which predicts nothing", start=start)
    batch = data.as_batch()
    tokens = batch.optimal(batch.head(v)) if selected is None else batch.selection(_tokens(selected, batch))
    rows = _rows.norm_rows(ml.att_svm(batch, tokens, norm=norm), tokens)
    return [{"problem": j, "prediction": None, "solutions": [row]} for j, row in enumerate(rows)]


def _predicted(problem: TokenProblem, start: str | None) -> list[dict[str, Any]]:
    """The prediction and every max-margin direction of each problem, the global ones first; for the run of a file where it has one."""
    batch = problem.data.as_batch()
    head = batch.head(problem.head)
    begin = None if start is None else batch.point(numbers(start, "start", batch.d_key), "start")
    options: dict[str, Any] = {}
    if problem.run is not None:
        options = {"loss": problem.run.loss, "optimizer": problem.run.optimizer}
        begin = batch.point(problem.run.start) if begin is None else begin
    problems: list[dict[str, Any]] = []
    with terminal.Bars() as bars:
        bar = bars.bar("Solving")
        for j in range(len(batch)):
            prediction = ml.predict_limit(batch[j], head[j], start=None if begin is None else begin[j], **options)
            listed = prediction.candidates is not None and prediction.candidates.complete
            row = {**_rows.prediction_row(prediction), "every_direction_listed": listed}
            solutions = _rows.candidate_rows(batch[j], head[j], prediction)
            problems.append({"problem": j, "prediction": row, "solutions": solutions})
            bar(j + 1, len(batch))
    return problems


def _solve_sequences(file: Path, *, drop: bool) -> dict[str, Any]:
    """What paper C says about the sequences of a file."""
    problem = _rows.read_sequence_problem(file, drop=drop)
    with terminal.Bars() as bars:
        bars.bar("Solving Graph-SVM and the cyclic correction")
        prediction = ml.predict_limit(problem.named.data, head=problem.head)
    return _rows.sequence_row(file, problem, prediction)


# ---- the terminal


def _show_sequences(row: dict[str, Any]) -> None:
    out = terminal.console()
    _rows.show_sequence_problem(out, row)
    _rows.show_theorems(out, row["prediction"])
    out.print(row["prediction"]["why"], markup=False, style="bold")


def _show(file: Path, data: ml.TokenDataset, problems: list[dict[str, Any]], plot: Path | None) -> None:
    out = terminal.console()
    out.print(f"{file}: {_rows.size_of(data)}", markup=False)
    if data.is_batch:
        _show_batch(out, problems)
    elif problems[0]["prediction"] is None:
        _show_selected(out, problems[0]["solutions"][0])
    else:
        _show_predicted(out, **problems[0])
    if plot is not None:
        out.print(f"Written to {plot}", markup=False)


def _show_selected(out: Console, row: dict[str, Any]) -> None:
    if "norm" in row and row["status"] != "INFEASIBLE":
        _show_norm(out, row)
        return
    out.print(terminal.rows_table("The hard-margin problem of these tokens", [_direction_cells(row)]))
    out.print(ml.Status[row["status"]].value)
    if row["proof"]:
        meaning = (
            "these multiples of k_selected - k_other add up to zero, so no p makes all of them positive."
            if row["status"] == "INFEASIBLE"
            else "p is the sum of these multiples of k_selected - k_other, each of which it gives margin one."
        )
        out.print(f"Its proof: {meaning}")
        out.print(terminal.rows_table("", row["proof"][:_MAX_ROWS]))
    if len(row["proof"]) > _MAX_ROWS:
        out.print(f"and {len(row['proof']) - _MAX_ROWS} more; --json lists them all.")


def _show_norm(out: Console, row: dict[str, Any]) -> None:
    out.print(
        terminal.rows_table(f"The hard-margin problem of these tokens in {row['norm']}", [_direction_cells(row)]),
        markup=False,
    )
    out.print(ml.Status[row["status"]].value)
    if row["status"] in ("OPTIMAL", "INACCURATE"):
        bounds = row["bracket"]
        out.print(
            f"This p has norm {bounds['upper']:.12g}, and no p with margin one a norm below {bounds['lower']:.12g}: "
            f"a gap of {bounds['gap']:.1g}.",
            highlight=False,
        )
    if row["is_unique"] is False:
        out.print("Other vectors of the same norm have the same margin.")


def _show_predicted(out: Console, problem: int, prediction: dict[str, Any], solutions: list[dict[str, Any]]) -> None:
    out.print(terminal.rows_table("Max-margin directions", [_direction_cells(row) for row in solutions[:_MAX_ROWS]]))
    if len(solutions) > _MAX_ROWS:
        out.print(f"and {len(solutions) - _MAX_ROWS} more; --json lists them all.")
    tied = any(row["kind"] == "G^mm" for row in solutions)
    if prediction["every_direction_listed"]:
        out.print(f"These are all locally optimal directions (P^mm){', and all of G^mm' if tied else ''}.")
    else:
        shown = "G^mm" if tied else "the GMM"
        out.print(f"There are too many locally optimal directions (P^mm) to list them; {shown} alone is shown.")
    _rows.show_theorems(out, prediction)
    out.print(prediction["why"], markup=False, style="bold")
    for row in solutions:
        if row["kind"] == "GMM" and row["status"] == "INFEASIBLE":
            tokens = ",".join(map(str, row["selected"]))
            out.print(f"The GMM does not exist: --selected {tokens} shows the proof.")
            break


def _direction_cells(row: dict[str, Any]) -> dict[str, Any]:
    cells = {
        "kind": row["kind"],
        "selects": _rows.selection(row["selected"]),
        "direction": _rows.vector(row["direction"]),
        "margin": _rows.number(row["margin"]),
        "score gap": _rows.number(row["score_gap"]),
        "status": row["status"].lower(),
        "residual": _rows.residual(row),
    }
    if "norm" in row:
        del cells["kind"], cells["score gap"]
        cells["only one"] = {True: "yes", False: "no", None: "–"}[row["is_unique"]]
    return cells


def _show_batch(out: Console, problems: list[dict[str, Any]]) -> None:
    rows = []
    for problem in problems:
        prediction = problem["prediction"]
        cells = {"problem": problem["problem"], **_direction_cells(problem["solutions"][0])}
        del cells["direction"]
        if prediction is not None:
            del cells["kind"]
            n_local = sum(row["kind"] == "LMM" for row in problem["solutions"])
            cells["LMM"] = str(n_local) if prediction["every_direction_listed"] else "not listed"
            applying = [theorem["label"] for theorem in prediction["theorems"] if theorem["applies"]]
            cells["theorems"] = ", ".join(applying) or "none"
            cells["certain"] = "no" if prediction["direction"] is None else "yes"
        rows.append(cells)
    predicted = all(problem["prediction"] for problem in problems)
    out.print(terminal.rows_table("The GMM of each problem" if predicted else "The hard-margin problem of each", rows))
