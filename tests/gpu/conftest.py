"""Tests marked gpu are skipped where there is no CUDA device; `make test` leaves them out, `make test-gpu` runs them."""

import pytest

from gpu.twin import COMPILER, TwinDevice
from marginlens.errors import InputError, MissingExtra
from marginlens.gpu import device as devices
from marginlens.gpu.device import as_device


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    try:
        as_device("cuda")
    except (InputError, MissingExtra) as problem:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=str(problem)))


@pytest.fixture(scope="module", params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request):
    """What device="cuda" names: the twin in place of the GPU, then the GPU where there is one."""
    if request.param == "gpu":
        yield as_device("cuda")
        return
    if COMPILER is None:
        pytest.skip("no C++ compiler for the CPU twin of the GPU kernels")
    with pytest.MonkeyPatch.context() as patch:
        twin = TwinDevice()
        patch.setattr(devices, "find_device", lambda number: twin)
        yield twin


@pytest.fixture
def small_device(monkeypatch):
    """Makes device="cuda" name a twin with so many bytes of free memory."""
    return lambda free: monkeypatch.setattr(devices, "find_device", lambda number: TwinDevice(free=free))
