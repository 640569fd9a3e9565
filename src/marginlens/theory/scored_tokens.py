"""A dataset with its head and loss, checked once, and the quantities that theorems need: scores, ties, optimal tokens, margins
by selection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from marginlens import core
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError
from marginlens.losses.margin import Logistic, Loss, LossConstants, as_loss, rising_margin
from marginlens.result import Described
from marginlens.risk import AttentionRisk, SoftmaxRisk
from marginlens.risk.smoothness import Smoothness, loss_on_scores, smoothness_on_scores
from marginlens.svm import MarginSolution, att_svm
from marginlens.typing import ArrayLike, BoolArray, FloatArray, Index, IntArray

SCORE_RTOL = 1e-12  # error of a score, relative to the sum of |v_j x_j| over coordinates, that rounding alone can make
_MOST_REMEMBERED = 1_000_000  # entries of the keys, beyond which only the last margin problem is remembered
_CANCELS = 1e-6  # share of these sums below which the difference of two scores has lost too many digits for a proof

Answer = TypeVar("Answer")
Differences = tuple[FloatArray, BoolArray]


class _OfBatch(NamedTuple):
    """One solution of a batch, taken out when it is first needed."""

    solutions: MarginSolution
    which: int


@dataclass(frozen=True, eq=False, repr=False, init=False)
class ScoredTokens(Described):
    r"""A problem, or a batch of problems, with its head and loss; each quantity is computed and each margin problem solved only once.

    .. math:: \gamma_{it} = Y_i v^\top x_{it}

    Args:
        data: one problem, or a batch of independent ones.

        head: v (d_model,) or (batch, d_model).

        loss: logistic by default.

    Attributes:
        scores: γ, (…, n_inputs, n_tokens), -inf if there is no token.

    `problem[j]` is one problem of a batch. It is the same object in every call, so its computed quantities are kept.

    Examples:
        >>> from marginlens.data import TokenDataset
        >>> from marginlens.theory.scored_tokens import ScoredTokens
        >>> problem = ScoredTokens(TokenDataset([[[1.0, 0.0], [0.0, 1.0]]], [1]), [2.0, 1.0])
        >>> problem.scores.tolist(), problem.optimal.tolist()
        ([[2.0, 1.0]], [0])
        >>> round(problem.margin([0]).margin, 4)
        1.4142
    """

    data: TokenDataset
    head: FloatArray
    loss: Loss
    scores: FloatArray
    _margins: dict[bytes, MarginSolution | _OfBatch]
    _differences: dict[bytes, Differences]
    _problems: dict[int, ScoredTokens]
    quantities = "{data!r}, {loss.__class__.__name__}"

    def __init__(self, data: TokenDataset, head: ArrayLike, loss: Loss = Logistic()) -> None:  # noqa: B008
        v = as_dataset(data).head(head)
        self._hold(data, v, as_loss(loss), data.finite_scores(v))

    def _hold(self, data: TokenDataset, head: FloatArray, loss: Loss, scores: FloatArray) -> None:
        vars(self).update(data=data, head=head, loss=loss, scores=scores)
        # What has been computed: margin problems and score differences by selection, and the problems of a batch by index.
        vars(self).update(_margins={}, _differences={}, _problems={})

    @classmethod
    def _checked(cls, data: TokenDataset, head: FloatArray, loss: Loss, scores: FloatArray) -> ScoredTokens:
        """Make a problem from parts that have been checked."""
        problem = object.__new__(cls)
        problem._hold(data, head, loss, scores)
        return problem

    @classmethod
    def of_risk(cls, risk: SoftmaxRisk) -> ScoredTokens:
        """Make the problem of a risk with a linear head; the risk has checked its parts."""
        head = np.broadcast_to(np.asarray(risk.head, dtype=np.float64), (*risk.data.batch_shape, risk.data.d_model))
        problem = cls._checked(risk.data, head, risk.loss, risk.data.finite_scores(head))
        vars(problem)["risk"] = risk
        return problem

    # ---- one problem or a batch

    @property
    def is_batch(self) -> bool:
        """True if there is a leading batch axis."""
        return self.data.is_batch

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[ScoredTokens]:
        return (self[j] for j in range(len(self)))

    def __getitem__(self, index: Index) -> ScoredTokens:
        """Return one problem of a batch for a whole number, a batch of some of them for a mask or a list."""
        if not self.is_batch:
            return self.as_batch()[index]
        if isinstance(index, int | np.integer):
            j = int(index)
            if j not in self._problems:
                self._problems[j] = self._checked(self.data[j], self.head[j], self.loss, self.scores[j])
            return self._problems[j]
        part = self._checked(self.data[index], self.head[index], self.loss, self.scores[index])
        part._problems.update(enumerate(self[j] for j in np.arange(len(self))[index]))
        return part

    def as_batch(self) -> ScoredTokens:
        """Return the same problems with a leading batch axis."""
        if self.is_batch:
            return self
        batch = self._checked(self.data.as_batch(), self.head[None], self.loss, self.scores[None])
        batch._problems[0] = self
        return batch

    def repeat(self, n_copies: int) -> ScoredTokens:
        """Make a batch of copies of one problem, without copying its arrays."""
        head, scores, blur = (np.broadcast_to(a, (n_copies, *a.shape)) for a in (self.head, self.scores, self.blur))
        batch = self._checked(self.data.repeat(n_copies), head, self.loss, scores)
        vars(batch)["blur"] = blur
        return batch

    def each(self, question: Callable[[ScoredTokens], Answer]) -> Answer | list[Answer]:
        """Apply a function to one problem, or list its results for a batch."""
        return [question(problem) for problem in self] if self.is_batch else question(self)

    @cached_property
    def risk(self) -> SoftmaxRisk:
        """The training risk of p."""
        return AttentionRisk(self.data, self.head, self.loss)

    # ---- scores

    @cached_property
    def blur(self) -> FloatArray:
        r"""The rounding error of each score, (…, n_inputs, n_tokens): `SCORE_RTOL` :math:`\sum_j |v_j x_{itj}|`.

        Two tokens tie if their scores differ by no more than the sum of their blurs. Coordinates that the head does not read do
        not contribute, however large they are.
        """
        return np.einsum("...itd,...d->...it", np.abs(self.data.X), SCORE_RTOL * np.abs(self.head))

    @cached_property
    def optimal(self) -> IntArray:
        """The index of the highest score of each input, (…, n_inputs); the first one if several tie."""
        return np.argmax(self.scores, axis=-1)

    def differences(self, selected: ArrayLike) -> Differences:
        r""":math:`\gamma_{i\alpha_i} - \gamma_{it}` and the mask of real tokens other than α, both (…, n_inputs, n_tokens).

        Differences within `blur` are exactly zero, and so are those of padding and of α itself.
        """
        data, alpha = self.data, self.data.selection(selected)
        key = alpha.tobytes()
        if key not in self._differences:
            given = (np.where(data.mask, self.scores, 0.0), self.blur, data.lengths, alpha)
            difference = np.empty(data.mask.shape)
            core.compare_scores(*self.batched(*given, difference))
            self._differences[key] = difference, data.mask & (np.arange(data.n_tokens) != alpha[..., None])
        return self._differences[key]

    def batched(self, *arrays: FloatArray | IntArray | BoolArray) -> list[Any]:
        """Return arrays as the core takes them: with a batch axis, and contiguous."""
        return [np.ascontiguousarray(array if self.is_batch else array[None]) for array in arrays]

    def sharp_differences(self, selected: ArrayLike) -> Differences:
        r""":math:`\gamma_{i\alpha_i} - \gamma_{it}` to nearly all digits, and the mask of near ties, both (…, n_inputs, n_tokens).

        Differences that lose digits to cancellation are computed exactly from the given doubles. A near tie is not zero, but within
        `blur`: in double precision rounding decides which of the two tokens scores higher.
        """
        blurred, other = self.differences(selected)
        data, alpha = self.data, self.data.selection(selected)
        scores, size = np.where(data.mask, self.scores, 0.0), self.blur / SCORE_RTOL
        chosen, size_chosen = (np.take_along_axis(array, alpha[..., None], axis=-1) for array in (scores, size))
        difference = chosen - scores
        token = np.take_along_axis(data.X, alpha[..., None, None], axis=-2)
        for *at, t in np.argwhere(other & (np.abs(difference) <= _CANCELS * (size_chosen + size))).tolist():
            x, z, weights = data.X[(*at, t)], token[(*at, 0)], self.head[tuple(at[:-1])]
            read = (x != z) & (weights != 0.0)
            terms = zip(x[read].tolist(), z[read].tolist(), weights[read].tolist(), strict=True)
            exact = sum((Fraction(weight) * (Fraction(b) - Fraction(a)) for a, b, weight in terms), Fraction(0))
            difference[(*at, t)] = float(exact * int(data.y[tuple(at)]))
        return difference, other & (blurred == 0.0) & (difference != 0.0)

    # ---- inputs

    @cached_property
    def dependent(self) -> BoolArray:
        """The mask of inputs whose output depends on p, (…, n_inputs): those with two different keys and two different scores.

        An input with one token, with one key for all its tokens, or with one score for all of them adds a constant to the risk.
        The theorems are about the other inputs, and n counts only those.
        """
        return np.asarray(~self._has_one_key & ~all_tied(self.scores, self.blur, self.data.mask))

    @cached_property
    def undecided(self) -> BoolArray:
        """The mask of inputs with different keys whose scores all tie within `blur`, but not exactly, (…, n_inputs).

        `dependent` treats the output of such an input as constant. Exact steps depend on it, and after enough steps it may
        decide where training ends, so a theorem about the other inputs alone proves nothing about the whole problem.
        """
        candidates = ~self._has_one_key & ~self.dependent
        if not candidates.any():
            return candidates
        return np.asarray(self.sharp_differences(self.optimal)[1].any(axis=-1) & candidates)

    @cached_property
    def _has_one_key(self) -> BoolArray:
        K = self.data.K
        return np.asarray(np.all(np.equal(K, K[..., :1, :]).all(axis=-1) | ~self.data.mask, axis=-1))

    @cached_property
    def part(self) -> ScoredTokens:
        """The problem restricted to the inputs whose output depends on p; the problem itself if all or none of them do."""
        if self.dependent.all() or not self.dependent.any():
            return self
        data = self.data.take_inputs(self.dependent)
        return self._checked(data, self.head, self.loss, self.scores[self.dependent, : data.n_tokens])

    @cached_property
    def shortened(self) -> ScoredTokens:
        """The problems with a single token for every input whose output does not depend on p, so that it constrains nothing."""
        if self.dependent.all():
            return self
        data = self.data.shortened(np.where(self.dependent, self.data.lengths, 1))
        return self._checked(data, self.head, self.loss, np.where(data.mask, self.scores, -np.inf))

    # ---- the loss on the scores

    @cached_property
    def loss_constants(self) -> list[LossConstants]:
        """The constants of Assumption A for each problem, on the interval of its scores, which no margin Y f(X) can leave."""
        return loss_on_scores(self.as_batch().scores, self.as_batch().data.mask, self.loss)

    @cached_property
    def smoothness(self) -> Smoothness:
        """Lipschitz constants of the gradient of the risk."""
        return smoothness_on_scores(self.data, self.head, self.scores, self.loss_constants)

    @cached_property
    def log_slopes(self) -> tuple[Any, Any]:
        """Logarithms of the largest and the smallest \\|ℓ'\\| on each problem's scores, each (…); they do not underflow, even
        at scores of 1000.
        """
        self.require_decreasing_loss()
        bound, smallest = np.array([(c.log_bound, c.log_smallest) for c in self.loss_constants]).T
        return bound.reshape(self.data.batch_shape), smallest.reshape(self.data.batch_shape)

    def require_decreasing_loss(self) -> None:
        """Refuse a loss that rises somewhere on the scores of a problem: no theorem on selected tokens covers it."""
        for low, high in self.score_ranges:
            margin = rising_margin(self.loss, low, high)
            if margin is not None:
                expected = f"a loss that decreases on the scores [{low:.4g}, {high:.4g}], as A Assumption A asks"
                raise InputError("loss", expected, f"{type(self.loss).__name__}, which increases at {margin:.4g}")

    @cached_property
    def score_ranges(self) -> list[tuple[float, float]]:
        """The lowest and the highest score of each problem."""
        batch = self.as_batch()
        real = [scores[mask] for scores, mask in zip(batch.scores, batch.data.mask, strict=True)]
        return [(float(scores.min()), float(scores.max())) for scores in real]

    # ---- margins

    def margin(self, selected: ArrayLike) -> MarginSolution:
        """Solve the ATT-SVM of a selection (…, n_inputs); a single problem solves it only once."""
        if self.is_batch:
            return att_svm(self.data, selected)
        alpha = self.data.selection(selected)
        key = alpha.tobytes()
        known = self._margins.get(key)
        if isinstance(known, MarginSolution):
            return known
        if self.data.K.size > _MOST_REMEMBERED:
            # The rows of a solution are as large as the keys.
            self._margins.clear()
        solution = att_svm(self.data, alpha) if known is None else _without_padding(*known)
        self._margins[key] = solution
        return solution

    @property
    def n_solved(self) -> int:
        """The number of margin problems of complete selections solved so far."""
        return len(self._margins)

    def margins(self, selections: IntArray) -> MarginSolution:
        """Solve the ATT-SVMs of several selections (n_selections, n_inputs) of one problem as a batch; each is remembered."""
        solutions = att_svm(self.data.repeat(len(selections)), selections)
        for j, alpha in enumerate(selections):
            self._margins.setdefault(alpha.tobytes(), _OfBatch(solutions, j))
        return solutions

    def margins_of_dependent(self, selected: IntArray) -> list[MarginSolution]:
        """Solve the ATT-SVM of a selection of each problem (batch, n_inputs), for the inputs whose output depends on p."""
        problems = list(self)
        unsolved = [j for j, problem in enumerate(problems) if problem._lacks(selected[j])]
        if len(unsolved) > 1:
            solutions = att_svm(self.data[unsolved], selected[unsolved])
            for k, j in enumerate(unsolved):
                problems[j]._margins[selected[j].tobytes()] = _OfBatch(solutions, k)
        parts = [alpha if p.part is p else alpha[p.dependent] for p, alpha in zip(problems, selected, strict=True)]
        return [problem.part.margin(alpha) for problem, alpha in zip(problems, parts, strict=True)]

    def _lacks(self, alpha: IntArray) -> bool:
        return self.part is self and alpha.tobytes() not in self._margins


def _without_padding(solutions: MarginSolution, j: int) -> MarginSolution:
    """Take one solution out of a batch, without the zero rows that pad shorter inputs."""
    solution = solutions[j]
    pairs = np.asarray(solution.pairs)
    real = pairs[:, 0] >= 0
    if real.all():
        return solution
    of_rows = ("lower", "multipliers", "active", "pairs", "certificate")
    kept = {name: array[real] for name in of_rows if (array := getattr(solution, name)) is not None}
    return replace(solution, rows=solution.rows[real], **kept)


def all_tied(scores: FloatArray, blur: FloatArray, where: BoolArray) -> BoolArray:
    """Return whether every two tokens among `where` tie, (…), from arrays (…, n_tokens): intervals meet in pairs only if they
    share a point.
    """
    highest = np.max(np.where(where, scores - blur, -np.inf), axis=-1)
    return np.asarray(highest <= np.min(np.where(where, scores + blur, np.inf), axis=-1))
