"""What a plan chooses: losses, optimizers, starts and random data by name, and functions of the user."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import numpy as np

from marginlens.errors import positive_number, reject
from marginlens.losses import CorrelationLoss, CrossEntropy, Exponential, Logistic, LogLoss, Loss, SquaredLoss
from marginlens.losses.next_token import NextTokenLoss, SquaredProbability
from marginlens.norms import norm_named
from marginlens.optimizers import (
    Adam,
    CoordinateDescent,
    GradientDescent,
    MirrorDescent,
    NormalizedGD,
    Optimizer,
    SignDescent,
    SteepestDescent,
)
from marginlens.typing import FloatArray

LOSSES: dict[str, Callable[[], Any]] = {
    "logistic": Logistic,
    "exponential": Exponential,
    "correlation": CorrelationLoss,
}
SEQUENCE_LOSSES: dict[str, Callable[[], Any]] = {
    "log": LogLoss,
    "squared": SquaredLoss,
    "cross-entropy": CrossEntropy,
    "squared-probability": SquaredProbability,
}
OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {
    "normalized-gd": NormalizedGD,
    "gd": GradientDescent,
    "sign": SignDescent,
    "coordinate": CoordinateDescent,
    "adam": Adam,
}
PROTOCOLS = ("sphere", "gaussian")  # of `marginlens.data.counter_based`
DEFAULT_STEPS = {"normalized-gd": 1.0}  # step sizes of p unless given
DEFAULT_STEP = 0.05  # of every other optimizer
SEQUENCE_STEP = 0.01  # of next-token weights, as in paper C
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")


def nearest(word: str, known: Any) -> str:
    """ "Did you mean …?" with the known word that is most like this one, or nothing."""
    close = get_close_matches(word, list(known), 1, 0.5)
    return f"Did you mean {close[0]}?" if close else ""


def loss_named(name: Any, problem: str) -> Any:
    """The loss of a name; a loss itself stays as it is."""
    names, family = (LOSSES, Loss) if problem == "selection" else (SEQUENCE_LOSSES, NextTokenLoss)
    if isinstance(name, family):
        return name
    if not isinstance(name, str) or name not in names:
        raise reject("loss", f"one of {', '.join(names)}", repr(name), nearest(str(name), names))
    return names[name]()


def optimizer_named(name: Any, step: float) -> Optimizer:
    """The optimizer of a name with steps of this size: those of `OPTIMIZERS`, lP or linf for steepest descent in a norm, mirror:lP.

    An optimizer itself stays as it is.
    """
    if not isinstance(name, str):
        return name
    if name in OPTIMIZERS:
        return OPTIMIZERS[name](step)
    kind, _, norm = name.rpartition(":")
    if kind == "mirror":
        power = getattr(norm_named(norm, "optimizer"), "power", 2.0 if norm == "l2" else 0.0)
        if not 1.0 < power < np.inf:
            raise reject("optimizer", "mirror:lP with a number P above 1", repr(name))
        return MirrorDescent(power, step, normalized=True)
    if kind == "" and re.fullmatch(r"l(inf|\d+(\.\d+)?)", name):
        return SteepestDescent(norm_named(name, "optimizer"), step)
    expected = f"one of {', '.join(OPTIMIZERS)}, lP for steepest descent in the norm lP, or mirror:lP"
    raise reject("optimizer", expected, repr(name), nearest(name, OPTIMIZERS))


def default_step(optimizer: Any, problem: str) -> float:
    """The step size where a plan gives none."""
    return SEQUENCE_STEP if problem != "selection" else DEFAULT_STEPS.get(optimizer, DEFAULT_STEP)


def checked_start(start: Any) -> Any:
    """ "zero", "normal:SCALE" or numbers: a start as a plan holds it."""
    if isinstance(start, str):
        if start == "zero":
            return start
        kind, _, scale = start.partition(":")
        if kind == "normal":
            try:
                return f"normal:{positive_number(float(scale or 'nan'), 'start'):g}"
            except ValueError:
                pass
        raise reject("start", "zero, normal:SCALE with a positive scale, or a list of numbers", repr(start))
    try:
        point = np.asarray(start, dtype=np.float64)
    except (TypeError, ValueError):
        raise reject("start", "zero, normal:SCALE with a positive scale, or a list of numbers", repr(start)) from None
    if point.size == 0 or not np.isfinite(point).all():
        raise reject("start", "a list of finite numbers", repr(start))
    return point.tolist()


def starting_point(start: Any, n_problems: int, shape: tuple[int, ...], rng: np.random.Generator) -> FloatArray | None:
    """x(0) of the problems of a chunk, (n_problems, *shape); None for zero."""
    if start == "zero":
        return None
    if isinstance(start, str):
        return float(start.partition(":")[2]) * rng.standard_normal((n_problems, *shape))
    point = np.asarray(start, dtype=np.float64)
    if point.shape != shape:
        raise reject("start", f"of the shape {shape} of what is trained", f"shape {point.shape}")
    return np.broadcast_to(point, (n_problems, *shape))


# ---- functions of the user


def called(function: Callable[..., Any], key: str, *arguments: Any) -> Any:
    """Call a function of the user; whatever it raises becomes one sentence that names it."""
    try:
        return function(*arguments)
    except (Exception, SystemExit) as problem:
        got = _raised(function_record(function)["function"], problem)
        raise reject(key, "a function that returns", got) from problem


def _raised(function: str, problem: BaseException) -> str:
    said = " ".join(str(problem).split())
    return f"{function!r}, which raised {type(problem).__name__}{f' ({said})' if said else ''}"


def function_record(function: Callable[..., Any]) -> dict[str, str]:
    """What a plan says of a function: where it is defined, and the SHA-256 of its source, so that a changed one is a changed plan."""
    name = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        try:
            source = inspect.getsource(type(function)) + described(function, "function")
        except (OSError, TypeError):
            source = name
    return {"function": name, "source": hashlib.sha256(source.encode()).hexdigest()}


def described(value: Any, key: str) -> str:
    """An object of one's own as a plan writes it: its repr, which must say what it is and not where it lies in memory."""
    text = repr(value)
    if _ADDRESS.search(text):
        raise reject(key, "an object whose repr shows its settings, by which a plan is known again", text)
    return text
