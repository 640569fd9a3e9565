"""How long work says how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Where a computation says how far it is; `advance` may raise KeyboardInterrupt through it at any call."""

    def expect(self, total: int) -> None:
        """Say once how many units of work there are."""

    def advance(self, units: int = 1) -> None:
        """Say that this many more units are done."""


class Silence:
    """The progress of a computation that nobody watches."""

    def expect(self, total: int) -> None:
        """Nobody asked."""

    def advance(self, units: int = 1) -> None:
        """Nobody asked."""
