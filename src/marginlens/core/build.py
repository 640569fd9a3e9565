"""Compile the core: one compiler call for each level of the processor, by the system's compiler or by ziglang.

Used where marginlens is installed from source, and at run time in a checkout whose sources have changed; `python -m marginlens.core.build`
builds every level. This module imports nothing of marginlens, so that it runs while marginlens is being installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARIES = FOLDER / "built"
COMMON = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # products are never fused with sums, so that every processor gives the same bits
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-shared",
    "-Wno-psabi",
]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]


def levels() -> list[str]:
    """Every level that is built for this kind of processor."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return ["x86-64", "x86-64-v3", "x86-64-v4"]
    return ["aarch64" if machine in ("aarch64", "arm64") else machine]


def sources() -> list[Path]:
    """The files that the core is made of."""
    return sorted(path for path in FOLDER.rglob("*") if path.suffix in (".h", ".cpp"))


@cache
def digest() -> str:
    """What names the sources and the way they are compiled; a library of another digest is never loaded."""
    content = hashlib.sha256(" ".join(COMMON).encode())
    for path in sources():
        content.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16]


def library_path(level: str) -> Path:
    """Where the library of a level lies, or is put."""
    sanitized = "-sanitized" if os.environ.get("MARGINLENS_SANITIZE") else ""
    return LIBRARIES / f"core-{level}-{digest()}{sanitized}.so"


def compiler() -> list[str]:
    """The command of a C++ compiler: what CXX names, one of the system's, or the package ziglang."""
    named = os.environ.get("CXX", "").split()
    if named:
        return named
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "c++"]
    raise SystemExit(
        "marginlens needs a C++ compiler to build its core and found none: install g++ or clang++ from your system, "
        "or the package ziglang with pip, and run the command again."
    )


def build(which: list[str] | None = None) -> list[Path]:
    """Compile the levels, all of them by default; libraries of other sources are removed. A library appears whole or not at all."""
    LIBRARIES.mkdir(exist_ok=True)
    command = compiler()
    made = []
    for level in which or levels():
        path = library_path(level)
        with tempfile.TemporaryDirectory(dir=LIBRARIES) as folder:
            made_here = Path(folder) / path.name
            files = [str(file) for file in sources() if file.suffix == ".cpp"]
            options = [*COMMON, *_options_of(level, command), *(SANITIZED if "sanitized" in path.name else [])]
            done = subprocess.run([*command, *options, *files, "-o", str(made_here)], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(
                    f"marginlens could not compile its core with {' '.join(command)}:\n{done.stderr[-4000:]}"
                )
            os.replace(made_here, path)
        made.append(path)
    for old in LIBRARIES.glob("core-*.so"):
        if digest() not in old.name:
            old.unlink(missing_ok=True)
    return made


def _options_of(level: str, command: list[str]) -> list[str]:
    if "ziglang" in command:
        machine = "aarch64" if level == "aarch64" else "x86_64"
        cpu = {"x86-64": "x86_64", "x86-64-v3": "x86_64_v3", "x86-64-v4": "x86_64_v4"}.get(level, "generic")
        return ["-target", f"{machine}-linux-gnu.2.17", f"-mcpu={cpu}", "-nostdlib++"]
    architecture = [f"-march={level}"] if level.startswith("x86-64") else []
    return [*architecture, "-Wl,--as-needed"]


if __name__ == "__main__":
    for made in build():
        print(made)
