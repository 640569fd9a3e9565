"""What the commands that train for many epochs share: their options, settings by name, and the list of settings."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from experiments.training.script import RunRequest, parse_settings
from experiments.training.settings import RunSettings, Settings
from marginlens.errors import InputError

_NUMBERS: dict[str, tuple[type, str]] = {  # settings that have an option of their own
    "epochs": (int, "passes over the data"),
    "batch": (int, "samples in a step"),
    "learning_rate": (float, "of the optimizer"),
    "seed": (int, "of initial values and of the order"),
}


class _ListSettings(argparse.Action):
    """Print all settings with their usual values and leave."""

    def __init__(self, option_strings: Any, dest: str, const: type[RunSettings], **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, **more)

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> None:
        print("\n".join(settings_lines(self.const)))
        parser.exit()


def settings_lines(kind: type[RunSettings]) -> list[str]:
    """A line for each setting: its usual value, and what it is."""
    meanings = kind.meanings()
    return [f"{name} = {json.dumps(value)}: {meanings[name]}" for name, value in kind().to_dict().items()]


def add_options(parser: argparse.ArgumentParser, kind: type[RunSettings], every: int) -> None:
    """Add where results go, every setting of this kind, and how a run stops and goes on."""
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    for name, (of, what) in _NUMBERS.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=of, metavar="N", help=f"{what} ({getattr(kind(), name)})")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda or cuda:1 (cpu)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="another setting; repeat it")
    parser.add_argument("--settings", metavar="FILE", help="a JSON file of settings by name, or the JSON itself")
    parser.add_argument("--list-settings", action=_ListSettings, const=kind, help="list all settings and exit")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE.npz", help="saved there, and read again to go on from")
    parser.add_argument("--every", type=int, default=every, metavar="N", help=f"epochs between checkpoints ({every})")
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop in good order after S seconds")


def request_of(options: argparse.Namespace) -> RunRequest:
    """What the options ask for besides data and settings."""
    return RunRequest(options.out, options.checkpoint, options.every, options.time_limit)


def chosen_settings(kind: type[Settings], options: argparse.Namespace) -> Settings:
    """The settings of --settings, --set and the options of their names, of which the later go before the earlier."""
    values = {} if options.settings is None else parse_settings(options.settings)
    usual = kind().to_dict()
    for assignment in options.set:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InputError("set", "NAME=VALUE, such as layers=2", repr(assignment))
        if name not in usual:
            raise InputError("set", f"one of {', '.join(map(repr, usual))} and its value", repr(assignment))
        values[name] = _value(value, is_list=isinstance(usual[name], list))
    given = {name: getattr(options, name, None) for name in (*_NUMBERS, "device", "layers") if name in usual}
    return kind.from_dict({**values, **{name: value for name, value in given.items() if value is not None}})


def _value(text: str, *, is_list: bool) -> Any:
    """A number, true, false, a list or a word."""
    try:
        return json.loads(f"[{text}]" if is_list and not text.startswith("[") else text)
    except ValueError:
        return text
