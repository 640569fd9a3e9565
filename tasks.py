"""The tasks of a checkout, on Linux, macOS and Windows: `python tasks.py test`, or `make test` on systems with make.

This needs nothing but Python 3.11 or newer. What a task needs beside it is installed into `.venv` first, by the Python that runs this file.
Words after the name of a task go to its command: `python tasks.py reproduce --quick`, `python tasks.py test -k svm`.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
CORE_BUILD = ROOT / "src/marginlens/core/build.py"
OLDEST = (3, 11)
TORCH = "torch==2.13.0"
# Without --no-compile, pip spends more than a minute on the bytecode of modules that are never imported.
PIP = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
PYTEST = (PYTHON, "-m", "pytest", "-n", "auto", "--maxprocesses", "4", "--dist", "loadfile")
CHECKED = ("src", "benchmarks", "experiments", "tests", "examples")
CORE_TESTS = (
    "tests/core",
    "tests/contract/test_svm_solvers.py",
    "tests/contract/test_norm_solvers.py",
    "tests/dynamics",
)
PAGE_CHECKS = {"axe-core@4": "axe-core", "html-validate@10": "html-validate"}  # packages of npm, and their folders
MADE = (".venv", "report", "build", "dist", "docs/api", "docs/gallery", "src/marginlens/core/built")
CACHES = (".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis")

_running: set[subprocess.Popen[bytes]] = set()


class Failed(Exception):
    """The exit status of a command that failed."""


def run(*command: str | Path, **environment: str) -> None:
    """Run a command in the checkout, and wait until it has ended, also after Ctrl-C."""
    # Tests and claims start many processes, and each would compile every module again if bytecode were not kept.
    settings = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | environment
    process = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=settings)
    _running.add(process)
    status = process.wait()
    _running.discard(process)
    if status:
        raise Failed(status)


def end_commands() -> None:
    """End what is running."""
    for process in list(_running):
        process.terminate()


def together(*tasks: Callable[[], None]) -> None:
    """Run tasks at the same time, as many as there are processors, to their ends; then fail if one of them has."""
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        ends = [threads.submit(task) for task in tasks]
    for end in ends:
        end.result()


def core_build() -> dict[str, Any]:
    """What `build.py` of the core defines, without importing marginlens."""
    return runpy.run_path(str(CORE_BUILD))


def ready(extra: str = "dev") -> None:
    """Prepare .venv, unless it is newer than pyproject.toml."""
    mark, settings = VENV / f".ready-{extra}", ROOT / "pyproject.toml"
    if mark.exists() and mark.stat().st_mtime >= settings.stat().st_mtime:
        return
    print(f"Preparing {VENV.name} with {sys.executable}; the first time this takes a few minutes.", flush=True)
    is_new_enough = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", is_new_enough]).returncode:
        run(sys.executable, "-m", "venv", "--clear", VENV)
    if not core_build()["system_compiler"]():
        run(*PIP, core_build()["ZIGLANG_PACKAGE"])
    core = subprocess.Popen([PYTHON, CORE_BUILD, "native"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run(*PIP, TORCH, "--editable", f".[{extra}]")
    core.wait()
    mark.touch()


def ready_with_ziglang() -> None:
    """Prepare .venv, with the compiler for other platforms and for browsers."""
    ready()
    if subprocess.run([PYTHON, "-c", "import ziglang"], stderr=subprocess.DEVNULL).returncode:
        run(*PIP, core_build()["ZIGLANG_PACKAGE"])


def quietly(*command: str | Path) -> None:
    """Run a command, and print what it says only if it fails."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace")
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-3000:], sep="\n", file=sys.stderr)
        raise Failed(done.returncode)


# ---- tasks


def setup() -> None:
    """Prepare .venv."""
    ready()


def reproduce(*words: str) -> None:
    """Run the papers' claims and write report/index.html   (--quick, --only A-F9)."""
    ready("dev" if (VENV / ".ready-dev").exists() else "report")
    run(PYTHON, "-m", "marginlens", "reproduce", *words)


def test(*words: str) -> None:
    """Lint, types, contracts, theory, units and the claims at quick effort   (-k svm, -n 0 --pdb)."""
    ready()
    together(lint, lambda: quick_tests(*words))


def quick_tests(*words: str) -> None:
    """The tests of `test`, without lint and types."""
    ready()
    run(*PYTEST, "-m", "not slow and not gpu", *words)


def test_all(*words: str) -> None:
    """The tests that `test` leaves out: pages in a browser, the gallery, the site, packaging, benchmarks, long processes, and numerics.

    Pages are opened in Chromium if it and its driver are found, and checked by axe-core and html-validate if there is npm;
    MARGINLENS_BROWSER=required fails if they are not.
    """
    ready()
    installed = ROOT / "build/browser/node_modules"
    if not all((installed / name).exists() for name in PAGE_CHECKS.values()) and (npm := shutil.which("npm")):
        try:
            run(npm, "install", "--silent", "--no-save", "--prefix", "build/browser", *PAGE_CHECKS)
        except Failed:
            print("npm could not install axe-core and html-validate, so accessibility and HTML are not checked.")
    run(*PYTEST, "-m", "slow and not gpu", *words)
    numerics()


def test_random(*words: str) -> None:
    """Property tests with a thousand new random examples each; a failure prints how to repeat it   (tests/norms)."""
    ready()
    run(*PYTEST, "-m", "hypothesis and not gpu", "--hypothesis-profile=random", *words)


def test_without_posix(*words: str) -> None:
    """The quick tests without fcntl, os.fork and /proc, as on Windows   (tests/cli)."""
    ready()
    run(*PYTEST, "-m", "not slow and not gpu", *words, PYTHONPATH=str(ROOT / "tests/without_posix"))


def test_core() -> None:
    """The compiled core under the sanitizers of addresses and undefined behaviour."""
    ready()
    compiler = os.environ.get("CXX", "c++").split()
    # Packages such as matplotlib throw C++ exceptions, which the sanitizer catches only if the C++ library is loaded with it.
    libraries = [
        subprocess.run(
            [*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {"MARGINLENS_SANITIZE": "1", "MARGINLENS_FUZZED_CALLS": "3000", "ASAN_OPTIONS": "detect_leaks=0"}
    run(PYTHON, "-m", "pytest", "-q", "-n", "0", *CORE_TESTS, LD_PRELOAD=" ".join(libraries), **environment)


def test_gpu() -> None:
    """Tests that need a CUDA device, which the other tasks leave out; with the packages of the Python that runs this."""
    run(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu", PYTHONPATH="src")


def test_wheel(*words: str) -> None:
    """Build sdist and wheel, install the wheel in fresh environments and test it there   (--extras, --python python3.12)."""
    ready()
    run(PYTHON, "tests/packaging/run.py", *words)


def lab_core() -> None:
    """Compile the part of the core that the lab's page computes with into src/marginlens/lab/core.wasm."""
    ready_with_ziglang()
    run(PYTHON, "-m", "marginlens.core.wasm")


def wheels(*names: str) -> None:
    """Build the sdist, and wheels for every platform, into dist/   (native for this platform's alone, or names of core/build.py)."""
    ready_with_ziglang()
    core = core_build()
    chosen = [core["native"]() if name == "native" else name for name in names] or list(core["PLATFORMS"])
    place = ROOT / "dist"
    shutil.rmtree(place, ignore_errors=True)
    build = (PYTHON, "-m", "build", "--no-isolation", "--outdir", place)
    with tempfile.TemporaryDirectory() as folder:

        def wheel(name: str) -> None:
            with tarfile.open(sdist) as archive:
                archive.extractall(Path(folder, name), filter="data")
            (source,) = Path(folder, name).iterdir()
            quietly(*build, "--wheel", "-C", f"platform={name}", source)

        quietly(*build, "--sdist", ROOT)
        (sdist,) = place.glob("*.tar.gz")
        together(*[partial(wheel, name) for name in chosen])
    for path in sorted(place.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {path.relative_to(ROOT)}")


def numerics() -> None:
    """Tests whose numbers can move, under several kinds of arithmetic."""
    ready()
    run(PYTHON, "tests/numerics/run.py")


def lint() -> None:
    """Ruff, mypy and the import contracts."""
    ready()
    run(PYTHON, "-m", "ruff", "check", *CHECKED, "docs", "tasks.py", "build_backend.py")
    run(PYTHON, "-m", "ruff", "format", "--quiet", "--check", *CHECKED, "docs/conf.py", "docs/extensions", "tasks.py")
    run(PYTHON, "-m", "mypy")
    run(PYTHON.with_name("lint-imports"), "--no-cache", "--no-logo")


def docs() -> None:
    """Write the tables of statements and the page of texts from the code."""
    ready()
    run(PYTHON, "-m", "marginlens_papers.documentation")


def pictures() -> None:
    """Draw the pictures of README and docs."""
    ready()
    run(PYTHON, "-m", "marginlens_papers.documentation", "pictures")


def site(*words: str) -> None:
    """Build the site of the documentation into build/site, with the report if there is one   (-D plot_gallery=0 runs no examples)."""
    ready()
    run(PYTHON, "-m", "sphinx", "-W", "--keep-going", "-j", "2", "-d", "build/doctrees", *words, "docs", "build/site")
    print("Open build/site/index.html")


def site_links() -> None:
    """Ask the network whether links of the site to other sites still work."""
    ready()
    options = ("-b", "linkcheck", "-d", "build/doctrees", "-D", "plot_gallery=0")
    run(PYTHON, "-m", "sphinx", *options, "docs", "build/site-links")


def clean() -> None:
    """Remove .venv and everything that was made."""
    for name in (*MADE, *CACHES):
        shutil.rmtree(ROOT / name, ignore_errors=True)
    (ROOT / "docs/sg_execution_times.rst").unlink(missing_ok=True)
    for folder in CHECKED:
        for path in (ROOT / folder).rglob("__pycache__"):
            shutil.rmtree(path, ignore_errors=True)
    for path in (ROOT / "src").glob("*.egg-info"):
        shutil.rmtree(path)


TASKS: tuple[Callable[..., None], ...] = (
    *(reproduce, test, test_all, test_random, test_without_posix, test_core, test_gpu, test_wheel, wheels, lab_core),
    *(numerics, lint, quick_tests, docs, pictures, site, site_links, setup, clean),
)


def main(name: str = "help", *words: str) -> None:
    """Run the task of this name."""
    tasks = {task.__name__.replace("_", "-"): task for task in TASKS}
    if name not in tasks:
        print((__doc__ or "").strip(), end="\n\n")
        for known, task in tasks.items():
            print(f"  {known:18} {(task.__doc__ or '').splitlines()[0].rstrip('.')}")
        sys.exit(name != "help")
    if sys.version_info < OLDEST:
        sys.exit(f"marginlens needs Python {'.'.join(map(str, OLDEST))} or newer; this is {sys.version.split()[0]}.")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda number, frame: None)  # the commands get it too, and end in their own way
    signal.signal(signal.SIGTERM, lambda number, frame: end_commands())
    try:
        tasks[name](*words)
    except Failed as failure:
        sys.exit(1 if failure.args[0] < 0 else failure.args[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
