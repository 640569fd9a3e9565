"""Types of arrays: what functions give back, and what they take."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]
ArrayLike = npt.ArrayLike  # whatever np.asarray takes: nested lists, tensors on a CPU
