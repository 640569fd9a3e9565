"""The cross-entropy of a linear classifier with classes (paper F), and of a next-token decoder on contexts with soft labels (paper G)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import LogScaled, RankOneTerms
from marginlens.arithmetic.rounding import EPS
from marginlens.data.contexts import ContextDataset, as_contexts
from marginlens.errors import InputError, index_array, real_array
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.protocol import MarginRows, as_points
from marginlens.typing import ArrayLike, BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class SoftLabels:
    """Points H (n_points, d) with weights `share` π (n_points,) and log-probabilities of their classes, (n_points, n_classes),
    -inf if p is zero.

    `entropies`, (n_points,) or one for all, are the entropies of the p_j.
    """

    H: FloatArray
    log_p: FloatArray
    share: FloatArray
    entropies: Any = 0.0

    @cached_property
    def p(self) -> FloatArray:
        """The probabilities p, (n_points, n_classes)."""
        return np.exp(self.log_p)

    @cached_property
    def inside(self) -> BoolArray:
        """The classes of positive probability at each point, (n_points, n_classes) booleans."""
        return self.log_p > -np.inf


class _CrossEntropyRisk(Described, ABC):
    r"""The cross-entropy of a classifier W (n_classes, d) on points h_j of weights π_j with probabilities p_jc of their classes.

    .. math:: L(W) = -\sum_j \pi_j \sum_c p_{jc} \log \mathbb S_c(W h_j)

    It is the sum of the entropies of the p_j and of two nonnegative terms, which are computed without taking differences: the
    divergence between the probabilities of the classes with p_jc > 0 and the p_jc, and the part that leaks to the other
    classes.
    """

    @cached_property
    @abstractmethod
    def labels(self) -> SoftLabels:
        """The points and their labels."""

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W, (n_classes, d)."""
        return self.labels.log_p.shape[1], self.labels.H.shape[1]

    def logits(self, x: ArrayLike) -> FloatArray:
        """Return W h_j, (…, n_points, n_classes)."""
        return self.labels.H @ np.swapaxes(as_points(x, self.shape), -1, -2)

    def select(self, x: ArrayLike) -> IntArray:
        """Return the class, or token, with the largest logit at each point, (…, n_points)."""
        return np.argmax(self.logits(x), axis=-1)

    def value(self, x: ArrayLike) -> FloatArray:
        """Return L(W), (…)."""
        return np.asarray(self.labels.entropies + self._excess(x)) @ self.labels.share

    def log_value(self, x: ArrayLike) -> FloatArray:
        """Return log L(W), (…), accurate also if L(W) underflows, which it can if every point has a single class."""
        return self._log_sum_with(x, self.labels.entropies)

    def _excess(self, x: ArrayLike) -> FloatArray:
        """Return the cross-entropy of each point less its entropy, (…, n_points)."""
        misfit, leak, _, _ = self._parts(x)
        return np.asarray(np.sum(self.labels.p * (np.expm1(misfit) - misfit), axis=-1) + np.logaddexp(0.0, leak))

    def _log_sum_with(self, x: ArrayLike, floor: float | FloatArray) -> FloatArray:
        """Return the log of the mean over points of their excess plus `floor`, (n_points,) or one for all."""
        misfit, leak, _, _ = self._parts(x)
        inside = np.sum(self.labels.p * (np.expm1(misfit) - misfit), axis=-1) + floor
        with np.errstate(divide="ignore"):
            logs = np.where((inside == 0.0) & (leak < -30.0), leak, np.log(inside + np.logaddexp(0.0, leak)))
        return np.asarray(scipy.special.logsumexp(logs, axis=-1, b=self.labels.share))

    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Compute the exact gradient, a sum of one rank-one matrix for each point.

        .. math:: \nabla L(W) = \sum_j \pi_j \sum_c (\mathbb S_c(W h_j) - p_{jc})\, e_c h_j^\top

        If :math:`p_{jc} > 0`, the difference is :math:`p\,(e^\delta - 1)` less the share that leaks out, with δ the distance of
        a logit from its log-odds; a δ within the rounding of logits counts as zero.
        """
        misfit, leak, kept, logits = self._parts(x)
        log_out = leak - np.logaddexp(0.0, leak)  # of what leaks out
        away = np.where(self.labels.inside, -np.inf, logits - (kept + np.logaddexp(0.0, leak))[..., None])
        change = self.labels.p * np.expm1(misfit)
        with np.errstate(divide="ignore"):
            log_change = np.log(np.abs(change)) - np.logaddexp(0.0, leak)[..., None]
        largest = np.maximum(log_out, np.max(log_change, axis=-1))
        largest = np.where(np.isfinite(largest), largest, 0.0)
        inside = (
            np.sign(change) * np.exp(log_change - largest[..., None])
            - self.labels.p * np.exp(log_out - largest)[..., None]
        )
        left = np.where(self.labels.inside, inside, np.exp(away - largest[..., None])) * self.labels.share[:, None]
        scale = np.max(largest, axis=-1)
        dense = np.swapaxes(left * np.exp(largest - scale[..., None])[..., None], -1, -2) @ self.labels.H
        right = np.broadcast_to(self.labels.H, (*left.shape[:-1], self.labels.H.shape[1]))
        return LogScaled(dense, scale, axes=2, terms=RankOneTerms(left, right, largest))

    def margin_rows(self, selected: ArrayLike) -> MarginRows:
        """Return (e_s - e_c) h_jᵀ for every other class c of every point, with s the class to select; `ntp_svm` has the rows of
        supports.
        """
        n_classes = self.shape[0]
        chosen = index_array(
            selected, "selected", f"a class from 0 to {n_classes - 1} for each point", (len(self.labels.H),)
        )
        if chosen.min() < 0 or chosen.max() >= n_classes:
            raise InputError("selected", f"classes from 0 to {n_classes - 1}", f"{chosen.min()} to {chosen.max()}")
        slot = np.arange(n_classes - 1)
        other = slot + (slot >= chosen[:, None])  # (n_points, n_classes - 1)
        difference = np.eye(n_classes)[chosen][:, None, :] - np.eye(n_classes)[other]
        rows = difference[..., None] * self.labels.H[:, None, None, :]
        return MarginRows(rows.reshape(-1, *self.shape), np.ones(other.size))

    def smoothness(self) -> float:
        """Return half the largest eigenvalue of Σ π_j h_j h_jᵀ: no eigenvalue of a softmax's derivative exceeds 1/2."""
        return 0.5 * float(np.linalg.norm(np.sqrt(self.labels.share)[:, None] * self.labels.H, ord=2)) ** 2

    def _parts(self, x: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return the parts of the risk: δ (…, n_points, n_classes), the log-probabilities among the classes that a point has,
        less log p, and zero for other classes; (…, n_points) the log of the ratio of the other classes' exponentials to theirs,
        -inf if there are no others; the log of the sum of theirs; and the logits (…, n_points, n_classes) less the largest of
        theirs, to which both logarithms refer.
        """
        logits = self.logits(x)
        logits = logits - np.max(np.where(self.labels.inside, logits, -np.inf), axis=-1, keepdims=True)
        kept = _log_sum(np.where(self.labels.inside, logits, -np.inf))
        misfit: Any = np.where(
            self.labels.inside, logits - kept[..., None] - np.where(self.labels.inside, self.labels.log_p, 0.0), 0.0
        )
        reach = np.max(length(np.asarray(x)), axis=-1)[..., None, None] * length(self.labels.H)[:, None]
        rounding = (8 + self.shape[1]) * EPS * (1.0 + reach)  # of logits and their logarithms
        single = np.sum(self.labels.inside, axis=-1) == 1
        misfit = np.where((np.abs(misfit) <= rounding) | single[:, None], 0.0, misfit)
        return misfit, _log_sum(np.where(self.labels.inside, -np.inf, logits)) - kept, kept, logits


@implements("F", "cross-entropy")
@dataclass(frozen=True, eq=False, repr=False)
class MulticlassRisk(_CrossEntropyRisk):
    r"""The mean cross-entropy of a linear classifier W (n_classes, d) on points h_i with classes y_i.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \log\Big(1 + \sum_{c \ne y_i} e^{-(e_{y_i} - e_c)^\top W h_i}\Big)

    Args:
        H: points (n_points, d).

        classes: (n_points,) the class of each point, whole numbers from 0; W has a row for every class up to the largest.
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
            raise InputError("classes", "at least two classes, counted from 0", got)
        object.__setattr__(self, "H", points)
        object.__setattr__(self, "classes", classes)

    @property
    def n_inputs(self) -> int:
        """The number of points."""
        return len(self.H)

    def of_inputs(self, inputs: IntArray) -> MulticlassRisk:
        """Restrict the risk to some of the points, given by their indices (n_taken,), with a row of W for every class: a mini-batch."""
        part = object.__new__(MulticlassRisk)
        taken = SoftLabels(self.H[inputs], self.labels.log_p[inputs], np.full(len(inputs), 1.0 / len(inputs)))
        vars(part).update(H=taken.H, classes=self.classes[inputs], labels=taken)
        return part

    @cached_property
    def labels(self) -> SoftLabels:
        """The points, each with a single class."""
        log_p = np.where(np.arange(int(self.classes.max()) + 1) == self.classes[:, None], 0.0, -np.inf)
        return SoftLabels(self.H, log_p, np.full(len(self.H), 1.0 / len(self.H)))

    def margins(self, x: ArrayLike) -> FloatArray:
        """Return the smallest margin (e_y - e_c)ᵀ W h of each point, (…, n_points)."""
        logits = self.logits(x)
        own = logits[..., np.arange(len(self.H)), self.classes]
        return np.asarray(own - np.max(np.where(self.labels.inside, -np.inf, logits), axis=-1))


@implements("G", "Eq. (2)")
@dataclass(frozen=True, eq=False, repr=False)
class ContextRisk(_CrossEntropyRisk):
    r"""The cross-entropy of a decoder W (n_vocabulary, d_model) on contexts h_j, each followed by tokens with given probabilities.

    .. math:: \mathrm{CE}(W) = -\sum_j \hat\pi_j \sum_{z \in \mathcal S_j} \hat p_{jz} \log \mathbb S_z(W h_j) \ \ge\ \mathcal H

    Args:
        data: the contexts. The logits of all tokens at all contexts are held in memory at once.
    """

    data: ContextDataset
    quantities = "{data!r}"

    def __post_init__(self) -> None:
        as_contexts(self.data)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W, (n_vocabulary, d_model); it needs no table of all contexts and tokens."""
        return self.data.shape

    @cached_property
    def labels(self) -> SoftLabels:
        """The contexts as an array, with the probabilities of the tokens that followed them."""
        data, H = self.data, self.data.H
        log_p = np.full((data.n_contexts, data.n_vocabulary), -np.inf)
        log_p[data.context, data.token] = np.log(data.probability)
        return SoftLabels(np.asarray(H.toarray()) if scipy.sparse.issparse(H) else H, log_p, data.share, data.entropies)

    @property
    def H(self) -> FloatArray:
        """The embeddings as an array, (n_contexts, d_model)."""
        return self.labels.H

    def probabilities(self, x: ArrayLike) -> FloatArray:
        """Compute the decoder's distribution of the next token after each context, (…, n_contexts, n_vocabulary)."""
        return np.asarray(scipy.special.softmax(self.logits(x), axis=-1))

    def excess(self, x: ArrayLike) -> FloatArray:
        """Return CE(W) less the entropy, (…), accurate even far below the rounding of CE(W)."""
        return np.asarray(self._excess(x) @ self.labels.share)

    def log_excess(self, x: ArrayLike) -> FloatArray:
        """Return the logarithm of `excess`, (…), accurate also if that underflows."""
        return self._log_sum_with(x, 0.0)


def _log_sum(logits: FloatArray) -> FloatArray:
    """Compute log Σ e^logit over the last axis, -inf if all logits are. SciPy's function takes several times as long."""
    top = np.max(logits, axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(top[..., 0] + np.log(np.sum(np.exp(logits - top), axis=-1)))
