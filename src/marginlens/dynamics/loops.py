"""The loops that take the steps of a descent: compiled ones for the built-in risks and optimizers, NumPy for every other, a GPU's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Protocol, TypeGuard

import numpy as np

from marginlens.arithmetic.log_scaled import LogScaled
from marginlens.dynamics.compiled_loops import (
    NON_FINITE,
    RAN_ALL,
    STATIONARY,
    AttentionLoop,
    JointLoop,
    MatrixLoop,
    NextTokenLoop,
)
from marginlens.dynamics.device_descent import device_loop
from marginlens.dynamics.mini_batches import MiniBatches
from marginlens.errors import InputError
from marginlens.gpu.device import as_device
from marginlens.kinds import defining_class
from marginlens.losses.margin import compiled_code
from marginlens.norms.matrix import MAX_ROW, NUCLEAR, SPECTRAL
from marginlens.optimizers import Blockwise, GradientDescent, MirrorDescent, NormalizedGD, Optimizer
from marginlens.optimizers.compiled import ADAM, MIRROR, STEEPEST, compiled_rule
from marginlens.risk.attention import SoftmaxRisk
from marginlens.risk.cross_entropy import ContextRisk, MulticlassRisk
from marginlens.risk.joint import JointRisk
from marginlens.risk.matrix import FactorRisk, MatrixRisk
from marginlens.risk.multi_head import MultiHeadRisk
from marginlens.risk.next_token import NextTokenRisk
from marginlens.risk.protocol import Risk, holds_batch
from marginlens.runtime.progress import ProgressCallback
from marginlens.typing import FloatArray, IntArray

EXTREME_KEY = 1e60  # keys beyond, or whose inverses are, take their steps one by one
MAX_COPIED_LOGITS = 20_000  # of contexts that stand once for every token that followed; beyond, NumPy is as quick
PLAIN = (GradientDescent, NormalizedGD)  # whose loops are the papers'


class Loop(Protocol):
    """A loop that takes the steps of a batch of descents."""

    def begin(self, start: FloatArray) -> Any:
        """Return the state before the first step from `start` (batch, *shape)."""

    def advance(
        self, state: Any, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps `span[0]` … `span[1] - 1`, which change `state`; the iterates after the steps `save`, (batch, n_saved, *shape)."""


def loop_of(risk: Any, optimizer: Optimizer, batches: MiniBatches | None = None, device: str = "cpu") -> Loop:
    """Return the loop of a device; on the CPU the compiled loop if there is one, else NumPy step by step."""
    place = as_device(device)
    if place is not None:
        return device_loop(place, risk, optimizer, batches, lambda indices: loop_of(risk[indices], optimizer))
    return compiled_loop(risk, optimizer, batches) or StepwiseLoop(risk, optimizer, batches)


# ---- one NumPy step at a time: for every risk and every optimizer


@dataclass
class StepwiseState:
    """The state of a batch of descents.

    Attributes:
        x: (batch, *shape) the iterates.

        memory: what the optimizer remembers; a list with one entry per problem unless it is batched.

        ends: (batch, 2) how each run ended and after how many steps.
    """

    x: FloatArray
    memory: Any
    ends: IntArray

    def copy(self) -> StepwiseState:
        """Copy the arrays; optimizers do not change their memory in place."""
        memory = list(self.memory) if isinstance(self.memory, list) else self.memory
        return StepwiseState(self.x.copy(), memory, self.ends.copy())


@dataclass(frozen=True)
class StepwiseLoop:
    """Gradient, update, move: for any risk and any optimizer, over all inputs or over mini-batches of them."""

    risk: Risk
    optimizer: Optimizer
    batches: MiniBatches | None = None

    def begin(self, start: FloatArray) -> StepwiseState:
        """Return the state before the first step from `start` (batch, *shape)."""
        memory = self.optimizer.init(start) if self._batched else [self.optimizer.init(x) for x in start]
        return StepwiseState(start, memory, np.zeros((len(start), 2), dtype=np.int64))

    def advance(
        self, state: StepwiseState, span: tuple[int, int], save: IntArray, progress: ProgressCallback | None
    ) -> FloatArray:
        """Take the steps of `span`."""
        first, last = span
        seen = None if self.batches is None else self.batches.steps(first, last)
        shape = state.x.shape[1:]
        axes = tuple(range(1, state.x.ndim))
        reason, taken = state.ends[:, 0], state.ends[:, 1]
        running = reason == RAN_ALL
        saved = np.empty((len(state.x), len(save), *shape))
        for k in range(first, last + 1):
            saved[:, np.flatnonzero(save == k)] = state.x[:, None]
            if progress is not None and k > first:
                progress((k - first) * len(state.x), (last - first) * len(state.x))
            if k == last or not running.any():
                saved[:, save > k] = state.x[:, None]
                break
            with np.errstate(over="ignore", invalid="ignore"):
                gradient = self._gradient(state.x, None if seen is None else seen[k - first])
                move, memory = self._update(gradient, state.memory, running)
                following = state.x + move
            stuck = running & gradient.is_zero() & ~np.any(move, axis=axes) & (seen is None)
            broken = running & ~stuck & ~np.isfinite(following).all(axis=axes)
            reason[stuck], reason[broken] = STATIONARY, NON_FINITE
            running = running & ~stuck & ~broken
            state.x = np.where(running.reshape(-1, *(1,) * len(shape)), following, state.x)
            state.memory = memory
            taken += running
        return saved

    @property
    def _batched(self) -> bool:
        return bool(getattr(self.optimizer, "batched", False))

    def _gradient(self, x: FloatArray, inputs: IntArray | None) -> LogScaled:
        """Compute the gradients at all iterates (batch, *shape), over all inputs or these."""
        risk: Any = self.risk
        risk = risk if inputs is None else risk.of_inputs(inputs[inputs >= 0])
        at = x if holds_batch(risk) else x[0]
        gradient: LogScaled = risk.gradient(at)
        return gradient if at is x else gradient[None]

    def _update(self, gradient: LogScaled, memory: Any, running: Any) -> tuple[FloatArray, Any]:
        """Compute the moves of all problems; those that have ended do not move and keep their memory."""
        if self._batched:
            return self.optimizer.update(gradient, memory)
        moves, memory = np.zeros_like(gradient.array), list(memory)
        for j in np.flatnonzero(running):
            move, memory[j] = self.optimizer.update(gradient[j], memory[j])
            if np.shape(move) != moves.shape[1:]:
                raise InputError(
                    f"The optimizer's update must return a step of shape {moves.shape[1:]}, that of the iterate; "
                    f"{type(self.optimizer).__name__} returned one of shape {np.shape(move)}."
                )
            moves[j] = move
        return moves, memory


# ---- compiled loops for the built-in risks and optimizers


@singledispatch
def compiled_loop(risk: Risk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Return the compiled loop for this risk and optimizer, None if there is none."""
    return None


@compiled_loop.register
def attention_loop(risk: SoftmaxRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for attention weights p: that of the plain rules, or the general one for other rules and mini-batches."""
    if not risk.is_linear or compiled_code(risk.loss) < 0:
        return None
    if batches is not None or not is_plain(optimizer):
        rule = compiled_rule(optimizer, risk.shape)
        if rule is None or not _is_moderate(risk.data.K) or risk.data.has_offsets:
            return None
        return MatrixLoop(risk.data.as_batch(), risk.head, compiled_code(risk.loss), rule, batches=batches)
    normalized = isinstance(optimizer, NormalizedGD)
    return AttentionLoop(risk.data.as_batch(), risk.head, normalized, optimizer.size, compiled_code(risk.loss))


@compiled_loop.register
def matrix_loop(risk: MatrixRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for key-query weights W."""
    of_p, by_p = risk.of_p, risk.shares_query and batches is None and is_plain(optimizer)
    if not of_p.is_linear or compiled_code(of_p.loss) < 0 or by_p or of_p.data.has_offsets:
        return None
    rule = compiled_rule(optimizer, risk.shape)
    by_entry = rule is not None and rule.norm_code not in (SPECTRAL, NUCLEAR)
    if rule is None or not _is_moderate(of_p.data.K) or (by_entry and not np.all(risk.query)):
        return None  # where queries have zeros, entries of the gradient may need scales of their own
    queries = risk.query[None] if risk.shares_query else risk.query
    return MatrixLoop(of_p.data.as_batch(), of_p.head, compiled_code(of_p.loss), rule, queries, batches)


@compiled_loop.register
def factor_loop(risk: FactorRisk, optimizer: Any, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for the factors of W, without momentum: together, or each by its own steps in a norm of the entries."""
    of_p, apart = risk.of_p, defining_class(optimizer) is Blockwise
    rule = compiled_rule(optimizer.optimizer if apart else optimizer, risk.shape)
    if not of_p.is_linear or compiled_code(of_p.loss) < 0 or rule is None or rule.momentum > 0.0:
        return None
    by_svd = rule.kind == STEEPEST and rule.norm_code in (SPECTRAL, NUCLEAR)
    if (by_svd and (apart or batches is not None)) or (apart and rule.kind == MIRROR):
        return None
    if not _is_moderate(of_p.data.K) or not (by_svd or np.all(risk.query)) or of_p.data.has_offsets:
        return None
    queries = risk.query[None] if risk.shares_query else risk.query
    code = compiled_code(of_p.loss)
    return MatrixLoop(of_p.data.as_batch(), of_p.head, code, rule, queries, batches, width=risk.width, apart=apart)


@compiled_loop.register
def heads_loop(risk: MultiHeadRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for the weights of several heads; with Adam, whose means share one scale, only if no query has a zero."""
    code, rule = compiled_code(risk.loss), compiled_rule(optimizer, risk.shape)
    if code < 0 or rule is None or not _is_moderate(risk.data.K) or (rule.kind == ADAM and not np.all(risk.query)):
        return None
    return MatrixLoop(risk.of_p.data.as_batch(), risk.head, code, rule, risk.query, batches, risk.n_heads)


@compiled_loop.register
def classifier_loop(risk: MulticlassRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for a linear classifier, in norms that are the same for a matrix and its transpose."""
    return _classifier_loop(risk.H, risk.classes, risk.shape, optimizer, batches)


def _classifier_loop(
    H: FloatArray, classes: IntArray, shape: tuple[int, int], optimizer: Optimizer, batches: MiniBatches | None = None
) -> Loop | None:
    rule = compiled_rule(optimizer, shape)
    if rule is None or rule.norm_code == MAX_ROW or not _is_moderate(H) or not np.all(H):
        return None
    return MatrixLoop.of_classes(H, classes, shape[0], rule, batches)


def is_plain(optimizer: Optimizer) -> TypeGuard[GradientDescent | NormalizedGD]:
    """Return whether the steps are those of gradient descent, plain or normalised, without momentum and weight decay."""
    return isinstance(optimizer, PLAIN) and defining_class(optimizer) in PLAIN and optimizer.is_plain


@compiled_loop.register
def decoder_loop(risk: ContextRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for a next-token decoder whose soft labels are counts: a classifier with one copy of each context for every
    token that followed it.
    """
    data = risk.data
    counts = data.counts.data
    unit = 1.0 if np.array_equal(counts, np.rint(counts)) else counts.min()
    copies = np.rint(counts / unit).astype(np.int64)
    equal = np.allclose(copies * unit, counts, rtol=1e-14, atol=0.0)
    if batches is not None or not equal or copies.sum() * data.n_vocabulary > MAX_COPIED_LOGITS:
        return None
    points, classes = np.repeat(risk.H[data.context], copies, axis=0), np.repeat(data.token, copies)
    return _classifier_loop(points, classes, risk.shape, optimizer)


def _is_moderate(keys: FloatArray) -> bool:
    """Return whether no product of two keys and a weight leaves the range of the numbers."""
    largest = float(np.max(np.abs(keys), initial=0.0))
    return 1.0 / EXTREME_KEY < largest < EXTREME_KEY


@compiled_loop.register
def joint_loop(risk: JointRisk, optimizer: Any, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for head and attention weights (v, p), for plain steps and mirror descent of constant size, and normalised
    steps by block.
    """
    by_block = defining_class(optimizer) is Blockwise
    rule = optimizer.optimizer if by_block else optimizer
    if batches is not None or compiled_code(risk.loss) < 0 or defining_class(rule) not in (*PLAIN, MirrorDescent):
        return None
    if callable(rule.size) or rule.momentum > 0.0 or rule.weight_decay > 0.0:
        return None
    normalized = bool(getattr(rule, "normalized", isinstance(rule, NormalizedGD)))
    if normalized and not by_block:
        return None
    power = getattr(rule, "p", 2.0)
    return JointLoop(risk.data.as_batch(), normalized, rule.size, compiled_code(risk.loss), power)


@compiled_loop.register
def next_token_loop(risk: NextTokenRisk, optimizer: Optimizer, batches: MiniBatches | None = None) -> Loop | None:
    """Make the loop for key-query weights W of next tokens."""
    if batches is not None or risk.loss.code < 0 or not is_plain(optimizer):
        return None
    return NextTokenLoop(risk, isinstance(optimizer, NormalizedGD), optimizer.size)
