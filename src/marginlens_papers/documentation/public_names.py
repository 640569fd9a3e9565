"""The public names of the library: where each is imported from, which statements it implements, and what it runs on."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import marginlens
from marginlens.papers import Implementation, natural, registered

FURTHER_ROOMS = ("testing",)  # modules that users import from, beside the packages that `marginlens` lists
CPU, GPU, TORCH = "CPU", "GPU", "PyTorch"
TAKES_A_DEVICE = 'with `device="cuda"`'

# What a signature does not say. A name without an entry, and without a `device` parameter, runs on the CPU with NumPy and compiled loops.
BACKENDS: Mapping[str, Mapping[str, str]] = {
    "marginlens.sweep": {CPU: "processes, or any executor", GPU: 'with `device="cuda"`'},
    "marginlens.AttentionRisk": {CPU: "", TORCH: "for a nonlinear head that is a torch module"},
}
TORCH_ROOMS = {"marginlens.probe": "the model's own device; what is measured is then computed on the CPU"}


@dataclass(frozen=True)
class PublicName:
    """A function or class that users import.

    Attributes:
        path: the shortest name to import it by, such as "marginlens.att_svm". aliases: the others. value: the object itself.
        page: the name of its page where it has one, which no other page has, also where capitals do not count.
    """

    path: str
    aliases: tuple[str, ...]
    value: Any
    page: str

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition(".")[2]

    @property
    def room(self) -> str:
        """The module it is imported from."""
        return self.path.rpartition(".")[0]

    @cached_property
    def has_own_page(self) -> bool:
        """Whether it has a page to itself: what `marginlens` itself offers, and what implements a statement."""
        return self.room == marginlens.__name__ or bool(self.statements(registered()))

    @property
    def address(self) -> str:
        """Where it is described, seen from the folder of the API."""
        return f"{self.page}.html" if self.has_own_page else f"{self.room}.module.html#{self.path}"

    @property
    def is_class(self) -> bool:
        """Whether it is a class: a result, a protocol, an enumeration, an object that a function takes."""
        return inspect.isclass(self.value)

    @property
    def summary(self) -> str:
        """The first sentence of its docstring."""
        text = inspect.getdoc(self.value if self._has_docstring else type(self.value)) or ""
        return " ".join(text.partition("\n\n")[0].split())

    @property
    def _has_docstring(self) -> bool:
        return self.is_class or inspect.isroutine(inspect.unwrap(self.value)) or "__doc__" in vars(self.value)

    @property
    def defined_in(self) -> tuple[str, str]:
        """Module and qualified name of its definition, by which the registry of statements knows it."""
        value = inspect.unwrap(self.value)
        if not (self.is_class or inspect.isroutine(value)):
            value = type(value)
        return value.__module__, value.__qualname__

    def statements(self, registered: Iterable[Implementation]) -> list[Implementation]:
        """The statements that it, or one of its methods, implements or uses, in the papers' order."""
        module, qualified = self.defined_in
        mine = [
            entry
            for entry in registered
            if entry.module == module and (entry.name == qualified or entry.name.startswith(f"{qualified}."))
        ]
        return sorted(dict.fromkeys(mine), key=lambda entry: (entry.inside, natural(entry.citation), entry.name))

    @cached_property
    def backends(self) -> Mapping[str, str]:
        """What it runs on, each with a remark or nothing: CPU, GPU, PyTorch."""
        for path in (self.path, *self.aliases):
            if path in BACKENDS:
                return BACKENDS[path]
        if self.room in TORCH_ROOMS and "torch" in _source(self.value):
            return {CPU: "", TORCH: TORCH_ROOMS[self.room]}
        return {CPU: "", GPU: TAKES_A_DEVICE} if "device" in _parameters(self.value) else {CPU: ""}


@dataclass(frozen=True)
class Room:
    """A module that users import from, with its names in alphabetical order."""

    path: str
    summary: str
    names: Sequence[PublicName]


def public_names() -> list[PublicName]:
    """Every public function and class, once, in the order of its paths."""
    found: dict[int, tuple[Any, list[str]]] = {}
    for module in _modules():
        for name in _listed(module):
            value = getattr(module, name)
            found.setdefault(id(value), (value, []))[1].append(f"{module.__name__}.{name}")
    paths = [sorted(paths, key=lambda path: path.count(".")) for _, paths in found.values()]
    # `marginlens.Path` and `marginlens.path` are one file on some disks
    times = Counter(path.lower() for path, *_ in paths)
    names = []
    for (value, _), (path, *aliases) in zip(found.values(), paths, strict=True):
        page = f"{path}-class" if inspect.isclass(value) and times[path.lower()] > 1 else path
        names.append(PublicName(path, tuple(aliases), value, page))
    return sorted(names, key=lambda entry: (entry.room, entry.name.lower(), entry.name))


def public_rooms(names: Sequence[PublicName]) -> list[Room]:
    """The modules with the names that are imported from them; an alias is listed where it is used too."""
    rooms = []
    for module in _modules():
        prefix = f"{module.__name__}."
        mine = [
            entry
            for entry in names
            if any(path.startswith(prefix) and "." not in path[len(prefix) :] for path in (entry.path, *entry.aliases))
        ]
        summary = " ".join((module.__doc__ or "").strip().partition("\n\n")[0].split())
        rooms.append(Room(module.__name__, summary, sorted(mine, key=lambda entry: entry.name.lower())))
    return rooms


def _modules() -> list[Any]:
    homes: Mapping[str, str] = vars(marginlens)["_HOMES"]  # name → the module that defines it
    packages = [name for name, home in homes.items() if home == "marginlens"]
    return [marginlens, *(import_module(f"marginlens.{name}") for name in sorted([*packages, *FURTHER_ROOMS]))]


def _listed(module: Any) -> list[str]:
    """The names in a module's `__all__` but its constants; where it has none, the functions and classes that it defines or gathers."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not isinstance(getattr(module, name), str | tuple | list | dict)]
    is_package = hasattr(module, "__path__")
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isroutine(value))
        and (value.__module__ == module.__name__ or (is_package and value.__module__.startswith(module.__name__)))
    ]


def _parameters(value: Any) -> Sequence[str]:
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return []


def _source(value: Any) -> str:
    """The module that defines the value, as text, without its docstrings' words."""
    try:
        text = inspect.getsource(inspect.getmodule(value) or value)
    except (OSError, TypeError):
        return ""
    return re.sub(r'""".*?"""', "", text, flags=re.DOTALL)
