"""The end of training, computed: the flow or the steps are followed until a theorem gives their limit, or it is clear what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics import descend
from marginlens.dynamics.compiled_loops import RAN_ALL, STATIONARY
from marginlens.dynamics.flow import FlowRun, field_of
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.gradient_descent import PlainDescent, has_plain_steps
from marginlens.optimizers.protocol import Optimizer
from marginlens.result import Result, Tabular
from marginlens.runtime.progress import Progress, ProgressCallback
from marginlens.status import Status
from marginlens.theory.attraction import (
    BOUNDED_LOSSES,
    TOLERANCE,
    TUBE_LOSSES,
    Missing,
    Tubes,
    missing_fact,
    moving_fact,
    tubes_at,
)
from marginlens.theory.bias_table import norm_words
from marginlens.theory.certificate import Certificate, certificate_of
from marginlens.theory.checks import TheoremVerdict
from marginlens.theory.finite_minimum import MinimumCertificate, certify_minimum
from marginlens.theory.live_tokens import FEW_TOKENS, LARGE_RTOL, LiveFlow, may_be_proved
from marginlens.theory.optimality import directional_margin, largest_distance
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.theory.steepest_certificate import SteepestCertificate
from marginlens.typing import BoolArray, FloatArray, IntArray
from marginlens.words import CASE, DEFAULT, Fact, text

FIRST_STEPS = 16  # after which a point is looked at for the first time, and then after √2 times as many steps each
MAX_STEPS = 1_000_000
MAX_PLAIN_STEPS = 100_000  # norms grow like the logarithm of their number
MAX_DOUBLINGS = 12  # of the length of the flow, the first being FIRST_WAY
FIRST_WAY = 8.0  # over the largest distance of two keys
MAX_TOKENS = 1_000  # of a problem on which steps are followed
MAX_FLOW_TOKENS = 1_000_000  # of a problem on which the flow is followed
MAX_SCORE = 300.0  # beyond which slopes of the loss are near the smallest numbers there are
MAX_KEY = 1e50  # entries of keys beyond it, or all below its inverse, have products that are no numbers
NUDGE = 1e-13  # of the start, relative to a step or to the start, to see how much a run amplifies rounding errors
FLOW_NUDGE = 1e-7  # the same for the flow, relative to its first length: the local error of its integrator
VERIFIED_TOKENS = 200  # of a problem: a proof for so many is verified within one or two seconds, for 400 within ten
VERIFIED_WIDTH = 24  # of keys around a minimum, with as many tokens: within a second
SAME_LEAD_RTOL = 1e-9  # leads that differ by less are equal, and the first token has them: those on the margin differ by rounding alone
_SHOWN_REASONS = 4  # inputs with a reason in an answer
_SHOWN_WINNERS = 8
_SURE_DIGITS = 12  # of a difference of scores
_WHY_INDENT = " " * len("Why: ")


Names = tuple[tuple[str, ...], ...] | None  # of the tokens of each input


class Answer(NamedTuple):
    """A prediction in three short lines; `str` of it prints them, and `in_full` adds the details.

    Attributes:
        ends_at: which token wins in each input, or what training ends at instead.

        because: the reasons, one fact for each input.

        proof: whether that is proved, in a few words.

        details: sentences with the numbers and the theorem behind it.
    """

    ends_at: Fact
    because: tuple[Fact, ...]
    proof: Fact
    details: tuple[Fact, ...] = ()

    def __str__(self) -> str:
        because = f";\n{_WHY_INDENT}".join(map(str, self.because))
        why = text("outcome.why", because=because)
        lines = text("outcome.answer", ends_at=self.ends_at, why=why, proof=self.proof)
        return lines[:1].upper() + lines[1:]

    @property
    def in_full(self) -> str:
        """The three lines, and the details below them."""
        return "\n".join([str(self), *map(str, self.details)])


class Rival(NamedTuple):
    """The token of an input that comes closest to the selected one, and how it loses.

    Attributes:
        input, selected, token: indices.
        lead: by how much the selected token's logit leads, per unit of norm in the limit.
        score: by how much the selected token's score is higher.
        higher: a token that scores higher than the selected one, -1 for none.
        higher_lead: its lead.
    """

    input: int
    selected: int
    token: int
    lead: float
    score: float
    higher: int
    higher_lead: float

    def fact(self, names: Names = None, kind: str = DEFAULT) -> Fact:
        """State why the token loses, as a clause; the tokens may have names, and the dataset a kind."""
        case = "default" if self.score >= 0.0 else "lower"
        case = f"{case}_beside_higher" if self._has_higher else case
        # The rounding of the last digits does not decide a tie of the digits that are shown.
        score = float(f"{abs(self.score):.{_SURE_DIGITS}g}")
        return Fact("outcome.rival", {**self._named(names, kind), "score": score, "case": case})

    def lead_fact(self, names: Names = None, kind: str = DEFAULT) -> Fact:
        """State by how much the token falls behind for each unit of norm."""
        numbers = {"ahead": self.lead, "behind": self.higher_lead, "case": "higher" if self._has_higher else "default"}
        return Fact("outcome.lead", {**self._named(names, kind), **numbers})

    @property
    def _has_higher(self) -> bool:
        return self.higher >= 0 and self.higher != self.token

    def _named(self, names: Names, kind: str) -> dict[str, Fact]:
        tokens = {"selected": self.selected, "token": self.token, "higher": self.higher}
        return {role: token_fact(self.input, token, names, kind) for role, token in tokens.items() if token >= 0}

    def __str__(self) -> str:
        return str(self.fact())


def token_fact(i: int, token: int, names: Names = None, kind: str = DEFAULT) -> Fact:
    """Name a token of input i, by its index if it has no other name, as the kind of the dataset calls it."""
    name = names[i][token] if names else ""
    number = Fact("outcome.token.number", {"token": token, CASE: kind})
    if not name:
        return number
    is_repeated = names is not None and names[i].count(name) > 1
    return Fact(f"outcome.token.{'repeated' if is_repeated else 'word'}", {"word": name, "number": number})


def input_fact(i: int, kind: str = DEFAULT) -> Fact:
    """State where a token is, as in "in input 2"."""
    return Fact("outcome.input.where", {"input": i, CASE: kind})


def more_inputs(count: int, kind: str = DEFAULT) -> Fact:
    """State how many inputs are not listed."""
    return Fact("outcome.input.more", {"count": count, CASE: kind})


@dataclass(frozen=True, repr=False, eq=False)
class Outcome(Result, Tabular):
    """The end of training: where it ends, why, and whether that is proved.

    Attributes:
        selected: (n_inputs,) the tokens that lead at the last point.
        direction: (d_key,) their max-margin direction; None if training ends at a finite minimum, or if only the tokens or nothing is
            known.
        point: (d_key,) the last point that was computed.
        n_steps: how many steps were taken, 0 for the flow.
        arc_length: the length for which the flow was followed after them, 0.0 if it was not.
        optimizer: the optimizer of the steps, None for the flow.
        by_flow: whether plain steps were replaced by the flow from some point on.
        certificate: the proof from `point` on, None without one.
        missing: what is missing for a proof, as a clause; None if nothing is.
        finite: whether training ends at a finite minimum.
        verdict: the result of `certificate.verify()`; if it did not confirm the finding, there is no certificate. None if there
            was nothing to verify, or if that could take more than two seconds.
        error: how far the point moves if the start is moved a little, as rounding and the integrator of the flow may do: by
            1e-13 of its norm or of a step, or by 1e-7 of the flow's first length. For the flow it is zero if nothing was found
            to prove.
        rivals: the runner-up of each input whose output depends on p.
        inputs: the indices of these inputs, of all if there are none.
        tokens: the names of the tokens of each input, None if they have none.
        kind: what the sentences call tokens and inputs, as `TokenDataset.kind` says.
        constant: whether no output depends on p, so that training leaves p at the start.
        settled: for steps in other norms, whether two runs from nearly the same start select the same tokens, for ever if there
            is a certificate, or else by a lead beyond which nothing is expected to change.

    The proof begins at `point`. That the run reaches it is computed, not proved. For steps,
    `certificate.verify(start, n_steps)` proves it by repeating them in intervals; for the flow there is no such proof.

    `to_frame()` has one row per input: input, selected, runner_up, lead (in logits per unit of norm), score (higher by).
    """

    selected: IntArray
    direction: FloatArray | None
    point: FloatArray
    n_steps: int
    arc_length: float
    optimizer: Any
    by_flow: bool
    certificate: Certificate | MinimumCertificate | SteepestCertificate | None
    verdict: TheoremVerdict | None
    missing: Fact | None
    finite: bool
    error: float
    rivals: tuple[Rival, ...]
    inputs: tuple[int, ...]
    tokens: Names = None
    kind: str = DEFAULT
    constant: bool = False
    settled: bool = False

    @property
    def is_repeatable(self) -> bool:
        """True if rounding and the integrator's error cannot move the point out of the region in which the proof holds, or
        would hold if there were one.
        """
        if self.settled:
            # Both runs select these tokens, however far apart they are.
            return True
        if self.certificate is None:
            return self.error <= TOLERANCE * self.norm
        region = (
            self.certificate.radius if isinstance(self.certificate, MinimumCertificate) else self.certificate.tolerance
        )
        return self.error <= region

    @property
    def proved(self) -> bool:
        """True if a theorem gives the limit from the computed point on, and `certificate.verify()` confirms it.

        False if rounding may decide whether the run reaches that point. True if there is nothing to train.
        """
        if self.constant:
            return True
        in_part = self.by_flow or (self.finite and self.optimizer is not None)
        return self.verdict is not None and self.verdict.applies and not in_part and self.is_repeatable

    @property
    def norm(self) -> float:
        """The norm ‖p‖ at the last point."""
        return float(length(self.point))

    @property
    def angle(self) -> float:
        """The angle between the last point and the direction, in degrees; nan without a direction."""
        if self.direction is None:
            return float("nan")
        cosine = float(self.point @ self.direction)
        return float(np.degrees(np.arctan2(length(self.point - cosine * self.direction), cosine)))

    @property
    def ends_at(self) -> Fact:
        """The end of training, as a fact: which token wins in each input."""
        if self.constant:
            return Fact("outcome.ends_at.nothing")
        if self.finite and self.is_repeatable:
            return Fact("outcome.ends_at.finite", {CASE: self.kind})
        i, *others = self.inputs
        listed = [
            Fact("outcome.token.in_input", {"name": self._winner(j), "where": input_fact(j, self.kind)})
            for j in others[:_SHOWN_WINNERS]
        ]
        if len(others) > _SHOWN_WINNERS:
            rest = more_inputs(len(others) - _SHOWN_WINNERS, self.kind)
            listed.append(Fact("outcome.ends_at.more", {"inputs": rest}))
        case = "alone" if len(self.selected) == 1 else "several" if others else "default"
        where = input_fact(i, self.kind)
        numbers = {"first": self._winner(i), "where": where, "others": listed, "case": case}
        if self.direction is None and not (self.finite or self.settled):
            return Fact("outcome.ends_at.unknown", numbers)
        return Fact(f"outcome.ends_at.{'direction' if self.is_repeatable else 'amplified'}", numbers)

    def _winner(self, i: int) -> Fact:
        return token_fact(i, int(self.selected[i]), self.tokens, self.kind)

    @property
    def because(self) -> tuple[Fact, ...]:
        """The runner-up of each input and why it loses; only the first inputs if there are many."""
        if self.constant:
            return (Fact("outcome.because.nothing"),)
        if not self.is_repeatable:
            return (Fact("outcome.because.amplified"),)
        if self.direction is None and not self.settled:
            if self.finite:
                return (Fact("outcome.because.finite", {CASE: self.kind}),)
            return (Fact("outcome.because.unknown"),)
        if not self.rivals:
            return (Fact("outcome.because.alone"),)
        rest = len(self.rivals) - _SHOWN_REASONS
        more = (Fact("outcome.because.more", {"inputs": more_inputs(rest, self.kind)}),) if rest > 0 else ()
        shown = self.rivals[:_SHOWN_REASONS]
        if len(self.selected) == 1:
            return tuple(rival.fact(self.tokens, self.kind) for rival in shown)
        named = [
            Fact(
                "outcome.because.in_input",
                {"where": input_fact(rival.input, self.kind), "rival": rival.fact(self.tokens, self.kind)},
            )
            for rival in shown
        ]
        return (*named, *more)

    @property
    def proof(self) -> Fact:
        """Whether a theorem proves it, or what is missing. This is the only place that declares a computed run proved."""
        if self.constant or (self.proved and self.certificate is not None):
            return Fact("outcome.verdict.proved")
        if self.certificate is None:
            reason = Fact("outcome.missing.gradient") if self.missing is None else self.missing
            is_open = self.ends_at.code in ("outcome.ends_at.unknown", "outcome.ends_at.amplified")
            return Fact(f"outcome.verdict.{'undecided' if is_open else 'computed'}", {"reason": reason})
        if self.verdict is None:
            return Fact("outcome.verdict.computed", {"reason": Fact("outcome.missing.unverified")})
        gap = "circling" if self.finite else "follows"
        gap = gap if self.is_repeatable else "amplified"
        return Fact("outcome.verdict.in_part", {"reason": Fact(f"outcome.gap.{gap}")})

    @property
    def details(self) -> tuple[Fact, ...]:
        """The numbers and the theorem behind the answer, one fact each."""
        if self.constant:
            return (Fact("outcome.claim.constant"),)
        shown = self.rivals[:_SHOWN_REASONS] if self.is_repeatable else ()
        leads = [rival.lead_fact(self.tokens, self.kind) for rival in shown]
        if len(self.selected) > 1:
            places = [input_fact(rival.input, self.kind) for rival in shown]
            facts = zip(places, leads, strict=True)
            leads = [Fact("outcome.lead_in_input", {"where": where, "lead": lead}) for where, lead in facts]
        led = (Fact("outcome.leads", {"leads": leads}),) if leads else ()
        if self.certificate is None:
            return (self._reached, *led)
        code = "outcome.claim.unverified" if self.verdict is None else "outcome.claim.proved"
        return (self._reached, *led, Fact(code, self._claim), self._way)

    @property
    def _reached(self) -> Fact:
        """How far the run was followed."""
        case = "flow" if self.optimizer is None or self.by_flow else "steps"
        numbers = {"steps": self.n_steps, "length": self.arc_length, "norm": self.norm, "case": case}
        if self.direction is not None and self.ends_at.code == "outcome.ends_at.direction":
            return Fact("outcome.reached.towards", {**numbers, "angle": self.angle})
        return Fact("outcome.reached.elsewhere", numbers)

    @property
    def _claim(self) -> dict[str, Any]:
        """State what the certificate proves, and by which theorem."""
        if isinstance(self.certificate, MinimumCertificate):
            claim, statement = Fact("outcome.ball", {"radius": self.certificate.radius}), "x_thm_2"
        elif isinstance(self.certificate, SteepestCertificate):
            proof = self.certificate
            numbers = {"low": proof.low, "high": proof.high, "longest": proof.longest, "norm": self.norm}
            words = {"measure": norm_words(proof.steepest_in), "case": "momentum" if proof.momentum else "default"}
            claim = Fact("outcome.margin_between", {**numbers, **words, "momentum": proof.momentum})
            statement = "x_thm_4"
        else:
            kind = moving_fact(self.optimizer).code.rpartition(".")[2]
            numbers = {"norm": self.norm, "radius": 0.0 if self.certificate is None else self.certificate.radius}
            numbers["size"] = 0.0 if self.optimizer is None else self.optimizer.size
            claim, statement = Fact("outcome.tube", {**numbers, "case": kind}), "x_thm_1"
        return {"claim": claim, "statement": Fact(f"outcome.statement.{statement}")}

    @property
    def _way(self) -> Fact:
        """How far it is proved that the run gets to the point."""
        if not self.is_repeatable:
            return Fact("outcome.way.amplified", {"error": self.error})
        if self.finite and self.optimizer is not None:
            return Fact("outcome.way.circling")
        if self.by_flow:
            return Fact("outcome.way.follows")
        if self.optimizer is None:
            return Fact("outcome.way.flow")
        return Fact(f"outcome.way.{'computed' if self.settled else 'steps'}", {"steps": self.n_steps})

    @property
    def answer(self) -> Answer:
        """The three lines, with details."""
        return Answer(self.ends_at, self.because, self.proof, self.details)

    def __str__(self) -> str:
        return str(self.answer)

    def __repr__(self) -> str:
        if self.constant:
            return "Outcome(no output depends on p, proved)"
        known = "finite minimum" if self.finite else "direction unknown" if self.direction is None else "direction"
        known = "tokens" if self.settled else known
        return f"Outcome({known}, selects {self.selected.tolist()}, {'proved' if self.proved else 'not proved'})"

    def _columns(self) -> dict[str, Any]:
        rows = zip(*self.rivals, strict=True) if self.rivals else [()] * 7
        index, selected, token, lead, score, *_ = map(list, rows)
        return {"input": index, "selected": selected, "runner_up": token, "lead": lead, "score": score}


def why_not_followed(problem: ScoredTokens, optimizer: Optimizer | None = None) -> Fact | None:
    """Return the reason why no run of an optimizer, or of the flow if it is None, is followed on a problem; None if it is followed."""
    kinds = TUBE_LOSSES if optimizer is None or has_plain_steps(optimizer) else BOUNDED_LOSSES
    data, losses = problem.data, [kind.__name__ for kind in kinds]
    most = MAX_FLOW_TOKENS if optimizer is None else MAX_TOKENS
    if type(data) is not TokenDataset:
        return Fact("not_followed.data", {"kind": type(data).__name__})
    if type(problem.loss) not in kinds:
        return Fact("not_followed.loss", {"kind": type(problem.loss).__name__, "losses": losses})
    if data.n_inputs * data.n_tokens > most:
        return Fact("not_followed.tokens", {"most": most, "case": "default" if optimizer is None else "steps"})
    return None if _in_range(problem) else Fact("not_followed.range")


def outcomes(
    problem: ScoredTokens,
    starts: FloatArray | None,
    optimizer: PlainDescent | None,
    progress: ProgressCallback | None = None,
) -> list[Outcome]:
    """Compute where training of p ends, problem by problem. Call `why_not_followed` first.

    Args:
        problem: a batch.

        starts: (batch, d_key), zeros if None.

        optimizer: None for the flow, `NormalizedGD` or `GradientDescent`.

        progress: called as `progress(done, total)` after each check of a point of a run.
    """
    starts = np.zeros((len(problem), problem.data.d_key)) if starts is None else starts
    moves: BoolArray = np.any(problem.dependent | problem.undecided, axis=-1)
    still = {int(j): unmoved(problem[j].data, starts[j], optimizer) for j in np.flatnonzero(~moves)}
    which = np.flatnonzero(moves)
    looks = MAX_DOUBLINGS if optimizer is None else _most_looks(optimizer)
    counter = Progress(progress, len(which) * looks)
    if optimizer is None:
        runs = {int(j): by_flow(problem[j], starts[j], None, progress=counter) for j in which}
    else:
        part = problem if moves.all() else problem[which] if len(which) else None
        ends = [] if part is None else _by_steps(part, starts[which], optimizer, counter)
        runs = dict(zip(which.tolist(), ends, strict=True))
    counter.advance(counter.total - counter.done)
    return [still[j] if j in still else runs[j] for j in range(len(problem))]


def unmoved(data: TokenDataset, start: FloatArray, optimizer: Any) -> Outcome:
    """Make the outcome if no output depends on p: every gradient is zero."""
    return Outcome(
        selected=directional_margin(data, start if np.any(start) else np.ones_like(start)).selected,
        direction=None,
        point=start,
        n_steps=0,
        arc_length=0.0,
        optimizer=optimizer,
        by_flow=False,
        certificate=None,
        verdict=None,
        missing=None,
        finite=False,
        error=0.0,
        rivals=(),
        inputs=tuple(range(data.n_inputs)),
        constant=True,
    )


def _in_range(problem: ScoredTokens) -> bool:
    """Return whether keys and scores are of a size at which runs can be followed in double precision."""
    largest, scores = float(np.max(np.abs(problem.data.K))), problem.scores[problem.data.mask]
    return 1.0 / MAX_KEY <= largest <= MAX_KEY and float(np.max(np.abs(scores))) <= MAX_SCORE


def nudged(starts: FloatArray, sizes: FloatArray) -> FloatArray:
    """Move starts by these lengths in random directions, which are the same in every call."""
    moves = np.random.default_rng(0).standard_normal(starts.shape)
    return starts + (sizes / length(moves))[:, None] * moves


class _Run(NamedTuple):
    """A run on one problem up to the point that is checked."""

    problem: ScoredTokens
    optimizer: Any
    point: FloatArray
    n_steps: int = 0
    arc_length: float = 0.0
    by_flow: bool = False
    finite: bool = False
    error: float = 0.0


def _marks(optimizer: PlainDescent) -> Iterator[int]:
    """Return the numbers of steps after which points are checked."""
    most, marks = MAX_STEPS if isinstance(optimizer, NormalizedGD) else MAX_PLAIN_STEPS, FIRST_STEPS
    while marks < most:
        yield marks
        marks = min(most, int(np.ceil(marks * np.sqrt(2.0))))
    yield most


def _most_looks(optimizer: PlainDescent) -> int:
    return sum(1 for _ in _marks(optimizer))


def _by_steps(problem: ScoredTokens, starts: FloatArray, optimizer: PlainDescent, progress: Progress) -> list[Outcome]:
    """Take steps on all problems, and check each point after ever longer intervals, until its limit is proved."""
    points = starts.copy()
    twins = nudged(starts, NUDGE * np.maximum(length(starts), optimizer.size))
    found: dict[int, Outcome] = {}
    open_, taken, marks = np.arange(len(problem)), 0, list(_marks(optimizer))
    part, twice = problem, problem[np.concatenate([open_, open_])]
    for mark in marks:
        both = np.concatenate([points[open_], twins[open_]])
        run = descend(twice.risk, start=both, n_steps=mark - taken, optimizer=optimizer)
        points[open_], twins[open_] = run.final[: len(open_)], run.final[len(open_) :]
        taken = mark
        tubes = tubes_at(part, points[open_], optimizer)
        still = run.status[: len(open_)] == Status.COMPLETED
        ended = (tubes.missing == Missing.NOTHING) | ~still | (mark == marks[-1])
        for k in np.flatnonzero(ended):
            j = int(open_[k])
            end = _Run(part[k], optimizer, points[j], taken, error=float(length(points[j] - twins[j])))
            found[j] = _outcome(end, tubes, int(k))
            # A finite minimum, perhaps, or more steps than can be taken.
            if found[j].certificate is None:
                flowed = by_flow(part[k], points[j], optimizer, taken, end.error)
                found[j] = flowed if flowed.finite or isinstance(optimizer, GradientDescent) else found[j]
        progress.advance(len(open_))
        if ended.all():
            break
        if ended.any():
            open_ = open_[~ended]
            part = problem[open_]
            twice = part[np.tile(np.arange(len(open_)), 2)]
    return [found[j] for j in range(len(problem))]


def by_flow(
    problem: ScoredTokens,
    start: FloatArray,
    optimizer: PlainDescent | None,
    n_steps: int = 0,
    start_error: float = 0.0,
    progress: Progress | None = None,
) -> Outcome:
    """Follow the flow, twice as far each time, until its limit is proved; for plain steps, from the point that they reached.

    Args:
        problem: one problem.

        start: (d_key,).

        optimizer: the optimizer of the steps taken before, None if there were none.

        n_steps: how many steps led to the start.

        start_error: how far rounding may have moved the start. It counts unless the flow ends at a minimum, around which long steps circle.

        progress: counts the checks.
    """
    size = largest_distance(problem.data.K, problem.data.mask) or 1.0
    field, is_large = field_of(problem.risk), problem.data.n_inputs * problem.data.n_tokens > FEW_TOKENS
    run = LiveFlow(problem, field, start) if is_large else FlowRun(field, start)
    batch = problem.as_batch()
    ways = [(2.0**k - 1.0) * FIRST_WAY / size for k in range(1, MAX_DOUBLINGS + 1)]
    for way in ways:
        run.follow(way)
        point, at_end = run.point, run.reason != RAN_ALL or way == ways[-1]
        if progress is not None:
            progress.advance()
        if at_end or may_be_proved(problem, point):
            tubes = tubes_at(batch, point[None], optimizer)
            if at_end or tubes.missing[0] == Missing.NOTHING:
                break
    ended, error = run.reason == STATIONARY, 0.0
    if ended or tubes.missing[0] == Missing.NOTHING:
        nudge = LARGE_RTOL if is_large else FLOW_NUDGE
        nearby = nudged(start[None], nudge * np.maximum(length(start[None]), 1.0 / size))[0]
        twin = LiveFlow(problem, field, nearby) if is_large else FlowRun(field, nearby)
        for mark in ways[: ways.index(way) + 1] if is_large else [way]:
            twin.follow(mark)
        error = float(length(twin.point - point))
    error = error if ended else max(error, start_error)
    return _outcome(_Run(problem, optimizer, point, n_steps, way, optimizer is not None, ended, error), tubes, 0)


def _outcome(run: _Run, tubes: Tubes, k: int) -> Outcome:
    """Make the outcome of a run, whose tube is the k-th of `tubes`."""
    problem, point, finite = run.problem, run.point, run.finite
    missing, selected = Missing(tubes.missing[k]), tubes.selected[k]
    proved = missing is Missing.NOTHING
    undecided = (Missing.INFEASIBLE, Missing.TIED, Missing.SUPPORT_SCORES_HIGHER, Missing.ROUNDING_DECIDES)
    known = missing not in undecided and not finite
    lacking = None if proved else missing_fact(missing)
    certificate: Certificate | MinimumCertificate | None = None
    if finite:
        lacking = Fact("outcome.missing.gradient")
        certificate = certify_minimum(problem, point)
    elif proved:
        certificate = certificate_of(problem.data, problem.head, problem.loss, run.optimizer, point, tubes, k)
    verdict = None if certificate is None else verdict_on(certificate)
    if verdict is not None and not verdict.applies:
        certificate, lacking = None, Fact("outcome.missing.refused", {"condition": verdict.failed[0].name})
    return Outcome(
        selected=selected,
        direction=tubes.direction[k] if known else None,
        point=point,
        n_steps=run.n_steps,
        arc_length=run.arc_length,
        optimizer=run.optimizer,
        by_flow=run.by_flow,
        certificate=certificate,
        verdict=verdict,
        missing=lacking,
        finite=finite,
        error=run.error,
        rivals=rivals_of(problem, selected, tubes.direction[k]) if known else (),
        inputs=inputs_of(problem),
        tokens=problem.data.tokens,
        kind=problem.data.kind,
    )


def verdict_on(proof: Certificate | MinimumCertificate | SteepestCertificate) -> TheoremVerdict | None:
    """Return what `verify()` says about a proof; None if the proof is so large that this may take more than two seconds."""
    data = proof.data
    if isinstance(proof, MinimumCertificate) and data.d_key > VERIFIED_WIDTH:
        return None
    return proof.verify() if data.n_inputs * data.n_tokens <= VERIFIED_TOKENS else None


def inputs_of(problem: ScoredTokens) -> tuple[int, ...]:
    """List the inputs whose output depends on p, or all of them if none does."""
    counts = problem.dependent if problem.dependent.any() else np.ones_like(problem.dependent)
    return tuple(np.flatnonzero(counts).tolist())


def rivals_of(problem: ScoredTokens, selected: IntArray, direction: FloatArray) -> tuple[Rival, ...]:
    """Find the runner-up, in the limit, of every input that counts and has at least two tokens."""
    data, scores, rivals = problem.data, problem.scores, []
    for i in inputs_of(problem):
        chosen = int(selected[i])
        others = [t for t in range(int(data.lengths[i])) if t != chosen]
        if not others:
            continue
        leads = {t: float((data.K[i, chosen] - data.K[i, t]) @ direction) for t in others}
        ahead = {t: float(scores[i, chosen] - scores[i, t]) for t in others}
        nearest = _closest(leads)
        higher = _closest({t: lead for t, lead in leads.items() if ahead[t] < 0.0})
        rivals.append(Rival(i, chosen, nearest, leads[nearest], ahead[nearest], higher, leads.get(higher, 0.0)))
    return tuple(rivals)


def _closest(leads: dict[int, float]) -> int:
    """Return the first token with the smallest lead, -1 for none."""
    least = min(leads.values(), default=0.0)
    return next((t for t, lead in leads.items() if lead <= least + SAME_LEAD_RTOL * abs(least)), -1)
