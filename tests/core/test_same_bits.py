"""9,150 descents and 3,650 dense margin problems have the same bits on every processor: their digest is that of `same_bits.json`.

`python tests/core/test_same_bits.py` writes that file anew, after a change that is meant to move the last bits.
"""

import hashlib
import json
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
    return found


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
