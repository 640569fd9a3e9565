"""When a run of training deserves a look: rules over the curves of each head, and what to do about it, in one sentence.

Rules compare a head with itself at the first measurement, so that a pretrained model with sinks raises nothing by what it is. They must
hold for steps of training, however many measurements these are: a forecast rests on the last 100 steps, selections last for 100. Logits
that are already beyond all measure need one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from marginlens.probe.monitor.forecast import EXPLODED_LOGIT, ForecastKind, happened, in_steps, recent, steps_until
from marginlens.probe.result import CheckpointCurves, finite_mean
from marginlens.typing import BoolArray, FloatArray

HORIZON_STEPS = 150  # within which logits are forecast to explode
MIN_FORECAST_STEP = 50  # before which growth says nothing: the first steps of every run are fast
SELECTED_SHARE = 0.1  # of its first entropy, at most, that a head has when it has selected,
SELECTED_STEPS = 100  # for so many steps
HELPED_SHARE = 0.05  # of the loss before a head selected, by which it must have fallen since, at least,
LOST_SHARE = 0.2  # and of this gain it may have lost so much again
NORM_GROWTH = 2.0  # of the Frobenius norm of W, over the first or over UNIT_NORM, whichever is larger,
UNIT_NORM = 1.0  # at which normalised inputs of no preferred direction have logits of standard deviation 1
UNCHANGED_NNZ_SHARE = 0.95  # of the first nnz/T, that the head still has or exceeds,
GROWTH_STEPS = 200  # for so many steps
LEAP_SHARE = 0.25  # of the first loss, by which a loss that leaps exceeds
LEAP_OVER = 5  # measurements before it, all of them
STILL_STEPS = 300  # over which no head has moved,
STILL_SHARE = 0.05  # by more than this share of its first entropy,
FLAT_SHARE = 0.01  # nor the loss by more than this share of the first
_CURE = "clip queries and keys at a logit of 100 (QK-clip), normalise them (QK-norm), or lower the learning rate"

_GROUND = "logits grow like ‖W‖ along a fixed direction, A Thm 3"


class AlarmKind(Enum):
    """What a finding is about; the value is its short title."""

    NOT_FINITE = "attention is not finite"
    EXPLODES = "logits explode"
    STUCK = "stuck"
    GROWTH_WITHOUT_SPARSITY = "norm grows, attention does not sharpen"
    LOSS_NOT_FINITE = "the loss is not finite"
    LOSS_LEAPS = "the loss leaps"
    NOTHING_MOVES = "nothing moves"
    HAS_SELECTED = "has selected"  # which is no alarm


# After these a head does not do any more what it selected while the loss fell.
_RUINS = {AlarmKind.NOT_FINITE, AlarmKind.EXPLODES, AlarmKind.STUCK}


@dataclass(frozen=True)
class Alarm:
    """One finding of a rule.

    Attributes:
        kind: the rule.
        layer, heads: what it is about; None and no heads if it is the whole model.
        step: since when, for the first of the heads.
        sentence: what happens, what to do, and what it rests on.
    """

    kind: AlarmKind
    layer: int | None
    heads: tuple[int, ...]
    step: int
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def find_alarms(curves: CheckpointCurves) -> tuple[Alarm, ...]:
    """All alarms that the curves of a run raise, one for each rule and layer, those that began first before the others."""
    of_layers = [*_not_finite(curves), *_explosions(curves), *_selections(curves, helped=False), *_growth(curves)]
    of_model = [*loss_alarms(curves.steps, _losses(curves)), *_nothing_moves(curves)]
    return tuple(sorted([*of_model, *of_layers], key=lambda alarm: alarm.step))


def find_selections(curves: CheckpointCurves) -> tuple[Alarm, ...]:
    """The heads that have selected, one token for each query, while the loss fell: what training should do, and no alarm.

    Layers whose heads are ruined, before or later, are left out: an alarm says that logits explode, that heads are stuck, or that
    their attention is not finite.
    """
    ruined = {alarm.layer for alarm in find_alarms(curves) if alarm.kind in _RUINS}
    return tuple(found for found in _selections(curves, helped=True) if found.layer not in ruined)


def alarm_summary(alarms: Sequence[Alarm], most: int = 12) -> tuple[str, ...]:
    """The sentences of the first alarms, and one that counts the rest."""
    rest = len(alarms) - most
    shown = [alarm.sentence for alarm in alarms[: most if rest > 1 else most + 1]]
    return (*shown, *([f"There are {rest} more alarms of this kind or another."] if rest > 1 else []))


# ---- rules


def _not_finite(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Heads whose attention was finite at first; it takes one measurement."""
    values = curves["entropy"]
    is_lost = np.isnan(values) & np.isfinite(values[0])

    def said(layer: int, heads: list[int], starts: list[int]) -> str:
        return (
            f"attention that is not finite from step {_step(curves, min(starts))} on, so that the weights or inputs are not: go back to a "
            "checkpoint before it, with a lower learning rate or clipped gradients (seen in the queries and keys themselves)."
        )

    yield from _alarms(curves, AlarmKind.NOT_FINITE, is_lost, 0, said)


def _explosions(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Heads whose largest logit has passed 1,000 while they attend to one token, or is forecast to within `HORIZON_STEPS`."""
    logits = curves["max_logit"]
    waiting = steps_until(curves, ForecastKind.EXPLODES)
    with np.errstate(invalid="ignore"):
        is_there = (
            happened(curves, ForecastKind.EXPLODES)
            & (logits > 10.0 * logits[0])
            & happened(curves, ForecastKind.SELECTS)
        )
        is_near = (waiting.n_steps <= HORIZON_STEPS) & (logits > 2.0 * logits[0])
    is_near &= (curves.steps >= MIN_FORECAST_STEP)[:, None, None]
    holds = is_near | is_there

    def said(layer: int, heads: list[int], starts: list[int]) -> str:
        place, _, head = min(
            (start, waiting.n_steps[start, layer, head], head) for start, head in zip(starts, heads, strict=True)
        )
        size = f"{logits[place, layer, head]:,.3g}"
        what = f"a largest logit of {size} at step {_step(curves, place)}"
        if logits[place, layer, head] < EXPLODED_LOGIT:
            times = (float(values[place, layer, head]) for values in waiting)
            what += f", which reaches {EXPLODED_LOGIT:,.0f} {in_steps(*times)}"
        return f"logits explode: {what}; {_CURE} ({_GROUND})."

    yield from _alarms(curves, AlarmKind.EXPLODES, holds, 0, said)


def _selections(curves: CheckpointCurves, *, helped: bool) -> Iterator[Alarm]:
    """Heads that came to attend to one token for each query, with a loss that fell meanwhile, or one that did not."""
    entropy, loss = curves["entropy"], _losses(curves)
    with np.errstate(invalid="ignore"):
        is_sharp = happened(curves, ForecastKind.SELECTS) & (entropy < SELECTED_SHARE * entropy[0])
        was_even = entropy >= 0.5 * entropy[0]
    holds = _lasting(curves.steps, is_sharp, SELECTED_STEPS)
    gains = {
        (layer, head): _gain(loss, was_even[:, layer, head])
        for layer, head in zip(*np.nonzero(holds.any(axis=0)), strict=True)
    }
    for (layer, head), gain in gains.items():
        if not np.isfinite(gain.before + gain.now) or gain.has_helped != helped:
            holds[:, layer, head] = False

    def said(layer: int, heads: list[int], starts: list[int]) -> str:
        gain = gains[layer, heads[0]]
        levels = _span(entropy[-1, layer, heads], ".2g")
        if helped:
            since = f"by step {_step(curves, min(starts))} ({levels} nats)"
            return f"selected one token for each query {since}, while the loss fell from {gain.before:.3g} to {gain.now:.3g}."
        risen = f"has risen again: {gain.best:.3g} at best, {gain.now:.3g} now"
        flat = f"gained nothing by it: {gain.before:.3g} before, {gain.now:.3g} now"
        return (
            f"stuck on one token for each query from step {_step(curves, min(starts))} on ({levels} nats), and the loss "
            f"{risen if gain.has_fallen else flat}; lower the learning rate, warm it up longer, or start these heads anew "
            "(the gradient of a softmax that has selected vanishes; entropy and loss as measured)."
        )

    yield from _alarms(curves, AlarmKind.HAS_SELECTED if helped else AlarmKind.STUCK, holds, 0, said)


def _growth(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Heads whose W grows at every measurement, by far, while their attention is as even as it was."""
    norms, share = curves["frobenius"], curves["relative_nnz"]
    with np.errstate(invalid="ignore"):
        is_large = norms >= NORM_GROWTH * np.maximum(norms[0], UNIT_NORM)
        is_growing = np.diff(norms, axis=0, prepend=norms[:1]) > 0.0
        grows = is_large & is_growing & (share >= UNCHANGED_NNZ_SHARE * share[0])

    def said(layer: int, heads: list[int], starts: list[int]) -> str:
        at = (starts, layer, heads)
        return (
            f"weights that grow without sharper attention by step {_step(curves, min(starts))}; the norm of W went from "
            f"{_span(norms[0, layer, heads], '.2g')} to {_span(norms[at], '.2g')}, nnz/T from {_span(share[0, layer, heads], '.2f')} to "
            f"{_span(share[at], '.2f')}; weight decay holds weights that do nothing (both as measured)."
        )

    yield from _alarms(curves, AlarmKind.GROWTH_WITHOUT_SPARSITY, grows, GROWTH_STEPS, said)


def loss_alarms(steps: FloatArray, loss: FloatArray) -> Iterator[Alarm]:
    """The alarms of a loss (n_measurements,) that is not finite any more, or that exceeds all that it was of late by far."""
    is_known = np.isfinite(loss)
    if not is_known.any():
        return
    first = int(np.argmax(is_known))
    cure = "go back to a checkpoint before it, with a lower learning rate, a longer warm-up or clipped gradients"
    if not is_known[first:].all():
        lost = first + int(np.argmin(is_known[first:]))
        sentence = f"The loss is not finite at step {steps[lost]:.0f}, after {loss[lost - 1]:.3g}; {cure}."
        yield Alarm(AlarmKind.LOSS_NOT_FINITE, None, (), int(steps[lost]), sentence)
    steps, loss = steps[is_known], loss[is_known]
    shifted = [np.append(np.full(k, -np.inf), loss)[: len(loss)] for k in range(1, LEAP_OVER + 1)]
    leaps = loss > np.max(shifted, axis=0) + LEAP_SHARE * abs(loss[0])
    leaps[0] = False
    if leaps.any():
        place = int(np.argmax(leaps))
        worst = loss[place:].max()
        then = f" (to {worst:.3g} later)" if worst > loss[place] else ""
        sentence = (
            f"The loss leaps from {loss[place - 1]:.3g} to {loss[place]:.3g} at step {steps[place]:.0f}{then}; {cure}."
        )
        yield Alarm(AlarmKind.LOSS_LEAPS, None, (), int(steps[place]), sentence)


def _nothing_moves(curves: CheckpointCurves) -> Iterator[Alarm]:
    """A run in which no head moves while the loss, which has never fallen by far, stays as it is."""
    steps, entropy, loss = curves.steps, curves["entropy"], _losses(curves)
    smooth = recent(loss)
    holds = (steps - steps[0] >= STILL_STEPS) & (smooth > (1.0 - HELPED_SHARE) * loss[0])
    with np.errstate(invalid="ignore"):
        for ago in (STILL_STEPS, STILL_STEPS / 2.0):
            then = np.searchsorted(steps, steps - ago)
            has_moved = np.abs(entropy - entropy[then]) > STILL_SHARE * entropy[0]
            holds &= ~has_moved.any(axis=(1, 2)) & (np.abs(smooth - smooth[then]) <= FLAT_SHARE * abs(loss[0]))
    if not holds.any():
        return
    place, last = int(np.argmax(holds)), int(np.flatnonzero(holds)[-1])
    sentence = (
        f"No head has moved in the {STILL_STEPS} steps before step {_step(curves, place)} while the loss is flat: {smooth[place]:.3g}, and "
        f"{loss[0]:.3g} at first; try another learning rate, and see whether gradients reach the attention layers."
    )
    if last < len(steps) - 1:
        sentence += f" It is over: the last such step is {_step(curves, last)}."
    yield Alarm(AlarmKind.NOTHING_MOVES, None, (), _step(curves, place), sentence)


# ---- what rules have in common


def _losses(curves: CheckpointCurves) -> FloatArray:
    """(n_measurements,) the loss, which is one for all heads; nan if there is none."""
    return curves["loss"][:, 0, 0] if "loss" in curves.measures else np.full(len(curves.steps), np.nan)


def _alarms(
    curves: CheckpointCurves,
    kind: AlarmKind,
    holds: BoolArray,
    n_steps: int,
    said: Callable[[int, list[int], list[int]], str],
) -> Iterator[Alarm]:
    """One alarm for each layer in which a rule (n_measurements, n_layers, n_heads) held for so many steps, with its sentence."""
    holds = _lasting(curves.steps, holds, n_steps)
    for layer in np.flatnonzero(holds.any(axis=(0, 2))).tolist():
        heads = np.flatnonzero(holds[:, layer].any(axis=0)).tolist()
        starts = [int(np.argmax(holds[:, layer, head])) for head in heads]
        sentence = f"{_named(curves, layer, heads)}: {said(layer, heads, starts)}"
        if not holds[-1, layer, heads].any() and kind is not AlarmKind.NOT_FINITE:
            last = int(np.flatnonzero(holds[:, layer, heads].any(axis=1))[-1])
            sentence += f" It is over: the last such step is {_step(curves, last)}."
        yield Alarm(kind, layer, tuple(heads), _step(curves, min(starts)), sentence)


def _lasting(steps: FloatArray, holds: BoolArray, n_steps: float) -> BoolArray:
    """Where a rule holds, and did at every measurement of the `n_steps` steps before; the run must be as old."""
    first = np.searchsorted(steps, steps - n_steps)
    fails = np.concatenate([np.zeros((1, *holds.shape[1:]), dtype=int), np.cumsum(~holds, axis=0)])
    return np.asarray((fails[1:] == fails[first]) & (steps - steps[0] >= n_steps)[:, None, None])


class _Gain(NamedTuple):
    """The loss before a head sharpened, at best since then, and now, each the mean of three measurements."""

    before: float
    best: float
    now: float

    @property
    def has_fallen(self) -> bool:
        """Whether the loss was ever clearly lower than before."""
        return self.best <= self.before - HELPED_SHARE * abs(self.before)

    @property
    def has_helped(self) -> bool:
        """Whether the loss is clearly lower than before, and most of what was gained is still there."""
        fell = self.now <= self.before - HELPED_SHARE * abs(self.before)
        return fell and self.now - self.best <= LOST_SHARE * (self.before - self.best)


def _gain(loss: FloatArray, was_even: BoolArray) -> _Gain:
    """What the loss (n_measurements,) did since a head's attention was last half as even as at first."""
    before_at = int(np.flatnonzero(was_even)[-1]) if was_even.any() else 0
    after = loss[before_at:][np.isfinite(loss[before_at:])]
    before, now = float(finite_mean(loss[max(0, before_at - 2) : before_at + 1])), float(finite_mean(loss[-3:]))
    best = float(np.convolve(after, np.ones(3) / 3, mode="valid").min()) if len(after) >= 3 else now
    return _Gain(before, min(best, now), now)


def _named(curves: CheckpointCurves, layer: int, heads: list[int]) -> str:
    """L3H5, or Layer 3, heads 5 and 7; of several stacks encoder 3 H5, or Encoder 3, heads 5 and 7."""
    if len(heads) == 1:
        return curves.head_name(layer, heads[0])
    return f"{curves.layer_title(layer).capitalize()}, heads {', '.join(map(str, heads[:-1]))} and {heads[-1]}"


def _span(values: FloatArray, form: str) -> str:
    """The smallest and the largest number, or one where they read the same."""
    low, high = (format(float(end(values)), form) for end in (np.min, np.max))
    return low if low == high else f"{low}–{high}"


def _step(curves: CheckpointCurves, place: int) -> int:
    return int(curves.steps[place])
