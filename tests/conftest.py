"""What every test needs: one thread, figures that open no window, and random examples that neither time nor chance decides."""

import os
import signal
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

# Matrices and models of tests are so small that a second thread waits longer than it helps; NumPy and torch read this when imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

with suppress(ImportError):  # without the extra plot
    import matplotlib

    matplotlib.use("Agg")

with suppress(ImportError):  # without hypothesis
    from random_examples import register_profiles

    register_profiles()

os.environ.setdefault("MARGINLENS_QUIET", "1")  # no word on compiling in the output of commands
# as a shell starts what runs in the background: Ctrl-C is tested all the same
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# which make test leaves to make test-all
SLOW_FOLDERS = {"benchmarks", "browser", "gallery", "numerics", "packaging", "platforms", "site"}


def pytest_configure(config):
    """A folder for the outcomes of claims, which all processes of a session of pytest-xdist share, see `quick_claims`."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="marginlens-claims-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["MARGINLENS_QUICK_CLAIMS"] = folder.name


def in_slow_folder(path):
    return Path(os.path.relpath(path, Path(__file__).parent)).parts[0] in SLOW_FOLDERS


def pytest_ignore_collect(collection_path, config):
    """Slow folders are not even imported where their tests are left out."""
    return True if "not slow" in config.option.markexpr and in_slow_folder(collection_path) else None


def pytest_collection_modifyitems(items):
    """Every test of a slow folder carries the marker, and tests marked posix are skipped on Windows."""
    for item in items:
        if in_slow_folder(item.path):
            item.add_marker(pytest.mark.slow)
        if sys.platform == "win32" and (marker := item.get_closest_marker("posix")):
            item.add_marker(pytest.mark.skip(reason=f"Windows has no {marker.args[0]}"))


@pytest.fixture
def packs(tmp_path):
    """A function that installs a made-up package for the time of a test, see `made_up_packs`."""
    from made_up_packs import on_the_path

    with on_the_path(tmp_path) as install:
        yield install


def pytest_terminal_summary(terminalreporter):
    """Why tests were skipped, and how many for each reason: a letter among thousands of dots would not be seen.

    A module that is skipped as a whole counts as one.
    """
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(str(report.longrepr[2]).removeprefix("Skipped: ").rstrip(".") for report in skipped)
    if reasons:
        terminalreporter.write_line(f"{reasons.total()} skipped:")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"  {count} because: {reason}.")
