"""How marginlens is built: setuptools, with the compiled core made first.

A wheel has the core for every level of this kind of processor, and a tag that says so: it serves every Python. An editable installation
has it for this machine, and makes it again when its sources have changed. Where no C++ compiler is found, the package ziglang is one; it
also compiles for every other platform that `core/build.py` lists: python -m build -C platform=win_amd64.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401 - hooks that stay as they are
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

_BUILD = Path(__file__).parent / "src/marginlens/core/build.py"


def _core_build() -> Any:
    """The module that compiles the core, without importing marginlens."""
    found = importlib.util.spec_from_file_location("core_build", _BUILD)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """What setuptools asks for, and a compiler where the system has none, or for another platform."""
    packages = _core_build().compiler_packages((config_settings or {}).get("platform"))
    return [*build_meta.get_requires_for_build_wheel(config_settings), *packages]


def get_requires_for_build_editable(config_settings: Any = None) -> list[str]:
    """The same for an editable installation."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_core_build().compiler_packages()]


def build_wheel(folder: str, config_settings: Any = None, metadata_folder: str | None = None) -> str:
    """A wheel for every Python on this platform, or on the one that the setting `platform` names, with the core for every level."""
    core, settings = _core_build(), dict(config_settings or {})
    platform = settings.pop("platform", None)
    core.build(name=platform)
    options = ["--plat-name", platform or core.platform_tag()]
    return str(build_meta.build_wheel(folder, {"--build-option": options} | settings, metadata_folder))


def build_editable(folder: str, config_settings: Any = None, metadata_folder: str | None = None) -> str:
    """An installation that leads to this checkout, with the core for this machine."""
    core = _core_build()
    level = core.supported_levels()[-1]
    if not core.library_path(level).exists():  # make setup compiles it while pip looks for packages
        core.build([level])
    return str(build_meta.build_editable(folder, config_settings, metadata_folder))
