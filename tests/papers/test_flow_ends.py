"""Ends of flows by multistep methods: the same as those of the library's flow at full accuracy, and a minimum is where it is."""

import numpy as np
import pytest

import marginlens as ml
from marginlens.data import basin_example
from marginlens.dynamics.flow import UntilNorm
from marginlens.embeddings import embedding_flow
from marginlens_papers.claims.b.flow_ends import embedding_flow_end, flow_end
from marginlens_papers.claims.ours import class_window

MOVES = (0.02, 2.0, 300.0)


@pytest.mark.parametrize("moved", MOVES)
def test_four_flows_end_where_accurate_ones_do(moved):
    for seed, (T, k) in enumerate([(6, 1), (15, 2), (30, 1), (8, 5)]):
        data, step = class_window._start(class_window.Cell(T, 256, k, moved), seed)
        exact = embedding_flow(step.after, data, until=UntilNorm(50.0)).final
        end = embedding_flow_end(step.after, data, 50.0, 1e-4)
        assert np.linalg.norm(end - exact) < 1e-4 * 50.0


def test_flow_ends_equal_flow_at_minima_and_beyond_the_norm():
    data, v = basin_example()
    for start in ([0.0, 0.3], [30.0, 1.0], [-2.0, 2.0], [2.0, -2.0], [2.0, 2.0], [-2.0, -2.0]):
        exact = ml.flow(data, v, start=start, until=UntilNorm(20.0)).final
        assert flow_end(data, v, np.array(start), 20.0, 1e-4) == pytest.approx(exact, abs=1e-2, rel=0.0)
