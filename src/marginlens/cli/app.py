"""The command line: its commands, and the conversion of errors into sentences."""

from __future__ import annotations

import io
import re
import signal
import sys
import threading
import warnings
from _thread import interrupt_main
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from marginlens import __version__, words
from marginlens.cli.graph import graph
from marginlens.cli.lab import lab
from marginlens.cli.options import TYPED_AS
from marginlens.cli.predict import predict
from marginlens.cli.probe import probe
from marginlens.cli.samples import samples
from marginlens.cli.statement import statement
from marginlens.cli.train import train
from marginlens.errors import CoreError, EngineError, InputError, MissingExtra
from marginlens.names import nearest
from marginlens.removed import removed_commands

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

EXIT_UNUSABLE = 2
EXIT_INTERRUPTED = 130
# The group of commands that are about the papers, in the help.
RESEARCH = "Research"
# A word, such as a path, that is too long to be repeated.
LONG_WORD = re.compile(r"\S{200,}")
# An argument of Python in what to do about an error.
ARGUMENT = re.compile(r"`(\w+)(?:=[^`]*)?`")
# By then a finalizer that was interrupted has ended.
FINALIZER_SECONDS = 0.01


# ---- errors


class CommandLine(TyperGroup):
    """The group of all commands. A user's error ends a command with one sentence on stderr."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of this name; refuse a removed one with what to use instead, and an unknown one with the nearest."""
        if instead := removed_commands().get(cmd_name):
            raise InputError(f"The command {cmd_name} was removed: {instead}.")
        command = super().get_command(ctx, cmd_name)
        # A word that begins with a dash is an option, which typer refuses itself.
        if command is None and not ctx.resilient_parsing and not cmd_name.startswith("-"):
            hint = " ".join([nearest(cmd_name, self.commands), "See marginlens --help."]).lstrip()
            raise InputError(f"There is no command {cmd_name!r}. {hint}")
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, those about the papers in a group of their own."""
        width = formatter.width - max(map(len, self.commands)) - 6
        for title in ("Commands", RESEARCH):
            group = [item for item in self.commands.items() if (item[1].rich_help_panel or "Commands") == title]  # type: ignore[attr-defined]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(width)) for name, command in group])

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options. Flags that are absent are False, not None, which typer would import pydantic to check."""
        options = super().get_params(ctx)
        for option in options:
            option.default = False if option.default is None else option.default
        return options

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with errors_as_sentences(self, ctx):
            return super().invoke(ctx)

    def main(self, args: Any = None, *, standalone_mode: bool = True, **options: Any) -> Any:  # type: ignore[override]
        """Run the typed command."""
        try:
            with errors_as_sentences():
                code = super().main(args, standalone_mode=False, **options)
        except typer.Exit as ending:
            code = ending.exit_code
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


@contextmanager
def errors_as_sentences(group: TyperGroup | None = None, context: Any = None) -> Iterator[None]:
    """End with one sentence on stderr if an argument is unusable or the run is interrupted; other exceptions are defects and propagate.

    Args:
        group: the commands.

        context: the context of the group, once the command is known.
    """
    try:
        with _warnings_as_sentences():
            yield
    # A pipe breaks if its reader leaves, as head does, and then no message would reach anyone.
    except (BrokenPipeError, typer.Exit):
        raise
    except KeyboardInterrupt as interruption:
        _end(f"interrupted. {interruption}", EXIT_INTERRUPTED)
    except Exception as problem:
        command = None if group is None else group.commands.get(context.invoked_subcommand or "")
        sentence = _sentence(problem, {} if command is None else _typed_names(command))
        if sentence is None:
            raise
        _end(LONG_WORD.sub(lambda word: f"{word[0][:60]}…{word[0][-20:]}", sentence), EXIT_UNUSABLE)


def _end(sentence: str, code: int) -> NoReturn:
    typer.echo(f"marginlens: {sentence}".rstrip(), err=True)
    raise typer.Exit(code) from None


def _sentence(problem: Exception, typed: dict[str, str]) -> str | None:
    """Return the sentence for an error; None for a defect of the library."""
    if isinstance(problem, InputError):
        return _refusal(problem, typed)
    # Errors of typer have this method; their class differs in versions of typer that are based on click.
    if hasattr(problem, "format_message"):
        context = getattr(problem, "ctx", None)
        path = "marginlens" if context is None else context.command_path
        text = " ".join(problem.format_message().split())
        if options := getattr(problem, "possibilities", None):
            text = f"{problem.message}. {nearest(problem.option_name, options)}"  # type: ignore[attr-defined]
        return f"{text}{'' if text.endswith(('.', '?')) else '.'} See {path} --help."
    if isinstance(problem, MemoryError):
        return words.text("cli.out_of_memory", problem=str(problem))
    return str(problem) if isinstance(problem, CoreError | EngineError | MissingExtra | OSError) else None


def _refusal(problem: InputError, typed: dict[str, str]) -> str:
    """Return the sentence for an argument, or an entry of a file, named as it is typed."""
    if not problem.argument:
        return str(problem)
    name = typed.get(problem.argument, f"The {problem.argument}")
    if problem.file:
        name = f"{problem.argument!r} in {problem.file}"
    needs_no_got = problem.expected.startswith("left out") or problem.got in ("none", "both")
    got = "" if needs_no_got else f"; got {problem.got}"
    remedy = ARGUMENT.sub(lambda argument: typed.get(argument[1]) or argument[0], problem.remedy)
    return f"{name} must be {problem.expected}{got}. {remedy}".rstrip()


def _typed_names(command: Any) -> dict[str, str]:
    """Return how arguments of the library and of a command are typed: as an option, or as the help calls an argument."""
    typed = {parameter.name: _typed_name(parameter) for parameter in command.params}
    renamed = TYPED_AS.get(command.name, {})
    return {**{name: typed[parameter] for name, parameter in renamed.items() if parameter in typed}, **typed}


def _typed_name(parameter: Any) -> str:
    """Return the longest form of an option, or the name of an argument in the help."""
    options = [name for name in parameter.opts if name.startswith("--")]
    return options[0] if options else str(parameter.metavar)


@contextmanager
def _warnings_as_sentences() -> Iterator[None]:
    """Print warnings of the library as sentences."""

    def say(message: object, *_: Any, **__: Any) -> None:
        typer.echo(f"marginlens: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        # NumPy warns of an overflow that the result itself reports.
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.showwarning = say
        yield


# ---- commands

app = typer.Typer(
    cls=CommandLine,
    help="Predict, train and verify what softmax attention selects.",
    epilog="marginlens COMMAND --help explains a command and gives examples. "
    "Exit codes: 0 done, 2 an argument, option or file cannot be used, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (predict, train, lab, probe, graph, samples):
    app.command()(command)
app.command(rich_help_panel=RESEARCH)(statement)
if find_spec("marginlens_papers") is not None:
    for command in import_module("marginlens_papers.commands").COMMANDS:
        app.command(rich_help_panel=RESEARCH)(command)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"marginlens {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ---- the console


def main() -> None:
    """Run the command line; the console command is `marginlens_command`."""
    # Characters that the terminal lacks are printed as their numbers.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As after Ctrl-C, what was begun is cleaned up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.unraisablehook = _interrupt_again
    app(prog_name="marginlens")


def _interrupt_again(ignored: UnraisableHookArgs) -> None:
    """Interrupt once more if Ctrl-C came inside a finalizer, of which compilers have many: Python drops exceptions in finalizers."""
    if ignored.exc_type is KeyboardInterrupt:
        threading.Timer(FINALIZER_SECONDS, interrupt_main, (signal.SIGTERM,)).start()
    else:
        sys.__unraisablehook__(ignored)
