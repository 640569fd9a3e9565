"""`marginlens solve` and `marginlens train` on sequences: the verdicts of paper C, and training W beside what they predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from marginlens.cli import _rows
from marginlens.cli._options import coordinates
from marginlens.cli._terminal import Bars, console, facts_table
from marginlens.cli.graph_answers import separability, size_of
from marginlens.data.files import SequenceProblem, read_sequence_problem
from marginlens.data.sequences import SequenceDataset, reject_unrealizable
from marginlens.data.tokens import FloatArray
from marginlens.directions import correlation
from marginlens.dynamics import Trajectory, descend
from marginlens.errors import positive_number, reject, whole_number
from marginlens.graphs import is_acyclic
from marginlens.nexttoken import (
    CrossEntropy,
    LogLoss,
    NextTokenAutomaton,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
    limit_risk,
)
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.risk import NextTokenRisk
from marginlens.svm import Status
from marginlens.theory import Prediction, predict_limit

N_STEPS, STEP_SIZE = 4000, 0.01  # of a normalised descent unless said otherwise, as in the paper's experiments
LOSSES: dict[str, NextTokenLoss] = {
    "log": LogLoss(),
    "squared": SquaredLoss(),
    "cross-entropy": CrossEntropy(),
    "squared-probability": SquaredProbability(),
}
_MATRIX = 64  # d_model up to which JSON holds whole matrices


def read(file: Path, *, drop: bool) -> SequenceProblem:
    """The sequences of a file and its head; samples without their label are dropped, kept where the file has a head, or refused."""
    if drop:
        return read_sequence_problem(file, unrealizable="drop")
    problem = read_sequence_problem(file, unrealizable="keep")
    data = problem.named.data
    if problem.head is None and len(data.unrealizable):
        remedy = 'Leave them out with --drop, or give a head "C" in the file.'
        raise reject_unrealizable(data.unrealizable, data.labels, remedy)
    return problem


# ---- solve


def solved(file: Path, *, drop: bool) -> dict[str, Any]:
    """What paper C says about the sequences of a file, as plain values."""
    problem = read(file, drop=drop)
    with Bars(console(stderr=True)) as bars:
        bars.bar("Solving Graph-SVM and the cyclic correction")
        prediction = predict_limit(problem.named.data, head=problem.head)
    return _row(file, problem, prediction)


def _row(file: Path, problem: SequenceProblem, prediction: Prediction) -> dict[str, Any]:
    data, graphs = problem.named.data, prediction.details.graphs
    small = data.d_model <= _MATRIX
    names = problem.named.vocabulary.shown
    lacking = data.unrealizable
    return {
        "file": str(file),
        "size": size_of(data),
        "head": "C Eᵀ = I" if problem.head is None else "given",
        "samples": len(data),
        "dropped": len(data.dropped),
        "unrealizable": [
            {
                "sample": int(i),
                "separated": None if prediction.details.targets[i] < 0 else names[int(prediction.details.targets[i])],
            }
            for i in lacking
        ],
        "last_tokens": len(graphs),
        "acyclic": is_acyclic(graphs),
        "separability": separability(problem.named, graphs, prediction.details.priority),
        "cyclic_correction": {
            "status": prediction.details.mix.status.name,
            "meaning": prediction.details.mix.status.value,
            "norm": float(np.linalg.norm(prediction.details.mix.x)),
        },
        "prediction": {
            "why": prediction.why,
            "theorems": _rows.theorem_rows(prediction.verdicts),
            "direction": prediction.direction if small else None,
            "path_direction": prediction.path_direction if small else None,
            "correction": prediction.details.correction if small else None,
        },
    }


def show_solved(row: dict[str, Any]) -> None:
    """Print what `solved` gives."""
    out = console()
    _show_problem(out, row)
    for line, indent in _rows.theorem_lines(row["prediction"]["theorems"]):
        out.print(Padding(Text(line), (0, 0, 0, indent)))
    out.print(row["prediction"]["why"], markup=False, style="bold")


def _show_problem(out: Console, row: dict[str, Any]) -> None:
    out.print(f"{row['file']}: {row['size']}, head: {row['head']}", markup=False)
    dropped = (
        f"{row['dropped']} sequences lack the token that follows them and are left out. " if row["dropped"] else ""
    )
    ties = "without ties" if row["acyclic"] else "with ties"
    out.print(f"{dropped}{row['last_tokens']} different last tokens, {ties}.", markup=False)
    if row["unrealizable"]:
        first = row["unrealizable"][0]
        token = "no token" if first["separated"] is None else f'"{first["separated"]}"'
        out.print(
            f"{len(row['unrealizable'])} sequences lack their label and are kept; the head separates {token} in sample "
            f"{first['sample']}.",
            markup=False,
        )
    separable = row["separability"]
    out.print(f"Graph-SVM: {separable['meaning']} {separable['proof']}", markup=False)
    if "conflict" in separable:
        out.print(separable["conflict"]["sentence"], markup=False)
    correction = row["cyclic_correction"]
    size = f" Its norm is {_rows.number(correction['norm'])}." if correction["status"] == "FINITE" else ""
    out.print(f"Cyclic correction: {correction['meaning']}{size}", markup=False)


# ---- train


@dataclass(frozen=True)
class Choices:
    """How to train, as objects."""

    n_steps: int
    step: GradientDescent | NormalizedGD
    loss_name: str
    start: FloatArray

    @property
    def loss(self) -> NextTokenLoss:
        """The loss of that name."""
        return LOSSES[self.loss_name]

    def to_dict(self) -> dict[str, Any]:
        """The choices as plain values."""
        return {
            "steps": self.n_steps,
            "step": "normalised" if isinstance(self.step, NormalizedGD) else "constant",
            "step_size": self.step.size,
            "loss": self.loss_name,
            "start": self.start if self.start.any() else "zero",
        }

    def __str__(self) -> str:
        begin = "the given W" if self.start.any() else "zero"
        normalised = isinstance(self.step, NormalizedGD)
        kind = "normalised steps of length" if normalised else "steps of plain gradient descent, η ="
        return f"{self.n_steps:,} {kind} {self.step.size:.4g}, {self.loss_name} loss, from {begin}"


def chosen(data: SequenceDataset, words: tuple[int | None, float | None, bool, str | None, str | None]) -> Choices:
    """The objects behind the words steps, step size (None: .01, or 1/L where constant), constant, loss and start."""
    steps, size, constant, loss, start = words
    n_steps = N_STEPS if steps is None else whole_number(steps, "steps", at_least=1)
    name = "log" if loss is None else loss.lower()
    if name not in LOSSES:
        raise reject("loss", f"one of {', '.join(LOSSES)} for sequences", repr(loss))
    if size is not None:
        positive_number(size, "step_size")
    elif constant:
        size = 1.0 / NextTokenRisk(data).smoothness()
    begin = np.zeros((data.d_model, data.d_model))
    if start is not None:
        numbers = np.array(coordinates(start))
        if len(numbers) != begin.size:
            raise reject("start", f"the {begin.size} entries of W for sequences, row by row", f"{len(numbers)} numbers")
        begin = data.weights(numbers.reshape(begin.shape), "start")
    rule = GradientDescent if constant else NormalizedGD
    return Choices(n_steps, rule(STEP_SIZE if size is None else size), name, begin)


def trained(file: Path, choices: Choices, problem: SequenceProblem) -> dict[str, Any]:
    """Descend on the sequences of a file, and put the trained W beside what paper C predicts, as plain values."""
    data, head = problem.named.data, problem.head
    with Bars(console(stderr=True)) as bars:
        options: dict[str, Any] = {"head": head, "loss": choices.loss, "optimizer": choices.step}
        run = descend(data, n_steps=choices.n_steps, start=choices.start, progress=bars.bar("Training"), **options)
        bars.bar("Predicting")
        prediction = predict_limit(data, **options)
    row = _row(file, problem, prediction)
    return {**row, "training": choices.to_dict(), "trained": _compared(problem, choices, run, prediction)}


def _compared(problem: SequenceProblem, choices: Choices, run: Trajectory, prediction: Prediction) -> dict[str, Any]:
    """The trained W beside W^mm, W^cyc and the automaton, each where there is one."""
    data, W = problem.named.data, run.final
    attention = data.attention(W)
    targets = prediction.details.targets
    on_target = np.add.reduceat(
        np.where(data.tokens == np.repeat(targets, data.lengths), attention, 0.0), data.offsets[:-1]
    )
    counted = targets >= 0
    row: dict[str, Any] = {
        "status": run.status.name,
        "steps_taken": int(run.steps_taken),
        "norm": float(run.norm),
        "W": W if data.d_model <= _MATRIX else None,
        "risk": NextTokenRisk(data, head=problem.head, loss=choices.loss).value(W),
        "limit_risk": None,
        "selected_share": float(np.mean(on_target[counted] > 0.5)),
        "smallest_attention": float(on_target[counted].min()),
        "correlation": None,
        "cyclic_distance": None,
        "cyclic_norm": None,
        "total_variation": None,
    }
    priority, mix = prediction.details.priority, prediction.details.mix
    if priority.status is Status.OPTIMAL and run.norm > 0.0:
        row["correlation"] = float(correlation(W, priority.x, axes=2))
    if mix.status is Status.FINITE:
        inside = mix.subspace.project(W)
        row["cyclic_distance"] = float(np.linalg.norm(inside - mix.x))
        row["cyclic_norm"] = float(np.linalg.norm(mix.x))
    has_automaton = priority.status in (Status.OPTIMAL, Status.TRIVIAL) and mix.status in (
        Status.FINITE,
        Status.TRIVIAL,
    )
    if has_automaton and problem.head is None and isinstance(choices.loss, LogLoss):
        row["limit_risk"] = limit_risk(data)
        distance = NextTokenAutomaton(data.E, prediction.details.graphs, priority, mix, data).total_variation(data, W)
        row["total_variation"] = {"mean": float(distance.mean()), "largest": float(distance.max())}
    return row


def show_trained(row: dict[str, Any], choices: Choices) -> None:
    """Print what `trained` gives."""
    out = console()
    _show_problem(out, row)
    out.print(str(choices), markup=False)
    trained = row["trained"]
    limit = "" if trained["limit_risk"] is None else f", {trained['limit_risk']:.6g} in the limit"
    facts = {
        "norm": _rows.number(trained["norm"]),
        "risk": f"{_rows.number(trained['risk'])}{limit}",
        "attention": f"more than half on the label in {trained['selected_share']:.1%} of the sequences, "
        f"at least {_rows.number(trained['smallest_attention'])} on every label",
        "ended": f"{Status[trained['status']].value} ({trained['steps_taken']:,} steps)",
    }
    out.print(facts_table("Trained", facts))
    beside: dict[str, str] = {}
    if trained["correlation"] is not None:
        beside["cosine with W^mm"] = f"{trained['correlation']:.6f}"
    if trained["cyclic_distance"] is not None:
        beside["distance from W^cyc in S_cyc"] = (
            f"{_rows.number(trained['cyclic_distance'])}, where W^cyc has norm {_rows.number(trained['cyclic_norm'])}"
        )
    if trained["total_variation"] is not None:
        mean, largest = (_rows.number(trained["total_variation"][name]) for name in ("mean", "largest"))
        beside["total variation to the automaton"] = f"{mean} on average, at most {largest}"
    if beside:
        out.print(facts_table("Beside the prediction", beside))
    else:
        out.print("There is no W^mm, W^cyc or automaton to compare with.", markup=False)
    out.print(row["prediction"]["why"], markup=False, style="bold")
    if isinstance(choices.step, NormalizedGD) and _only_steps_are_missing(row):
        out.print(
            "With --constant the steps are those of C Thm 3, and the limit is certain; it is approached far more slowly.",
            markup=False,
        )


def _only_steps_are_missing(row: dict[str, Any]) -> bool:
    """Whether C Thm 3, or what follows of it from Eq. (17), fails by the kind of step alone."""
    failing = [
        [one["name"] for one in theorem["conditions"] if not one["holds"]]
        for theorem in row["prediction"]["theorems"]
        if theorem["label"].startswith("C Thm 3")
    ]
    return ["step size"] in failing
