"""Choices of a descent: how long a step is, and what to keep along the way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from marginlens.errors import array_of_any, positive_number, reject, whole_number
from marginlens.papers import implements

IntArray = npt.NDArray[np.int64]
QUANTITIES = ("p", "norm", "attention", "selected", "risk", "excess_risk", "W")


@implements("A", "Eq. (3)")
@dataclass(frozen=True)
class ConstantStep:
    r"""Gradient descent: :math:`p \leftarrow p - \eta \nabla L(p)`."""

    size: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive_number(self.size, "size"))


@dataclass(frozen=True)
class NormalizedStep:
    r"""Normalised gradient descent: :math:`p \leftarrow p - \eta \nabla L(p) / \|\nabla L(p)\|`."""

    size: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", positive_number(self.size, "size"))


StepRule = ConstantStep | NormalizedStep


def as_step(step: Any) -> StepRule:
    """`step` if it is a step rule, else the sentence that says what is expected."""
    if type(step) not in (ConstantStep, NormalizedStep):  # the loops would ignore what a subclass changes
        raise reject("step", "ml.NormalizedStep(size) or ml.ConstantStep(size)", repr(step))
    return step


@dataclass(frozen=True)
class Record:
    """What to keep of a run: which quantities, after which steps.

    Args:
        steps: a whole number k for every k-th step (the start and the last step included), or the steps themselves, increasing.
        keep: names among "p" (the iterate; "W" where that is a matrix), "norm", "attention" (the softmax), "selected" (its argmax),
            "risk", and "excess_risk" (sign and logarithm of the risk above that of the selected tokens).
    """

    steps: int | Sequence[int] = 1
    keep: Sequence[str] = ("p",)

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Iterable) or getattr(self.keep, "ndim", 1) != 1:
            raise reject("keep", f"names among {', '.join(QUANTITIES)}", repr(self.keep))
        names = (self.keep,) if isinstance(self.keep, str) else tuple(self.keep)
        unknown = [name for name in names if not isinstance(name, str) or name not in QUANTITIES]
        if unknown:
            raise reject("keep", f"names among {', '.join(QUANTITIES)}", repr(unknown[0]))
        object.__setattr__(self, "keep", names)

    def resolve(self, n_steps: int) -> IntArray:
        """The steps to keep of a run of `n_steps`, increasing."""
        if isinstance(self.steps, int | np.integer):
            every = whole_number(self.steps, "steps", at_least=1)
            return np.unique(np.append(np.arange(0, n_steps + 1, every), n_steps)).astype(np.int64)
        expected = f"increasing whole numbers from 0 to n_steps = {n_steps}"
        chosen = array_of_any(self.steps, "steps", expected)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise reject("steps", expected, repr(self.steps))
        if chosen.size and (chosen.min() < 0 or chosen.max() > n_steps or np.any(np.diff(chosen) <= 0)):
            raise reject("steps", expected, f"{chosen.min()} … {chosen.max()}")
        return chosen.astype(np.int64)


def steps_to_save(record: Any, n_steps: int, iterate: str = "p") -> IntArray:
    """The steps that `record` asks to keep of a run of `n_steps`: none for None, else those of an `ml.Record`.

    Args:
        iterate: what the iterate is called, "p" or "W". A matrix W may be asked for as "p", which every record keeps by default.
    """
    if record is None:
        return np.empty(0, dtype=np.int64)
    if not isinstance(record, Record):
        raise reject("record", "an ml.Record or None", repr(record))
    if iterate == "p" and "W" in record.keep:
        raise reject("record", "one that keeps 'p', the iterate of this descent", "one that keeps 'W'")
    return record.resolve(n_steps)
