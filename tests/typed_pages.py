"""Pages whose code blocks are typed: Python in one namespace a page, commands in this process, outputs compared where a page shows them.

A block of `text` right behind another is what that one prints; a line of it that is "…" stands for any lines. What cannot be typed here is
checked: `pip` must install extras that exist, `make` and `tasks.py` must do a task that there is. A block of TOML below a line that names a
file is that file; blocks of `py` need a cluster, and are compiled.
"""

import glob
import io
import json
import os
import re
import runpy
import shlex
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
TASKS = {task.__name__.replace("_", "-") for task in runpy.run_path(str(ROOT / "tasks.py"))["TASKS"]}
ENVIRONMENT = ("python3 -m venv .venv", "source .venv/bin/activate")  # what makes an environment; the tests have one
ELSEWHERE = {
    "marginlens --install-completion": "changes the settings of a shell",
    "python -m benchmarks gpu": "needs a CUDA device",
    "marginlens reproduce": "is tested with the report",
    "marginlens claims": "is tested with the report",
}  # commands that are known by their help alone, and why


class Block(NamedTuple):
    """A block of code, the heading above it, the line before it, and what it prints by the page; None where the page does not say."""

    language: str
    code: str
    heading: str
    line_before: str
    shown: str | None


def blocks(page):
    """The blocks of a page in order, those of `text` with what prints them."""
    found, heading, end = [], "", 0
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(
        r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w+)\n(?P<code>.*?)^```$", text, flags=re.M | re.S
    ):
        if match["heading"]:
            heading = match["heading"]
            continue
        if match["language"] == "text" and found and not text[end : match.start()].strip():
            found[-1] = found[-1]._replace(shown=match["code"])
        else:
            line_before = text[: match.start()].rstrip().rpartition("\n")[2]
            found.append(Block(match["language"], match["code"], heading, line_before, None))
        end = match.end()
    return found


def type_page(page):
    """Type all of a page in the current folder; whatever fails or prints something else is an AssertionError that names it."""
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python":
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(block.code, page.name, "exec"), namespace)
            output = printed.getvalue()
        elif block.language == "sh":
            output = "".join(map(type_line, filter(None, map(str.strip, block.code.splitlines()))))
        else:
            read_block(block)
            continue
        if block.shown is not None:
            assert is_shown(block.shown, output), f"{page.name} shows\n{block.shown}\nand typing it prints\n{output}"


def read_block(block):
    """Read what is no program as the program that it is for reads it, and write it where the page names its file."""
    if block.language == "py":
        compile(block.code, block.heading, "exec")
    elif block.language == "json":
        json.loads(block.code)
    elif block.language == "toml":
        tomllib.loads(block.code)
        named = re.search(r"`(\w+\.toml)`:$", block.line_before)
        if named:
            Path(named[1]).write_text(block.code, encoding="utf-8")


def is_shown(shown, output):
    """Whether an output is the one that a page shows, blanks at the ends of lines aside."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line.rstrip()) + r" *\n" for line in shown.strip().splitlines()
    )
    return re.fullmatch(pattern, output.strip() + "\n") is not None


def type_line(line):
    """What a line of a shell prints."""
    from marginlens.cli.app import app

    input_file, pipe, line = re.match(r"(?:cat (\S+)( \| ))?(.*)", line).groups()
    words = [found for word in shlex.split(line, comments=True) for found in (sorted(glob.glob(word)) or [word])]
    if not words or line in ENVIRONMENT:
        return ""
    program, arguments = Path(words[0]).name, words[1:]
    if program == "cd":
        os.chdir(arguments[0])
    elif program == "pip":
        extras = re.findall(r"\[(.*?)\]", line)
        assert arguments[0] == "install"
        assert {extra for listed in extras for extra in listed.split(",")} <= set(EXTRAS), line
    elif program == "make" or arguments[:1] == ["tasks.py"]:
        assert {word for word in arguments if "=" not in word} <= {*TASKS, "tasks.py"}, line
    elif not any(words in line for words in ELSEWHERE):
        assert program == "marginlens", f"no rule for typing {line!r}"
        result = CliRunner().invoke(app, arguments, input=Path(input_file).read_bytes() if pipe else None)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        return result.stdout
    return ""
