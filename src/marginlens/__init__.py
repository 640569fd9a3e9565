"""marginlens predicts, trains and verifies what softmax attention selects.

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so that `import marginlens` takes no time.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    alias.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}  # name -> the module that defines it; "marginlens" itself for its packages
_NEEDS = {
    "AttentionTextClassifier": "sklearn"
}  # name -> the package of an extra without which its module cannot be imported
__all__ = [
    name
    for name, home in sorted(_HOMES.items())
    if home != "marginlens" and (name not in _NEEDS or find_spec(_NEEDS[name]) is not None)
]  # so that `from marginlens import *` gives what is installed


def __getattr__(name: str) -> Any:
    """Import a public name, or a package of the library, when it is first used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'marginlens' has no attribute {name!r}")
    value = import_module(f"marginlens.{name}") if home == "marginlens" else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """All public names, imported or not."""
    return sorted({*globals(), *_HOMES})
