"""What a descent gives back: where it ended, how it ended, and what was kept along the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from marginlens.data import TokenDataset
from marginlens.directions import length
from marginlens.dynamics.steps import Record
from marginlens.errors import InputError, batch_index, reject, whole_number
from marginlens.losses.margin import Loss
from marginlens.risk.attention import ExcessRisk, excess_risk, risk
from marginlens.risk.softmax import probabilities, softmax
from marginlens.threads import ProgressCallback, as_progress

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class DescentStatus(Enum):
    """How a run ended."""

    COMPLETED = "It took every step that was asked for."
    STATIONARY = "It stopped where the gradient is exactly zero."
    NON_FINITE = "It stopped at its last finite iterate because the next one was not finite."
    TIED = "It stopped where tokens tie: their pulls balance to nine digits, and it goes on too slowly to follow."


ENDINGS = (DescentStatus.COMPLETED, DescentStatus.STATIONARY, DescentStatus.NON_FINITE, DescentStatus.TIED)


@dataclass(frozen=True)
class Saved(Mapping[str, Any]):
    """Quantities kept along a run: `saved["norm"]` has shape (…, n_saved), `saved["p"]` (…, n_saved, d_key), and so on.

    Where a matrix is trained, its iterates are `saved["W"]`, (…, n_saved, d, d).
    `steps` lists the steps. A run that ended early repeats its last iterate from then on.
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


class DescentOutcome:
    """What the outcomes of all descents share: runs of a batch are counted and picked, and a run can go on.

    A subclass is a frozen dataclass whose fields, apart from `saved` and `continuation`, have the batch axis first.
    """

    status: Any
    saved: Saved
    continuation: Any
    _resumable: ClassVar[str]  # which functions return what can go on
    _last: ClassVar[str]  # where to start anew

    def resume(self, n_steps: int, *, record: Record | None = None, progress: ProgressCallback | None = None) -> Self:
        """The run after `n_steps` further steps: exactly what one run of all the steps gives. Runs that ended early stay as they are.

        Args:
            record: what to keep of the further steps, whose numbers go on from `steps_taken`; nothing by default.
            progress: as for the descent itself.
        """
        if self.continuation is None:
            raise InputError(
                f"This run cannot go on: only what {self._resumable} can, as a whole. Start anew at {self._last}."
            )
        more = whole_number(n_steps, "n_steps", at_least=0)
        as_progress(progress)
        return self.continuation.resume(more, record, progress)

    @property
    def is_batch(self) -> bool:
        """Whether there is a leading batch axis."""
        return isinstance(self.status, np.ndarray)

    def __len__(self) -> int:
        return len(self.status) if self.is_batch else 1

    def __getitem__(self, index: Any) -> Self:
        """One run without the batch axis for a whole number; a batch for a slice, a mask (batch,) or a list. Neither can be resumed."""
        places = batch_index(index, len(self), "runs")
        if not self.is_batch:
            if isinstance(places, int):
                return self
            raise reject("index", "0 for a single run, which has no batch axis", repr(index))
        taken = {name: value[places] for name, value in vars(self).items() if name not in ("saved", "continuation")}
        kept = {name: _at(value, places) for name, value in self.saved.items()}
        outcome: Any = type(self)  # a dataclass with these fields
        return outcome(**taken, saved=Saved(self.saved.steps, kept))


@dataclass(frozen=True, eq=False)
class Trajectory(DescentOutcome):
    """A finished descent.

    Attributes:
        final: the last iterate p, shape (…, d_key); for descent on a matrix, W of shape (…, d_query, d_model).
        attention: softmax at the end, (…, n_inputs, n_tokens), zero where there is no token.
        selected: its argmax per input, (…, n_inputs). norm: ‖final‖, (…).
        status: a DescentStatus, or an array (batch,) of them. steps_taken: how many steps each run took, (…).
        saved: what `record` asked to keep. continuation: what `resume` goes on from.

    There is no "converged": the norm diverges while the direction settles. Compare `final` with a prediction and judge.
    """

    final: FloatArray
    attention: FloatArray
    selected: IntArray
    norm: FloatArray
    status: Any
    steps_taken: IntArray
    saved: Saved
    continuation: Any = field(default=None, repr=False)

    _resumable = "descend and descend_nexttoken return"
    _last = "run.final"

    def deviation_from(self, law: Any) -> Any:
        """How far the run is from the law of residual attention, (…): the honest answer to "has it converged?".

        `law` is `residual_law(data, v, run.selected)`. What comes back is the largest |log ratio| between the multipliers that the final
        attention shows and those of the margin problem; it falls exponentially in the norm once the run is in its last regime.
        """
        if not callable(getattr(law, "deviation", None)):
            raise reject("law", "what residual_law(data, v, run.selected) gives", type(law).__name__)
        return law.deviation(self.final)

    def __repr__(self) -> str:
        shape = self.norm.shape
        if not shape:
            chosen = self.selected[:8].tolist()
            listed = f"{chosen}" if len(self.selected) <= 8 else f"{str(chosen)[:-1]}, … {len(self.selected)} in all]"
            return f"Trajectory(norm={float(self.norm):.4g}, selected={listed}, status={self.status.name})"
        early = int(np.sum(self.status != DescentStatus.COMPLETED))
        return f"Trajectory({shape[0]} runs, norms {self.norm.min():.4g} … {self.norm.max():.4g}, {early} ended early)"


@dataclass(frozen=True)
class Run:
    """The bare outcome of a batch of descents, from whichever loop.

    Attributes:
        points: (batch, n_saved + 1, d_key), the final iterate last. reason, taken: (batch,) how each run ended and after how many steps.
        logits: (batch, n_inputs, n_tokens) at the end.
    """

    points: FloatArray
    reason: IntArray
    taken: IntArray
    logits: FloatArray


def finish(data: TokenDataset, run: Run, record: Record | None, steps: IntArray, scoring: Any) -> Trajectory:
    """The trajectory of a batch of descents; `steps` are the saved ones and `scoring` is (v, loss) for the kept risks."""
    final = run.points[:, -1]
    attention = probabilities(run.logits, data.mask)
    return Trajectory(
        final=final,
        attention=attention,
        selected=np.argmax(attention, axis=-1),
        norm=length(final),
        status=np.array(ENDINGS, dtype=object)[run.reason],
        steps_taken=run.taken,
        saved=Saved(steps, _kept(data, run.points[:, :-1], record, scoring)),
    )


def _at(value: Any, places: Any) -> Any:
    return type(value)(value.sign[places], value.log[places]) if hasattr(value, "sign") else value[places]


def _kept(data: TokenDataset, points: FloatArray, record: Record | None, scoring: tuple[Any, Loss]) -> dict[str, Any]:
    """Every asked-for quantity at every saved iterate, (batch, n_saved, …)."""
    if record is None:
        return {}
    v, loss = scoring
    kept: dict[str, Any] = {}
    shape = points.shape[:2]
    for name in record.keep:
        if name == "p":
            kept[name] = points
        elif name == "norm":
            kept[name] = length(points)
        elif name == "attention":
            kept[name] = _stack([softmax(data, points[:, k]) for k in range(shape[1])], (*shape, *data.mask.shape[1:]))
        elif name == "selected":
            chosen = [np.argmax(softmax(data, points[:, k]), axis=-1) for k in range(shape[1])]
            kept[name] = _stack(chosen, (*shape, data.n_inputs)).astype(np.int64)
        elif name == "risk":
            kept[name] = _stack([risk(data, v, points[:, k], loss) for k in range(shape[1])], shape)
        else:
            parts = [excess_risk(data, v, points[:, k], loss) for k in range(shape[1])]
            kept[name] = ExcessRisk(_stack([e.sign for e in parts], shape), _stack([e.log for e in parts], shape))
    return kept


def _stack(parts: list[Any], shape: tuple[int, ...]) -> Any:
    return np.stack(parts, axis=1) if parts else np.empty(shape)
