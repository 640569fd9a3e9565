"""How a margin problem, a search or a run ended: one enumeration for every result."""

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
    """How something ended. The value is the code of its sentence, and `ok` says whether it is what was asked for."""

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
        """True if the answer that was asked for was found and, for a margin problem, proved."""
        return self in (Status.OPTIMAL, Status.TRIVIAL, Status.FINITE, Status.COMPLETED, Status.STATIONARY)


def names_of(status: Any) -> Any:
    """The name of a status, or an array of names, as files hold them."""
    return np.vectorize(lambda one: one.name, otypes=[str])(status)


def statuses(names: Any) -> Any:
    """The status of a name, or an object array of those of several. Raises KeyError for a name that no status has."""
    return Status[str(names)] if np.ndim(names) == 0 else np.array([Status[name] for name in names], dtype=object)
