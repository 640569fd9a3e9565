"""The choices of a plan: losses, starts and random data by name, and functions of the user."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from marginlens.errors import InputError, positive_number
from marginlens.losses import Loss, NextTokenLoss
from marginlens.names import LOSSES, NEXT_TOKEN_LOSSES
from marginlens.optimizers import NormalizedGD
from marginlens.optimizers.choice import optimizer_named
from marginlens.typing import ArrayLike, FloatArray

# The protocols of `marginlens.data.counter_based`.
PROTOCOLS = ("sphere", "gaussian")
# Step size of p for normalized-gd, unless one is given, and that of every other optimizer.
DEFAULT_NORMALIZED_STEP = 1.0
DEFAULT_STEP = 0.05
# Step size of next-token weights, as in paper C.
SEQUENCE_STEP = 0.01
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def loss_named(name: object, problem: str) -> Any:
    """Return the loss of a name; a loss itself is returned as it is."""
    names, kind = (LOSSES, Loss) if problem == "selection" else (NEXT_TOKEN_LOSSES, NextTokenLoss)
    return name if isinstance(name, kind) else names.class_named(name)()


def default_step(optimizer: str, problem: str) -> float:
    """Return the default step size of an optimizer, by its name."""
    if problem != "selection":
        return SEQUENCE_STEP
    return DEFAULT_NORMALIZED_STEP if isinstance(optimizer_named(optimizer, 1.0), NormalizedGD) else DEFAULT_STEP


def checked_start(start: ArrayLike) -> Any:
    """Return a start as a plan holds it: "zero", "normal:SCALE" or numbers."""
    if isinstance(start, str):
        if start == "zero":
            return start
        kind, _, scale = start.partition(":")
        if kind == "normal":
            try:
                return f"normal:{positive_number(float(scale or 'nan'), 'start'):g}"
            except ValueError:
                pass
        raise InputError("start", "zero, normal:SCALE with a positive scale, or a list of numbers", repr(start))
    try:
        point = np.asarray(start, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(
            "start", "zero, normal:SCALE with a positive scale, or a list of numbers", repr(start)
        ) from None
    if point.size == 0 or not np.isfinite(point).all():
        raise InputError("start", "a list of finite numbers", repr(start))
    return point.tolist()


def starting_point(
    start: ArrayLike, n_problems: int, shape: tuple[int, ...], rng: np.random.Generator
) -> FloatArray | None:
    """Return x(0) of the problems of a chunk, (n_problems, *shape); None for zero."""
    if start == "zero":
        return None
    if isinstance(start, str):
        return float(start.partition(":")[2]) * rng.standard_normal((n_problems, *shape))
    point = np.asarray(start, dtype=np.float64)
    if point.shape != shape:
        raise InputError("start", f"of the shape {shape} of what is trained", f"shape {point.shape}")
    return np.broadcast_to(point, (n_problems, *shape))


# ---- functions of the user


def called(function: Callable[..., object], key: str, *arguments: Any) -> Any:
    """Call a function of the user, and turn any exception into an error that names the function."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as problem:
        got = _raised(function_record(function)["function"], problem)
        raise InputError(key, "a function that returns", got) from problem


def _raised(function: str, problem: BaseException) -> str:
    said = " ".join(str(problem).split())
    return f"{function!r}, which raised {type(problem).__name__}{f' ({said})' if said else ''}"


def function_record(function: Callable[..., object]) -> dict[str, str]:
    """Return what a plan records of a function: where it is defined, and the SHA-256 of its source, which makes a changed
    function a new plan.
    """
    name = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        try:
            source = inspect.getsource(type(function)) + described(function, "function")
        except (OSError, TypeError):
            source = name
    return {"function": name, "source": hashlib.sha256(source.encode()).hexdigest()}


def described(value: object, key: str) -> str:
    """Describe a user's object for a plan by its repr, which must state its settings instead of its address in memory."""
    text = repr(value)
    if _ADDRESS.search(text):
        raise InputError(key, "an object whose repr shows its settings, by which a plan is known again", text)
    return text
