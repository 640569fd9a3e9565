"""What a sweep records of problems that stay on a GPU: the same names and meanings as on the CPU, measured on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.data.device_tokens import DeviceTokens
from marginlens.dynamics import DeviceRun
from marginlens.dynamics.trajectory import ENDINGS
from marginlens.gpu.device import as_device, parts, to_host
from marginlens.gpu.margins import DeviceMargins
from marginlens.svm.solvers.batch import INFEASIBLE
from marginlens.svm.solvers.least_distance import OUTCOME_STATUS
from marginlens.sweeps.records import OPTIMALITY, STATUSES, Categories
from marginlens.theory.device_optimality import DeviceOptimality, device_optimality

BYTES_PER_NUMBER = 8
COPIES, NUMBERS_PER_TOKEN = 3, 8  # of the tokens, and beside them, that making, training and measuring takes at most


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


DEVICE_RECORDS: dict[str, Callable[[DeviceChunkRun], Any]] = {
    "selection": lambda run: to_host(run.selected),
    "norm": lambda run: to_host(run.trajectory.norm),
    "saturation": lambda run: to_host(run.trajectory.saturation),
    "smallest_probability": lambda run: to_host(run.optimality.smallest_probability),
    "final": lambda run: to_host(run.trajectory.final),
    "status": lambda run: _status_column(run.trajectory.endings, ENDINGS),
    "steps_taken": lambda run: to_host(run.trajectory.steps_taken),
    "correlation": lambda run: to_host(run.optimality.correlation),
    "margin": lambda run: to_host(run.solution.margin),
    "svm_status": lambda run: _status_column(run.solution.status, OUTCOME_STATUS),
    "svm_residual": _svm_residual,
    "score_gap": lambda run: to_host(run.optimality.score_gap),
    "optimality": lambda run: Categories(to_host(run.optimality.kind).astype(np.int8), OPTIMALITY),
}


def recorded_on_device(run: DeviceChunkRun, names: tuple[str, ...]) -> dict[str, Any]:
    """The named quantities of runs on a device."""
    return {name: DEVICE_RECORDS[name](run) for name in names}


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
