"""The device: sources that two compilers take, and problems that are split by memory."""

import numpy as np
import pytest

import marginlens as ml
from gpu.twin import TwinDevice, needs_compiler
from marginlens.gpu.device import as_device, parts, source_text
from refusals import raised, refused

HAS_CUPY = True
try:
    import cupy  # noqa: F401
except ImportError:
    HAS_CUPY = False


def test_the_cpu_is_not_a_device():
    assert as_device("cpu") is None


@pytest.mark.skipif(HAS_CUPY, reason="CuPy is installed")
def test_without_cupy_the_extra_is_named():
    with raised(ImportError, "marginlens[gpu]"):
        as_device("cuda")


def test_included_files_are_inserted_once():
    text = source_text("descent.cu")
    assert text.count("constexpr int LANES = 32;") == 1
    assert '#include "' not in text


def test_batches_are_split_by_free_memory():
    device = TwinDevice(free=1000)
    assert list(parts(device, 10, 200)) == [(0, 4), (4, 8), (8, 10)]
    assert list(parts(device, 3, 1)) == [(0, 3)]
    with refused("device"):
        list(parts(device, 10, 900))


@pytest.mark.gpu
def test_a_missing_device_is_refused():
    with raised(ml.InputError, "cuda:0"):
        as_device("cuda:99")


@needs_compiler
def test_warp_lanes_run_on_the_cpu(tmp_path, monkeypatch):
    """Sums, largest entries and shuffles of the lane types, in a kernel that is written as all are."""
    from marginlens.gpu import device

    code = """
    #include "warp.h"
    KERNEL lanes_at_work(int64_t n_problems, const double *x, double *out) {
        double *memory = warp_memory(LANES);
        const lanes<int> lane = lane_number();
        for (int64_t j = warp_of_grid(); j < n_problems; j += warps_of_grid()) {
            lanes<double> v = load(x + 32 * j, lane);
            store(memory, lane, v);
            warp_sync();
            lanes<double> largest = v;
            const lanes<int> first = group_argmax<8>(largest, lane);
            const double total = warp_sum(v);
            v = load(memory, 31 - lane) + total + largest + select(first == lane, 100.0, 0.0);
            store_if(lane < 30, out + 32 * j, lane, v);
            warp_sync();
        }
    }
    """
    kernel = "\n".join(line.strip() for line in code.splitlines())
    file_text = device._file_text
    monkeypatch.setattr(device, "_file_text", lambda path: kernel if path == "gpu/source/lanes.cu" else file_text(path))
    x = np.random.default_rng(0).integers(0, 5, (3, 32)).astype(float)
    out = np.full((3, 32), -1.0)
    TwinDevice().kernel("lanes.cu", "lanes_at_work", {})(3, x, out)
    groups = x.reshape(3, 4, 8)
    expected = x[:, ::-1] + x.sum(axis=1, keepdims=True) + np.repeat(groups.max(axis=2), 8, axis=1)
    for problem, group in np.ndindex(3, 4):
        expected[problem, 8 * group + groups[problem, group].argmax()] += 100.0
    expected[:, 30:] = -1.0
    np.testing.assert_array_equal(out, expected)
