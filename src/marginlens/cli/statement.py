"""`marginlens statement`: the function that implements a theorem of the papers, and the claims that test it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from marginlens.cli.options import AsJson, Quiet
from marginlens.cli.output import Output
from marginlens.papers import SOURCES, labels_named, listed_statements, natural
from marginlens.words import text


def label_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the next words of statements that begin with the words typed so far: A, then Thm, then 3."""
    typed = [_unquoted(word).lower() for word in ctx.params.get("words") or ()]
    following: dict[str, None] = {}
    for row in listed_statements():
        words = [_unquoted(word) for word in row["statement"].split()]
        if len(words) > len(typed) and [word.lower() for word in words[: len(typed)]] == typed:
            following[words[len(typed)]] = None
    return [word for word in following if word.lower().startswith(_unquoted(incomplete).lower())]


def _unquoted(word: str) -> str:
    """Strip a word of a label of signs that a shell would ask to be quoted."""
    return re.sub(r"[()'\u2019]", "", word).rstrip(".")


def statement(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LABEL",
            help="Label, such as A Thm 3 or A Eq 10; a paper's letter alone lists its statements.",
            autocompletion=label_words,
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find the function behind a theorem of the papers.

    Print also what the theorem states and which claims test it. A paper's letter lists all its statements. An equation inside a
    function leads to that function, and a step of a proof leads to the proved statement.

    \b
    Examples:
      marginlens statement A Thm 3
      marginlens statement C --json
      marginlens statement
    """
    label = " ".join(words) if words else None
    rows = statements_named(label)
    is_list = label is None or label.strip().upper() in SOURCES
    Output(as_json, quiet).show(rows, (line for row in rows for line in (_short if is_list else _full)(row)))


def statements_named(label: str | None) -> list[dict[str, Any]]:
    """Return the statements that a label names: one, all of a paper for its letter, or every one for None."""
    rows = {row["statement"]: row for row in listed_statements()}
    for claim in _claims_of_packs():
        for cited in claim.labels:
            empty = dict.fromkeys(("functions", "claims", "claims_say", "earlier_labels"), ())
            row = rows.setdefault(cited, {"statement": cited, "says": claim.statement, "belongs_to": None, **empty})
            row["claims"], row["claims_say"] = [*row["claims"], claim.id], [*row["claims_say"], claim.statement]
    wanted = sorted(rows, key=natural) if label is None else labels_named(label, list(rows.values()))
    return [rows[one] for one in wanted]


def _claims_of_packs() -> Iterable[Any]:
    """Return the claims that installed packages add, which are imported only if there are any."""
    from marginlens.runtime.packs import CLAIMS, pack_names

    if not pack_names(CLAIMS) or find_spec("marginlens_papers") is None:
        return ()
    return import_module("marginlens_papers.claims.catalogue").added_claims()


def _short(row: dict[str, Any]) -> Iterator[str]:
    functions = ", ".join(_inside(one) + one["name"].removeprefix("marginlens.") for one in row["functions"])
    yield f"{row['statement']}  {functions}"
    yield f"  {row['says']}"


def _full(row: dict[str, Any]) -> Iterator[str]:
    yield row["statement"]
    yield f"  {row['says']}"
    for one in row["functions"]:
        yield f"  {_inside(one)}{one['name']}"
        if one["what"] != row["says"]:
            yield f"    {one['what']}"
        yield f"    written in {one['module']}"
    if row["earlier_labels"]:
        yield f"  {text('cli.statement.earlier', labels=list(row['earlier_labels']))}"
    if row["claims"]:
        yield f"  {text('cli.statement.shown_by', claims=','.join(row['claims']))}"
    for name, sentence in zip(row["claims"], row["claims_say"], strict=True):
        yield f"    {name}: {sentence}"


def _inside(function: dict[str, Any]) -> str:
    return "inside " if function["role"] == "uses" else ""
