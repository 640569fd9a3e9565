"""Compile the functions that the lab's page calls to WebAssembly: `python -m marginlens.core.wasm`, with ziglang from the package index.

The file ends in a custom section with the digest of its sources and the declarations of its functions.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from marginlens.core import build
from marginlens.core.signatures import core_functions

FILE = build.FOLDER.parent / "lab" / "core.wasm"
SECTION = b"marginlens"
FUNCTIONS = {  # that the page calls, by the file of abi/ that has them
    "attention": ["descend_attention"],
    "margins": ["solve_margins"],
    "norms": ["descend_matrices"],
    "lab": ["measure_attention", "descend_in_plane", "find_sector", "descend_one_hot"],
    "flows": ["follow_attention"],
    "theory": [
        "compare_scores",
        "find_neighbours",
        "find_tubes",
        "bound_vertex_steps",
        "find_least_fall",
        "find_steepest_rate",
        "find_ball",
    ],
    "next_tokens": ["descend_jointly"],
    "components": ["minimise_likelihoods", "rank_components", "balance_components"],
}
OPTIONS = [
    *(option for option in build.COMMON if option not in ("-O3", "-fPIC", "-shared")),
    "-Os",  # three quarters of the size, and as fast
    *("-target", "wasm32-freestanding", "-mcpu=generic+simd128+bulk_memory", "-nostdlib", "-fno-sanitize=all", "-s"),
    *("-Wl,--no-entry", "-Wl,--export=allocate", "-Wl,--export=release"),
    *(f"-Wl,--export={name}" for names in FUNCTIONS.values() for name in names),
]
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def sources() -> list[Path]:
    """Return the files that are compiled, and those that they include."""
    found: set[Path] = set()
    waiting = [build.FOLDER / "wasm.cpp", *(build.FOLDER / "abi" / f"{name}.cpp" for name in FUNCTIONS)]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += [(path.parent / name).resolve() for name in _INCLUDED.findall(path.read_text(encoding="utf-8"))]
    return sorted(found)


def digest() -> str:
    """Return a digest of the sources and of the way they are compiled."""
    content = hashlib.sha256(" ".join(OPTIONS).encode())
    for path in sources():
        content.update(path.relative_to(build.FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return content.hexdigest()[:16]


def declarations() -> dict[str, list[dict[str, Any]]]:
    """Return the parameters of every function, each with its name and type, and of arrays their shape and whether they are written."""
    known = core_functions()
    return {
        name: [
            {"name": given.name, "type": given.dtype.name}
            | ({"shape": given.shape, "written": given.is_written} if given.is_array else {})
            | (
                {"type": "float64", "shape": [str(len(given.dtype))], "fields": given.dtype.names}
                if given.dtype.names
                else {}
            )
            for given in known[name].parameters
        ]
        for names in FUNCTIONS.values()
        for name in names
    }


def section() -> bytes:
    """Return the section that the file ends in."""
    text = json.dumps({"digest": digest(), "functions": declarations()}, separators=(",", ":")).encode()
    content = _length(SECTION) + SECTION + text
    return b"\0" + _length(content) + content


def _length(content: bytes) -> bytes:
    size, coded = len(content), b""
    while size > 127:
        coded, size = coded + bytes([size & 127 | 128]), size >> 7
    return coded + bytes([size])


def compile_core() -> Path:
    """Compile the file anew."""
    if importlib.util.find_spec("ziglang") is None:
        raise build.BuildError(
            "The lab's core is compiled with the package ziglang: install it with pip, or run make lab-core."
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "core.wasm"
        files = [str(path) for path in sources() if path.suffix == ".cpp"]
        command = [sys.executable, "-m", "ziglang", "c++", *OPTIONS, *files, "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise build.BuildError(f"The lab's core could not be compiled:\n{done.stderr[-4000:]}")
        FILE.write_bytes(made.read_bytes() + section())
    return FILE


if __name__ == "__main__":
    print(compile_core())
