"""`marginlens solve`: what the theorems predict for a problem in a file, and its max-margin directions with their proofs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import marginlens as ml
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._deferred import terminal
from marginlens.cli._exit import Answer, command
from marginlens.cli._options import (
    LISTED_NORMS,
    OF_PROBLEM_FILE,
    DropUnrealizable,
    PlotPlace,
    ProblemFile,
    TokenProblem,
    numbers,
    option,
    read_token_problem,
    refuse_options,
)

_COLUMNS = (
    "kind={kind}, selects={selected:selection}, direction={direction:vector}, margin={margin:number}, "
    "score gap={score_gap:number}, status={status.lower}, residual={self:residual}"
)
_NORM_COLUMNS = (
    "selects={selected:selection}, direction={direction:vector}, margin={margin:number}, status={status.lower}, "
    "residual={self:residual}, only one={is_unique:yes|no}"
)
_MAX_ROWS = 20  # directions of one problem that the terminal shows; JSON has all


@command(**OF_PROBLEM_FILE)
def solve(
    file: ProblemFile,
    selected: Annotated[
        str | None, option("0,1,2", "Solve the ATT-SVM of these tokens alone, one index per input, from 0.")
    ] = None,
    start: Annotated[
        str | None, option("0.5,-1", "Where training will start, one number per coordinate: A Thm 3 asks for it.")
    ] = None,
    norm: Annotated[
        str | None,
        option(
            "l-inf",
            "Solve the ATT-SVM of the selected, or else the highest-scoring, tokens in this norm: l1, l2, l-inf, l3 and so on.",
            words=LISTED_NORMS,
        ),
    ] = None,
    drop: DropUnrealizable = False,
    plot: PlotPlace = None,
) -> Answer:
    """Predict where training goes: which theorems apply, and the max-margin directions with their proofs.

    GMM is the max-margin direction of the highest-scoring tokens, an LMM that of tokens which outscore their neighbours. Where several
    tokens of an input share its highest score, G^mm are the global minima of ATT-SVM', which asks that one of them be selected.

    Descent in another norm, such as sign descent in l-inf, heads for that norm's margin: --norm solves it, with bounds that prove it.

    A problem that the lab saved is predicted for its own start, loss and optimizer; where its head is trained too, by A Thms 5 and 6.

    A file of sequences is a next-token problem: its Graph-SVM, its cyclic correction, and what C Thms 1 to 3 say.

    Examples:
        marginlens solve problem.npz
        marginlens solve problem.npz --start 0.5,-1 --plot directions.svg
        marginlens solve problem.npz --selected 0,1,2 --norm l-inf
        marginlens solve sequences.json --drop --json
    """
    from marginlens.data.files import holds_sequences

    if holds_sequences(file):
        refuse_options("for a file of sequences", selected=selected, start=start, norm=norm, plot=plot)
        sequences = _rows.read_sequence_problem(file, drop=drop)
        with terminal.stage("Solving Graph-SVM and the cyclic correction"):
            prediction = ml.predict_limit(sequences.named.data, head=sequences.head)
        row = _rows.sequence_row(file, sequences, prediction)
        said = [*_rows.outcome_text(row["prediction"]["outcome"]), *_rows.sequence_text(row)]
        return Answer(row, [*said, *_rows.theorem_text(row["prediction"])])
    refuse_options("unless the file holds sequences", drop=drop)
    problem = read_token_problem(file)
    if not isinstance(problem, TokenProblem):
        refuse_options("where the head is trained too", selected=selected, start=start, norm=norm, plot=plot)
        row = _rows.solve_joint(file, problem)
        return Answer(row, _rows.joint_text(row))
    data, v = problem.data, problem.head
    if plot is not None:
        from marginlens.plotting.files import write_figure
        from marginlens.plotting.plane import check_plot, problem_figure

        check_plot(data, plot)
    if norm is None and selected is None:
        problems = _predicted(problem, start)
    else:
        refuse_options("when selected or norm is given, which predict nothing", start=start)
        batch = data.as_batch()
        tokens = batch.optimal(batch.head(v))
        if selected is not None:
            tokens = batch.selection(numbers(selected, "selected", data.n_inputs, int))
        if norm is None:
            rows = _rows.solution_rows(ml.token_optimality(batch, v, tokens))
        else:
            from marginlens.norms.choice import norm_named

            rows = _rows.norm_rows(ml.att_svm(batch, tokens, norm=norm_named(norm)), tokens)
        problems = [{"problem": j, "prediction": None, "solutions": [row]} for j, row in enumerate(rows)]
    if plot is not None:
        write_figure(plot, problem_figure(data, v, [problem["solutions"] for problem in problems]))
    found = {"file": str(file), "size": _rows.size_of(data), "problems": problems}
    return Answer(found, _text(found, data.is_batch), [plot])


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
    with terminal.stage("Solving") as bar:
        for j in range(len(batch)):
            prediction = ml.predict_limit(batch[j], head[j], start=None if begin is None else begin[j], **options)
            listed = prediction.candidates is not None and prediction.candidates.complete
            row = {**_rows.prediction_row(prediction), "every_direction_listed": listed}
            solutions = _rows.candidate_rows(batch[j], head[j], prediction)
            problems.append({"problem": j, "prediction": row, "solutions": solutions})
            bar(j + 1, len(batch))
    return problems


# ---- the terminal


def _text(found: dict[str, Any], is_batch: bool) -> Iterator[Any]:
    yield f"{found['file']}: {found['size']}"
    if is_batch:
        predicted = all(problem["prediction"] for problem in found["problems"])
        title = "The GMM of each problem" if predicted else "The hard-margin problem of each"
        yield terminal.rows_table(title, [_batch_cells(problem) for problem in found["problems"]])
        return
    (problem,) = found["problems"]
    if problem["prediction"] is None:
        yield from _selected_text(problem["solutions"][0])
    else:
        yield from _predicted_text(problem["prediction"], problem["solutions"])


def _selected_text(row: dict[str, Any]) -> Iterator[Any]:
    in_norm = f" in {row['norm']}" if "norm" in row else ""
    yield terminal.rows_table(f"The hard-margin problem of these tokens{in_norm}", [_direction_cells(row)])
    yield ml.Status[row["status"]].value
    if "norm" in row and row["status"] != "INFEASIBLE":
        bounds = row["bracket"]
        if row["status"] in ("OPTIMAL", "INACCURATE"):
            yield (
                f"This p has norm {bounds['upper']:.12g}, and no p with margin one a norm below {bounds['lower']:.12g}: "
                f"a gap of {bounds['gap']:.1g}."
            )
        if row["is_unique"] is False:
            yield "Other vectors of the same norm have the same margin."
    elif row["proof"]:
        meaning = "p is the sum of these multiples of k_selected - k_other, each of which it gives margin one."
        if row["status"] == "INFEASIBLE":
            meaning = "these multiples of k_selected - k_other add up to zero, so no p makes all of them positive."
        yield f"Its proof: {meaning}"
        yield terminal.rows_table("", row["proof"][:_MAX_ROWS])
        yield from _more(row["proof"])


def _more(rows: list[Any]) -> Iterator[str]:
    if len(rows) > _MAX_ROWS:
        yield f"and {len(rows) - _MAX_ROWS} more; --json lists them all."


def _predicted_text(prediction: dict[str, Any], solutions: list[dict[str, Any]]) -> Iterator[Any]:
    yield from _rows.outcome_text(prediction["outcome"])
    yield terminal.rows_table("Max-margin directions", [_direction_cells(row) for row in solutions[:_MAX_ROWS]])
    yield from _more(solutions)
    tied = any(row["kind"] == "G^mm" for row in solutions)
    if prediction["every_direction_listed"]:
        yield f"These are all locally optimal directions (P^mm){', and all of G^mm' if tied else ''}."
    else:
        shown = "G^mm" if tied else "the GMM"
        yield f"There are too many locally optimal directions (P^mm) to list them; {shown} alone is shown."
    yield from _rows.theorem_text(prediction)
    missing = [row["selected"] for row in solutions if row["kind"] == "GMM" and row["status"] == "INFEASIBLE"]
    if missing:
        yield f"The GMM does not exist: --selected {','.join(map(str, missing[0]))} shows the proof."


def _direction_cells(row: dict[str, Any]) -> dict[str, Any]:
    return _rows.cells(row, _NORM_COLUMNS if "norm" in row else _COLUMNS)


def _batch_cells(problem: dict[str, Any]) -> dict[str, Any]:
    """The first direction of a problem of a batch, and what is predicted."""
    prediction = problem["prediction"]
    cells = {"problem": problem["problem"], **_direction_cells(problem["solutions"][0])}
    del cells["direction"]
    if prediction is not None:
        del cells["kind"]
        n_local = sum(row["kind"] == "LMM" for row in problem["solutions"])
        cells["LMM"] = str(n_local) if prediction["every_direction_listed"] else "not listed"
        applying = [theorem.citation for theorem in prediction["theorems"] if theorem.applies]
        cells["theorems"] = ", ".join(applying) or "none"
        cells["certain"] = prediction["certain"] or "no"
    return cells
