"""What the shell offers after TAB: claims, statements, norms and other words that options take.

Claims are read from the sources as text: importing them would take seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import typer

from marginlens.papers import listed_statements

NORMS = ("l1", "l2", "linf", "l1.75", "l3", "frobenius", "spectral", "nuclear", "max-row")
ENCODINGS = ("utf-8", "latin-1", "cp1252", "utf-16")
DEVICES = ("cpu", "cuda", "cuda:1", "mps")
_SETTING = re.compile(r"^    (\w+): [\w\[\], .]+ = \w+\(", re.MULTILINE)
_CLAIM = re.compile(r'^    "([A-Z]-\w+)": "', re.MULTILINE)


def words_of(*words: str) -> Callable[[str], list[str]]:
    """The completion of an option that takes one of these words."""

    def matching(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete.lower())]

    return matching


norm_names = words_of(*NORMS)


def setting_names(package: str, file: str) -> Callable[[str], list[str]]:
    """The completion of --set: the settings that a file of a package lists, each with the sign behind which its value is typed."""

    def matching(incomplete: str) -> list[str]:
        names = [name for source in _sources(package, file) for name in _SETTING.findall(source)]
        return [f"{name}=" for name in names if f"{name}=".startswith(incomplete)]

    return matching


def preset_names(incomplete: str) -> list[str]:
    """The lab's examples whose names begin so."""
    from marginlens.lab.presets import presets

    return [entry.name for entry in presets() if entry.name.lower().startswith(incomplete.lower())]


def claim_ids(incomplete: str) -> list[str]:
    """The claims whose ids begin so, those of installed packages too; after a comma another one."""
    from marginlens.runtime.packs import CLAIMS, pack_names

    before, comma, last = incomplete.rpartition(",")
    known = [name for source in _sources("marginlens_papers", "claims/catalogue.py") for name in _CLAIM.findall(source)]
    known += pack_names(CLAIMS)
    return [f"{before}{comma}{name}" for name in known if name.lower().startswith(last.lower())]


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


def _sources(package: str, pattern: str) -> Iterator[str]:
    """The texts of the files of a package, nothing where it is not installed."""
    found = find_spec(package)
    for place in (found.submodule_search_locations if found is not None else None) or ():
        for file in sorted(Path(place).glob(pattern)):
            yield file.read_text(encoding="utf-8")
