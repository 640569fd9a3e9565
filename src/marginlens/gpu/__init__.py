"""Running on a GPU: the device, its memory, and kernels in CUDA C++ that are compiled when they are first used."""

from marginlens.gpu.device import CudaDevice, Device, Kernel, Layout, as_device, source_text

__all__ = ["CudaDevice", "Device", "Kernel", "Layout", "as_device", "source_text"]
