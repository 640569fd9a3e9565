"""The command line: one module a command, and what they share."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


def papers_module(name: str) -> Any:
    """The module `marginlens_papers.<name>`, or None where the second package is not installed."""
    return import_module(f"marginlens_papers.{name}") if find_spec("marginlens_papers") else None
