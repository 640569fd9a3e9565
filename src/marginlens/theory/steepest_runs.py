"""Runs of any optimizer, followed until X Theorem 4 proves which tokens they select, or until nothing seems to change them any more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length, unit
from marginlens.dynamics import Record, descend
from marginlens.dynamics.trajectory import Trajectory
from marginlens.norms import L2
from marginlens.optimizers import Adam, NormalizedGD, SteepestDescent
from marginlens.optimizers.compiled import compiled_rule
from marginlens.optimizers.protocol import Optimizer
from marginlens.risk import MatrixRisk, SoftmaxRisk
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.status import Status
from marginlens.theory.any_norm import (
    Lacking,
    Place,
    Plan,
    SteepestSteps,
    certificate_at,
    lacking_fact,
    place_at,
    plan_for,
    steepest_steps,
)
from marginlens.theory.attraction import steepness_of
from marginlens.theory.optimality import directional_margin
from marginlens.theory.outcome import NUDGE, Outcome, by_flow, inputs_of, nudged, rivals_of, unmoved, verdict_on
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_memory import Memory, memory_of, n_remembered
from marginlens.theory.unproved_steps import UnprovedSteps, optimizer_words, steps_of
from marginlens.typing import FloatArray, IntArray
from marginlens.words import Fact

FIRST_STEPS = 64  # after which a run is looked at for the first time, and then after twice as many each
MAX_STEPS = 65_536
MAX_SLOW_STEPS = 2_048  # of an optimizer without a compiled loop
SURE_LEAD = 20.0  # of the selected logits, beyond which other tokens get less than 2e-9 of the attention
# Conditions that no further step changes.
_LASTING = (Lacking.STEPS_TOO_LONG, Lacking.REMEMBERS_TOO_MUCH, Lacking.OUTRUN)
_NOT_SELECTED = (Lacking.INFEASIBLE, Lacking.SUPPORT_SCORES_HIGHER, Lacking.ROUNDING_DECIDES)


class Runs(NamedTuple):
    """Runs that are followed, one for each problem of a batch.

    Attributes:
        risks: what is trained, one risk for each problem.
        starts: where each run begins, in the shape of its weights.
    """

    risks: list[SoftmaxRisk | MatrixRisk]
    starts: FloatArray


def outcomes_of(
    problem: ScoredTokens, runs: Runs, optimizer: Any, progress: ProgressCallback | None = None
) -> list[Outcome]:
    """Compute where runs end, problem by problem. Call `why_not_followed` first.

    Args:
        problem: a batch, with weights as vectors.

        runs: what is trained, and from where.

        optimizer: the optimizer as theorems see it.

        progress: called as `progress(done, total)` after each look at a run.
    """
    rule = optimizer.optimizer if isinstance(optimizer, UnprovedSteps) else optimizer
    is_fast = compiled_rule(rule, runs.starts.shape[1:]) is not None
    most = MAX_STEPS if is_fast else MAX_SLOW_STEPS
    looks = int(np.log2(most // FIRST_STEPS)) + 1
    counter = Progress(progress, len(problem) * looks)
    found = []
    for j, one in enumerate(problem):
        if not (one.dependent | one.undecided).any():
            found.append(unmoved(one.data, runs.starts[j].ravel(), optimizer))
        else:
            found.append(_Followed(one, runs.risks[j], runs.starts[j], rule).until(most, counter, optimizer))
        counter.advance((j + 1) * looks - counter.done)
    return found


class _Look(NamedTuple):
    """What is seen after some steps.

    Attributes:
        selected: (n_inputs,) the tokens that lead.
        plan, place: what X Theorem 4 says of them, if it covers the steps.
        steps: the steps from here on; None if no theorem covers them.
        memory: the gradients that they remember; None without momentum.
        proved: whether it proves that they are selected for ever, here and on the moved run.
        settled: whether they lead by so much, on both runs, that nothing is expected to change.
    """

    selected: IntArray
    plan: Plan
    place: Place | None
    steps: SteepestSteps | None
    memory: Memory | None
    proved: bool
    settled: bool

    @property
    def is_last(self) -> bool:
        """Return whether further steps would show nothing new."""
        return self.proved or (self.settled and (self.steps is None or self.plan.lacking in _LASTING))


class _Followed:
    """A run on one problem, and a second one from a start that is moved by no more than rounding errors."""

    def __init__(
        self,
        problem: ScoredTokens,
        risk: SoftmaxRisk | MatrixRisk,
        start: FloatArray,
        rule: Optimizer,
    ) -> None:
        self.problem, self.risk, self.start, self.rule = problem, risk, start, rule
        flat = start.reshape(1, -1)
        self.moved = nudged(flat, NUDGE * np.maximum(length(flat), 1.0)).reshape(start.shape)
        self.plans: dict[tuple[bytes, SteepestSteps], Plan] = {}

    def until(self, most: int, progress: Progress, optimizer: Any) -> Outcome:
        """Follow the run until its end is known, or for as many steps."""
        starts, taken = (self.start, self.moved), FIRST_STEPS
        kept = self._kept(taken)
        run, twin = (descend(self.risk, start=x, optimizer=self.rule, n_steps=taken, record=kept) for x in starts)
        pasts = [_points_of(run), _points_of(twin)]
        while True:
            point, other = run.final.ravel(), twin.final.ravel()
            look = self._look(run, twin, pasts, taken)
            progress.advance()
            if look.is_last or taken >= most or run.status != Status.COMPLETED:
                break
            kept = self._kept(2 * taken)
            # A resumed run saves the points after the one that it begins at.
            before = [[*past, each.final] for past, each in zip(pasts, (run, twin), strict=True)] if kept else pasts
            run, twin = run.resume(taken, record=kept), twin.resume(taken, record=kept)
            pasts = [[*past, *_points_of(each)] for past, each in zip(before, (run, twin), strict=True)]
            taken *= 2
        error = float(length(point - other))
        # With weight decay, steps end elsewhere than at a minimum of the risk.
        if not (look.proved or look.settled or getattr(self.rule, "weight_decay", 0.0) > 0.0):
            flowed = by_flow(self.problem, point, None, taken, error)
            if flowed.finite:
                return replace(flowed, optimizer=optimizer, n_steps=taken)
        return self._outcome(look, point, taken, error, optimizer)

    def _kept(self, taken: int) -> Record | None:
        """Return which points to keep of a run of so many steps: those whose gradients are remembered."""
        steps = steepest_steps(self.rule)
        count = n_remembered(steps.momentum, taken) if steps is not None else 0
        return Record(range(taken - count, taken)) if count else None

    def _memory(self, past: list[FloatArray], plan: Plan, steps: SteepestSteps, taken: int) -> Memory | None:
        if steps.momentum == 0.0 or plan.lacking is not Lacking.NOTHING:
            return None
        last = np.array(past[-n_remembered(steps.momentum, taken) :])
        return memory_of(self.risk, last, steps.momentum, plan.rows.a[plan.leading], plan.log_limit)

    def _look(self, run: Trajectory, twin: Trajectory, pasts: list[list[FloatArray]], taken: int) -> _Look:
        problem, point, other = self.problem, run.final.ravel(), twin.final.ravel()
        here, there = (_leading(problem, x) for x in (point, other))
        steps = steepest_steps(self.rule, taken)
        # Of steps that no theorem covers, the plan shows whether any direction selects these tokens.
        plan = self._plan(here.selected, steps or SteepestSteps(steps_of(self.rule).norm or L2(), 1e-300, 0.0))
        counts = problem.dependent
        same = bool(here.unique and there.unique and np.array_equal(here.selected[counts], there.selected[counts]))
        sure = same and min(_lead(problem, point), _lead(problem, other)) > SURE_LEAD
        settled = sure and plan.lacking not in _NOT_SELECTED
        if steps is None:
            return _Look(here.selected, plan, None, None, None, False, settled)
        steepness, shape = steepness_of(problem.loss, problem.data.n_inputs), self.start.shape
        memories = [self._memory(past, plan, steps, taken) for past in pasts]
        places = [
            place_at(plan, x, steps, steepness, shape, memory)
            for x, memory in zip((point, other), memories, strict=True)
        ]
        proved = same and all(place.lacking is Lacking.NOTHING for place in places)
        return _Look(here.selected, plan, places[0], steps, memories[0], proved, settled)

    def _plan(self, selected: IntArray, steps: SteepestSteps) -> Plan:
        key = (selected.tobytes(), steps)
        if key not in self.plans:
            self.plans[key] = plan_for(self.problem, selected, steps, self.start.shape)
        return self.plans[key]

    def _outcome(self, look: _Look, point: FloatArray, taken: int, error: float, optimizer: Any) -> Outcome:
        problem, certificate, verdict = self.problem, None, None
        missing: Fact | None = _uncovered(optimizer)
        if look.proved and look.place is not None and look.steps is not None:
            certificate = certificate_at(
                problem, point, look.plan, look.place, look.steps, self.start.shape, look.memory
            )
            verdict, missing = verdict_on(certificate), None
            if verdict is not None and not verdict.applies:
                certificate, missing = None, Fact("outcome.missing.refused", {"condition": verdict.failed[0].name})
        elif look.place is not None:
            # If nothing is lacking here, the moved run selects other tokens, or fails a condition.
            missing = lacking_fact(look.place.lacking or Lacking.ROUNDING_DECIDES)
        known = look.proved or look.settled
        return Outcome(
            selected=look.selected,
            direction=None,
            point=point,
            n_steps=taken,
            arc_length=0.0,
            optimizer=optimizer,
            by_flow=False,
            certificate=certificate,
            verdict=verdict,
            missing=missing,
            finite=False,
            error=error,
            rivals=rivals_of(problem, look.selected, unit(point)) if known else (),
            inputs=inputs_of(problem),
            tokens=problem.data.tokens,
            kind=problem.data.kind,
            settled=known,
        )


def _points_of(run: Trajectory) -> list[FloatArray]:
    """Return the points that a run has saved."""
    return list(run.saved["x"]) if "x" in run.saved else []


def _uncovered(optimizer: Any) -> Fact:
    """State why no theorem covers the steps."""
    steps = steps_of(optimizer)
    is_steepest = steps.kind in (SteepestDescent, NormalizedGD) and steps.weight_decay == 0.0
    if is_steepest and steps.power is not None and steps.power > 1.0:
        return Fact("outcome.missing.vanishing")
    name = Fact("optimizer.adam") if isinstance(optimizer, Adam) else optimizer_words(optimizer)
    return Fact("outcome.missing.uncovered", {"optimizer": name})


def _leading(problem: ScoredTokens, point: FloatArray) -> Any:
    return directional_margin(problem.data, point if np.any(point) else np.ones_like(point))


def _lead(problem: ScoredTokens, point: FloatArray) -> float:
    """Return the smallest lead of the largest logit, over the inputs whose output depends on the weights."""
    data = problem.data
    logits = np.where(data.mask, data.K @ point, -np.inf)[problem.dependent]
    ordered = np.sort(logits, axis=-1)
    return float(np.min(ordered[:, -1] - ordered[:, -2], initial=np.inf)) if ordered.shape[-1] > 1 else np.inf
