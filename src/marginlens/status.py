"""How a margin problem, a search or a run ended: one enumeration for every result."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np


class Case(Enum):
    """One of several cases, whose value is the sentence that users read; its repr is its name as Python writes it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class Status(Case):
    """How something ended; the value is the sentence that users read, and `ok` says whether it is what was asked for."""

    OPTIMAL = "The shortest vector was found, and its multipliers prove that it is the shortest."
    TRIVIAL = "Zero satisfies every condition, so there is nothing to separate or to correct."
    INFEASIBLE = "No vector satisfies every constraint, and the certificate proves it."
    INACCURATE = "Rounding decides: neither a solution nor its absence could be proved in double precision."
    MAX_PROBLEMS = (
        "The largest number of subproblems was reached: this is the best found, and its gap bounds what is missing."
    )
    FINITE = "A minimum of the risk was found at a finite norm."
    INFINITE = "The risk falls for ever along a direction, so no finite minimum was there to find."
    COMPLETED = "It took every step that was asked for."
    STATIONARY = "It stopped where the gradient is exactly zero."
    NON_FINITE = "It stopped at its last finite iterate because the next one was not finite."
    TIED = "It stopped where tokens tie: their gradient contributions cancel to nine digits, and progress is too slow to continue."

    @property
    def ok(self) -> bool:
        """Whether the answer that was asked for was found and, for a margin problem, proved."""
        return self in (Status.OPTIMAL, Status.TRIVIAL, Status.FINITE, Status.COMPLETED, Status.STATIONARY)


def names_of(status: Any) -> Any:
    """The name of a status, or an array of names, as files hold them."""
    return np.vectorize(lambda one: one.name, otypes=[str])(status)


def statuses(names: Any) -> Any:
    """The status of a name, or an object array of those of several. Raises KeyError for a name that no status has."""
    return Status[str(names)] if np.ndim(names) == 0 else np.array([Status[name] for name in names], dtype=object)
