"""The next-token path of embeddings of any length: W divided by the square of the scale, and no less exact."""

import numpy as np
import pytest

import marginlens as ml
import tolerances
from marginlens.data.sequence_generators import cyclic_sequences
from marginlens.data.sequences import SequenceDataset

HEIGHTS = np.array([1.0, 8.0, 18.0, 30.0])  # e^-18 is about where the risk no longer shows what the tail says
RESIDUAL = 1e-13  # a few hundred roundings of terms of order one


@pytest.mark.statement("C Algo-RP")
@pytest.mark.parametrize("power", [-60, -10, 10, 60])
@pytest.mark.parametrize("seed", range(3))
def test_the_path_of_scaled_embeddings_is_divided_by_the_square(seed, power):
    ds = cyclic_sequences(6, 8, 8, 4, seed)
    longer = SequenceDataset([ds[i][0] for i in range(len(ds))], ds.labels, 2.0**power * ds.E)
    radii = HEIGHTS / ml.graph_svm(ds).margin
    plain, scaled = ml.path(ds, radii), ml.path(longer, radii / 4.0**power)
    assert max(plain.kkt_residual().max(), scaled.kkt_residual().max()) < RESIDUAL
    np.testing.assert_allclose(scaled.points * 4.0**power, plain.points, rtol=0, atol=tolerances.CYCLIC_LIMIT)
