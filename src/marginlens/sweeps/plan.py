"""The plan of a sweep: a grid of settings, the problems in each cell, their records, and their division into chunks."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import InputError, positive_number, whole_number
from marginlens.names import nearest
from marginlens.optimizers import Optimizer
from marginlens.optimizers.choice import optimizer_named
from marginlens.optimizers.protocol import as_optimizer
from marginlens.runtime.files import unusable
from marginlens.sweeps.choices import (
    PROTOCOLS,
    checked_start,
    default_step,
    described,
    function_record,
    loss_named,
)
from marginlens.sweeps.grid import AXES, Cell, Grid, is_axis
from marginlens.sweeps.records import RECORDS, SEQUENCE_RECORDS

# The form of a plan and of its chunks; it is part of the plan's hash.
FORMAT = "marginlens-sweep-1"
KINDS = ("selection", "next-token")
DEFAULT_RECORD = ("selection", "norm", "saturation", "correlation", "margin", "score_gap", "optimality", "status")
DEFAULT_SEQUENCE_RECORD = ("norm", "correlation", "margin", "status")

# Work on two cores that a chunk is meant for.
CHUNK_SECONDS = 1.0
# A chunk on a GPU has so many times as many problems.
GPU_FACTOR = 100
# Bytes of the tokens in a chunk.
MAX_CHUNK_BYTES = {"cpu": 64e6, "cuda": 4e9}
# Tokens assumed for a problem from a user's generator, whose shape the plan does not give.
UNKNOWN_TOKENS = 24
# The costs that `seconds_per_problem` adds up.
STEP_SECONDS, PAIR_SECONDS, NUMBER_SECONDS, PROBLEM_SECONDS = 1e-7, 3e-10, 4e-9, 2e-5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a sweep. A list for a key of `AXES`, or for one of the `parameters`, is an axis of the grid; cells are the
    product of axes.

    Cells that differ only in loss, optimizer, step, start or n_steps have the same problems, for paired comparisons.

    Args:
        n_problems: number of problems in each cell.

        problem: "selection" (attention weights p on token data) or "next-token" (weights W on sequences, which need your own
            data).

        data: "sphere", "gaussian", or a function `(rng, n_problems, cell) -> (data, head)`. `cell` is a dict of the settings,
            and data is a batch `TokenDataset`, or for next tokens a list of `SequenceDataset`.

        n_inputs: the number of inputs of a problem.

        n_tokens: the number of tokens of an input.

        d: the width of a token.

        loss: "logistic", "exponential" or "correlation-loss"; for next tokens "log-loss", "squared-loss", "cross-entropy" or
            "squared-probability"; or a loss object.

        optimizer: "normalized-gd", "gradient-descent", "sign-descent", "coordinate-descent", "adam", "muon",
            "steepest-descent:l3" and "mirror-descent:l3" with any norm, or an optimizer object.

        step: the step size; by default 1 for normalized-gd, .05 for others, and .01 for next tokens.

        start: "zero", "normal:SCALE", or a list of numbers. A list of several starts is an axis.

        n_steps: the number of steps of every run.

        seed: a whole number, which determines all random numbers.

        record: names of `RECORDS`.

        measures: a function of a run by name, which returns numbers (n_problems,) or (n_problems, k), or a dict of such columns
            by name. A run has data, head, trajectory, solution, optimality and cell.

        saved_steps: the steps after which iterates are saved for the measures, in `run.trajectory.saved["x"]`.

        parameters: further settings for a function that makes data.

        chunk: the number of problems in a chunk; by default about a second of work on two cores.

    Attributes:
        device: where the chunks are computed, set by `on`. Results depend on it, so it is part of the plan.
    """

    n_problems: int
    problem: str = "selection"
    data: Any = "sphere"
    n_inputs: Any = None
    n_tokens: Any = None
    d: Any = None
    loss: Any = None
    optimizer: Any = "normalized-gd"
    step: Any = None
    start: Any = "zero"
    n_steps: Any = 1000
    seed: int = 0
    record: tuple[str, ...] | None = None
    measures: Any = None
    saved_steps: tuple[int, ...] = ()
    parameters: Any = None
    chunk: int | None = None
    device: str = field(default="cpu", init=False)

    def __post_init__(self) -> None:
        store = object.__setattr__
        if self.problem not in KINDS:
            raise InputError("problem", " or ".join(KINDS), repr(self.problem))
        store(self, "n_problems", whole_number(self.n_problems, "n_problems", at_least=1))
        store(self, "seed", whole_number(self.seed, "seed", at_least=0))
        for name in ("n_inputs", "n_tokens", "d"):
            store(self, name, _values(getattr(self, name), name, _size))
        store(self, "n_steps", _values(self.n_steps, "n_steps", lambda v, n: whole_number(v, n, at_least=1)))
        store(self, "data", _values(self.data, "data", self._checked_data))
        default = "logistic" if self.problem == "selection" else "log-loss"
        store(self, "loss", _values(default if self.loss is None else self.loss, "loss", self._checked_loss))
        store(self, "optimizer", _values(self.optimizer, "optimizer", _checked_optimizer))
        store(self, "step", None if self.step is None else _values(self.step, "step", positive_number))
        store(self, "start", _values(self.start, "start", lambda start, _: checked_start(start)))
        store(self, "parameters", _parameters(self.parameters))
        store(self, "record", self._checked_record())
        store(self, "measures", self._checked_measures())
        store(self, "saved_steps", self._checked_steps())
        if self.chunk is not None:
            store(self, "chunk", whole_number(self.chunk, "chunk", at_least=1))
        self._check_together()

    @classmethod
    def of(cls, keys: Mapping[str, Any]) -> Plan:
        """Make the plan of these keys; an unknown key is refused with the nearest known one."""
        known = [entry.name for entry in fields(cls) if entry.init]
        for key in keys:
            if key not in known:
                remedy = "Give it to ml.sweep." if key == "device" else nearest(str(key), known)
                raise InputError("plan", f"made of the keys {', '.join(known)}", repr(key), remedy)
        if "n_problems" not in keys:
            raise InputError("plan", "one that says n_problems", f"the keys {', '.join(keys) or 'of an empty plan'}")
        return cls(**keys)

    def on(self, device: str) -> Plan:
        """Return the same plan on a device: "cpu", "cuda" or "cuda:1"."""
        if not isinstance(device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", device):
            raise InputError("device", "cpu, cuda, or cuda:K with the number K of a device", repr(device))
        placed = replace(self)
        object.__setattr__(placed, "device", device)
        return placed

    # ---- the grid

    @cached_property
    def grid(self) -> Grid:
        """The cells and chunks; chunk sizes depend only on the plan and are the same for cells with the same problems."""
        grid = Grid.of({**vars(self), "chunk": self.n_problems})
        sizes: dict[int, int] = {}
        for cell in grid.cells:
            most = self._chunk_of(cell) if self.chunk is None else min(self.chunk, self.n_problems)
            sizes[cell.stream] = min(sizes.get(cell.stream, most), most)
        chunk_sizes = tuple(sizes[cell.stream] for cell in grid.cells)
        return replace(grid, chunk_sizes=chunk_sizes[:1] if len(set(chunk_sizes)) == 1 else chunk_sizes)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells of the grid."""
        return self.grid.cells

    def step_of(self, cell: Cell) -> Any:
        """Return the step size of a cell: the given one, or that of its optimizer; None for an optimizer that has its own."""
        optimizer, step = cell.settings["optimizer"], cell.settings["step"]
        return default_step(optimizer, self.problem) if step is None and isinstance(optimizer, str) else step

    def _chunk_of(self, cell: Cell) -> int:
        """Return how many problems take about a second on two cores and fit in memory, as a power of two."""
        kind, settings = self.device.partition(":")[0], cell.settings
        at_once = CHUNK_SECONDS / seconds_per_problem(settings) * (GPU_FACTOR if kind == "cuda" else 1)
        at_once = min(at_once, MAX_CHUNK_BYTES[kind] / (8 * n_tokens_in_all(settings) * (settings["d"] or 1)))
        return max(1, min(self.n_problems, 2 ** int(np.log2(max(at_once, 1.0)))))

    # ---- what a plan is

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in types that JSON has: everything that its results depend on."""
        plan: dict[str, Any] = {"format": FORMAT}
        for entry in fields(self):
            if entry.name != "chunk":
                plan[entry.name] = written(getattr(self, entry.name))
        sizes = self.grid.chunk_sizes
        return {**plan, "chunk": sizes[0] if len(sizes) == 1 else list(sizes)}

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of the plan as canonical JSON, with sorted keys and without spaces."""
        return plan_hash(self.to_dict())

    def __repr__(self) -> str:
        axes = ", ".join(f"{name} {_shortly(values)}" for name, values in self.grid.axes.items())
        grid = f"{len(self.cells):,} cells ({axes})" if axes else "one cell"
        return f"Plan({grid}, {self.n_problems:,} problems each, {self.grid.n_chunks:,} chunks, records {', '.join(self.columns)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The records of each problem, the measures last."""
        return (*(self.record or ()), *self.measures)

    # ---- checks

    def _checked_data(self, value: object, key: str) -> Any:
        if callable(value):
            return value
        if value not in PROTOCOLS:
            expected = f"one of {', '.join(PROTOCOLS)}, or a function"
            raise InputError(key, expected, repr(value), nearest(str(value), PROTOCOLS))
        return value

    def _checked_loss(self, value: object, key: str) -> Any:
        loss = loss_named(value, self.problem)
        if loss is value:
            described(loss, key)
        return value

    def _checked_record(self) -> tuple[str, ...]:
        known = RECORDS if self.problem == "selection" else SEQUENCE_RECORDS
        if self.record is None:
            return DEFAULT_RECORD if self.problem == "selection" else DEFAULT_SEQUENCE_RECORD
        if isinstance(self.record, str) or not isinstance(self.record, list | tuple):
            raise InputError("record", f"a list of names among {', '.join(known)}", repr(self.record))
        for name in self.record:
            if name not in known:
                raise InputError("record", f"names among {', '.join(known)}", repr(name), nearest(str(name), known))
        if len(set(self.record)) < len(self.record):
            raise InputError("record", "names that differ", repr(list(self.record)))
        return tuple(self.record)

    def _checked_measures(self) -> dict[str, Callable[..., Any]]:
        if self.measures is not None and not isinstance(self.measures, Mapping):
            raise InputError("measures", "a table of names and functions", repr(self.measures))
        measures = {}
        for name, function in (self.measures or {}).items():
            if not isinstance(name, str) or not name.isidentifier() or name in ("cell", "problem", *AXES, *RECORDS):
                raise InputError("measures", "names of columns that nothing else has", repr(name))
            if not callable(function):
                raise InputError("measures", "functions", repr(function))
            measures[name] = function
        return measures

    def _checked_steps(self) -> tuple[int, ...]:
        if not isinstance(self.saved_steps, list | tuple | np.ndarray):
            raise InputError("saved_steps", "a list of steps", repr(self.saved_steps))
        steps = tuple(whole_number(step, "saved_steps", at_least=0) for step in self.saved_steps)
        if any(b <= a for a, b in itertools.pairwise(steps)):
            raise InputError("saved_steps", "steps that increase", repr(list(steps)))
        return steps

    def _check_together(self) -> None:
        """Check settings that depend on each other: shapes for random data, steps of optimizers, something to record, steps to save."""
        if not self.columns:
            raise InputError("record", "at least one name, unless there are measures", "none")
        for cell in self.cells:
            settings = cell.settings
            if isinstance(settings["data"], str):
                if self.problem != "selection":
                    raise InputError("data", "a function for next-token problems", repr(settings["data"]))
                for name in ("n_inputs", "n_tokens", "d"):
                    if settings[name] is None:
                        raise InputError(name, f"given for the data {settings['data']}", "none")
                start = settings["start"]
                if isinstance(start, list) and len(start) != settings["d"]:
                    raise InputError("start", f"d = {settings['d']} numbers", f"{len(start)}")
            if isinstance(settings["optimizer"], str):
                optimizer_named(settings["optimizer"], self.step_of(cell))
            elif settings["step"] is not None:
                raise InputError("step", "left out for an optimizer that has its own", settings["step"])
            if self.saved_steps and self.saved_steps[-1] > settings["n_steps"]:
                raise InputError("saved_steps", f"at most n_steps = {settings['n_steps']}", self.saved_steps[-1])
        taken = set(self.parameters) & {*AXES, *RECORDS, *self.measures, "cell", "problem"}
        if taken:
            raise InputError("parameters", "names that no other key or column has", repr(sorted(taken)[0]))


def as_plan(plan: object) -> Plan:
    """Return a plan, given as one or as a dict of its keys."""
    if isinstance(plan, Plan):
        return plan
    if isinstance(plan, Mapping):
        return Plan.of(plan)
    raise InputError("plan", "a Plan, or a dict of its keys", repr(plan))


def plan_hash(plan: Mapping[str, object]) -> str:
    """Return the SHA-256 of a plan as canonical JSON."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seconds_per_problem(settings: Mapping[str, Any]) -> float:
    """Estimate how long a problem takes on two cores: steps over pairs of tokens, their Gram matrix, making and measuring it."""
    n, d = n_tokens_in_all(settings), settings["d"] or UNKNOWN_TOKENS
    steps = settings["n_steps"] * (STEP_SECONDS + PAIR_SECONDS * n * n)
    return float(PROBLEM_SECONDS + NUMBER_SECONDS * n * d + PAIR_SECONDS * n * n * d + steps)


def n_tokens_in_all(settings: Mapping[str, Any]) -> int:
    """Count the tokens of all inputs of a problem."""
    if settings["n_inputs"] is None or settings["n_tokens"] is None:
        return UNKNOWN_TOKENS
    return int(settings["n_inputs"] * settings["n_tokens"])


def written(value: object) -> Any:
    """Convert a setting to types that JSON has: functions to where they are and the hash of their source, objects to their repr."""
    if isinstance(value, Mapping):
        return {name: written(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [written(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Optimizer) or not callable(value):
        return described(value, "plan")
    return function_record(value)


def _values(value: Any, key: str, check: Callable[[Any, str], Any]) -> Any:
    """Return a checked value, or a tuple of them if it is an axis."""
    if not is_axis(key, value):
        return check(_plain(value), key)
    values = tuple(check(_plain(entry), key) for entry in value)
    if not values:
        raise InputError(key, "at least one value for the grid", "an empty list")
    if len({json.dumps(written(entry), sort_keys=True) for entry in values}) < len(values):
        raise InputError(key, "values that differ", f"{[written(entry) for entry in values]}")
    return values


def _plain(value: object) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _size(value: object, key: str) -> int | None:
    return None if value is None else whole_number(value, key, at_least=1)


def _checked_optimizer(value: object, key: str) -> Any:
    if isinstance(value, str):
        optimizer_named(value, 1.0)
        return value
    described(as_optimizer(value), key)
    return value


def _parameters(value: object) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InputError("parameters", "a table of names and values", repr(value))
    found = {}
    for name, entry in (value or {}).items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InputError("parameters", "names that Python could have", repr(name))
        found[name] = _values(entry, "parameters", _checked_parameter)
    return dict(sorted(found.items()))


def _checked_parameter(value: object, key: str) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    raise InputError(key, "numbers, texts, or lists of them", repr(value))


def _shortly(values: tuple[object, ...]) -> str:
    names = [str(written(value)) for value in values]
    return ", ".join(names) if len(names) <= 8 else f"{names[0]}, …, {names[-1]}"


def differences(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return the differences between two written plans, for a sentence: key, the value before, the value now."""
    keys = [key for key in dict.fromkeys([*before, *now]) if before.get(key) != now.get(key)]
    return "; ".join(f"{key} is {_value(before.get(key))} there and {_value(now.get(key))} here" for key in keys)


def _value(value: object) -> str:
    if isinstance(value, Mapping) and set(value) == {"function", "source"}:
        return f"{value['function']} with source {value['source'][:8]}"
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def read_written_plan(path: Path) -> dict[str, Any]:
    """Read the written plan of a sweep's folder, and check it against its hash."""
    expected = "that of a sweep"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        plan, recorded_hash = content["plan"], content["hash"]
    except OSError as problem:
        raise InputError("folder", expected, unusable(path, problem)) from problem
    except (ValueError, KeyError, TypeError) as problem:
        got = f"{str(path)!r}, which is damaged ({problem})"
        raise InputError("folder", expected, got) from problem
    if plan_hash(plan) != recorded_hash:
        raise InputError("folder", expected, f"{str(path)!r}, which does not have the hash that it says")
    if plan.get("format") != FORMAT:
        raise InputError(
            "folder", f"that of a sweep in the form {FORMAT!r}", f"{str(path)!r} in the form {plan.get('format')!r}"
        )
    return dict(plan)
