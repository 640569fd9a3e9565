"""Packages that exist on Python's path alone, with entry points, as if they had been installed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from marginlens.runtime.packs import forget_packs

Install = Callable[[str, str, Mapping[str, Mapping[str, str]]], None]


def write_pack(folder: Path, package: str, source: str, entries: Mapping[str, Mapping[str, str]]) -> None:
    """Put a package with one module into `folder`.

    Args:
        package: its name; the module is the same with underscores. source: of the module.
        entries: the entry points, group → name → object in the module.
    """
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {module}:{target}" for name, target in names.items())])
        for group, names in entries.items()
    ]
    (about / "entry_points.txt").write_text("\n\n".join(groups) + "\n", encoding="utf-8")


@contextmanager
def on_the_path(folder: Path) -> Iterator[Install]:
    """Let Python find the packages in `folder`, and forget them afterwards; what comes back is `write_pack` into it."""

    def install(package: str, source: str, entries: Mapping[str, Mapping[str, str]]) -> None:
        write_pack(folder, package, source, entries)
        forget_packs()

    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        forget_packs()
        yield install
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]
    forget_packs()
