"""The benchmark of the GPU: every method is timed on the same problems, here by the CPU twin; without a GPU it says so."""

import json

import numpy as np
import pytest

from benchmarks import gpu as bench
from benchmarks.baselines import batched_descent
from gpu.twin import TwinDevice, needs_compiler
from marginlens.data import sphere_tokens
from marginlens.dynamics import descend
from marginlens.gpu import device as devices
from progress_counter import ProgressCounter


def test_batched_torch_takes_the_same_steps():
    pytest.importorskip("torch")
    data, head = sphere_tokens(3, 4, 6, 20, 0)
    p = batched_descent(data.K, np.ascontiguousarray(data.scores(head)), 60, 1.0)
    np.testing.assert_allclose(p, descend(data, head, n_steps=60).final, rtol=1e-8, atol=1e-8)


@needs_compiler
def test_every_method_is_timed(monkeypatch):
    pytest.importorskip("torch")
    twin = TwinDevice()
    monkeypatch.setattr(type(twin), "name", "cuda")
    monkeypatch.setattr(devices, "find_device", lambda number: twin)
    for name, value in {
        "DATA": {20: 4},
        "DESCENTS": {20: 4},
        "MARGINS": {20: 4},
        "STEPS": 20,
        "TORCH_PROBLEMS": 2,
        "TORCH_STEPS": 3,
        "CPU_PROBLEMS": 3,
        "REPEATS": 1,
    }.items():
        monkeypatch.setattr(bench, name, value)
    progress = ProgressCounter()
    *rows, summary = json.loads(json.dumps(bench.bench_gpu(progress)))
    assert progress.done == progress.total == len(rows) == 7
    assert all(row["problems_per_second"] > 0.0 for row in rows)
    assert [row["agreement"] for row in rows] == [1.0, None, 1.0, None, None, 1.0, None]
    assert summary["least_times_torch"] > 0.0


def test_without_a_gpu_it_says_so(monkeypatch):
    def missing():
        raise ImportError("Running on a GPU needs the package CuPy")

    monkeypatch.setattr(devices, "import_cupy", missing)
    with pytest.raises(ImportError, match="CuPy"):
        bench.bench_gpu()
