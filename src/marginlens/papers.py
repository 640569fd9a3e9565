"""The papers: one bibliography, and the registry that ties each of their statements to the function implementing it."""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from marginlens.errors import InputError


@dataclass(frozen=True)
class Paper:
    """A paper that marginlens implements; `key` is the letter that every label starts with."""

    key: str
    authors: tuple[str, ...]
    title: str
    year: int


BIBLIOGRAPHY: dict[str, Paper] = {
    paper.key: paper
    for paper in (
        Paper(
            "A",
            ("Davoud Ataee Tarzanagh", "Yingcong Li", "Xuechen Zhang", "Samet Oymak"),
            "Max-Margin Token Selection in Attention Mechanism",
            2023,
        ),
        Paper(
            "B",
            ("Diyuan Wu", "Aleksandr Shevchenko", "Samet Oymak", "Marco Mondelli"),
            "Attention with Trained Embeddings Provably Selects Important Tokens",
            2025,
        ),
        Paper(
            "C",
            ("Yingcong Li", "Yixiao Huang", "M. Emrullah Ildiz", "Ankit Singh Rawat", "Samet Oymak"),
            "Mechanics of Next Token Prediction with Self-Attention",
            2024,
        ),
        Paper(
            "D",
            ("Davoud Ataee Tarzanagh", "Yingcong Li", "Christos Thrampoulidis", "Samet Oymak"),
            "Transformers as Support Vector Machines",
            2023,
        ),
        Paper(
            "E",
            ("Addison Kristanto Julistiono", "Davoud Ataee Tarzanagh", "Navid Azizan"),
            "Optimizing Attention with Mirror Descent: Generalized Max-Margin Token Selection",
            2024,
        ),
        Paper(
            "F",
            ("Chen Fan", "Mark Schmidt", "Christos Thrampoulidis"),
            "Implicit Bias of Spectral Descent and Muon on Multiclass Separable Data",
            2025,
        ),
        Paper(
            "G",
            ("Christos Thrampoulidis",),
            "Implicit Optimization Bias of Next-Token Prediction in Linear Models",
            2024,
        ),
    )
}
EARLIER = Paper("B'", BIBLIOGRAPHY["B"].authors, "An earlier version of B: what its appendices alone say", 2025)
OWN = Paper("X", ("The marginlens authors",), "Statements beyond the papers", 2026)  # checked here, published nowhere
SOURCES: dict[str, Paper] = {paper.key: paper for paper in (*BIBLIOGRAPHY.values(), EARLIER, OWN)}


@dataclass(frozen=True)
class Implementation:
    """One statement of a paper and the function or class that implements it, or that uses it as a step of its computation.

    Attributes:
        summary: what the function does; for a statement used inside a function, where and for what it is used.
        inside: whether the statement is used inside the function, instead of implemented by it.
    """

    paper: str
    label: str
    module: str
    name: str
    summary: str
    inside: bool = False

    @property
    def citation(self) -> str:
        """The statement as it is cited everywhere: paper letter, then the paper's own label."""
        return f"{self.paper} {self.label}"


_REGISTRY: list[Implementation] = []
F = TypeVar("F", bound=Callable[..., Any])


def implements(paper: str, *labels: str) -> Callable[[F], F]:
    """Record that the decorated function or class implements these statements of a paper, or our own statements under the key X."""
    return _recording(paper, dict.fromkeys(labels, ""), inside=False)


def uses(paper: str, steps: Mapping[str, str]) -> Callable[[F], F]:
    """Record that the decorated function or class uses these statements of a paper as steps, with one sentence by label.

    This is for equations of a proof or a definition that do not need a separate function. Such a row leads from the label to
    the function and needs no separate test. A function that a user may want to call has `implements`.
    """
    return _recording(paper, steps, inside=True)


def _recording(paper: str, steps: Mapping[str, str], *, inside: bool) -> Callable[[F], F]:
    """Make a decorator that records these statements, with a sentence by label; by default it is the first line of the docstring."""
    if paper not in SOURCES:
        raise KeyError(f"no paper {paper!r} in the bibliography; known: {', '.join(SOURCES)}")

    def record(target: F) -> F:
        summary = (target.__doc__ or "").strip().partition("\n")[0]  # empty under python -OO
        for label, said in steps.items():
            row = Implementation(paper, label, target.__module__, target.__qualname__, said or summary, inside)
            _REGISTRY.append(row)
        return target

    return record


def implementations() -> tuple[Implementation, ...]:
    """List the statements that functions implement, in the order in which the modules were imported."""
    return tuple(record for record in _REGISTRY if not record.inside)


def used_inside() -> tuple[Implementation, ...]:
    """List the statements that are steps inside functions, in the order in which the modules were imported."""
    return tuple(record for record in _REGISTRY if record.inside)


def registered() -> tuple[Implementation, ...]:
    """List the statements that any module of the library or of `marginlens_papers` implements or uses; import them all."""
    from marginlens.errors import MissingExtra

    for name in filter(find_spec, ("marginlens", "marginlens_papers")):
        for module in pkgutil.walk_packages(import_module(name).__path__, f"{name}."):
            with suppress(MissingExtra):  # parts that need an optional package implement no statement
                import_module(module.name)
    return implementations() + used_inside()


def listed_statements() -> list[dict[str, Any]]:
    """List the registered statements and those that claims test, as `make docs` has written them, without importing anything else."""
    with Path(__file__).with_name("statements.jsonl").open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    if find_spec("marginlens_papers") is None:  # whose claims and functions are then not there
        for row in rows:
            row["functions"] = [one for one in row["functions"] if not one["module"].startswith("marginlens_papers")]
            row["claims"] = row["claims_say"] = []
    return [row for row in rows if row["functions"] or row["claims"] or row["belongs_to"]]


def natural(label: str) -> tuple[tuple[int, int, str], ...]:
    """Return the key that sorts labels in natural order, paper by paper: Def 2 before Def 10."""
    parts = [part for part in re.split(r"(\d+)", label) if part]
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)


# ---- labels as people write them

LONG_WORDS = {
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


def labels_named(label: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the labels that a label means, however it is written: one, or all of a paper for its letter.

    Args:
        rows: the statements, as `listed_statements` gives them, with their labels in earlier versions of the papers.
    """
    labels = sorted((row["statement"] for row in rows), key=natural)
    key = _plain(label)
    later = {
        row["statement"]
        for row in rows
        for old in row["earlier_labels"]
        if key in (_plain(old), _plain(old.split()[0]))
    }
    same = [one for one in labels if one in later or key in (_plain(one), _plain(one.split()[0]))]
    same = same or [one for one in labels if _plain(one).startswith(f"{key} ")]  # Eq. (28) for (28a) and (28b)
    if same:
        return same
    near = get_close_matches(key, [_plain(one) for one in labels], n=3, cutoff=0.5)
    close = [one for one in labels if _plain(one) in near]
    expected = f"a statement such as {', '.join(close)}" if close else "a paper's letter and label, such as 'A Thm 3'"
    raise InputError("label", expected, repr(label), "`marginlens statement` lists all.")


def _plain(label: str) -> str:
    """Normalise a label for variants of writing: case, brackets, dots, hyphens, spaces, long words and their short forms."""
    words = re.findall(r"[a-z]+|\d+|[^\sa-z\d().-]+", label.lower().replace("’", "'"))
    return " ".join(LONG_WORDS.get(word, word) for word in words)
