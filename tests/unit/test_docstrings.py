"""Docstrings of the library: every example runs as it is shown, and the first sentence of every public one has the usual form.

An example imports all it uses, as a reader would type it, and prints few digits: they are the same on every processor.
"""

import ast
import doctest
import inspect
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import marginlens

SOURCE = Path(marginlens.__file__).parent
PROMPT = ">>>"
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
QUESTIONS = ("What ", "Which ", "Where ", "Whether ", "How ")

# What is reached: raise the first and lower the others, never the other way round.
MIN_NAMES_WITH_EXAMPLES = 120
MAX_LOWER_CASE = 39
MAX_WITHOUT_PERIOD = 0
MAX_QUESTIONS = 22


def documented(node, prefix):
    """The nodes under one of the syntax tree that may have a docstring, each with its dotted name."""
    yield prefix, node
    for child in node.body:
        if isinstance(child, DOCUMENTED):
            yield from documented(child, f"{prefix}.{child.name}")


def examples():
    """Every docstring of the library with an example, as a test of doctest."""
    parser = doctest.DocTestParser()
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if PROMPT in source:
            module = ".".join(("marginlens", *path.relative_to(SOURCE).with_suffix("").parts))
            for name, node in documented(ast.parse(source), module.removesuffix(".__init__")):
                docstring = ast.get_docstring(node)
                if docstring is not None and PROMPT in docstring:
                    line = getattr(node, "lineno", 1)
                    yield parser.get_doctest(docstring, {"__name__": "__main__"}, name, str(path), line)


@cache
def public():
    """The public functions and classes by name, with the public methods that classes define themselves."""
    packages = [name for name, home in marginlens._HOMES.items() if home == "marginlens"]
    names = {}
    for package in (marginlens, *(import_module(f"marginlens.{name}") for name in packages)):
        for value in (getattr(package, name) for name in package.__all__):
            if (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__.startswith("marginlens."):
                names[f"{value.__module__}.{value.__qualname__}"] = value
                members = vars(value).items() if inspect.isclass(value) else ()
                for member, method in members:
                    function = getattr(method, "__func__", method)  # of a class method
                    if inspect.isfunction(function) and not member.startswith("_"):
                        names[f"{value.__module__}.{value.__qualname__}.{member}"] = function
    return names


def first_paragraphs():
    """The first paragraph of every public docstring, by name; a dataclass without one has its signature instead."""
    for name, value in public().items():
        docstring = value.__doc__ or ""
        if docstring and not docstring.startswith(f"{value.__name__}("):
            yield name, inspect.cleandoc(docstring).split("\n\n")[0]


@pytest.mark.parametrize("example", [pytest.param(example, id=example.name) for example in examples()])
def test_example_of_docstring_prints_what_it_shows(example, tmp_path, monkeypatch):
    if example.name.startswith("marginlens.probe."):
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    outcome = runner.run(example, out=report.append)
    assert outcome.failed == 0, "".join(report)
    assert outcome.attempted > 0


def test_public_names_have_examples():
    shown = [name for name, value in public().items() if PROMPT in (value.__doc__ or "")]
    assert len(shown) >= MIN_NAMES_WITH_EXAMPLES, f"{len(shown)} public names have an example"


def test_public_docstrings_begin_with_a_capital_letter():
    lower = [name for name, paragraph in first_paragraphs() if not paragraph[0].isupper()]
    assert len(lower) <= MAX_LOWER_CASE, f"{len(lower)}: {lower}"


def test_first_sentence_of_public_docstrings_ends_with_a_period():
    # A colon leads to a formula.
    unfinished = [name for name, paragraph in first_paragraphs() if not paragraph.endswith((".", ":"))]
    assert len(unfinished) <= MAX_WITHOUT_PERIOD, f"{len(unfinished)}: {unfinished}"


def test_public_functions_begin_with_a_verb_instead_of_a_question_word():
    questions = [
        name
        for name, paragraph in first_paragraphs()
        if inspect.isfunction(public()[name]) and paragraph.startswith(QUESTIONS)
    ]
    assert len(questions) <= MAX_QUESTIONS, f"{len(questions)}: {questions}"
