"""The console command, which answers Ctrl-C and SIGTERM from its first moment on, also while the library is being imported.

It stands beside the package: what stands inside is imported only after the package itself, with all of its numerical packages.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it, which from then on answers signals itself."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell has it ignored in the background
        signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    from marginlens.cli.app import main as run

    run()


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: nothing has begun, and an exception could be swallowed by whichever package is being imported."""
    os.write(2, b"marginlens: interrupted.\n")
    os._exit(EXIT_INTERRUPTED)
