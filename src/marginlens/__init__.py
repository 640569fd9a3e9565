"""marginlens predicts, trains and verifies what softmax attention selects.

The public names are listed in `__init__.pyi`. Each is imported on first use, so `import marginlens` takes no time. Names that
this file itself needs have a leading underscore, because `Path`, for example, is a public name.
"""

import ast as _ast
from importlib import import_module as _import_module
from pathlib import Path as _Path

__version__ = "0.1.0"

_HOMES = {
    alias.name: statement.module
    for statement in _ast.parse(_Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, _ast.ImportFrom)
    for alias in statement.names
}  # name -> the module that defines it; "marginlens" itself for its packages
__all__ = [name for name, home in sorted(_HOMES.items()) if home != "marginlens"]


def __getattr__(name: str) -> object:
    """Import a public name, or a package of the library, when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise _import_module("marginlens.removed").no_attribute("marginlens", name)
    value = _import_module(f"marginlens.{name}") if home == "marginlens" else getattr(_import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List all public names and packages, imported or not, and the attributes that every module has."""
    return sorted({*_HOMES, *(name for name in globals() if name.startswith("__"))})
