"""CUDA devices by CuPy: finding a device, compiling the sources of this package for it, and sizing batches to its memory."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, NamedTuple, Protocol

import numpy as np

from marginlens.errors import InputError, MissingExtra, install_command

EXPECTED = "'cpu', 'cuda', or 'cuda:1' for the device of that number"
# The share of the free memory that one part of a batch may take.
MEMORY_SHARE = 0.8
# Shared memory that a block may take without asking.
STATIC_SHARED_BYTES = 48 * 1024
# Shared memory that CUDA takes for each block.
RESERVED_SHARED_BYTES = 1024
_INCLUDE = re.compile(r'^#include "([\w./]+)"$', re.MULTILINE)
# Sources compiled without fusing products with sums, so that their bits are those of the CPU.
_EXACT_SOURCES = ("random.cu",)
_NAME = re.compile(r"cuda(?::(\d+))?")


class Layout(NamedTuple):
    """The layout of warps: the number of warps in a block, and the doubles of shared memory of each."""

    warps_per_block: int = 4
    shared_doubles: int = 0


class Kernel(Protocol):
    """A compiled function over problems; at most `n_warps` warps run at the same time, which determines the memory for warps."""

    n_warps: int

    def __call__(self, n_problems: int, *arguments: Any) -> None:
        """Run the function on problems 0 … n_problems - 1; arguments are arrays on the device, None, whole numbers and reals."""


class Device(Protocol):
    """A device for arrays and kernels: a GPU, or in tests the CPU, for which the same sources compile."""

    @property
    def name(self) -> str:
        """The name in messages."""

    @property
    def xp(self) -> Any:
        """The module whose arrays are on this device, CuPy or NumPy."""

    def active(self) -> AbstractContextManager[Any]:
        """Return the context in which its arrays are made."""

    def kernel(self, source: str, function: str, constants: Mapping[str, object], layout: Layout) -> Kernel:
        """Return `function` of the file `source` of marginlens/gpu/source, compiled with -DNAME=value for each constant; compiled once."""

    def free_bytes(self) -> int:
        """Return the bytes that arrays can still take."""

    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block can have."""

    def synchronize(self) -> None:
        """Wait until every kernel is done."""


def as_device(device: object) -> Device | None:
    """Return the device of this name: None for 'cpu', otherwise a CUDA device; raise an error if there is none.

    'cuda' is CuPy's current device, such as the device of a surrounding `cupy.cuda.Device(k)`.
    """
    if device == "cpu":
        return None
    match = _NAME.fullmatch(device) if isinstance(device, str) else None
    if match is None:
        raise InputError("device", EXPECTED, repr(device))
    return find_device(None if match[1] is None else int(match[1]))


def find_device(number: int | None) -> Device:
    """Return the CUDA device of this number, the current one for None."""
    cupy = import_cupy()
    try:
        count = int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError as problem:
        raise InputError("device", "'cpu', since CUDA finds no GPU that it can use", f"a GPU ({problem})") from problem
    if count == 0:
        raise InputError("device", "'cpu', since CUDA finds no GPU", "a GPU")
    if number is None:
        number = int(cupy.cuda.Device().id)
    if number >= count:
        raise InputError("device", f"one of {', '.join(f'cuda:{k}' for k in range(count))}", repr(f"cuda:{number}"))
    return _cuda_device(number)


def device_of(array: Any) -> Device:
    """Return the device that an array is on."""
    return _cuda_device(int(array.device.id))


def to_host(array: Any) -> Any:
    """Copy an array on a device to NumPy; an array of NumPy is returned as it is."""
    return array.get() if hasattr(array, "get") else np.asarray(array)


def import_cupy() -> Any:
    """Import CuPy, or raise an error if it is not installed."""
    try:
        import cupy
    except ImportError as problem:
        raise MissingExtra(
            f"Running on a GPU needs the package CuPy: install it with {install_command('gpu')}, "
            "or with pip install cupy-cuda13x for CUDA 13."
        ) from problem
    return cupy


def source_text(name: str) -> str:
    """Return the text of a file of marginlens/gpu/source, with every file that it includes (also of marginlens/core) inserted once."""
    included: set[str] = set()

    def text(path: str) -> str:
        if path in included:
            return ""
        included.add(path)
        folder = posixpath.dirname(path)
        code = _file_text(path).replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda match: text(posixpath.normpath(posixpath.join(folder, match[1]))), code)

    return text(f"gpu/source/{name}")


def _file_text(path: str) -> str:
    return resources.files("marginlens").joinpath(path).read_text(encoding="utf-8")


def compiler_options(source: str, constants: Mapping[str, object]) -> tuple[str, ...]:
    """Return the options of NVRTC for a file; functions without a mark, as the core's are, are functions of the device."""
    fused = ("--fmad=false",) if source in _EXACT_SOURCES else ()
    return ("-std=c++17", "--device-as-default-execution-space", *fused, *definitions(constants))


def definitions(constants: Mapping[str, object]) -> tuple[str, ...]:
    """Return the compiler options that define the constants."""
    return tuple(f"-D{name}={int(value) if isinstance(value, bool) else value}" for name, value in constants.items())


def parts(
    device: Device, n_problems: int, bytes_per_problem: int, fixed_bytes: int = 0, at_most: int | None = None
) -> Iterator[tuple[int, int]]:
    """Return ranges (first, last) that cover all problems, each as large as the free memory allows; refused if not one problem fits.

    Args:
        bytes_per_problem: the bytes of all arrays that one problem needs.

        fixed_bytes: the bytes of arrays that do not depend on the number of problems.
    """
    room = MEMORY_SHARE * device.free_bytes() - fixed_bytes
    fit = int(room // max(bytes_per_problem, 1))
    if fit < 1:
        needed, free = (bytes_per_problem + fixed_bytes) / 1e9, device.free_bytes() / 1e9
        expected = f"one with {needed:.3g} GB of free memory for a problem of this size"
        raise InputError("device", expected, f"{device.name} with {free:.3g} GB free", "Take `device='cpu'`.")
    size = min(fit, n_problems if at_most is None else at_most)
    for first in range(0, n_problems, max(size, 1)):
        yield first, min(n_problems, first + size)


# ---- CUDA by CuPy


@dataclass(frozen=True)
class CudaDevice:
    """A CUDA device as CuPy sees it."""

    number: int

    @property
    def name(self) -> str:
        """The name in the argument `device`."""
        return f"cuda:{self.number}"

    @property
    def model(self) -> str:
        """The vendor's model name."""
        said = import_cupy().cuda.runtime.getDeviceProperties(self.number)["name"]
        return said.decode() if isinstance(said, bytes) else str(said)

    @property
    def xp(self) -> Any:
        """The module CuPy."""
        return import_cupy()

    def active(self) -> AbstractContextManager[Any]:
        """Return the context in which its arrays are made."""
        return self.xp.cuda.Device(self.number)

    def kernel(self, source: str, function: str, constants: Mapping[str, object], layout: Layout = Layout()) -> Kernel:  # noqa: B008
        """Return `function` of the file `source`, compiled once for each set of constants."""
        return _cuda_kernel(self, source, function, tuple(sorted(constants.items())), layout)

    def free_bytes(self) -> int:
        """Return the bytes that are free on the device or set aside by CuPy and unused."""
        with self.active():
            free, _ = self.xp.cuda.runtime.memGetInfo()
            return int(free) + int(self.xp.get_default_memory_pool().free_bytes())

    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block can have."""
        return int(self._attributes["MaxSharedMemoryPerBlockOptin"])

    def resident_blocks(self, n_threads: int, n_registers: int, shared_bytes: int) -> int:
        """Return how many blocks of a kernel the device runs at the same time: bounded by threads, registers of a thread and
        shared memory.
        """
        limits = self._attributes
        by_registers = limits["MaxRegistersPerMultiprocessor"] // (n_threads * -(-max(n_registers, 1) // 8) * 8)
        by_shared = limits["MaxSharedMemoryPerMultiprocessor"] // (shared_bytes + RESERVED_SHARED_BYTES)
        by_threads = limits["MaxThreadsPerMultiProcessor"] // n_threads
        return max(1, min(by_registers, by_shared, by_threads)) * limits["MultiProcessorCount"]

    def synchronize(self) -> None:
        """Wait until every kernel is done."""
        with self.active():
            self.xp.cuda.get_current_stream().synchronize()

    @cached_property
    def _attributes(self) -> Mapping[str, int]:
        attributes: Mapping[str, int] = self.xp.cuda.Device(self.number).attributes
        return attributes


_cuda_device = cache(CudaDevice)


@cache
def _cuda_kernel(
    device: CudaDevice, source: str, function: str, constants: tuple[tuple[str, object], ...], layout: Layout
) -> CudaKernel:
    with device.active():
        return CudaKernel(device, source, function, dict(constants), layout)


class CudaKernel:
    """A function compiled by NVRTC, launched with as many blocks as the device runs at the same time."""

    def __init__(
        self, device: CudaDevice, source: str, function: str, constants: Mapping[str, object], layout: Layout
    ) -> None:
        defined = {**constants, "WARPS_PER_BLOCK": layout.warps_per_block}
        module = device.xp.RawModule(
            code=source_text(source), options=compiler_options(source, defined), backend="nvrtc"
        )
        self.function = module.get_function(function)
        self.device, self.n_threads = device, 32 * layout.warps_per_block
        self.bytes = 8 * layout.shared_doubles * layout.warps_per_block
        if self.bytes > STATIC_SHARED_BYTES:
            self.function.max_dynamic_shared_size_bytes = self.bytes
        self.n_blocks = device.resident_blocks(self.n_threads, int(self.function.num_regs), self.bytes)
        self.n_warps = self.n_blocks * layout.warps_per_block

    def __call__(self, n_problems: int, *arguments: Any) -> None:
        """Launch the function on problems 0 … n_problems - 1 and return at once."""
        n_blocks = min(self.n_blocks, -(-n_problems * 32 // self.n_threads))
        if n_blocks > 0:
            given = (np.int64(n_problems), *map(_argument, arguments))
            self.function((n_blocks,), (self.n_threads,), given, shared_mem=self.bytes)


def _argument(value: object) -> Any:
    if value is None:
        return np.intp(0)
    if isinstance(value, bool | int | np.integer):
        return np.int64(value)
    return np.float64(value) if isinstance(value, float | np.floating) else value
