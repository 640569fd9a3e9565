"""Compile the core: one compiler call for each level of the processor, by the system's compiler or by ziglang.

It is used when marginlens is installed from source, and at run time in a checkout with changed sources. `python -m
marginlens.core.build` builds every level, `python -m marginlens.core.build native` the level for this machine, and `python -m
marginlens.core.build win_amd64` every level of another platform, by ziglang. This module imports nothing else from marginlens,
since it runs while marginlens is being installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

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
LEVELS = ["x86-64", "x86-64-v3", "x86-64-v4"]  # of x86-64 processors, each with the instructions of the one before
PROCESSOR = "processor"  # stands in the place of a level for the small library that tells which of them runs here
PLATFORMS = {  # wheels' platforms, and what ziglang compiles for them
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_11_0_x86_64": "x86_64-macos.11.0",
    "win_amd64": "x86_64-windows-gnu",
    "win_arm64": "aarch64-windows-gnu",
}
ZIGLANG_PACKAGE = "ziglang==0.17.0"
ZIGLANG = [sys.executable, "-m", "ziglang", "c++"]
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


class BuildError(RuntimeError):
    """The error if the core cannot be compiled; the message says what to do."""


def native() -> str:
    """Return the platform of the Python that runs this."""
    if sys.platform == "win32":
        return sysconfig.get_platform().replace("-", "_")
    return ("macosx_11_0_" if sys.platform == "darwin" else "manylinux_2_17_") + platform.machine().lower()


def levels(name: str | None = None) -> list[str]:
    """Return every level that is built for a platform, by default this one, the plainest first."""
    machine = re.sub(r"^(win|macosx_\d+_\d+|manylinux_\d+_\d+)_", "", name or native())
    if machine in ("x86_64", "amd64"):
        return LEVELS
    return ["aarch64" if machine == "arm64" else machine]


def supported_levels() -> list[str]:
    """Return the levels whose code this processor runs, the plainest first."""
    return LEVELS[: 1 + _processor_level()] if levels() == LEVELS else levels()


@cache
def _processor_level() -> int:
    """Return the number of the highest level that this processor runs, from `processor.cpp`, which is compiled first if it is missing."""
    path = library_path(PROCESSOR)
    if not path.exists():
        build([PROCESSOR])
    return int(ctypes.CDLL(str(path)).processor_level())


def sources() -> list[Path]:
    """Return the files that the core is made of."""
    return sorted(path for path in FOLDER.rglob("*") if path.suffix in (".h", ".cpp"))


@cache
def digest() -> str:
    """Return a digest of the sources and of the way they are compiled; a library of another digest is never loaded."""
    content = hashlib.sha256(" ".join(COMMON).encode())
    for path in sources():
        content.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16]


def library_path(level: str, name: str | None = None) -> Path:
    """Return the path of the library of a level."""
    sanitized = "-sanitized" if os.environ.get("MARGINLENS_SANITIZE") and level != PROCESSOR else ""
    suffix = {"win": ".dll", "macosx": ".dylib"}.get((name or native()).partition("_")[0], ".so")
    return LIBRARIES / f"core-{level}-{digest()}{sanitized}{suffix}"


def compiler() -> list[str]:
    """Return the command of a C++ compiler: the system's, or the package ziglang; None if there is none."""
    return system_compiler() or (ZIGLANG if importlib.util.find_spec("ziglang") else [])


def system_compiler() -> list[str]:
    """Return the compiler that CXX names, or one of the system.

    On Windows there is none: g++ does not align AVX registers on the stack there, and Microsoft's compiler has no vector
    extensions.
    """
    named = os.environ.get("CXX", "").split()
    if named:
        return named
    for name in () if sys.platform == "win32" else ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    return []


def compiler_packages(name: str | None = None) -> list[str]:
    """Return the packages to install before the core can be built, for another platform if one is named."""
    return [] if compiler() and not name else [ZIGLANG_PACKAGE]


def build(which: list[str] | None = None, name: str | None = None) -> list[Path]:
    """Compile levels for this platform, or by ziglang for the one that is named; by default all of them.

    Libraries of other sources are removed. A library appears complete or not at all.
    """
    command = ZIGLANG if name else compiler()
    if not command:
        raise BuildError(
            "marginlens needs a C++ compiler to build its core and found none: install g++ or clang++ with your system's packages, "
            "or ziglang with pip."
        )
    try:
        LIBRARIES.mkdir(exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as compilers:
            made = list(compilers.map(lambda level: _compiled(command, level, name), which or _libraries(name)))
        for old in LIBRARIES.glob("core-*"):
            if digest() not in old.name:
                # Windows does not let go of a library that another process has loaded.
                with suppress(FileNotFoundError, PermissionError):
                    old.unlink()
    except OSError as problem:
        raise BuildError(f"marginlens could not build its core in {LIBRARIES}: {problem}") from problem
    return made


def _libraries(name: str | None) -> list[str]:
    """Return the libraries of a wheel: every level, and the one that chooses among them if there are several."""
    found = levels(name)
    return [PROCESSOR, *found] if len(found) > 1 else found


def _compiled(command: list[str], level: str, name: str | None) -> Path:
    path = library_path(level, name)
    missing = not path.exists()
    with path.with_suffix(".lock").open("wb") as lock, tempfile.TemporaryDirectory(dir=LIBRARIES) as folder:
        _wait_for(lock)
        if missing and path.exists():  # another process compiled the same sources meanwhile
            return path
        made = Path(folder) / path.name
        files = [FOLDER / f"{PROCESSOR}.cpp"] if level == PROCESSOR else sources()
        given = [str(file) for file in files if file.suffix == ".cpp"]
        options = [*COMMON, *_options_of(level, command, name), *(SANITIZED if "sanitized" in path.name else [])]
        if path.suffix == ".dylib":  # without this name a library holds the path at which it was compiled
            options.append(f"-Wl,-install_name,@rpath/{path.name}")
        called = [*command, *options, *given, "-o", str(made)]
        done = subprocess.run(called, capture_output=True, text=True, errors="replace")
        if done.returncode:
            raise BuildError(f"marginlens could not compile its core with {' '.join(command)}:\n{done.stderr[-4000:]}")
        made.replace(path)
    return path


def _wait_for(lock: IO[bytes]) -> None:
    """Wait until no other process has locked this file, and lock it; the system unlocks it when it is closed, or the process ends."""
    if sys.platform == "win32":
        import msvcrt

        while True:
            with suppress(OSError):  # it gives up after ten seconds, sooner than a compiler
                return msvcrt.locking(lock.fileno(), msvcrt.LK_LOCK, 1)
    with suppress(ImportError):  # without it two processes may compile the same, and the last one's library stays
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)


def _options_of(level: str, command: list[str], name: str | None) -> list[str]:
    plain = LEVELS[0] if level == PROCESSOR else level
    if "ziglang" in command:
        target = PLATFORMS.get(name or native(), f"{platform.machine().lower()}-linux-gnu.2.17")
        model = [f"-mcpu={plain.replace('-', '_')}"] if plain in LEVELS else []
        return ["-target", target, *model, "-nostdlib++", "-fno-sanitize=all", "-s"]
    model = [f"-march={plain}"] if plain in LEVELS else []
    return [*model, "-mmacosx-version-min=11.0" if sys.platform == "darwin" else "-Wl,--as-needed"]


def platform_tag() -> str:
    """Return the platform tag of a wheel with these libraries: every Linux whose C library is as new as the newest function they call."""
    if not sys.platform.startswith("linux"):
        return native()
    needed = {
        (2, 17),
        *((int(a), int(b)) for path in LIBRARIES.glob("core-*.so") for a, b in _GLIBC.findall(path.read_bytes())),
    }
    return native().replace("2_17", "{}_{}".format(*max(needed)))


if __name__ == "__main__":
    asked = sys.argv[1] if sys.argv[1:] else None
    for made in build(supported_levels()[-1:]) if asked == "native" else build(name=asked):
        print(made)
