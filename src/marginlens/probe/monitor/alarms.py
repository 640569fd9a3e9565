"""When a run of training deserves a look: rules over the curves of its heads, each alarm in one sentence.

Every rule compares a head with itself at the first measurement, so that a pretrained model with sinks, or a random one, raises nothing by
what it is; and it must hold at `PERSISTENCE` measurements in a row, so that a single noisy one does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from marginlens.probe.result import CheckpointCurves, finite_mean
from marginlens.typing import BoolArray, FloatArray

PERSISTENCE = 3  # measurements in a row at which a rule must hold
COLLAPSED_ENTROPY_NATS = 0.1  # mean entropy of a layer's heads, at most, that is called a collapse,
COLLAPSED_ENTROPY_SHARE = 0.1  # and at most this share of what it was at first
STUCK_SINK_SHARE = 0.95  # of a head's attention that the most attended token of an input gets, at least,
UNSTUCK_SINK_SHARE = 0.75  # and at first it had at most this
NORM_GROWTH = 2.0  # of the Frobenius norm of W, over the first or over UNIT_NORM, whichever is larger,
UNIT_NORM = 1.0  # at which normalised inputs of no preferred direction have logits of standard deviation 1
UNCHANGED_NNZ_SHARE = 0.95  # of the first nnz/T, that the head still has or exceeds


class AlarmKind(Enum):
    """What an alarm is about; the value is its short title."""

    NOT_FINITE = "attention is not finite"
    ENTROPY_COLLAPSE = "entropy collapse"
    STUCK = "stuck on one token"
    GROWTH_WITHOUT_SPARSITY = "norm grows, attention does not sharpen"


@dataclass(frozen=True)
class Alarm:
    """One finding of a rule.

    Attributes:
        kind: the rule. layer, heads: what it is about; no heads for a whole layer.
        step: the first of the steps in a row at which it held, for the first of the heads. sentence: what to tell the person who trains.
    """

    kind: AlarmKind
    layer: int
    heads: tuple[int, ...]
    step: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def find_alarms(curves: CheckpointCurves) -> tuple[Alarm, ...]:
    """All alarms that the curves of a run raise, one for each rule and layer, those that began first before the others."""
    found = [*_not_finite(curves), *_collapses(curves), *_stuck(curves), *_growth(curves)]
    return tuple(sorted(found, key=lambda alarm: (alarm.step, alarm.layer, alarm.heads)))


def alarm_summary(alarms: Sequence[Alarm], most: int = 12) -> tuple[str, ...]:
    """The sentences of the first alarms, and one that counts the rest."""
    rest = len(alarms) - most
    shown = [alarm.sentence for alarm in alarms[: most if rest > 1 else most + 1]]
    return (*shown, *([f"There are {rest} more alarms of this kind or another."] if rest > 1 else []))


def _not_finite(curves: CheckpointCurves) -> list[Alarm]:
    """Heads whose attention was finite at first; it takes one measurement."""
    values = curves["relative_nnz"]
    is_lost = np.isnan(values) & np.isfinite(values[0])
    found = []
    for layer in np.flatnonzero(is_lost.any(axis=(0, 2))).tolist():
        heads = np.flatnonzero(is_lost[:, layer].any(axis=0)).tolist()
        step = _step(curves, int(np.argmax(is_lost[:, layer].any(axis=1))))
        said = f"{_named(curves, layer, heads)}: attention that is not finite from step {step} on, so that the weights or inputs are not."
        found.append(Alarm(AlarmKind.NOT_FINITE, layer, tuple(heads), step, said))
    return found


def _collapses(curves: CheckpointCurves) -> list[Alarm]:
    """Layers whose heads have all but lost their entropy: Zhai et al. (2023) find it before training diverges."""
    means = finite_mean(curves["entropy"])  # (n_checkpoints, n_layers)
    found = []
    for layer, curve in enumerate(means.T):
        with np.errstate(invalid="ignore"):
            holds = (curve <= COLLAPSED_ENTROPY_NATS) & (curve <= COLLAPSED_ENTROPY_SHARE * curve[0])
        start = _first_run(holds)
        if start is not None:
            name = curves.layer_title(layer).capitalize()
            step, low = _step(curves, start), float(np.nanmin(curve[start:]))
            said = (
                f"{name}: entropy collapse from step {step} on; the mean entropy of its heads fell from {curve[0]:.2g} to "
                f"{low:.1g} nats, which often comes before training diverges (a lower learning rate or a longer warm-up helps)."
            )
            found.append(Alarm(AlarmKind.ENTROPY_COLLAPSE, layer, (), step, said + _after(curves, holds, start)))
    return found


def _stuck(curves: CheckpointCurves) -> list[Alarm]:
    """Heads that give all their attention to one token of each input, whatever the query, and did not at first."""
    sink = curves["sink_share"]
    found = []
    with np.errstate(invalid="ignore"):
        holds = (sink >= STUCK_SINK_SHARE) & (sink[0] <= UNSTUCK_SINK_SHARE)
    for layer, starts in _by_layer(holds):
        heads, start = list(starts), min(starts.values())
        step, at = _step(curves, start), (list(starts.values()), layer, heads)
        first = curves["first_share"][at] if "first_share" in curves.measures else np.array([np.nan])
        which = ", the first," if (first >= STUCK_SINK_SHARE).all() else ""
        said = (
            f"{_named(curves, layer, heads)}: stuck on one token from step {step} on; one token of each input{which} gets "
            f"{_span(sink[at], '.0%')} of the attention of all queries, against {_span(sink[0, layer, heads], '.0%')} at first."
        )
        said += _after(curves, holds[:, layer, heads].any(axis=1), start)
        found.append(Alarm(AlarmKind.STUCK, layer, tuple(heads), step, said))
    return found


def _growth(curves: CheckpointCurves) -> list[Alarm]:
    """Heads whose W grows at every measurement, by far, while their attention is as even as it was."""
    norms, share = curves["frobenius"], curves["relative_nnz"]
    found = []
    with np.errstate(invalid="ignore"):
        is_large = norms >= NORM_GROWTH * np.maximum(norms[0], UNIT_NORM)
        is_growing = np.diff(norms, axis=0, prepend=norms[:1]) > 0.0
        holds = is_large & is_growing & (share >= UNCHANGED_NNZ_SHARE * share[0])
    for layer, starts in _by_layer(holds):
        heads, start = list(starts), min(starts.values())
        step, now = _step(curves, start), ([k + PERSISTENCE - 1 for k in starts.values()], layer, heads)
        said = (
            f"{_named(curves, layer, heads)}: weights that grow without sharper attention from step {step} on; the norm of W went from "
            f"{_span(norms[0, layer, heads], '.2g')} to {_span(norms[now], '.2g')}, nnz/T from "
            f"{_span(share[0, layer, heads], '.2f')} to {_span(share[now], '.2f')} (weight decay holds weights that do nothing)."
        )
        said += _after(curves, holds[:, layer, heads].any(axis=1), start)
        found.append(Alarm(AlarmKind.GROWTH_WITHOUT_SPARSITY, layer, tuple(heads), step, said))
    return found


def _by_layer(holds: BoolArray) -> Iterator[tuple[int, dict[int, int]]]:
    """Of every layer in which a rule (n_measurements, n_layers, n_heads) held long enough: head → where that began."""
    for layer in np.flatnonzero(holds.any(axis=(0, 2))).tolist():
        begun = {head: _first_run(curve) for head, curve in enumerate(holds[:, layer].T)}
        starts = {head: start for head, start in begun.items() if start is not None}
        if starts:
            yield layer, starts


def _named(curves: CheckpointCurves, layer: int, heads: list[int]) -> str:
    """L3H5, or Layer 3, heads 5 and 7; of several stacks encoder 3 H5, or Encoder 3, heads 5 and 7."""
    if len(heads) == 1:
        return curves.head_name(layer, heads[0])
    return f"{curves.layer_title(layer).capitalize()}, heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


def _span(values: FloatArray, form: str) -> str:
    """The smallest and the largest number, or one where they read the same."""
    low, high = (format(float(end(values)), form) for end in (np.min, np.max))
    return low if low == high else f"{low}–{high}"


def _first_run(holds: BoolArray) -> int | None:
    """Where the first `PERSISTENCE` measurements in a row begin at which a rule holds."""
    if len(holds) < PERSISTENCE:
        return None
    runs: FloatArray = np.convolve(holds.astype(float), np.ones(PERSISTENCE), mode="valid")
    starts = np.flatnonzero(runs >= PERSISTENCE - 0.5)
    return int(starts[0]) if starts.size else None


def _after(curves: CheckpointCurves, holds: BoolArray, start: int) -> str:
    """That the rule no longer holds at the last measurement, where it does not."""
    if holds[-1]:
        return ""
    last = int(np.flatnonzero(holds[start:])[-1]) + start
    return f" It is over: the last such step is {_step(curves, last)}."


def _step(curves: CheckpointCurves, place: int) -> int:
    return int(curves.steps[place])
