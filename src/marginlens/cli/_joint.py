"""Problems in which head and attention are trained together, as the lab saves them: what solve and train say of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import marginlens as ml
from marginlens.cli import _rows
from marginlens.cli._terminal import bold, facts_table, stage

if TYPE_CHECKING:
    from marginlens.lab import LabProblem


_TRAINED = (
    "v={head:vector}, p={p:vector}, selects={selected:selection}, cosine of v with v^mm={correlation_of_head:.8f}, "
    "cosine of p with p^relax={correlation_of_p:.8f}, ended={self:ending}"
)


def solve_joint(file: Path, problem: LabProblem) -> dict[str, Any]:
    """What A Theorems 5 and 6 say of a problem, and the directions of head and attention."""
    prediction = ml.predict(problem.risk)
    details = prediction.details
    limits = {
        "selected": details.selected,
        "support": details.support,
        "head_direction": details.v_direction,
        "relaxed_direction": details.p_relax.direction,
        "margin_direction": details.p_mm.direction,
    }
    size = _rows.size_of(problem.data)
    return {"file": str(file), "size": size, "prediction": _rows.prediction_row(prediction), "limits": limits}


def train_joint(file: Path, problem: LabProblem) -> dict[str, Any]:
    """The prediction of `solve_joint` with the run of the problem beside it."""
    row = solve_joint(file, problem)
    risk: Any = problem.risk
    steps: dict[str, Any] = {"n_steps": problem.n_steps, "start": problem.first_point}
    with stage("Training") as bar:
        run = ml.descend(risk, optimizer=problem.optimizer, **steps, progress=bar)
    head, p = risk.split(run.final)
    limits = row["limits"]
    trained = {
        "status": run.status.name,
        "steps_taken": int(run.steps_taken),
        "head": head,
        "p": p,
        "selected": run.selected,
        "correlation_of_head": ml.correlation(head, limits["head_direction"]),
        "correlation_of_p": ml.correlation(p, limits["relaxed_direction"]),
        "correlation_of_p_with_the_margin": ml.correlation(p, limits["margin_direction"]),
    }
    training = {
        "steps": problem.n_steps,
        "optimizer": repr(problem.optimizer),
        "loss": type(problem.loss).__name__,
        "start": problem.start,
        "start_head": problem.start_head,
    }
    return {**row, "training": training, "trained": trained}


def joint_text(row: dict[str, Any]) -> Iterator[Any]:
    """What `solve_joint` or `train_joint` gave, for the terminal."""
    limits = row["limits"]
    yield f"{row['file']}: {row['size']}; head and attention are trained together"
    supporting = [str(i) for i, supports in enumerate(limits["support"]) if supports]
    facts = {
        "tokens with the largest label margin": _rows.selection(limits["selected"]),
        "inputs that support the head": ", ".join(supporting) or "none",
        "direction of the head, v^mm": _rows.vector(limits["head_direction"]),
        "direction of p, p^relax": _rows.vector(limits["relaxed_direction"]),
        "with a margin for every input, p^mm": _rows.vector(limits["margin_direction"]),
    }
    if "trained" not in row:
        yield from _rows.outcome_text(row["prediction"]["outcome"])
    yield facts_table("Where the joint path goes", facts)
    if "trained" not in row:
        yield from _rows.theorem_text(row["prediction"])
        return
    yield facts_table(f"Trained by {row['training']['optimizer']}", _rows.cells(row["trained"], _TRAINED))
    yield bold(row["prediction"]["why"])
