"""What a result was computed with: the packages' versions and the machine, without importing any of them."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "matplotlib", "torch", "transformers")


def versions() -> dict[str, str]:
    """Name → version of Python and of each installed package that a result may depend on, and the kind of machine."""
    found = {"python": platform.python_version(), "marginlens": sys.modules["marginlens"].__version__}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["machine"] = f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} processors"
    return found
