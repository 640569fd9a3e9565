"""What a sweep can record of a problem, by name, and the runs of a chunk from which it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import correlation
from marginlens.data.device_tokens import DeviceTokens
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics import DeviceRun
from marginlens.dynamics.trajectory import ENDINGS, Trajectory
from marginlens.gpu.device import as_device, parts, to_host
from marginlens.gpu.margins import DeviceMargins
from marginlens.graphs.from_data import priority_graphs
from marginlens.status import Status
from marginlens.svm import MarginSolution, att_svm, graph_svm
from marginlens.svm.solvers.batch import INFEASIBLE
from marginlens.svm.solvers.least_distance import OUTCOME_STATUS
from marginlens.theory.device_optimality import DeviceOptimality, device_optimality
from marginlens.theory.optimality import TokenOptimality, token_optimality
from marginlens.typing import FloatArray, IntArray

STATUSES = tuple(status.name for status in Status)
OPTIMALITY = ("global", "local", "neither", "infeasible")  # in this order: a selection is the first that holds
BYTES_PER_NUMBER = 8
COPIES, NUMBERS_PER_TOKEN = 3, 8  # of the tokens, and beside them, that making, training and measuring takes at most


class Categories(NamedTuple):
    """A column of words: `codes` (n_problems,) are places among `names`."""

    codes: IntArray
    names: tuple[str, ...]


@dataclass(frozen=True)
class ChunkRun:
    """The trained problems of a chunk of token data, as records and measures of one's own read them.

    Attributes:
        data: the problems as a batch. head: v (n_problems, d_model). trajectory: the descent on all of them.
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
        """Whether the selected tokens are locally or globally optimal, with their score gap."""
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
        data: one dataset a problem. head: theirs, or None. trajectory: the descent on all of them. cell: the settings of the cell.
    """

    data: list[SequenceDataset]
    head: Any
    trajectory: Trajectory
    cell: Mapping[str, Any]

    @cached_property
    def solution(self) -> list[Any]:
        """Graph-SVM of each problem's priority graphs."""
        return [graph_svm(problem.E, priority_graphs(problem)) for problem in self.data]


def status_codes(statuses: Any) -> Categories:
    """Statuses as a column of their names."""
    places = {status: k for k, status in enumerate(Status)}
    return Categories(np.array([places[status] for status in statuses], dtype=np.int8), STATUSES)


def _optimality(run: ChunkRun) -> Categories:
    found = run.optimality
    kinds = [found.is_globally_optimal, found.is_locally_optimal, found.is_feasible]
    return Categories(np.select(kinds, [0, 1, 2], 3).astype(np.int8), OPTIMALITY)


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
    "optimality": _optimality,
}
SEQUENCE_RECORDS: dict[str, Callable[[Any], Any]] = {
    "norm": RECORDS["norm"],
    "status": RECORDS["status"],
    "steps_taken": RECORDS["steps_taken"],
    "correlation": _sequence_correlation,
    "margin": lambda run: np.array([solution.margin for solution in run.solution]),
    "svm_status": lambda run: status_codes([solution.status for solution in run.solution]),
}
# ---- the same of problems that stay on a GPU, measured on the device


@dataclass(frozen=True)
class DeviceChunkRun:
    """The trained problems of a chunk, or of a part of it, in arrays on a GPU.

    Attributes:
        data: the problems. head: v (n_problems, d_model) on the device. trajectory: the descent on all of them.
        cell: the settings of the cell.
    """

    data: DeviceTokens
    head: Any
    trajectory: DeviceRun
    cell: Mapping[str, Any]

    @cached_property
    def optimality(self) -> DeviceOptimality:
        """Whether the selected tokens are locally or globally optimal, and how the iterates compare with their SVM."""
        return device_optimality(self.data, self.head, self.selected, self.trajectory.final)

    @property
    def solution(self) -> DeviceMargins:
        """The ATT-SVM of the tokens that each run selects."""
        return self.optimality.solution

    @property
    def selected(self) -> Any:
        """The token with the largest attention in each input, (n_problems, n_inputs)."""
        return self.trajectory.selected


def _status_column(numbers: Any, statuses: Any) -> Categories:
    """Numbers of statuses in a list of them, as a column of their names."""
    places = np.array([STATUSES.index(status.name) for status in statuses], dtype=np.int8)
    return Categories(places[to_host(numbers)], STATUSES)


def _svm_residual(run: DeviceChunkRun) -> Any:
    return np.where(to_host(run.solution.status) == INFEASIBLE, np.nan, to_host(run.solution.residual))


DEVICE_RECORDS: dict[str, Callable[[Any], Any]] = RECORDS | {  # the others are read of both kinds of runs alike
    "saturation": lambda run: run.trajectory.saturation,
    "smallest_probability": lambda run: run.optimality.smallest_probability,
    "status": lambda run: _status_column(run.trajectory.endings, ENDINGS),
    "correlation": lambda run: run.optimality.correlation,
    "svm_status": lambda run: _status_column(run.solution.status, OUTCOME_STATUS),
    "svm_residual": _svm_residual,
    "optimality": lambda run: Categories(to_host(run.optimality.kind).astype(np.int8), OPTIMALITY),
}


# ---- columns

_NEEDS_OPTIMALITY = ("score_gap", "optimality")


def recorded(run: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The named quantities of a chunk's runs; those that need the same margin problems have them solved once."""
    known = {ChunkRun: RECORDS, SequenceChunkRun: SEQUENCE_RECORDS, DeviceChunkRun: DEVICE_RECORDS}[type(run)]
    order = sorted(names, key=lambda name: name not in _NEEDS_OPTIMALITY)
    made = {name: known[name](run) for name in order}
    return {name: made[name] if isinstance(made[name], Categories) else to_host(made[name]) for name in names}


def device_parts(device: str, settings: Mapping[str, Any], n_problems: int) -> Iterator[tuple[int, int]]:
    """Ranges (first, last) of a chunk's problems that fit in the memory of a device together with all that is made of them."""
    numbers = settings["n_inputs"] * settings["n_tokens"] * (COPIES * settings["d"] + NUMBERS_PER_TOKEN)
    place = as_device(device)
    if place is None:
        yield 0, n_problems
    else:
        yield from parts(place, n_problems, BYTES_PER_NUMBER * numbers)


def joined(pieces: list[Any]) -> Any:
    """Columns of the parts of a chunk, one after the other."""
    if isinstance(pieces[0], Categories):
        return Categories(np.concatenate([piece.codes for piece in pieces]), pieces[0].names)
    return np.concatenate(pieces)
