"""Contract suites: what every norm, optimizer and risk must do, for the built-in ones and for a user's own.

Each function raises `AssertionError` with the broken promise in words, and returns None where all of them are kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator, sphere_tokens
from marginlens.dynamics.descend import descend
from marginlens.norms.protocol import Norm
from marginlens.optimizers.protocol import Optimizer
from marginlens.risk.log_scaled import LogScaled
from marginlens.risk.protocol import Risk
from marginlens.typing import FloatArray

ROUNDING_RTOL = 1e-10
DIFFERENCE_RTOL = 1e-5  # of central differences
SCALES = (1e-200, 1.0, 1e200)


def check_norm(norm: Norm, shape: tuple[int, ...] = (5,), *, n_trials: int = 20, rng: Any = 0) -> None:
    r"""Whether a norm is one, and its dual norm and steepest directions belong to it.

    .. math:: \|cx\| = |c| \|x\|, \quad \|x + y\| \le \|x\| + \|y\|, \quad \langle g, x\rangle \le \|g\|_* \|x\|, \quad
        \langle g, s(g)\rangle = \|g\|_*, \ \|s(g)\| = 1

    Args:
        shape: of the points to try. n_trials: how many random ones.
    """
    generator = as_generator(rng)
    zero = np.zeros(shape)
    _promise(norm.value(zero) == 0.0, "the norm of zero is zero")
    _promise(not np.any(norm.steepest(zero)), "the steepest direction of zero is zero")
    for _ in range(n_trials):
        x, y, g = (generator.standard_normal(shape) for _ in range(3))
        for scale in SCALES:
            _promise(_near(norm.value(-scale * x), scale * norm.value(x)), f"‖cx‖ = |c| ‖x‖ at c = {-scale:g}")
            _promise(_near(norm.dual(-scale * g), scale * norm.dual(g)), f"‖cg‖* = |c| ‖g‖* at c = {-scale:g}")
            s = norm.steepest(scale * g)
            _promise(np.shape(s) == shape, f"a steepest direction has the shape {shape} of the gradient")
            _promise(_near(norm.value(s), 1.0), f"a steepest direction has norm one at gradients of size {scale:g}")
            _promise(_near(float(np.sum(g * s)), norm.dual(g)), f"⟨g, s(g)⟩ = ‖g‖* at gradients of size {scale:g}")
        slack = ROUNDING_RTOL * (norm.value(x) + norm.value(y))
        _promise(norm.value(x + y) <= norm.value(x) + norm.value(y) + slack, "‖x + y‖ ≤ ‖x‖ + ‖y‖")
        product = float(np.sum(g * x))
        _promise(product <= norm.dual(g) * norm.value(x) * (1.0 + ROUNDING_RTOL), "⟨g, x⟩ ≤ ‖g‖* ‖x‖")


def check_optimizer(optimizer: Optimizer, shape: tuple[int, ...] = (4,), *, rng: Any = 0) -> None:
    """Whether an optimizer keeps its state outside itself, takes steps of the right shape, and gives the same run however it is cut.

    Args:
        shape: of the points to try its `update` on.
    """
    generator = as_generator(rng)
    x0 = generator.standard_normal(shape)
    gradients = [LogScaled(generator.standard_normal(shape), np.asarray(-0.1 * k), len(shape)) for k in range(5)]
    copies = [gradient.array.copy() for gradient in gradients]
    _promise(
        _same(_moves(optimizer, x0, gradients), _moves(optimizer, x0, gradients)),
        "the same gradients give the same steps",
    )
    _promise(_keeps_states(optimizer, x0, gradients), "update leaves the state that it is given as it was")
    for gradient, copy in zip(gradients, copies, strict=True):
        _promise(np.array_equal(gradient.array, copy), "update leaves the gradient as it was")
    for move in _moves(optimizer, x0, gradients):
        _promise(np.shape(move) == shape, f"a step has the shape {shape} of the iterate")
        _promise(bool(np.isfinite(move).all()), "steps from finite gradients are finite")
    tiny = LogScaled(gradients[0].array, np.asarray(-1e4), len(shape))
    _promise(
        bool(np.isfinite(_moves(optimizer, x0, [tiny])[0]).all()),
        "a gradient below the smallest float64 gives a finite step",
    )
    data, head = sphere_tokens(3, 2, 4, 3, 0)
    whole = descend(data, head, optimizer=optimizer, n_steps=12)
    halves = descend(data, head, optimizer=optimizer, n_steps=5).resume(7)
    _promise(np.array_equal(whole.final, halves.final), "5 steps and 7 more are 12 steps")
    singles = np.stack([descend(data[j], head[j], optimizer=optimizer, n_steps=12).final for j in range(len(data))])
    _promise(_close(whole.final, singles), "a batch is a loop over its problems")


def check_risk(risk: Risk, *, n_points: int = 5, scale: float = 1.0, rng: Any = 0) -> None:
    r"""Whether the value, its logarithm, the gradient and the smoothness of a risk of one problem belong together.

    .. math:: \frac{L(x + hd) - L(x - hd)}{2h} \approx \langle \nabla L(x), d\rangle, \quad
        \|\nabla L(x) - \nabla L(y)\| \le L_{\text{smooth}} \|x - y\|

    Args:
        n_points: how many random points to try. scale: their typical entries.
    """
    _promise(not getattr(risk, "is_batch", False), "the contract is about a risk of one problem")
    generator = as_generator(rng)
    previous = None
    for _ in range(n_points):
        x, direction = scale * generator.standard_normal(risk.shape), generator.standard_normal(risk.shape)
        direction /= np.linalg.norm(direction)
        value = float(risk.value(x))
        _promise(np.isfinite(value), "the value at a random point is a number")
        if value > 0.0:
            _promise(_near(float(np.exp(risk.log_value(x))), value), "log_value is the logarithm of value")
        gradient = risk.gradient(x)
        _promise(gradient.array.shape == tuple(risk.shape), f"the gradient has the shape {risk.shape} of a point")
        h = 1e-6 * (1.0 + scale)
        difference = (float(risk.value(x + h * direction)) - float(risk.value(x - h * direction))) / (2.0 * h)
        slope, size = float(np.sum(gradient.value() * direction)), float(np.exp(gradient.log_norm))
        blur = DIFFERENCE_RTOL * (size + 1e-3) + 1e-9 * abs(value)
        _promise(abs(slope - difference) <= blur, f"the slope {slope:.6g} is that of differences, {difference:.6g}")
        _promise(np.asarray(risk.select(x)).dtype.kind in "iu", "selected tokens are whole numbers")
        if previous is not None:
            bound = float(np.max(risk.smoothness())) * float(np.linalg.norm(x - previous[0]))
            change = float(np.linalg.norm(gradient.value() - previous[1]))
            _promise(
                change <= bound * (1.0 + ROUNDING_RTOL) + 1e-15, "gradients change no faster than the smoothness allows"
            )
        previous = (x, gradient.value())


def _moves(optimizer: Optimizer, x0: FloatArray, gradients: list[LogScaled]) -> list[FloatArray]:
    """The steps of one problem, whichever way the optimizer is called."""
    batched = bool(getattr(optimizer, "batched", False))
    state, moves = optimizer.init(x0[None] if batched else x0), []
    for gradient in gradients:
        move, state = optimizer.update(_as_called(optimizer, gradient), state)
        moves.append(np.array(move)[0] if batched else np.array(move))
    return moves


def _as_called(optimizer: Optimizer, gradient: LogScaled) -> LogScaled:
    """A gradient of one problem as descent hands it to the optimizer: with a batch axis where it is batched."""
    if not getattr(optimizer, "batched", False):
        return gradient
    return LogScaled(gradient.array[None], gradient.log_scale[None], gradient.axes)


def _keeps_states(optimizer: Optimizer, x0: FloatArray, gradients: list[LogScaled]) -> bool:
    """Whether two updates from one state agree, for a state that has seen some gradients."""
    first, second, third = (_as_called(optimizer, gradient) for gradient in gradients[:3])
    batched = bool(getattr(optimizer, "batched", False))
    _, state = optimizer.update(first, optimizer.init(x0[None] if batched else x0))
    moves = [np.array(optimizer.update(gradient, state)[0]) for gradient in (second, third, second)]
    return np.array_equal(moves[0], moves[2])


def _promise(kept: Any, words: str) -> None:
    if not kept:
        raise AssertionError(f"Broken promise: {words}.")


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING_RTOL * max(abs(a), abs(b))


def _close(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.allclose(a, b, rtol=ROUNDING_RTOL, atol=ROUNDING_RTOL))


def _same(a: list[FloatArray], b: list[FloatArray]) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
