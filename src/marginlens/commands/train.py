"""`marginlens train`: descend on a problem in a file, and hold the trained direction against the theory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from marginlens.commands.endings import one_sentence
from marginlens.commands.options import LOSSES, AsJson, PlotPlace, ProblemFile, coordinates, loss_named

_LEGS = 40  # parts of a long run, between which the progress bar moves
_SHORT = 2000  # steps that are taken in one leg


def train(
    file: ProblemFile,
    steps: Annotated[int, typer.Option(metavar="N", help="How many steps to take.")] = 1000,
    step_size: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Length of a step; with --constant the factor of the gradient.", show_default="1"
        ),
    ] = None,
    constant: Annotated[
        bool, typer.Option("--constant", help="Plain gradient descent; its step size is 1/L_p unless given.")
    ] = False,
    loss: Annotated[str, typer.Option(metavar="LOSS", help=f"One of {', '.join(LOSSES)}.")] = "logistic",
    start: Annotated[
        str | None,
        typer.Option(metavar="0.5,-1", help="Where p starts, one number per coordinate.", show_default="zero"),
    ] = None,
    as_json: AsJson = False,
    plot: PlotPlace = None,
) -> None:
    """Train the attention weights, and compare where they went with the max-margin theory.

    Steps are normalised (every step has the same length) unless --constant is given.
    """
    with one_sentence():
        from marginlens.commands import answers
        from marginlens.data import read_problem

        data, v = read_problem(file)
        if plot is not None:
            from marginlens.commands.plane import check_plot

            check_plot(data, plot)
        choices = _choices(data, v, (steps, step_size, constant, loss, start))
        run, paths = _descended(data, v, choices, keep_path=plot is not None)
        problems = _compared(data, v, choices, run)
        if plot is not None:
            from marginlens.commands.plane import draw_problems
            from marginlens.theory import globally_optimal_direction

            best = answers.solution_rows(globally_optimal_direction(data.as_batch(), v))
            drawn = [[gmm, one["solution"]] for gmm, one in zip(best, problems, strict=True)]
            draw_problems(plot, data, v, drawn, paths)
        if as_json:
            told = {"file": str(file), "size": answers.size_of(data), "training": choices.told(), "problems": problems}
            typer.echo(answers.as_json(told))
        else:
            _show(file, data, choices, problems, plot)


@dataclass(frozen=True)
class _Choices:
    """How to train, as objects."""

    n_steps: int
    step: Any
    loss: Any
    start: Any

    def told(self) -> dict[str, Any]:
        """The choices as plain values."""
        from marginlens.dynamics import NormalizedStep

        return {
            "steps": self.n_steps,
            "step": "normalised" if isinstance(self.step, NormalizedStep) else "constant",
            "step_size": self.step.size,
            "loss": type(self.loss).__name__.lower(),
            "start": self.start,
        }

    def __str__(self) -> str:
        from marginlens.commands.answers import vector

        told = self.told()
        begin = vector(self.start) if np.any(self.start) else "zero"
        kind = "normalised steps of length" if told["step"] == "normalised" else "steps of plain gradient descent, η ="
        return f"{self.n_steps:,} {kind} {self.step.size:.4g}, {told['loss']} loss, from {begin}"


def _choices(data: Any, v: Any, words: tuple[int, float | None, bool, str, str | None]) -> _Choices:
    from marginlens.dynamics import ConstantStep, NormalizedStep
    from marginlens.errors import positive_number, whole_number
    from marginlens.theory import smoothness

    steps, size, constant, loss_name, start = words
    n_steps, loss = whole_number(steps, "steps", at_least=1), loss_named(loss_name)
    begin = np.zeros(data.d_key) if start is None else np.array(data.as_batch().point(coordinates(start), "start")[0])
    if size is not None:
        positive_number(size, "step_size")
    elif constant:
        largest = float(np.min(smoothness(data, v, loss).largest_step))  # what the theorems allow for every problem
        size = largest if np.isfinite(largest) else 1.0
    step = ConstantStep(size or 1.0) if constant else NormalizedStep(size or 1.0)
    return _Choices(n_steps, step, loss, begin)


def _descended(data: Any, v: Any, choices: _Choices, *, keep_path: bool) -> tuple[Any, Any]:
    """The finished run of every problem, leg by leg, and its path (batch, n_kept, d_key) where one is to be drawn."""
    from marginlens.dynamics import DescentStatus, Record, descend
    from marginlens.experiments.drawing import steps_to_keep
    from marginlens.report.terminal import Bars, console

    batch, n_steps = data.as_batch(), choices.n_steps
    ends = np.unique(np.linspace(0, n_steps, 1 + (_LEGS if n_steps > _SHORT else 1)).astype(int))
    kept = np.array(steps_to_keep(n_steps)) if keep_path else np.empty(0, dtype=int)
    point, parts, run = choices.start, [], None
    taken = np.zeros(len(batch), dtype=np.int64)
    with Bars(console(stderr=True)) as bars:
        bar = bars.bar("Training")
        bar.expect(n_steps)
        for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            inside = kept[(kept >= begin) & (kept < end)] - begin
            run = descend(
                batch,
                v,
                loss=choices.loss,
                step=choices.step,
                n_steps=end - begin,
                start=point,
                record=Record(inside.tolist()) if keep_path else None,
            )
            point, taken = run.final, taken + run.steps_taken
            if keep_path:
                parts.append(run.saved["p"])
            bar.advance(end - begin)
            if not np.any(run.status == DescentStatus.COMPLETED):
                break
    if run is None:
        raise RuntimeError("a run has at least one leg")
    paths = np.concatenate([*parts, run.final[:, None]], axis=1) if keep_path else None
    return replace(run, steps_taken=taken), paths


def _compared(data: Any, v: Any, choices: _Choices, run: Any) -> list[dict[str, Any]]:
    """One row per problem: where training went, the ATT-SVM of what it selected, and what was predicted."""
    from marginlens.commands import answers
    from marginlens.directions import angle, correlation, unit
    from marginlens.theory import token_optimality

    batch = data.as_batch()
    head = batch.head(v)
    solutions = answers.solution_rows(token_optimality(batch, v, run.selected))
    chosen = np.take_along_axis(run.attention, run.selected[..., None], axis=-1)[..., 0]  # (batch, n_inputs)
    rows = []
    for j, (solution, prediction) in enumerate(zip(solutions, _predicted(batch, head, choices), strict=True)):
        final = run.final[j]
        predicted = None if prediction.direction is None else correlation(final, prediction.direction)
        rows.append(
            {
                "problem": j,
                "direction": unit(final),
                "norm": run.norm[j],
                "selected": run.selected[j],
                "probabilities": chosen[j],
                "smallest_probability": chosen[j].min(),
                "status": run.status[j].name,
                "steps_taken": run.steps_taken[j],
                "solution": solution,
                "correlation": correlation(final, solution["direction"]),
                "angle": angle(final, solution["direction"]),
                "prediction": answers.prediction_row(prediction),
                "correlation_with_prediction": predicted,
                "agreement": _agreement(solution, correlation(final, solution["direction"]), predicted),
            }
        )
    return rows


def _predicted(batch: Any, head: Any, choices: _Choices) -> list[Any]:
    """The prediction for each problem; the trained tokens are the one candidate that matters here, so none is enumerated."""
    from marginlens.report.terminal import Bars, console
    from marginlens.theory import predict_limit

    found = []
    with Bars(console(stderr=True)) as bars:
        bar = bars.bar("Predicting")
        bar.expect(len(batch))
        for j in range(len(batch)):
            told = {"loss": choices.loss, "start": choices.start, "step": choices.step}
            found.append(predict_limit(batch[j], head[j], **told, limit=1))
            bar.advance()
    return found


def _agreement(solution: dict[str, Any], reached: float, predicted: float | None) -> str:
    """How training and theory compare, in one sentence."""
    if solution["status"] == "TRIVIAL":
        return "No input has two tokens, so there is nothing to select."
    if predicted is not None and not np.isnan(predicted):
        return f"The limit is certain, and the trained direction has cosine {predicted:.6f} with it."
    if solution["kind"] == "none":
        return "The softmax prefers no single token of every input, so there is no direction to compare with."
    if np.isnan(reached):
        return "The weights never left zero, so there is no direction to compare with."
    if solution["kind"] in ("GMM", "LMM"):
        which = "the GMM" if solution["kind"] == "GMM" else "an LMM"
        return (
            "No theorem makes the limit of this run certain; it selects the tokens of "
            f"{which}, and has cosine {reached:.6f} with its direction."
        )
    return (
        "The selected tokens do not outscore their neighbours, so no theorem has their direction as a limit: "
        "the run ends at a finite minimum, or later changes tokens."
    )


# ---- the terminal


def _show(file: Path, data: Any, choices: _Choices, problems: list[dict[str, Any]], plot: Path | None) -> None:
    from marginlens.commands import answers
    from marginlens.report.terminal import console, rows_table

    out = console()
    out.print(f"{file}: {answers.size_of(data)}", markup=False)
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


def _show_one(out: Any, row: dict[str, Any]) -> None:
    from marginlens.commands import answers
    from marginlens.dynamics import DescentStatus
    from marginlens.report.terminal import facts_table
    from marginlens.svm import Status

    solution = row["solution"]
    trained = {
        "direction": answers.vector(row["direction"]),
        "norm": answers.number(row["norm"]),
        "selects": answers.selection(row["selected"]),
        "probability": f"at least {row['smallest_probability']:.6g} for every selected token",
        "ended": f"{DescentStatus[row['status']].value} ({row['steps_taken']:,} steps)",
    }
    out.print(facts_table("Trained", trained))
    kinds = {"GMM": "globally optimal (GMM)", "LMM": "locally optimal (LMM)", "neither": "not locally optimal"}
    tied = ", tied with a neighbour" if solution["kind"] == "GMM" and solution["score_gap"] == 0.0 else ""
    margin = {
        "direction": answers.vector(solution["direction"]),
        "margin": answers.number(solution["margin"]),
        "these tokens are": kinds.get(solution["kind"], "selected by no direction") + tied,
        "score gap": answers.number(solution["score_gap"]),
        "status": f"{Status[solution['status']].value} ({answers.proof(solution)})",
        "cosine": "–" if np.isnan(row["correlation"]) else _closeness(row),
    }
    out.print(facts_table("The ATT-SVM of what it selects", margin))
    out.print(row["agreement"], style="bold")
    out.print(row["prediction"]["why"], markup=False)


def _closeness(row: dict[str, Any]) -> str:
    return f"{row['correlation']:.8f} with the trained direction, an angle of {row['angle']:.2e}"


def _cells(problems: list[dict[str, Any]]) -> list[dict[str, Any]]:
    from marginlens.commands import answers

    rows = []
    for row in problems:
        solution, predicted = row["solution"], row["correlation_with_prediction"]
        cells = {
            "problem": row["problem"],
            "selects": answers.selection(row["selected"]),
            "kind": solution["kind"],
            "norm": answers.number(row["norm"]),
            "probability": answers.number(row["smallest_probability"]),
            "cosine": "–" if np.isnan(row["correlation"]) else f"{row['correlation']:.6f}",
            "score gap": answers.number(solution["score_gap"]),
            "residual": answers.proof(solution),
            "certain": "no" if predicted is None else f"yes: {predicted:.6f}",
        }
        if any(one["status"] != "COMPLETED" for one in problems):
            cells["ended"] = row["status"].lower().replace("_", "-")
        rows.append(cells)
    return rows
