"""Ctrl-C, or a request to end, in a training run: the step in hand is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_interrupts() -> Iterator[Callable[[], bool]]:
    """Hold the first Ctrl-C until a step is whole; a second one interrupts at once. SIGTERM, which time limits send, is treated alike.

    One that nobody asked for while it was held is raised at the end. A signal that is ignored stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    usual = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def note(number: int, frame: Any) -> None:
        if seen:
            seen.clear()
            raise KeyboardInterrupt
        seen.append(number)

    for number in usual:
        signal.signal(number, note)
    try:
        yield lambda: bool(seen)
    finally:
        for number, before in usual.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)
    if seen:
        raise KeyboardInterrupt
