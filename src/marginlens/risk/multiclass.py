"""The risk of a linear classifier with several classes, under cross-entropy: the model of paper F."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from marginlens.errors import index_array, real_array, reject
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.log_scaled import LogScaled, RankOneTerms
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.typing import ArrayLike, FloatArray, IntArray


@implements("F", "cross-entropy")
@dataclass(frozen=True, eq=False, repr=False)
class MulticlassRisk(Described):
    r"""The mean cross-entropy of a linear classifier W (n_classes, d) on points h_i with classes y_i.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \log\Big(1 + \sum_{c \ne y_i} e^{-(e_{y_i} - e_c)^\top W h_i}\Big)

    Args:
        H: points (n_points, d).
        classes: (n_points,) the class of each, whole numbers from 0; W has a row for each up to the largest.
    """

    H: FloatArray
    classes: IntArray
    quantities = "{H:#} points, {shape[0]} classes, d={shape[1]}"

    def __post_init__(self) -> None:
        points = real_array(self.H, "H", ("n_points", "d"))
        classes = index_array(
            self.classes, "classes", f"whole numbers from 0, of shape ({len(points)},)", (len(points),)
        )
        if not len(classes) or classes.min() < 0 or classes.max() < 1:
            got = f"classes from {classes.min()} to {classes.max()}" if len(classes) else "no points"
            raise reject("classes", "at least two classes, counted from 0", got)
        object.__setattr__(self, "H", points)
        object.__setattr__(self, "classes", classes)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(n_classes, d)."""
        return int(self.classes.max()) + 1, self.H.shape[1]

    @property
    def n_inputs(self) -> int:
        """How many points there are."""
        return len(self.H)

    def of_inputs(self, inputs: IntArray) -> MulticlassRisk:
        """The same risk over some of the points alone, by their indices, (n_taken,), with a row of W for every class: a mini-batch."""
        part = object.__new__(MulticlassRisk)
        vars(part).update(H=self.H[inputs], classes=self.classes[inputs], shape=self.shape)
        return part

    @cached_property
    def _of_own_class(self) -> tuple[Any, IntArray, IntArray]:
        """The index of each point's own class in an array (…, n_points, n_classes)."""
        return Ellipsis, np.arange(len(self.H)), self.classes

    def logits(self, x: ArrayLike) -> FloatArray:
        """W h_i, (…, n_points, n_classes)."""
        return self.H @ np.swapaxes(as_points(x, self.shape), -1, -2)

    def margins(self, x: ArrayLike) -> FloatArray:
        """The smallest (e_y - e_c)ᵀ W h of each point, (…, n_points)."""
        return -np.max(self._ratios(x), axis=-1)

    def select(self, x: ArrayLike) -> IntArray:
        """The class with the largest logit at each point, (…, n_points)."""
        return np.argmax(self.logits(x), axis=-1)

    def value(self, x: ArrayLike) -> FloatArray:
        """L(W), (…)."""
        return np.mean(np.logaddexp(0.0, self._log_rest(x)), axis=-1)

    def log_value(self, x: ArrayLike) -> FloatArray:
        """log L(W), (…), right also where L(W) underflows."""
        rest = self._log_rest(x)  # of the sum over the other classes
        with np.errstate(divide="ignore"):
            logs = np.where(rest > -30.0, np.log(np.logaddexp(0.0, rest)), rest)
        largest = np.max(logs, axis=-1, keepdims=True)
        return largest[..., 0] + np.log(np.mean(np.exp(logs - largest), axis=-1))

    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Exact gradient, a sum of one matrix of rank one for each point.

        .. math:: \nabla L(W) = \frac1n \sum_i \sum_{c \ne y_i} s_{ic} (e_c - e_{y_i})\, h_i^\top
        """
        ratios = self._ratios(x)
        largest = np.max(ratios, axis=-1)  # (…, n_points)
        left = np.exp(ratios - largest[..., None])
        total = np.sum(left, axis=-1, keepdims=True)
        largest = largest - np.logaddexp(0.0, largest + np.log(total[..., 0]))  # log s_c of the largest other class
        left[self._of_own_class] = -total[..., 0]
        left /= len(self.H)
        scale = np.max(largest, axis=-1)
        weights = left * np.exp(largest - scale[..., None])[..., None]
        dense = np.swapaxes(weights, -1, -2) @ self.H
        right = np.broadcast_to(self.H, (*left.shape[:-1], self.H.shape[1]))
        return LogScaled(dense, scale, axes=2, terms=RankOneTerms(left, right, largest))

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """(e_s - e_c) h_iᵀ for every other class c of every point, with s the class that is to be selected."""
        return class_rows(self.H, selected, self.shape[0])

    def smoothness(self) -> float:
        """Half the largest eigenvalue of HᵀH/n: no eigenvalue of a softmax's derivative exceeds 1/2."""
        return 0.5 * float(np.linalg.norm(self.H, ord=2)) ** 2 / len(self.H)

    def _ratios(self, x: ArrayLike) -> FloatArray:
        """log(s_c / s_y), (…, n_points, n_classes); -inf at c = y."""
        logits = self.logits(x)
        ratios = logits - logits[self._of_own_class][..., None]
        ratios[self._of_own_class] = -np.inf
        return ratios

    def _log_rest(self, x: ArrayLike) -> FloatArray:
        """log Σ_{c ≠ y} e^{-(e_y - e_c)ᵀ W h}, (…, n_points)."""
        ratios = self._ratios(x)
        largest = np.max(ratios, axis=-1)
        return np.asarray(largest + np.log(np.sum(np.exp(ratios - largest[..., None]), axis=-1)))


def class_rows(H: FloatArray, selected: ArrayLike, n_classes: int) -> MarginRows:
    """(e_s - e_c) h_iᵀ for every other class c of every point H (n_points, d), with s the class (n_points,) that is to be selected."""
    chosen = index_array(selected, "selected", f"a class from 0 to {n_classes - 1} for each point", (len(H),))
    if chosen.min() < 0 or chosen.max() >= n_classes:
        raise reject("selected", f"classes from 0 to {n_classes - 1}", f"{chosen.min()} to {chosen.max()}")
    slot = np.arange(n_classes - 1)
    other = slot + (slot >= chosen[:, None])  # (n_points, n_classes - 1)
    difference = np.eye(n_classes)[chosen][:, None, :] - np.eye(n_classes)[other]
    rows = difference[..., None] * H[:, None, None, :]
    return MarginRows(rows.reshape(-1, n_classes, H.shape[1]), np.ones(other.size))
