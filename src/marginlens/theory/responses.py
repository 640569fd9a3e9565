"""The responses that win in the end when a log-linear policy is trained on preferences, over all responses to each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.rounding import EPS
from marginlens.data.tokens import TokenDataset
from marginlens.errors import InputError
from marginlens.losses.margin import LogProbability
from marginlens.papers import implements
from marginlens.result import Result, Tabular
from marginlens.risk.attention import SoftmaxRisk
from marginlens.risk.preferences import POLICY, PREFERENCE, as_policy
from marginlens.status import Status
from marginlens.svm.attention import att_svm
from marginlens.theory.optimality import directional_margin
from marginlens.theory.outcome import Answer, input_fact, more_inputs, token_fact
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray
from marginlens.words import Fact

REALISED_RTOL = 1e-9  # offsets count as those of a point if a point has them up to this share of their length
ROUNDING = 16.0  # multiples of a problem's rounding floor that the gap of its bracket may be wrong by
_SHOWN = 4  # prompts that an answer lists


@dataclass(frozen=True, repr=False, eq=False)
class WinningResponses(Result, Tabular):
    """The responses to which a policy trained on preferences gives all probability in the end.

    Attributes:
        winners: (n_prompts,) the response of each prompt that wins, the first if several tie.

        runners_up: (n_prompts,) the response that comes closest, -1 if there is only one.

        leads: (n_prompts,) by how much log π of the winner gains on it, per unit of the weights' norm in the limit; infinite if
            there is only one response.

        direction: (d,) the direction to which the weights converge.

        error: how far the computed direction may be from the exact one.

        decided: (n_prompts,) whether the lead is larger than that error allows it to be wrong.

        has_theorem: whether the theorem on logistic regression applies: if the reference's offsets are those of some weights.

    `to_frame()` has one row per prompt: prompt, winner, runner_up, lead, decided.
    """

    winners: IntArray
    runners_up: IntArray
    leads: FloatArray
    direction: FloatArray
    error: float
    decided: BoolArray
    has_theorem: bool
    quantities = "{winners}, error={error:.2g}"

    @property
    def proved(self) -> bool:
        """True if a theorem gives the direction and its rounding decides no winner."""
        return bool(self.has_theorem and self.decided.all())

    @property
    def answer(self) -> Answer:
        """The winners, by how much they lead, and whether that is proved."""
        shown, rest = range(min(_SHOWN, len(self.winners))), len(self.winners) - _SHOWN
        others = [
            Fact("outcome.token.in_input", {"name": self._name(i, self.winners), "where": input_fact(i, POLICY)})
            for i in shown[1:]
        ]
        if rest > 0:
            others.append(Fact("outcome.ends_at.more", {"inputs": more_inputs(rest, POLICY)}))
        case = "alone" if len(self.winners) == 1 else "several"
        numbers = {"first": self._name(0, self.winners), "where": input_fact(0, POLICY), "others": others}
        return Answer(
            Fact("outcome.ends_at.direction", {**numbers, "case": case}),
            tuple(self._because(i) for i in shown),
            self._proof,
            (Fact("responses.theorem"),) if self.has_theorem else (),
        )

    def _name(self, i: int, responses: IntArray) -> Fact:
        return token_fact(i, int(responses[i]), None, POLICY)

    def _because(self, i: int) -> Fact:
        if self.runners_up[i] < 0:
            return Fact("responses.only")
        numbers = {"winner": self._name(i, self.winners), "rival": self._name(i, self.runners_up)}
        lead = Fact("responses.lead", {**numbers, "lead": float(self.leads[i])})
        alone = len(self.winners) == 1
        return lead if alone else Fact("responses.for_prompt", {"where": input_fact(i, POLICY), "reason": lead})

    @property
    def _proof(self) -> Fact:
        if self.proved:
            return Fact("outcome.verdict.proved")
        tied = np.flatnonzero(~self.decided)
        missing = "responses.tied" if len(tied) else "responses.reference"
        numbers = {"where": input_fact(int(tied[0]), POLICY)} if len(tied) else {}
        return Fact("outcome.verdict.computed", {"reason": Fact(missing, numbers)})

    def __str__(self) -> str:
        return str(self.answer)

    def _columns(self) -> dict[str, Any]:
        columns = {"prompt": np.arange(len(self.winners)), "winner": self.winners, "runner_up": self.runners_up}
        return {**columns, "lead": self.leads, "decided": self.decided}


@implements("X", "R3")
def winning_responses(features: ArrayLike | Sequence[ArrayLike], risk: SoftmaxRisk) -> WinningResponses:
    r"""Predict which of all responses to each prompt wins in the end, if a log-linear policy is trained on preferences.

    .. math:: \arg\max_y \varphi(y)^\top \theta^{mm}, \quad
        \theta^{mm} = \arg\min \|\theta\| \ \text{s.t.}\ (\varphi(w_i) - \varphi(l_i))^\top \theta \ge 1

    The loss is logistic regression of the pairs' differences of features. If some direction ranks all pairs as they were chosen,
    gradient descent with small enough steps, from any start, converges in direction to θ^mm (Soudry et al., 2018, Theorem 3).
    In the limit the policy answers with the response that is farthest along it, whether it was chosen, rejected or in no pair.
    Neither β nor the reference changes it; they change how soon it is reached, and the approach is as slow as 1/log t.

    Args:
        features: those of all responses, as for `marginlens.risk.preferences`. They need not be those of the pairs: other
            prompts show what the policy generalises to.

        risk: the result of `marginlens.risk.preferences`.

    Returns:
        A `WinningResponses`; `str` of it says the winners in words.

    Raises:
        InputError: if the pairs contradict each other, so that no direction ranks all of them.
    """
    is_preference = isinstance(risk, SoftmaxRisk) and risk.data.kind == PREFERENCE and not risk.is_batch
    if not (is_preference and isinstance(risk.loss, LogProbability)):
        raise InputError("risk", "the result of ml.risk.preferences", type(risk).__name__)
    policy, data = as_policy(features), risk.data
    if policy.d_key != data.d_key:
        raise InputError("features", f"features of width {data.d_key}, as those of the pairs", f"width {policy.d_key}")
    solution = att_svm(data, np.zeros(data.n_inputs, dtype=np.int64))
    if solution.status is not Status.OPTIMAL:
        remedy = "ml.att_svm(risk.data, [0] * risk.data.n_inputs).contradiction names them."
        raise InputError("risk", "one of pairs that do not contradict each other", str(solution), remedy)
    gap = max(0.0, solution.bracket().gap)
    # A vector that obeys all rows is at most √(‖x‖² - ‖x*‖²) from the shortest one, x*.
    error = float(np.sqrt(gap * (2.0 + gap) + ROUNDING * max(EPS, solution.rounding_floor())))
    at = directional_margin(policy, solution.direction)
    runners_up = np.argmin(at.margins, axis=-1)
    inputs = np.arange(policy.n_inputs)
    leads = at.margins[inputs, runners_up]
    apart = length(policy.K[inputs, at.selected][:, None] - policy.K)
    decided: BoolArray = np.all((at.margins > error * apart + at.blur) | ~np.isfinite(at.margins), axis=-1)
    runners_up[~np.isfinite(leads)] = -1
    has_theorem = _is_realised(data, solution.rows)
    return WinningResponses(at.selected, runners_up, leads, solution.direction, error, decided, has_theorem)


def _is_realised(data: TokenDataset, rows: FloatArray) -> bool:
    """Return whether some weights have the offsets as logits: then training is that without offsets, from another start."""
    offsets = data.offsets[:, 0] - data.offsets[:, 1]
    missed = offsets - rows @ np.linalg.lstsq(rows, offsets, rcond=None)[0]
    return bool(length(missed) <= REALISED_RTOL * length(offsets))
