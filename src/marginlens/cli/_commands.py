"""How commands are found, described and refused: imported when they are called, help with examples, usage errors in one sentence."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from textwrap import shorten
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

try:
    from typer._click import exceptions as usage
    from typer._click.globals import get_current_context
except ImportError:  # earlier versions of typer stand on the package click
    from click import exceptions as usage  # type: ignore[no-redef]
    from click import get_current_context  # type: ignore[no-redef]

EXIT_USAGE = 2
HELP_NAMES = ["-h", "--help"]
_EXAMPLES = "Examples:"
_KINDS = {"int": "a whole number", "integer": "a whole number", "float": "a number", "number": "a number"}
_SIMILAR = 0.7  # of two words, from 0 to 1, for a suggestion
_COMPLETION_WIDTH = 60  # letters of what a shell shows beside a completion
_LONG_WORD = re.compile(r"\S{200,}")  # such as a path that is too long to be repeated


class Entry(NamedTuple):
    """Where a command is: its module, its function or `typer.Typer` there, and what it does in one line."""

    module: str
    name: str
    summary: str


Entries = Mapping[str, Entry | Callable[..., Any]]  # commands by name: where they are, or their functions


# ---- what was typed


def running() -> Any:
    """The command that runs and what was typed to reach it, as a context; None where a function was called from Python."""
    return get_current_context(silent=True)


def is_quiet() -> bool:
    """Whether the command that runs was called with --quiet."""
    return _given("quiet")


def wants_json() -> bool:
    """Whether the command that runs was called with --json."""
    return _given("as_json")


def _given(flag: str) -> bool:
    context = running()
    return context is not None and bool(context.params.get(flag))


def takes(option: str) -> bool:
    """Whether the command that runs has an option of this name."""
    context = running()
    return context is not None and any(option in parameter.opts for parameter in context.command.params)


def typed_name(parameter: Any) -> str:
    """What a person types for a parameter: its longest option, or the name of the argument."""
    options = [name for name in parameter.opts if name.startswith("--")]
    return options[0] if options else str(parameter.metavar or parameter.name.upper()).strip("[].")


def typed_command(*without: str) -> str:
    """What was typed, in the order of the command's help and without folders of this machine: who has the files can type it again.

    Args:
        without: parameters that are no part of it, besides --json and --quiet.
    """
    context = running()
    words = ["marginlens", *context.command_path.split()[1:]]
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if parameter.name in (*without, "as_json", "quiet") or source is None or source.name != "COMMANDLINE":
            continue
        name = [typed_name(parameter)] if parameter.param_type_name == "option" else []
        given = context.params[parameter.name]
        for value in given if isinstance(given, list | tuple) else [given]:
            shown = os.path.basename(value) if isinstance(value, os.PathLike) or os.path.exists(str(value)) else value
            words += name if value is True else [*name, str(shown)]
    return shlex.join(words)


def shortened(sentence: str) -> str:
    """A sentence with the beginning and the end alone of words that are too long for it."""
    return _LONG_WORD.sub(lambda word: f"{word[0][:60]}…{word[0][-20:]}", sentence)


# ---- commands


class Command(TyperCommand):
    """A command whose docstring ends in examples, which its help lists last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rich_markup_mode = None
        text = inspect.cleandoc(self.help or "")
        self.help, _, examples = text.partition(f"\n{_EXAMPLES}\n")
        self.examples = [line.strip() for line in examples.splitlines() if line.strip()]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The line of usage: arguments by name, in brackets where they may be left out, with dots where there may be several."""
        found = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        names = [f"{typed_name(one)}{'...' if one.nargs != 1 else ''}" for one in found]
        return [
            str(self.options_metavar),
            *(name if one.required else f"[{name}]" for one, name in zip(found, names, strict=True)),
        ]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments and options without names of types, which say nothing to a person who types."""
        for title in ("Argument", "Option"):
            found = [one for one in self.get_params(ctx) if one.param_type_name == title.lower()]
            records = [(one, one.get_help_record(ctx)) for one in found]
            rows = [
                (typed_name(one) if title == "Argument" else record[0], _remarks(record[1], title == "Option"))
                for one, record in records
                if record is not None
            ]
            if rows:
                with formatter.section(f"{title}s"):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples as they are typed."""
        if self.examples:
            with formatter.section(_EXAMPLES.rstrip(":")):
                formatter.write("".join(f"  {line}\n" for line in self.examples))
        super().format_epilog(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The options that begin so, each with what fits in one line beside it: shells take a second line for another option."""
        items = super().shell_complete(ctx, incomplete)
        for item in items:
            item.help = shorten(item.help or "", _COMPLETION_WIDTH, placeholder="…")
        return items


def _remarks(text: str, with_required: bool) -> str:
    """What the help says of an option, with its remark on the default in words."""
    text = re.sub(r"\[default: \((.*)\)(?=[;\]])", r"[default: \1", text)
    return text if with_required else re.sub(r"\s*\[required\]$", "", text)


class Group(TyperGroup):
    """A group whose commands are imported when they are called; its list needs none of them."""

    entries: ClassVar[Entries] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.rich_markup_mode = None
        self.commands = dict.fromkeys(self.entries)  # type: ignore[assignment]  # their names, among which typer suggests

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; None where there is none."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        return build(cmd_name, getattr(import_module(entry.module), entry.name) if isinstance(entry, Entry) else entry)

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of the group; those that are absent are a plain False, which typer need not import pydantic to check."""
        found = super().get_params(ctx)
        for option in found:
            option.default = False if option.default is None else option.default
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with what each does."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(entry)) for name, entry in self.entries.items()])

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C while it is being imported is answered by `main`, where typer would leave without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Abort from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run what was typed; what cannot be understood ends in one sentence on stderr and exit code 2."""
        try:
            ended = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except usage.ClickException as problem:
            if not standalone_mode:
                raise
            typer.echo(refusal(problem), err=True)
            sys.exit(EXIT_USAGE)
        except typer.Abort:
            typer.echo("marginlens: interrupted.", err=True)
            sys.exit(130)
        if standalone_mode:
            sys.exit(ended if isinstance(ended, int) else 0)
        return ended


def group(entries: Entries, cls: type[Group] = Group, **settings: Any) -> typer.Typer:
    """A group of commands that are imported when they are called.

    Args:
        entries: the commands by name. cls: the group's class. settings: of `typer.Typer`.
    """

    made: Any = type("Made", (cls,), {"entries": entries})
    settings = {"no_args_is_help": True, "add_completion": False, "rich_markup_mode": None, **settings}
    app = typer.Typer(cls=made, pretty_exceptions_enable=False, **settings)
    if not app.registered_callback:
        app.callback()(lambda: None)
    return app


def summary(entry: Entry | Callable[..., Any]) -> str:
    """What a command does, in one line."""
    return entry.summary if isinstance(entry, Entry) else inspect.cleandoc(entry.__doc__ or "").partition("\n")[0]


def build(name: str, target: typer.Typer | Callable[..., Any]) -> Any:
    """The command of a function, or the group of a `typer.Typer`."""
    if isinstance(target, typer.Typer):
        made = get_command(target)
    else:
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name, cls=Command)(target)
        made = get_command(single)
    made.name = name
    return made


# ---- what cannot be understood


def refusal(problem: Any) -> str:
    """The sentence for words that are no command, no option or no value of one; help itself where nothing was typed."""
    if type(problem).__name__ == "NoArgsIsHelpError":  # a class that earlier versions lack
        return str(problem.format_message())
    context = getattr(problem, "ctx", None)
    path = "marginlens" if context is None else " ".join(["marginlens", *context.command_path.split()[1:]])
    return f"marginlens: {shortened(_what(problem))} {path} --help says what can be typed."


def _what(problem: Any) -> str:
    parameter = getattr(problem, "param", None)
    name = "" if parameter is None else typed_name(parameter)
    if isinstance(problem, usage.NoSuchOption):
        near = get_close_matches(problem.option_name, problem.possibilities or (), n=2, cutoff=_SIMILAR)
        return f"There is no option {problem.option_name}{'; did you mean ' if near else ''}{' or '.join(near)}."
    if isinstance(problem, usage.MissingParameter) and parameter is not None:
        return f"{name} is missing."
    message = problem.format_message() if parameter is None else problem.message
    message = re.sub(r"^No such command '(.*?)'", r"There is no command '\1'", message)
    if parameter is not None:
        message = _value(name, message, problem.__cause__ or problem.__context__)
    return message.rstrip(".") + ("" if message.endswith("?") else ".")


def _value(name: str, message: str, cause: BaseException | None) -> str:
    """What is wrong with a value, in the words of every other refusal; versions of typer say it in two ways."""
    kind = re.search(r"valid (\w+)", message)
    if kind is None or kind[1] not in _KINDS:
        return f"{name} cannot be used: {message}"
    found = getattr(cause, "errors", None)
    got = repr(found()[0]["input"]) if found is not None else message.split(" is not ", maxsplit=1)[0]
    return f"{name} must be {_KINDS[kind[1]]}; got {got}"
