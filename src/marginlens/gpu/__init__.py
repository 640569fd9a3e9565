"""Computation on a GPU: the device, its memory, and kernels in CUDA C++, compiled on first use."""

from marginlens.gpu.device import CudaDevice, Device, Kernel, Layout, as_device, source_text

__all__ = ["CudaDevice", "Device", "Kernel", "Layout", "as_device", "source_text"]
