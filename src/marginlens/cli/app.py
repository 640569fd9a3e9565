"""The command line: which commands there are, what each does in one line, and how they are begun."""

from __future__ import annotations

import io
import signal
import sys
import threading
from _thread import interrupt_main
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from marginlens import __version__
from marginlens.cli._commands import HELP_NAMES, Entry, group
from marginlens.cli._exit import errors_as_sentences

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_FINALIZER_SECONDS = 0.01  # after which a finalizer that was interrupted has ended

COMMANDS = {
    "solve": Entry("marginlens.cli.solve", "solve", "Predict where training goes, with proofs."),
    "train": Entry("marginlens.cli.train", "train", "Train attention weights and compare them with the theory."),
    "graph": Entry("marginlens.cli.graph", "graph", "Rank tokens by what the data say follows."),
    "probe": Entry("marginlens.cli.probe", "probe", "Measure what the attention heads of a model select."),
    "lab": Entry("marginlens.cli.lab", "lab", "Open the interactive page, with a problem of yours."),
    "samples": Entry("marginlens.cli.samples", "samples", "Write small files to try the other commands with."),
    "statement": Entry("marginlens.cli.statement", "statement", "Find the function behind a theorem of the papers."),
}
PAPERS = {  # of the package marginlens_papers, where it is installed
    "reproduce": Entry("marginlens_papers.commands", "reproduce", "Run the papers' claims and write the report."),
    "claims": Entry("marginlens_papers.commands", "claims", "List every claim with its last result."),
}

app = group(
    {**COMMANDS, **(PAPERS if find_spec("marginlens_papers") else {})},
    help="Predict, train and verify what softmax attention selects.",
    epilog="marginlens COMMAND --help explains a command and gives examples. "
    "Exit codes: 0 done, 1 a claim does not hold and does not declare it, 2 something given is unusable, 130 interrupted.",
    context_settings={"help_option_names": HELP_NAMES},
    add_completion=True,
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"marginlens {__version__}")
        raise typer.Exit


def main() -> None:
    """The command line, once it is imported; `marginlens_command` is what the console calls."""
    for stream in (sys.stdout, sys.stderr):  # signs that the terminal lacks are printed as their numbers
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with errors_as_sentences():  # also where the help or the last table cannot be printed
            _interruptible()
            app(prog_name="marginlens")
    except typer.Exit as ending:
        sys.exit(ending.exit_code)


def _interruptible() -> None:
    """Let Ctrl-C, unless it is ignored, and being asked to terminate raise: what was begun is cleaned up."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.unraisablehook = _interrupt_again


def _interrupt_again(ignored: UnraisableHookArgs) -> None:
    """Interrupt once more where Ctrl-C came inside a finalizer, as compilers have many: Python drops what these raise."""
    if ignored.exc_type is KeyboardInterrupt:
        threading.Timer(_FINALIZER_SECONDS, interrupt_main, (signal.SIGTERM,)).start()
    else:
        sys.__unraisablehook__(ignored)
