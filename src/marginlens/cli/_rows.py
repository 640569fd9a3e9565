"""Results as plain rows: the same numbers for JSON and for the terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from marginlens.data import TokenDataset
from marginlens.svm import MarginSolution, Status
from marginlens.theory import Prediction, TokenOptimality, token_optimality
from marginlens.theory.assumptions import Verdict

_COORDINATES = 4  # of a direction that the terminal shows
_TOKENS = 7  # of a selection that the terminal shows


def as_json(answer: Any) -> str:
    """`answer` as JSON in which every number is finite; what is not becomes null. Where it is printed in UTF-8, so are its signs."""
    escaped = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    return json.dumps(_plain(answer), indent=2, allow_nan=False, ensure_ascii=escaped)


def size_of(data: TokenDataset) -> str:
    """The size of a dataset in words."""
    problems = f"{len(data)} problems of " if data.is_batch else ""
    upto = "" if data.mask.all() else "up to "
    inputs = "1 input" if data.n_inputs == 1 else f"{data.n_inputs} inputs"
    tokens = "1 token" if data.n_tokens == 1 else f"{data.n_tokens} tokens"
    return f"{problems}{inputs} with {upto}{tokens}, d_model = {data.d_model}, d_key = {data.d_key}"


def solution_rows(found: TokenOptimality) -> list[dict[str, Any]]:
    """One row per ATT-SVM of a batch of selections: what it selects, its direction, and the proof that it is right."""
    return [_solution_row(found, j) for j in range(len(found.selected))]


def _solution_row(found: TokenOptimality, j: int) -> dict[str, Any]:
    solution = found.solution[j]
    kind = "GMM" if found.is_globally_optimal[j] else "LMM" if found.is_locally_optimal[j] else "neither"
    return {
        "kind": kind if found.is_feasible[j] else "none",
        "selected": found.selected[j],
        "direction": solution.direction,
        "margin": solution.margin,
        "score_gap": found.score_gap[j],
        "status": solution.status.name,
        "kkt_residual": solution.kkt_residual(),
        "certificate_residual": solution.certificate_residual(),
        "proof": _proof(solution),
    }


def candidate_rows(data: TokenDataset, v: Any, prediction: Prediction) -> list[dict[str, Any]]:
    """The candidates of a prediction as rows: the global minima of ATT-SVM' where optimal tokens tie, else the GMM, then the LMMs.

    They are solved on the inputs whose output depends on p; `input` in a proof counts all inputs.
    """
    details = prediction.details
    candidates: Any = prediction.candidates
    dependent = details.dependent if details.dependent.any() else np.ones_like(details.dependent)
    part, inputs = data.take_inputs(dependent), np.flatnonzero(dependent)
    best = data.optimal(v)
    in_set = np.array([label == "G^mm" for label in candidates.labels], dtype=np.bool_)
    rows = [] if details.set_solution is None else [_set_row(one) for one in details.set_solution.solutions]
    rows = rows[: int(in_set.sum())]
    listed = [one for one in candidates.selections[~in_set] if not np.array_equal(one, best)]
    if not rows or len(listed) < np.sum(~in_set):
        listed = [best, *listed]
    if listed:
        rows += solution_rows(token_optimality(part.repeat(len(listed)), v, np.array(listed)[:, dependent]))
    named = [*candidates.selections[in_set], *listed]
    for row, selected in zip(rows, named, strict=True):
        row["selected"] = selected
        row["kind"] = "GMM" if row["kind"] != "G^mm" and np.array_equal(selected, best) else row["kind"]
        row["proof"] = [{**one, "input": int(inputs[one["input"]])} for one in row["proof"]]
    return rows


def _set_row(solution: MarginSolution) -> dict[str, Any]:
    return {
        "kind": "G^mm",
        "selected": None,
        "direction": solution.direction,
        "margin": solution.margin,
        "score_gap": np.nan,
        "status": solution.status.name,
        "kkt_residual": solution.kkt_residual(),
        "certificate_residual": solution.certificate_residual(),
        "proof": _proof(solution),
    }


def _proof(solution: MarginSolution) -> list[dict[str, Any]]:
    """The rows k_α - k_t that carry weight: p is their weighted sum; in a proof of infeasibility that sum is zero."""
    weights = solution.certificate if solution.status is Status.INFEASIBLE else solution.multipliers
    pairs = np.asarray(solution.pairs)
    used = np.flatnonzero(np.nan_to_num(np.asarray(weights)) > 0.0)
    names = ("input", "selected", "other")
    return [{**dict(zip(names, pairs[r].tolist(), strict=True)), "weight": float(np.asarray(weights)[r])} for r in used]


def prediction_row(prediction: Prediction) -> dict[str, Any]:
    """What the theorems say, condition by condition."""
    return {
        "direction": prediction.direction,
        "observed": prediction.observed,
        "path_direction": prediction.path_direction,
        "why": prediction.why,
        "theorems": theorem_rows(prediction.verdicts),
    }


def theorem_rows(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Which theorems apply, condition by condition."""
    return [
        {
            "label": verdict.citation,
            "applies": verdict.applies,
            "conclusion": verdict.conclusion,
            "conditions": [
                {"name": one.name, "holds": one.holds, "sentence": one.sentence, "numbers": one.numbers}
                for one in verdict.conditions
            ],
        }
        for verdict in verdicts
    ]


# ---- words for the terminal


def theorem_lines(theorems: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Which theorems apply, line by line, each with its indentation."""
    lines = []
    for theorem in theorems:
        outcome = f"applies: {theorem['conclusion']}" if theorem["applies"] else "does not apply"
        lines.append((f"{theorem['label']} {outcome}.", 0))
        lines += [
            (f"{'✓' if one['holds'] else '✗'} {one['name']}: {one['sentence']}.", 2) for one in theorem["conditions"]
        ]
    return lines


def number(value: Any) -> str:
    """A number to four digits; – where there is none, ∞ where it is infinite."""
    if value is None or math.isnan(value):
        return "–"
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else f"{value:.4g}"


def vector(values: Any) -> str:
    """The first coordinates of a direction; – where there is none."""
    array = np.asarray(values, dtype=np.float64)
    if np.isnan(array).any():
        return "–"
    if len(array) <= _COORDINATES:
        return f"({', '.join(f'{one:.3f}' for one in array)})"
    return f"({', '.join(f'{one:.3f}' for one in array[: _COORDINATES - 2])}, … {len(array)} in all)"


def selection(selected: Any) -> str:
    """The first token indices of a selection."""
    tokens = [str(one) for one in np.asarray(selected)]
    return ",".join(tokens if len(tokens) <= _TOKENS else [*tokens[: _TOKENS - 1], "…", tokens[-1]])


def proof(row: Mapping[str, Any]) -> str:
    """The residual that checks a solution row: of the optimality conditions, or of the Farkas vector."""
    if row["status"] == Status.INFEASIBLE.name:
        return f"Farkas {row['certificate_residual']:.1g}"
    return f"KKT {row['kkt_residual']:.1g}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
