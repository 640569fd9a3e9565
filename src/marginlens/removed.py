"""Errors for public names and commands that were removed: what to use instead, from `words/removed.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


def no_attribute(module: str, name: str) -> AttributeError:
    """Make the error for a name that a module does not have: what to use instead if it once had it.

    Args:
        module: the full name of the module.

        name: the missing attribute.

    Returns:
        The error, for the caller to raise.

    Examples:
        >>> from marginlens.removed import no_attribute
        >>> print(no_attribute("marginlens.norms", "norm_name"))
        norm_name was removed from marginlens.norms: use repr(norm).
    """
    if instead := removed_names().get(f"{module}.{name}"):
        return AttributeError(f"{name} was removed from {module}: {instead}.")
    return AttributeError(f"module {module!r} has no attribute {name!r}")


@cache
def removed_names() -> dict[str, str]:
    """Map every removed public name to a clause that says what to use instead."""
    table = _table()
    replaced = {name: entry["instead"] for entry in table["removed"] for name in entry["names"]}
    returned = {name: f"it comes with what {source} returns" for name, source in table["returned"].items()}
    return {f"marginlens.{name}": instead for name, instead in {**replaced, **returned}.items()}


@cache
def removed_commands() -> dict[str, str]:
    """Map every removed command to a clause that says what to use instead."""
    return dict(_table()["commands"])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("marginlens.words").joinpath("removed.toml").read_text(encoding="utf-8"))
