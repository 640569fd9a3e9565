"""The gallery's scripts: which files they are, what they call, and which presets of the lab show their problems."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from marginlens.errors import InputError
from marginlens_papers.documentation.public_names import PublicName

FOLDER = "examples"
TITLE = "Gallery"
# folders of scripts, in the gallery's order
GROUPS = ("selection", "optimizers", "next_tokens", "texts", "real_models")
_TITLE = re.compile(r"\S.*\n={3,}\n")
LAB_PRESETS: Mapping[str, Sequence[str]] = {
    "figure_1a": ("A-F1a",),
    "figure_1b": ("A-F1b",),
    "figure_1c": ("A-F1c",),
    "figure_2": ("C-F2",),
    "figure_3a": ("A-F3a",),
    "figure_3b": ("A-F3b",),
    "figure_5": ("A-F5",),
    "figure_8": ("A-F8",),
    "cone_example": ("A-F2",),
    "basin_example": ("X-B-random",),
    "norm_example": ("X-N2-l2", "X-N2-linf", "X-N2-l1"),
    "norm_selection_example": ("X-N4-l2", "X-N4-linf"),
}  # the function of `marginlens.data` that makes a problem → the presets of the lab that show it


def is_example(path: str) -> bool:
    """Whether a path of the repository is that of a script of the gallery."""
    parts = PurePosixPath(path).parts
    return len(parts) == 3 and parts[0] == FOLDER and parts[1] in GROUPS and path.endswith(".py")


def example_files(root: Path) -> list[Path]:
    """The scripts of the gallery. Folders that are packages of their own, with a pyproject.toml, are no part of it.

    Raises:
        InputError: a script has no title, or lies in a folder that is no group; the gallery would leave it out without a word.
    """
    packages = {path.parent for path in (root / FOLDER).glob("*/pyproject.toml")}
    files = [
        path
        for path in sorted((root / FOLDER).rglob("*.py"))
        if not packages & {*path.parents} and not _is_hidden(path)
    ]
    for path in files:
        name = path.relative_to(root).as_posix()
        if not is_example(name):
            raise InputError(
                f"{name} must be in one of the gallery's groups, {', '.join(GROUPS)}, or in a package with a pyproject.toml."
            )
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if not _TITLE.match(docstring + "\n"):
            raise InputError(
                f"{name} must open with a docstring whose first line is a title, with a line of = signs below it."
            )
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts[-3:])


def gallery_headers(root: Path) -> dict[str, str]:
    """The headers of the gallery and of its groups: as the checkout has them, or a title where it has none."""
    folders = [root / FOLDER, *sorted({path.parent for path in example_files(root)})]
    headers = {}
    for folder in folders:
        found = [path for name in ("GALLERY_HEADER", "README") for path in sorted(folder.glob(f"{name}.*"))]
        name = folder.relative_to(root).as_posix()
        title = TITLE if folder == folders[0] else folder.name.replace("_", " ").capitalize()
        text = found[0].read_text(encoding="utf-8") if found else f"{title}\n{'=' * len(title)}\n"
        headers[f"{name}/GALLERY_HEADER.rst"] = text
    return headers


def presets_shown(text: str) -> list[str]:
    """The presets of the lab that show a problem which a script makes."""
    used = [maker for maker in LAB_PRESETS if re.search(rf"\bdata\.{maker}\(", text)]
    return [name for maker in used for name in LAB_PRESETS[maker]]


def uses_in(examples: Mapping[str, str], names: Sequence[PublicName]) -> dict[str, list[str]]:
    """For each public name the examples that mention it, by the way it is imported: `ml.descend`, `ml.data.figure_8`, `from … import …`."""
    paths = {path: entry.path for entry in names for path in (entry.path, *entry.aliases)}
    found: dict[str, list[str]] = {}
    for name, text in examples.items():
        for used in sorted({paths[path] for path in _dotted_names(ast.parse(text)) if path in paths}):
            found.setdefault(used, []).append(name)
    return found


def _dotted_names(tree: ast.Module) -> Iterator[str]:
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                imported[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            first, dot, rest = ast.unparse(node).partition(".")
            if first in imported:
                yield f"{imported[first]}{dot}{rest}"
