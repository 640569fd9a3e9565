"""The attention risk as a function of the key-query matrix W and of its factors, with the queries fixed."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import LogScaled, RankOneTerms
from marginlens.errors import InputError, float_array, n_axes, real_array, whole_number
from marginlens.papers import implements, uses
from marginlens.result import Described
from marginlens.risk.at_logits import AtLogits, TokenRisk
from marginlens.risk.protocol import MarginRows, as_points, of_each_problem
from marginlens.typing import ArrayLike, FloatArray, Index, IntArray

if TYPE_CHECKING:
    from marginlens.risk.attention import SoftmaxRisk


class _RiskThroughP(TokenRisk):
    """A risk of p as a function of a matrix that determines p; a subclass defines p and its gradient in the matrix.

    A subclass has `of_p`, the risk of p, and `query`: u of shape (d_query,) for all inputs, or
    one for each input, (n_inputs, d_query) or (batch, n_inputs, d_query). No query may be zero.
    """

    of_p: SoftmaxRisk
    query: FloatArray
    shape: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.of_p.data)
        object.__setattr__(self, "query", as_queries(self.query, self.of_p))

    @abstractmethod
    def vector(self, x: ArrayLike) -> FloatArray:
        """Return p, (…, d_key), or the p of each input, (…, n_inputs, d_key), if inputs have their own queries."""

    @property
    def d_query(self) -> int:
        """The width of a query."""
        return int(self.query.shape[-1])

    @property
    def shares_query(self) -> bool:
        """True if all inputs have the same query, and hence the same p."""
        return self.query.ndim == 1

    def __getitem__(self, index: Index) -> Any:
        """Return the risk of one problem of a batch, or of several."""
        of_p = self.of_p[index]
        query = self.query[index] if self.query.ndim == 3 else self.query
        return replace(self, of_p=of_p, query=query)  # type: ignore[type-var]

    def of_inputs(self, inputs: IntArray) -> Any:
        """Restrict the risk to some of the inputs, given by their indices (n_taken,): a mini-batch."""
        query = self.query if self.shares_query else self.query[..., inputs, :]
        return replace(self, of_p=self.of_p.of_inputs(inputs), query=query)  # type: ignore[type-var]

    def logits(self, x: ArrayLike) -> FloatArray:
        """Compute the attention logits K_i p_i + b_i, (…, n_inputs, n_tokens), of keys less their input's mean."""
        vector = self.vector(x)
        return self.of_p.logits(vector) if self.shares_query else self.of_p.logits_of_inputs(vector)

    def at(self, logits: FloatArray) -> AtLogits:
        """Return the risk at given attention logits."""
        return self.of_p.at(logits)

    def at_point(self, x: ArrayLike) -> AtLogits:
        """Return the risk at the logits K_i p_i + b_i."""
        return self.at(self.logits(x))

    def residual_attention(self, x: ArrayLike) -> FloatArray:
        """Return the multipliers of the margin rows that the attention shows, (…, n_inputs, n_tokens), the largest scaled to one."""
        return self.at_point(x).residual_attention()

    def best_tokens(self) -> IntArray:
        """Return the token whose outright selection has the largest margin Y f in each input, (…, n_inputs)."""
        return self.of_p.best_tokens()

    def _gradients(self, x: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return z_m (…, n_terms, d_query), g_m (…, n_terms, d_key) and their log scales: ∂L/∂W = Σ_m e^{s_m} z_m g_mᵀ.

        There is a single term if all inputs share the query, otherwise one term for each input.
        """
        at = self.at_point(x)
        if self.shares_query:
            by_p = at.gradient()
            right, scale = by_p.array[..., None, :], by_p.log_scale[..., None]
        else:
            by_input = at.gradients_by_input()
            right, scale = by_input.array, by_input.log_scale
        return np.broadcast_to(self.query, (*right.shape[:-1], self.d_query)), right, scale

    def _point(self, x: ArrayLike) -> FloatArray:
        return of_each_problem(x, self.shape, len(self)) if self.is_batch else real_array(x, "x", self.shape)


class _RiskOfMatrix(_RiskThroughP):
    """A risk of p as a function of the matrix W, p_i = Wᵀ u_i."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W, (d_query, d_key)."""
        return (self.d_query, self.of_p.data.d_key)

    def vector(self, x: ArrayLike) -> FloatArray:
        """Return p = Wᵀ u, (…, d_key), or with a query for each input p_i = Wᵀ u_i, (…, n_inputs, d_key)."""
        point = self._point(x)
        if self.shares_query:
            return np.einsum("...qd,q->...d", point, self.query)
        return np.einsum("...qd,...iq->...id", point, self.query)

    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Compute ∇L(W) = u ∇L(p)ᵀ, or with a query for each input Σ_i u_i g_iᵀ with g_i the gradient in p_i; `terms` holds
        the summands.
        """
        left, right, scale = self._gradients(x)
        terms = RankOneTerms(left, right, scale)
        if self.shares_query:
            return LogScaled(self.query[:, None] * right, scale[..., 0], axes=2, terms=terms)
        return LogScaled(*terms.dense(), axes=2, terms=terms)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """Return u_i (k_α − k_t)ᵀ for each other token t of each input, with lower bound 1: the constraints of (W-SVM)."""
        of_p = self.of_p.margin_rows(selected)
        if self.shares_query:
            return MarginRows(self.query[:, None] * of_p.rows[:, None, :], of_p.lower)
        queries = np.repeat(self.query, self.of_p.data.lengths - 1, axis=0)  # (n_rows, d_query)
        return MarginRows(queries[:, :, None] * of_p.rows[:, None, :], of_p.lower)

    def smoothness(self) -> Any:
        """Return ‖u‖² times the constant in p, with the longest of the queries."""
        return self.of_p.smoothness() * np.max(length(np.atleast_2d(self.query)), axis=-1)[()] ** 2


@implements("A", "Lemma 1", "Eq. (15b)")
@uses(
    "A",
    {
        "Eq. (12c)": "The gradient in W of a nonlinear head, of rank one with the query on the left.",
        "Eq. (13c)": "The gradient in W of a linear head, of rank one with the query on the left.",
        "Eq. (14b)": "The mean of these over inputs, weighted by the slopes of the loss: the step that W takes.",
    },
)
@dataclass(frozen=True, eq=False, repr=False)
class MatrixRisk(_RiskOfMatrix, Described):
    r"""The training risk of the key-query matrix W with the query u, or the queries u_i of the inputs, fixed.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(K_i W^\top u_i))\big)

    In attention keys are the tokens, K = X. For other keys W is any matrix between two given vectors: with a unit vector as the
    key of each expert it is a router, and with documents as keys an adapter for the queries.

    Lemma 1, for one query u: started from `matrix_from_vector(p(0), u)`, W(t) stays equal to `matrix_from_vector(p(t), u)` if p
    takes steps η on data whose keys are the tokens and W takes steps η/‖u‖² (plain) or η/‖u‖ (normalised); `matching_optimizer`
    makes the optimizer with these steps.

    Args:
        of_p: the risk of p. If W is to be all of attention's key-query matrix, keys must be the tokens themselves.

        query: u of shape (d_query,), or one for each input, (n_inputs, d_query) or (batch, n_inputs, d_query); no query may be
            zero.
    """

    of_p: SoftmaxRisk
    query: FloatArray
    quantities = "{of_p.data!r}, d_query={d_query}"


class Factors(NamedTuple):
    """The factors of a key-query matrix W = Q Kᵀ: Q (…, d_query, width) and K (…, d_key, width)."""

    Q: FloatArray
    K: FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class FactorRisk(_RiskThroughP, Described):
    r"""The training risk of the factors of W = Q Kᵀ, with the query u, or the queries u_i of the inputs, fixed.

    .. math:: L(Q, K) = \frac1n \sum_{i=1}^n \ell\big(Y_i\, \psi(X_i^\top \mathbb S(X_i K Q^\top u_i))\big)

    A point stacks Q above K, (d_query + d_key, width); `split` returns the two.

    Args:
        of_p: the risk of p; the formula is that of keys which are the tokens.

        query: as for `MatrixRisk`.

        width: the number of columns of each factor, at least 1.
    """

    of_p: SoftmaxRisk
    query: FloatArray
    width: int
    quantities = "{of_p.data!r}, d_query={d_query}, width={width}"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "width", whole_number(self.width, "width", at_least=1))

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a point, (d_query + d_key, width)."""
        return (self.d_query + self.of_p.data.d_key, self.width)

    @property
    def blocks(self) -> dict[str, slice]:
        """The rows of Q and K in a point."""
        return {"Q": slice(0, self.d_query), "K": slice(self.d_query, None)}

    def start(self, start: ArrayLike | None) -> FloatArray:
        """Return a start as an array `(batch, *shape)`: a point or a pair (Q, K), with or without a batch axis, or zero for None."""
        if isinstance(start, tuple | list) and len(start) == 2 and min(map(n_axes, start)) > 1:
            widths = {"start[0]": self.d_query, "start[1]": self.of_p.data.d_key}
            parts = [
                as_points(part, (rows, self.width), name)
                for part, (name, rows) in zip(start, widths.items(), strict=True)
            ]
            start = np.concatenate([np.broadcast_to(part, (len(self), *part.shape[-2:])) for part in parts], axis=-2)
        return of_each_problem(np.zeros(self.shape) if start is None else start, self.shape, len(self), "start")

    def split(self, x: ArrayLike) -> Factors:
        """Return Q and K of a point, or of several along leading axes."""
        array = as_points(x, self.shape)
        return Factors(array[..., : self.d_query, :], array[..., self.d_query :, :])

    def matrix(self, x: ArrayLike) -> FloatArray:
        """Return W = Q Kᵀ, (…, d_query, d_key)."""
        Q, K = self.split(x)
        return np.einsum("...qw,...dw->...qd", Q, K)

    def vector(self, x: ArrayLike) -> FloatArray:
        """Return p = K Qᵀ u, (…, d_key), or with a query for each input p_i = K Qᵀ u_i, (…, n_inputs, d_key)."""
        Q, K = self.split(self._point(x))
        if self.shares_query:
            return np.einsum("...dw,...qw,q->...d", K, Q, self.query)
        return np.einsum("...dw,...iw->...id", K, np.einsum("...qw,...iq->...iw", Q, self.query))

    def gradient(self, x: ArrayLike) -> LogScaled:
        """Compute Σ_i u_i (Kᵀ g_i)ᵀ stacked on Σ_i g_i (Qᵀ u_i)ᵀ, with g_i the gradient in p_i; `terms` holds the summands.

        If all inputs share the query, there is one term, with the gradient in p.
        """
        Q, K = self.split(self._point(x))
        left, right, scale = self._gradients(x)
        by_Q = RankOneTerms(left, np.einsum("...dw,...md->...mw", K, right), scale)
        by_K = RankOneTerms(right, np.einsum("...qw,...mq->...mw", Q, left), scale)
        terms = _stacked_terms(by_Q, by_K)
        if self.shares_query:
            dense_Q = np.einsum("q,...dw,...d->...qw", self.query, K, right[..., 0, :])
            dense_K = np.einsum("...d,...qw,q->...dw", right[..., 0, :], Q, self.query)
            dense, scales = np.concatenate([dense_Q, dense_K], axis=-2), scale[..., 0]
        else:
            dense, scales = terms.dense()
        return LogScaled(dense, scales, axes=2, blocks=self.blocks, terms=terms)

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """Raise, because a margin is not linear in the factors; `as_matrix` has the rows of W = Q Kᵀ."""
        raise InputError(
            "risk",
            "one whose margins are linear in the point",
            "one of factors",
            "Take risk.of_p.as_matrix(risk.query).",
        )

    def smoothness(self) -> Any:
        """Return infinity: the gradient in the factors has no Lipschitz constant."""
        return np.full(self.of_p.data.batch_shape, np.inf)[()]


def _stacked_terms(above: RankOneTerms, below: RankOneTerms) -> RankOneTerms:
    """Return the terms of two matrices of the same width, the first on top of the second."""
    top = np.concatenate([above.left, np.zeros((*above.left.shape[:-1], below.left.shape[-1]))], axis=-1)
    bottom = np.concatenate([np.zeros((*below.left.shape[:-1], above.left.shape[-1])), below.left], axis=-1)
    return RankOneTerms(
        np.concatenate([top, bottom], axis=-2),
        np.concatenate([above.right, below.right], axis=-2),
        np.concatenate([above.log_scale, below.log_scale], axis=-1),
    )


@implements("A", "Lemma 1")
def matrix_from_vector(p: ArrayLike, query: ArrayLike) -> FloatArray:
    r"""Return the matrix that attends to X with query u exactly as p does.

    .. math:: W = \frac{u\, p^\top}{\|u\|^2}, \qquad W^\top u = p

    Args:
        p: (…, d_model).

        query: a nonzero query (d_query,).

    Returns:
        (…, d_query, d_model).
    """
    u = as_query(query)
    vectors = float_array(p, "p")
    if vectors.ndim == 0:
        raise InputError("p", "weights of shape (…, d_model)", f"the number {vectors}")
    size = length(u)
    return (u / size)[:, None] * (vectors / size)[..., None, :]


def as_query(query: ArrayLike) -> FloatArray:
    """Check that a query (d_query,) is not zero."""
    u = real_array(query, "query", ("d_query",))
    if not u.any():
        raise InputError("query", "a query that is not zero", "the zero vector")
    return u


def as_queries(query: ArrayLike, of_p: SoftmaxRisk) -> FloatArray:
    """Check a query (d_query,) for all inputs of this risk, or one for each, (n_inputs, d_query) or (batch, n_inputs, d_query);
    no query may be zero.
    """
    axes = n_axes(query)
    if axes < 2:
        return as_query(query)
    leading = (len(of_p),) if axes == 3 and of_p.is_batch else ()
    queries = real_array(query, "query", (*leading, of_p.data.n_inputs, "d_query"))
    if not queries.any(axis=-1).all():
        raise InputError(
            "query", "queries none of which is zero", f"zero for input {np.argwhere(~queries.any(axis=-1))[0][-1]}"
        )
    return queries
