"""The compiled descent loops of the core, one for each risk, in slices that can be interrupted and resumed."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from marginlens import core
from marginlens.data.tokens import TokenDataset
from marginlens.dynamics.mini_batches import MiniBatches
from marginlens.optimizers.compiled import MIRROR, Rule
from marginlens.optimizers.schedules import sizes_of
from marginlens.risk.next_token import NextTokenRisk, loss_code, needs_whole_heads
from marginlens.runtime.progress import ProgressCallback
from marginlens.runtime.threads import Work, run_in_slices
from marginlens.typing import ArrayLike, FloatArray, IntArray

RAN_ALL, STATIONARY, NON_FINITE, TIED = 0, 1, 2, 3  # by which loops say how a run ended
N_LANES = 4  # inputs that the core takes at a time
N_WINDOWS = 2  # the present one and the one before
LARGE_KEYS = 1 << 19  # entries beyond which putting keys in order, as every slice does, takes as long as several steps
PREPARATION_STEPS = 48  # that a slice takes at least then
CROSS_ENTROPY = 5  # the code of a classifier's loss


def n_places(n_inputs: int, n_tokens: int) -> int:
    """Return the number of places that the tokens of a problem take in the core, see `core/simd_layout.h`."""
    return -(-n_inputs // N_LANES) * N_LANES * n_tokens


def moves_in_keys(n_rows: int, d: int) -> bool:
    """Return whether the state of a descent is p itself, (d,), and not its coefficients over the rows, (n_rows,)."""
    return 2 * d <= n_rows


def distinct_problems(batch: TokenDataset, head: ArrayLike) -> TokenDataset:
    """Return the problems of a batch; only the first if many starts share it and one head."""
    return batch[0].as_batch() if batch.is_repeated and np.ndim(head) == 1 else batch


def problem_arrays(batch: TokenDataset, head: ArrayLike) -> dict[str, Any]:
    """Return keys, scores and lengths of the problems, as the core names them."""
    problems = distinct_problems(batch, head)
    scores = np.where(problems.mask, problems.finite_scores(head), 0.0)
    given = {"keys": problems.K, "scores": scores, "lengths": problems.lengths}
    return {name: np.ascontiguousarray(array) for name, array in given.items()}


def offsets_of(problems: TokenDataset) -> FloatArray:
    """Return the offsets of all logits in one row, as the core takes them; none if they are zero."""
    return np.ascontiguousarray(problems.offsets).ravel() if problems.has_offsets else np.empty(0)


@dataclass
class LoopState:
    """The state of a batch of descents: all that the next step depends on, under the names that the core's functions use.

    Attributes:
        start: the starts of the runs, of the shape of the points.

        ends: (batch, 2) how each run ended and after how many steps.
    """

    def copy(self) -> Self:
        """Copy the arrays, except the start and the offsets, which never change."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return type(self)(**{k: part if k in ("start", "offsets") else part.copy() for k, part in parts.items()})


# ---- on p, by plain and normalised steps: `core/attention_descent.h`


@dataclass
class AttentionState(LoopState):
    """The state of an `AttentionLoop`.

    Attributes:
        states: (batch, d_key) p, or (batch, n_places) its coefficients over the keys.

        logits: (batch, n_places), in the order of `core/simd_layout.h`.
    """

    start: FloatArray
    states: FloatArray
    logits: FloatArray
    ends: IntArray


@dataclass(frozen=True, eq=False)
class AttentionLoop:
    """Compiled descent on p for a linear head and a loss with a code.

    Attributes:
        batch: the problems.

        head: (d_model,) or (batch, d_model).

        normalized, size: the step rule.

        code: of the loss.
    """

    batch: TokenDataset
    head: Any
    normalized: bool
    size: float
    code: int

    def begin(self, start: FloatArray) -> AttentionState:
        """Return the state before the first step, and fill it."""
        batch, places = self.batch, n_places(self.batch.n_inputs, self.batch.n_tokens)
        width = batch.d_key if moves_in_keys(batch.n_inputs * batch.n_tokens, batch.d_key) else places
        count = len(batch)
        return AttentionState(
            start, np.empty((count, width)), np.empty((count, places)), np.zeros((count, 2), dtype=np.int64)
        )

    def advance(
        self, state: AttentionState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; p after the steps `save`, (batch, n_saved, d_key)."""
        batch, (begin, end) = self.batch, span
        points = np.empty((len(batch), len(save), batch.d_key))
        n_rows = batch.n_inputs * batch.n_tokens
        rule = {"normalized": self.normalized, "step": self.size, "loss": self.code}
        offsets = offsets_of(distinct_problems(batch, self.head))
        problem = problem_arrays(batch, self.head) | {"offsets": offsets}
        fixed = problem | rule | vars(state) | {"n_steps": end, "save": save, "out": points}
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, end - begin)
            size = 0 if whole or moves_in_keys(n_rows, batch.d_key) else state.logits.shape[1]
            gram, has_gram = grams.setdefault(first, (np.empty(size * size), np.zeros(1, dtype=np.int64)))
            core.descend_attention(**fixed, first=first, last=last, stop=begin + high, gram=gram, has_gram=has_gram)
            if high == end - begin:
                del grams[first]

        cost = n_rows * (2.0 * min(2 * batch.d_key, n_rows) + 40.0)
        least = PREPARATION_STEPS if n_rows * batch.d_key > LARGE_KEYS else 1
        run_in_slices(advance, Work(len(batch), end - begin, cost, least), progress)
        return points


# ---- on head and attention weights at once: `core/joint_descent.h`


@dataclass
class JointState(LoopState):
    """The state of a `JointLoop`: images of v (batch, d_model) and p (batch, d_key)."""

    v: FloatArray
    p: FloatArray
    ends: IntArray


@dataclass(frozen=True, eq=False)
class JointLoop:
    """Compiled descent on v and p, each by its own gradient, for a loss with a code.

    Attributes:
        batch: the problems.

        normalized, size: the step rule of either part.

        code: of the loss.

        power: of the mirror's potential; 2 is gradient descent.
    """

    batch: TokenDataset
    normalized: bool
    size: float
    code: int
    power: float = 2.0

    def begin(self, start: FloatArray) -> JointState:
        """Return the state before the first step."""
        d, ends = self.batch.d_model, np.zeros((len(start), 2), dtype=np.int64)
        image = start if self.power == 2.0 else np.sign(start) * np.abs(start) ** (self.power - 1.0)
        return JointState(image[:, :d].copy(), image[:, d:].copy(), ends)

    def advance(
        self, state: JointState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; v followed by p after the steps `save`, (batch, n_saved, d_model + d_key)."""
        batch, (begin, end) = self.batch, span
        problems = batch[0].as_batch() if batch.is_repeated else batch  # many starts on one problem
        given = {"tokens": problems.X, "keys": problems.K, "labels": problems.y, "lengths": problems.lengths}
        arrays = {name: np.ascontiguousarray(array) for name, array in given.items()}
        heads = np.empty((len(batch), len(save), batch.d_model))
        points = np.empty((len(batch), len(save), batch.d_key))
        rule = {"normalized": self.normalized, "step": self.size, "power": self.power, "loss": self.code}
        fixed = arrays | rule | vars(state) | {"n_steps": end, "save": save, "heads": heads, "points": points}

        def advance(first: int, last: int, low: int, high: int) -> None:
            core.descend_jointly(**fixed, first=first, last=last, stop=begin + high)

        cost = 4.0 * batch.n_inputs * batch.n_tokens * (batch.d_model + batch.d_key + 20.0)
        run_in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return np.concatenate([heads, points], axis=-1)


# ---- on W of next tokens: `core/next_token_descent.h`

NEXT_TOKEN_ARRAYS = (  # what `batch.packed` gives, as the core names it
    *("centred", "embeddings", "token", "query", "queries"),
    *("pair", "log_count", "score", "entry_token", "span", "share", "label"),
    *("heads", "parts"),
)


def moves_in_weights(n_pairs: int, n_queries: int, d: int) -> bool:
    """Return whether the state of a descent is W (or a vector for each query, if there are fewer than 2 d) rather than
    coefficients over the pairs.

    This depends on the measured time of a step, in units of one product in a Gram matrix: a pair costs 1.5 d + 30, a query .75 d² + 300.
    """
    return 6 * n_pairs * (d + 20) + 3 * n_queries * (d * d + 400) < 4 * n_pairs * n_pairs


@dataclass
class NextTokenState(LoopState):
    """The state of a `NextTokenLoop`.

    Attributes:
        states: of all problems one after the other, see `core/next_token_descent.h`.

        offsets: (batch + 1,) where each problem's state begins.

        logits: of all pairs.

        scales: (batch,) logarithms of the last weights' scales.
    """

    start: FloatArray
    states: FloatArray
    offsets: IntArray
    logits: FloatArray
    scales: FloatArray
    ends: IntArray


@dataclass(frozen=True, eq=False)
class NextTokenLoop:
    """Compiled descent on W for a loss with a code.

    Attributes:
        risk: the problems.

        normalized, size: the step rule.
    """

    risk: NextTokenRisk
    normalized: bool
    size: float

    def begin(self, start: FloatArray) -> NextTokenState:
        """Return the state before the first step, and fill it."""
        batch = self.risk.batch
        d = batch.d_model
        wide = [d * (queries if queries < 2 * d else d) for _, queries in self._sizes]
        widths = [
            width if moves_in_weights(pairs, queries, d) else pairs
            for width, (pairs, queries) in zip(wide, self._sizes, strict=True)
        ]
        offsets = np.concatenate([[0], np.cumsum(widths)]).astype(np.int64)
        ends = np.zeros((len(batch), 2), dtype=np.int64)
        return NextTokenState(
            start, np.empty(offsets[-1]), offsets, np.empty(len(batch.keys)), np.zeros(len(batch)), ends
        )

    @property
    def _sizes(self) -> list[list[int]]:
        """Pairs and queries of each problem."""
        sizes: list[list[int]] = np.diff(self.risk.batch.parts[:, :2], axis=0).tolist()
        return sizes

    def advance(
        self, state: NextTokenState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; W after the steps `save`, (batch, n_saved, d_model, d_model)."""
        risk, batch, (begin, end) = self.risk, self.risk.batch, span
        d, sizes = batch.d_model, self._sizes
        points = np.empty((len(batch), len(save), d, d))
        rule = {"normalized": self.normalized, "step": self.size, "loss": loss_code(risk.loss, risk.heads, batch)}
        embeddings, entries, heads, parts = batch.packed(risk.heads, needs_whole_heads(risk.loss))
        problems = dict(zip(NEXT_TOKEN_ARRAYS, (*embeddings, *entries, heads, parts), strict=True))
        fixed = problems | rule | vars(state) | {"n_steps": end, "save": save, "out": points}
        grams: dict[int, tuple[FloatArray, IntArray]] = {}  # of problems that take several slices

        def advance(first: int, last: int, low: int, high: int) -> None:
            whole = (low, high) == (0, end - begin)
            size = 0 if whole or moves_in_weights(sizes[first][0], sizes[first][1], d) else sizes[first][0]
            places = size * n_places(size, 1)
            gram, has_gram = grams.setdefault(first, (np.empty(places), np.zeros(1, dtype=np.int64)))
            core.descend_next_tokens(**fixed, first=first, last=last, stop=begin + high, gram=gram, has_gram=has_gram)
            if high == end - begin:
                del grams[first]

        pairs = max(m for m, _ in sizes)
        queries = max(q for _, q in sizes)
        product = 2.0 * d * (pairs + queries * d) if moves_in_weights(pairs, queries, d) else float(pairs * pairs)
        cost = 2.0 * product + 20.0 * len(batch.reduced.tokens) / len(batch)
        run_in_slices(advance, Work(len(batch), end - begin, cost), progress)
        return points


# ---- by every other optimizer, on p, on W and on a classifier: `core/steepest_descent.h`


@dataclass
class MatrixState(LoopState):
    """The state of a `MatrixLoop`.

    Attributes:
        points: (batch, height, breadth) W, or Q above K.

        logits: (batch, n_rows).

        memory: (batch, 2, max(height, n_terms), breadth) running sums, means or the mirror image.

        scales: (batch, n_terms) their logarithms.

        residuals: (batch, 2, n_rows) weights of the tokens, summed up since the last power of two among the steps and over the window
            before that.

        anchors: (batch, 2, height, breadth) the points at the beginning of either window.
    """

    points: FloatArray
    logits: FloatArray
    memory: FloatArray
    scales: FloatArray
    residuals: FloatArray
    anchors: FloatArray
    ends: IntArray


@dataclass(frozen=True, eq=False)
class MatrixLoop:
    """Compiled descent on p, W or its factors for a linear head and a loss with a code.

    Attributes:
        batch: the problems.

        head: (d_model,) or (batch, d_model).

        code: of the loss.

        rule: of the optimizer.

        queries: (n_terms, d_query) or (batch, n_terms, d_query), n_terms being 1 for a query that all inputs share, or n_inputs; None on p.

        batches: the mini-batches of the steps, None for all inputs.

        heads: inputs one after the other whose outputs are averaged.

        transposed: whether points are transposes of W.

        width: of the factors of W, Q (d_query, width) above K (d, width), that points are; None for W itself.

        apart: whether Q and K take separate steps.
    """

    batch: TokenDataset
    head: Any
    code: int
    rule: Rule
    queries: FloatArray | None = None
    batches: MiniBatches | None = None
    heads: int = 1
    transposed: bool = False
    width: int | None = None
    apart: bool = False

    @classmethod
    def of_classes(
        cls, H: FloatArray, classes: IntArray, n_classes: int, rule: Rule, batches: MiniBatches | None = None
    ) -> Self:
        """Make the descent on a linear classifier (n_classes, d) under cross-entropy: its transpose is the W of inputs whose
        tokens are classes.

        Args:
            H: (n_points, d) the points, which take the place of queries.

            classes: (n_points,).

            rule: of the optimizer.
        """
        is_own = np.eye(n_classes)[classes][..., None]  # (n_points, n_classes, 1), of which the head makes scores
        keys = np.broadcast_to(np.eye(n_classes), (len(H), n_classes, n_classes))
        inputs = TokenDataset(is_own, np.ones(len(H)), K=keys).as_batch()
        return cls(inputs, np.ones(1), CROSS_ENTROPY, rule, H, batches, transposed=True)

    def begin(self, start: FloatArray) -> MatrixState:
        """Return the state before the first step, from `start` (batch, d_query, d), or (batch, d) of p."""
        batch, queries = self.batch, self._queries
        count, n_rows, n_terms = len(batch), batch.n_inputs * batch.n_tokens, queries.shape[-2]
        height, breadth = self._shape
        given = np.swapaxes(start, -1, -2) if self.transposed else start
        points = np.array(given, dtype=np.float64, order="C").reshape(count, height, breadth)
        memory = np.zeros((count, 2, max(height, n_terms), breadth))
        if self.rule.kind == MIRROR:
            memory[:, 0, :height] = np.sign(points) * np.abs(points) ** (self.rule.settings["mirror_power"] - 1.0)
        return MatrixState(
            points,
            np.empty((count, n_rows)),
            memory,
            np.full((count, n_terms), -np.inf),
            np.zeros((count, N_WINDOWS, n_rows)),
            np.zeros((count, N_WINDOWS, height, breadth)),
            np.zeros((count, 2), dtype=np.int64),
        )

    @property
    def _shape(self) -> tuple[int, int]:
        """Height and breadth of a point."""
        d_query, d = self._queries.shape[-1], self.batch.d_key
        return (d_query, d) if self.width is None else (d_query + d, self.width)

    @property
    def _queries(self) -> FloatArray:
        """A query for each term; the inputs of mini-batches are terms of their own."""
        queries = np.ones((1, 1)) if self.queries is None else self.queries
        if self.batches is None or queries.shape[-2] > 1:
            return queries
        return np.broadcast_to(queries, (*queries.shape[:-2], self.batch.n_inputs, queries.shape[-1]))

    def _terms(self, begin: int, end: int) -> IntArray:
        """Return the terms of each step, (end - begin, terms of a batch); (0, 0) if every step takes all of them."""
        if self.batches is None:
            return np.zeros((0, 0), dtype=np.int64)
        inputs = self.batches.steps(begin, end)
        terms = np.where(inputs[..., None] < 0, -1, inputs[..., None] * self.heads + np.arange(self.heads))
        return np.ascontiguousarray(terms.reshape(end - begin, self.batches.size * self.heads))

    def advance(
        self, state: MatrixState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`; the points after the steps `save`, (batch, n_saved, *shape)."""
        batch, queries, (begin, end) = self.batch, self._queries, span
        own_queries = queries.ndim == 3  # then no two problems are the same
        head = np.broadcast_to(self.head, (len(batch), batch.d_model)) if own_queries else self.head
        problem, rule = problem_arrays(batch, head), self.rule
        problem["queries"] = np.array(np.broadcast_to(queries, (len(problem["keys"]), *queries.shape[-2:])), order="C")
        points = np.empty((len(batch), len(save), *self._shape))
        options = {"kind": rule.kind, "norm": rule.norm_code, "loss": self.code, "settings": rule.settings}
        options |= {"apart": self.apart, "heads": self.heads, "terms": self._terms(begin, end)}
        steps = {"sizes": sizes_of(rule.size, begin, end), "begin": begin, "n_steps": end, "save": save, "out": points}
        fixed = problem | options | steps | vars(state)

        def advance(first: int, last: int, low: int, high: int) -> None:
            core.descend_matrices(**fixed, first=first, last=last, stop=begin + high)

        n_rows, entries = batch.n_inputs * batch.n_tokens, math.prod(self._shape)
        run_in_slices(
            advance, Work(len(batch), end - begin, n_rows * (4.0 * batch.d_key + 40.0) + 50.0 * entries), progress
        )
        if self.transposed:
            return np.ascontiguousarray(np.swapaxes(points, -1, -2))
        return points[:, :, 0] if self.queries is None else points
