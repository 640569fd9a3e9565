"""How right a classifier is on labelled texts, as the terminal shows it."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten
from typing import Any

from marginlens.cli._deferred import terminal
from marginlens.cli.text._options import left_out_words

_WIDEST = 12  # classes up to which the confusion table is printed
_SHOWN_TEXT = 120  # characters of a text


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {"F1" if name == "f1" else name: value for name, value in row.items()}


def subject(answer: dict[str, Any]) -> str:
    """What was measured, in a line."""
    trained_on = answer["trained_on"]
    remark = ", none of which was trained on" if trained_on == 0 else ""
    if trained_on:
        remark = f", {trained_on:,} of which were trained on: only the first number speaks for new texts"
    return f"{answer['file']}: {terminal.counted(answer['texts'], 'text')}{remark}{left_out_words(answer['left_out'])}"


def measures_text(answer: dict[str, Any]) -> Iterator[Any]:
    """What `measures` found, for the terminal."""
    from marginlens.text.evaluation import facts

    yield subject(answer)
    yield terminal.facts_table("How well the model does", facts(answer, answer["texts"]))
    names = [row["label"] for row in answer["classes"]]
    with_said = len(names) <= _WIDEST
    rows = [
        {**_cells(row), **({f"said {name}": n for name, n in zip(names, counts, strict=True)} if with_said else {})}
        for row, counts in zip(answer["classes"], answer["confusion"], strict=True)
    ]
    yield terminal.rows_table("By class, with how often each was said" if with_said else "By class", rows)
    if not with_said:
        yield "--json has the confusion table too."
    if answer["mistakes"]:
        shortened = [{**row, "text": shorten(row["text"], _SHOWN_TEXT, placeholder=" …")} for row in answer["mistakes"]]
        yield terminal.rows_table("The texts that it is most wrong about", shortened)
