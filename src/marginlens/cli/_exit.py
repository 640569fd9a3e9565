"""How a command ends: its exit codes, and one sentence on stderr instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from marginlens.errors import EngineError, InputError, MissingExtra

EXIT_NOT_REPRODUCED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


@contextmanager
def errors_as_sentences(after_interruption: str = "") -> Iterator[None]:
    """End in one sentence on stderr, not in a traceback, when something is unusable or the run is interrupted.

    Args:
        after_interruption: what an interrupted command leaves behind, unless the interruption itself carries a message.
    """
    try:
        yield
    except BrokenPipeError:  # the reader of the output has left, as head does: there is nobody to tell
        raise
    except (EngineError, InputError, MissingExtra, OSError, MemoryError) as problem:
        what = "Not enough memory. " if isinstance(problem, MemoryError) else ""
        typer.echo(f"marginlens: {what}{problem}".rstrip(), err=True)
        raise typer.Exit(EXIT_UNUSABLE) from None
    except KeyboardInterrupt as interruption:
        typer.echo(f"marginlens: interrupted. {str(interruption) or after_interruption}".rstrip(), err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
