"""The CPU twin of the GPU: the same sources compiled by a C++ compiler, with NumPy arrays, behind the same interface."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from marginlens.gpu.device import Layout, definitions, source_text
from marginlens.gpu.random_problems import RandomArrays

LANES = Path(__file__).with_name("warp_on_cpu.h")
COMPILER = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler for the CPU twin of the GPU kernels")


def device_arrays(device, data, head):
    """A batch of NumPy, without shorter inputs, with its heads on a device."""
    heads = np.broadcast_to(head, (len(data), data.d_model))
    return RandomArrays(*(device.xp.asarray(np.ascontiguousarray(x)) for x in (data.X, data.K, heads, data.y)))


class TwinDevice:
    """A device that is the CPU: one warp at a time, whose lanes are 32 numbers in a row."""

    name = "the CPU twin"
    xp = np

    def __init__(self, free=1 << 32):
        self.free = free

    def active(self):
        """No context is needed."""
        return nullcontext()

    def kernel(self, source, function, constants, layout=Layout()):  # noqa: B008
        """The function as g++ compiles it."""
        return TwinKernel(getattr(library(source, tuple(sorted(constants.items()))), function))

    def free_bytes(self):
        """What the test says."""
        return self.free

    def shared_bytes(self):
        """As an H200 has it."""
        return 227 * 1024

    def synchronize(self):
        """Kernels return when they are done."""


class TwinKernel:
    """A function of the shared library, which takes arrays by their addresses."""

    n_warps = 1

    def __init__(self, function):
        self.function = function
        function.restype = None

    def __call__(self, n_problems, *arguments):
        """Run it."""
        self.function(*map(_argument, (n_problems, *arguments)))


def _argument(value):
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    if value is None:
        return ctypes.c_void_p(0)
    return ctypes.c_double(value) if isinstance(value, float | np.floating) else ctypes.c_longlong(int(value))


@cache
def library(source, constants):
    """The shared library of a source, kept in the folder for temporary files under a name that its text decides."""
    text = source_text(source)
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-psabi", "-include", str(LANES)]
    options += definitions(dict(constants))
    digest = hashlib.sha256("\0".join([text, LANES.read_text(), *options, COMPILER]).encode()).hexdigest()[:24]
    target = Path(tempfile.gettempdir()) / f"marginlens-twin-{digest}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            code, built = Path(folder) / "twin.cpp", Path(folder) / "twin.so"
            code.write_text(text)
            subprocess.run([COMPILER, *options, "-o", str(built), str(code)], check=True)
            shutil.move(built, target.with_suffix(f".{Path(folder).name}"))
            target.with_suffix(f".{Path(folder).name}").replace(target)
    return ctypes.CDLL(str(target))
