"""The lab as one HTML file: its ES modules wrapped and ordered by their imports, with style, data and the compiled core inside."""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from marginlens.data import TokenDataset
from marginlens.errors import InputError
from marginlens.lab.presets import Shown, deflated, state_of
from marginlens.lab.presets import presets as known_presets
from marginlens.lab.problem_files import LabProblem
from marginlens.pages import render
from marginlens.runtime.files import as_path, check_place, write_whole
from marginlens.typing import ArrayLike
from marginlens.words import text, texts

ENTRY = "page/main.js"
WORKER = "page/worker.js"
DATA, SCRIPT = "page_data.json", "python_script.txt"

_ADDRESS = re.compile(r"https?://[^\s#\"<>]+")
_IMPORT = re.compile(r'^import ?\{([^{}]*)\} ?from ?"(\.{1,2}/[\w./-]+\.js)";\n?', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function\*?|class|const) ([A-Za-z_$][\w$]*))", re.MULTILINE)
_IMPORTED_NAME = re.compile(r"([A-Za-z_$][\w$]*)(?: as ([A-Za-z_$][\w$]*))?")
_CODE = re.compile(r'"([a-z0-9_]+(?:\.[a-z0-9_]+)+)"')
_CODE_BEGUN = re.compile(r"`([a-z0-9_]+\.[a-z0-9_.]*)\$\{")
_COMMENT_LINES = re.compile(r"^\s*//[^\n]*\n|^\s*/\*\*(?:(?!\*/).)*\*/\n", re.MULTILINE | re.DOTALL)
_OTHER_FORM = re.compile(r"^(?:import|export)\b[^\n]*|\bimport\s*\([^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class Module:
    """One ES module: its imports by file, and its code without imports, the word `export` and lines of comments."""

    name: str
    # The file and the names that are imported, as a destructuring pattern.
    imports: tuple[tuple[str, str], ...]
    exports: tuple[str, ...]
    code: str

    def wrapped(self) -> str:
        """Wrap the module in a function that is called at once, which keeps its names inside."""
        imported = "".join(f"const {{ {names} }} = {_variable(source)};\n" for source, names in self.imports)
        exported = ", ".join(self.exports)
        return f"const {_variable(self.name)} = (() => {{\n{imported}{self.code}return {{ {exported} }};\n}})();\n"


def _variable(name: str) -> str:
    """Return the name of a module's object in the bundle."""
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


def read_module(name: str, source: str) -> Module:
    """Read the module of a file; only relative named imports, and exports of functions, classes and constants, can be assembled.

    Args:
        name: the file's path inside the lab's folder, such as `page/state.js`.

        source: its text.
    """
    imports: list[tuple[str, str]] = []

    def note_import(match: re.Match[str]) -> str:
        names = []
        for part in (entry.strip() for entry in match[1].split(",") if entry.strip()):
            found = _IMPORTED_NAME.fullmatch(part)
            if found is None:
                raise _refused(name, part)
            names.append(f"{found[1]}: {found[2]}" if found[2] else found[1])
        imports.append((_resolved(name, match[2]), ", ".join(names)))
        return ""

    code = _IMPORT.sub(note_import, source)
    exports = tuple(match[1] for match in _EXPORT.finditer(code))
    code = _EXPORT.sub("", code)
    other = _OTHER_FORM.search(code)
    if other is not None:
        raise _refused(name, other[0])
    return Module(name, tuple(imports), exports, _COMMENT_LINES.sub("", code))


def _refused(name: str, got: str) -> Exception:
    expected = 'made of import { a, b as c } from "./file.js"; and export function, class or const NAME alone'
    return InputError(name, expected, got.strip())


def _resolved(name: str, source: str) -> str:
    parts = name.split("/")[:-1]
    for part in source.split("/"):
        if part == "..":
            if not parts:
                raise _refused(name, source)
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


@cache
def modules_of(*entries: str) -> Mapping[str, Module]:
    """Return the modules that some files of the lab need, these included, each after those that it imports."""
    folder = resources.files("marginlens.lab")
    found: dict[str, Module] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name not in found:
            file = folder.joinpath(name)
            if not file.is_file():
                raise InputError(name, "a file of the lab", "no such file")
            found[name] = read_module(name, file.read_text(encoding="utf-8"))
            waiting.extend(source for source, _ in found[name].imports)
    return ordered(found)


def ordered(modules: Mapping[str, Module]) -> dict[str, Module]:
    """Order the modules so that each comes after those that it imports; the order is the same in every process."""
    for module in modules.values():
        for source, names in module.imports:
            missing = {entry.split(":")[0] for entry in names.split(", ")} - set(modules[source].exports)
            if missing:
                raise InputError(module.name, f"importing what {source} exports", min(missing))
    needed = {name: [source for source, _ in modules[name].imports] for name in sorted(modules)}
    try:
        return {name: modules[name] for name in TopologicalSorter(needed).static_order()}
    except CycleError as error:
        raise InputError("imports", "free of cycles", " → ".join(error.args[1])) from None


def bundle(entries: Sequence[str] = (ENTRY, WORKER), start: str = "") -> str:
    """Bundle the modules that the entries need into one script.

    Args:
        entries: files of the lab; those of the page by default.

        start: the last statements of the script, in which `module_page_state` holds the exports of `page/state.js` and so on.
            By default the script starts the page if there is a document, and a worker otherwise.
    """
    modules = "".join(module.wrapped() for module in modules_of(*entries).values())
    page, worker = f"{_variable(ENTRY)}.startPage();", f"{_variable(WORKER)}.startWorker(self);"
    start = start or f'if (typeof document === "undefined") {worker}\nelse {page}'
    return f'"use strict";\n{{\n{modules}{start}\n}}\n'


def packed(content: bytes) -> str:
    """Deflate the content and encode it in base64, which is safe inside HTML."""
    return base64.b64encode(deflated(content)).decode("ascii")


def page_words() -> dict[str, Any]:
    """Return the words of the page: the tables of `page_data.json`, its texts, and the parts of a Python script, which begin
    with `# %%`.
    """
    folder = resources.files("marginlens.lab")
    data, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in (DATA, SCRIPT))
    return {**json.loads(data), "sentences": page_texts(), "script": script}


def page_texts() -> dict[str, dict[str, Any]]:
    """Return the entries of `words/texts.toml` whose codes occur in the page's modules, in full or as the beginning of a template."""
    code = "".join(module.code for module in modules_of(ENTRY, WORKER).values())
    whole, begun = set(_CODE.findall(code)), tuple(_CODE_BEGUN.findall(code))
    named = {name: entry for name, entry in texts().items() if name in whole or name.startswith(begun)}
    return {name: {key: part for key, part in entry.items() if key != "example"} for name, entry in named.items()}


def _json_inside(value: object) -> Markup:
    return Markup(json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"))


def _style() -> Markup:
    text = resources.files("marginlens.lab").joinpath("page/page.css").read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return Markup(re.sub(r"\n\s*", "\n", text).strip())


def lab_page(
    problem: Shown | None = None, presets: Sequence[Mapping[str, object]] | None = None, *, address: str | None = None
) -> str:
    """Return the text of the lab's page, which needs no other file and no network.

    Args:
        problem: the problem that the page opens with: a `LabProblem` in the plane, a problem in its JSON form, a preset or its
            name, or a state. By default the preset start-decides is playing.

        presets: entries `{name, title, caption, group, problem, starts, view}`; those of the library by default.

        address: the address of a public copy of the page, such as `https://example.org/lab.html`; links copied from the page
            then lead there.
    """
    if address is not None and not _ADDRESS.fullmatch(address):
        raise InputError("address", "the address of a page, such as https://example.org/lab.html", repr(address))
    listed = [entry.to_dict() for entry in known_presets()] if presets is None else list(presets)
    return render(
        "marginlens.lab",
        "page/page.html",
        style=_style(),
        core=packed(resources.files("marginlens.lab").joinpath("core.wasm").read_bytes()),
        bundle=packed(bundle().encode()),
        presets=_json_inside(listed),
        words=packed(json.dumps(page_words(), ensure_ascii=False, separators=(",", ":")).encode()),
        problem=_json_inside(None if problem is None else _opening(problem)),
        address=address,
        description=text("lab.description"),
    )


def write_lab(
    path: str | os.PathLike[str],
    problem: Shown | TokenDataset | None = None,
    head: ArrayLike | None = None,
    *,
    presets: Sequence[Mapping[str, object]] | None = None,
    address: str | None = None,
    **run: Any,
) -> Path:
    """Write the lab's page to a file, complete or not at all, and return its path.

    Args:
        path: a name that ends in `.html`.

        problem: the problem that the page opens with, as for `lab_page`; or a dataset with keys in the plane, with `head` and
            the other arguments of `LabProblem`: start, optimizer, loss, n_steps, trains_head, start_head, words.

        presets: as for `lab_page`.

        address: as for `lab_page`.
    """
    place = as_path(path, "path", "the path of a file")
    check_place(place, "path", (".html", ".htm"))
    if isinstance(problem, TokenDataset):
        problem = LabProblem(problem, head, **run)
    elif head is not None or run:
        raise InputError("problem", "a TokenDataset where a head or a run is given", type(problem).__name__)
    write_whole(place, lab_page(problem, presets, address=address).encode(), "path")
    return place


def _opening(shown: Shown) -> dict[str, Any]:
    """Return a state, or a problem's JSON form, that the page opens with."""
    if isinstance(shown, Mapping) and "problem" not in shown:
        return dict(shown)
    return state_of(shown)
