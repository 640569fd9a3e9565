"""Where training ends, computed: the flow or the steps are followed until a theorem gives their limit or what is missing is clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics import descend, flow
from marginlens.dynamics.flow import UntilLength
from marginlens.losses.margin import Loss
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.optimizers.gradient_descent import has_plain_steps
from marginlens.result import Result, Tabular
from marginlens.risk import AttentionRisk
from marginlens.risk.protocol import starting_points
from marginlens.status import Status
from marginlens.theory.assumptions import TheoremVerdict
from marginlens.theory.attraction import SENTENCES, STEEPNESS, TOLERANCE, WORDS, Missing, Tubes, find_tubes
from marginlens.theory.certificate import Certificate, certificate_of
from marginlens.theory.finite_minimum import MinimumCertificate, certify_minimum
from marginlens.theory.optimality import depends_on_p, directional_margin, largest_distance, rounding_decides
from marginlens.theory.unproved_steps import optimizer_words
from marginlens.typing import BoolArray, FloatArray, IntArray

FIRST_STEPS = 16  # after which a point is looked at for the first time, and then after √2 times as many steps each
MAX_STEPS = 1_000_000
MAX_PLAIN_STEPS = 100_000  # norms grow like the logarithm of their number
MAX_DOUBLINGS = 12  # of the length of the flow, the first being FIRST_WAY
FIRST_WAY = 8.0  # over the largest distance of two keys
MAX_TOKENS = 1_000  # of a problem that is followed
MAX_SCORE = 300.0  # beyond which slopes of the loss are near the smallest numbers there are
MAX_KEY = 1e50  # entries of keys beyond it, or all below its inverse, have products that are no numbers
NUDGE = 1e-13  # of the start, relative to a step or to the start, to see how much a run amplifies rounding errors
FLOW_NUDGE = 1e-7  # the same for the flow, relative to its first length: the local error of its integrator
VERIFIED_TOKENS = 200  # of a problem: a proof for so many is verified within one or two seconds, for 400 within ten
VERIFIED_WIDTH = 24  # of keys around a minimum, with as many tokens: within a second
SAME_LEAD_RTOL = 1e-9  # leads that differ by less are equal, and the first token has them: those on the margin differ by rounding alone
_SHOWN_INPUTS = 4


class Answer(NamedTuple):
    """What a prediction says in three lines: where training ends, because of what, and whether that is proved."""

    ends_at: str
    because: str
    proof: str

    def __str__(self) -> str:
        because, proof = self.because.replace("; ", ";\n         "), self.proof.replace(". ", ".\n         ")
        return f"ends at: {self.ends_at}.\nbecause: {because}.\nproved?  {proof}."


class Rival(NamedTuple):
    """The token of an input that comes closest to the selected one, and how it loses.

    Attributes:
        input, selected, token: indices.
        lead: by how much the selected token's logit leads per unit of norm in the limit.
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

    def __str__(self) -> str:
        words, numbers = (
            WORDS["because"],
            self._asdict() | {"ahead": f"{self.lead:.3g}", "score": f"{abs(self.score):.3g}"},
        )
        text = words["higher" if self.score >= 0.0 else "lower"].format(**numbers)
        if self.higher >= 0 and self.higher != self.token:
            text += words["but"].format(higher=self.higher, behind=f"{self.higher_lead:.3g}")
        return text


@dataclass(frozen=True, repr=False, eq=False)
class Outcome(Result, Tabular):
    """Where training ends: what it ends at, because of what, and whether that is proved.

    Attributes:
        selected: (n_inputs,) the tokens that lead at the last point.
        direction: (d_key,) their max-margin direction; None where training ends at a finite minimum or nothing is known.
        point: (d_key,) the last point that was computed.
        way: after how many steps, or after which length of the flow.
        optimizer: of the steps, None for the flow.
        by_flow: whether plain steps were replaced by the flow from some point on.
        certificate: the proof from `point` on, None without one.
        missing: else what is missing, in words.
        finite: whether training ends at a finite minimum.
        verdict: what `certificate.verify()` said; where it did not confirm what was found there is no certificate. None where there was
            nothing to verify, and where that may take more than two seconds.
        error: how far the point moves when the start is moved a little, as rounding and the integrator of the flow may do: by 1e-13 of
            its norm or of a step, for the flow by 1e-7 of its first length. Of the flow, zero where nothing is found to prove.
        rivals: the runner-up of each input.
        constant: whether no output depends on p, so that training leaves it where it starts.

    What is proved begins at `point`. That the run comes there is computed: `certificate.verify(start, n_steps)` takes steps again in
    intervals to prove it, and nothing does so for the flow.

    `to_frame()` has one row per input: input, selected, runner_up, lead (in logits per unit of norm), score (higher by).
    """

    selected: IntArray
    direction: FloatArray | None
    point: FloatArray
    way: float
    optimizer: Any
    by_flow: bool
    certificate: Certificate | MinimumCertificate | None
    verdict: TheoremVerdict | None
    missing: str
    finite: bool
    error: float
    rivals: tuple[Rival, ...]
    constant: bool = False

    @property
    def is_repeatable(self) -> bool:
        """Whether rounding and the error of the integrator leave the point where the proof holds, or would hold if there were one."""
        if self.certificate is None:
            return self.error <= TOLERANCE * self.norm
        return self.error <= (self.certificate.radius if self.finite else self.certificate.tolerance)

    @property
    def proved(self) -> bool:
        """Whether a theorem gives the limit from the computed point on, of what was asked about, and `certificate.verify()` confirms it.

        False where rounding may decide whether the run comes to that point. True where there is nothing to train.
        """
        if self.constant:
            return True
        in_part = self.by_flow or (self.finite and self.optimizer is not None)
        return self.verdict is not None and self.verdict.applies and not in_part and self.is_repeatable

    @property
    def norm(self) -> float:
        """‖p‖ at the last point."""
        return float(length(self.point))

    @property
    def angle(self) -> float:
        """Between the last point and the direction, in degrees; nan without a direction."""
        if self.direction is None:
            return float("nan")
        cosine = float(self.point @ self.direction)
        return float(np.degrees(np.arctan2(length(self.point - cosine * self.direction), cosine)))

    @property
    def ends_at(self) -> str:
        """What training ends at, how far it was followed, and how close it is."""
        if self.constant:
            return WORDS["ends at"]["nothing"]
        way = {"steps": f"{int(self.way):,}", "way": f"{self.way:.4g}", "norm": f"{self.norm:.4g}"}
        reached = WORDS["reached"]["flow" if self.optimizer is None or self.by_flow else "steps"].format(**way)
        kind = "finite" if self.finite else "unknown" if self.direction is None else "tokens"
        if kind != "unknown" and not self.is_repeatable:
            kind = "amplified"
        tokens = {"tokens": f"tokens {self.selected.tolist()}", "their": "their", "lead": "lead"}
        return WORDS["ends at"][kind].format(reached=reached, angle=f"{self.angle:.3g}", **tokens)

    @property
    def because(self) -> str:
        """The runner-up of each input and why it loses; of the first inputs where there are many."""
        words = WORDS["because"]
        if self.constant:
            return words["constant"]
        if self.direction is None:
            return words["finite" if self.finite else "unknown"]
        listed = "; ".join(map(str, self.rivals[:_SHOWN_INPUTS]))
        left = len(self.rivals) - _SHOWN_INPUTS
        return listed + (words["more"].format(left=left) if left > 0 else "") if listed else words["alone"]

    @property
    def proof(self) -> str:
        """Whether it is proved, by what, or what is missing: the only place where a run that was followed is called proved."""
        words, proof = WORDS["proved"], self.certificate
        if self.constant:
            return words["constant"]
        if proof is None:
            return words["no"].format(missing=self.missing)
        kind = "found" if self.verdict is None else "yes" if self.proved else "in part"
        checker = "certificate.verify()"
        if isinstance(proof, MinimumCertificate):
            claim, citation = words["minimum"].format(radius=f"{proof.radius:.2g}"), "X Thm 2"
        else:
            numbers = {"norm": f"{self.norm:.4g}", "radius": f"{proof.radius:.3g}"}
            claim, citation = words["tube"].format(moving=proof.steps_words, **numbers), "X Thm 1"
        return f"{words[kind].format(citation=citation, claim=claim, checker=checker)}. {self.way_words}"

    @property
    def way_words(self) -> str:
        """What is known of the way from the start to the point."""
        words = WORDS["way"]
        if not self.is_repeatable:
            return words["amplified"].format(error=f"{self.error:.1g}")
        if self.finite and self.optimizer is not None:
            return words["circling"]
        kind = "follows" if self.by_flow else "flow" if self.optimizer is None else "steps"
        return words[kind].format(steps=f"{int(self.way):,}", count=int(self.way))

    @property
    def answer(self) -> Answer:
        """The three lines."""
        return Answer(self.ends_at, self.because, self.proof)

    def __str__(self) -> str:
        return str(self.answer)

    def __repr__(self) -> str:
        if self.constant:
            return "Outcome(no output depends on p, proved)"
        known = "finite minimum" if self.finite else "direction unknown" if self.direction is None else "direction"
        return f"Outcome({known}, selects {self.selected.tolist()}, {'proved' if self.proved else 'not proved'})"

    def _columns(self) -> dict[str, Any]:
        rows = zip(*self.rivals, strict=True) if self.rivals else [()] * 7
        index, selected, token, lead, score, *_ = map(list, rows)
        return {"input": index, "selected": selected, "runner_up": token, "lead": lead, "score": score}


def why_not_followed(risk: AttentionRisk, optimizer: Any) -> str:
    """Why no run of this kind is followed, in a sentence that names the reason; empty where it is."""
    data, words = risk.data.as_batch(), WORDS["not followed"]
    if type(data) is not TokenDataset or type(risk.loss) not in STEEPNESS:
        kind, losses = type(risk.loss if type(data) is TokenDataset else data), ", ".join(k.__name__ for k in STEEPNESS)
        return words["loss" if type(data) is TokenDataset else "data"].format(kind=kind.__name__, losses=losses)
    if not (optimizer is None or has_plain_steps(optimizer)):
        return words["optimizer"].format(kind=optimizer_words(optimizer))
    if data.n_inputs * data.n_tokens > MAX_TOKENS:
        return words["tokens"].format(most=f"{MAX_TOKENS:,}")
    return "" if _in_range(data, data.head(risk.head)) else words["range"]


def outcomes(risk: AttentionRisk, start: Any, optimizer: Any) -> list[Outcome]:
    """Where training p ends from a start, zero where it is None, problem by problem; empty where `why_not_followed` says why.

    Args:
        risk: with a linear head.
        optimizer: None for the flow, `NormalizedGD` or `GradientDescent`.
    """
    data, heads = risk.data.as_batch(), risk.data.as_batch().head(risk.head)
    starts = starting_points(risk, start)
    if why_not_followed(risk, optimizer):
        return []
    moves: BoolArray = np.any(depends_on_p(data, heads) | rounding_decides(data, heads), axis=-1)
    found: list[Outcome | None] = [
        None if moves[j] else _unmoved(data[j], starts[j], optimizer) for j in range(len(data))
    ]
    if optimizer is None:
        followed = [_by_flow(data[j], heads[j], risk.loss, starts[j], None) for j in np.flatnonzero(moves)]
    else:
        followed = _by_steps(data[moves], heads[moves], risk.loss, starts[moves], optimizer) if moves.any() else []
    rest = iter(followed)
    return [next(rest) if outcome is None else outcome for outcome in found]


def _unmoved(data: TokenDataset, start: FloatArray, optimizer: Any) -> Outcome:
    """Training where no output depends on p: every gradient is zero."""
    leading = directional_margin(data, start if np.any(start) else np.ones_like(start)).selected
    return Outcome(
        selected=leading,
        direction=None,
        point=start,
        way=0.0,
        optimizer=optimizer,
        by_flow=False,
        certificate=None,
        verdict=None,
        missing="",
        finite=False,
        error=0.0,
        rivals=(),
        constant=True,
    )


def _in_range(data: TokenDataset, heads: FloatArray) -> bool:
    """Whether keys and scores are of a size at which runs can be followed in double precision."""
    largest, scores = float(np.max(np.abs(data.K))), data.finite_scores(heads)[data.mask]
    return 1.0 / MAX_KEY <= largest <= MAX_KEY and float(np.max(np.abs(scores))) <= MAX_SCORE


def _nudged(starts: FloatArray, sizes: FloatArray) -> FloatArray:
    """Starts moved by these lengths in random directions, the same in every call."""
    moves = np.random.default_rng(0).standard_normal(starts.shape)
    return starts + (sizes / length(moves))[:, None] * moves


def _by_steps(data: TokenDataset, heads: FloatArray, loss: Loss, starts: FloatArray, optimizer: Any) -> list[Outcome]:
    """Take steps on all problems, and look at each point after ever more of them, until its limit is proved."""
    most = MAX_STEPS if isinstance(optimizer, NormalizedGD) else MAX_PLAIN_STEPS
    twins = _nudged(starts, NUDGE * np.maximum(length(starts), optimizer.size))
    points, found, open_ = starts.copy(), {}, np.arange(len(data))
    taken, marks = 0, FIRST_STEPS
    while len(open_):
        part, v = data[open_], heads[open_]
        both = (np.concatenate([points[open_], twins[open_]]), np.concatenate([v, v]))
        twice = data[np.concatenate([open_, open_])]
        run = descend(twice, both[1], loss=loss, start=both[0], n_steps=marks - taken, optimizer=optimizer)
        points[open_], twins[open_] = run.final[: len(open_)], run.final[len(open_) :]
        taken = marks
        tubes = find_tubes(part, v, points[open_], optimizer, loss)
        still = run.status[: len(open_)] == Status.COMPLETED
        for k in np.flatnonzero((tubes.missing == Missing.NOTHING) | ~still | (taken >= most)):
            j = int(open_[k])
            error = float(length(points[j] - twins[j]))
            found[j] = _outcome(data[j], heads[j], loss, optimizer, points[j], taken, tubes, int(k), error=error)
            if found[j].certificate is None:  # a finite minimum, perhaps, or steps that are too many to take
                flowed = _by_flow(data[j], heads[j], loss, points[j], optimizer, error)
                found[j] = flowed if flowed.finite or isinstance(optimizer, GradientDescent) else found[j]
        open_ = np.array([j for j in open_ if int(j) not in found], dtype=np.int64)
        marks = min(most, int(np.ceil(marks * np.sqrt(2.0))))
    return [found[j] for j in range(len(data))]


def _by_flow(
    data: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray, optimizer: Any, start_error: float = 0.0
) -> Outcome:
    """Follow the flow, twice as far each time, until its limit is proved; for plain steps from where they came to.

    Args:
        start_error: how far rounding may have moved the start. It counts unless the flow ends at a minimum, around which long steps circle.
    """
    size = largest_distance(data.K, data.mask) or 1.0
    way, part, point = 0.0, FIRST_WAY / size, start
    for _ in range(MAX_DOUBLINGS):
        run = flow(data, v, loss=loss, until=UntilLength(part), start=point)
        point, way, part = run.final, way + part, 2.0 * part
        tubes = find_tubes(data.as_batch(), v[None], point[None], optimizer, loss)
        if tubes.missing[0] == Missing.NOTHING or run.status is not Status.COMPLETED:
            break
    ended, error = run.status is Status.STATIONARY, 0.0
    if ended or tubes.missing[0] == Missing.NOTHING:
        twin = _nudged(start[None], FLOW_NUDGE * np.maximum(length(start[None]), 1.0 / size))[0]
        error = float(length(flow(data, v, loss=loss, until=UntilLength(way), start=twin).final - point))
    error = error if ended else max(error, start_error)
    by_flow = optimizer is not None
    return _outcome(data, v, loss, optimizer, point, way, tubes, 0, error=error, by_flow=by_flow, finite=ended)


def _outcome(
    data: TokenDataset,
    v: FloatArray,
    loss: Loss,
    optimizer: Any,
    point: FloatArray,
    way: float,
    tubes: Tubes,
    k: int,
    *,
    error: float = 0.0,
    by_flow: bool = False,
    finite: bool = False,
) -> Outcome:
    """What was found at a point, which has the k-th of some tubes."""
    missing, selected = Missing(tubes.missing[k]), tubes.selected[k]
    proved = missing is Missing.NOTHING
    undecided = (Missing.INFEASIBLE, Missing.TIED, Missing.SUPPORT_SCORES_HIGHER, Missing.ROUNDING_DECIDES)
    known = missing not in undecided and not finite
    lacking = {} if proved else {"norm": f"{float(length(point)):.4g}", "missing": SENTENCES[missing]}
    words = WORDS["proved"]["missing"].format(**lacking) if lacking else ""
    certificate: Certificate | MinimumCertificate | None = None
    if finite:
        words = WORDS["proved"]["gradient"]
        certificate = certify_minimum(data, v, loss, point)
    elif proved:
        certificate = certificate_of(data, v, loss, optimizer, point, tubes, k)
    verdict = None if certificate is None else _verdict_on(certificate)
    if verdict is not None and not verdict.applies:
        certificate, words = None, WORDS["proved"]["refused"].format(condition=verdict.failed[0].name)
    return Outcome(
        selected=selected,
        direction=tubes.direction[k] if known else None,
        point=point,
        way=way,
        optimizer=optimizer,
        by_flow=by_flow,
        certificate=certificate,
        verdict=verdict,
        missing=words,
        finite=finite,
        error=error,
        rivals=_rivals(data, v, selected, tubes.direction[k]) if known else (),
    )


def _verdict_on(proof: Certificate | MinimumCertificate) -> TheoremVerdict | None:
    """What `verify()` says of a proof, None of one so large that it may take more than two seconds."""
    data = proof.data
    if isinstance(proof, MinimumCertificate) and data.d_key > VERIFIED_WIDTH:
        return None
    return proof.verify() if data.n_inputs * data.n_tokens <= VERIFIED_TOKENS else None


def _rivals(data: TokenDataset, v: FloatArray, selected: IntArray, direction: FloatArray) -> tuple[Rival, ...]:
    """The runner-up of every input with two tokens, in the limit."""
    scores, rivals = data.scores(v), []
    for i, chosen in enumerate(selected.tolist()):
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
    """The first token with the smallest lead, -1 for none."""
    least = min(leads.values(), default=0.0)
    return next((t for t, lead in leads.items() if lead <= least + SAME_LEAD_RTOL * abs(least)), -1)
