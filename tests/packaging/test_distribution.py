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
CACHES = re.compile(r"^(build|dist|report|\.venv|\.git)/|(^|/)(__pycache__|\.\w+_cache)/|/core/built/|\.pyc$")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return build(tmp_path_factory.mktemp("distribution"))


@pytest.fixture(scope="module")
def wheel_names(made):
    with zipfile.ZipFile(made.wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def sdist_names(made):
    with tarfile.open(made.sdist) as archive:
        return {str(PurePosixPath(*PurePosixPath(member.name).parts[1:])) for member in archive if member.isfile()}


@pytest.fixture(scope="module")
def metadata(made):
    with zipfile.ZipFile(made.wheel) as archive:
        return Parser().parsestr(archive.read(f"marginlens-{ml.__version__}.dist-info/METADATA").decode())


def sources():
    """Every file of the packages in the checkout."""
    found = [path for package in PACKAGES for path in (ROOT / "src" / package).rglob("*") if path.is_file()]
    kept = [path.relative_to(ROOT / "src").as_posix() for path in found]
    return {name for name in kept if not re.search(r"__pycache__|/core/built/|\.pyc$", name)}


def test_the_wheel_has_every_file_of_the_packages(wheel_names):
    """Pages, styles, scripts, archived runs, kernels, typed markers and stubs among them."""
    assert sources() - wheel_names == set()
    assert {"marginlens/py.typed", "marginlens/__init__.pyi", "marginlens/pages/base.html"} <= wheel_names


def test_the_wheel_has_nothing_else(wheel_names):
    others = {name for name in wheel_names - sources() if ".dist-info/" not in name}
    libraries = {name for name in others if name.startswith("marginlens/core/built/core-")}
    assert others - libraries == {"marginlens_command.py"}
    assert {name.split("/core-")[1].rsplit("-", 1)[0] for name in libraries} == set(core_build.levels())


def test_the_wheel_serves_every_python_on_this_platform(made):
    assert re.search(r"-py3-none-manylinux_2_\d+_(x86_64|aarch64)\.whl$", made.wheel.name)


def test_the_sdist_has_what_it_takes_to_build_and_to_test(sdist_names):
    tracked = {f"src/{name}" for name in sources()} | {"src/marginlens_command.py"}
    for folder in ("tests", "docs", "examples", "benchmarks"):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        tracked |= {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    named = {
        "build_backend.py",
        "pyproject.toml",
        "MANIFEST.in",
        "Makefile",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
    }
    assert {name for name in tracked | named if not CACHES.search(name)} - sdist_names == set()


def test_the_sdist_has_no_caches_and_nothing_that_was_built(sdist_names):
    assert [name for name in sdist_names if CACHES.search(name)] == []


def test_the_metadata_say_what_it_is(metadata):
    assert (metadata["Name"], metadata["Version"]) == ("marginlens", ml.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# marginlens")
    assert len(metadata["Summary"]) < 100
    versions = [row for row in metadata.get_all("Classifier") if re.search(r":: 3\.\d+$", row)]
    assert versions == [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13, 14)]


def test_no_extra_is_among_what_everybody_installs(metadata):
    always = [row for row in metadata.get_all("Requires-Dist") if "extra ==" not in row]
    names = {re.split(r"[^\w.-]", row, maxsplit=1)[0] for row in always}
    assert not names & {
        "matplotlib",
        "scikit-learn",
        "torch",
        "transformers",
        "pyarrow",
        "pandas",
        "polars",
        "networkx",
        "sphinx",
        "cupy-cuda12x",
    }


def test_it_runs_where_it_was_installed_and_not_from_a_checkout(made, tmp_path):
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
