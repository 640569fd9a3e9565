"""Priority graphs of streams: equal to those of one pass, whatever the chunks, and safe in their folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import marginlens as ml
from marginlens.data.sequences import SequenceDataset
from marginlens.graphs import PriorityGraph


def one_pass(texts: list[np.ndarray], window: int, n_vocabulary: int) -> Mapping[int, PriorityGraph]:
    """The graphs of all windows of all texts in one dataset in memory."""
    views = [np.lib.stride_tricks.sliding_window_view(ids, window)[:-1] for ids in texts if len(ids) > window]
    labels = [ids[window:] for ids in texts if len(ids) > window]
    data = SequenceDataset(
        np.concatenate(views), np.concatenate(labels), np.eye(n_vocabulary), unrealizable="drop"
    )
    return ml.priority_graphs(data)


def assert_same(graphs: Mapping[int, PriorityGraph], others: Mapping[int, PriorityGraph]) -> None:
    assert list(graphs) == list(others)
    for last, graph in graphs.items():
        for name in ("nodes", "edges", "counts", "component_of"):
            mine, theirs = getattr(graph, name), getattr(others[last], name)
            assert mine.dtype == theirs.dtype == np.int64
            np.testing.assert_array_equal(mine, theirs)


def zipf(n_tokens: int, n_vocabulary: int, seed: int = 0) -> np.ndarray:
    weights = 1.0 / np.arange(1, n_vocabulary + 1)
    return np.random.default_rng(seed).choice(n_vocabulary, size=n_tokens, p=weights / weights.sum())


@pytest.mark.statement("C §3.1")
@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(lambda sizes: max(sizes) > 5),
    window=st.integers(1, 5),
    n_vocabulary=st.integers(1, 4),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 100),
)
def test_the_graphs_of_a_stream_are_those_of_one_pass(
    lengths: list[int], window: int, n_vocabulary: int, chunk: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    texts = [rng.integers(n_vocabulary, size=length) for length in lengths]
    stream = ml.data.TokenStream(texts, window, n_vocabulary=n_vocabulary, chunk=chunk)
    try:
        expected = one_pass(texts, window, n_vocabulary)
    except ml.InputError:
        with pytest.raises(ml.InputError, match="some window holds the token"):
            ml.priority_graphs(stream)
        return
    assert_same(ml.priority_graphs(stream), expected)
