"""Results as plain rows: the same numbers for JSON and for the terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import marginlens as ml
from marginlens.cli._terminal import bold, facts_table, indented, stage
from marginlens.errors import calling
from marginlens.result import counted, jsonable
from marginlens.result.quantities import Lines
from marginlens.status import Status
from marginlens.typing import ArrayLike

if TYPE_CHECKING:
    from marginlens.data.files import SequenceProblem
    from marginlens.data.vocabulary import NamedSequences
    from marginlens.graphs import PriorityGraph
    from marginlens.lab import LabProblem
    from marginlens.svm import GraphSolution
    from marginlens.theory import Prediction, TokenOptimality

_COORDINATES = 4  # of a direction that the terminal shows
_LARGE_ENTRY = 1e6  # from which on entries have a power of ten
_TOKENS = 7  # of a selection that the terminal shows
MAX_MATRIX = 64  # d_model up to which JSON holds whole matrices
_JOINT_COLUMNS = (
    "v={head:vector}, p={p:vector}, selects={selected:selection}, cosine of v with v^mm={correlation_of_head:.8f}, "
    "cosine of p with p^relax={correlation_of_p:.8f}, ended={self:ending}"
)


def as_json(answer: Any) -> str:
    """`answer` as JSON in which every number is finite; what is not becomes null. Where it is printed in UTF-8, so are its signs."""
    escaped = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    return json.dumps(jsonable(answer), indent=2, allow_nan=False, ensure_ascii=escaped)


def size_of(data: ml.TokenDataset | ml.SequenceDataset) -> str:
    """The size of a dataset in words."""
    if isinstance(data, ml.SequenceDataset):
        upto = "" if np.ptp(data.lengths) == 0 else "up to "
        return sequences_size(len(data), f"{upto}{int(data.lengths.max())}", data.n_vocabulary, data.d_model)
    problems = f"{counted(len(data), 'problem')} of " if data.is_batch else ""
    upto = "" if data.mask.all() else "up to "
    inputs, tokens = counted(data.n_inputs, "input"), counted(data.n_tokens, "token")
    return f"{problems}{inputs} with {upto}{tokens}, d_model = {data.d_model}, d_key = {data.d_key}"


def sequences_size(count: int, length: str, n_vocabulary: int, d_model: int) -> str:
    """The size of a dataset of sequences in words."""
    return f"{counted(count, 'sequence')} of {length} over {counted(n_vocabulary, 'token')}, d_model = {d_model}"


# ---- token selection


def solution_rows(found: TokenOptimality) -> list[dict[str, Any]]:
    """One row per ATT-SVM of a batch of selections: what it selects, its direction, and the proof that it is right."""
    rows = []
    for j, selected in enumerate(found.selected):
        kind = "GMM" if found.is_globally_optimal[j] else "LMM" if found.is_locally_optimal[j] else "neither"
        kind = kind if found.is_feasible[j] else "none"
        rows.append(_solution_row(kind, selected, found.solution[j], found.score_gap[j]))
    return rows


def _solution_row(kind: str, selected: Any, solution: ml.MarginSolution, score_gap: float) -> dict[str, Any]:
    return {
        "kind": kind,
        "selected": selected,
        "direction": solution.direction,
        "margin": solution.margin,
        "score_gap": score_gap,
        "status": solution.status.name,
        "kkt_residual": solution.kkt_residual(),
        "certificate_residual": solution.certificate_residual(),
        "proof": _proof(solution),
    }


def norm_rows(solution: ml.MarginSolution, selected: Any) -> list[dict[str, Any]]:
    """One row per ATT-SVM of a batch in a norm, with the bounds that prove its margin and whether p is the only shortest one.

    Args:
        selected: (batch, n_inputs).
    """
    rows = []
    for j in range(len(solution)):
        problem = solution[j]
        bracket = problem.bracket()
        kind = "none" if problem.status is Status.INFEASIBLE else "max-margin"
        row = _solution_row(kind, selected[j], problem, np.nan)
        bounds = {**bracket._asdict(), "gap": bracket.gap}
        rows.append({**row, "norm": repr(problem.norm), "bracket": bounds, "is_unique": problem.is_unique})
    return rows


def _proof(solution: ml.MarginSolution) -> list[dict[str, Any]]:
    """The rows k_α - k_t that carry weight: p is their weighted sum; in a proof of infeasibility that sum is zero."""
    weights = np.asarray(solution.certificate if solution.status is Status.INFEASIBLE else solution.multipliers)
    names = ("input", "selected", "other")
    used = np.flatnonzero(np.nan_to_num(weights) > 0.0)
    pairs = np.asarray(solution.pairs)[used].tolist()
    return [
        {**dict(zip(names, pair, strict=True)), "weight": float(weights[r])}
        for r, pair in zip(used, pairs, strict=True)
    ]


def candidate_rows(data: ml.TokenDataset, v: ArrayLike, prediction: Prediction) -> list[dict[str, Any]]:
    """The candidates of a prediction as rows: the global minima of ATT-SVM' where optimal tokens tie, else the GMM, then the LMMs.

    They are solved on the inputs whose output depends on p; `input` in a proof counts all inputs.
    """
    candidates: Any = prediction.candidates
    dependent, set_solution = prediction.details.dependent, prediction.details.set_solution
    dependent = dependent if dependent.any() else np.ones_like(dependent)
    inputs, best = np.flatnonzero(dependent), data.optimal(v)
    in_set = np.array([label == "G^mm" for label in candidates.labels], dtype=np.bool_)
    solutions = [] if set_solution is None else set_solution.solutions[: int(in_set.sum())]
    rows = [_solution_row("G^mm", None, solution, np.nan) for solution in solutions]
    listed = [selected for selected in candidates.selections[~in_set] if not np.array_equal(selected, best)]
    if not rows or len(listed) < np.sum(~in_set):
        listed = [best, *listed]
    if listed:
        part = data.take_inputs(dependent).repeat(len(listed))
        rows += solution_rows(ml.token_optimality(part, v, np.array(listed)[:, dependent]))
    for row, selected in zip(rows, [*candidates.selections[in_set], *listed], strict=True):
        row["selected"] = selected
        row["kind"] = "GMM" if row["kind"] != "G^mm" and np.array_equal(selected, best) else row["kind"]
        row["proof"] = [{**pair, "input": int(inputs[pair["input"]])} for pair in row["proof"]]
    return rows


def prediction_row(prediction: Prediction) -> dict[str, Any]:
    """What the theorems say, condition by condition."""
    fields, computed = ("direction", "observed", "path_direction", "why"), prediction.outcome
    proved = bool(prediction.certain) if computed is None else computed.proved
    outcome: dict[str, Any] = prediction.answer._asdict() | {"proved": proved}
    if computed is not None:
        outcome |= {name: getattr(computed, name) for name in ("selected", "norm", "angle")}
    said = {name: getattr(prediction, name) for name in fields}
    return {"outcome": outcome, **said, "certain": prediction.certain, "theorems": prediction.verdicts}


def outcome_text(outcome: Mapping[str, Any]) -> Iterator[Any]:
    """Where training ends, because of what, and whether it is proved."""
    yield bold(f"ends at: {outcome['ends_at']}.")
    yield f"because: {outcome['because']}."
    yield f"proved?  {outcome['proof']}."


# ---- head and attention together, as the lab saves such problems


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
    size = size_of(problem.data)
    return {"file": str(file), "size": size, "prediction": prediction_row(prediction), "limits": limits}


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
        "tokens with the largest label margin": selection(limits["selected"]),
        "inputs that support the head": ", ".join(supporting) or "none",
        "direction of the head, v^mm": vector(limits["head_direction"]),
        "direction of p, p^relax": vector(limits["relaxed_direction"]),
        "with a margin for every input, p^mm": vector(limits["margin_direction"]),
    }
    if "trained" not in row:
        yield from outcome_text(row["prediction"]["outcome"])
    yield facts_table("Where the joint path goes", facts)
    if "trained" not in row:
        yield from theorem_text(row["prediction"])
        return
    yield facts_table(f"Trained by {row['training']['optimizer']}", cells(row["trained"], _JOINT_COLUMNS))
    yield bold(row["prediction"]["why"])


# ---- next tokens


def read_sequence_problem(file: Path, *, drop: bool) -> SequenceProblem:
    """The sequences of a file and its head; samples without their label are dropped, left in where the file has a head, or refused."""
    from marginlens.data.files import read_sequence_problem
    from marginlens.data.sequences import reject_unrealizable

    if drop:
        return read_sequence_problem(file, unrealizable="drop")
    problem = read_sequence_problem(file, unrealizable="keep")
    data = problem.named.data
    if problem.head is None and len(data.unrealizable):
        remedy = 'Leave them out with --drop, or give a head "C" in the file.'
        with calling(file):
            raise reject_unrealizable(data.unrealizable, data.labels, remedy)
    return problem


def sequence_row(file: Path, problem: SequenceProblem, prediction: Prediction) -> dict[str, Any]:
    """What paper C says about the sequences of a file."""
    data, details = problem.named.data, prediction.details
    graphs, mix, targets = details.graphs, details.mix, details.targets
    small, names = data.d_model <= MAX_MATRIX, problem.named.vocabulary.shown
    return {
        "file": str(file),
        "size": size_of(data),
        "head": "C Eᵀ = I" if problem.head is None else "given",
        "samples": len(data),
        "dropped": len(data.dropped),
        "unrealizable": [
            {"sample": int(i), "separated": None if targets[i] < 0 else names[int(targets[i])]}
            for i in data.unrealizable
        ],
        "last_tokens": len(graphs),
        "acyclic": ml.graphs.is_acyclic(graphs),
        "separability": separability(problem.named, graphs, details.priority),
        "cyclic_correction": {
            "status": mix.status.name,
            "meaning": mix.status.value,
            "norm": float(np.linalg.norm(mix.x)),
        },
        "prediction": {
            "outcome": prediction.answer._asdict(),
            "why": prediction.why,
            "theorems": prediction.verdicts,
            "direction": prediction.direction if small else None,
            "path_direction": prediction.path_direction if small else None,
            "correction": details.correction if small else None,
        },
    }


def separability(
    found: NamedSequences | None, graphs: Mapping[int, PriorityGraph], solution: GraphSolution | None
) -> dict[str, Any]:
    """Whether one W ranks all tokens of all last tokens as the graphs say, and if not, which tokens are in conflict.

    Args:
        solution: the Graph-SVM of the graphs, or None for one-hot tokens, where it was not solved: then its numbers are None.
    """
    row: dict[str, Any] = {
        "separable": True,
        "status": None,
        "meaning": "One-hot embeddings separate every order, so that some W ranks all tokens of all last tokens so.",
        "margin": None,
        "residual": None,
        "smallest_gap": None,
        "strict_pairs": sum(len(graph.strict) for graph in graphs.values()),
        "proof": "How large it must be: --margin.",
    }
    if solution is None:
        return row
    infeasible, margin = solution.status is Status.INFEASIBLE, float(solution.margin)
    residual = float(solution.certificate_residual() if infeasible else solution.kkt_residual())
    gaps = solution.rows.apply(solution.x.reshape(-1))  # (e_i - e_j)ᵀ W e_k over all pairs i ⇒ j of all last tokens k
    # W^mm has gaps of at least 1, so that log 99 of it is the shortest W whose softmax puts 99 to 1 between tokens that are ranked
    scale = (
        f": W needs norm {np.log(99.0) / margin:,.0f} to rank every pair at least 99 to 1"
        if 0.0 < margin < np.inf
        else ""
    )
    proof = "Farkas" if infeasible else f"Margin {margin:.4g}{scale}. KKT"
    row |= {
        "separable": solution.status in (Status.OPTIMAL, Status.TRIVIAL),
        "status": solution.status.name,
        "meaning": solution.status.value,
        "margin": margin,
        "residual": residual,
        "smallest_gap": None if infeasible or not len(gaps) else float(gaps.min()),
        "proof": f"{proof} residual {residual:.1g}.",
    }
    if infeasible and found is not None:
        row["conflict"] = _conflict(found, graphs, solution)
    return row


def _conflict(found: NamedSequences, graphs: Mapping[int, PriorityGraph], solution: GraphSolution) -> dict[str, Any]:
    """The tokens that contradict each other, with the sequences that rank them so."""
    conflict = ml.svm.graph_conflict(solution)
    row = conflict.to_dict(found.vocabulary.shown)
    evidence = {k: ml.graphs.ranking_evidence(found.data, graphs[k]) for k in conflict.last_tokens}
    for ranking, (k, i, j) in zip(row["rankings"], conflict.pairs.tolist(), strict=True):
        place = np.flatnonzero((evidence[k].pairs == [i, j]).all(axis=1))
        ranking["sequences"] = int(evidence[k].samples[place].sum())
    return {**row, "sentence": conflict.describe(found.vocabulary.quoted)}


# ---- words for the terminal


class _Cells(Lines):
    """Formats the cells of a table: numbers, vectors, selections, and – where there is none."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in _FORMATS:
            return _FORMATS[format_spec](value)
        is_number = value is not None and not (isinstance(value, float) and not math.isfinite(value))
        return super().format_field(value, format_spec) if is_number else number(value)


_CELLS = _Cells()


def cells(row: Mapping[str, Any], columns: str) -> dict[str, str]:
    """The cells of a row as `columns` declares them, e.g. "margin={margin:number}, selects={selected:selection}"."""
    parts = (part.partition("=") for part in columns.split(", "))
    return {label: _CELLS.vformat(text, (), {"self": row}) for label, _, text in parts}


def theorem_text(prediction: Mapping[str, Any]) -> Iterator[Any]:
    """Which theorems apply, condition by condition, and what follows."""
    for theorem in prediction["theorems"]:
        outcome, *conditions = str(theorem).splitlines()
        yield outcome
        yield from (indented(condition.strip()) for condition in conditions)
    yield bold(prediction["why"])


def left_out_sequences(count: int, share: str = "") -> str:
    """A sentence on sequences that were left out, and nothing where there are none."""
    one = f"sequence{share} lacks the token that follows it and is"
    several = f"sequences{share} lack the token that follows them and are"
    return f"{counted(count, one, several)} left out. " if count else ""


def sequence_text(row: Mapping[str, Any]) -> Iterator[str]:
    """A next-token problem, its Graph-SVM and its cyclic correction."""
    yield f"{row['file']}: {row['size']}, head: {row['head']}"
    ties = "without ties" if row["acyclic"] else "with ties"
    yield f"{left_out_sequences(row['dropped'])}{counted(row['last_tokens'], 'different last token')}, {ties}."
    if row["unrealizable"]:
        first = row["unrealizable"][0]
        token = "no token" if first["separated"] is None else f'"{first["separated"]}"'
        lacking = ("sequence lacks its label and is", "sequences lack their label and are")
        kept = counted(len(row["unrealizable"]), *lacking)
        yield f"{kept} kept; the head separates {token} in sample {first['sample']}."
    separable, correction = row["separability"], row["cyclic_correction"]
    yield f"Graph-SVM: {separable['meaning']} {separable['proof']}"
    if "conflict" in separable:
        yield separable["conflict"]["sentence"]
    size = f" Its norm is {number(correction['norm'])}." if correction["status"] == "FINITE" else ""
    yield f"Cyclic correction: {correction['meaning']}{size}"


def number(value: Any) -> str:
    """A number to four digits; – where there is none, ∞ where it is infinite."""
    if value is None or math.isnan(value):
        return "–"
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else f"{value:.4g}"


def vector(values: Any) -> str:
    """The first coordinates of a direction or a point; – where there is none."""
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        return "–"
    shown = array if len(array) <= _COORDINATES else array[: _COORDINATES - 2]
    entries = [f"{entry:.3f}" if abs(entry) < _LARGE_ENTRY else f"{entry:.3g}" for entry in shown]
    return f"({', '.join(entries)}{'' if len(shown) == len(array) else f', … {len(array)} in all'})"


def selection(selected: ArrayLike) -> str:
    """The first token indices of a selection."""
    tokens = [str(token) for token in np.asarray(selected)]
    return ",".join(tokens if len(tokens) <= _TOKENS else [*tokens[: _TOKENS - 1], "…", tokens[-1]])


def residual(row: Mapping[str, Any]) -> str:
    """The residual that checks a solution row: of the optimality conditions, of the Farkas vector, or the bracket's gap."""
    if row["status"] == Status.INFEASIBLE.name:
        return f"Farkas {row['certificate_residual']:.1g}"
    if "bracket" in row:
        return f"gap {row['bracket']['gap']:.1g}"
    return f"KKT {row['kkt_residual']:.1g}"


def ending(row: Mapping[str, Any]) -> str:
    """How a run ended, and after how many steps."""
    return f"{Status[row['status']].value} ({counted(row['steps_taken'], 'step')})"


_FORMATS: dict[str, Callable[[Any], str]] = {
    "number": number,
    "vector": vector,
    "selection": selection,
    "residual": residual,
    "ending": ending,
}
