"""Progress of long computations, reported to a callback `progress(done, total)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from marginlens.errors import InputError

ProgressCallback = Callable[[int, int], Any]
T = TypeVar("T")


def as_progress(progress: object) -> ProgressCallback | None:
    """Return `progress` if it can be called, or None."""
    if progress is not None and not callable(progress):
        raise InputError("progress", "a function progress(done, total), or None", repr(progress))
    return progress


class Progress:
    """A counter of units of work that calls `callback(done, total)` after each advance; without a callback it only counts.

    An exception in the callback, including KeyboardInterrupt, is raised by `advance`.
    """

    def __init__(self, callback: ProgressCallback | None = None, total: int = 0) -> None:
        self.callback, self.done, self.total = as_progress(callback), 0, total

    def expect(self, total: int) -> None:
        """Set the number of units of work."""
        self.total = total

    def advance(self, units: int = 1) -> None:
        """Count more units as done."""
        self.done += units
        if self.callback is not None:
            self.callback(self.done, self.total)

    def each(self, items: Sequence[T], *, more: int = 0) -> Iterator[T]:
        """Iterate over items, one unit of work each, with `more` units to come afterwards."""
        self.expect(len(items) + more)
        for item in items:
            yield item
            self.advance()
