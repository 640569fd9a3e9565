"""What is published: the wheel has the packages with their data, the sdist what it takes to build and to test, and neither has more."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

import marginlens as ml
from marginlens.core import build as core_build
from packaging_tools import ROOT, build
from tolerances import HANGING

PACKAGES = ("marginlens", "marginlens_papers")
CACHES = re.compile(
    r"^(build|dist|report|docs/api|docs/gallery|\.venv|\.git)/|(^|/)(__pycache__|\.\w+_cache)/|/core/built/|\.pyc$|^docs/sg_"
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.mktemp("distribution"))


def sources():
    """Every file of the packages in the checkout."""
    found = [path for package in PACKAGES for path in (ROOT / "src" / package).rglob("*") if path.is_file()]
    kept = [path.relative_to(ROOT / "src").as_posix() for path in found]
    return {name for name in kept if not re.search(r"__pycache__|/core/built/|\.pyc$", name)}


def test_the_wheel_has_every_file_of_the_packages_and_nothing_else(made):
    """Pages, styles, scripts, archived runs, kernels, typed markers and stubs among them."""
    with zipfile.ZipFile(made.wheel) as archive:
        names = set(archive.namelist())
    assert sources() - names == set()
    assert {"marginlens/py.typed", "marginlens/__init__.pyi", "marginlens/pages/base.html"} <= names
    others = {name for name in names - sources() if ".dist-info/" not in name}
    libraries = {name for name in others if name.startswith("marginlens/core/built/core-")}
    assert others - libraries == {"marginlens_command.py"}
    named = {name.split("/core-")[1].rsplit("-", 1)[0] for name in libraries}
    assert named - {core_build.PROCESSOR} == set(core_build.levels())
    assert re.search(r"-py3-none-(manylinux_2_\d+|macosx_11_0|win)_(x86_64|aarch64|arm64|amd64)\.whl$", made.wheel.name)


def test_the_sdist_can_be_built_and_tested_and_has_no_caches(made):
    with tarfile.open(made.sdist) as archive:
        members = [PurePosixPath(member.name) for member in archive if member.isfile()]
    names = {str(PurePosixPath(*member.parts[1:])) for member in members}
    tracked = {f"src/{name}" for name in sources()} | {"src/marginlens_command.py"}
    for folder in ("tests", "docs", "examples", "benchmarks", "experiments"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        tracked |= {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    tracked |= {"build_backend.py", "pyproject.toml", "MANIFEST.in", "Makefile", "tasks.py", "LICENSE", "README.md"}
    tracked |= {"CHANGELOG.md", "CITATION.cff"}
    assert {name for name in tracked if not CACHES.search(name)} - names == set()
    assert [name for name in names if CACHES.search(name)] == []


def test_the_metadata_are_complete_and_require_no_extra(made):
    with zipfile.ZipFile(made.wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"marginlens-{ml.__version__}.dist-info/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == ("marginlens", ml.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# marginlens")
    assert len(metadata["Summary"]) < 100
    versions = [row for row in metadata.get_all("Classifier") if re.search(r":: 3\.\d+$", row)]
    assert versions == [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)]
    always = {re.split(r"[^\w.-]", row)[0] for row in metadata.get_all("Requires-Dist") if "extra ==" not in row}
    assert not always & {"matplotlib", "scikit-learn", "torch", "transformers", "pyarrow", "pandas", "cupy-cuda12x"}
    assert "numpy" in always


def test_the_installed_package_runs_outside_the_checkout(made, tmp_path):
    place = tmp_path / "site"
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", str(place), str(made.wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=HANGING)
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); import marginlens; print(marginlens.__file__); "
    code += "import marginlens_command; marginlens_command.main()"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(place), "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=HANGING,
    )
    file, version = done.stdout.splitlines()
    assert Path(file).is_relative_to(place)
    assert version == f"marginlens {ml.__version__}"
