"""The archive of runs that comes with the package: its folder, names of runs, JSON layout, and commands without local paths."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from marginlens.errors import reject

_LEFT_OUT = ("--out", "--checkpoint", "--save-models")
_BY_NAME = ("--data", "--settings")


def kept_results() -> Path:
    """The folder of results that come with the package."""
    return Path(str(files("marginlens") / "results"))


def check_name(name: str, argument: str = "name") -> str:
    """What a kept run is called, which becomes part of a file's name, or its data."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):
        raise reject(argument, "letters, digits, dots and dashes", repr(name))
    return name


def lines_of(told: Mapping[str, Any]) -> bytes:
    """A JSON object with one line for each name."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for name, value in told.items()
    )
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def command_without_places(command: str) -> str:
    """A command without places of one machine: where things go is left out, and what it reads keeps its name without the folder.

    Options may be shortened, as argparse allows.
    """
    if not isinstance(command, str):  # of which shlex would read the standard input
        raise reject("command", "text", repr(command))
    words, kept = iter(shlex.split(command)), []
    for word in words:
        written, given, value = word.partition("=")
        option = next((one for one in _LEFT_OUT + _BY_NAME if len(written) > 2 and one.startswith(written)), None)
        if option is None:
            kept.append(word)
            continue
        value = value if given else next(words, "")
        if option in _BY_NAME:
            kept += [option, value if value.lstrip().startswith("{") else Path(value).name]
    return shlex.join(kept)
