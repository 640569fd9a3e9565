"""Ctrl-C: deferred to the end of a block, or withheld from the processes that start in it."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Defer the first SIGINT or SIGTERM to the end of the block; a second one acts as usual.

    Yields:
        A function that returns whether a signal has come. After the block, KeyboardInterrupt is raised. An ignored signal stays
        ignored.
    """
    usual: dict[int, Any] = {}
    received: list[int] = []

    def restore() -> None:
        while usual:
            signal.signal(*usual.popitem())

    def receive(number: int, frame: object) -> None:
        received.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                usual[number] = signal.signal(number, receive)
    try:
        yield lambda: bool(received)
    finally:
        restore()
    if received:
        raise KeyboardInterrupt


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Deliver Ctrl-C at the end of the block, and never to a process that starts in it.

    A new process inherits the list of blocked signals. A terminal sends Ctrl-C to every process of its group, and a process
    that is still importing would print a traceback. Windows has no such list; there Ctrl-C is ignored in the block, which a new
    process inherits too.
    """
    if sys.platform == "win32":
        ctypes.windll.kernel32.SetConsoleCtrlHandler(None, True)
        try:
            yield
        finally:
            ctypes.windll.kernel32.SetConsoleCtrlHandler(None, False)
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
