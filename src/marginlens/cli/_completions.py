"""What the shell offers after TAB: statements, norms and other words that options take."""

from __future__ import annotations

import re
from collections.abc import Callable

import typer

from marginlens.papers import listed_statements

NORMS = ("l1", "l2", "linf", "l1.75", "l3", "frobenius", "spectral", "nuclear", "max-row")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")
DEVICES = ("cpu", "cuda", "cuda:1", "mps")


def words_of(*words: str) -> Callable[[str], list[str]]:
    """The completion of an option that takes one of these words."""

    def matching(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete.lower())]

    return matching


norm_names = words_of(*NORMS)


def preset_names(incomplete: str) -> list[str]:
    """The lab's examples whose names begin so."""
    from marginlens.lab.presets import presets

    return [entry.name for entry in presets() if entry.name.lower().startswith(incomplete.lower())]


def label_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """The next words of statements that begin with the words typed so far: A, then Thm, then 3."""
    typed = [_plain(word) for word in ctx.params.get("words") or ()]
    found: dict[str, None] = {}
    for row in listed_statements():
        words = [_plain(word) for word in row["statement"].split()]
        if len(words) > len(typed) and [word.lower() for word in words[: len(typed)]] == [w.lower() for w in typed]:
            found[words[len(typed)]] = None
    return [word for word in found if word.lower().startswith(_plain(incomplete).lower())]


def _plain(word: str) -> str:
    """A word of a label without signs that a shell would ask to be quoted."""
    return re.sub(r"[()'\u2019]", "", word).rstrip(".")
