"""The pages of the API: one for each module and each name that is used most, in reStructuredText for Sphinx's autodoc."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module

from marginlens.papers import Implementation
from marginlens_papers.documentation.public_names import PublicName, Room

FOLDER = "api"
STATEMENTS = "theorems"  # the page that has a row for each statement


def api_pages(
    names: Sequence[PublicName],
    rooms: Sequence[Room],
    registered: Sequence[Implementation],
    examples: Mapping[str, Sequence[str]],
) -> dict[str, str]:
    """Every page of the API: its path inside the site's source, and its text.

    Args:
        names, rooms: what is public. registered: the statements with their functions.
        examples: the public path of a name → the examples that use it.
    """
    pages = {f"{FOLDER}/index.rst": _index(rooms)}
    for room in rooms:
        pages[f"{FOLDER}/{room.path}.module.rst"] = _room_page(room, examples)
    for entry in filter(lambda entry: entry.has_own_page, names):
        pages[f"{FOLDER}/{entry.page}.rst"] = name_page(entry, registered, examples.get(entry.path, ()))
    return pages


def name_page(entry: PublicName, registered: Sequence[Implementation], examples: Sequence[str]) -> str:
    """The page of one name: signature and docstring, then the statements, the backends and the examples."""
    title = entry.name
    lines = [":orphan:", "", title, "=" * len(title), ""]
    lines += [f":doc:`API <index>` › :doc:`{entry.room} <{entry.room}.module>`", ""]
    lines += [f".. currentmodule:: {entry.room}", "", *_directive(entry), ""]
    if entry.aliases:
        lines += [f"Also importable as {', '.join(f'``{path}``' for path in entry.aliases)}.", ""]
    lines += [
        *_heading("Runs on"),
        *_backends(entry),
        "",
        *_heading("Statements of the papers"),
        *_statements(entry, registered),
        "",
    ]
    lines += _heading("Examples")
    lines += (
        _gallery(entry) if examples else ["No example of the :doc:`gallery </gallery/index>` calls it by name.", ""]
    )
    return "\n".join(lines)


def _gallery(entry: PublicName) -> list[str]:
    return [f".. minigallery:: {' '.join((entry.path, *entry.aliases))}", ""]


def statement_anchor(citation: str) -> str:
    """The place of a statement's row on the page of statements, e.g. "a-thm-3" for A Thm 3."""
    return re.sub(r"[^a-z0-9]+", "-", citation.lower().replace("'", "-earlier")).strip("-")


def _heading(text: str) -> list[str]:
    return [text, "-" * len(text), ""]


def _directive(entry: PublicName) -> list[str]:
    if not entry.is_class:
        is_plain = inspect.isroutine(entry.value) or hasattr(entry.value, "__wrapped__")
        return [f".. autofunction:: {entry.name}"] if is_plain else [f".. autodata:: {entry.name}", "   :no-value:"]
    bases = ["   :show-inheritance:"] if entry.value.__bases__ != (object,) else []
    return [f".. autoclass:: {entry.name}", "   :members:", "   :undoc-members:", *bases, *_inherited(entry)]


def _inherited(entry: PublicName) -> list[str]:
    """The option that lists what a class has from bases without a page, and not what it has from those of displays and other packages."""
    room = import_module(entry.room)
    bases = entry.value.__mro__[1:]
    unlisted = {
        base.__name__
        for base in bases
        if base.__module__.startswith("marginlens.")
        and not base.__module__.startswith("marginlens.result")
        and not hasattr(room, base.__name__)
    }
    others = [base.__name__ for base in bases if base.__name__ not in unlisted]
    return [f"   :inherited-members: {', '.join(others)}"] if unlisted else []


def _backends(entry: PublicName) -> list[str]:
    return [f"- **{name}**{f': {remark}' if remark else ''}" for name, remark in _as_rst(entry.backends).items()]


def _as_rst(remarks: Mapping[str, str]) -> dict[str, str]:
    return {name: remark.replace("`", "``") for name, remark in remarks.items()}


def _statements(entry: PublicName, registered: Sequence[Implementation]) -> list[str]:
    found = entry.statements(registered)
    if not found:
        return ["It implements none by itself."]
    lines = []
    for statement in found:
        link = f":statement:`{statement.citation}`"
        method = statement.name.removeprefix(entry.defined_in[1]).lstrip(".")
        place = f" (``{method}``)" if method else ""
        lines.append(f"- {link}{place}{f', inside: {escaped(statement.summary)}' if statement.inside else ''}")
    return lines


def _room_page(room: Room, examples: Mapping[str, Sequence[str]]) -> str:
    """The page of a module: a table of its names, and in full those that have no page of their own."""
    lines = [f"``{room.path}``", "=" * (len(room.path) + 4), "", ":doc:`API <index>`", "", escaped(room.summary), ""]
    for title, wanted in (("Functions", False), ("Classes", True)):
        mine = [entry for entry in room.names if entry.is_class == wanted]
        if mine:
            lines += [*_heading(title), ".. list-table::", "   :widths: 35 65", "   :class: names", ""]
            for entry in mine:
                lines += [f"   * - `{entry.name} <{entry.address}>`__", f"     - {escaped(entry.summary)}"]
            lines.append("")
    described = [entry for entry in room.names if entry.room == room.path and not entry.has_own_page]
    if described:
        lines += [*_heading("In full"), f".. currentmodule:: {room.path}", ""]
    for entry in described:
        lines += [*_directive(entry), ""]
        if [*entry.backends] != ["CPU"]:
            lines += ["Runs on:", "", *_backends(entry), ""]
        lines += _gallery(entry) if examples.get(entry.path) else []
    return "\n".join(lines)


def _index(rooms: Sequence[Room]) -> str:
    title = "API"
    lines = [title, "=" * len(title), ""]
    lines += [
        "Find a function by its module, or type its name into the search. ``import marginlens as ml`` gives the names that are used",
        "most; the others are imported from their module, such as ``ml.theory.smoothness``. Names that implement a statement of the papers",
        "have a page each: signature, the problem that is solved, statements, what it runs on, and the examples that call it.",
        "",
        ".. list-table::",
        "   :widths: 30 10 60",
        "   :header-rows: 1",
        "",
        "   * - module",
        "     - names",
        "     - what",
    ]
    for room in rooms:
        lines += [
            f"   * - :doc:`{room.path} <{room.path}.module>`",
            f"     - {len(room.names)}",
            f"     - {escaped(room.summary)}",
        ]
    lines += ["", ".. toctree::", "   :hidden:", ""]
    lines += [f"   {room.path} <{room.path}.module>" for room in rooms]
    return "\n".join([*lines, ""])


# ---- sentences of docstrings

_KEPT = re.compile(
    r":[\w:+-]+:`[^`]*`|``[^`]*``|`[^`]*`"  # roles, code, and names in single backticks
    r"|(?<![\w*(])\*[A-Za-z][A-Za-z ,.'-]*\*(?![\w*])"  # words that are stressed
)
_SECTION = re.compile(r"(\s*)(?:Args|Attributes):\s*$")
_ENTRY = re.compile(r"(?:^|(?<=[.;)]) )((?:\w+, )*\w+): ")
_SPECIAL = re.compile(r"[*|\\]|_(?=\W|$)")
_FIELD = re.compile(r"\s*\*{0,2}\w+(?: \([^)]*\))?: ")


def escaped(text: str) -> str:
    """A sentence as it is read, with nothing in it that reStructuredText takes for markup: stars, bars and trailing underscores."""
    parts, end = [], 0
    for match in _KEPT.finditer(text):
        parts += [_SPECIAL.sub(r"\\\g<0>", text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, _SPECIAL.sub(r"\\\g<0>", text[end:])])


def separated_entries(lines: Sequence[str], names: Collection[str]) -> list[str]:
    """A docstring in which each argument or attribute has an entry of its own: `a, b: of both. c: its size.` becomes three.

    Args:
        lines: of the docstring. names: of what it describes: parameters or attributes.
    """
    done: list[str] = []
    section: list[str] | None = None
    margin = 0  # the indent of the section's name
    for line in [*lines, "."]:  # the dot ends the last section
        indent = len(line) - len(line.lstrip())
        if section is not None and line.strip() and indent <= margin:
            done += _separated(section, names)
            section = None
        if section is not None:
            section.append(line)
            continue
        done.append(line)
        if match := _SECTION.match(line):
            section, margin = [], len(match[1])
    return done[:-1]


def _separated(section: Sequence[str], names: Collection[str]) -> list[str]:
    """The lines of a section with its entries taken apart; entries that hold a formula or a blank line stay as they are."""
    filled = [line for line in section if line.strip()]
    if not filled:
        return list(section)
    pad = filled[0][: len(filled[0]) - len(filled[0].lstrip())]
    entries: list[list[str]] = []
    for line in section:
        if line.strip() and len(line) - len(line.lstrip()) == len(pad):
            entries.append([])
        entries[-1].append(line)
    done = []
    for entry in entries:
        end = max(k for k, line in enumerate(entry) if line.strip()) + 1
        body, blank = entry[:end], entry[end:]
        text = " ".join(line.strip() for line in body)
        found = [match for match in _ENTRY.finditer(text) if not match.start() or {*match[1].split(", ")} <= {*names}]
        if ".. " in text or not all(line.strip() for line in body) or not found or found[0].start():
            done += entry
            continue
        for match, following in zip(found, [*found[1:], None], strict=True):
            words = text[match.end() : following.start() if following else None].strip()
            done += [f"{pad}{name}: {words}" for name in match[1].split(", ")]
        done += blank
    return done


def escaped_docstring(lines: Sequence[str]) -> list[str]:
    """A docstring with its sentences escaped and its formulas, code blocks and directives left as they are."""
    done: list[str] = []
    block: int | None = None  # the indent of the directive or literal block that is open
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None:
            is_directive = re.match(r"\s*\.\. \w+::", line) is not None
            head = _FIELD.match(line)  # the name of an argument, which napoleon escapes itself
            first = head.end() if head else 0
            done.append(
                line if is_directive or line.lstrip().startswith(">>>") else line[:first] + escaped(line[first:])
            )
            if is_directive or line.rstrip().endswith("::"):
                block = indent
        else:
            done.append(line)
    return done
