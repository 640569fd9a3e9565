"""Alarms of a training run: rules over the curves of each head, with remedies.

Rules compare a head with itself at the first measurement, so a pretrained model with sinks raises no alarm. A rule must hold
for a number of optimizer steps, regardless of the number of measurements: a forecast uses the last 100 steps, and a selection
must last for 100. For logits that have already exploded, one measurement is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from marginlens.probe.monitor.forecast import EXPLODED_LOGIT, ForecastKind, happened, recent, rounded, steps_until
from marginlens.probe.result import CheckpointCurves, finite_mean
from marginlens.result import jsonable
from marginlens.typing import BoolArray, FloatArray
from marginlens.words import Fact, render

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


class AlarmKind(Enum):
    """The kind of an alarm; the value is the code of its text."""

    NOT_FINITE = "alarm.attention_not_finite"
    EXPLODES = "alarm.logits_explode"
    STUCK = "alarm.stuck"
    GROWTH_WITHOUT_SPARSITY = "alarm.norm_grows"
    LOSS_NOT_FINITE = "alarm.loss_not_finite"
    LOSS_LEAPS = "alarm.loss_leaps"
    NOTHING_MOVES = "alarm.nothing_moves"
    # Not an alarm.
    HAS_SELECTED = "alarm.has_selected"


# A head with one of these no longer does what it selected while the loss fell.
_RUINS = {AlarmKind.NOT_FINITE, AlarmKind.EXPLODES, AlarmKind.STUCK}
# The codes of what to try and of why, for the kinds that have them.
_REMEDIES = {
    AlarmKind.NOT_FINITE: "alarm_remedy.earlier_checkpoint",
    AlarmKind.EXPLODES: "alarm_remedy.smaller_logits",
    AlarmKind.STUCK: "alarm_remedy.slower_start",
    AlarmKind.GROWTH_WITHOUT_SPARSITY: "alarm_remedy.weight_decay",
    AlarmKind.LOSS_NOT_FINITE: "alarm_remedy.earlier_checkpoint_and_warm_up",
    AlarmKind.LOSS_LEAPS: "alarm_remedy.earlier_checkpoint_and_warm_up",
    AlarmKind.NOTHING_MOVES: "alarm_remedy.other_rate",
}
_REASONS = {
    AlarmKind.EXPLODES: "alarm_reason.logits_explode",
    AlarmKind.STUCK: "alarm_reason.stuck",
}


# A note on an alarm that was raised in a run and whose rule, with later measurements, does not hold.
WITHDRAWN = "alarm.withdrawn"

# The numbers of an alarm, from a layer, its heads and the measurement at which the rule first held for each of them.
Numbers = Callable[[int, list[int], list[int]], dict[str, Any]]


@dataclass(frozen=True)
class Alarm:
    """An alarm of a rule in a run; `print(alarm)` shows what happens, what to try, and why.

    Attributes:
        kind: the rule.

        layer: the layer; None if the alarm is about the whole model.

        heads: the heads of that layer; none if the alarm is about the whole model.

        step: the optimizer step at which the rule began to hold, for the first of the heads.

        numbers: the numbers in its text, such as "logit", the largest logit at that step.

        ended: the last step at which the rule held; None if it holds at the last measurement.

        is_over: whether the rule no longer holds or the run is over, so that the text is in the past tense.
    """

    kind: AlarmKind
    layer: int | None
    heads: tuple[int, ...]
    step: int
    numbers: Mapping[str, Any]
    ended: int | None = None
    is_over: bool = False

    @property
    def code(self) -> str:
        """The code of its text."""
        return self.kind.value

    @property
    def lead(self) -> str:
        """The first words of the sentence, such as "Logits are exploding"."""
        name = "logits_grow" if self._is_unfulfilled else self.code.removeprefix("alarm.")
        return render(Fact(f"alarm_lead.{name}", {"case": "past" if self.is_over else "now"}))

    @property
    def sentence(self) -> str:
        """A sentence that says what happens, or what happened."""
        return render(Fact(self.code, {**self.numbers, "lead": self.lead}))

    @property
    def _is_unfulfilled(self) -> bool:
        return self.numbers.get("case") == "not_reached"

    @property
    def remedy(self) -> str:
        """What to try; empty for a selection, which needs no remedy."""
        return render(Fact(_REMEDIES[self.kind])) if self.kind in _REMEDIES else ""

    @property
    def reason(self) -> str:
        """Why the remedy should help; empty if no reason is given."""
        return render(Fact(_REASONS[self.kind], self.numbers)) if self.kind in _REASONS else ""

    @property
    def ending(self) -> str:
        """A sentence on the end of the alarm; empty if it has not ended."""
        case = "withdrawn" if self._is_unfulfilled else "over"
        return "" if self.ended is None else render(Fact("alarm.ended", {"step": self.ended, "case": case}))

    def __str__(self) -> str:
        return "\n".join(
            [
                " ".join(filter(None, [self.sentence, self.ending])),
                *([f"Try: {self.remedy}"] if self.remedy else []),
                *([f"Why: {self.reason}"] if self.reason else []),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the alarm as plain values: code, layer, heads, steps, numbers and sentence."""
        named = {
            name: getattr(self, name) for name in ("code", "layer", "heads", "step", "ended", "numbers", "sentence")
        }
        return dict(jsonable(named))


def find_alarms(curves: CheckpointCurves) -> tuple[Alarm, ...]:
    """Find all alarms in the curves of a run.

    Args:
        curves: the measurements of a run, from `read_run` or `AttentionMonitor.curves`.

    Returns:
        One alarm for each rule and layer, the earliest first. Heads of one layer share an alarm.

    Examples:
        >>> import numpy as np
        >>> from marginlens.probe import CheckpointCurves, find_alarms
        >>> steps = np.arange(0.0, 100.0, 10.0)
        >>> measures = dict.fromkeys(("entropy", "max_logit", "frobenius", "relative_nnz"), np.ones((10, 1, 1)))
        >>> loss = np.where(steps < 50, 1.0, 3.0).reshape(10, 1, 1)
        >>> names = tuple(f"step {step:.0f}" for step in steps)
        >>> (alarm,) = find_alarms(CheckpointCurves("a model", names, steps, {**measures, "loss": loss}, n_inputs=8))
        >>> alarm.kind.name, alarm.step
        ('LOSS_LEAPS', 50)
    """
    of_layers = [*_not_finite(curves), *_explosions(curves), *_selections(curves, helped=False), *_growth(curves)]
    of_model = [*loss_alarms(curves.steps, _losses(curves)), *_nothing_moves(curves)]
    return tuple(sorted((_timed(alarm, curves) for alarm in (*of_model, *of_layers)), key=lambda alarm: alarm.step))


def find_selections(curves: CheckpointCurves) -> tuple[Alarm, ...]:
    """Find the heads that have come to select one token for each query while the loss fell.

    This is what training should do, so it is not an alarm. Layers with an earlier or later alarm about exploding logits, stuck
    heads or non-finite attention are left out.

    Args:
        curves: the measurements of a run, from `read_run` or `AttentionMonitor.curves`.

    Returns:
        One selection for each such layer, the earliest first, with `kind` `HAS_SELECTED`.
    """
    ruined = {alarm.layer for alarm in find_alarms(curves) if alarm.kind in _RUINS}
    return tuple(_timed(alarm, curves) for alarm in _selections(curves, helped=True) if alarm.layer not in ruined)


def _timed(alarm: Alarm, curves: CheckpointCurves) -> Alarm:
    """Return an alarm that is over if its rule no longer holds or the run is finished."""
    return replace(alarm, is_over=curves.is_finished or alarm.ended is not None)


def alarm_summary(alarms: Sequence[Alarm], most: int = 12) -> tuple[Alarm | Fact, ...]:
    """Return the first alarms, and a fact that counts the rest if there are at least two more."""
    rest = len(alarms) - most
    if rest <= 1:
        return tuple(alarms)
    return (*alarms[:most], Fact("alarm.more", {"count": rest}))


# ---- rules


def _not_finite(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Find heads whose attention was finite at first and no longer is; one measurement is enough."""
    values = curves["entropy"]
    is_lost = np.isnan(values) & np.isfinite(values[0])

    yield from _alarms(curves, AlarmKind.NOT_FINITE, is_lost, 0, lambda layer, heads, starts: {})


def _explosions(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Find heads whose largest logit has passed 1,000 while they attend to one token, or is forecast to within `HORIZON_STEPS`."""
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

    def numbers(layer: int, heads: list[int], starts: list[int]) -> dict[str, Any]:
        index, _, head = min(
            (start, waiting.n_steps[start, layer, head], head) for start, head in zip(starts, heads, strict=True)
        )
        logit = float(logits[index, layer, head])
        if logit >= EXPLODED_LOGIT:
            return {"logit": logit, "case": "exploded"}
        step, last = _step(curves, index), _step(curves, -1)
        arrivals = (step + rounded(float(steps[index, layer, head])) for steps in waiting)
        found = dict(zip(("arrival", "earliest", "latest"), arrivals, strict=True))
        found |= {"logit": logit, "limit": EXPLODED_LOGIT}
        since = np.nanmax(logits[index:, layer, heads], axis=1)  # there is a finite logit wherever the rule held
        if since.max() >= EXPLODED_LOGIT:
            return {
                **found,
                "reached": _step(curves, index + int(np.argmax(since >= EXPLODED_LOGIT))),
                "case": "passed",
            }
        if curves.is_finished or last >= max(found["arrival"], step + 1) or not holds[-1, layer, heads].any():
            return {**found, "largest": float(since.max()), "last": last, "case": "not_reached"}
        return {**found, "case": "forecast" if found["arrival"] > step else "near"}

    yield from _alarms(curves, AlarmKind.EXPLODES, holds, 0, numbers)


def _selections(curves: CheckpointCurves, *, helped: bool) -> Iterator[Alarm]:
    """Find heads that came to attend to one token for each query, with a loss that fell meanwhile, or one that did not."""
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

    def numbers(layer: int, heads: list[int], starts: list[int]) -> dict[str, Any]:
        gain = gains[layer, heads[0]]
        losses = {"before": gain.before, "best": gain.best, "now": gain.now}
        case = "risen" if gain.has_fallen else "flat"
        return {"entropy": _span(entropy[-1, layer, heads], "digits"), **losses, **({} if helped else {"case": case})}

    yield from _alarms(curves, AlarmKind.HAS_SELECTED if helped else AlarmKind.STUCK, holds, 0, numbers)


def _growth(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Find heads whose W grows at every measurement, by far, while their attention is as even as it was."""
    norms, share = curves["frobenius"], curves["relative_nnz"]
    with np.errstate(invalid="ignore"):
        is_large = norms >= NORM_GROWTH * np.maximum(norms[0], UNIT_NORM)
        is_growing = np.diff(norms, axis=0, prepend=norms[:1]) > 0.0
        grows = is_large & is_growing & (share >= UNCHANGED_NNZ_SHARE * share[0])

    def numbers(layer: int, heads: list[int], starts: list[int]) -> dict[str, Any]:
        at = (starts, layer, heads)
        return {
            "first_norm": _span(norms[0, layer, heads], "digits"),
            "norm": _span(norms[at], "digits"),
            "first_share": _span(share[0, layer, heads], "decimals"),
            "share": _span(share[at], "decimals"),
        }

    yield from _alarms(curves, AlarmKind.GROWTH_WITHOUT_SPARSITY, grows, GROWTH_STEPS, numbers)


def loss_alarms(steps: FloatArray, loss: FloatArray) -> Iterator[Alarm]:
    """Return the alarms of a loss (n_measurements,) that is no longer finite, or that far exceeds its recent values."""
    is_known = np.isfinite(loss)
    if not is_known.any():
        return
    first = int(np.argmax(is_known))
    if not is_known[first:].all():
        lost = first + int(np.argmin(is_known[first:]))
        step = int(steps[lost])
        yield Alarm(AlarmKind.LOSS_NOT_FINITE, None, (), step, {"step": step, "before": float(loss[lost - 1])})
    steps, loss = steps[is_known], loss[is_known]
    shifted = [np.append(np.full(k, -np.inf), loss)[: len(loss)] for k in range(1, LEAP_OVER + 1)]
    leaps = loss > np.max(shifted, axis=0) + LEAP_SHARE * abs(loss[0])
    leaps[0] = False
    if leaps.any():
        index = int(np.argmax(leaps))
        step, before, now, worst = (
            int(steps[index]),
            float(loss[index - 1]),
            float(loss[index]),
            float(loss[index:].max()),
        )
        case = "higher_later" if worst > now else "highest"
        numbers = {"step": step, "before": before, "now": now, "worst": worst, "case": case}
        yield Alarm(AlarmKind.LOSS_LEAPS, None, (), step, numbers)


def _nothing_moves(curves: CheckpointCurves) -> Iterator[Alarm]:
    """Detect a run in which no head moves while the loss, which has never fallen by far, stays as it is."""
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
    first, last = int(np.argmax(holds)), int(np.flatnonzero(holds)[-1])
    step = _step(curves, first)
    numbers = {"n_steps": STILL_STEPS, "step": step, "loss": float(smooth[first]), "first_loss": float(loss[0])}
    ended = _step(curves, last) if last < len(steps) - 1 else None
    yield Alarm(AlarmKind.NOTHING_MOVES, None, (), step, numbers, ended)


# ---- what rules have in common


def _losses(curves: CheckpointCurves) -> FloatArray:
    """Return the loss (n_measurements,), which is one for all heads; nan if there is none."""
    return curves["loss"][:, 0, 0] if "loss" in curves.measures else np.full(len(curves.steps), np.nan)


def _alarms(
    curves: CheckpointCurves,
    kind: AlarmKind,
    holds: BoolArray,
    n_steps: int,
    numbers: Numbers,
) -> Iterator[Alarm]:
    """Return one alarm for each layer in which a rule (n_measurements, n_layers, n_heads) held for `n_steps` steps."""
    holds = _lasting(curves.steps, holds, n_steps)
    for layer in np.flatnonzero(holds.any(axis=(0, 2))).tolist():
        heads = np.flatnonzero(holds[:, layer].any(axis=0)).tolist()
        starts = [int(np.argmax(holds[:, layer, head])) for head in heads]
        ended = None
        if not holds[-1, layer, heads].any() and kind is not AlarmKind.NOT_FINITE:
            ended = _step(curves, int(np.flatnonzero(holds[:, layer, heads].any(axis=1))[-1]))
        step = _step(curves, min(starts))
        named = {"heads": _named(curves, layer, heads), "step": step, **numbers(layer, heads, starts)}
        yield Alarm(kind, layer, tuple(heads), step, named, ended)


def _lasting(steps: FloatArray, holds: BoolArray, n_steps: float) -> BoolArray:
    """Return whether a rule holds now and at every measurement of the last `n_steps` steps; the run must be that old."""
    first = np.searchsorted(steps, steps - n_steps)
    fails = np.concatenate([np.zeros((1, *holds.shape[1:]), dtype=int), np.cumsum(~holds, axis=0)])
    return np.asarray((fails[1:] == fails[first]) & (steps - steps[0] >= n_steps)[:, None, None])


class _Gain(NamedTuple):
    """The loss before a head sharpened, its best value since then, and its present value, each as a mean of three measurements."""

    before: float
    best: float
    now: float

    @property
    def has_fallen(self) -> bool:
        """True if the loss was clearly lower at some time than before."""
        return self.best <= self.before - HELPED_SHARE * abs(self.before)

    @property
    def has_helped(self) -> bool:
        """True if the loss is clearly lower than before, and most of the best gain remains."""
        fell = self.now <= self.before - HELPED_SHARE * abs(self.before)
        return fell and self.now - self.best <= LOST_SHARE * (self.before - self.best)


def _gain(loss: FloatArray, was_even: BoolArray) -> _Gain:
    """Measure the gain in the loss (n_measurements,) since a head's attention was last half as even as at first."""
    before_at = int(np.flatnonzero(was_even)[-1]) if was_even.any() else 0
    after = loss[before_at:][np.isfinite(loss[before_at:])]
    before, now = float(finite_mean(loss[max(0, before_at - 2) : before_at + 1])), float(finite_mean(loss[-3:]))
    best = float(np.convolve(after, np.ones(3) / 3, mode="valid").min()) if len(after) >= 3 else now
    return _Gain(before, min(best, now), now)


def _named(curves: CheckpointCurves, layer: int, heads: list[int]) -> str | Fact:
    """Name heads: L3H5, or layer 3, heads 5 and 7; in a model of several stacks encoder 3 H5, or encoder 3, heads 5 and 7."""
    if len(heads) == 1:
        return curves.head_name(layer, heads[0])
    return Fact("heads_of_layer.several", {"layer": curves.layer_title(layer), "heads": heads})


def _span(values: FloatArray, precision: str) -> Fact:
    """Return the smallest and the largest number, or one of them if they read the same to two "digits" or "decimals"."""
    low, high = float(np.min(values)), float(np.max(values))
    form = {"digits": ".2g", "decimals": ".2f"}[precision]
    case = "one" if format(low, form) == format(high, form) else "two"
    return Fact(f"span.{precision}", {"low": low, "high": high, "case": case})


def _step(curves: CheckpointCurves, index: int) -> int:
    return int(curves.steps[index])
