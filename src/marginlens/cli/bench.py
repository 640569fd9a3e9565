"""`marginlens bench`: the door to benchmarks/, which comes with a checkout and is not installed with the library."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import marginlens
from marginlens.cli._deferred import errors
from marginlens.cli._exit import command
from marginlens.cli._options import argument

CHECKOUT = Path(marginlens.__file__).resolve().parents[2]  # the folder of src/ in an editable installation


@command(has_json=False)
def _without_checkout(words: Annotated[list[str] | None, argument("NAME", "What to measure.")] = None) -> None:
    """Time the library against the best alternatives on this machine, from a checkout of the project."""
    raise errors.InputError(
        "Benchmarks come with a checkout of the project, from which marginlens is installed with pip install --editable."
    )


def __getattr__(name: str) -> Any:
    """`app`: the commands of benchmarks/ where they are, else the sentence that says where they come from."""
    if name != "app":
        raise AttributeError(name)
    if not (CHECKOUT / "benchmarks" / "command.py").is_file():
        return _without_checkout
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))
    return import_module("benchmarks.command").app
