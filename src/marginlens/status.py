"""The status of a margin problem, a search or a run: one enumeration for all results."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np

from marginlens.words import text


class Case(Enum):
    """One of several cases. The value is the code of its sentence; the repr is its name as Python writes it."""

    @property
    def sentence(self) -> str:
        """The case as a sentence."""
        return text(self.value) if self.value else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class Status(Case):
    """The status of a result. The value is the code of its sentence, and `ok` is True if the request succeeded."""

    OPTIMAL = "status.optimal"
    TRIVIAL = "status.trivial"
    INFEASIBLE = "status.infeasible"
    INACCURATE = "status.inaccurate"
    MAX_PROBLEMS = "status.max_problems"
    FINITE = "status.finite"
    INFINITE = "status.infinite"
    COMPLETED = "status.completed"
    STATIONARY = "status.stationary"
    NON_FINITE = "status.non_finite"
    TIED = "status.tied"

    @property
    def ok(self) -> bool:
        """True if the requested answer was found and, for a margin problem, proved."""
        return self in (Status.OPTIMAL, Status.TRIVIAL, Status.FINITE, Status.COMPLETED, Status.STATIONARY)


def names_of(status: Any) -> Any:
    """Return the name of a status, or an array of names, as files hold them."""
    return np.vectorize(lambda one: one.name, otypes=[str])(status)


def statuses(names: Any) -> Any:
    """Return the status of a name, or an object array for several names. Raise KeyError for an unknown name."""
    return Status[str(names)] if np.ndim(names) == 0 else np.array([Status[name] for name in names], dtype=object)
