"""`marginlens statement`: from a theorem of the papers to the function that implements it and the claims that show it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from marginlens.cli import papers_module
from marginlens.cli._completions import label_words
from marginlens.cli._deferred import errors, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens.papers import EARLIER_LABELS, SOURCES, Implementation, natural, registered
from marginlens.statements import PROOF_STEPS, WORDS

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
    with errors_as_sentences():
        label = " ".join(words) if words else None
        rows = [one.to_dict() for one in found(label)]
        if as_json:
            typer.echo(_rows.as_json(rows))
        elif label is None or label.strip().upper() in SOURCES:
            terminal.console().print(
                terminal.rows_table(
                    "Statements", [{k: row[k] for k in ("statement", "says", "functions")} for row in _listed(rows)]
                )
            )
        else:
            for row in rows:
                _show(row)


@dataclass(frozen=True)
class Statement:
    """One statement of a paper, the functions that implement or use it, and the ids of the claims that show it."""

    label: str
    functions: tuple[Implementation, ...]
    claims: tuple[str, ...]
    shown: tuple[str, ...] = ()  # what each of these claims says

    @property
    def words(self) -> str:
        """What the statement says: in words of its own, else as a function or a claim puts it."""
        others = (*(_sentence(one.summary) for one in self.functions), *self.shown, "")
        return WORDS.get(self.label) or others[0]

    def to_dict(self) -> dict[str, Any]:
        """All of it in plain values."""
        functions = [
            {
                "name": public_name(one),
                "role": "uses" if one.inside else "implements",
                "what": _sentence(one.summary),
                "module": one.module,
            }
            for one in self.functions
        ]
        return {
            "statement": self.label,
            "says": self.words,
            "functions": functions,
            "belongs_to": PROOF_STEPS.get(self.label),
            "claims": list(self.claims),
            "claims_say": list(self.shown),
            "earlier_labels": [earlier for earlier, later in EARLIER_LABELS.items() if later == self.label],
        }


def found(label: str | None) -> list[Statement]:
    """The statements that a label names: one, all of a paper for its letter, or every one for None."""
    catalogue = papers_module("claims.catalogue")
    claims = () if catalogue is None else catalogue.known_claims()
    functions = registered()  # those that the claims have imported among them
    labels = set(PROOF_STEPS) | {one.citation for one in functions}
    labels |= {cited for claim in claims for cited in claim.labels}
    wanted = _wanted(label, sorted(labels, key=natural))
    return [
        Statement(
            one,
            tuple(function for function in functions if function.citation == one),
            tuple(claim.id for claim in claims if one in claim.labels),
            tuple(claim.statement.replace("$", "") for claim in claims if one in claim.labels),
        )
        for one in wanted
    ]


def public_name(one: Implementation) -> str:
    """The shortest path under which the function can be imported."""
    parts, first = one.module.split("."), one.name.split(".")[0]
    target = getattr(sys.modules[one.module], first)
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if getattr(sys.modules[package], first, None) is target:
            return f"{package}.{one.name}"
    return f"{one.module}.{one.name}"


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
    for indent, line in lines:
        terminal.say_indented(line, indent)


def _inside(function: dict[str, Any]) -> str:
    return "inside " if function["role"] == "uses" else ""


def _sentence(summary: str) -> str:
    """A docstring's sentence without the marks around its formulas."""
    return re.sub(r":math:`([^`]*)`", r"\1", summary)
