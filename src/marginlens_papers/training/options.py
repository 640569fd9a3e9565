"""What the commands that train for many epochs share: options, settings by name, and the list of settings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marginlens.cli._deferred import errors, terminal
from marginlens.cli._exit import EXIT_NOT_REPRODUCED
from marginlens.cli._options import DEVICES, words_of

if TYPE_CHECKING:
    from marginlens_papers.training.loop import Ending
    from marginlens_papers.training.settings import RunSettings

_SETTING = re.compile(r"^    (\w+): [\w\[\], .]+ = \w+\(", re.MULTILINE)
RunFolder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the results go.", show_default=False)]
Checkpoint = Annotated[
    Path | None,
    typer.Option(metavar="CHECKPOINT.npz", help="Saved there as the run goes on, and read again to go on from."),
]
TimeLimit = Annotated[float | None, typer.Option(metavar="S", help="Stop in good order after S seconds.")]
Epochs = Annotated[int | None, typer.Option(metavar="N", help="Passes over the data.")]
Batch = Annotated[int | None, typer.Option(metavar="N", help="Samples in a step.")]
LearningRate = Annotated[float | None, typer.Option(metavar="R", help="Of the optimizer.")]
RunSeed = Annotated[int | None, typer.Option(metavar="N", help="Of initial values and of the order.", show_default="0")]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="cpu, cuda or cuda:1.", show_default="cpu", autocompletion=words_of(*DEVICES)),
]


def assignments_option(file: str) -> Any:
    """The option --set of a command whose settings a file of this package lists."""
    return typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Another setting, such as layers=2; repeat it for several.",
        autocompletion=setting_names(file),
    )


def setting_names(file: str) -> Callable[[str], list[str]]:
    """The completion of --set: the settings that a file of this package lists, each with the sign behind which its value is typed."""

    def matching(incomplete: str) -> list[str]:
        names = _SETTING.findall(Path(__file__).parents[1].joinpath(file).read_text(encoding="utf-8"))
        return [f"{name}=" for name in names if f"{name}=".startswith(incomplete)]

    return matching


SettingsText = Annotated[
    str | None,
    typer.Option("--settings", metavar="FILE", help="A JSON file of settings by name, or the JSON itself."),
]


def list_settings_option(module: str, name: str) -> Any:
    """The option --list-settings of a command whose settings are `module.name`."""

    def show(value: bool) -> None:
        if value:
            terminal.console().print(
                terminal.rows_table("Settings", settings_rows(getattr(import_module(module), name)))
            )
            raise typer.Exit

    return typer.Option("--list-settings", help="List all settings and exit.", callback=show, is_eager=True)


def settings_rows(kind: type[RunSettings]) -> list[dict[str, str]]:
    """Every setting with its usual value and what it is, from the docstring of its class."""
    names = [field.name for field in fields(kind)]
    one_of = "|".join(names)
    described = re.split(rf"\b((?:{one_of})(?:, (?:{one_of}))*): ", " ".join((kind.__doc__ or "").split()))
    meanings: dict[str, str] = {}
    for listed, meaning in zip(described[1::2], described[2::2], strict=True):
        meanings |= dict.fromkeys(listed.split(", "), meaning.strip().rstrip("."))
    usual = kind().to_dict()
    return [{"setting": name, "usual": json.dumps(usual[name]), "meaning": meanings.get(name, "")} for name in names]


def chosen_settings(
    kind: type[RunSettings], text: str | None, assignments: list[str] | None, **options: Any
) -> RunSettings:
    """The settings of --settings, --set and the options of their names, of which the later go before the earlier."""
    from marginlens_papers.training.script import parse_settings

    values = {} if text is None else parse_settings(text)
    usual = kind().to_dict()
    for assignment in assignments or ():
        name, equals, value = assignment.partition("=")
        if not equals:
            raise errors.reject("set", "NAME=VALUE, such as layers=2", repr(assignment))
        if name not in usual:
            raise errors.reject("set", f"one of {', '.join(map(repr, usual))} and its value", repr(assignment))
        values[name] = _value(value, is_list=isinstance(usual[name], list))
    return kind.from_dict({**values, **{name: value for name, value in options.items() if value is not None}})


def _value(text: str, *, is_list: bool) -> Any:
    """A number, true, false, a list or a word."""
    try:
        return json.loads(f"[{text}]" if is_list and not text.startswith("[") else text)
    except ValueError:
        return text


def leave(ending: Ending, checkpoint: Path | None) -> None:
    """Exit with 1 where a run did not finish and nothing holds where to go on."""
    if ending.exit_code(checkpoint):
        raise typer.Exit(EXIT_NOT_REPRODUCED)


def speaker(*, as_json: bool) -> Callable[[str], None] | None:
    """What says how a run goes; None with --json and --quiet."""
    from marginlens.cli._commands import is_quiet

    return None if as_json or is_quiet() else lambda sentence: typer.echo(sentence, err=True)
