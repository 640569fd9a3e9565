"""What a theorem says about a problem: its conditions one by one, and its conclusion where they all hold."""

from __future__ import annotations

from dataclasses import dataclass

from marginlens.theory.assumptions import Check


@dataclass(frozen=True, repr=False)
class Verdict:
    """What one theorem says about one problem: its conditions one by one, and its conclusion where they all hold."""

    citation: str
    conditions: tuple[Check, ...]
    conclusion: str

    @property
    def applies(self) -> bool:
        """Whether every condition holds."""
        return all(self.conditions)

    def __repr__(self) -> str:
        return f"Verdict({self.citation}: {'applies' if self.applies else 'does not apply'})"

    def __str__(self) -> str:
        outcome = f"applies: {self.conclusion}" if self.applies else "does not apply"
        return "\n".join([f"{self.citation} {outcome}.", *(f"  {check}." for check in self.conditions)])
