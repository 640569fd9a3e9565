"""The risk of a next-token layer as a function of W: outputs, value, excess, exact gradient, margin rows, smoothness."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy

from marginlens import core
from marginlens.arithmetic.directions import length
from marginlens.arithmetic.log_scaled import ExcessRisk, LogScaled
from marginlens.data.sequences import SequenceDataset, check_realizable
from marginlens.errors import InputError
from marginlens.graphs.from_data import priority_graphs
from marginlens.losses.next_token import (
    CrossEntropy,
    LabelLoss,
    LogLoss,
    NextTokenLoss,
    SquaredLoss,
    SquaredProbability,
    as_nexttoken_loss,
    derivative_of,
    label_rise,
    value_of,
)
from marginlens.papers import implements
from marginlens.result import Described
from marginlens.risk.next_token_heads import NextTokenHead, as_heads, is_listed
from marginlens.risk.protocol import MarginRows, of_each_problem
from marginlens.risk.sequence_batch import SequenceBatch, as_batch, log_sums, reduce_sequences
from marginlens.typing import ArrayLike, FloatArray, IntArray

LIKELIHOOD = -2  # the code of the log-loss under C Eᵀ = I, whose weights are the probabilities themselves
_LOGITS_AT_ONCE = 2_000_000  # that are in memory at a time when risks along a run are measured


def loss_code(loss: NextTokenLoss, heads: tuple[NextTokenHead, ...], batch: SequenceBatch) -> int:
    """Return the branch of the compiled weights that serves a loss with these heads; the likelihood's needs every label in its sequence."""
    identity = all(head.table is None for head in heads)
    return LIKELIHOOD if loss.code == LogLoss.code and identity and batch.is_realizable else loss.code


def needs_whole_heads(loss: NextTokenLoss) -> bool:
    """Return whether a compiled loss reads all outputs instead of only the label's."""
    return isinstance(loss, CrossEntropy | SquaredProbability)


def coefficients_numpy(
    batch: SequenceBatch, a: FloatArray, head: NextTokenHead, loss: NextTokenLoss
) -> tuple[FloatArray, float]:
    r"""Compute weights w (n_pairs,) and s with :math:`\nabla L = e^s \sum w_{xk} e_x e_k^\top`, for a batch of one dataset.

    The sums are those of the compiled weights: a token's score comes from the loss's derivative and the head, and gaps are
    taken to the score of the largest logit. Digits that the derivative itself cannot resolve are lost. The result is nan if the
    loss is not finite.

    Args:
        a: (n_pairs,) the logits.
    """
    reduced = batch.reduced
    sample, first = reduced.sample, reduced.offsets[:-1]
    pair = np.searchsorted(batch.keys, reduced.column[sample] * len(batch.joined.E) + reduced.tokens)
    logits = a[pair] + reduced.log_counts
    top = np.maximum.reduceat(logits, first)
    weights = np.exp(logits - top[sample])
    total = np.add.reduceat(weights, first)
    table = head.matrix().T  # (n_vocabulary, n_classes)
    outputs = np.add.reduceat((weights / total[sample])[:, None] * table[reduced.tokens], first, axis=0)
    if not np.isfinite(value_of(loss, outputs, reduced.labels)).all():
        return np.full_like(a, np.nan), 0.0
    slope = derivative_of(loss, outputs, reduced.labels)
    score = -np.einsum("ec,ec->e", slope[sample], table[reduced.tokens])
    is_top = np.flatnonzero(logits == top[sample])
    best = is_top[np.unique(sample[is_top], return_index=True)[1]]  # the first where several tie
    gap = score[best][sample] - score
    near = np.maximum.reduceat(np.where(gap != 0.0, logits, -np.inf), first)
    if not np.any(np.isfinite(near)):
        return np.zeros_like(a) if np.isfinite(score).all() else np.full_like(a, np.nan), 0.0
    safe = np.where(np.isfinite(near), near, top)
    with np.errstate(over="ignore"):
        ratio = np.where(gap != 0.0, np.exp(logits - safe[sample]), 0.0)
    shortfall = np.add.reduceat(ratio * gap, first) / total
    small = shortfall * np.exp(safe - top)
    omega = np.where(gap != 0.0, ratio * (gap - small[sample]), -weights * shortfall[sample])
    omega[best] = 0.0
    omega[best] = -np.add.reduceat(omega, first)
    scale = np.where(np.isfinite(near), safe - top - np.log(total) + np.log(reduced.share), -np.inf)
    largest = float(scale.max())
    w = np.zeros_like(a)
    np.add.at(w, pair, omega * np.exp(scale - largest)[sample])
    return w, largest


def risk_of(data: SequenceDataset, W: FloatArray, head: NextTokenHead, loss: NextTokenLoss) -> FloatArray:
    """Return the risk at checked weights (…, d_model, d_model), (…)."""
    if isinstance(loss, LogLoss) and head.table is None:
        return np.mean(np.logaddexp(0.0, _log_odds_against(data, W)), axis=-1)
    flat = W.reshape(-1, *W.shape[-2:])
    return np.array([np.mean(value_of(loss, _outputs(data, one, head), data.labels)) for one in flat]).reshape(
        W.shape[:-2]
    )


def check_excess(loss: NextTokenLoss) -> LabelLoss:
    """Return `loss` if the excess risk over L* is defined for it, otherwise raise."""
    if not isinstance(loss, LabelLoss):
        expected = "a loss of the label's own output, such as ml.LogLoss(), for the excess over L*"
        raise InputError("loss", expected, type(loss).__name__)
    return loss


def excess_of(data: SequenceDataset, W: FloatArray, head: NextTokenHead, loss: NextTokenLoss) -> ExcessRisk:
    """Compute L(W) - L* at checked weights (…, d_model, d_model): sign and logarithm, each (…)."""
    if isinstance(loss, LogLoss) and head.table is None:
        odds = _log_odds_against(data, W)
        with np.errstate(divide="ignore"):
            logs = np.where(odds < -36.0, odds, np.log(np.logaddexp(0.0, np.maximum(odds, -36.0))))
        sign = np.where(logs == -np.inf, 0.0, 1.0)
    else:
        own = head.scores(data.labels, data.labels)
        sign, log_delta = _shortfall(data, W, head)
        delta = sign * np.exp(log_delta)
        if isinstance(loss, LogLoss):
            own = np.where(own > 0.0, own, np.nan)  # no L* where a label's own output is not positive
            sign, log_own = sign + 0.0 * own, np.log(own)
            ratio = sign * np.exp(log_delta - log_own)  # L rises by -log(1 - δ/h_y), for ever where δ is all of h_y
            with np.errstate(divide="ignore"):
                exact = np.log(np.abs(np.log1p(-np.minimum(ratio, 1.0))))
            logs = np.where(np.abs(ratio) < 1e-16, log_delta - log_own, exact)
        elif not isinstance(loss, SquaredLoss):
            sign, logs = label_rise(check_excess(loss), own, sign, log_delta)
        else:
            outer = 2.0 * (1.0 - own) + delta  # (c + δ)² - c² = δ (2c + δ)
            with np.errstate(divide="ignore"):
                log_outer = np.where(own == 1.0, log_delta, np.log(np.abs(outer)))
            sign, logs = sign * np.where(own == 1.0, sign, np.sign(outer)), log_delta + log_outer
    logs = np.where(sign == 0.0, -np.inf, logs)
    with np.errstate(divide="ignore"):
        total, total_sign = scipy.special.logsumexp(logs, axis=-1, b=sign / len(data), return_sign=True)
    return ExcessRisk(np.asarray(total_sign), np.asarray(total))


def _outputs(data: SequenceDataset, W: FloatArray, head: NextTokenHead) -> FloatArray:
    likelihood = np.zeros((len(data), data.n_vocabulary))
    np.add.at(likelihood, (data.sample, data.tokens), data.attention(W))
    return likelihood if head.table is None else likelihood @ head.table.T


def _log_odds_against(data: SequenceDataset, W: FloatArray) -> FloatArray:
    """Return log Σ_{x≠y} s_x - log s_y, (…, n_samples); -inf if a sequence holds nothing but its label."""
    logits = _logits(data, W)
    against, own = np.where(data.is_label, -np.inf, logits), np.where(data.is_label, logits, -np.inf)
    return log_sums(against, data.offsets) - log_sums(own, data.offsets)


def _shortfall(data: SequenceDataset, W: FloatArray, head: NextTokenHead) -> tuple[FloatArray, FloatArray]:
    """Return the sign and logarithm of δ_i = Σ_{x≠y} s_x (h_y - h_x), each (…, n_samples)."""
    logits, first, labels = _logits(data, W), data.offsets[:-1], np.repeat(data.labels, data.lengths)
    gap = head.scores(labels, labels) - head.scores(labels, data.tokens)
    top = np.maximum.reduceat(np.where(gap != 0.0, logits, -np.inf), first, axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):
        terms = np.where(gap != 0.0, np.exp(logits - np.repeat(safe, data.lengths, axis=-1)), 0.0) * gap
    total = np.add.reduceat(terms, first, axis=-1)
    with np.errstate(divide="ignore"):
        return np.sign(total), np.log(np.abs(total)) + safe - log_sums(logits, data.offsets)


def _logits(data: SequenceDataset, W: FloatArray) -> FloatArray:
    """Compute logits (…, n_positions) from embeddings less their mean, which leaves the softmax unchanged."""
    queries, column = np.unique(data.last, return_inverse=True)
    table = (data.E - data.E.mean(axis=0)) @ (W @ data.E[queries].T)
    return table[..., data.tokens, np.repeat(column.reshape(-1), data.lengths)]


@implements("C", "(ERM)")
@dataclass(frozen=True, eq=False, repr=False)
class NextTokenRisk(Described):
    r"""The training risk of the key-query weights W of a next-token layer.

    .. math:: L(W) = \frac1n \sum_{i=1}^n \ell\big(y_i,\, C X_i^\top \mathbb S(X_i W \bar x_i)\big)

    Args:
        data: a dataset, or a list of datasets of the same width d_model as a batch; sizes, lengths and vocabularies may differ.

        head: None for C Eᵀ = I (Assumption 4), which needs no C; or C of shape (n_vocabulary, d_model); or a list with one of
            these per dataset.

        loss: `LogLoss()`, `SquaredLoss()`, `CrossEntropy()`, `SquaredProbability()`, or your own loss.
    """

    data: SequenceDataset | list[SequenceDataset] | tuple[SequenceDataset, ...]
    head: Any = None
    loss: NextTokenLoss = field(default_factory=LogLoss)
    quantities = "{data!r}, {loss.__class__.__name__}"
    batch_quantities = "{self:#} datasets, {loss.__class__.__name__}"

    def __post_init__(self) -> None:
        as_nexttoken_loss(self.loss)
        as_heads(self.datasets, self.head)

    @cached_property
    def datasets(self) -> tuple[SequenceDataset, ...]:
        """The dataset, or all of them."""
        return as_batch(self.data)

    @cached_property
    def heads(self) -> tuple[NextTokenHead, ...]:
        """The head of each dataset."""
        return as_heads(self.datasets, self.head)

    @cached_property
    def batch(self) -> SequenceBatch:
        """All datasets packed together."""
        return SequenceBatch.of(self.datasets)

    @cached_property
    def _single(self) -> tuple[SequenceBatch, ...]:
        return tuple(SequenceBatch.of((data,)) for data in self.datasets)

    @cached_property
    def _packed(self) -> tuple[Any, ...]:
        """The arguments of the compiled weights of each dataset; None for a loss without compiled weights."""
        whole, pairs = needs_whole_heads(self.loss), zip(self._single, self.heads, strict=True)
        return tuple(None if self.loss.code < 0 else single.packed((head,), whole) for single, head in pairs)

    @property
    def is_batch(self) -> bool:
        """True if there is a leading batch axis."""
        return isinstance(self.data, list | tuple)

    def __len__(self) -> int:
        return len(self.datasets)

    def __getitem__(self, index: int) -> NextTokenRisk:
        """Return the risk of one dataset of a batch."""
        head = self.head[index] if is_listed(self.head) else self.head
        return NextTokenRisk(self.datasets[index], head, self.loss)

    @property
    def n_inputs(self) -> int:
        """The number of sequences of a dataset; an error if the datasets of a batch differ in it."""
        counts = {len(data) for data in self.datasets}
        if len(counts) > 1:
            raise InputError(
                "data", "datasets of one number of sequences", f"numbers from {min(counts)} to {max(counts)}"
            )
        return counts.pop()

    def of_inputs(self, inputs: IntArray) -> NextTokenRisk:
        """Restrict the risk to some of the sequences, given by their indices (n_taken,): a mini-batch."""
        taken = [data.take(inputs) for data in self.datasets]
        return NextTokenRisk(taken if self.is_batch else taken[0], self.head, self.loss)

    @property
    def _dataset(self) -> SequenceDataset:
        if self.is_batch:
            raise InputError("data", "one dataset", f"a batch of {len(self)}")
        return self.datasets[0]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of W, (d_model, d_model)."""
        return (self.datasets[0].d_model,) * 2

    @implements("C", "Eq. (1)")
    def outputs(self, x: ArrayLike) -> FloatArray:
        r"""Compute the outputs of the model for every sample of one dataset, (n_samples, n_vocabulary).

        .. math:: \hat y_i = C X_i^\top \mathbb S(X_i W \bar x_i)

        With C Eᵀ = I a row holds the probabilities of the next token: the total attention on its occurrences.
        """
        return _outputs(self._dataset, self._dataset.weights(x), self.heads[0])

    @implements("C", "Eq. (18)", "Lemma 3")
    def value(self, x: ArrayLike) -> Any:
        r"""Return L(W), (…). For the log-loss under C Eᵀ = I it is convex in W, and strictly so on S_cyc (Lemma 3).

        .. math:: L(W) = \frac1n \sum_i -\log \sum_{t \in \mathcal O_i} s_{it} \quad \text{for the log-loss under } CE^\top = I
        """
        return self._each(x, risk_of)

    def log_value(self, x: ArrayLike) -> Any:
        """Return log L(W), (…), from the excess if L* is zero, which keeps it accurate if the risk underflows."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if isinstance(self.loss, LogLoss) and all(head.table is None for head in self.heads):
                return self.excess(x).log
            return np.log(self.value(x))

    @implements("C", "Lemma 1")
    def excess(self, x: ArrayLike) -> ExcessRisk:
        r"""Compute the risk of W less the risk of outputting each label's own embedding, exact even far below the smallest float64.

        .. math:: L(W) - L_\star, \quad L_\star = \frac1n \sum_{i=1}^n \ell(c_{y_i}^\top e_{y_i})

        Returns:
            The sign of the excess and the logarithm of its modulus, which is infinite if the log-loss of W is infinite, and nan
            if L* is. On acyclic data the sign is 1 for every finite W, by Lemma 1.
        """
        check_excess(self.loss)
        found = self._each(x, excess_of)
        if isinstance(found, ExcessRisk):
            return found
        return ExcessRisk(np.stack([e.sign for e in found]), np.stack([e.log for e in found]))

    @implements("C", "Eq. (19)", "Lemma 6", "Thm 4")
    def gradient(self, x: ArrayLike) -> LogScaled:
        r"""Compute the gradient at W, accurate to rounding relative to its own size at any norm of W; nan if the loss is not finite.

        .. math:: \nabla L(W) = \frac1n \sum_{i=1}^n \ell'_i\, X_i^\top \mathbb S'(X_i W \bar x_i)\, \gamma_i\, \bar x_i^\top
            = \frac1n \sum_{i=1}^n \sum_{t \notin \mathcal O_i} s_{it} (x_{it} - e_{y_i})\, \bar x_i^\top

        The second form, for the log-loss under C Eᵀ = I, sums over the tokens that differ from the label (the paper's last line of
        Eq. (19) prints the set of those that equal it). If W^mm is not zero, ⟨∇L(W), W^mm⟩ < 0 at every W (Lemma 6), so the
        gradient is zero nowhere (Thm 4).
        """
        batch = self.batch
        a = batch.pair_logits(of_each_problem(x, self.shape, len(self)))
        w, log_scale = np.empty(len(a)), np.empty(len(self))
        for k, (first, last) in enumerate(pairwise(batch.parts[:, 0])):
            log_scale[k] = self._set_weights(k, a[first:last], w[first:last])
        turned = np.zeros((len(batch.reduced.queries), batch.d_model))  # Σ_x w e_x of each query
        np.add.at(turned, batch.query, w[:, None] * batch.centred[batch.token])
        asking = batch.joined.E[batch.reduced.queries]
        array = np.stack([turned[q:r].T @ asking[q:r] for q, r in pairwise(batch.parts[:, 1])])
        return LogScaled(array, log_scale, axes=2) if self.is_batch else LogScaled(array[0], log_scale[0], axes=2)

    def _set_weights(self, k: int, a: FloatArray, w: FloatArray) -> float:
        """Write the weights w (n_pairs,) of the pairs of one dataset with these logits, without their factor e^s, and return s."""
        single, head = self._single[k], self.heads[k]
        if self.loss.code < 0:
            w[:], log_scale = coefficients_numpy(single, a, head, self.loss)
            return log_scale
        _, entries, flat, _ = self._packed[k]
        size = single.joined.n_vocabulary if needs_whole_heads(self.loss) else 1
        found = np.empty(1)
        core.next_token_weights(a, *entries, flat.reshape(size, size), loss_code(self.loss, (head,), single), w, found)
        if np.isnan(found[0]):
            w[:], found[0] = np.nan, 0.0
        return float(found[0])

    def attention(self, x: ArrayLike) -> FloatArray:
        """Return the softmax of every sequence, (…, n_samples, n_tokens), zero in padding."""
        found = self.batch.attention(self.batch.pair_logits(of_each_problem(x, self.shape, len(self))))
        return found if self.is_batch else found[0]

    def select(self, x: ArrayLike) -> IntArray:
        """Return the position with the most attention, (…, n_samples); -1 for samples that a smaller dataset of a batch lacks."""
        return self.select_by(self.attention(x))

    def select_by(self, attention: FloatArray) -> IntArray:
        """Return the same from attention (…, n_samples, n_tokens) that is already known."""
        return self.batch.selected(attention) if self.is_batch else self.batch.selected(attention[None])[0]

    def margin_rows(self, selected: ArrayLike | None = None) -> MarginRows:
        """Return (e_i − e_j) e_kᵀ for every strict priority (1) and every tie (0) of the data's graphs: the constraints of Graph-SVM.

        A tie gives two rows of opposite sign. The selected tokens are the data's labels, so `selected` must be left out.
        """
        data = self._dataset
        if selected is not None:
            raise InputError("selected", "left out: the labels of the data decide", repr(selected))
        rows: list[FloatArray] = []
        lower: list[float] = []
        for last, graph in priority_graphs(data, head=self.head).items():
            for pairs, bounds in ((graph.strict, (1.0,)), (graph.tied, (0.0, 0.0))):
                for i, j in pairs:
                    row = np.outer(data.E[i] - data.E[j], data.E[last])
                    rows += [row, -row][: len(bounds)]
                    lower += bounds
        return MarginRows(np.array(rows).reshape(-1, *self.shape), np.array(lower))

    @implements("C", "Eq. (24)")
    def hessian(self, x: ArrayLike) -> FloatArray:
        r"""Compute the second derivative by W for one dataset, the log-loss and C Eᵀ = I: Eq. (24) carried over to W.

        .. math:: \nabla^2 L(W) = \frac1n \sum_{i=1}^n X_i^\top (\mathrm{diag}(s_i) - s_i s_i^\top) X_i \otimes \bar x_i \bar x_i^\top

        Returns:
            (d_model², d_model²), with the entries of W in row order; symmetric, without negative eigenvalues (Lemma 3).
        """
        data = check_realizable(self._dataset)
        if not isinstance(self.loss, LogLoss) or self.heads[0].table is not None:
            raise InputError("risk", "one of the log-loss under C Eᵀ = I", repr(self))
        attention, d = data.attention(data.weights(x)), data.d_model
        total = np.zeros((d * d, d * d))
        for i in range(len(data)):
            ids, _ = data[i]
            s, X, last = attention[data.offsets[i] : data.offsets[i + 1]], data.E[ids], data.E[data.last[i]]
            centred = X - s @ X
            total += np.kron(centred.T @ (s[:, None] * centred), np.outer(last, last))
        return total / len(data)

    @implements("C", "Eq. (23)", "Lemma 5")
    def smoothness(self) -> Any:
        r"""Return the paper's Lipschitz constant of ∇L under the log-loss and C Eᵀ = I, (…): steps up to 1/L never increase the
        risk (Lemma 5).

        .. math:: \|\nabla L(W) - \nabla L(\dot W)\|_F \le L \|W - \dot W\|_F, \qquad L = 2 \sqrt{T_{\max}}\, \|E\|^4

        Here ‖E‖ is the spectral norm. The paper bounds ‖X_i‖ by ‖E‖, which fails for repeated tokens. The constant is still
        valid then, because it is never below `sharp_smoothness`, which counts a repeated token once.
        """
        with np.errstate(over="ignore"):
            bounds = [2.0 * np.sqrt(data.lengths.max()) * np.linalg.norm(data.E, 2) ** 4 for data in self.datasets]
        return np.array(bounds) if self.is_batch else float(bounds[0])

    def sharp_smoothness(self) -> float:
        r"""Return a Lipschitz constant of ∇L from the spread of each sequence's tokens, for one dataset.

        .. math:: L = \frac{1}{4n} \sum_{i=1}^n \max_{t, u} \|x_{it} - x_{iu}\|^2\, \|\bar x_i\|^2

        The curvature of a sample along D is the variance of :math:`x_{it}^\top D \bar x_i` under its attention, and a variance is at
        most a quarter of the squared range. A sample of two different tokens attains it.
        """
        reduced, total = reduce_sequences(self._dataset), np.float64(0.0)
        sizes = length(reduced.E)
        for i, share in enumerate(reduced.share):
            rows = reduced.E[reduced.tokens[reduced.offsets[i] : reduced.offsets[i + 1]]]
            with np.errstate(over="ignore"):
                reach = length(rows[:, None] - rows[None]).max() * sizes[reduced.queries[reduced.column[i]]]
                total += share * reach**2
        return 0.25 * float(total)

    def check_excess(self) -> None:
        """Raise if the excess over L* is not defined for the loss."""
        check_excess(self.loss)

    def along_runs(self, method: str, points: FloatArray) -> Any:
        """Return `value` or `excess` at the iterates of runs (batch, n_saved, d_model, d_model), many at a time; None for other methods."""
        question: Any = {"value": risk_of, "excess": excess_of}.get(method)
        if question is None:
            return None
        found = []
        for data, head, run in zip(self.datasets, self.heads, points, strict=True):
            size = max(1, _LOGITS_AT_ONCE // len(data.tokens))
            chunks = [run[k : k + size] for k in range(0, max(len(run), 1), size)]
            found.append([question(data, chunk, head, self.loss) for chunk in chunks])
        if method == "value":
            return np.stack([np.concatenate(parts) for parts in found])
        signs, logs = ([np.concatenate([getattr(e, part) for e in row]) for row in found] for part in ("sign", "log"))
        return ExcessRisk(np.stack(signs), np.stack(logs))

    def _each(self, x: ArrayLike, question: Any) -> Any:
        """Return the answers of all datasets, each at its own W."""
        if not self.is_batch:
            return question(self.datasets[0], self.datasets[0].weights(x), self.heads[0], self.loss)
        points = zip(self.datasets, of_each_problem(x, self.shape, len(self)), self.heads, strict=True)
        found = [question(data, W, head, self.loss) for data, W, head in points]
        return found if isinstance(found[0], ExcessRisk) else np.stack(found)
