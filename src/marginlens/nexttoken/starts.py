"""Random starts for next-token training."""

from __future__ import annotations

from typing import Any

import numpy as np

from marginlens.data.random_tokens import as_generator
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import FloatArray
from marginlens.risk.sequence_batch import as_batch


def random_start(ds: SequenceDataset | list[SequenceDataset], rng: Any) -> FloatArray:
    r"""W(0) with entries uniform in ±1/√d, as the authors' code of C starts; (d_model, d_model), or one for each of a list of datasets.

    Args:
        rng: a `numpy.random.Generator`, or a whole number to seed one.
    """
    datasets, generator = as_batch(ds), as_generator(rng)
    d = datasets[0].d_model
    W = generator.uniform(-1.0, 1.0, size=(len(datasets), d, d)) / np.sqrt(d)
    return W if isinstance(ds, list | tuple) else W[0]
