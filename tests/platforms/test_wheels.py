"""The wheels that `make wheels` put into dist/: tags, formats and exported symbols, and the same bits if this machine can run them.

Wheels of Windows are called under wine, those of aarch64 Linux under qemu with the C library of Debian's libc6-arm64-cross, and those of
this machine's platform as they are. MARGINLENS_EMULATORS=required fails if something that is needed is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import struct
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import marginlens as ml
from core.test_same_bits import DIGESTS, digests
from marginlens.core import build
from marginlens.core.signatures import core_functions
from platforms import core_server

ROOT = Path(__file__).resolve().parents[2]
MAX_MEGABYTES = 5
FORMATS = {"manylinux": b"\x7fELF", "macosx": b"\xcf\xfa\xed\xfe", "win": b"MZ"}
MACHINES = {"x86_64": "X86_64", "amd64": "AMD64", "aarch64": "AARCH64", "arm64": "ARM64"}
NEWEST_GLIBC = (2, 17)
OLDEST_MACOS = (11, 0)
# Names that the linker of ziglang adds to every library for macOS.
LINKER_NAMES = {"_mh_dylib_header", "__dso_handle"}
ADHOC, CODE_DIRECTORY = 2, 0xFADE0C02  # a flag and a magic number of Apple's signatures
CLIB_OF_ARM = Path("/usr/aarch64-linux-gnu/lib/libc.so.6")


def without(reason):
    """Skip a test because something is not installed, unless everything is required."""
    (pytest.fail if os.environ.get("MARGINLENS_EMULATORS") == "required" else pytest.skip)(reason)


def wheel_of(platform):
    """The wheel of a platform that was built from these sources."""
    for path in (ROOT / "dist").glob(f"marginlens-*-{platform}.whl"):
        with zipfile.ZipFile(path) as archive:
            if any(build.digest() in name for name in archive.namelist()):
                return path
    without("dist/ has no wheels of these sources; make wheels builds them")


@pytest.fixture
def libraries(request, tmp_path):
    """The paths of the libraries of a platform's wheel, unpacked."""
    with zipfile.ZipFile(wheel_of(request.param)) as archive:
        names = [name for name in archive.namelist() if "/core/built/" in name]
        archive.extractall(tmp_path, names)
    return request.param, {name.split("/core-")[1].rsplit("-", 1)[0]: tmp_path / name for name in names}


def each(*platforms):
    return pytest.mark.parametrize("libraries", platforms or list(build.PLATFORMS), indirect=True)


def parsed(path):
    try:
        import lief
    except ImportError:
        without("the package lief reads the libraries of every system")
    found = lief.parse(str(path))
    return found.at(0) if isinstance(found, lief.MachO.FatBinary) else found


def exported(binary):
    """The functions that a library exports, without the underscore of macOS."""
    if type(binary).__module__.endswith("PE"):
        return {entry.name for entry in binary.get_export().entries}
    if type(binary).__module__.endswith("MachO"):
        return {symbol.name.removeprefix("_") for symbol in binary.exported_symbols} - LINKER_NAMES
    return {symbol.name for symbol in binary.exported_symbols}


@pytest.mark.parametrize("platform", build.PLATFORMS)
def test_the_wheel_is_small_and_has_the_tag_of_its_platform(platform):
    path = wheel_of(platform)
    assert path.name == f"marginlens-{ml.__version__}-py3-none-{platform}.whl"
    assert path.stat().st_size < MAX_MEGABYTES * 1e6
    with zipfile.ZipFile(path) as archive:
        facts = Parser().parsestr(archive.read(f"marginlens-{ml.__version__}.dist-info/WHEEL").decode())
    assert facts.get_all("Tag") == [f"py3-none-{platform}"]


@each()
def test_libraries_have_the_format_of_their_platform_and_export_the_interface_alone(libraries):
    platform, paths = libraries
    found = build.levels(platform)
    assert set(paths) == {*found, *([build.PROCESSOR] if len(found) > 1 else [])}
    machine = MACHINES[re.search(r"(x86_64|amd64|aarch64|arm64)$", platform)[1]]
    for level, path in paths.items():
        assert path.read_bytes().startswith(FORMATS[re.match("[a-z]+", platform)[0]])
        binary = parsed(path)
        assert machine in str(
            getattr(binary.header, "machine", getattr(binary.header, "machine_type", ""))
        ).upper() or (platform.startswith("macosx") and machine in str(binary.header.cpu_type).upper())
        own = {"processor_level"}
        assert exported(binary) == (own if level == build.PROCESSOR else own | set(core_functions()))


@each("manylinux_2_17_x86_64", "manylinux_2_17_aarch64")
def test_libraries_for_linux_need_no_newer_c_library_than_their_tag_says(libraries):
    _, paths = libraries
    for path in paths.values():
        versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes())
        assert all((int(first), int(second)) <= NEWEST_GLIBC for first, second in versions)
        assert {name.split(".so")[0] for name in parsed(path).libraries} <= {"libc", "libm"}


@each("macosx_11_0_arm64", "macosx_11_0_x86_64")
def test_libraries_for_macos_are_signed_ad_hoc_and_run_on_the_oldest_system(libraries):
    platform, paths = libraries
    for path in paths.values():
        binary = parsed(path)
        assert tuple(binary.build_version.minos[:2]) == OLDEST_MACOS
        own = f"@rpath/{path.name}"
        assert {library.name for library in binary.libraries} - {own} <= {"/usr/lib/libSystem.B.dylib"}
        assert own.encode() in path.read_bytes()
        if platform.endswith("arm64"):  # without a signature its system loads nothing
            content = path.read_bytes()
            start = content.index(struct.pack(">I", CODE_DIRECTORY), binary.code_signature.data_offset)
            assert struct.unpack(">I", content[start + 12 : start + 16])[0] & ADHOC


@each("win_amd64", "win_arm64")
def test_libraries_for_windows_need_the_system_alone(libraries):
    _, paths = libraries
    for path in paths.values():
        binary = parsed(path)  # whose entries end with it
        needed = {entry.name.lower() for entry in binary.imports}
        assert {name for name in needed if not re.match(r"(api-ms-win-crt-|kernel32|ntdll|ucrtbase)", name)} == set()


QEMU = ["qemu-aarch64-static", "-cpu", "neoverse-n1", "-L", "/usr/aarch64-linux-gnu"]
EMULATORS = {
    "win_amd64": ["wine"],
    "manylinux_2_17_aarch64": QEMU,
    build.native(): [],
}  # a machine runs its own without one
LIBRARIES = [
    (platform, level) for platform in EMULATORS if platform in build.PLATFORMS for level in build.levels(platform)
]


@pytest.mark.parametrize(("libraries", "level"), LIBRARIES, indirect=["libraries"], ids=map("-".join, LIBRARIES))
def test_bits_are_the_same_as_on_every_other_platform(libraries, level, tmp_path, monkeypatch):
    platform, paths = libraries
    command = EMULATORS[platform]
    if importlib.util.find_spec("ziglang") is None:
        without("the package ziglang compiles the program that loads the library")
    if command and (not shutil.which(command[0]) or (command is QEMU and not CLIB_OF_ARM.exists())):
        without(f"{command[0]} runs what was built for another system")
    if command is not QEMU and level not in build.supported_levels():
        pytest.skip(f"this processor does not run {level}")
    monkeypatch.setenv("WINEDEBUG", "-all")
    monkeypatch.setenv("WINEPREFIX", os.environ.get("WINEPREFIX", str(tmp_path / "wine")))
    program = core_server.compiled(tmp_path, platform)
    library = paths[level].name if platform.startswith("win") else f"./{paths[level].name}"
    with core_server.called_by([*command, str(program), library], paths[level].parent) as server:
        found = digests()
    assert server.n_calls > 20
    assert found == json.loads(DIGESTS.read_text(encoding="utf-8"))
