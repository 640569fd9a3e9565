"""The two groups of tests, which together are all, and claims that every process of a session shares."""

import subprocess
import sys
from pathlib import Path

import pytest

import quick_claims

TESTS = Path(__file__).resolve().parents[1]


def test_slow_folders_exist_and_others_are_quick(request):
    (conftest,) = (one for one in request.config.pluginmanager.get_plugins() if hasattr(one, "SLOW_FOLDERS"))
    assert {path.name for path in TESTS.iterdir() if path.is_dir()} >= conftest.SLOW_FOLDERS
    assert request.node.get_closest_marker("slow") is None


CLAIM = """
import sys
sys.path[:0] = [{tests!r}]
import quick_claims
quick_claims._computed = lambda named: print("computed", flush=True) or ({{}}, [(1, 1)], [])
print(quick_claims.quick_run("A-K3").reported, flush=True)
"""


@pytest.mark.slow
def test_a_claim_is_computed_once_and_shared_by_processes(tmp_path, monkeypatch):
    monkeypatch.setenv(quick_claims.FOLDER, str(tmp_path))
    command = [sys.executable, "-c", CLAIM.format(tests=str(TESTS))]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(process.communicate()[0] for process in running)
    assert (said.count("computed"), said.count("[(1, 1)]")) == (1, 2)
