"""A head's choice at one query as a problem in the plane spanned by the query and the runner-up's key."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marginlens.typing import FloatArray, IntArray

MAX_TOKENS = 12  # of a plane: those of the largest logits, as many as the lab takes


class QueryPlane(NamedTuple):
    r"""The keys of the tokens that one query chooses from, projected to the plane of the query and the runner-up.

    The first coordinate of a key is its logit, and the second its distance across the query, in the same unit; the selected
    token is at the origin. Attention is therefore the softmax of the first coordinates, that of :math:`p = (1, 0)`.

    Attributes:
        query: the position of the query.

        tokens: (k,) positions, the selected one first, then the runner-up and others by their logits.

        keys: (k, 2) the coordinates.
    """

    query: int
    tokens: IntArray
    keys: FloatArray

    @classmethod
    def of(cls, query: int, logits: FloatArray, keys: FloatArray, vector: FloatArray) -> QueryPlane | None:
        """Make the plane of the query `vector` (d_head,) with logits (n_tokens,), minus infinity if hidden, and keys (n_tokens, d_head).

        None if there is no such plane, because all tokens have the same logit or the runner-up lies along the query.
        """
        order = np.argsort(-logits, kind="stable")[: int(np.isfinite(logits).sum())]
        across = keys - keys[order[0]]
        across = across - np.outer(across @ vector, vector) / (vector @ vector)
        drop = (keys[order[0]] - keys[order[-1]]) @ vector  # from the largest to the smallest product of key and query
        side = np.linalg.norm(across[order[1]])
        if not drop > 0.0 or not side > 0.0:
            return None
        unit = (logits[order[0]] - logits[order[-1]]) / drop * np.linalg.norm(vector)  # logits per length of a key
        tokens = order[:MAX_TOKENS]
        height = unit * (across[tokens] @ across[order[1]]) / side
        return cls(query, tokens, np.column_stack([logits[tokens] - logits[order[0]], height]))
