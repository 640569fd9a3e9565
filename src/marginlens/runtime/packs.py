"""Packs: claims of other installed packages, found by their entry points and imported only when needed.

A package lists its claims in its `pyproject.toml`, with one entry point for each:

    [project.entry-points."marginlens.claims"]
    NTP-L1 = "my_package.claims:NTP_L1"
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

CLAIMS = "marginlens.claims"
# Letters of a pack's exception that its message repeats.
_MAX_REASON = 160


class PackWarning(UserWarning):
    """A warning about an unusable pack; the message names the pack, its package and the reason. Everything else works without it."""


class Added(NamedTuple):
    """An object that a package adds: its name, the package that it was installed with, and the object itself."""

    name: str
    package: str
    value: Any


def pack_names(group: str) -> tuple[str, ...]:
    """Return the names that installed packages list in a group, in alphabetical order; none of the packages is imported."""
    return tuple(_found(group))


def load_pack(group: str, name: str, check: Callable[[Added], None] | None = None) -> Added | None:
    """Import what the installed packages list under a name; None if it is missing or unusable, which a warning then says.

    Args:
        group: the group of entry points, `CLAIMS`.

        check: a function that raises an `InputError` if the object does not fit the group.
    """
    point = _found(group).get(name)
    return None if point is None else _loaded(group, point, check)


def load_packs(group: str, check: Callable[[Added], None] | None = None) -> tuple[Added, ...]:
    """Import everything that installed packages list in a group; what is unusable is left out, with a warning."""
    loaded = (load_pack(group, name, check) for name in pack_names(group))
    return tuple(added for added in loaded if added is not None)


def forget_packs() -> None:
    """Forget the installed packages; they are searched again when they are next needed."""
    _found.cache_clear()
    _loaded.cache_clear()


@cache
def _found(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name; of two packages with the same name the first in alphabetical order has it."""
    points = sorted(entry_points(group=group), key=lambda point: (point.name, _package(point)))
    found: dict[str, EntryPoint] = {}
    for point in points:
        first = found.setdefault(point.name, point)
        if (first.value, _package(first)) != (point.value, _package(point)):
            _leave_out(point, f"the package {_package(first)} has one of the same name")
    return found


@cache
def _loaded(group: str, point: EntryPoint, check: Callable[[Added], None] | None) -> Added | None:
    try:
        added = Added(point.name, _package(point), point.load())
    # A package may raise anything when it is imported.
    except (Exception, SystemExit) as problem:
        reason = " ".join(str(problem).split()) or "no message"
        reason = reason if len(reason) <= _MAX_REASON else reason[:_MAX_REASON].rstrip() + "…"
        _leave_out(point, f"importing {point.value} raised {type(problem).__name__} ({reason.rstrip('.')})")
        return None
    if check is not None:
        # The import loads numpy, which names alone do not need.
        from marginlens.errors import InputError

        try:
            check(added)
        except InputError as problem:
            _leave_out(point, f"{point.value} must be {problem.expected}; got {problem.got} instead")
            return None
    return added


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value.partition(":")[0]


def _leave_out(point: EntryPoint, reason: str) -> None:
    sentence = f"The claim '{point.name}' of the package {_package(point)} is left out: {reason}."
    warnings.warn(sentence, PackWarning, stacklevel=2)


__all__ = [
    "CLAIMS",
    "Added",
    "PackWarning",
    "forget_packs",
    "load_pack",
    "load_packs",
    "pack_names",
]
