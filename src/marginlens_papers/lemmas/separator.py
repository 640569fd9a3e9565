"""When the optimal tokens can always be selected: a direction made from the head."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marginlens.data.tokens import TokenDataset, as_dataset
from marginlens.errors import reject
from marginlens.papers import implements
from marginlens.theory.assumptions import Check, check_strict_optimum, each_problem
from marginlens.theory.optimality import (
    score_differences,
)
from marginlens.typing import FloatArray

_HEAD_RANGE_RTOL = 1e-9  # how much of v, relative to its length, may lie outside the range of Wᵀ
_PSEUDO_INVERSE_RTOL = 1e-12  # singular values of W below this share of the largest count as zero


class Separator(NamedTuple):
    """A direction that selects every optimal token, made from the head.

    Attributes:
        p: (d_key,) the separator; nan where a tie leaves it undefined, zero where no input has two tokens.
        margin: the smallest (k_opt - k_t)·p, recomputed from the keys; at least 1 up to rounding when every condition holds.
        conditions: positive labels, a strict optimum, and v in the range of Wᵀ, each a `Check`.
    """

    p: FloatArray
    margin: float
    conditions: tuple[Check, ...]

    @property
    def applies(self) -> bool:
        """Whether the lemma's conditions all hold."""
        return all(self.conditions)


@implements("A", "Lemma 2", "Lemma 11")
def constructive_separator(data: TokenDataset, head: Any) -> Separator | Any:
    r"""A direction that selects every optimal token when all labels are +1 and the head lies in the range of Wᵀ.

    .. math:: p = \underline\gamma^{-1} (W^\top)^\dagger v, \quad
        \underline\gamma = \min_{i,\, t \ne \mathrm{opt}_i} \gamma_{i\,\mathrm{opt}_i} - \gamma_{it}
        \quad\Rightarrow\quad (k_{i\,\mathrm{opt}_i} - k_{it})^\top p \ge 1

    Args:
        data: one problem or a batch whose keys come from a matrix W, square or not; full rank puts every v in its range.
        head: v (d_model,) or (batch, d_model).
    Returns:
        A `Separator`, whose `margin` is the check; a list of them for a batch. `att_svm` gives the shortest such p.
    """
    if as_dataset(data).W is None:
        raise reject("data", "a dataset made with W, because the separator is read off W", "keys K given outright")
    return each_problem(data, head, _separator)


def _separator(data: TokenDataset, v: FloatArray) -> Separator:
    W = np.asarray(data.W)
    direction = np.linalg.pinv(W.T, rcond=_PSEUDO_INVERSE_RTOL) @ v
    norm = float(np.linalg.norm(v))
    outside = float(np.linalg.norm(W.T @ direction - v)) / norm if norm > 0.0 else 0.0
    optimal = data.optimal(v)
    gaps, other = score_differences(data, v, optimal)
    smallest = float(np.min(gaps[other], initial=np.inf))
    p, margin = np.full_like(direction, np.nan), float("nan")
    if smallest > 0.0:
        p = direction / smallest
        chosen = np.take_along_axis(data.K, optimal[:, None, None], axis=-2)
        margin = float(np.min(np.where(other, (chosen - data.K) @ p, np.inf)))
    negative = int(np.sum(data.y < 0.0))
    conditions = (
        Check("positive labels", negative == 0, f"{negative} of {data.n_inputs} labels are -1", {"negative": negative}),
        check_strict_optimum(data, v),
        Check(
            "head in the range of Wᵀ",
            outside <= _HEAD_RANGE_RTOL,
            f"{outside:.4g} of the head's length lies outside the range of Wᵀ",
            {"outside": outside},
        ),
    )
    return Separator(p, margin, conditions)
