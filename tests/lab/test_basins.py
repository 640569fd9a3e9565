"""The page's basins against those of claim X-B: pixel by pixel in a window, and over the whole plane by log-radius."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import marginlens as ml
from lab_kernels import as_json, ask, needs_node
from marginlens.theory import basin_cone, locally_optimal_directions
from marginlens_papers.claims.ours import basins as claim

pytestmark = needs_node

MIN_AGREEMENT = 0.995


def on_a_border(labels: Any) -> Any:
    """(side, side) whether a pixel has a neighbour with another label."""
    padded = np.pad(labels, 1, mode="edge")
    around = [
        padded[1 + i : padded.shape[0] - 1 + i, 1 + j : padded.shape[1] - 1 + j] for i in (-1, 0, 1) for j in (-1, 0, 1)
    ]
    return np.any(np.stack(around) != labels, axis=0)


def compared(mine: Any, theirs: Any, optima: Any, selections: Any) -> None:
    """Fail where labels differ on too many pixels, or off the borders of basins."""
    assert selections == optima.selections.tolist()
    assert np.mean(mine == theirs) >= MIN_AGREEMENT
    assert np.all((mine == theirs) | on_a_border(theirs))


@pytest.mark.parametrize("name", ["figure_1b", "random"])
def test_basins_in_a_window_agree_with_the_claim(name: str) -> None:
    data, v = ml.data.figure_1b() if name == "figure_1b" else ml.data.basin_example()
    side, half, steps = (20, claim.NEAR_1B, 1500) if name == "figure_1b" else (16, claim.NEAR_RANDOM, 800)
    answer = ask([{"call": "basins", "problem": as_json(data, v), "side": side, "half": half, "steps": steps}])[0]
    theirs = claim.basins_of(data, v, claim.square_of_starts(side, half), claim.STEP, steps)
    assert np.array(answer["starts"]).reshape(side, side, 2) == pytest.approx(theirs.starts)
    optima = locally_optimal_directions(data, v)
    labels = np.array(answer["labels"]).reshape(side, side)
    compared(labels, theirs.ends, optima, answer["selections"])
    assert len(np.unique(labels)) == len(optima) + (
        name == "random"
    )  # every direction, and the finite minimum of the random problem


def test_basins_of_the_whole_plane_agree_with_the_claim() -> None:
    data, v = ml.data.figure_1b()
    optima = locally_optimal_directions(data, v)
    far, side = 3.0 * max(basin_cone(data, v, selection).radius for selection in optima.selections), 12
    answer = ask([{"call": "basins", "problem": as_json(data, v), "side": side, "far": far}])[0]
    labels = np.array(answer["labels"])
    inside = labels != -2
    starts = np.array([start for start in answer["starts"] if start is not None])
    norms = np.linalg.norm(starts, axis=-1)
    assert norms.max() <= far * (1.0 + 1e-12)
    assert norms.max() > 0.5 * far
    assert 0.7 < inside.mean() < 0.85  # a disc in a square
    near, theirs = norms <= 20.0, np.empty(len(starts), dtype=np.int64)
    theirs[near] = claim.basins_of(data, v, starts[near], claim.STEP, 2000).ends
    theirs[~near] = claim.basins_of(data, v, starts[~near], far / 200.0, 2500).ends
    whole = labels.copy()
    whole[inside] = theirs
    compared(labels.reshape(side, side), whole.reshape(side, side), optima, answer["selections"])


def test_the_first_piece_of_work_covers_the_picture() -> None:
    data, v = ml.data.figure_1b()
    answer = ask([{"call": "basins", "problem": as_json(data, v), "side": 32, "half": 4.0, "steps": 1}])[0]
    first = np.array(answer["firstPixels"])
    assert len(first) == 4
    assert sorted(set(first // 32)) == sorted(set(first % 32)) == [0, 16]
