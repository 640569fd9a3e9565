"""Locks on folders: one process at a time writes to a folder, and a lock never outlives its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marginlens.errors import InputError, reject
from marginlens.runtime.files import unusable

LOCK = "lock"  # the file of a folder that is locked
_PATIENCE_SECONDS = 0.3  # for which a lock is tried again: `is_locked` takes it for an instant
_RETRY_SECONDS = 0.02
_TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


@contextmanager
def locked_folder(folder: Path, *, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
    """Hold the lock of a folder, which the system takes back whenever the process ends, however it ends.

    Where another process holds it, one sentence says which.
    """
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise reject("out", "a folder that can be written", unusable(folder, problem)) from problem
    try:
        _take(handle, folder, time.monotonic() + patience)
        with suppress(OSError):  # it only says who
            os.ftruncate(handle, 0)
            os.lseek(handle, 0, os.SEEK_SET)
            os.write(handle, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder; not where this process may not write to it, which then cannot tell."""
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno in _TAKEN
    finally:
        os.close(handle)
    return False


def _take(handle: int, folder: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as problem:
            if problem.errno not in _TAKEN:
                raise reject("out", "a folder that can be locked", unusable(folder, problem)) from problem
            if time.monotonic() >= until:
                raise InputError(
                    f"The folder {str(folder)!r} is in use by {_holder(handle)}; wait for it, or end it and run this again."
                ) from problem
            time.sleep(_RETRY_SECONDS)


def _holder(handle: int) -> str:
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        note = json.loads(os.read(handle, 1000))
        return f"process {int(note['pid'])} on {note['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
