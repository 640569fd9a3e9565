"""The compiled inner loops, in C++, called with arrays: `from marginlens import core; core.descend_attention(...)`.

Every function of `abi/*.cpp` is an attribute of this module. `signatures` reads their declarations and checks arguments;
`library` finds the shared library for this processor, and `build` compiles it.
"""

from __future__ import annotations

from marginlens.core.signatures import CoreFunction, core_functions, struct_type

__all__ = ["CoreFunction", "core_functions", "struct_type"]


def __getattr__(name: str) -> CoreFunction:
    try:
        return core_functions()[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return [*globals(), *core_functions()]
