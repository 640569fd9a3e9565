"""`marginlens completion`: the script with which a shell completes commands, options, claims, statements, norms and optimizers."""

from __future__ import annotations

from typing import Annotated

import typer

from marginlens.cli._commands import COMPLETE_VARIABLE
from marginlens.cli._completions import words_of
from marginlens.cli._deferred import errors
from marginlens.cli._exit import errors_as_sentences

SHELLS = ("bash", "zsh", "fish")


def completion(
    shell: Annotated[
        str,
        typer.Argument(
            metavar="SHELL",
            help=f"One of {', '.join(SHELLS)}.",
            autocompletion=words_of(*SHELLS),
            show_default=False,
        ),
    ],
) -> None:
    """Print the script that completes commands in a shell.

    Write it where your shell reads it, and open a new terminal. TAB then completes commands and their options, and where an option or an
    argument takes one of them claims (A-F9), statements (A Thm 3), norms, optimizers, losses and files.

    Examples:
        marginlens completion bash > ~/.local/share/bash-completion/completions/marginlens
        marginlens completion zsh > ~/.zfunc/_marginlens
        marginlens completion fish > ~/.config/fish/completions/marginlens.fish
    """
    with errors_as_sentences():
        from typer.completion import get_completion_script

        name = shell.lower()
        if name not in SHELLS:
            raise errors.reject("shell", f"one of {', '.join(SHELLS)}", repr(shell))
        typer.echo(get_completion_script(prog_name="marginlens", complete_var=COMPLETE_VARIABLE, shell=name))
