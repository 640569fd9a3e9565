"""The records of a sweep by name, and the runs of a chunk from which they are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import correlation
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.trajectory import Trajectory
from marginlens.gpu.measures import OPTIMALITY_KINDS
from marginlens.graphs.from_data import priority_graphs
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm, graph_svm
from marginlens.theory.optimality import TokenOptimality, token_optimality
from marginlens.typing import FloatArray, IntArray

STATUSES = tuple(status.name for status in Status)
OPTIMALITY = OPTIMALITY_KINDS


class Categories(NamedTuple):
    """A column of words: `codes` (n_problems,) are indices into `names`."""

    codes: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True)
class ChunkRun:
    """The trained problems of a chunk of token data, which records and users' measures read.

    Attributes:
        data: the problems as a batch.

        head: v (n_problems, d_model).

        trajectory: the descent on all of them.

        cell: the settings of the cell.
    """

    data: TokenDataset
    head: Any
    trajectory: Trajectory
    cell: Mapping[str, Any]

    @cached_property
    def solution(self) -> MarginSolution:
        """The ATT-SVM of the tokens that each run selects."""
        return self.optimality.solution if "optimality" in self.__dict__ else att_svm(self.data, self.selected)

    @cached_property
    def optimality(self) -> TokenOptimality:
        """The optimality of the selected tokens, local or global, with their score gap."""
        return token_optimality(self.data, self.head, self.selected)

    @property
    def selected(self) -> IntArray:
        """The token with the largest attention in each input, (n_problems, n_inputs)."""
        return self.trajectory.selected

    @cached_property
    def probabilities(self) -> FloatArray:
        """The attention on the selected tokens, (n_problems, n_inputs)."""
        chosen = np.take_along_axis(self.trajectory.attention, self.selected[..., None], axis=-1)
        return np.asarray(chosen[..., 0])


@dataclass(frozen=True)
class SequenceChunkRun:
    """The trained problems of a chunk of next-token data.

    Attributes:
        data: one dataset per problem.

        head: their heads, or None.

        trajectory: the descent on all of them.

        cell: the settings of the cell.
    """

    data: list[SequenceDataset]
    head: Any
    trajectory: Trajectory
    cell: Mapping[str, Any]

    @cached_property
    def solution(self) -> list[Any]:
        """The Graph-SVM of each problem's priority graphs."""
        return [graph_svm(problem.E, priority_graphs(problem)) for problem in self.data]


def status_codes(statuses: Iterable[Status]) -> Categories:
    """Return statuses as a column of their names."""
    places = {status: k for k, status in enumerate(Status)}
    return Categories(np.array([places[status] for status in statuses], dtype=np.int8), STATUSES)


def optimality_codes(found: TokenOptimality) -> IntArray:
    """Return the optimality of each selection as an index into `OPTIMALITY`."""
    return np.select([found.is_globally_optimal, found.is_locally_optimal, found.is_feasible], [0, 1, 2], 3)


def _sequence_correlation(run: SequenceChunkRun) -> FloatArray:
    solved = np.stack([solution.x for solution in run.solution])
    return np.asarray(correlation(run.trajectory.final, solved, axes=2))


RECORDS: dict[str, Callable[[Any], Any]] = {
    "selection": lambda run: run.selected,
    "norm": lambda run: run.trajectory.norm,
    "saturation": lambda run: run.probabilities.mean(axis=-1),
    "smallest_probability": lambda run: run.probabilities.min(axis=-1),
    "final": lambda run: run.trajectory.final,
    "status": lambda run: status_codes(run.trajectory.status),
    "steps_taken": lambda run: run.trajectory.steps_taken,
    "correlation": lambda run: correlation(run.trajectory.final, run.solution.x),
    "margin": lambda run: run.solution.margin,
    "svm_status": lambda run: status_codes(run.solution.status),
    "svm_residual": lambda run: run.solution.kkt_residual(),
    "score_gap": lambda run: run.optimality.score_gap,
    "optimality": lambda run: Categories(optimality_codes(run.optimality), OPTIMALITY),
}
SEQUENCE_RECORDS: dict[str, Callable[[Any], Any]] = {
    "norm": RECORDS["norm"],
    "status": RECORDS["status"],
    "steps_taken": RECORDS["steps_taken"],
    "correlation": _sequence_correlation,
    "margin": lambda run: np.array([solution.margin for solution in run.solution]),
    "svm_status": lambda run: status_codes([solution.status for solution in run.solution]),
}


# ---- columns

_NEEDS_OPTIMALITY = ("score_gap", "optimality")


def recorded(run: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the named quantities of a chunk's runs; those that need the same margin problems have them solved once."""
    known = RECORDS if isinstance(run, ChunkRun) else SEQUENCE_RECORDS
    made = {name: known[name](run) for name in sorted(names, key=lambda name: name not in _NEEDS_OPTIMALITY)}
    return {name: made[name] if isinstance(made[name], Categories) else np.asarray(made[name]) for name in names}


def joined(pieces: list[Any]) -> Any:
    """Join the columns of the parts of a chunk, one after the other."""
    if isinstance(pieces[0], Categories):
        return Categories(np.concatenate([piece.codes for piece in pieces]), pieces[0].names)
    return np.concatenate(pieces)
