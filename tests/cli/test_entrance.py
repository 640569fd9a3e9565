"""The entrance of the command line: what help and version import, examples of every command, completion, usage errors, --quiet."""

import re
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer import Exit
from typer.main import get_command
from typer.testing import CliRunner

from marginlens.cli import app as cli
from marginlens.cli.options import LISTED_NORMS
from marginlens.data import figure_8, write_problem
from marginlens.removed import removed_commands
from one_command import refusal

HEAVY = ("numpy", "scipy", "sklearn", "matplotlib", "rich", "pydantic", "importlib.metadata")
LOADED = """
import sys, marginlens_command
sys.argv[0] = "marginlens"
try:
    marginlens_command.main()
except SystemExit:
    pass
print(",".join(name for name in {heavy} if name in sys.modules))
"""


def invoke(*arguments, env=None):
    return CliRunner().invoke(cli.app, list(arguments), env=env, prog_name="marginlens")


COMMANDS = get_command(cli.app).commands


@pytest.mark.parametrize(
    "words",
    [
        ("--version",),
        ("--help",),
        ("predict", "-h"),
        ("probe", "-h"),
    ],
)
def test_help_and_version_import_nothing_heavy(words):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(heavy=HEAVY), *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == ""


def test_commands_are_the_listed_ones():
    names = {"predict", "train", "probe", "graph", "lab", "samples", "reproduce", "claims", "statement"}
    assert set(COMMANDS) == names


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_page_has_working_examples(name):
    page = invoke(name, "-h")
    assert page.exit_code == 0
    examples = [line.strip() for line in page.stdout.splitlines() if line.startswith("    marginlens ")]
    assert examples
    for line in examples:
        words = shlex.split(re.split("[<>]|&&", line)[0])
        assert words[1] == name
        with suppress(Exit):
            COMMANDS[name].make_context(name, words[2:])


def test_help_and_empty_line_list_every_command():
    page = invoke("--help")
    assert page.exit_code == 0
    assert invoke().stdout == page.stdout
    main, research = page.stdout.partition("Commands:")[2].split("Research:")
    for name in COMMANDS:
        assert f"  {name} " in (research if name in ("statement", "reproduce", "claims") else main)


@pytest.mark.parametrize("name", removed_commands())
def test_a_removed_command_names_its_replacement(name):
    sentence = refusal(invoke(name, "file", "--option"))
    assert sentence == f"The command {name} was removed: {removed_commands()[name]}.\n"


USAGE = [
    (("dance",), "There is no command 'dance'."),
    (("predict",), "'FILE'"),
    (("predict", "a", "b"), "b"),
    (("predict", "a", "--satrt", "1"), "--start"),
    (("train", "a", "--steps", "many"), "'--steps'"),
    (("train", "a", "--step-size", "x"), "'--step-size'"),
    (("train", "a", "--steps"), "--steps"),
]

# A mistyped name of any kind, and what it is taken for.
MEANT = [
    (("predcit",), "predict"),
    (("trian", "f.npz"), "train"),
    (("reproduction",), "reproduce"),
    (("predict", "f.npz", "--slected", "0"), "--selected"),
    (("train", "f.npz", "--optimiser", "adam"), "--optimizer"),
    (("train", "f.npz", "--optimizer", "adamw"), "adam"),
    (("train", "f.npz", "--optimizer", "signgd"), "sign-descent"),
    (("train", "f.npz", "--loss", "logistik"), "logistic"),
    (("train", "f.npz", "--optimizer", "steepest-descent", "--norm", "l-infinity"), "l-inf"),
    (("predict", "f.npz", "--norm", "l-if"), "l-inf"),
    (("lab", "--preset", "start-decide"), "the-start-decides"),
    (("reproduce", "--only", "A-F1d"), "A-F1"),
]


@pytest.mark.parametrize(("words", "part"), USAGE, ids=[" ".join(words) for words, _ in USAGE])
def test_a_line_that_cannot_be_parsed_exits_2_with_one_line(words, part):
    sentence = refusal(invoke(*words))
    assert part in sentence
    assert sentence.endswith(" --help.\n")
    assert not set(sentence) & set("╭│╰")


@pytest.mark.parametrize(("words", "meant"), MEANT, ids=[" ".join(words) for words, _ in MEANT])
def test_a_mistyped_name_gets_the_nearest_one(here, words, meant):
    write_problem("f.npz", *figure_8())
    assert f"Did you mean {meant}" in refusal(invoke(*words))


COMPLETED = [
    ("marginlens pre", 1, {"predict"}),
    ("marginlens predict --no", 2, {"--norm"}),
    ("marginlens predict x --norm l", 4, {name for name in LISTED_NORMS if name.startswith("l")}),
    ("marginlens train x --optimizer s", 4, {"sign-descent", "steepest-descent"}),
    ("marginlens reproduce --only A-F1", 3, {"A-F1a", "A-F1b", "A-F1c"}),
    ("marginlens reproduce --only A-F9,X-N", 3, {"A-F9,X-N1"}),
    ("marginlens lab --preset the-s", 3, {"the-start-decides"}),
    ("marginlens lab --preset A-F1", 3, {"A-F1a", "A-F1b", "A-F1c"}),
    ("marginlens graph x --encoding l", 4, {"latin-1"}),
    ("marginlens statement A Thm ", 4, {"1", "2", "3"}),
]


@pytest.mark.parametrize(("line", "place", "offered"), COMPLETED, ids=[line for line, _, _ in COMPLETED])
def test_shell_completion_offers_commands_and_options(line, place, offered):
    asking = {"_MARGINLENS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(place)}
    result = invoke(env=asking)
    assert result.exit_code == 0
    assert offered <= set(result.stdout.split("\n"))
    last = "" if line.endswith(" ") else line.split()[-1].lower()
    assert all(word.lower().startswith(last) for word in result.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shell_completion_of_other_shells_offers_the_same(shell):
    asking = {
        "_MARGINLENS_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "marginlens predict --n",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    result = invoke(env=asking)
    assert "--norm" in result.stdout
    assert "--plot" not in result.stdout


def test_quiet_prints_nothing_but_writes_json_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_problem("f.npz", *figure_8())
    result = invoke("predict", "f.npz", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert invoke("predict", "f.npz", "-q", "--json").stdout == invoke("predict", "f.npz", "--json").stdout != ""
    pytest.importorskip("matplotlib")
    result = invoke("predict", "f.npz", "--quiet", "--plot", "f.pdf")
    assert (result.exit_code, result.output) == (0, "")
    assert Path("f.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_its_script(tmp_path):
    program = tmp_path / "marginlens"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m marginlens "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    lines = [
        f"source <({program} --show-completion)",
        "complete -p marginlens",
        "COMP_WORDS=(marginlens predict x --norm l-) COMP_CWORD=4",
        f"_marginlens_completion {program}",
        'echo "${COMPREPLY[@]}"',
    ]
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1:] == ["l-inf"]
