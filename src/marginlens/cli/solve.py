"""`marginlens solve`: the theorems' prediction for a problem in a file, and its max-margin directions with proofs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import (
    LISTED_NORMS,
    AsJson,
    DropUnrealizable,
    PlotFile,
    ProblemFile,
    Quiet,
    numbers,
    read_sequence_problem,
    read_token_problem,
    refuse_options,
    vector,
    words_of,
)
from marginlens.cli.output import Output
from marginlens.words import text

if TYPE_CHECKING:
    from marginlens.data.files import SequenceProblem
    from marginlens.lab.problem_files import LabProblem
    from marginlens.theory import Prediction, TokenOptimality
    from marginlens.typing import FloatArray, IntArray

Selected = Annotated[str | None, typer.Option(help="Token of each input, such as 0,1,2: solve their ATT-SVM alone.")]
Start = Annotated[str | None, typer.Option(help="Point where training will start, such as 0.5,-1.")]
SolvedNorm = Annotated[
    str | None,
    typer.Option(
        help="Norm, such as l-inf or l3, in which to solve the ATT-SVM of the selected, or else the highest-scoring, tokens.",
        autocompletion=words_of(*LISTED_NORMS),
    ),
]
# Directions that are printed; JSON has all.
MAX_DIRECTIONS = 10


def solve(
    file: ProblemFile,
    selected: Selected = None,
    start: Start = None,
    norm: SolvedNorm = None,
    drop: DropUnrealizable = False,
    plot: PlotFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict where training goes, with proofs.

    Report which theorems apply, condition by condition, and list the max-margin directions. The GMM is the max-margin direction
    of the highest-scoring tokens; an LMM is that of tokens that outscore their neighbours. If several tokens of an input share
    its highest score, G^mm are the global minima of ATT-SVM', which requires only that one of them is selected.

    Descent in another norm, such as sign descent in l-inf, heads for that norm's margin: --norm solves this problem, with
    bounds that prove the solution.

    A problem saved by the lab is predicted for its own start, loss and optimizer; if its head is trained too, A Thms 5 and 6
    are used. A file of sequences is a next-token problem, predicted by C Thms 1 to 3.

    \b
    Examples:
      marginlens solve problem.npz
      marginlens solve problem.npz --start 0.5,-1 --plot directions.svg
      marginlens solve problem.npz --selected 0,1,2 --norm l-inf
      marginlens solve sequences.json --drop --json
    """
    from marginlens.data.files import holds_sequences

    output = Output(as_json, quiet)
    if holds_sequences(file):
        refuse_options("for a file of sequences", selected=selected, start=start, norm=norm, plot=plot)
        sequences = read_sequence_problem(file, drop=drop)
        with output.stage("Solving next tokens"):
            prediction = ml.predict_limit(sequences.named.data, head=sequences.head)
        output.show(*sequence_answer(file, sequences, prediction))
        return
    refuse_options("unless the file holds sequences", drop=drop)
    data, v, run = read_token_problem(file)
    if v is None:
        refuse_options("if the head is trained too", selected=selected, start=start, norm=norm, plot=plot)
        assert run is not None
        prediction = ml.predict(run.risk)
        output.show(prediction, [f"{file}: {run!r}", str(prediction)])
        return
    if plot is not None:
        from marginlens.plotting.plane import check_plot

        check_plot(data, plot)
    if norm is None and selected is None:
        rows, drawn, lines = _predicted(data, v, run, start, output)
    else:
        refuse_options("if selected or norm is given, which predict nothing", start=start)
        rows, drawn, lines = _solved(data, v, selected, norm)
    if plot is not None:
        _draw(plot, data, v, drawn)
    output.show({"problems": rows}, [f"{file}: {data!r}", *lines], [plot])


# For each problem its numbers and what figures draw; and the text.
Answer = tuple[list[dict[str, Any]], list[list[dict[str, Any]]], list[str]]


def _draw(plot: Path, data: ml.TokenDataset, v: FloatArray, drawn: list[list[dict[str, Any]]]) -> None:
    """Write the picture of the problems, each with some directions."""
    from marginlens.plotting.files import write_figure
    from marginlens.plotting.plane import problem_figure

    write_figure(plot, problem_figure(data, v, drawn))


def _predicted(
    data: ml.TokenDataset, v: FloatArray, run: LabProblem | None, start: str | None, output: Output
) -> Answer:
    """Return the predictions of the problems of a file."""
    batch = data.as_batch()
    predictions = _predictions(batch, batch.head(v), run, start, output)
    rows, drawn = [one.to_dict() for one in predictions], [_candidates(one) for one in predictions]
    return rows, drawn, _predicted_lines(predictions, is_batch=data.is_batch)


def _solved(data: ml.TokenDataset, v: FloatArray, selected: str | None, norm: str | None) -> Answer:
    """Solve the ATT-SVMs of the selected, or else the highest-scoring, tokens of the problems of a file."""
    batch = data.as_batch()
    head = batch.head(v)
    tokens = batch.optimal(head)
    if selected is not None:
        tokens = batch.selection(numbers(selected, "selected", data.n_inputs, int))
    solved = [_solve_selection(batch[j], head[j], tokens[j], norm) for j in range(len(batch))]
    first = [f"problem {j}: {lines[0]}" for j, (_, lines) in enumerate(solved)]
    return [row for row, _ in solved], [[row] for row, _ in solved], first if data.is_batch else solved[0][1]


def _predictions(
    batch: ml.TokenDataset, head: FloatArray, run: LabProblem | None, start: str | None, output: Output
) -> list[Prediction]:
    """Return the prediction of each problem, for the run that the file describes, if any."""
    begin = None if start is None else batch.point(numbers(start, "start", batch.d_key), "start")
    options: dict[str, Any] = {}
    if run is not None:
        options = {"loss": run.loss, "optimizer": run.optimizer}
        begin = batch.point(run.start) if begin is None else begin
    predictions = []
    with output.stage("Solving") as bar:
        for j in range(len(batch)):
            first = None if begin is None else begin[j]
            predictions.append(ml.predict_limit(batch[j], head[j], start=first, **options))
            bar(j + 1, len(batch))
    return predictions


def _predicted_lines(predictions: list[Prediction], *, is_batch: bool) -> list[str]:
    if is_batch:
        answers = [prediction.answer for prediction in predictions]
        return [
            text("cli.solve.problem", index=j, end=answer.ends_at, proof=answer.proof)
            for j, answer in enumerate(answers)
        ]
    (prediction,) = predictions
    lines = [str(prediction)]
    for direction in _candidates(prediction)[:MAX_DIRECTIONS]:
        lines.append(f"{direction['kind']} of {direction['selected']}: direction {vector(direction['direction'])}")
    return lines


def _candidates(prediction: Prediction) -> list[dict[str, Any]]:
    """Return the directions that the limit may have, as figures take them."""
    candidates = prediction.candidates
    if candidates is None:
        return []
    columns = zip(candidates.labels, candidates.selections.tolist(), candidates.directions, strict=True)
    return [dict(zip(("kind", "selected", "direction"), column, strict=True)) for column in columns]


def _solve_selection(
    data: ml.TokenDataset, v: FloatArray, tokens: IntArray, norm: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Solve the ATT-SVM of one selection; return its numbers, and lines that begin with a summary."""
    if norm is None:
        optimality = ml.token_optimality(data, v, tokens)
        solution, summary = optimality.solution, str(optimality)
        row = {**optimality.to_dict(), "kind": selection_kind(optimality)}
    else:
        from marginlens.norms.choice import norm_named

        solution = ml.att_svm(data, tokens, norm=norm_named(norm))
        summary, row = str(solution), {"selected": tokens.tolist(), "kind": "max-margin"}
    bounds = solution.bracket()
    row |= {
        "solution": solution.to_dict(),
        "direction": solution.direction,
        "margin": solution.margin,
        "kkt_residual": solution.kkt_residual(),
        "certificate_residual": solution.certificate_residual(),
        "bracket": {**bounds._asdict(), "gap": bounds.gap},
        "is_unique": solution.is_unique,
    }
    lines = [summary, f"direction: {vector(solution.direction)}", solution.status.sentence]
    if solution.status is ml.Status.INFEASIBLE:
        lines.append(text("cli.solve.certificate", residual=row["certificate_residual"]))
    elif solution.status is not ml.Status.TRIVIAL:
        lines.append(text("cli.solve.bracket", **bounds._asdict(), gap=bounds.gap))
    if solution.is_unique is False:
        lines.append(text("cli.solve.not_unique"))
    return row, lines


def selection_kind(optimality: TokenOptimality) -> str:
    """Return GMM, LMM or neither, or none for tokens that no direction selects."""
    if not optimality.is_feasible:
        return "none"
    return "GMM" if optimality.is_globally_optimal else "LMM" if optimality.is_locally_optimal else "neither"


def sequence_answer(file: Path, problem: SequenceProblem, prediction: Prediction) -> tuple[dict[str, Any], list[str]]:
    """Return what paper C says about the sequences of a file: its numbers and its text."""
    named, names = problem.named, problem.named.vocabulary.quoted
    head = "C Eᵀ = I" if problem.head is None else "given"
    row, lines = prediction.to_dict(), [f"{file}: {named.data!r}, head: {head}", str(prediction)]
    targets = prediction.details.targets
    for sample in named.data.unrealizable[:1]:
        token = "no token" if targets[sample] < 0 else names[targets[sample]]
        lines.append(text("cli.solve.lacks_label", sample=int(sample), token=token))
    priority = prediction.details.priority
    if priority.status is ml.Status.INFEASIBLE:
        conflict = ml.svm.graph_conflict(priority)
        row["conflict"] = conflict.to_dict(named.vocabulary.shown)
        lines.append(conflict.describe(names))
    return row, lines
