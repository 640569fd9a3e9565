"""The pages that are written from the registry of statements: theorem → function → test → claim, and the table of what is implemented."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import marginlens
from marginlens.errors import InputError
from marginlens.papers import SOURCES, Implementation, natural, registered
from marginlens.runtime.files import json_by_line
from marginlens.theory.observations import listed_kind
from marginlens_papers.claim import Claim, in_one_line
from marginlens_papers.claims import catalogue
from marginlens_papers.documentation.texts import TEXTS, texts_page

THEOREMS = "docs/theorems.md"
PAPERS = "docs/papers.md"  # has the table of what is implemented
STATEMENTS = "src/marginlens/statements.jsonl"
OBSERVED = "src/marginlens/theory/observed.json"
_TEXTS = in_one_line(tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")))
PROOF_STEPS: dict[str, str] = {  # equations that are only steps of a proof -> the statement that is proved
    f"{proved[0]} {label}": proved for proved, steps in _TEXTS["steps"].items() for label in steps
}
WORDS: dict[str, str] = {  # what a statement says, by label
    f"{paper} {label}": text for paper, texts in _TEXTS["words"].items() for label, text in texts.items()
} | {
    f"{proved[0]} {label}": f"{'Illustration' if label.startswith('Fig') else 'Proof step'} of {proved}: {step}."
    for proved, steps in _TEXTS["steps"].items()
    for label, step in steps.items()
}
EARLIER_LABELS: dict[str, str] = _TEXTS["earlier"]  # of the same statement in an earlier version
_MARKS = ("<!-- written by make docs: begin -->", "<!-- written by make docs: end -->")


@dataclass(frozen=True)
class TestCitation:
    """One test that says which statement it checks: its file, relative to the checkout, and its name."""

    __test__ = False  # for pytest, which takes the name for a test's

    label: str
    path: str
    name: str


# ---- what there is


def cited_by_tests(root: Path) -> list[TestCitation]:
    """Every `pytest.mark.statement("A Thm 3", …)` in the tests of a checkout, read without importing them."""
    found: list[TestCitation] = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        for name, mark in _marks(tree):
            for argument in mark.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    place = f"{path.relative_to(root).as_posix()}, line {mark.lineno}"
                    raise InputError("statement", "a mark that names its labels as plain strings", place)
                found.append(TestCitation(argument.value, path.relative_to(root).as_posix(), name))
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Each statement mark with the test it stands on: a function, a class, or the whole file for `pytestmark`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            carriers: Iterable[ast.AST] = node.decorator_list
            name = node.name
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
        ):
            carriers, name = [node.value], "every test"
        else:
            continue
        for carrier in carriers:
            for part in ast.walk(carrier):
                if isinstance(part, ast.Call) and ast.unparse(part.func) == "pytest.mark.statement":
                    yield name, part


# ---- what is missing


def gaps(functions: Sequence[Implementation], tests: Sequence[TestCitation], claims: Sequence[Claim]) -> list[str]:
    """One sentence for each label that lacks a function or a test.

    A figure that a claim shows needs neither, and a statement that is only used inside a function needs no test.
    """
    implemented = {function.citation for function in functions}
    public = {item.citation for item in functions if not item.inside}
    tested = {test.label for test in tests}
    cited = {entry.label: f"{entry.path} ({entry.name})" for entry in tests}
    cited |= {label: f"claim {claim.id}" for claim in claims for label in claim.labels if not _is_figure(label)}
    missing = [f"{label} has a function and no test." for label in public - tested]
    missing += [
        f"{label} is cited by {cited[label]} and no function implements it." for label in set(cited) - implemented
    ]
    return sorted(missing, key=natural)


def _is_figure(label: str) -> bool:
    return re.match(r"\S+ Figs? ", label) is not None


# ---- the pages


def theorems_page(functions: Sequence[Implementation], tests: Sequence[TestCitation], claims: Sequence[Claim]) -> str:
    """The page from each statement to the function that implements it, the tests that check it and the claims that show it."""
    labels = {function.citation for function in functions} | {test.label for test in tests}
    labels |= {label for claim in claims for label in claim.labels} | set(PROOF_STEPS)
    lines = [
        "# From theorem to function, test and claim",
        "",
        "Find the function that implements a statement, the tests that hold it to the paper and the claims that show it. Labels are the",
        "papers' own ([papers.md](papers.md)); letters and shapes are explained in [symbols.md](symbols.md). `make docs` writes this page",
        "from the code, and a test fails when it is stale.",
    ]
    for paper in SOURCES.values():
        mine = sorted((label for label in labels if label.split()[0] == paper.key), key=natural)
        if not mine:
            continue
        lines += ["", f"## {paper.key}: {paper.title}", "", f"{', '.join(paper.authors)}, {paper.year}", ""]
        lines += ["| statement | what it says | function | tests | claims |", "| --- | --- | --- | --- | --- |"]
        for label in mine:
            targets = sorted(
                (item for item in functions if item.citation == label),
                key=lambda item: (item.inside, item.module, item.name),
            )
            cells = [
                label.removeprefix(f"{paper.key} "),
                WORDS.get(label) or "<br>".join(_plain(target.summary) for target in targets),
                "<br>".join(_function(entry) for entry in targets),
                "<br>".join(_tests(element for element in tests if element.label == label)),
                ", ".join(claim.id for claim in claims if label in claim.labels),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def implemented_table(functions: Sequence[Implementation]) -> str:
    """Each part of the library, what it answers, and how many statements of each paper it implements."""
    rooms: dict[str, set[str]] = {}
    for function in functions:
        if function.inside:
            continue
        rooms.setdefault(".".join(function.module.split(".")[:2]), set()).add(function.citation)
    lines = ["| part | what | statements |", "| --- | --- | --- |"]
    for room in sorted(rooms):
        summary = (sys.modules[room].__doc__ or "").strip().splitlines()[0]
        papers = Counter(citation.split(" ")[0] for citation in rooms[room])
        counts = ", ".join(f"{paper} {papers[paper]}" for paper in sorted(papers))
        lines.append(f"| `{room}` | {_plain(summary)} | {counts} |")
    return "\n".join(lines)


def with_table(table: str, text: str) -> str:
    """The page of the papers with the table put between its two marks."""
    before, begin, rest = text.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    if not (begin and end):
        raise InputError("text", f"a page with the lines {_MARKS[0]} and {_MARKS[1]}", f"{PAPERS} without them")
    return f"{before}{begin}\n{table}\n{end}{after}"


def _function(function: Implementation) -> str:
    file = sys.modules[function.module].__file__ or ""
    source = Path(marginlens.__path__[0]).parent
    link = f"[`{function.name}`](../src/{Path(file).relative_to(source).as_posix()})"
    return f"inside {link}" if function.inside else link


def _tests(tests: Iterable[TestCitation]) -> list[str]:
    names: dict[str, list[str]] = {}
    for test in tests:
        names.setdefault(test.path, []).append(test.name.removeprefix("test_").replace("_", " "))
    return [f"[{Path(path).name}](../{path}): {'; '.join(dict.fromkeys(names[path]))}" for path in sorted(names)]


def _plain(sentence: str) -> str:
    """A docstring's sentence for a table cell: formulas as code, no column marks."""
    return re.sub(r":math:`([^`]*)`", r"`\1`", sentence).replace("|", "\\|")


# ---- what `marginlens statement` says


def statement_rows(functions: Iterable[Implementation], claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Every statement: what it says, the functions that implement or use it, the claims that show it, its earlier labels."""
    labels = set(PROOF_STEPS) | {one.citation for one in functions} | {cited for one in claims for cited in one.labels}
    rows = []
    for label in sorted(labels, key=natural):
        found = sorted(
            (one for one in functions if one.citation == label), key=lambda one: (one.inside, one.module, one.name)
        )
        shown = [claim for claim in claims if label in claim.labels]
        sentences = [re.sub(r":math:`([^`]*)`", r"\1", one.summary) for one in found]
        said = [claim.statement.replace("$", "") for claim in shown]
        rows.append(
            {
                "statement": label,
                "says": WORDS.get(label) or [*sentences, *said, ""][0],
                "functions": [
                    {
                        "name": public_name(one),
                        "role": "uses" if one.inside else "implements",
                        "what": sentence,
                        "module": one.module,
                    }
                    for one, sentence in zip(found, sentences, strict=True)
                ],
                "belongs_to": PROOF_STEPS.get(label),
                "claims": [claim.id for claim in shown],
                "claims_say": said,
                "earlier_labels": [earlier for earlier, later in EARLIER_LABELS.items() if later == label],
            }
        )
    return rows


def public_name(one: Implementation) -> str:
    """The shortest path under which the function can be imported."""
    parts, first = one.module.split("."), one.name.split(".")[0]
    target = getattr(sys.modules[one.module], first)
    for length in range(1, len(parts)):
        package = ".".join(parts[:length])
        if getattr(sys.modules[package], first, None) is target:
            return f"{package}.{one.name}"
    return f"{one.module}.{one.name}"


# ---- what `marginlens.theory.implicit_bias` cites


def observations(claims: Iterable[Claim]) -> dict[str, dict[str, Any]]:
    """By the id of a claim, its labels and the descents that it declares: what was trained, and by which kind of optimizer."""
    return {
        claim.id: {
            "labels": list(claim.labels),
            "runs": [
                {
                    "variable": run.variable,
                    "kind": listed_kind(run.optimizer),
                    **({} if run.eta_gamma is None else {"eta_gamma": run.eta_gamma}),
                    **({} if run.widths is None else {"widths": list(run.widths)}),
                }
                for run in claim.runs
            ],
        }
        for claim in claims
        if claim.runs
    }


# ---- writing


def pages(root: Path) -> dict[str, str]:
    """Every written page of the checkout at `root`: its path and what it should hold."""
    if not (root / "tests").is_dir() or not (root / PAPERS).is_file():
        raise InputError("root", f"a checkout of marginlens, with tests and {PAPERS}", repr(str(root)))
    claims, tests = catalogue.claims(), cited_by_tests(root)
    functions = registered()
    papers = (root / PAPERS).read_text(encoding="utf-8")
    return {
        THEOREMS: theorems_page(functions, tests, claims),
        TEXTS: texts_page(),
        PAPERS: with_table(implemented_table(functions), papers),
        STATEMENTS: "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in statement_rows(functions, claims)),
        OBSERVED: json_by_line(observations(claims)).decode(),
    }


def write_pages(root: Path) -> None:
    """Write them, and say on stderr which labels lack a function or a test."""
    for name, text in pages(root).items():
        (root / name).write_text(text, encoding="utf-8")
    for gap in gaps(registered(), cited_by_tests(root), catalogue.claims()):
        print(gap, file=sys.stderr)
