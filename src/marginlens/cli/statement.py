"""`marginlens statement`: from a theorem of the papers to the function that implements it and the claims that show it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from shutil import get_terminal_size
from textwrap import fill
from typing import Annotated, Any

import typer

from marginlens.cli._commands import is_quiet
from marginlens.cli._completions import label_words
from marginlens.cli._deferred import errors, terminal
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens.papers import EARLIER_LABELS, SOURCES, listed_statements, natural
from marginlens.runtime.packs import CLAIMS, pack_names

_LONG_WORDS = {
    "theorem": "thm",
    "lem": "lemma",
    "prop": "proposition",
    "cor": "corollary",
    "equation": "eq",
    "definition": "def",
    "figure": "fig",
    "appendix": "app",
    "section": "§",
}


def statement(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LABEL",
            autocompletion=label_words,
            help="Such as A Thm 3 or A Eq 10; a paper's letter alone lists its statements.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say what a statement of the papers says, and find the function behind it: how to import it, where it stands, which claims show it.

    A paper's letter lists all its statements. An equation inside a function leads to that function, a step of a proof to what it proves.

    Examples:
        marginlens statement A Thm 3
        marginlens statement C --json
        marginlens statement
    """
    with errors_as_sentences(label="{words}"):
        label = " ".join(words) if words else None
        rows = found(label)
        if as_json:
            typer.echo(json.dumps(rows, indent=2))
        elif label is None or label.strip().upper() in SOURCES:
            terminal.console().print(
                terminal.rows_table(
                    "Statements", [{k: row[k] for k in ("statement", "says", "functions")} for row in _listed(rows)]
                )
            )
        else:
            for row in rows:
                _show(row)


def found(label: str | None) -> list[dict[str, Any]]:
    """The statements that a label names: one, all of a paper for its letter, or every one for None."""
    rows = {row["statement"]: row for row in listed_statements()}
    for claim in _claims_of_packs():
        for cited in claim.labels:
            empty = dict.fromkeys(("functions", "claims", "claims_say", "earlier_labels"), ())
            row = rows.setdefault(cited, {"statement": cited, "says": claim.statement, "belongs_to": None, **empty})
            row["claims"], row["claims_say"] = [*row["claims"], claim.id], [*row["claims_say"], claim.statement]
    return [rows[one] for one in _wanted(label, sorted(rows, key=natural))]


def _claims_of_packs() -> Iterable[Any]:
    """The claims that installed packages add, which are imported only where there are any."""
    if not pack_names(CLAIMS) or find_spec("marginlens_papers") is None:
        return ()
    return import_module("marginlens_papers.claims.catalogue").added_claims()


def _wanted(label: str | None, labels: list[str]) -> list[str]:
    if label is None:
        return labels
    key = _plain(label)
    later = {EARLIER_LABELS[one] for one in EARLIER_LABELS if key in (_plain(one), _plain(one.split()[0]))}
    same = [one for one in labels if one in later or key in (_plain(one), _plain(one.split()[0]))]
    same = same or [one for one in labels if _plain(one).startswith(f"{key} ")]  # Eq. (28) for (28a) and (28b)
    if same:
        return same
    near = get_close_matches(key, [_plain(one) for one in labels], n=3, cutoff=0.5)
    close = [one for one in labels if _plain(one) in near]
    expected = f"a statement such as {', '.join(close)}" if close else "a paper's letter and label, such as 'A Thm 3'"
    raise errors.reject("label", expected, repr(label), "`marginlens statement` lists all.")


def _plain(label: str) -> str:
    """A label without what people write in different ways: case, brackets, dots, hyphens, spaces, long words and their short forms."""
    words = re.findall(r"[a-z]+|\d+|[^\sa-z\d().-]+", label.lower().replace("’", "'"))
    return " ".join(_LONG_WORDS.get(word, word) for word in words)


def _listed(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            **row,
            "functions": "\n".join(_inside(one) + one["name"].removeprefix("marginlens.") for one in row["functions"]),
        }
        for row in rows
    ]


def _show(row: dict[str, Any]) -> None:
    lines = [(0, row["statement"]), (2, row["says"])]
    for one in row["functions"]:
        what = [] if one["what"] == row["says"] else [(4, one["what"])]
        lines += [(2, f"{_inside(one)}{one['name']}"), *what, (4, f"written in {one['module']}")]
    if row["earlier_labels"]:
        lines.append((2, f"in the earlier version of the paper: {', '.join(row['earlier_labels'])}"))
    if row["claims"]:
        lines.append((2, f"shown by: marginlens reproduce --only {','.join(row['claims'])}"))
    lines += [(4, f"{id_}: {told}") for id_, told in zip(row["claims"], row["claims_say"], strict=True)]
    width = get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize  # in one line elsewhere
    for indent, line in [] if is_quiet() else lines:
        typer.echo(fill(line, width, initial_indent=" " * indent, subsequent_indent=" " * indent))


def _inside(function: dict[str, Any]) -> str:
    return "inside " if function["role"] == "uses" else ""
