"""How a command ends: its exit codes, and one sentence on stderr instead of a traceback."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from marginlens.cli._commands import is_quiet, running
from marginlens.cli._deferred import errors
from marginlens.cli._voice import in_words

EXIT_NOT_REPRODUCED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130


@contextmanager
def errors_as_sentences(after_interruption: str = "") -> Iterator[None]:
    """End in one sentence on stderr, not in a traceback, when something is unusable or the run is interrupted; warnings are sentences too.

    Args:
        after_interruption: what an interrupted command leaves behind, unless the interruption itself carries a message.
    """
    try:
        with _warnings_as_sentences():
            yield
    except (BrokenPipeError, typer.Exit):  # the reader of the output has left, as head does: there is nobody to tell
        raise
    except KeyboardInterrupt as interruption:
        said = " ".join([str(interruption) or after_interruption, *_notes(interruption)])
        typer.echo(f"marginlens: interrupted. {said}".rstrip(), err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except Exception as problem:
        sentence = _sentence(problem)
        if sentence is None:
            raise
        typer.echo(" ".join([f"marginlens: {sentence}".rstrip(), *_notes(problem)]), err=True)
        raise typer.Exit(EXIT_UNUSABLE) from None


def _notes(problem: BaseException) -> list[str]:
    """What a training run says of its checkpoint when it fails."""
    return list(getattr(problem, "__notes__", ()))


def _sentence(problem: Exception) -> str | None:
    """What to say of an error; None where it is a defect of the library."""
    if isinstance(problem, errors.InputError):
        return in_words(problem, running())
    if isinstance(problem, MemoryError):
        return f"Not enough memory. {problem}"
    expected = (errors.EngineError, errors.MissingExtra, OSError)
    return str(problem) if isinstance(problem, expected) else None


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Let the library's warnings be sentences of the command, and nothing with --quiet."""

    def say(message: Any, *_: Any, **__: Any) -> None:
        if not is_quiet():
            typer.echo(f"marginlens: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = say
        yield
