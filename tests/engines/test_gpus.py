"""One thread for each GPU, with made-up devices; the GPU itself is tested by hand."""

import sys
import threading
from types import SimpleNamespace

import pytest

from marginlens.engines import Gpus
from marginlens.errors import MissingExtra
from refusals import refused


class FakeDevice:
    current = threading.local()

    def __init__(self, number):
        self.number = number

    def use(self):
        self.current.number = self.number


@pytest.fixture
def three_devices(monkeypatch):
    runtime = SimpleNamespace(getDeviceCount=lambda: 3, CUDARuntimeError=RuntimeError)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Device=FakeDevice)))


@pytest.mark.usefixtures("three_devices")
def test_each_device_has_a_thread_of_its_own():
    all_at_once = threading.Barrier(3, timeout=30)

    def device(task):
        all_at_once.wait()
        return FakeDevice.current.number

    results = dict(Gpus().run(device, range(3)))
    assert sorted(results.values()) == [0, 1, 2]
    assert [Gpus(2).n_workers, repr(Gpus(2))] == [2, "Gpus(2)"]
    for count in (0, 4):
        with refused("count"):
            Gpus(count)


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(MissingExtra, match=r"marginlens\[gpu\]"):
        Gpus()
