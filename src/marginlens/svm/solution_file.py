"""Files of margin solutions: the problem, its solution and its proof, which is checked again when it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from marginlens.errors import InputError
from marginlens.norms import norm_name, norm_named
from marginlens.runtime.files import not_such_a_file, read_result, write_result
from marginlens.status import Status, names_of, statuses
from marginlens.svm.solvers.rows import BilinearRows

if TYPE_CHECKING:
    from marginlens.svm.solution import MarginSolution

SOLUTION_FORMAT = "marginlens-solution-1"  # the entry "format" of a file that holds a solution
_PARTS = ("X", "Q", "triples", "scale")  # of rows that are known by tokens and queries


def save_solution(solution: MarginSolution, path: str | os.PathLike[str]) -> None:
    """Write the problem, its solution and its proof to a .npz file."""
    arrays: dict[str, Any] = {"kind": type(solution).__name__, "norm": norm_name(solution.norm)}
    arrays["status"] = names_of(solution.status)
    for name, value in ((field.name, getattr(solution, field.name)) for field in fields(solution)):
        if isinstance(value, BilinearRows):
            parts = (value.X, value.Q, value.triples, value.terms.scale)
            arrays |= {f"{name}.{part}": array for part, array in zip(_PARTS, parts, strict=True)}
        elif name not in arrays and value is not None:
            arrays[name] = value
    write_result(path, SOLUTION_FORMAT, arrays)


def load_solution(path: str | os.PathLike[str], kinds: Sequence[type[MarginSolution]]) -> MarginSolution:
    """The solution in a file, of the one of these kinds that it was; a proof that does not hold makes its status INACCURATE."""
    expected = "a .npz file that MarginSolution.save wrote"
    arrays = read_result(path, SOLUTION_FORMAT, expected, ("kind", "norm", "status", "lower", "x", "multipliers"))
    try:
        kind = {known.__name__: known for known in kinds}[str(arrays["kind"])]
        rows = {name: _rows(name, arrays) for name in ("rows", "equalities")}
        taken = {field.name: arrays.get(field.name) for field in fields(kind)}
        solution = kind(
            **{**taken, **rows, "status": statuses(arrays["status"]), "norm": norm_named(str(arrays["norm"]))}
        )
        return _checked(solution)
    except (InputError, KeyError, ValueError, TypeError, IndexError) as problem:
        raise not_such_a_file(path, expected, arrays) from problem


def _rows(name: str, arrays: Mapping[str, Any]) -> Any:
    if f"{name}.X" not in arrays:
        return arrays.get(name)
    return BilinearRows(*(arrays[f"{name}.{part}"] for part in _PARTS))


def _checked(solution: MarginSolution) -> MarginSolution:
    """The solution with a status that its own numbers prove."""
    claimed = np.asarray(solution.status == Status.TRIVIAL)
    is_trivial = (solution.lower <= 0.0).all(axis=-1) & ~np.asarray(solution.x.reshape(*claimed.shape, -1)).any(axis=-1)
    status = np.where(claimed & ~is_trivial, np.array(Status.INACCURATE), np.asarray(solution.status))
    return replace(solution, status=status if solution.is_batch else status.item()).with_verified_status()
