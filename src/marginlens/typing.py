"""Types of arrays, drawings and seeds in signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    # matplotlib is optional and imported only to draw: these names replace its types in signatures.
    Axes, Figure = type("Axes", (), {}), type("Figure", (), {})

FloatArray = npt.NDArray[np.float64]
ComplexArray = npt.NDArray[np.complex128]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]
ArrayLike = npt.ArrayLike  # whatever np.asarray takes: nested lists, tensors on a CPU
# What selects entries along the first axis, as NumPy does.
Index = int | np.integer | slice | Sequence[int] | IntArray | BoolArray
Seed = int | np.random.Generator  # what a function that draws takes as `rng`

__all__ = [
    "ArrayLike",
    "Axes",
    "BoolArray",
    "ComplexArray",
    "Figure",
    "FloatArray",
    "Index",
    "IntArray",
    "ObjectArray",
    "Seed",
]
