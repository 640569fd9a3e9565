"""Regularisation paths: points of smallest risk in balls of growing radius.

`path` in `path.py` takes every risk; `attention`, `factors`, `joint`, `next_token` and `general` each have the search for one
kind of risk.
"""

from marginlens.dynamics.paths import attention, factors, general, joint, next_token  # noqa: F401  they register their searches
from marginlens.dynamics.paths.attention import Cone
from marginlens.dynamics.paths.next_token import CyclicPart
from marginlens.dynamics.paths.path import Binding, Path, path

__all__ = ["Binding", "Cone", "CyclicPart", "Path", "path"]
