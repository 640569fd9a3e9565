"""Whose behaviour an object has: that of its own class, or of one that it inherits from."""

from __future__ import annotations

from typing import Any

NORM_METHODS = frozenset({"value", "dual", "steepest", "direction_of"})
OPTIMIZER_METHODS = frozenset({"init", "update"})


def kind_of(given: Any) -> type:
    """The class that defines the methods of a norm or an optimizer.

    `class MyL1(L1)` that redefines none of them is an `L1` to every solver; as soon as it redefines one, it is a norm of its own.
    """
    methods = NORM_METHODS | OPTIMIZER_METHODS
    return next((kind for kind in type(given).__mro__ if methods & vars(kind).keys()), type(given))


def declared(given: Any, name: str) -> Any:
    """An attribute that goes with the methods of a norm or an optimizer, None where they were redefined without it."""
    kinds = type(given).__mro__
    holds = any(name in vars(kind) for kind in kinds[: kinds.index(kind_of(given)) + 1])
    return getattr(given, name) if holds else None
