"""The quantities to keep of a run, the steps after which they are kept, and their measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import ExcessRisk
from marginlens.errors import InputError, array_of_any, whole_number
from marginlens.risk.protocol import Risk, holds_batch
from marginlens.typing import FloatArray, IntArray

QUANTITIES = ("x", "norm", "attention", "selected", "margin", "risk", "excess_risk")
_METHODS = {
    "attention": "attention",
    "selected": "select",
    "margin": "margins",
    "risk": "value",
    "excess_risk": "excess",
}


@dataclass(frozen=True)
class Record:
    """The quantities to keep of a run, and the steps after which they are kept.

    Args:
        steps: a whole number k for every k-th step (including the start and the last step), or the steps themselves, increasing.

        keep: names among "x" (the iterate), "norm" (Euclidean), "attention" (the softmax), "selected" (its argmax), "margin" (Y f(X) of
            every input), "risk", and "excess_risk" (sign and logarithm of the risk above that of the selected tokens).
    """

    steps: int | Sequence[int] = 1
    keep: Sequence[str] = ("x",)

    def __post_init__(self) -> None:
        if not isinstance(self.keep, Iterable) or getattr(self.keep, "ndim", 1) != 1:
            raise InputError("keep", f"names among {', '.join(QUANTITIES)}", repr(self.keep))
        names = (self.keep,) if isinstance(self.keep, str) else tuple(self.keep)
        unknown = [name for name in names if not isinstance(name, str) or name not in QUANTITIES]
        if unknown:
            raise InputError("keep", f"names among {', '.join(QUANTITIES)}", repr(unknown[0]))
        object.__setattr__(self, "keep", names)

    def resolve(self, n_steps: int) -> IntArray:
        """Return the steps to keep of a run of `n_steps`, in increasing order."""
        if isinstance(self.steps, int | np.integer):
            every = whole_number(self.steps, "steps", at_least=1)
            return np.unique(np.append(np.arange(0, n_steps + 1, every), n_steps)).astype(np.int64)
        expected = f"increasing whole numbers from 0 to n_steps = {n_steps}"
        chosen = array_of_any(self.steps, "steps", expected)
        if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
            raise InputError("steps", expected, repr(self.steps))
        if chosen.size and (chosen.min() < 0 or chosen.max() > n_steps or np.any(np.diff(chosen) <= 0)):
            raise InputError("steps", expected, f"{chosen.min()} … {chosen.max()}")
        return chosen.astype(np.int64)


def steps_to_save(record: Record | None, n_steps: int) -> IntArray:
    """Return the steps that `record` keeps of a run of `n_steps`: none for None, else those of an `ml.Record`."""
    if record is None:
        return np.empty(0, dtype=np.int64)
    if not isinstance(record, Record):
        raise InputError("record", "an ml.Record or None", repr(record))
    return record.resolve(n_steps)


@dataclass(frozen=True)
class Saved(Mapping[str, Any]):
    """Quantities kept along a run: `saved["norm"]` has shape (…, n_saved), `saved["x"]` has `(…, n_saved, *shape)`, and so on.

    `steps` lists the steps. After an early end, a run repeats its last iterate.
    """

    steps: IntArray
    kept: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        if name not in self.kept:
            names = ", ".join(self.kept) or "nothing"
            raise KeyError(f"{name!r} was not kept (kept: {names}); ask for it with record=ml.Record(keep=...)")
        return self.kept[name]

    def __iter__(self) -> Any:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)

    def __repr__(self) -> str:
        return f"Saved({', '.join(self.kept) or 'nothing'} at {len(self.steps)} steps)"


def check_record(record: Record | None, risk: Risk) -> None:
    """Refuse a record that asks for quantities that the risk does not have."""
    for name in record.keep if isinstance(record, Record) else ():
        if name in _METHODS and not hasattr(risk, _METHODS[name]):
            raise InputError("record", f"without {name!r}, which {type(risk).__name__} does not measure", "it")
        if name == "excess_risk" and hasattr(risk, "check_excess"):
            risk.check_excess()


def measure(risk: Risk, points: FloatArray, record: Record | None) -> dict[str, Any]:
    """Measure every requested quantity at every saved iterate (batch, n_saved, *shape), with the axes (batch, n_saved, …)."""
    kept: dict[str, Any] = {}
    for name in () if record is None else record.keep:
        if name == "x":
            kept[name] = points
        elif name == "norm":
            kept[name] = length(points.reshape(*points.shape[:2], int(np.prod(points.shape[2:]))))
        else:
            kept[name] = _along(risk, _METHODS[name], points)
    return kept


def _along(risk: Risk, method: str, points: FloatArray) -> Any:
    """Apply a method of the risk to every saved iterate."""
    many = getattr(risk, "along_runs", None)  # for risks that answer faster at many points at once
    if many is not None and (found := many(method, points)) is not None:
        return found
    is_batch, question = holds_batch(risk), getattr(risk, method)
    n_saved = points.shape[1]
    asked = (
        points if n_saved else np.zeros((len(points), 1, *points.shape[2:]))
    )  # nothing saved: one answer shows the shape
    answers = [question(asked[:, k] if is_batch else asked[0, k]) for k in range(asked.shape[1])]
    if isinstance(answers[0], ExcessRisk):
        parts = (_stack([getattr(e, part) for e in answers], is_batch) for part in ("sign", "log"))
        return ExcessRisk(*(part[:, :n_saved] for part in parts))
    return _stack(answers, is_batch)[:, :n_saved]


def _stack(answers: list[Any], is_batch: bool) -> Any:
    return np.stack(answers, axis=1) if is_batch else np.stack(answers)[None]
