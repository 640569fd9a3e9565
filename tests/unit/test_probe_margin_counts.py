"""How many selections have which margin: bins for margins of any size, quantiles and histograms."""

import numpy as np
import pytest

from marginlens.probe.margins import MarginCounts

BIN = 10.0 ** (0.5 / 400) - 1.0  # half the width of a bin of margins


def test_margin_counts_keep_ties_and_leave_out_what_is_not_finite():
    counts = MarginCounts.empty(1, 2)
    counts.add(0, np.array([[0.0, 1.0, np.inf, 2.0], [np.nan, 3.0, 3.0, 1e9]]))
    assert counts.counts[0].sum(axis=-1).tolist() == [3, 3]
    assert counts.quantile(0.0)[0, 0] == 0.0
    assert counts.quantile(1.0)[0, 0] == pytest.approx(2.0, rel=BIN)
    edges, bars = counts.histogram()
    assert bars.shape == (1, 2, len(edges) - 1)
    assert bars.sum() == 6
    many = MarginCounts.empty(1, 1)
    many.add(0, np.concatenate([np.full(999, 1.5), [1e-5]])[None])
    edges, bars = many.histogram()
    assert bars.tolist() == [[[1000]]]
    assert edges[0] < 1.5 < edges[1]
    assert MarginCounts.empty(1, 1).histogram()[1].tolist() == [[[0]]]
    assert np.isnan(MarginCounts.empty(1, 1).quantile(0.5)).all()


def test_zeros_do_not_stretch_a_histogram_over_all_decades():
    tied = MarginCounts.empty(1, 2)
    tied.add(0, np.array([[0.0, 0.0, 0.0], [0.0, 1.5, 1.5]]))
    edges, bars = tied.histogram()
    assert bars.tolist() == [[[3], [3]]]
    assert edges[0] < 1.5 < edges[1]
    alone = MarginCounts.empty(1, 1)
    alone.add(0, np.zeros((1, 4)))
    assert alone.histogram()[1].tolist() == [[[4]]]


@pytest.mark.parametrize("size", [3e-11, 2e-7, 6e5])
def test_margins_far_from_one_keep_their_size(size):
    counts = MarginCounts.empty(1, 1)
    counts.add(0, np.full((1, 3), size))
    for share in (0.0, 0.5, 1.0):
        assert counts.quantile(share)[0, 0] == pytest.approx(size, rel=BIN, abs=0.0)
