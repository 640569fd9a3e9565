"""Problem files of the lab: tokens and head with the start, the optimizer, the loss and the steps of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import (
    PathLike,
    checked_head,
    is_problem,
    number,
    problem_tokens,
    read_entries,
    refuse,
    tokens_json,
    vector,
)
from marginlens.data.files import read_problem as read_arrays
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError, rename_arguments, whole_number
from marginlens.losses.margin import Logistic, Loss
from marginlens.names import OPTIMIZERS, Family, kebab
from marginlens.norms import L2, Lp
from marginlens.optimizers import Blockwise, GradientDescent, NormalizedGD, Optimizer, SteepestDescent
from marginlens.optimizers.schedules import PowerDecay
from marginlens.risk import AttentionRisk, JointRisk
from marginlens.runtime.files import as_path, check_place, json_by_line, write_whole
from marginlens.typing import ArrayLike

N_STEPS = 1000
# Step sizes of normalised descent, which is the default.
STEP_SIZE, JOINT_STEP_SIZE = 1.0, 0.1
# Settings of each optimizer that the lab has, with their defaults.
OPTIMIZER_SETTINGS: dict[str, dict[str, Any]] = {
    "gradient-descent": {"size": 1.0},
    "normalized-gd": {"size": 1.0},
    "sign-descent": {"size": 0.1, "decay": 0.0, "momentum": 0.0},
    "coordinate-descent": {"size": 0.1, "decay": 0.0, "momentum": 0.0},
    "steepest-descent": {"size": 0.1, "decay": 0.0, "momentum": 0.0, "p": 3.0},
    "adam": {"size": 0.1, "decay": 0.0, "betas": [0.9, 0.999], "eps": 0.0},
}
LAB_LOSSES = Family("loss", "marginlens.losses", ("Logistic", "Exponential", "CorrelationLoss"))
_JOINT = ("gradient-descent", "normalized-gd")


@dataclass(frozen=True)
class LabProblem:
    """A problem of token selection together with one run on it.

    Args:
        data: one problem, not a batch.

        head: v (d_model,); may be None only if it is trained too.

        start: p(0) of shape (d_key,), zero by default.

        optimizer: an optimizer of the lab, by default normalised descent. If the head is trained too, `GradientDescent(size)`
            or `Blockwise(NormalizedGD(size))`, which normalises head and attention separately.

        loss: `Logistic()`, `Exponential()` or `CorrelationLoss()`.

        n_steps: the number of steps of the run.

        trains_head: whether head and attention are trained together.

        start_head: v(0) of shape (d_model,) if the head is trained too, zero by default.

        words: the names of the tokens, a list of texts for each input; those of `data` by default.
    """

    data: TokenDataset
    head: Any = None
    start: Any = None
    optimizer: Optimizer | None = None
    loss: Loss = field(default_factory=Logistic)
    n_steps: int = N_STEPS
    trains_head: bool = False
    start_head: Any = None
    words: Any = None

    def __post_init__(self) -> None:
        head = checked_head(self.data, self.head, self.trains_head)
        data = self.data if self.words is None else self.data.named(self.words, "words")
        start = np.zeros(self.data.d_key) if self.start is None else np.array(self.data.point(self.start, "start"))
        start_head = (
            np.zeros(self.data.d_model)
            if self.start_head is None
            else np.array(self.data.head(self.start_head, "start_head"))
        )
        optimizer = self.optimizer or (
            Blockwise(NormalizedGD(JOINT_STEP_SIZE)) if self.trains_head else NormalizedGD(STEP_SIZE)
        )
        optimizer_json(optimizer, trains_head=self.trains_head)
        LAB_LOSSES.name_of(self.loss)
        settled: dict[str, Any] = {"head": head, "start": start, "start_head": start_head, "optimizer": optimizer}
        settled |= {"data": data, "words": data.tokens}
        settled["n_steps"] = whole_number(self.n_steps, "n_steps", at_least=0)
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LabProblem) and self.data == other.data and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        trained = "head and attention" if self.trains_head else "attention"
        return f"LabProblem({self.data!r}, {trained} by {self.optimizer!r}, {LAB_LOSSES.name_of(self.loss)} loss, {self.n_steps} steps)"

    @property
    def risk(self) -> AttentionRisk | JointRisk:
        """The risk of the run: `descend(problem.risk, optimizer=problem.optimizer, start=problem.first_point)`."""
        return JointRisk(self.data, self.loss) if self.trains_head else AttentionRisk(self.data, self.head, self.loss)

    @property
    def first_point(self) -> Any:
        """The start of the run: p(0), or (v(0), p(0)) if both are trained."""
        return (self.start_head, self.start) if self.trains_head else self.start

    def to_dict(self) -> dict[str, Any]:
        """Return the problem as JSON values, in the lab's format."""
        entries = {**tokens_json(self.data, self.head, self.trains_head), "start": self.start.tolist()}
        if self.trains_head:
            entries["start_head"] = self.start_head.tolist()
        assert self.optimizer is not None
        optimizer = optimizer_json(self.optimizer, trains_head=self.trains_head)
        return {**entries, "optimizer": optimizer, "loss": LAB_LOSSES.name_of(self.loss), "steps": self.n_steps}

    @classmethod
    def from_dict(cls, entries: Mapping[str, object], source: str = "the problem") -> LabProblem:
        """Make the problem of JSON values in the lab's format, such as `to_dict` gives; `source` names them in errors."""
        with rename_arguments(source):
            if not isinstance(entries, Mapping):
                raise refuse("problem", "a JSON object", entries)
            entry = {name: value for name, value in entries.items() if value is not None}
            data, head, trains_head = problem_tokens(entry)
            steps = number(entry.get("steps", N_STEPS), "steps", "a whole number")
            if steps < 0 or steps != int(steps):
                raise refuse("steps", "a whole number of at least 0", entry["steps"])
            return cls(
                data,
                head,
                vector(entry["start"], "start", data.d_key) if "start" in entry else None,
                optimizer_of(entry.get("optimizer"), trains_head=trains_head),
                LAB_LOSSES.class_named(entry.get("loss", "logistic"))(),
                int(steps),
                trains_head,
                vector(entry["start_head"], "start_head", data.d_model) if "start_head" in entry else None,
            )


def read_problem(path: PathLike | Mapping[str, object]) -> LabProblem:
    """Read the problem in a file: JSON from the lab or `write_problem`, or any file that `marginlens.data.read_problem` reads.

    Missing entries have the lab's defaults: start zero, normalised descent with steps of length 1, the logistic loss and 1,000
    steps.

    Args:
        path: the path of the file; or the entries themselves, as a JSON file has them.
    """
    if isinstance(path, Mapping):
        return LabProblem.from_dict(path)
    entries = read_entries(path)
    if is_problem(entries):
        return LabProblem.from_dict(entries, str(path))
    data, head = read_arrays(path)
    if data.is_batch:
        raise InputError("path", "a file with one problem", f"{str(path)!r}, which holds a batch of {len(data)}")
    return LabProblem(data, head)


def write_problem(
    path: PathLike, problem: LabProblem | TokenDataset, head: ArrayLike | None = None, **run: Any
) -> None:
    """Write a problem so that `read_problem`, the lab, `marginlens predict` and `marginlens train` read it, to the last digit.

    Args:
        path: a name that ends in `.json`; an existing file is replaced only once the new one is complete.

        problem: a `LabProblem`; or a dataset, with `head` and the other arguments of `LabProblem`: start, optimizer, loss,
            n_steps, trains_head, start_head, words.
    """
    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", (".json",))
    write_whole(Path(place), json_by_line(as_problem(problem, head, **run).to_dict()), "path")


def as_problem(problem: LabProblem | TokenDataset, head: ArrayLike | None = None, **run: Any) -> LabProblem:
    """Return a problem as it is, or the problem of a dataset with its head and its run."""
    if not isinstance(problem, LabProblem):
        return LabProblem(problem, head, **run)
    given = [name for name, value in {"head": head, **run}.items() if value is not None]
    if given:
        raise InputError(given[0], "left out where a LabProblem is given, which has it", "both")
    return problem


# ---- what the page takes

MAX_INPUTS, MAX_TOKENS = 8, 12
# Largest modulus of tokens, keys, scores and heads, and of starts.
MAX_ENTRY, MAX_START = 1e6, 1e12
MAX_STEPS = 10_000_000


def page_problem(problem: LabProblem) -> LabProblem:
    """Return the problem as the page shows it, or raise an error that says what the page takes.

    Keys must lie in the plane. Tokens of another width matter only through their scores, so these are given instead.
    """
    data, takes = problem.data, "a problem that the page takes"
    if not np.array_equal(data.K, data.X):
        data = data.with_keys(data.K)
        problem = replace(problem, data=data)
    longest = int(data.lengths.max())
    if data.d_key != 2:
        raise InputError("problem", f"{takes}, with keys in the plane", f"keys with {data.d_key} coordinates")
    if data.n_inputs > MAX_INPUTS or longest > MAX_TOKENS:
        size = f"{data.n_inputs} inputs of up to {longest} tokens"
        raise InputError("problem", f"{takes}, at most {MAX_INPUTS} inputs of at most {MAX_TOKENS} tokens", size)
    if data.d_model != 2 and problem.trains_head:
        raise InputError("problem", f"{takes}, with tokens in the plane", f"tokens with {data.d_model} coordinates")
    if data.d_model != 2:
        scores = data.scores(problem.head)
        listed = [np.column_stack([data.K[i, :n], data.y[i] * scores[i, :n]]) for i, n in enumerate(data.lengths)]
        keys = [data.K[i, :n] for i, n in enumerate(data.lengths)]
        data = TokenDataset(listed, data.y, K=keys)
        problem = replace(problem, data=data, head=[0.0, 0.0, 1.0], start_head=None)
    heads = [] if problem.head is None else [problem.head]
    largest = max(float(np.abs(array).max()) for array in (data.X, data.K, *heads))
    if largest > MAX_ENTRY:
        raise InputError("problem", f"{takes}, with numbers up to {MAX_ENTRY:g}", f"{largest:g}")
    furthest = float(max(np.abs(problem.start).max(), np.abs(problem.start_head).max()))
    if furthest > MAX_START:
        raise InputError("start", f"at most {MAX_START:g} in modulus for the page", f"{furthest:g}")
    if problem.n_steps > MAX_STEPS:
        raise InputError("n_steps", f"at most {MAX_STEPS} for the page", problem.n_steps)
    return problem


# ---- optimizers and losses by name


def optimizer_json(optimizer: Any, *, trains_head: bool = False) -> dict[str, Any]:
    """Return an optimizer as JSON values: its name and its settings, which `optimizer_of` reads back."""
    part: Any = optimizer.optimizer if isinstance(optimizer, Blockwise) else optimizer
    if getattr(part, "weight_decay", 0.0) or not getattr(part, "is_plain", True):
        raise InputError("optimizer", "without weight decay, and of these two without momentum", repr(optimizer))
    if trains_head:
        is_normalized, is_plain = isinstance(part, NormalizedGD), isinstance(part, GradientDescent)
        if (is_normalized or is_plain) and is_normalized == isinstance(optimizer, Blockwise):
            return {"name": OPTIMIZERS.name_of(part), "size": part.size}
        expected = (
            "GradientDescent(size) or Blockwise(NormalizedGD(size)) where head and attention are trained together"
        )
        raise InputError("optimizer", expected, repr(optimizer))
    name = OPTIMIZERS.name_of(optimizer)
    if name not in OPTIMIZER_SETTINGS:
        raise InputError("optimizer", f"one that the lab has, {', '.join(OPTIMIZER_SETTINGS)}", repr(optimizer))
    if getattr(optimizer, "nesterov", False) and optimizer.momentum:
        raise InputError("optimizer", "without Nesterov's momentum, which the lab does not have", repr(optimizer))
    schedule = optimizer.size
    if callable(schedule) and not isinstance(schedule, PowerDecay):
        raise InputError("optimizer", "with a constant step size or PowerDecay", repr(optimizer))
    values = {key: getattr(optimizer, key) for key in ("momentum", "eps") if hasattr(optimizer, key)}
    values |= {"betas": list(getattr(optimizer, "betas", ())), "size": schedule, "decay": 0.0}
    if isinstance(schedule, PowerDecay):
        values |= {"size": schedule.size, "decay": schedule.power}
    if name == "steepest-descent":
        if not isinstance(optimizer.norm, Lp | L2):
            raise InputError("optimizer", "in a norm lp with p above 1", repr(optimizer))
        values["p"] = getattr(optimizer.norm, "p", 2.0)
    return {"name": name, **{key: values[key] for key in OPTIMIZER_SETTINGS[name]}}


def optimizer_of(given: object, *, trains_head: bool = False) -> Optimizer:
    """Make the optimizer of JSON values; normalised descent if there are none."""
    if given is None:
        given = {"name": "normalized-gd", "size": JOINT_STEP_SIZE if trains_head else STEP_SIZE}
    names = _JOINT if trains_head else tuple(OPTIMIZER_SETTINGS)
    word = given.get("name") if isinstance(given, Mapping) else given
    # Version 1 has the names of classes.
    name = kebab(word) if isinstance(word, str) else ""
    if name not in names or not isinstance(given, Mapping):
        together = " if head and attention are trained together" if trains_head else ""
        raise refuse("optimizer", f"named one of {', '.join(names)}{together}", word)
    unknown = next((key for key in given if key != "name" and key not in OPTIMIZER_SETTINGS[name]), None)
    if unknown is not None:
        raise refuse(f"optimizer.{unknown}", f"left out, for {name} has no such setting", given[unknown])
    settings = {**OPTIMIZER_SETTINGS[name], **{key: value for key, value in given.items() if key != "name"}}
    for key, value in settings.items():
        if isinstance(value, bool | str):
            raise refuse(f"optimizer.{key}", "a number", value)
    try:
        decay, p = settings.pop("decay", 0.0), settings.pop("p", None)
        size: Any = PowerDecay(settings.pop("size"), decay) if decay else settings.pop("size")
        if p is not None:
            return SteepestDescent(Lp(p), size, **settings)
        made: Optimizer = OPTIMIZERS.class_named(name)(size, **settings)
        return Blockwise(made) if trains_head and isinstance(made, NormalizedGD) else made
    except InputError as problem:
        key = "decay" if problem.argument == "power" else problem.argument
        raise refuse(f"optimizer.{key}", problem.expected, problem.got) from problem
