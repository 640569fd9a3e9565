"""Find the class that defines the methods of a norm or an optimizer, and the attributes that belong to them."""

from __future__ import annotations

from typing import Any

NORM_METHODS = frozenset({"value", "dual", "steepest", "direction_of"})
OPTIMIZER_METHODS = frozenset({"init", "update"})


def defining_class(given: object) -> type:
    """Return the class that defines the methods of a norm or an optimizer.

    A subclass `MyL1(L1)` that redefines none of them is an `L1` to every solver. If it redefines one, it is a new norm.
    """
    methods = NORM_METHODS | OPTIMIZER_METHODS
    return next((kind for kind in type(given).__mro__ if methods & vars(kind).keys()), type(given))


def inherited_attr(given: object, name: str) -> Any:
    """Return an attribute that belongs to the methods of a norm or an optimizer, or None if a subclass redefines them without it."""
    kinds = type(given).__mro__
    holds = any(name in vars(kind) for kind in kinds[: kinds.index(defining_class(given)) + 1])
    return getattr(given, name) if holds else None
