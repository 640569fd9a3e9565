"""The archive of runs that comes with the package: its folder, names of runs, JSON layout, and commands without local paths."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path

from marginlens.errors import reject

_OMITTED_OPTIONS = ("--out", "--checkpoint", "--save-models")
_FILE_OPTIONS = ("--data", "--settings")


def results_folder() -> Path:
    """The folder of results that come with the package."""
    return Path(str(files("marginlens_papers") / "results"))


def check_name(name: str, argument: str = "name") -> str:
    """The name of an archived run or of its data, which becomes part of a file's name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):
        raise reject(argument, "letters, digits, dots and dashes", repr(name))
    return name


def command_without_paths(command: str) -> str:
    """A command without local paths: output options are left out, and input files keep their name without the folder.

    Options may be shortened, as argparse allows.
    """
    if not isinstance(command, str):  # of which shlex would read the standard input
        raise reject("command", "text", repr(command))
    words, portable = iter(shlex.split(command)), []
    for word in words:
        written, given, value = word.partition("=")
        known = _OMITTED_OPTIONS + _FILE_OPTIONS
        option = next((name for name in known if len(written) > 2 and name.startswith(written)), None)
        if option is None:
            portable.append(word)
            continue
        value = value if given else next(words, "")
        if option in _FILE_OPTIONS:
            portable += [option, value if value.lstrip().startswith("{") else Path(value).name]
    return shlex.join(portable)
