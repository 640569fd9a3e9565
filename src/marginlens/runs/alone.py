"""One run for each checkpoint: a second one would write over what the first keeps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marginlens.errors import reject


@contextmanager
def alone_with(checkpoint: Path | None) -> Iterator[None]:
    """Refuse a checkpoint that another run, of any process on this machine, keeps up to date just now.

    A lock on a file beside the checkpoint says so. The system takes it away from a process that ends, however that ends, so a lock never
    outlives its run. Where files cannot be locked, as on Windows and some networks' disks, nothing is refused.
    """
    lock = None if checkpoint is None else _locked(checkpoint)
    if lock is None:
        yield
        return
    name, number = lock
    try:
        yield
    finally:
        with suppress(OSError):
            name.unlink()  # before the lock goes with the file that holds it
        os.close(number)


def _locked(checkpoint: Path) -> tuple[Path, int] | None:
    """The locked file and its number, or None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    final = checkpoint.resolve()
    name = final.with_name(f".{final.name}.lock")
    try:
        number = os.open(name, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:  # saving the checkpoint will tell what is wrong with the folder
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(number), os.stat(name)):
            return name, number
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # this disk knows no locks
        os.close(number)
        return None
    os.close(number)
    raise reject(
        "checkpoint",
        "one that no other run is writing",
        repr(str(checkpoint)),
        "Wait for that run, or name another file.",
    )
