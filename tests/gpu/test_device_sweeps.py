"""Sweeps whose problems stay on a device record what the CPU does."""

import numpy as np
import pytest

from gpu.twin import TwinDevice, needs_compiler
from marginlens.gpu import device as device_module
from marginlens.sweeps.chunk import measured
from marginlens.sweeps.plan import Plan
from marginlens.sweeps.records import DEVICE_RECORDS, RECORDS, Categories

# few steps: where descent is chaotic, rounding decides where many would lead
SETTINGS = {"n_problems": 40, "n_inputs": 3, "n_tokens": 4, "d": 6, "n_steps": 30, "seed": 3, "chunk": 40}
ATOL = {"svm_residual": 1e-10}


def assert_same_columns(found, expected):
    assert list(found) == list(expected)
    for name, column in expected.items():
        if isinstance(column, Categories):
            assert found[name].names == column.names
            assert np.array_equal(found[name].codes, column.codes), name
        else:
            np.testing.assert_allclose(found[name], column, rtol=1e-6, atol=ATOL.get(name, 1e-9), err_msg=name)


def test_every_record_of_the_cpu_has_one_on_a_device():
    assert list(DEVICE_RECORDS) == list(RECORDS)


@needs_compiler
@pytest.mark.parametrize("changes", [{}, {"data": "gaussian"}, {"start": "normal:0.5"}, {"d": 2}], ids=str)
def test_columns_are_the_cpus(monkeypatch, changes):
    monkeypatch.setattr(device_module, "find_device", lambda number: TwinDevice())
    settings = {**SETTINGS, **changes, "record": tuple(RECORDS)}
    on_device, on_cpu = Plan.of({**settings, "device": "cuda"}), Plan.of(settings)
    found = measured(on_device, on_device.grid.chunk_at(0))
    assert_same_columns(found, measured(on_cpu, on_cpu.grid.chunk_at(0)))
    monkeypatch.setattr(device_module, "find_device", lambda number: TwinDevice(free=50_000))
    in_parts = measured(on_device, on_device.grid.chunk_at(0))
    for name, column in found.items():
        values = (column.codes, in_parts[name].codes) if isinstance(column, Categories) else (column, in_parts[name])
        assert np.array_equal(*values, equal_nan=name not in ("status", "svm_status", "optimality")), name


@pytest.mark.gpu
@pytest.mark.parametrize(
    "changes", [{}, {"data": "gaussian"}, {"d": 2}, {"d": 100, "n_inputs": 4, "n_tokens": 6}], ids=str
)
def test_columns_of_the_gpu_are_the_cpus(changes):
    settings = {**SETTINGS, "n_problems": 500, "chunk": 500, **changes, "record": tuple(RECORDS)}
    on_device, on_cpu = Plan.of({**settings, "device": "cuda"}), Plan.of(settings)
    found = measured(on_device, on_device.grid.chunk_at(0))
    assert_same_columns(found, measured(on_cpu, on_cpu.grid.chunk_at(0)))
