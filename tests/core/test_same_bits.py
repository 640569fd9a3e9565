"""9,150 descents, 3,650 dense margin problems and the numbers of 300 proofs of each kind have the same bits on every processor:
their digest is that of `same_bits.json`.

`python tests/core/test_same_bits.py` writes that file anew, after a change that is meant to move the last bits.
"""

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import marginlens as ml
from marginlens import core
from marginlens.core import build
from marginlens.svm.solvers.least_distance import BY_DUAL_ACTIVE_SET

DIGESTS = Path(__file__).with_name("same_bits.json")
SHAPES = {  # (n_inputs, n_tokens, d): problems and steps
    (3, 4, 5): (1_200, 100),
    (2, 3, 40): (900, 100),
    (5, 7, 3): (800, 100),
    (9, 6, 11): (120, 200),
    (8, 16, 60): (30, 200),
}
RAGGED = (5, 7, 3)
OPTIMIZERS = {
    "gradient descent": ml.GradientDescent(0.3),
    "normalised": ml.NormalizedGD(0.5),
    "sign": ml.SignDescent(0.1),
}


def problems(shape, count):
    """Tokens that are fractions of whole numbers, so that they are the same everywhere, and scores that are one of their coordinates."""
    rng = np.random.default_rng(shape)
    n, T, d = shape
    X = rng.integers(-(2**20), 2**20, (count, *shape)) / 2.0**20
    lengths = rng.integers(2, T + 1, (count, n)) if shape == RAGGED else np.full((count, n), T)
    tokens = (
        [[x[:m] for x, m in zip(*each, strict=True)] for each in zip(X, lengths, strict=True)] if shape == RAGGED else X
    )
    return ml.TokenDataset(tokens, rng.choice([-1.0, 1.0], (count, n))), np.eye(d)[-1]


def digests():
    """What names the bits of every end point and every margin problem's solution."""
    found = {}
    for shape, (count, n_steps) in SHAPES.items():
        data, v = problems(shape, count)
        for name, optimizer in OPTIMIZERS.items():
            run = ml.descend(data, v, optimizer=optimizer, n_steps=n_steps)
            found[f"{shape} {name}"] = _digest(run.final)
        solution = ml.att_svm(data, np.zeros(shape[0], dtype=np.int64))
        found[f"{shape} margins"] = _digest(solution.x)
    for shape in ((6, 3), (60, 8)):
        found[f"{shape} dual active set"] = _digest(last_iterates(*shape, count=300))
    return found | {name: _digest(numbers) for name, numbers in numbers_of_proofs(300).items()}


def last_iterates(n_rows, d, count):
    """Where the dual active set method ends, and where it stands when it finds that no x exists: in the midst of its updates."""
    rng = np.random.default_rng((n_rows, d))
    rows = rng.integers(-(2**20), 2**20, (count, n_rows, d)) / 2.0**20
    rows += np.linspace(0, 1.0, count).round(3)[:, None, None]  # the first problems are infeasible, the last are not
    x, multipliers = np.empty((count, d)), np.empty((count, n_rows))
    active, outcome = np.empty((count, n_rows), dtype=bool), np.empty(count, dtype=np.int64)
    solved = (x, multipliers, active, outcome)
    core.solve_margins(0, count, np.arange(count), BY_DUAL_ACTIVE_SET, rows, np.ones((count, n_rows)), *solved)
    assert 0 < np.count_nonzero(outcome) < count
    return x


def numbers_of_proofs(count):
    """What the searches for proofs find at random points: tubes, rates and falls of steps in a norm, vertices, balls."""
    rng = np.random.default_rng(17)
    found = {"tubes": [], "rates": [], "falls": [], "vertices": [], "balls": []}

    def fractions(*shape, low=-1.0, high=1.0):
        return low + (high - low) * rng.integers(0, 2**20, shape) / 2.0**20

    n, T, d = 2, 3, 3
    data = ml.TokenDataset(fractions(count, n, T, d), np.ones((count, n)))
    solved = ml.att_svm(data, np.zeros(n, dtype=np.int64))
    for j in range(count):
        keys, scores, lengths = data.K[j : j + 1], fractions(1, n, T), np.full((1, n), T)
        scores[..., 0] += 2.0
        size, multipliers = (
            math.sqrt(math.fsum(x * x for x in np.nan_to_num(solved.x[j]).tolist())) or 1.0,
            np.zeros((1, n, T)),
        )
        direction = np.nan_to_num(solved.x[j])[None] / size
        for (i, _, t), weight in zip(solved[j].pairs, solved[j].multipliers, strict=True):
            multipliers[0, i, t] = weight / size
        at = (np.zeros((1, n), dtype=np.int64), fractions(1, n))
        ray = (multipliers, direction, np.array([1.0 / size]), 60.0 * direction + fractions(1, d), np.array([1e-6]))
        tube = (np.empty((1, d)), np.empty((1, 7)), np.empty(1, dtype=np.int64))
        core.find_tubes(0, 1, keys, scores, fractions(n * T), lengths, *at, 1.0, *ray, 1, 0.5, *tube)
        found["tubes"] += tube[:2]

        momentum = 0.3 * (j % 2)
        numbers = np.array((1.0, 2.0, 1.0, 0.1, momentum, 1.0, 1e-6), dtype=core.struct_type("SteepestNumbers"))
        m, others, turns = 5, 2, 4
        bounds = (fractions(turns, low=0.8, high=0.9), fractions(turns, low=0.0))
        margins = fractions(m, d, low=0.5) * np.where(np.arange(m) < others, 4.0, 1.0)[:, None]
        rows = (
            margins,
            fractions(m, low=0.5),
            fractions(m, low=-1.0, high=0.0),
            np.array([0, 0, 1, 1, 1]),
        )
        leads = (
            np.arange(m) >= others,
            fractions(others, m - others, low=0.4, high=0.6),
            fractions(others, low=0.0, high=0.3),
        )
        rate, fall = np.empty(1), np.empty(1)
        remembered = fractions(3, low=0.0, high=1e-2) * (j % 2)
        more = (
            fractions(others, low=0.5),
            *bounds,
            remembered,
            numbers,
            fractions(d, low=4.0, high=30.0),
            np.empty(2),
            rate,
        )
        core.find_steepest_rate(*rows, *leads, *more)
        core.find_least_fall(numbers, *bounds, 1e-3, fall)
        found["rates"].append(rate)
        found["falls"].append(fall)

        duals, values, slopes = np.zeros((2 * d, 1 + d)), np.zeros(2 * d), np.zeros(2 * d)
        core.bound_vertex_steps(fractions(3, d, low=0.2), 0, 0.5, 0.1, 0.4, duals, values, slopes)
        found["vertices"] += [duals, values, slopes]

        ball = np.empty(3)
        core.find_ball(keys[0], scores[0], lengths[0], 0, fractions(d), 0.5, 1e-6, ball)
        found["balls"].append(ball)
    return {name: np.concatenate([np.ravel(part) for part in parts]) for name, parts in found.items()}


def _digest(values):
    values = np.where(np.isnan(values), np.nan, values) + 0.0  # one nan, and one zero
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def test_bits_are_the_same_on_every_processor_level():
    assert digests() == json.loads(DIGESTS.read_text(encoding="utf-8"))


@pytest.mark.slow  # it compiles the core again for each
@pytest.mark.parametrize("level", build.supported_levels()[:-1])
def test_bits_are_the_same_on_lower_processor_levels(level):
    done = subprocess.run(
        [sys.executable, __file__, "--print"],
        env=os.environ | {"MARGINLENS_CORE_LEVEL": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(DIGESTS.read_text(encoding="utf-8"))


if __name__ == "__main__":
    text = json.dumps(digests(), indent=1) + "\n"
    if "--print" in sys.argv:
        print(text)
    else:
        DIGESTS.write_text(text, encoding="utf-8")
