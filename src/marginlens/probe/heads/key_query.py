"""The combined key-query matrix of one attention head, given by its two factors, and its norms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from marginlens.errors import positive_number, real_array
from marginlens.result import Described
from marginlens.typing import FloatArray


@dataclass(frozen=True, repr=False, eq=False)
class KeyQueryMap(Described):
    r"""The logits of one head: the logit of token x for query z, up to a constant per query.

    .. math:: x^\top W z + x^\top w_0, \quad W = c\, W_K W_Q^\top,\ w_0 = c\, W_K b_Q

    The key of x is :math:`W_K^\top x + b_K`. The bias b_K shifts all logits of a query equally and does not change attention,
    so it is left out. Nothing else is folded in: a norm before the head has already acted on x and z.

    Attributes:
        W_K: (d_model, d_head) the key factor. With rotary positions it includes the rotation of one given offset.

        W_Q: (d_model, d_head) the query factor.

        b_Q: (d_head,) the bias of the queries, zeros if the model has none.

        scale: the factor c of the logits, 1/sqrt(d_head) in most models.

    Examples:
        >>> import numpy as np
        >>> from marginlens.probe import KeyQueryMap
        >>> head = KeyQueryMap(np.eye(3, 2), np.eye(3, 2), np.zeros(2), scale=0.5)
        >>> head.matrix.diagonal().tolist(), head.spectral, head.nuclear
        ([0.5, 0.5, 0.0], 0.5, 1.0)
    """

    W_K: FloatArray
    W_Q: FloatArray
    b_Q: FloatArray
    scale: float
    quantities = "d_model={d_model}, d_head={d_head}, frobenius={frobenius:.6g}"

    def __post_init__(self) -> None:
        W_K = real_array(self.W_K, "W_K", ("d_model", "d_head"))
        object.__setattr__(self, "W_K", W_K)
        object.__setattr__(self, "W_Q", real_array(self.W_Q, "W_Q", W_K.shape))
        object.__setattr__(self, "b_Q", real_array(self.b_Q, "b_Q", W_K.shape[1:]))
        object.__setattr__(self, "scale", positive_number(self.scale, "scale"))

    @property
    def d_model(self) -> int:
        """The width of the inputs."""
        return self.W_K.shape[0]

    @property
    def d_head(self) -> int:
        """The width of the head's keys and queries, an upper bound on the rank of W."""
        return self.W_K.shape[1]

    # ---- as matrices

    @property
    def matrix(self) -> FloatArray:
        """The matrix W = scale W_K W_Qᵀ, (d_model, d_model), with the first axis for tokens and the second for queries."""
        return self.scale * (self.W_K @ self.W_Q.T)

    @property
    def bias_column(self) -> FloatArray:
        """The vector w_0 = scale W_K b_Q, (d_model,)."""
        return self.scale * (self.W_K @ self.b_Q)

    @property
    def augmented(self) -> FloatArray:
        """The matrix [W, w_0], (d_model, d_model + 1), which acts on queries (z, 1)."""
        return np.column_stack([self.matrix, self.bias_column])

    # ---- norms, from the factors

    @cached_property
    def singular_values(self) -> FloatArray:
        """The singular values of W in decreasing order, (d_head,); the others are zero. They come from triangular factors
        without forming W.
        """
        R_K, R_Q = (np.asarray(np.linalg.qr(factor, mode="r")) for factor in (self.W_K, self.W_Q))
        return self.scale * np.asarray(np.linalg.svd(R_K @ R_Q.T, compute_uv=False), dtype=np.float64)

    @property
    def frobenius(self) -> float:
        """The Frobenius norm ‖W‖_F."""
        return float(np.linalg.norm(self.singular_values))

    @property
    def spectral(self) -> float:
        """The largest singular value of W."""
        return float(self.singular_values.max(initial=0.0))

    @property
    def nuclear(self) -> float:
        """The sum of the singular values of W."""
        return float(self.singular_values.sum())
