"""Compiled functions where no cache can be written, and the word on the first compilation."""

import os
import subprocess
import sys

import numba
import pytest

from marginlens.runtime import compilation


def test_without_a_folder_for_the_cache_functions_are_compiled_anyway(monkeypatch):
    usual = numba.njit

    def refusing(*given, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'double': no locator available")
        return usual(*given, **options)

    monkeypatch.setattr(numba, "njit", refusing)
    monkeypatch.setattr(compilation, "_told", {})

    def double(x):
        return 2 * x

    with pytest.warns(UserWarning, match="no folder to keep compiled functions in.*NUMBA_CACHE_DIR") as said:
        assert [compilation.njit(nogil=True)(double)(k) for k in (1, 2)] == [2, 4]
    assert len(said) == 1


def test_a_long_compilation_is_announced_once_on_stderr():
    program = (
        "import marginlens.runtime.compilation as c; c._SILENT_SECONDS = 0.0\n"
        "def f(x): return x + 1\ndef g(x): return x + 2\n"
        "f.__module__ = g.__module__ = 'marginlens.made_up'\n"
        "for one in (f, g):\n    compiled = c.njit(cache=False)(one)\n    compiled(1); compiled(1.0)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MARGINLENS_QUIET"}
    for quiet, expected in (("", 1), ("1", 0)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "MARGINLENS_QUIET": quiet},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.count("compiling once, about 20 s") == expected
        assert done.stdout == ""
