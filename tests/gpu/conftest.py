"""Tests marked gpu are skipped where there is no CUDA device; `make test` leaves them out, `make test-gpu` runs them."""

import pytest

from gpu.twin import TwinDevice
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


@pytest.fixture
def twin(monkeypatch):
    """The twin in place of the GPU."""
    device = TwinDevice()
    monkeypatch.setattr(devices, "find_device", lambda number: device)
    return device
