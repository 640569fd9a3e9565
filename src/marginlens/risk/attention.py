"""Risks of a softmax that chooses, and of attention, as functions of p: value, excess, exact derivatives and margin rows."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import ExcessRisk, LogScaled
from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import InputError, n_axes
from marginlens.losses.margin import (
    Exponential,
    Logistic,
    Loss,
    SignedLog,
    as_loss,
    check_domain,
    compiled_code,
    has_poles,
    slope_at,
    slope_of,
    value_of,
)
from marginlens.papers import implements, uses
from marginlens.result import Described
from marginlens.risk.at_logits import AtLogits, TokenRisk, relative_keys, score_pull
from marginlens.risk.heads import LinearHead, as_head
from marginlens.risk.matrix import FactorRisk, MatrixRisk
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.risk.smoothness import smoothness
from marginlens.risk.softmax import centred_keys
from marginlens.runtime.threads import parallel_over
from marginlens.typing import ArrayLike, FloatArray, Index, IntArray
from marginlens.words import DEFAULT

KEY_RANK_RTOL = (
    1e-12  # singular values of the keys, relative to the largest, below which a direction is no part of their span
)
_MANY_ROWS = 1_000  # beyond which rows are replaced by their triangular factor
LOSS_DIFFERENCE_STEP = 1e-5  # margins by which ℓ' or log|ℓ'| is differentiated
LOSS_SIGN_GRID = 2_001  # margins at which a loss is asked for its sign


class SecondOrder(NamedTuple):
    """A risk to second order at points (n_points,), each up to the factor exp(`log_scale`).

    Attributes:
        selected: (n_points, n_inputs) the tokens with the largest logits.

        gradient: (n_points, r) the gradients.

        hessian: (n_points, r, r) the second derivatives.

        terms: (n_points,) the length that the gradient would have if none of its terms cancelled.

        log_excess_terms: (n_points,) the logarithm that the excess risk over the selected tokens would have if none of its
            terms cancelled.
    """

    selected: IntArray
    gradient: FloatArray
    hessian: FloatArray
    terms: FloatArray
    log_excess_terms: FloatArray
    log_scale: FloatArray

    def take(self, which: Index) -> SecondOrder:
        """Take some of the points."""
        return SecondOrder._make(part[which] for part in self)


class KeySpan(NamedTuple):
    """A risk in coordinates c of the span of its key differences, p = `basis` c with ‖p‖ = ‖c‖; `basis` (d_key, r) is orthonormal."""

    risk: SoftmaxRisk
    basis: FloatArray


class SoftmaxRisk(TokenRisk, Described):
    r"""The mean loss of softmax-weighted scores, as a function of p: everything that chooses one of several by a log-linear softmax.

    .. math:: L(p) = \frac1n \sum_{i=1}^n \ell\Big(\sum_t s_{it}\, \gamma_{it}\Big), \quad
        s_i = \mathbb S(K_i p + b_i)

    An input may be a sequence whose tokens are chosen, a question with its possible answers, or the state of a bandit with its
    arms. `AttentionRisk` is this risk with the scores that a head gives tokens. `as_matrix` trains a matrix W with logits
    u_iᵀ W k_it for a vector u_i of each input, a router or an adapter for example.

    Points of one problem may have any leading axes; those of a batch have the batch axis first.

    Args:
        keys: K, the features of each choice: an array (n_inputs, n_choices, d_key) or (batch, n_inputs, n_choices, d_key), or a
            list of arrays (n_choices_i, d_key) if inputs differ in their number of choices.

        scores: γ of shape (n_inputs, n_choices) or (batch, n_inputs, n_choices), or a list of lists: how good each choice is.

        offsets: b in the form of the scores, added to the logits and never trained: the logits of a reference policy, or a bias.
            Zero by default.

        loss: any `Loss`; logistic by default.

        tokens, kind: the names of the choices, and what verdicts call choices and inputs, as for `TokenDataset`.

    Attributes:
        data: the keys, scores and offsets as a dataset, whose tokens are the choices.

        head: what gives the tokens of `data` their scores.

    Examples:
        >>> import marginlens as ml
        >>> risk = ml.SoftmaxRisk([[[0.0, 1.0], [1.0, 0.0]]], [[1.0, 0.0]], offsets=[[0.0, 2.0]])
        >>> risk.attention([0.0, 2.0]).tolist()
        [[0.5, 0.5]]
        >>> print(ml.predict_limit(risk).outcome)
        Token 0 wins.
        Why: token 0 scores 1 more than its closest rival, token 1.
        Proved ✓
    """

    data: TokenDataset
    head: Any
    loss: Loss
    quantities = "{data!r}, {loss.__class__.__name__}"

    def __init__(
        self,
        keys: ArrayLike | Sequence[ArrayLike],
        scores: Any,
        offsets: Any = None,
        loss: Loss | None = None,
        tokens: Sequence[str] | Sequence[Sequence[str]] | None = None,
        kind: str = DEFAULT,
    ) -> None:
        data = TokenDataset.of_scores(keys, scores, offsets, tokens, kind)
        vars(self).update(data=data, head=data.own_head, loss=Logistic() if loss is None else as_loss(loss))
        self._check_domain()

    def _check_domain(self) -> None:
        """Refuse scores at which the loss is not defined."""
        if self.loss.domain != Loss.domain:
            check_domain(self.loss, None if callable(self.head) else self.scored_head.scores, self.data.mask)

    def _with(self, **changes: Any) -> Any:
        """Return the risk with other parts, which are not checked."""
        risk = object.__new__(type(self))
        vars(risk).update({"data": self.data, "head": self.head, "loss": self.loss} | changes)
        return risk

    @property
    def shape(self) -> tuple[int]:
        """The shape of a point, (d_key,)."""
        return (self.data.d_key,)

    def __getitem__(self, index: Index) -> Any:
        """Return the risk of one problem of a batch, or of several."""
        head = self.head if callable(self.head) else np.broadcast_to(self.head, (len(self), self.data.d_model))[index]
        return self._with(data=self.data[index], head=head)

    def of_inputs(self, inputs: IntArray) -> Any:
        """Restrict the risk to some of the inputs, given by their indices (n_taken,): a mini-batch."""
        return self._with(data=self.data.take_inputs(inputs))

    @property
    def is_linear(self) -> bool:
        """True if the head is a vector, so that no token's score depends on the attention."""
        return not callable(self.head)

    @cached_property
    def scored_head(self) -> Any:
        """The head with the scores that it gives the tokens."""
        return as_head(self.data, self.head)

    @cached_property
    def _keys(self) -> FloatArray:
        return centred_keys(self.data)

    def logits(self, x: ArrayLike) -> FloatArray:
        """Compute the attention logits K p + b, (…, n_inputs, n_tokens), of keys less their input's mean, which leaves the softmax
        unchanged.
        """
        points = self.data.point(x) if self.is_batch else as_points(x, self.shape)
        K, is_batch = self.data.K, self.is_batch
        if K.flags.c_contiguous and points.ndim == (2 if is_batch else 1):
            logits = np.empty(self.data.mask.shape)
            arrays = (K, np.ascontiguousarray(self.data.lengths), np.ascontiguousarray(points), logits)
            if is_batch:
                parallel_over(core.centred_logits, len(K), *arrays, step_cost=4.0 * K[0].size)
            else:
                core.centred_logits(0, 1, *(array[None] for array in arrays))
        else:
            logits = np.einsum("...itd,...d->...it", self._keys, points)
        return logits + self.data.offsets if self.data.has_offsets else logits

    def at(self, logits: FloatArray) -> AtLogits:
        """Return the risk at given attention logits, (…, n_inputs, n_tokens), whatever weights made them."""
        return AtLogits(self, logits)

    def at_point(self, x: ArrayLike) -> AtLogits:
        """Return the risk at the logits K p + b."""
        return self.at(self.logits(x))

    def logits_of_inputs(self, vectors: FloatArray) -> FloatArray:
        """Compute the attention logits K_i p_i + b_i, (…, n_inputs, n_tokens), if every input has its own p, (…, n_inputs, d_key)."""
        return np.einsum("...itd,...id->...it", self._keys, vectors) + self.data.offsets

    # ---- values

    @implements("A", "Eq. (1)")
    def value(self, x: ArrayLike) -> FloatArray:
        """Return L(p), (…)."""
        return super().value(x)

    @implements("A", "Eq. (63)")
    def excess(self, x: ArrayLike, selected: ArrayLike | None = None) -> ExcessRisk:
        r"""Compute the risk at p less the risk of selecting one token per input outright, exact even far below the smallest float64.

        .. math:: L(p) - \frac1n \sum_{i=1}^n \ell(\gamma_{i\alpha_i})

        Args:
            selected: α of shape (n_inputs,) or (…, n_inputs); by default the tokens with the largest logits at p.
        """
        return super().excess(x, selected)

    def selection(self, selected: ArrayLike) -> IntArray:
        """Check token indices (…, n_inputs); those of one problem may have leading axes, as its points may."""
        if self.is_batch or n_axes(selected) < 2:
            return self.data.selection(selected)
        array = np.asarray(selected).reshape(-1, self.data.n_inputs)
        return self.data.repeat(len(array)).selection(array).reshape(np.shape(selected))

    @cached_property
    def is_nonnegative(self) -> bool:
        """True if no risk is negative: then the smaller the logarithm of a risk, the better. False if it is not known."""
        if isinstance(self.loss, Logistic | Exponential) and compiled_code(self.loss) >= 0:
            return True
        if not isinstance(self.scored_head, LinearHead):
            return False
        scores = self.scored_head.scores[self.data.mask]
        return bool(np.all(value_of(self.loss, np.linspace(scores.min(), scores.max(), LOSS_SIGN_GRID)) >= 0.0))

    # ---- derivatives

    @implements("A", "Eq. (15a)", "Eq. (18)")
    @uses(
        "A",
        {
            "Eq. (13a)": "The gradient of one input's output in q = Wᵀp for a linear head, summed over pairs of tokens.",
            "Eq. (13b)": "The same in p, with keys in place of tokens.",
        },
    )
    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Exact gradient at p, accurate to rounding relative to its own size at any norm of p.

        .. math:: \nabla L(p) = \frac1n \sum_{i=1}^n \ell'_i\, K_i^\top \mathbb S'(K_i p)\, \gamma_i

        Returns:
            A `LogScaled`: `.value()` is the gradient itself, and `.log_norm` gives its size even if it underflows.
        """
        return self.at_point(x).gradient()

    def residual_attention(self, x: ArrayLike) -> FloatArray:
        r"""Return the multipliers of the margin rows that the attention at p shows, (…, n_inputs, n_tokens), the largest scaled to one.

        .. math:: \lambda_{it} = |\ell'_i|\, s_{it} (f_i - \gamma_{it}), \qquad
            -\nabla L = \tfrac1n \sum_{i, t} \lambda_{it} (k_{i\alpha_i} - k_{it})
        """
        return self.at_point(x).residual_attention()

    def second_order(self, x: FloatArray) -> SecondOrder:
        r"""Compute the gradient and second derivative of the risk of one problem at points (n_points, d_key).

        .. math:: \nabla^2 L = \tfrac1n \sum_i \ell''_i \nabla f_i \nabla f_i^\top
            + \ell'_i \sum_t s_{it} (\gamma_{it} - f_i)(k_{it} - \bar k_i)(k_{it} - \bar k_i)^\top, \quad \bar k_i = \sum_t s_{it} k_{it}

        It is exact for a linear head. For a nonlinear one the curvature of ψ is left out, which saturation makes negligible.
        """
        at, margin = self.scored_head.attend(self.logits(x))
        slope = slope_at(self.loss, at.exact_margin, margin)  # (n_points, n_inputs)
        sign, pull = score_pull(at)  # the selected token included
        pull = np.where(self.data.mask, pull, -np.inf)
        logs = pull + slope.log[..., None]
        scale = np.max(logs, axis=(-2, -1))
        scale = np.where(np.isfinite(scale), scale, 0.0)
        weight = -slope.sign[..., None] * sign * np.exp(logs - scale[:, None, None]) / self.data.n_inputs
        relative = np.where(self.data.mask[..., None], relative_keys(self._keys, at.alpha), 0.0)
        drift = np.einsum("bit,bitr->bir", np.exp(at.log_s), relative)  # k̄ - k_α
        spread = (relative - drift[..., None, :]).reshape(len(x), weight[0].size, self.data.d_key)
        hessian = np.matmul(np.swapaxes(spread * weight.reshape(len(x), -1, 1), -1, -2), spread)
        largest = np.max(pull, axis=-1)
        pulls = np.isfinite(largest)  # false for an input whose tokens all score the same, or that has one token only
        largest = np.where(pulls, largest, 0.0)
        of_input = np.einsum("bit,bitr->bir", sign * np.exp(pull - largest[..., None]), relative)  # -∇f_i, scaled
        if has_poles(self.loss):
            factor, log_curvature = self.loss.curvature_at(at.exact_margin)
        else:
            factor, log_curvature = self._loss_curvature(margin, slope)
        bend = factor * np.exp(np.where(pulls, 2.0 * largest + log_curvature - scale[:, None], -np.inf))
        hessian += np.matmul(np.swapaxes(of_input * (bend / self.data.n_inputs)[..., None], -1, -2), of_input)
        with np.errstate(divide="ignore"):
            rises = at.log_s + np.log(np.abs(at.gap)) + slope.log[..., None]
            total = np.log(np.sum(np.exp(rises - scale[:, None, None]), axis=(-2, -1)) / self.data.n_inputs)
        return SecondOrder(
            selected=at.alpha,
            gradient=np.einsum("bit,bitr->br", weight, relative),
            hessian=hessian,
            terms=np.einsum("bit,bit->b", np.abs(weight), np.linalg.norm(relative, axis=-1)),
            log_excess_terms=scale + total,
            log_scale=scale,
        )

    def _loss_curvature(self, margin: FloatArray, slope: SignedLog) -> tuple[FloatArray, FloatArray]:
        """Return ℓ'' as a factor and the logarithm of its scale, each (n_points, n_inputs), by central differences.

        For decreasing losses the differences are those of log|ℓ'|, which is accurate at any margin. For a user's own loss,
        whose ℓ' may vanish, they are those of ℓ'.
        """
        h = LOSS_DIFFERENCE_STEP
        ahead, behind = (slope_of(self.loss, margin + step) for step in (h, -h))
        if compiled_code(self.loss) >= 0:
            return (behind.log - ahead.log) / (2.0 * h), slope.log
        scale = np.maximum(ahead.log, behind.log)
        scale = np.where(scale == -np.inf, 0.0, scale)
        change = ahead.sign * np.exp(ahead.log - scale) - behind.sign * np.exp(behind.log - scale)
        return change / (2.0 * h), scale

    # ---- geometry

    @cached_property
    def logit_scale(self) -> float:
        """The length of the longest key less its input's mean: the largest change of a logit in a unit step."""
        return float(np.max(length(self._keys)))

    def in_key_span(self, axis: FloatArray | None = None) -> KeySpan:
        """Express the risk of one problem in coordinates of the span of its key differences: no other part of p changes it.

        With an axis (d_key,), the span also holds the axis and, if there is room, one more direction: a point in a cone may
        need length to which the risk is insensitive.
        """
        keys = vars(self)["_keys"] if "_keys" in vars(self) else centred_keys(self.data)  # which need not be kept
        rows = keys.reshape(-1, self.data.d_key) if self.data.mask.all() else keys[self.data.mask]
        basis = _orthonormal(rows, axis)
        reduced = self.with_keys(keys @ basis)
        reduced.__dict__["_keys"] = reduced.data.K  # centred already
        return KeySpan(reduced, basis)

    def with_keys(self, K: FloatArray) -> Any:
        """Replace the keys by others, (…, n_inputs, n_tokens, d_key), zero in padding; they are not checked."""
        data = copy(self.data)
        data.K, data.W = K, None
        return self._with(data=data)

    def token_margins(self) -> FloatArray:
        """Return Y f of selecting one token outright, for each token of each input, (n_inputs, n_tokens); -inf in padding."""
        return self.scored_head.token_margins()

    def best_tokens(self) -> IntArray:
        """Return the token whose outright selection has the largest margin Y f in each input, (…, n_inputs)."""
        return np.argmax(self.token_margins(), axis=-1)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        r"""Return k_α − k_t for each other token t of each input, with lower bound 1: the constraints of (ATT-SVM)."""
        if self.is_batch:
            raise InputError("data", "one problem", f"a batch of {len(self)}", "Take one with data[j].")
        chosen = self.data.selection(selected)
        differences = self.data.K[np.arange(self.data.n_inputs), chosen][:, None] - self.data.K
        others = self.data.mask & (np.arange(self.data.n_tokens) != chosen[:, None])
        return MarginRows(differences[others], np.ones(int(others.sum())))

    def smoothness(self) -> Any:
        """Return L_p of Lemma 6, (…)."""
        if not self.is_linear:
            raise InputError("head", "linear for the constant of Lemma 6", "a nonlinear one")
        return smoothness(self.data, self.head, self.loss).L_p

    def as_matrix(self, query: Any) -> MatrixRisk:
        """Return the same risk as a function of the key-query matrix W, with p = Wᵀ u for the query u (d_query,).

        Every input may have its own query: (n_inputs, d_query) or (batch, n_inputs, d_query).
        """
        return MatrixRisk(self, query)

    def as_factors(self, query: Any, width: int) -> FactorRisk:
        """Return the same risk as a function of the factors of W = Q Kᵀ, of this width, with the query or queries of `as_matrix`."""
        return FactorRisk(self, query, width)


@implements("A", "(ERM)")
@dataclass(frozen=True, eq=False, repr=False)
class AttentionRisk(SoftmaxRisk):
    r"""The training risk of attention weights p under a fixed head.

    .. math:: L(p) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(K_i p))\big)

    Points of one problem may have any leading axes; those of a batch have the batch axis first.

    Args:
        data: one problem, or a batch of independent ones.

        head: a linear head, (d_model,) or (batch, d_model); or a nonlinear ψ, a torch module or function from (n, d_model) to n
            numbers (needs the extra `torch`).

        loss: any `Loss`.
    """

    data: TokenDataset
    head: Any
    loss: Loss = field(default_factory=Logistic)

    def __post_init__(self) -> None:
        as_dataset(self.data)
        as_loss(self.loss)
        if not callable(self.head):
            self.data.head(self.head)  # refuses what is no head of this data
        self._check_domain()


def _orthonormal(rows: FloatArray, axis: FloatArray | None) -> FloatArray:
    """Return orthonormal columns (d, r) that span the rows (m, d), and with an axis (d,) also the axis and one more direction."""
    if len(rows) > max(_MANY_ROWS, rows.shape[1]):
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    _, singular, directions = np.linalg.svd(rows, full_matrices=axis is not None)
    rank = int(np.sum(singular > KEY_RANK_RTOL * max(float(singular[0]), np.finfo(float).tiny)))
    if axis is None or rank == len(directions):
        return np.ascontiguousarray(directions[:rank].T)
    complement = directions[rank:]
    across = complement @ axis
    rotation = np.linalg.qr(np.column_stack([across, np.eye(len(complement))]))[
        0
    ]  # its first column is ±across, or any
    return np.ascontiguousarray(np.concatenate([directions[:rank], rotation[:, :2].T @ complement]).T)
