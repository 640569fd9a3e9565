"""Random problems of a chunk on a GPU: they are made, trained and measured there, and only the records are copied back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.counter_based import check_problems, shared_matrix
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.device_descent import device_kernel, steps_of
from marginlens.dynamics.trajectory import ENDINGS
from marginlens.gpu.descent import Carried, Outputs, Problems, Shape
from marginlens.gpu.device import Device, parts, to_host
from marginlens.gpu.measures import OPTIMALITY_KINDS, UNDECIDED, SelectedTokens, measure_selections
from marginlens.gpu.random_problems import Numbers, RandomArrays, random_arrays, token_scores
from marginlens.optimizers import Optimizer
from marginlens.runtime.progress import Progress
from marginlens.svm.on_device import margins_of
from marginlens.svm.solvers.batch import INFEASIBLE
from marginlens.svm.solvers.least_distance import OUTCOME_STATUS
from marginlens.sweeps.records import STATUSES, Categories, optimality_codes
from marginlens.theory.optimality import token_optimality
from marginlens.theory.scored_tokens import SCORE_RTOL

BYTES_PER_NUMBER = 8
# Copies of the tokens, and numbers for each of them, that making, training and measuring takes at most.
COPIES, NUMBERS_PER_TOKEN = 3, 8
# Tolerances of selection.cu; the last two as in core/token_optimality.h.
TOLERANCES: dict[str, Any] = {
    "SCORE_RTOL": SCORE_RTOL,
    "NEIGHBOUR_SLACK_RTOL": 1e-12,
    "SOLVER_SLACK_RTOL": 1e-9,
}
# Columns of words: what their numbers on the device stand for.
WORDS: dict[str, tuple[str, ...]] = {
    "status": tuple(status.name for status in ENDINGS),
    "svm_status": tuple(status.name for status in OUTCOME_STATUS),
    "optimality": OPTIMALITY_KINDS,
}


class Training(NamedTuple):
    """The training of the problems of a chunk: x(0) is `start` (n_problems, d), zero for None."""

    loss: Any
    optimizer: Optimizer
    n_steps: int
    start: Any = None


class Trained(NamedTuple):
    """The results of n runs, as arrays on the device."""

    final: Any  # (n, d)
    selected: Any  # (n, n_inputs)
    # (n,) the mean attention on the selected tokens.
    saturation: Any
    # (n, 2) how each run ended, an index into ENDINGS, and after how many steps.
    ends: Any


def device_parts(device: Device, settings: Mapping[str, Any], n_problems: int) -> Iterator[tuple[int, int]]:
    """Return ranges (first, last) of a chunk's problems that fit in the memory of a device together with all arrays made from them."""
    numbers = settings["n_inputs"] * settings["n_tokens"] * (COPIES * settings["d"] + NUMBERS_PER_TOKEN)
    return parts(device, n_problems, BYTES_PER_NUMBER * numbers)


def device_columns(made: RandomArrays, training: Training, names: tuple[str, ...], device: Device) -> dict[str, Any]:
    """Return what is recorded of problems on a device by name, as arrays of NumPy."""
    run = trained_on_device(device, made, training)
    with device.active():
        arrays = {
            "selection": run.selected,
            "norm": device.xp.linalg.norm(run.final, axis=1),
            "saturation": run.saturation,
            "final": run.final,
            "status": run.ends[:, 0],
            "steps_taken": run.ends[:, 1],
        }
        if not arrays.keys() >= set(names):
            arrays |= measured_on_device(device, made, run.selected, run.final)
        host = {name: to_host(arrays[name]) for name in names}
    return {name: _words(name, array) if name in WORDS else array for name, array in host.items()}


def made_on_device(device: Device, settings: Mapping[str, Any], numbers: Numbers, n_problems: int) -> RandomArrays:
    """Make problems of `marginlens.data.counter_based` on the device, bit by bit the same."""
    shape = settings["n_inputs"], settings["n_tokens"], settings["d"]
    check_problems(numbers.first, numbers.first + n_problems, shape, numbers.seed, numbers.cell)
    W = None if settings["data"] == "sphere" else shared_matrix(settings["d"], numbers.seed, numbers.cell)
    return random_arrays(device, numbers, (n_problems, *shape), W)


def trained_on_device(device: Device, made: RandomArrays, training: Training) -> Trained:
    """Descend on all problems. Their keys are never so large or small that the CPU would have to take them."""
    n_problems, n_inputs, n_tokens, d = made.K.shape
    kernel, rule = device_kernel(device, Shape(n_inputs, n_tokens, d), training.loss, training.optimizer)
    steps = steps_of(rule, 0, training.n_steps)
    with device.active():
        xp = device.xp
        states, logits = xp.empty((n_problems, kernel.state_width)), xp.empty((n_problems, kernel.shape.n_rows))
        carried = Carried(states, logits, xp.zeros((n_problems, 2), dtype=np.int64))
        selected = xp.empty((n_problems, n_inputs), dtype=np.int64)
        out = Outputs(np.array([training.n_steps]), xp.empty((n_problems, 1, d)), selected, xp.empty(n_problems))
        problems = Problems(made.K, token_scores(device, made))
        kernel.run(problems, training.start, steps, (0, training.n_steps), carried, out, Progress())
    return Trained(out.points.reshape(n_problems, d), selected, out.attention, carried.ends)


def measured_on_device(device: Device, made: RandomArrays, selected: Any, p: Any) -> dict[str, Any]:
    """Return margins and optimality of the selections (n, n_inputs) of points p (n, d), by name of the record; arrays on the device.

    The CPU decides cases that rounding leaves open on the device.
    """
    margins = margins_of(device, made.K, selected)
    tokens = SelectedTokens(made.K, made.X, made.y, made.v, selected, margins.x, p, margins.outcome)
    found = measure_selections(device, tokens, TOLERANCES)
    with device.active():
        xp = device.xp
        undecided = to_host(xp.flatnonzero(found.kind == UNDECIDED))
        if len(undecided):
            X, K, v, y, alpha = (to_host(array[undecided]) for array in (*made, selected))
            decided = token_optimality(TokenDataset(X, y, K=K), v, alpha)
            found.kind[undecided] = xp.asarray(optimality_codes(decided))
            found.score_gap[undecided] = xp.asarray(decided.score_gap)
        return {
            "smallest_probability": found.smallest_probability,
            "correlation": found.correlation,
            "margin": margins.margin,
            "svm_status": margins.outcome,
            "svm_residual": xp.where(margins.outcome == INFEASIBLE, np.nan, margins.residual),
            "score_gap": found.score_gap,
            "optimality": found.kind,
        }


def _words(name: str, numbers: Any) -> Categories:
    """Return a column of words, with the names that it has on the CPU."""
    if name == "optimality":
        return Categories(numbers, OPTIMALITY_KINDS)
    return Categories(np.array([STATUSES.index(word) for word in WORDS[name]])[numbers], STATUSES)
