"""Sweeps whose problems stay on a device record what the CPU does."""

import numpy as np
import pytest

from gpu.twin import needs_compiler
from marginlens.sweeps.chunk import measured
from marginlens.sweeps.plan import Plan
from marginlens.sweeps.records import RECORDS, Categories
from refusals import refused

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


def plans(**changes):
    """The same sweep on a device and on the CPU."""
    settings = {**SETTINGS, **changes, "record": tuple(RECORDS)}
    return Plan.of(settings).on("cuda"), Plan.of(settings)


CHANGES = [{}, {"data": "gaussian"}, {"start": "normal:0.5"}, {"d": 2}, {"d": 100, "n_inputs": 4, "n_tokens": 6}]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_columns_equal_the_cpus(device, changes):
    found, expected = (measured(plan, plan.grid.chunk_at(0)) for plan in plans(**changes))
    assert_same_columns(found, expected)


def mean_key(run):
    return run.data.K.mean(axis=(1, 2, 3))


def length(run):
    return np.linalg.norm(run.trajectory.saved["x"], axis=-1)


def test_user_measures_read_ordinary_results(device):
    measures = {"mean_key": mean_key, "length": length}
    columns = [measured(plan, plan.grid.chunk_at(0)) for plan in plans(measures=measures, saved_steps=[5, 30])]
    assert_same_columns(*columns)


def test_an_optimizer_without_gpu_support_is_refused(device):
    plan, _ = plans(optimizer="adam")
    with refused("device"):
        measured(plan, plan.grid.chunk_at(0))


@needs_compiler
def test_a_chunk_beyond_the_memory_is_measured_in_parts(small_device):
    plan, _ = plans()
    columns = []
    for free in (1 << 32, 50_000):
        small_device(free)
        columns.append(measured(plan, plan.grid.chunk_at(0)))
    for name, column in columns[0].items():
        other = columns[1][name]
        values = (column.codes, other.codes) if isinstance(column, Categories) else (column, other)
        assert np.array_equal(*values, equal_nan=name not in ("status", "svm_status", "optimality")), name
