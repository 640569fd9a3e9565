"""Where training ends, computed: the flow or the steps are followed until a theorem gives their limit or what is missing is clear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.directions import length
from marginlens.dynamics import descend, flow
from marginlens.dynamics.flow import UntilLength
from marginlens.losses.margin import Loss
from marginlens.optimizers import GradientDescent, NormalizedGD
from marginlens.result import Headline, Result, Tabular, drawn
from marginlens.result.drawing import NothingToDraw, draw_bars
from marginlens.risk import AttentionRisk
from marginlens.risk.protocol import starting_points
from marginlens.status import Status
from marginlens.theory.attraction import SENTENCES, STEEPNESS, WORDS, Missing, Tubes, find_tubes
from marginlens.theory.certificate import Certificate, certificate_of
from marginlens.theory.finite_minimum import MinimumCertificate, certify_minimum
from marginlens.theory.optimality import largest_distance
from marginlens.typing import Axes, FloatArray, IntArray

FIRST_STEPS = 16  # after which a point is looked at for the first time, and then after √2 times as many steps each
MAX_STEPS = 1_000_000
MAX_PLAIN_STEPS = 100_000  # norms grow like the logarithm of their number
MAX_DOUBLINGS = 12  # of the length of the flow, the first being FIRST_WAY
FIRST_WAY = 8.0  # over the largest distance of two keys
MAX_TOKENS = 1_000  # of a problem that is followed
MAX_SCORE = 300.0  # beyond which slopes of the loss are near the smallest numbers there are
MAX_KEY = 1e50  # entries of keys beyond it, or all below its inverse, have products that are no numbers
NUDGE = 1e-13  # of the start, relative to a step or to the start, to see how much a run amplifies rounding errors
_SHOWN_INPUTS = 4


class Answer(NamedTuple):
    """What a prediction says in three lines: where training ends, because of what, and whether that is proved."""

    ends_at: str
    because: str
    proof: str

    def __str__(self) -> str:
        because = self.because.replace("; ", ";\n         ")
        return f"ends at: {self.ends_at}.\nbecause: {because}.\nproved?  {self.proof}."


class Rival(NamedTuple):
    """The token of an input that comes closest to the selected one, and how it loses.

    Attributes:
        input, selected, token: indices. lead: by how much the selected token's logit leads per unit of norm in the limit.
        score: by how much the selected token's score is higher. higher: a token that scores higher than the selected one, -1 for none.
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
        selected: (n_inputs,) the tokens that lead at the last point. direction: (d_key,) their max-margin direction; None where training
            ends at a finite minimum or nothing is known.
        point: (d_key,) the last point that was computed. way: after how many steps, or after which length of the flow. optimizer: of the
            steps, None for the flow. by_flow: whether plain steps were replaced by the flow from some point on.
        certificate: the proof from `point` on, None without one. missing: else what is missing, in words. finite: whether training
            ends at a finite minimum.
        error: how far the point moves when the start is moved by 1e-13, for steps; the flow's is below the certificate's tolerance.
        rivals: the runner-up of each input.

    `to_frame()` has one row per input: input, selected, runner_up, lead (in logits per unit of norm), score (higher by).
    """

    selected: IntArray
    direction: FloatArray | None
    point: FloatArray
    way: float
    optimizer: Any
    by_flow: bool
    certificate: Certificate | MinimumCertificate | None
    missing: str
    finite: bool
    error: float
    rivals: tuple[Rival, ...]

    @property
    def proved(self) -> bool:
        """Whether a theorem gives the limit from the computed point on, of what was asked about."""
        in_part = self.by_flow or (self.finite and self.optimizer is not None)
        return self.certificate is not None and not in_part

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
        way = {"steps": f"{int(self.way):,}", "way": f"{self.way:.4g}", "norm": f"{self.norm:.4g}"}
        reached = WORDS["reached"]["flow" if self.optimizer is None or self.by_flow else "steps"].format(**way)
        kind = "finite" if self.finite else "unknown" if self.direction is None else "tokens"
        tokens = {"tokens": f"tokens {self.selected.tolist()}", "their": "their", "lead": "lead"}
        return WORDS["ends at"][kind].format(reached=reached, angle=f"{self.angle:.3g}", **tokens)

    @property
    def because(self) -> str:
        """The runner-up of each input and why it loses; of the first inputs where there are many."""
        words = WORDS["because"]
        if self.direction is None:
            return words["finite" if self.finite else "unknown"]
        listed = "; ".join(map(str, self.rivals[:_SHOWN_INPUTS]))
        left = len(self.rivals) - _SHOWN_INPUTS
        return listed + (words["more"].format(left=left) if left > 0 else "") if listed else words["alone"]

    @property
    def proof(self) -> str:
        """Whether it is proved, by what, or what is missing."""
        if self.certificate is None:
            return WORDS["proved"]["no"].format(missing=self.missing)
        checked = "; certificate.verify() checks it" if self.proved else ""
        if isinstance(self.certificate, MinimumCertificate):
            words = WORDS["proved"]["minimum" if self.proved else "minimum in part"]
            return words.format(radius=f"{self.certificate.radius:.2g}") + checked
        numbers = {"norm": f"{self.norm:.4g}", "radius": f"{self.certificate.radius:.3g}"}
        words = WORDS["proved"]["yes" if self.proved else "in part"]
        text = words.format(moving=self.certificate.steps_words, **numbers) + checked
        if self.proved and self.error > self.certificate.tolerance:
            text += f". This run amplifies rounding errors ({self.error:.1g}), so the proof is of the point that was computed"
        return text

    @property
    def answer(self) -> Answer:
        """The three lines."""
        return Answer(self.ends_at, self.because, self.proof)

    def __str__(self) -> str:
        return str(self.answer)

    def __repr__(self) -> str:
        known = "finite minimum" if self.finite else "direction unknown" if self.direction is None else "direction"
        return f"Outcome({known}, selects {self.selected.tolist()}, {'proved' if self.proved else 'not proved'})"

    @drawn
    def plot(self, ax: Axes) -> None:
        """Draw by how much each input's selected token outruns its runner-up."""
        if not self.rivals:
            raise NothingToDraw("No token is selected.")
        names = [f"{rival.input}: {rival.selected} over {rival.token}" for rival in self.rivals]
        draw_bars(ax, names, [rival.lead for rival in self.rivals], "lead of the logit per unit of norm")

    def _columns(self) -> dict[str, Any]:
        rows = zip(*self.rivals, strict=True) if self.rivals else [()] * 7
        index, selected, token, lead, score, *_ = map(list, rows)
        return {"input": index, "selected": selected, "runner_up": token, "lead": lead, "score": score}

    def _headline(self) -> Headline:
        return Headline("ends at", f"{self.ends_at}.", True if self.proved else None)

    def _facts(self) -> dict[str, Any]:
        return {"because": self.because, "proved?": self.proof, "norm": self.norm, "direction": self.direction}


def outcomes(risk: AttentionRisk, start: Any, optimizer: Any) -> list[Outcome]:
    """Where training p ends from a start, zero where it is None, problem by problem.

    Args:
        risk: with a linear head. optimizer: None for the flow, `NormalizedGD` or `GradientDescent`.
    """
    data, heads = risk.data.as_batch(), risk.data.as_batch().head(risk.head)
    starts = starting_points(risk, start)
    if type(risk.loss) not in STEEPNESS or not (
        optimizer is None or isinstance(optimizer, NormalizedGD | GradientDescent)
    ):
        return []
    if data.n_inputs * data.n_tokens > MAX_TOKENS or not _in_range(data, heads):
        return []
    if optimizer is None:
        return [_by_flow(data[j], heads[j], risk.loss, starts[j], None) for j in range(len(data))]
    return _by_steps(data, heads, risk.loss, starts, optimizer)


def _in_range(data: TokenDataset, heads: FloatArray) -> bool:
    """Whether keys and scores are of a size at which runs can be followed in double precision."""
    largest, scores = float(np.max(np.abs(data.K))), data.finite_scores(heads)[data.mask]
    return 1.0 / MAX_KEY <= largest <= MAX_KEY and float(np.max(np.abs(scores))) <= MAX_SCORE


def _by_steps(data: TokenDataset, heads: FloatArray, loss: Loss, starts: FloatArray, optimizer: Any) -> list[Outcome]:
    """Take steps on all problems, and look at each point after ever more of them, until its limit is proved."""
    most = MAX_STEPS if isinstance(optimizer, NormalizedGD) else MAX_PLAIN_STEPS
    nudge = np.random.default_rng(0).standard_normal(starts.shape)
    twins = starts + NUDGE * np.maximum(length(starts), optimizer.size)[:, None] * nudge / length(nudge)[:, None]
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
                flowed = _by_flow(data[j], heads[j], loss, points[j], optimizer)
                found[j] = flowed if flowed.finite or isinstance(optimizer, GradientDescent) else found[j]
        open_ = np.array([j for j in open_ if int(j) not in found], dtype=np.int64)
        marks = min(most, int(np.ceil(marks * np.sqrt(2.0))))
    return [found[j] for j in range(len(data))]


def _by_flow(data: TokenDataset, v: FloatArray, loss: Loss, start: FloatArray, optimizer: Any) -> Outcome:
    """Follow the flow, twice as far each time, until its limit is proved; for plain steps from where they came to."""
    size = largest_distance(data.K, data.mask)
    way, part, point = 0.0, FIRST_WAY / size if size > 0.0 else FIRST_WAY, start
    for _ in range(MAX_DOUBLINGS):
        run = flow(data, v, loss=loss, until=UntilLength(part), start=point)
        point, way, part = run.final, way + part, 2.0 * part
        tubes = find_tubes(data.as_batch(), v[None], point[None], optimizer, loss)
        if tubes.missing[0] == Missing.NOTHING or run.status is not Status.COMPLETED:
            break
    ended = run.status is Status.STATIONARY
    return _outcome(data, v, loss, optimizer, point, way, tubes, 0, by_flow=optimizer is not None, finite=ended)


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
    known = missing not in (Missing.INFEASIBLE, Missing.TIED, Missing.SUPPORT_SCORES_HIGHER) and not finite
    lacking = {} if proved else {"norm": f"{float(length(point)):.4g}", "missing": SENTENCES[missing]}
    words = WORDS["proved"]["missing"].format(**lacking) if lacking else ""
    certificate: Certificate | MinimumCertificate | None = None
    if finite:
        words = "that the gradient vanishes there is computed to rounding, not proved"
        certificate = certify_minimum(data, v, loss, point)
    elif proved:
        certificate = certificate_of(data, v, loss, optimizer, point, tubes, k)
    return Outcome(
        selected=selected,
        direction=tubes.direction[k] if known else None,
        point=point,
        way=way,
        optimizer=optimizer,
        by_flow=by_flow,
        certificate=certificate,
        missing=words,
        finite=finite,
        error=error,
        rivals=_rivals(data, v, selected, tubes.direction[k]) if known else (),
    )


def _rivals(data: TokenDataset, v: FloatArray, selected: IntArray, direction: FloatArray) -> tuple[Rival, ...]:
    """The runner-up of every input with two tokens, in the limit."""
    scores, rivals = data.scores(v), []
    for i, chosen in enumerate(selected.tolist()):
        others = [t for t in range(int(data.lengths[i])) if t != chosen]
        if not others:
            continue
        leads = {t: float((data.K[i, chosen] - data.K[i, t]) @ direction) for t in others}
        ahead = {t: float(scores[i, chosen] - scores[i, t]) for t in others}
        nearest = min(others, key=leads.__getitem__)
        higher = min((t for t in others if ahead[t] < 0.0), key=leads.__getitem__, default=-1)
        rivals.append(Rival(i, chosen, nearest, leads[nearest], ahead[nearest], higher, leads.get(higher, 0.0)))
    return tuple(rivals)
