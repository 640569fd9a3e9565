"""The shared library: the same bits in every process, and one sentence where it cannot be built or loaded."""

import json
import os
import subprocess
import sys

import pytest

from marginlens.core import build, library
from marginlens.errors import CoreError
from refusals import raised
from tolerances import HANGING

ENDS = """
import hashlib, json
import numpy as np
import marginlens as ml
found = {}
for shape in ((3, 4, 5), (6, 5, 40), (9, 7, 3), (1, 2, 1)):
    data, v = ml.data.sphere_tokens(20, *shape, np.random.default_rng(3))
    for optimizer in (ml.NormalizedGD(0.5), ml.GradientDescent(0.3)):
        run = ml.descend(data, v, optimizer=optimizer, n_steps=200)
        found[f"{shape} {optimizer}"] = hashlib.sha256(np.ascontiguousarray(run.final).tobytes()).hexdigest()
print(json.dumps(found))
"""


def run_python(code, **environment):
    """What a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=HANGING,
        check=False,
    )


def test_threads_give_the_same_bits():
    one = run_python(ENDS, MARGINLENS_THREADS="1")
    assert json.loads(one.stdout) == json.loads(run_python(ENDS, MARGINLENS_THREADS="3").stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no os.fork")
def test_forked_processes_give_the_same_bits():
    one = run_python(ENDS, MARGINLENS_THREADS="1")
    begin = "import os, marginlens as ml\nml.descend(*ml.data.figure_8(), n_steps=3)\n"
    forked = f"{begin}if os.fork() == 0:\n    exec({ENDS!r})\nelse:\n    os.wait()"
    assert json.loads(one.stdout) == json.loads(run_python(forked).stdout)


def test_an_unsupported_processor_level_is_refused(monkeypatch):
    monkeypatch.setenv("MARGINLENS_CORE_LEVEL", "x86-64-v9")
    with raised(CoreError, "MARGINLENS_CORE_LEVEL"):
        library.chosen_level()


def test_a_library_for_another_system_is_refused(tmp_path):
    code = f"""
import sys
from pathlib import Path
from marginlens.core import build
wrong = Path({str(tmp_path)!r}) / "core.so"
wrong.write_bytes(b"not a library")
build.library_path = lambda level: wrong
import marginlens as ml
ml.descend(*ml.data.figure_8(), n_steps=3)
"""
    done = run_python(code)
    assert done.stderr.splitlines()[-1].startswith("marginlens.errors.CoreError: ")


def test_a_missing_compiler_is_reported(monkeypatch):
    monkeypatch.setattr(build, "compiler", list)
    monkeypatch.setattr(build, "library_path", lambda level: build.FOLDER / "nowhere.so")
    library.loaded.cache_clear()
    with raised(CoreError, "g++", "clang++"):
        library.loaded()
