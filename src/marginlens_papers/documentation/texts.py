"""The page of all texts: every sentence of `words/texts.toml` once, with the numbers of its example, for a reader to correct."""

from __future__ import annotations

import re

from marginlens.words import rendered_examples, sections, texts

TEXTS = "docs/texts.md"
FORMS = {"en": "", "yes": "if it holds", "no": "if it fails", "open": "if undecided"}
_HEAD = """\
# Texts

Read here every sentence that the library, the command line and the lab print: once, with example numbers. To correct one, edit the entry of
its code in [texts.toml](../src/marginlens/words/texts.toml) and run `make docs`, which writes this page; a test fails when it is stale.

The second column says when the sentence is used: if a condition holds, fails or cannot be decided, and in which of several cases.
A *title* is the short name of a condition, as tables show it.
"""
_MARKUP = re.compile(r"(`[^`]*`)|([\\*<$|\[\]])")  # code, or a sign that Markdown would read


def texts_page() -> str:
    """The page: a table of each section of `texts.toml`."""
    parts = [_HEAD]
    for heading, codes in sections().items():
        if codes:
            rows = [row for code in codes for row in _rows(code)]
            table = ["| code | when | text |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
            parts.append("\n".join([f"## {heading[0].upper()}{heading[1:]}", "", *table, ""]))
    return "\n".join(parts)


def _rows(code: str) -> list[tuple[str, str, str]]:
    """The cells of a code's rows: the code, when a text is used, and the text."""
    rows = [("title", _escaped(texts()[code]["title"]))] if "title" in texts()[code] else []
    for form, case, sentence in rendered_examples(code):
        conditions = [FORMS[form], f"`{case}`" if case else ""]
        rows.append((", ".join(filter(None, conditions)), _escaped(sentence)))
    return [(f"`{code}`" if k == 0 else "", when, sentence) for k, (when, sentence) in enumerate(rows)]


def _escaped(sentence: str) -> str:
    """A sentence as the cell of a Markdown table that shows it letter by letter, with its code as code."""
    lines = (_MARKUP.sub(lambda mark: mark[1] or f"\\{mark[2]}", line) for line in sentence.splitlines())
    return "<br>".join(lines)
