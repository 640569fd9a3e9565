"""One training run from the command line: the choices as objects, the descent, and what the theory says to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.cli import _rows
from marginlens.cli._options import coordinates, loss_named
from marginlens.cli._terminal import Bars, console
from marginlens.data import TokenDataset
from marginlens.data.tokens import FloatArray
from marginlens.directions import angle, correlation, unit
from marginlens.dynamics import Record, Trajectory, descend
from marginlens.errors import positive_number, reject, whole_number
from marginlens.losses.margin import Loss
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.plotting import recorded_steps
from marginlens.status import Status
from marginlens.theory import Prediction, predict_limit, smoothness, token_optimality


@dataclass(frozen=True)
class Choices:
    """How to train, as objects."""

    n_steps: int
    step: GradientDescent | NormalizedGD
    loss: Loss
    start: FloatArray

    def told(self) -> dict[str, Any]:
        """The choices as plain values."""
        return {
            "steps": self.n_steps,
            "step": "normalised" if isinstance(self.step, NormalizedGD) else "constant",
            "step_size": self.step.size,
            "loss": type(self.loss).__name__.removesuffix("Loss").lower(),
            "start": self.start,
        }

    def __str__(self) -> str:
        told = self.told()
        begin = _rows.vector(self.start) if np.any(self.start) else "zero"
        kind = "normalised steps of length" if told["step"] == "normalised" else "steps of plain gradient descent, η ="
        return f"{self.n_steps:,} {kind} {self.step.size:.4g}, {told['loss']} loss, from {begin}"


def chosen(data: TokenDataset, v: FloatArray, words: tuple[int, float | None, bool, str, str | None]) -> Choices:
    """The objects behind the words steps, step size (None: 1, or 1/L_p where constant), constant, loss and start."""
    steps, size, constant, loss_name, start = words
    n_steps, loss = whole_number(steps, "steps", at_least=1), loss_named(loss_name)
    begin = np.zeros(data.d_key) if start is None else np.array(data.as_batch().point(coordinates(start), "start")[0])
    if size is not None:
        positive_number(size, "step_size")
    elif constant:
        largest = float(np.min(smoothness(data, v, loss).largest_step))  # what the theorems allow for every problem
        if largest == 0.0:
            raise reject("step_size", "given for keys so large that 1/L_p is below the range of numbers", "none")
        size = largest if np.isfinite(largest) else 1.0
    rule = GradientDescent if constant else NormalizedGD
    return Choices(n_steps, rule(1.0 if size is None else size), loss, begin)


def descended(
    data: TokenDataset, v: FloatArray, choices: Choices, *, keep_path: bool
) -> tuple[Trajectory, FloatArray | None]:
    """The finished run of every problem, and its path (batch, n_kept, d_key) where one is to be drawn."""
    with Bars(console(stderr=True)) as bars:
        run = descend(
            data.as_batch(),
            v,
            loss=choices.loss,
            optimizer=choices.step,
            n_steps=choices.n_steps,
            start=choices.start,
            record=Record(recorded_steps(choices.n_steps)) if keep_path else None,
            progress=bars.bar("Training"),
        )
    return run, run.saved["x"] if keep_path else None


def compared(data: TokenDataset, v: FloatArray, choices: Choices, run: Trajectory) -> list[dict[str, Any]]:
    """One row per problem: where training went, the ATT-SVM of what it selected, and what was predicted."""
    batch = data.as_batch()
    head = batch.head(v)
    solutions = _rows.solution_rows(token_optimality(batch, v, run.selected))
    weight = np.take_along_axis(run.attention, run.selected[..., None], axis=-1)[..., 0]  # (batch, n_inputs)
    rows = []
    for j, (solution, prediction) in enumerate(zip(solutions, _predicted(batch, head, choices), strict=True)):
        final = run.final[j]
        predicted = None if prediction.direction is None else correlation(final, prediction.direction)
        observed = None if prediction.observed is None else correlation(final, prediction.observed)
        agreement = _agreement(
            solution, Cosines(correlation(final, solution["direction"]), predicted, observed), run.status[j]
        )
        rows.append(
            {
                "problem": j,
                "direction": unit(final),
                "norm": run.norm[j],
                "selected": run.selected[j],
                "probabilities": weight[j],
                "smallest_probability": weight[j].min(),
                "status": run.status[j].name,
                "steps_taken": run.steps_taken[j],
                "solution": solution,
                "correlation": correlation(final, solution["direction"]),
                "angle": angle(final, solution["direction"]),
                "prediction": _rows.prediction_row(prediction),
                "correlation_with_prediction": predicted,
                "correlation_with_observed": observed,
                "agreement": agreement,
                "advice": _advice(choices, prediction),
            }
        )
    return rows


def _predicted(batch: TokenDataset, head: FloatArray, choices: Choices) -> list[Prediction]:
    """The prediction for each problem; the trained tokens are the one candidate that matters here, so none is enumerated."""
    found = []
    with Bars(console(stderr=True)) as bars:
        bar = bars.bar("Predicting")
        bar.expect(len(batch))
        for j in range(len(batch)):
            one = predict_limit(
                batch[j], head[j], loss=choices.loss, start=choices.start, optimizer=choices.step, max_problems=1
            )
            found.append(one)
            bar.advance()
    return found


class Cosines(NamedTuple):
    """Of the trained direction with the ATT-SVM of what it selects, with a limit that is certain and with one that was observed."""

    reached: float
    certain: float | None
    observed: float | None


def _advice(choices: Choices, prediction: Prediction) -> str:
    """What to change in the command for a limit that is certain, or nothing."""
    if prediction.observed is None or not isinstance(choices.step, NormalizedGD):
        return ""
    return "With --constant the steps are those of the theorem, and the limit is certain; it is then approached far more slowly."


def _agreement(solution: dict[str, Any], cosines: Cosines, ending: Status) -> str:
    """How training and theory compare, in one sentence."""
    reached, certain, observed = cosines
    if solution["status"] == "TRIVIAL":
        return "No input has two tokens, so there is nothing to select."
    if certain is not None and not np.isnan(certain):
        return f"The limit is certain, and the trained direction has cosine {certain:.6f} with it."
    if observed is not None and not np.isnan(observed):
        return f"The trained direction has cosine {observed:.6f} with the limit that is observed, not proved, for such steps."
    if solution["kind"] == "none":
        return "The softmax prefers no single token of every input, so there is no direction to compare with."
    if np.isnan(reached) and ending is Status.NON_FINITE:
        return "The first step left what numbers can hold, so there is no direction to compare with; a smaller step size helps."
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
