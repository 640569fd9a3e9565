"""The flow of a problem with many tokens, followed on those that matter: softmax leaves most of them next to nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.compiled_loops import RAN_ALL
from marginlens.dynamics.flow import FlowRun, field_of
from marginlens.theory.scored_tokens import ScoredTokens
from marginlens.typing import BoolArray, FloatArray

FEW_TOKENS = 1_000  # of a problem, up to which all tokens are followed
LARGE_RTOL = 1e-4  # local error of a step of the integrator
_MAX_LIVE_SHARE = 0.7  # of the tokens, beyond which leaving out the others saves nothing
_NEGLIGIBLE = (
    20.0  # a lead in logits by which a token has no weight beside the closest rivals at the tolerance of these flows
)
_ROOM = 1.5  # by which such a lead has to be larger where a leg begins


class LiveFlow:
    """A flow that may leave out tokens in each leg; the interface is that of `FlowRun`.

    A leg begins with the tokens whose logits are not far behind. If one of the others has caught up where it ends, the leg is followed
    again with all tokens.

    Attributes:
        point: the current point of the flow.

        reason: how it ended, `RAN_ALL` while it goes on.
    """

    def __init__(self, problem: ScoredTokens, field: Any, start: FloatArray) -> None:
        self._problem, self._field, self._length = problem, field, 0.0
        self.point, self.reason = start, FlowRun(field, start, LARGE_RTOL).reason

    def follow(self, to_length: float) -> None:
        """Follow the flow until its whole arc length has this value."""
        way = to_length - self._length
        live = self._live(_ROOM)
        if np.count_nonzero(live) > _MAX_LIVE_SHARE * np.count_nonzero(self._problem.data.mask):
            self._follow_all(way)
        else:
            before, part = self.point, _restricted(self._problem, live)
            run = FlowRun(field_of(part.risk), before, LARGE_RTOL)
            run.follow(way)
            self.point, self.reason = run.point, run.reason
            if self.reason != RAN_ALL or (self._live(1.0) & ~live).any():
                self.point = before
                self._follow_all(way)
        self._length = to_length

    def _follow_all(self, way: float) -> None:
        run = FlowRun(self._field, self.point, LARGE_RTOL)
        run.follow(way)
        self.point, self.reason = run.point, run.reason

    def _live(self, room: float) -> BoolArray:
        """Mark the tokens that are not negligible at the point beside the closest rival of all inputs."""
        leads = leads_at(self._problem, self.point)
        closest = np.min(leads, initial=np.inf, where=leads > 0.0)
        return np.asarray((leads <= closest + room * _NEGLIGIBLE) & self._problem.data.mask)


def leads_at(problem: ScoredTokens, point: FloatArray) -> FloatArray:
    """Compute by how much the largest logit of each input leads each token, (n_inputs, n_tokens); inf in padding."""
    data = problem.data
    logits = np.where(data.mask, data.K @ point + data.offsets, -np.inf)
    return np.asarray(logits.max(axis=-1, keepdims=True) - logits)


def may_be_proved(problem: ScoredTokens, point: FloatArray) -> bool:
    """Return False if some input that depends on p gives all tokens but one as much attention as that one, or more.

    The first condition of X Theorem 1, ε < 1, fails there.
    """
    others = np.sum(np.exp(-leads_at(problem, point)), axis=-1) - 1.0
    return bool(np.all(others[problem.dependent] < 1.0))


def _restricted(problem: ScoredTokens, live: BoolArray) -> ScoredTokens:
    """Keep only some tokens of each input."""
    data = problem.data
    X, K, offsets = (
        [rows[kept] for rows, kept in zip(array, live, strict=True)] for array in (data.X, data.K, data.offsets)
    )
    part = TokenDataset(X, data.y, K, offsets=offsets)
    return ScoredTokens(part, problem.head, problem.loss)
