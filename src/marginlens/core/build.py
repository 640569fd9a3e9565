"""Compile the core: one compiler call for each level of the processor, by the system's compiler or by ziglang.

Used where marginlens is installed from source, and at run time in a checkout whose sources have changed; `python -m marginlens.core.build`
builds every level, `python -m marginlens.core.build native` the one for this machine. This module imports nothing of marginlens, so that it
runs while marginlens is being installed.
"""

from __future__ import annotations

import fcntl
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
LEVELS: dict[
    str, set[str]
] = {  # what an x86-64 processor must have for the code of a level, beyond that of the one before
    "x86-64": set(),
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
}
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")


class BuildError(RuntimeError):
    """The core cannot be compiled here; the message says what to do."""


def levels() -> list[str]:
    """Every level that is built for this kind of processor, the plainest first."""
    machine = platform.machine().lower()
    if machine in ("x86_64", "amd64"):
        return list(LEVELS)
    return ["aarch64" if machine == "arm64" else machine]


def supported_levels() -> list[str]:
    """Levels whose code this processor runs, the plainest first."""
    flags, needed = _processor_flags(), set()
    found = []
    for level in levels():
        needed |= LEVELS.get(level, set())
        if needed <= flags:
            found.append(level)
    return found


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.partition(":")[2].split())


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
    """The command of a C++ compiler: what CXX names, one of the system's, or the package ziglang; none where there is none."""
    named = os.environ.get("CXX", "").split()
    if named:
        return named
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    return [sys.executable, "-m", "ziglang", "c++"] if importlib.util.find_spec("ziglang") else []


def compiler_packages() -> list[str]:
    """Packages to install before the core can be built."""
    return [] if compiler() else ["ziglang"]


def build(which: list[str] | None = None) -> list[Path]:
    """Compile the levels, all of them by default; libraries of other sources are removed. A library appears whole or not at all."""
    command = compiler()
    if not command:
        raise BuildError(
            "marginlens needs a C++ compiler to build its core and found none: install g++ or clang++ with your system's packages, "
            "or ziglang with pip."
        )
    try:
        LIBRARIES.mkdir(exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as compilers:
            made = list(compilers.map(lambda level: _compiled(command, level), which or levels()))
        for old in LIBRARIES.glob("core-*.so"):
            if digest() not in old.name:
                old.unlink(missing_ok=True)
    except OSError as problem:
        raise BuildError(f"marginlens could not build its core in {LIBRARIES}: {problem}") from problem
    return made


def _compiled(command: list[str], level: str) -> Path:
    path = library_path(level)
    missing = not path.exists()
    with path.with_suffix(".lock").open("w") as lock, tempfile.TemporaryDirectory(dir=LIBRARIES) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing and path.exists():  # another process compiled the same sources meanwhile
            return path
        made = Path(folder) / path.name
        files = [str(file) for file in sources() if file.suffix == ".cpp"]
        options = [*COMMON, *_options_of(level, command), *(SANITIZED if "sanitized" in path.name else [])]
        done = subprocess.run([*command, *options, *files, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise BuildError(f"marginlens could not compile its core with {' '.join(command)}:\n{done.stderr[-4000:]}")
        made.replace(path)
    return path


def _options_of(level: str, command: list[str]) -> list[str]:
    if "ziglang" in command:
        machine = "x86_64" if level in LEVELS else level
        model = level.replace("-", "_") if level in LEVELS else "generic"
        return ["-target", f"{machine}-linux-gnu.2.17", f"-mcpu={model}", "-nostdlib++", "-fno-sanitize=all"]
    return [*([f"-march={level}"] if level in LEVELS else []), "-Wl,--as-needed"]


def platform_tag() -> str:
    """The platform that a wheel with these libraries serves: every Linux whose C library is as new as the newest function they call."""
    plain = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not plain.startswith("linux_"):
        return plain
    needed = {
        (2, 17),
        *((int(a), int(b)) for path in LIBRARIES.glob("core-*.so") for a, b in _GLIBC.findall(path.read_bytes())),
    }
    return "manylinux_{}_{}".format(*max(needed)) + plain.removeprefix("linux")


if __name__ == "__main__":
    for made in build(supported_levels()[-1:] if sys.argv[1:] == ["native"] else None):
        print(made)
