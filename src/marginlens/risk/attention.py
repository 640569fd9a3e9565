"""The attention risk as a function of p, of W and of its factors: value, excess over selected tokens, exact gradient, margin rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.directions import length
from marginlens.errors import float_array, n_axes, real_array, reject, whole_number
from marginlens.losses.margin import VISIBLE, Logistic, Loss, SignedLog, as_loss, slope_of, value_of
from marginlens.papers import implements, uses
from marginlens.risk.heads import Head, as_head
from marginlens.risk.log_scaled import LogScaled
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.risk.smoothness import smoothness
from marginlens.risk.softmax import Attended, attend, logits, softmax

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@implements("A", "Eq. (1)", "(ERM)")
def risk(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic()) -> FloatArray:  # noqa: B008
    r"""Training risk of the attention model at p.

    .. math:: L(p) = \frac1n \sum_{i=1}^n \ell(Y_i\, v^\top X_i^\top \mathbb S(K_i p))

    Returns:
        Shape (…): a zero-dimensional array for one problem.
    """
    _, margin = as_head(data, v).attend(logits(data, p))
    return np.mean(value_of(as_loss(loss), margin), axis=-1)


@dataclass(frozen=True)
class ExcessRisk:
    """`sign · exp(log)`: how far the risk is above (or below, sign -1) that of selecting the given tokens; shapes (…)."""

    sign: FloatArray
    log: FloatArray

    def above(self, other: ExcessRisk) -> Any:
        """Whether this excess is strictly larger than `other`, decided on logarithms, elementwise."""
        with np.errstate(invalid="ignore"):  # the logarithm of no excess is -inf
            height, its_height = self.sign * self.log, other.sign * other.log
        return np.where(self.sign != other.sign, self.sign > other.sign, height > its_height)


@implements("A", "Eq. (63)")
def excess_risk(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic(), selected: Any = None) -> ExcessRisk:  # noqa: B008
    r"""Risk at p less the risk of selecting one token per input outright, exact when it is far below the smallest float64.

    .. math:: L(p) - \frac1n \sum_{i=1}^n \ell(\gamma_{i\alpha_i})

    Args:
        selected: α of shape (…, n_inputs); by default the tokens with the largest logits at p.
    """
    alpha = None if selected is None else as_dataset(data).selection(selected)
    at = attend(logits(data, p), data.scores(v), data.mask, alpha)
    with np.errstate(divide="ignore"):
        log_delta = np.log(np.abs(at.shortfall)) + at.log_unit
    sign = np.sign(at.shortfall)
    rise = as_loss(loss).signed_log_rise(at.top_score, log_delta, sign)
    sign = np.where(sign == 0.0, 0.0, rise.sign)
    logs = np.where(sign == 0.0, -np.inf, rise.log)
    with np.errstate(divide="ignore"):
        total, total_sign = logsumexp(logs, axis=-1, b=sign / data.n_inputs, return_sign=True)
    return ExcessRisk(np.asarray(total_sign), np.asarray(total))


def pairwise_gradient(K: FloatArray, at: Attended, slope: SignedLog) -> LogScaled:
    r"""Gradient of the mean loss from attention, score gaps and ℓ' per input.

    .. math:: \nabla L = \tfrac1n \sum_i \ell'_i \sum_{t \ne \alpha_i} s_{it} (\gamma_{it} - f_i)(k_{it} - k_{i\alpha_i}),
        \quad f_i = \gamma_{i\alpha_i} - \delta_i

    Args:
        K: (…, n_inputs, n_tokens, d_key). at: attention relative to α. slope: ℓ' as sign and logarithm, each (…, n_inputs).
    """
    tied = at.gap == 0.0
    value = np.where(tied, -at.shortfall[..., None], at.gap - at.delta[..., None])  # f - γ_t
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = at.log_s + np.log(np.abs(value)) + np.where(tied, at.log_unit[..., None], 0.0) + slope.log[..., None]
    np.put_along_axis(logs, at.alpha[..., None], -np.inf, axis=-1)
    logs = np.where(value == 0.0, -np.inf, logs)
    largest = np.max(logs, axis=(-2, -1))
    safe = np.where(largest == -np.inf, 0.0, largest)
    weights = (
        -slope.sign[..., None] * np.sign(value) * np.exp(logs - safe[..., None, None]) / K.shape[-3]
    )  # (…, n_inputs, n_tokens)
    away = K - np.take_along_axis(K, at.alpha[..., None, None], axis=-2)
    return LogScaled(np.einsum("...it,...itd->...d", weights, away), safe)


@implements("A", "Eq. (15a)", "Eq. (18)")
@uses(
    "A",
    {
        "Eq. (13a)": "The gradient of one input's output in q = Wᵀp for a linear head, summed over pairs of tokens.",
        "Eq. (13b)": "The same in p, with keys in place of tokens.",
    },
)
def risk_gradient(data: TokenDataset, v: Any, p: Any, loss: Loss = Logistic()) -> LogScaled:  # noqa: B008
    r"""Exact gradient of the training risk at p, accurate to rounding relative to its own size at any norm of p.

    .. math:: \nabla L(p) = \frac1n \sum_{i=1}^n \ell'_i\, K_i^\top \mathbb S'(K_i p)\, \gamma_i

    Args:
        data: keys `data.K` of shape (…, n_inputs, n_tokens, d_key).
        v: linear head (…, d_model), or a nonlinear one: a torch module or function from (n, d_model) to n numbers.
        p: (…, d_key).
    Returns:
        A `LogScaled`; `.value()` is the gradient itself, `.log_norm` its size where that underflows.
    """
    at, margin = as_head(data, v).attend(logits(data, p))
    return pairwise_gradient(data.K, at, slope_of(as_loss(loss), margin))


# ---- risks as objects


@implements("A", "(ERM)")
@dataclass(frozen=True, eq=False)
class AttentionRisk:
    r"""The training risk of attention weights p under a fixed head.

    .. math:: L(p) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(K_i p))\big)

    Args:
        data: one problem, or a batch of independent ones.
        head: linear, (d_model,) or (batch, d_model); or a nonlinear ψ: a torch module or function from (n, d_model) to n numbers (needs
            the extra `torch`).
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

    def __repr__(self) -> str:
        return f"AttentionRisk({self.data!r}, {type(self.loss).__name__})"

    @property
    def shape(self) -> tuple[int]:
        """(d_key,)."""
        return (self.data.d_key,)

    @property
    def is_batch(self) -> bool:
        """Whether there is a leading batch axis."""
        return self.data.is_batch

    def __len__(self) -> int:
        return len(self.data)

    @property
    def is_linear(self) -> bool:
        """Whether the head is a vector, so that no token's score depends on the attention."""
        return not callable(self.head)

    @cached_property
    def _head(self) -> Head:
        return as_head(self.data, self.head)

    def start(self, start: Any) -> FloatArray:
        """A start (d_key,) or (batch, d_key), or None for zero, as an array (batch, d_key) of its own."""
        shape = (len(self), self.data.d_key)
        return np.zeros(shape) if start is None else np.array(self.data.point(start, "start")).reshape(shape)

    def value(self, x: Any) -> FloatArray:
        """L(p), (…)."""
        return np.mean(value_of(self.loss, self.margins(x)), axis=-1)

    def log_value(self, x: Any) -> FloatArray:
        """log L(p), (…); nan where L(p) is negative. Losses that underflow fall like their slopes."""
        margin = self.margins(x)
        value = value_of(self.loss, margin)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(np.abs(value) > VISIBLE, np.log(value), slope_of(self.loss, margin).log)
            of_positive = np.asarray(np.logaddexp.reduce(logs, axis=-1)) - np.log(self.data.n_inputs)
            return np.where(np.any(value < 0.0, axis=-1), np.log(np.mean(value, axis=-1)), of_positive)

    def check_excess(self) -> None:
        """Refuse a nonlinear head, whose selected risk is not linear in the attention."""
        if not self.is_linear:
            raise reject(
                "head", "linear for an excess risk, whose selected risk is linear in the attention", "a nonlinear one"
            )

    def excess(self, x: Any, selected: Any = None) -> ExcessRisk:
        """L(p) less the risk of selecting one token per input outright; by default those with the largest logits at p."""
        self.check_excess()
        return excess_risk(self.data, self.head, x, self.loss, selected)

    def gradient(self, x: Any) -> LogScaled:
        """∇L(p), exact at any norm."""
        at, margin = self._head.attend(logits(self.data, x))
        return pairwise_gradient(self.data.K, at, slope_of(self.loss, margin))

    def margins(self, x: Any) -> FloatArray:
        """Y_i f(X_i) of every input, (…, n_inputs)."""
        return self._head.attend(logits(self.data, x))[1]

    def attention(self, x: Any) -> FloatArray:
        """Softmax probabilities at p, (…, n_inputs, n_tokens), zero where there is no token."""
        return softmax(self.data, x)

    def select(self, x: Any) -> IntArray:
        """The token with the largest attention in each input, (…, n_inputs)."""
        return np.argmax(self.attention(x), axis=-1)

    def margin_rows(self, selected: Any) -> MarginRows:
        r"""k_α − k_t for each other token t of each input, with lower bound 1: the constraints of (ATT-SVM)."""
        if self.is_batch:
            raise reject("data", "one problem", f"a batch of {len(self)}", "Take one with data[j].")
        chosen = self.data.selection(selected)
        differences = self.data.K[np.arange(self.data.n_inputs), chosen][:, None] - self.data.K
        others = self.data.mask & (np.arange(self.data.n_tokens) != chosen[:, None])
        return MarginRows(differences[others], np.ones(int(others.sum())))

    def smoothness(self) -> Any:
        """L_p of Lemma 6, (…)."""
        if not self.is_linear:
            raise reject("head", "linear for the constant of Lemma 6", "a nonlinear one")
        return smoothness(self.data, self.head, self.loss).L_p

    def as_matrix(self, query: Any) -> MatrixRisk:
        """The same risk as a function of the key-query matrix W with this query (d_query,) fixed: p = Wᵀ u."""
        return MatrixRisk(self, query)

    def as_factors(self, query: Any, width: int) -> FactorRisk:
        """The same risk as a function of the factors of W = Q Kᵀ, of this width, with this query (d_query,) fixed."""
        return FactorRisk(self, query, width)


class _RiskThroughP(ABC):
    """A risk of p as a function of a matrix that p is made of: a subclass says what p is, and what its gradient becomes.

    A subclass has `of_p`, the risk of p, whose keys must be the tokens, and `query`, u of shape (d_query,), not zero.
    """

    of_p: AttentionRisk
    query: FloatArray
    shape: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", as_query(self.query))
        if not np.array_equal(self.of_p.data.K, self.of_p.data.X):
            expected = "a dataset whose keys are its tokens (neither K nor W given)"
            raise reject("data", expected, "one with keys of its own")

    @abstractmethod
    def vector(self, x: Any) -> FloatArray:
        """p, (…, d_model)."""

    @property
    def is_batch(self) -> bool:
        """Whether there is a leading batch axis."""
        return self.of_p.is_batch

    def __len__(self) -> int:
        return len(self.of_p)

    def start(self, start: Any) -> FloatArray:
        """A start (*shape), with or without a batch axis, or None for zero, as an array (batch, *shape) of its own."""
        shape = (len(self), *self.shape)
        if start is None:
            return np.zeros(shape)
        axes = shape if n_axes(start) == 3 else shape[1:]
        return np.array(np.broadcast_to(real_array(start, "start", axes), shape), order="C")

    def value(self, x: Any) -> FloatArray:
        """The risk, (…)."""
        return self.of_p.value(self.vector(x))

    def log_value(self, x: Any) -> FloatArray:
        """Its logarithm, (…)."""
        return self.of_p.log_value(self.vector(x))

    def check_excess(self) -> None:
        """Refuse a nonlinear head."""
        self.of_p.check_excess()

    def excess(self, x: Any, selected: Any = None) -> ExcessRisk:
        """The risk less that of selecting one token per input outright."""
        return self.of_p.excess(self.vector(x), selected)

    def margins(self, x: Any) -> FloatArray:
        """Y_i f(X_i) of every input, (…, n_inputs)."""
        return self.of_p.margins(self.vector(x))

    def attention(self, x: Any) -> FloatArray:
        """Softmax probabilities, (…, n_inputs, n_tokens)."""
        return self.of_p.attention(self.vector(x))

    def select(self, x: Any) -> IntArray:
        """The token with the largest attention in each input, (…, n_inputs)."""
        return self.of_p.select(self.vector(x))

    def _point(self, x: Any) -> FloatArray:
        shape = (len(self), *self.shape) if self.is_batch and n_axes(x) == 3 else self.shape
        return np.broadcast_to(real_array(x, "x", shape), (*((len(self),) if self.is_batch else ()), *self.shape))


@implements("A", "Lemma 1", "Eq. (15b)")
@uses(
    "A",
    {
        "Eq. (12c)": "The gradient in W of a nonlinear head, of rank one with the query on the left.",
        "Eq. (13c)": "The gradient in W of a linear head, of rank one with the query on the left.",
        "Eq. (14b)": "The mean of these over inputs, weighted by the slopes of the loss: the step that W takes.",
    },
)
@dataclass(frozen=True, eq=False)
class MatrixRisk(_RiskThroughP):
    r"""The training risk of the key-query matrix W with the query u fixed.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(X_i W^\top u))\big)

    Lemma 1: started from `matrix_from_vector(p(0), u)`, W(t) stays `matrix_from_vector(p(t), u)` when p takes steps η on data whose keys
    are the tokens and W takes η/‖u‖² (plain) or η/‖u‖ (normalised); `matching_optimizer` gives that step.

    Args:
        of_p: the risk of p; the keys of its data must be the tokens themselves, because W is what is trained.
        query: u of shape (d_query,), not zero.
    """

    of_p: AttentionRisk
    query: FloatArray

    def __repr__(self) -> str:
        return f"MatrixRisk({self.of_p.data!r}, d_query={len(self.query)})"

    @property
    def shape(self) -> tuple[int, int]:
        """(d_query, d_model)."""
        return (len(self.query), self.of_p.data.d_model)

    def vector(self, x: Any) -> FloatArray:
        """p = Wᵀ u, (…, d_model)."""
        return np.einsum("...qd,q->...d", self._point(x), self.query)

    def gradient(self, x: Any) -> LogScaled:
        """∇L(W) = u ∇L(p)ᵀ."""
        by_p = self.of_p.gradient(self.vector(x))
        return LogScaled(self.query[:, None] * by_p.array[..., None, :], by_p.log_scale, axes=2)

    def margin_rows(self, selected: Any) -> MarginRows:
        """u (x_α − x_t)ᵀ for each other token t of each input, with lower bound 1: the constraints of (W-SVM)."""
        of_p = self.of_p.margin_rows(selected)
        return MarginRows(self.query[:, None] * of_p.rows[:, None, :], of_p.lower)

    def smoothness(self) -> Any:
        """‖u‖² times the constant in p."""
        return self.of_p.smoothness() * float(length(self.query)) ** 2


class Factors(NamedTuple):
    """The factors of a key-query matrix W = Q Kᵀ: Q (…, d_query, width) and K (…, d_model, width)."""

    Q: FloatArray
    K: FloatArray


@dataclass(frozen=True, eq=False)
class FactorRisk(_RiskThroughP):
    r"""The training risk of the factors of W = Q Kᵀ, with the query u fixed.

    .. math:: L(Q, K) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(X_i K Q^\top u))\big)

    A point stacks Q above K, (d_query + d_model, width); `split` takes it apart.

    Args:
        of_p: the risk of p, whose keys must be the tokens. query: u of shape (d_query,), not zero. width: columns of either factor.
    """

    of_p: AttentionRisk
    query: FloatArray
    width: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "width", whole_number(self.width, "width", at_least=1))

    def __repr__(self) -> str:
        return f"FactorRisk({self.of_p.data!r}, d_query={len(self.query)}, width={self.width})"

    @property
    def shape(self) -> tuple[int, int]:
        """(d_query + d_model, width)."""
        return (len(self.query) + self.of_p.data.d_model, self.width)

    @property
    def blocks(self) -> dict[str, slice]:
        """Where Q and K are among the rows of a point."""
        return {"Q": slice(0, len(self.query)), "K": slice(len(self.query), None)}

    def start(self, start: Any) -> FloatArray:
        """A start as a point or a pair (Q, K), with or without a batch axis, or None for zero, as an array (batch, *shape)."""
        if isinstance(start, tuple | list) and len(start) == 2 and min(map(n_axes, start)) > 1:
            widths = {"start[0]": len(self.query), "start[1]": self.of_p.data.d_model}
            parts = [
                as_points(part, (rows, self.width), name)
                for part, (name, rows) in zip(start, widths.items(), strict=True)
            ]
            start = np.concatenate([np.broadcast_to(part, (len(self), *part.shape[-2:])) for part in parts], axis=-2)
        return super().start(start)

    def split(self, x: Any) -> Factors:
        """Q and K of a point, or of several along leading axes."""
        array = as_points(x, self.shape)
        return Factors(array[..., : len(self.query), :], array[..., len(self.query) :, :])

    def matrix(self, x: Any) -> FloatArray:
        """W = Q Kᵀ, (…, d_query, d_model)."""
        Q, K = self.split(x)
        return np.einsum("...qw,...dw->...qd", Q, K)

    def vector(self, x: Any) -> FloatArray:
        """p = K Qᵀ u, (…, d_model)."""
        Q, K = self.split(self._point(x))
        return np.einsum("...dw,...qw,q->...d", K, Q, self.query)

    def gradient(self, x: Any) -> LogScaled:
        """u (Kᵀ∇L(p))ᵀ stacked on ∇L(p) (Qᵀu)ᵀ."""
        Q, K = self.split(x)
        by_p = self.of_p.gradient(self.vector(x))
        by_Q = np.einsum("q,...dw,...d->...qw", self.query, K, by_p.array)
        by_K = np.einsum("...d,...qw,q->...dw", by_p.array, Q, self.query)
        return LogScaled(np.concatenate([by_Q, by_K], axis=-2), by_p.log_scale, axes=2, blocks=self.blocks)

    def margin_rows(self, selected: Any) -> MarginRows:
        """Refused: a margin is not linear in the factors; the rows of `as_matrix` are those of W = Q Kᵀ."""
        raise reject(
            "risk",
            "one whose margins are linear in the point",
            "one of factors",
            "Take risk.of_p.as_matrix(risk.query).",
        )

    def smoothness(self) -> Any:
        """Infinite: the gradient in the factors has no Lipschitz constant."""
        return np.full(self.of_p.data.batch_shape, np.inf)[()]


@implements("A", "Lemma 1")
def matrix_from_vector(p: Any, query: Any) -> FloatArray:
    r"""The matrix that attends to X with query u exactly as p does.

    .. math:: W = \frac{u\, p^\top}{\|u\|^2}, \qquad W^\top u = p

    Args:
        p: (…, d_model). query: a nonzero query (d_query,).
    Returns:
        (…, d_query, d_model).
    """
    u = as_query(query)
    vectors = float_array(p, "p")
    if vectors.ndim == 0:
        raise reject("p", "weights of shape (…, d_model)", f"the number {vectors}")
    size = length(u)
    return (u / size)[:, None] * (vectors / size)[..., None, :]


def as_query(query: Any) -> FloatArray:
    """A query (d_query,) that is not zero."""
    u = real_array(query, "query", ("d_query",))
    if not u.any():
        raise reject("query", "a query that is not zero", "the zero vector")
    return u
