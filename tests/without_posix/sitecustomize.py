"""Python as on a system that is not POSIX, for every process whose PYTHONPATH has this folder: without fcntl, os.fork and /proc."""

import asyncio  # noqa: F401 - which needs fcntl on this system, as locket does, and is loaded before fcntl goes
import multiprocessing
import os
import sys
from contextlib import suppress

with suppress(ImportError):  # which takes other locks on Windows, and warns if there are none
    import filelock  # noqa: F401
with suppress(ImportError):  # of the extra cluster
    import locket  # noqa: F401

# Processes are started as on Windows.
multiprocessing.set_start_method("spawn")
sys.modules["fcntl"] = None  # so that importing it fails
for name in ("fork", "forkpty"):
    if hasattr(os, name):
        delattr(os, name)


def _refuse(event, arguments):
    if event not in ("open", "os.listdir", "os.scandir") or not str(arguments[0]).startswith("/proc"):
        return
    caller = sys._getframe(1).f_globals.get("__name__", "")
    # These do the same on every system, each in its own way.
    if not caller.startswith(("psutil", "shellingham", "threadpoolctl")):
        raise FileNotFoundError(2, "there is no /proc", str(arguments[0]))


sys.addaudithook(_refuse)
