"""The attention risk as a function of the key-query matrix W and of its factors, with the query fixed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from marginlens.directions import length
from marginlens.errors import float_array, n_axes, real_array, reject, whole_number
from marginlens.papers import implements, uses
from marginlens.risk.attention import AttentionRisk
from marginlens.risk.log_scaled import ExcessRisk, LogScaled
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.typing import ArrayLike, FloatArray, IntArray


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
    def vector(self, x: ArrayLike) -> FloatArray:
        """p, (…, d_model)."""

    @property
    def is_batch(self) -> bool:
        """Whether there is a leading batch axis."""
        return self.of_p.is_batch

    def __len__(self) -> int:
        return len(self.of_p)

    def __getitem__(self, index: Any) -> Any:
        """The risk of one problem of a batch, or of several."""
        return replace(self, of_p=self.of_p[index])  # type: ignore[type-var]

    def start(self, start: Any) -> FloatArray:
        """A start (*shape), with or without a batch axis, or None for zero, as an array (batch, *shape) of its own."""
        shape = (len(self), *self.shape)
        if start is None:
            return np.zeros(shape)
        axes = shape if n_axes(start) == 3 else shape[1:]
        return np.array(np.broadcast_to(real_array(start, "start", axes), shape), order="C")

    def value(self, x: ArrayLike) -> FloatArray:
        """The risk, (…)."""
        return self.of_p.value(self.vector(x))

    def log_value(self, x: ArrayLike) -> FloatArray:
        """Its logarithm, (…)."""
        return self.of_p.log_value(self.vector(x))

    def excess(self, x: ArrayLike, selected: ArrayLike | None = None) -> ExcessRisk:
        """The risk less that of selecting one token per input outright."""
        return self.of_p.excess(self.vector(x), selected)

    def margins(self, x: ArrayLike) -> FloatArray:
        """Y_i f(X_i) of every input, (…, n_inputs)."""
        return self.of_p.margins(self.vector(x))

    def attention(self, x: ArrayLike) -> FloatArray:
        """Softmax probabilities, (…, n_inputs, n_tokens)."""
        return self.of_p.attention(self.vector(x))

    def select(self, x: ArrayLike) -> IntArray:
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

    def vector(self, x: ArrayLike) -> FloatArray:
        """p = Wᵀ u, (…, d_model)."""
        return np.einsum("...qd,q->...d", self._point(x), self.query)

    def gradient(self, x: ArrayLike) -> LogScaled:
        """∇L(W) = u ∇L(p)ᵀ."""
        by_p = self.of_p.gradient(self.vector(x))
        return LogScaled(self.query[:, None] * by_p.array[..., None, :], by_p.log_scale, axes=2)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
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

    def split(self, x: ArrayLike) -> Factors:
        """Q and K of a point, or of several along leading axes."""
        array = as_points(x, self.shape)
        return Factors(array[..., : len(self.query), :], array[..., len(self.query) :, :])

    def matrix(self, x: ArrayLike) -> FloatArray:
        """W = Q Kᵀ, (…, d_query, d_model)."""
        Q, K = self.split(x)
        return np.einsum("...qw,...dw->...qd", Q, K)

    def vector(self, x: ArrayLike) -> FloatArray:
        """p = K Qᵀ u, (…, d_model)."""
        Q, K = self.split(self._point(x))
        return np.einsum("...dw,...qw,q->...d", K, Q, self.query)

    def gradient(self, x: ArrayLike) -> LogScaled:
        """u (Kᵀ∇L(p))ᵀ stacked on ∇L(p) (Qᵀu)ᵀ."""
        Q, K = self.split(x)
        by_p = self.of_p.gradient(self.vector(x))
        by_Q = np.einsum("q,...dw,...d->...qw", self.query, K, by_p.array)
        by_K = np.einsum("...d,...qw,q->...dw", by_p.array, Q, self.query)
        return LogScaled(np.concatenate([by_Q, by_K], axis=-2), by_p.log_scale, axes=2, blocks=self.blocks)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
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
def matrix_from_vector(p: ArrayLike, query: ArrayLike) -> FloatArray:
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


def as_query(query: ArrayLike) -> FloatArray:
    """A query (d_query,) that is not zero."""
    u = real_array(query, "query", ("d_query",))
    if not u.any():
        raise reject("query", "a query that is not zero", "the zero vector")
    return u
