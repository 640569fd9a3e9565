"""The environment of a result: versions of packages, without importing them, and the machine."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("numpy", "scipy", "scikit-learn", "matplotlib", "torch", "transformers", "pyarrow")
# The names under which CuPy is installed.
_CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")


def versions() -> dict[str, str]:
    """Return the versions of Python and of each installed package that a result may depend on, by name, and the kind of machine."""
    found = {"python": platform.python_version(), "marginlens": sys.modules["marginlens"].__version__}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    for package in _CUPY:
        with suppress(PackageNotFoundError):
            found["cupy"] = version(package)
    found["machine"] = f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} processors"
    return found
