"""Locks on folders: taken by one process, and free again when it ends, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from marginlens.errors import InputError
from marginlens.runtime.locks import locked_folder

HOLDER = """
import sys
from pathlib import Path
from marginlens.runtime.locks import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(InputError, match=f"in use by process {holder.pid} on "), locked_folder(tmp_path):
            pass
        holder.kill()
    with locked_folder(tmp_path):
        pass
    with pytest.raises(InputError), locked_folder(tmp_path / "missing"):
        pass
    assert not (tmp_path / "missing").exists()
