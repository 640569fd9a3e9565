"""Descent in the plane from many starts, four at a time, beside descent on p and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from marginlens import core
from marginlens.typing import FloatArray, IntArray

LOSSES = (0, 1, 2)
EUCLIDEAN, SIGN = 1, 2
Problem = tuple[FloatArray, FloatArray, IntArray]  # keys, scores and lengths


def _descend(
    problem: Problem, loss: int, norm: int, starts: FloatArray, steps: Any, sectors: Any = ()
) -> tuple[FloatArray, IntArray]:
    """Where runs from these starts end, by steps of 0.1, and their labels."""
    points, labels = starts.copy(), np.zeros(len(starts), dtype=np.int64)
    given = (np.reshape(sectors, (-1, 6)), np.full(len(starts), 0.1), np.broadcast_to(steps, len(starts)))
    core.descend_in_plane(*problem, loss, norm, 2.0, *given, points, labels)
    return points, labels


def _problem(rng: np.random.Generator) -> Problem:
    n, T = int(rng.integers(1, 7)), int(rng.integers(2, 9))
    scores = rng.normal(size=(n, T)).round(1)  # some tie
    return rng.normal(size=(n, T, 2)), scores, rng.integers(1, T + 1, size=n)


@pytest.mark.parametrize("loss", LOSSES)
def test_steps_equal_normalized_descents(loss: int) -> None:
    rng = np.random.default_rng(7301 + loss)
    for scale in (0.0, 1.0, 30.0, 3000.0):
        keys, scores, lengths = problem = _problem(rng)
        starts = scale * rng.normal(size=(9, 2))
        n, T, _ = keys.shape
        places = -(-n // 4) * 4 * T
        width = 2 if n * T >= 4 else places
        out, ends = np.empty((9, 1, 2)), np.zeros((9, 2), dtype=np.int64)
        carried = (np.empty((9, width)), np.empty((9, places)), ends, np.empty(0), np.zeros(1, dtype=np.int64))
        arrays = (keys[None], scores[None], lengths[None], np.empty(0), starts)
        core.descend_attention(0, 9, *arrays, 1, 0.1, loss, 20, 20, np.array([20]), *carried, out)
        assert_allclose(_descend(problem, loss, EUCLIDEAN, starts, 20)[0], out[:, 0], rtol=1e-9, atol=1e-9)


def test_a_start_ends_the_same_in_any_batch() -> None:
    rng = np.random.default_rng(7310)
    for norm in (0, 1, 2, 3):
        problem = _problem(rng)
        starts = 10.0 * rng.normal(size=(11, 2))
        together, _ = _descend(problem, 0, norm, starts, 150)
        single = np.concatenate([_descend(problem, 0, norm, start[None], 150)[0] for start in starts])
        assert_array_equal(together, single)


def test_sectors_and_returns_are_labelled() -> None:
    problem = np.array([[[1.0, 0.0], [-1.0, 0.0]]]), np.array([[1.0, 0.0]]), np.array([2])
    starts = np.array([[50.0, 0.1], [0.0, 0.0], [-4.0, 0.0]])
    points, labels = _descend(problem, 0, SIGN, starts, [1000, 10, 1000], [1.0, 0.0, 0.1, 0.1, 20.0, 1.0])
    assert_array_equal(labels, [0, -1, 0])
    assert_allclose(points, [[50.0, 0.1], [1.0, 0.0], [points[2, 0], 0.0]], rtol=0.0, atol=1e-14)
    assert 20.0 <= points[2, 0] <= 21.0
    # the middle token is best: sign descent goes to and fro
    between = np.array([[[1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]]), np.array([[0.0, 1.0, 0.0]]), np.array([3])
    points, labels = _descend(between, 0, SIGN, np.array([[0.55, 0.0]]), 1000)
    assert labels[0] == 0
    assert abs(points[0, 0]) < 0.2


@pytest.mark.parametrize("loss", LOSSES)
def test_measures_equal_numpys(loss: int) -> None:
    rng = np.random.default_rng(7320 + loss)
    keys, scores, lengths = _problem(rng)
    n, T, _ = keys.shape
    points = 5.0 * rng.normal(size=(7, 2))
    found = np.empty((7, n, T)), np.empty((7, n)), np.empty(7)
    core.measure_attention(keys, scores, lengths, loss, points, *found)
    logits = np.where(np.arange(T) < lengths[:, None], np.einsum("bd,ntd->bnt", points, keys), -np.inf)
    expected = np.exp(logits - logits.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    margins = np.einsum("bnt,nt->bn", expected, scores)
    values = {0: np.logaddexp(0.0, -margins), 1: np.exp(-margins), 2: -margins}[loss]
    for value, wanted in zip(found, (expected, margins, values.mean(-1)), strict=True):
        assert_allclose(value, wanted, rtol=1e-12, atol=1e-14)
