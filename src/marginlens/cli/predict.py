"""`marginlens predict`: which tokens win in a problem in a file, and its max-margin directions with proofs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import marginlens as ml
from marginlens.cli.options import (
    LISTED_NORMS,
    AsJson,
    Details,
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

Selected = Annotated[
    str | None, typer.Option(help="Token of each input, such as 0,1,2: solve only their margin problem.")
]
Start = Annotated[str | None, typer.Option(help="Point where training will start, such as 0.5,-1; zero by default.")]
SolvedNorm = Annotated[
    str | None,
    typer.Option(
        help="Norm, such as l-inf or l3: solve only the margin problem of --selected, or else of the highest-scoring tokens, in it.",
        autocompletion=words_of(*LISTED_NORMS),
    ),
]
# Directions that are printed; JSON has all.
MAX_DIRECTIONS = 10


def predict(
    file: ProblemFile,
    selected: Selected = None,
    start: Start = None,
    norm: SolvedNorm = None,
    details: Details = False,
    drop: DropUnrealizable = False,
    plot: PlotFile = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict which tokens win, why, and whether that is proved.

    With --details, print also which theorems apply, condition by condition, and the max-margin directions: the best one, GMM, of
    the highest-scoring tokens, and the local ones, LMM, of tokens that outscore their neighbours. If several tokens of an input
    share its highest score, G^mm are the directions that select one of them with the largest margin.

    Training is followed as gradient flow. A problem saved by the lab is predicted for its own start, loss and optimizer; if its
    head is trained too, A Thms 5 and 6 are used. A file of sequences is a next-token problem, predicted by C Thms 1 to 3.

    Descent in another norm, such as sign descent in l-inf, heads for that norm's margin: --norm solves this problem, with
    bounds that prove the solution.

    \b
    Examples:
      marginlens predict problem.npz
      marginlens predict problem.npz --details
      marginlens predict problem.npz --start 0.5,-1 --plot directions.svg
      marginlens predict problem.npz --selected 0,1,2 --norm l-inf
      marginlens predict sequences.json --drop --json
    """
    from marginlens.data.files import holds_sequences

    output = Output(as_json, quiet)
    hint = [] if details else [text("cli.details")]
    if holds_sequences(file):
        refuse_options("for a file of sequences", selected=selected, start=start, norm=norm, plot=plot)
        sequences = read_sequence_problem(file, drop=drop)
        with output.stage("Predicting"):
            prediction = ml.predict_limit(sequences.named.data, head=sequences.head)
        row, lines = sequence_answer(file, sequences, prediction, details=details)
        output.show(row, [*lines, *hint])
        return
    refuse_options("unless the file holds sequences", drop=drop)
    data, v, run = read_token_problem(file)
    if v is None:
        refuse_options("if the head is trained too", selected=selected, start=start, norm=norm, plot=plot)
        assert run is not None
        prediction = ml.predict(run.risk)
        lines = [str(prediction), f"{file}: {run!r}"] if details else [str(prediction.answer), *hint]
        output.show(prediction, lines)
        return
    if plot is not None:
        from marginlens.plotting.plane import check_plot

        check_plot(data, plot)
    if norm is None and selected is None:
        rows, drawn, lines = _predicted(data, v, run, start, output, details=details)
    else:
        refuse_options("if selected or norm is given, which predict nothing", start=start)
        rows, drawn, lines = _solved(data, v, selected, norm, details=details)
        hint = []
    if plot is not None:
        _draw(plot, data, v, drawn)
    output.show({"problems": rows}, [*lines, *(hint or [f"{file}: {data!r}"])], [plot])


# For each problem its numbers and what figures draw; and the text.
Answer = tuple[list[dict[str, Any]], list[list[dict[str, Any]]], list[str]]


def _draw(plot: Path, data: ml.TokenDataset, v: FloatArray, drawn: list[list[dict[str, Any]]]) -> None:
    """Write the picture of the problems, each with some directions."""
    from marginlens.plotting.files import write_figure
    from marginlens.plotting.plane import problem_figure

    write_figure(plot, problem_figure(data, v, drawn))


def _predicted(
    data: ml.TokenDataset, v: FloatArray, run: LabProblem | None, start: str | None, output: Output, *, details: bool
) -> Answer:
    """Return the predictions of the problems of a file."""
    batch = data.as_batch()
    predictions = _predictions(batch, batch.head(v), run, start, output)
    rows, drawn = [one.to_dict() for one in predictions], [_candidates(one) for one in predictions]
    lines = []
    for j, prediction in enumerate(predictions):
        if data.is_batch:
            lines.append(problem_line(j, prediction))
        if details:
            lines += [str(prediction), *_directions(drawn[j])]
        elif not data.is_batch:
            lines.append(str(prediction.answer))
    return rows, drawn, lines


def problem_line(index: int, prediction: Prediction) -> str:
    """Return the line for one problem of a batch."""
    answer = prediction.answer
    return text("cli.predict.problem", index=index, end=answer.ends_at, proof=answer.proof)


def _solved(data: ml.TokenDataset, v: FloatArray, selected: str | None, norm: str | None, *, details: bool) -> Answer:
    """Solve the ATT-SVMs of the selected, or else the highest-scoring, tokens of the problems of a file."""
    batch = data.as_batch()
    head = batch.head(v)
    tokens = batch.optimal(head)
    if selected is not None:
        tokens = batch.selection(numbers(selected, "selected", data.n_inputs, int))
    solved = [_solve_selection(batch[j], head[j], tokens[j], norm) for j in range(len(batch))]
    shown = solved[0][1]
    if data.is_batch:
        shown = [
            f"problem {j}: {line}" for j, (_, lines) in enumerate(solved) for line in lines[: None if details else 1]
        ]
    return [row for row, _ in solved], [[row] for row, _ in solved], shown


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
    with output.stage("Predicting") as bar:
        for j in range(len(batch)):
            first = None if begin is None else begin[j]
            predictions.append(ml.predict_limit(batch[j], head[j], start=first, **options))
            bar(j + 1, len(batch))
    return predictions


def _directions(candidates: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of the first directions."""
    return [
        f"{text('direction.kind', case=one['kind'])}: tokens {one['selected']}, direction {vector(one['direction'])}"
        for one in candidates[:MAX_DIRECTIONS]
    ]


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
        lines.append(text("cli.predict.certificate", residual=row["certificate_residual"]))
    elif solution.status is not ml.Status.TRIVIAL:
        lines.append(text("cli.predict.bracket", **bounds._asdict(), gap=bounds.gap))
    if solution.is_unique is False:
        lines.append(text("cli.predict.not_unique"))
    return row, lines


def selection_kind(optimality: TokenOptimality) -> str:
    """Return GMM, LMM or neither, or none for tokens that no direction selects."""
    if not optimality.is_feasible:
        return "none"
    return "GMM" if optimality.is_globally_optimal else "LMM" if optimality.is_locally_optimal else "neither"


def sequence_answer(
    file: Path, problem: SequenceProblem, prediction: Prediction, *, details: bool
) -> tuple[dict[str, Any], list[str]]:
    """Return what paper C says about the sequences of a file: its numbers and its text."""
    named, names = problem.named, problem.named.vocabulary.quoted
    row, lines = prediction.to_dict(), [str(prediction.answer)]
    if details:
        head = "C Eᵀ = I" if problem.head is None else "given"
        lines = [str(prediction), f"{file}: {named.data!r}, head: {head}"]
    targets = prediction.details.targets
    for sample in named.data.unrealizable[:1]:
        token = "no token" if targets[sample] < 0 else names[targets[sample]]
        lines.append(text("cli.predict.lacks_label", sample=int(sample), token=token))
    priority = prediction.details.priority
    if priority.status is ml.Status.INFEASIBLE:
        conflict = ml.svm.graph_conflict(priority)
        row["conflict"] = conflict.to_dict(named.vocabulary.shown)
        lines.append(conflict.describe(names))
    return row, lines
