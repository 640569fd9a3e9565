"""How a command ends: its exit codes, and one sentence on stderr instead of a traceback."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from itertools import chain
from typing import Any, NamedTuple, get_type_hints

import typer

from marginlens.cli._commands import is_quiet, running, shortened, typed_name
from marginlens.cli._deferred import errors, rows, terminal
from marginlens.cli._options import AsJson, Quiet

EXIT_NOT_REPRODUCED = 1
EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


class Answer(NamedTuple):
    """What a command found: `numbers` for --json, `text` for the terminal block by block, and the files that it wrote."""

    numbers: Any
    text: Iterable[Any] = ()
    written: Sequence[Any] = ()


def command(
    after_interruption: str = "", *, has_json: bool = True, **names: Any
) -> Callable[[Callable[..., Answer | None]], Callable[..., None]]:
    """A command with the options --json and --quiet; its function returns what it found, and ends as `errors_as_sentences` says.

    A parameter whose type is a dataclass of options stands for all of them.
    """

    def with_options(function: Callable[..., Answer | None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        groups: dict[str, Any] = {
            name: given.annotation for name, given in signature.parameters.items() if is_dataclass(given.annotation)
        }

        @wraps(function)
        def run(*, as_json: bool = False, quiet: bool = False, **given: Any) -> None:
            with errors_as_sentences(after_interruption, **names):
                for name, group in groups.items():
                    given[name] = group(**{option.name: given.pop(option.name) for option in _options_of(group)})
                answer = function(**given)
                if as_json and answer is not None:
                    typer.echo(rows.as_json(answer.numbers))
                elif answer is not None:
                    written = [terminal.Line(f"Written to {path}") for path in answer.written if path is not None]
                    terminal.show(chain(answer.text, written))

        added = {"as_json": AsJson, "quiet": Quiet} if has_json else {"quiet": Quiet}
        parameters = [
            *(parameter for name, parameter in signature.parameters.items() if name not in groups),
            *(option for group in groups.values() for option in _options_of(group)),
            *(inspect.Parameter(name, _BY_NAME, default=False, annotation=kind) for name, kind in added.items()),
        ]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return with_options


def _options_of(group: Any) -> list[inspect.Parameter]:
    """The options among the fields of a dataclass, as parameters."""
    kinds = get_type_hints(group, include_extras=True)
    options = [field for field in fields(group) if hasattr(kinds[field.name], "__metadata__")]
    return [inspect.Parameter(f.name, _BY_NAME, default=f.default, annotation=kinds[f.name]) for f in options]


@contextmanager
def errors_as_sentences(
    after_interruption: str = "", *, others: str = "the {argument}", **names: str
) -> Iterator[None]:
    """End in one sentence on stderr, not in a traceback, when something is unusable or the run is interrupted; warnings are sentences too.

    Args:
        after_interruption: what an interrupted command leaves behind, unless the interruption itself carries a message.
        names: what the command calls arguments of the library, with its own parameters in braces, e.g. head="the head in {file}".
            A parameter of the same name needs none.
        others: what it calls all other arguments.
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
        sentence = _sentence(problem, names, others)
        if sentence is None:
            raise
        typer.echo(" ".join([f"marginlens: {shortened(sentence)}".rstrip(), *_notes(problem)]), err=True)
        raise typer.Exit(EXIT_UNUSABLE) from None


def _notes(problem: BaseException) -> list[str]:
    """What a training run says of its checkpoint when it fails."""
    return list(getattr(problem, "__notes__", ()))


def _sentence(problem: Exception, names: Mapping[str, str], others: str) -> str | None:
    """What to say of an error; None where it is a defect of the library."""
    if isinstance(problem, errors.InputError):
        context = running()
        return str(problem) if context is None else _refusal(problem, context, names, others)
    if isinstance(problem, MemoryError):
        return f"Not enough memory. {problem}"
    expected = (errors.CoreError, errors.EngineError, errors.MissingExtra, OSError)
    return str(problem) if isinstance(problem, expected) else None


def _refusal(problem: Any, context: Any, names: Mapping[str, str], others: str) -> str:
    """The sentence for an `InputError` of a command: what was typed for the argument, what was expected, what was got, what to do."""
    typed = {parameter.name: typed_name(parameter) for parameter in context.command.params}

    def named(argument: str) -> str:
        return names[argument].format_map(typed) if argument in names else typed.get(argument, "")

    if not problem.argument:
        return str(problem)
    name = named(problem.argument) or others.format_map({**typed, "argument": problem.argument})
    if problem.file:
        given = {str(one): typed[key] for key, value in context.params.items() for one in _several(value)}
        name = f"{problem.argument!r} in {given.get(problem.file, problem.file)}"
    name = f"The{name[3:]}" if name.startswith("the ") else name
    needs_no_got = problem.expected.startswith("left out") or problem.got in ("none", "both")
    got = "" if needs_no_got else f"; got {problem.got}"
    remedy = problem.remedy.naming(named) if isinstance(problem.remedy, errors.Remedy) else problem.remedy
    return f"{name} must be {problem.expected}{got}. {remedy}".rstrip()


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Let the library's warnings be sentences of the command, and nothing with --quiet."""

    def say(message: Any, *_: Any, **__: Any) -> None:
        if not is_quiet():
            typer.echo(f"marginlens: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("ignore", RuntimeWarning)  # of numpy, on an overflow that the result itself speaks of
        warnings.showwarning = say
        yield
