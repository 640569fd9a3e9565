"""How many tests compare whole sentences: others compare codes, numbers and `error.argument`, and survive a better wording."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
MAX_TESTS_OF_SENTENCES = 60
MIN_WORDS = 8
# pages of the documentation that a test types, and the page that shows every text once
PAGES = {"test_docs_snippets.py", "test_documentation.py"}


def is_sentence(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and len(words(node.value)) >= MIN_WORDS


def words(text):
    return re.findall(r"(?<!\S)['\"(]?[^\W\d_][^\W_]*(?=[\s.,;:!?)'\"]|$)", re.sub(r"<[^>]*>|\\[a-z]", " ", text))


def compared(function):
    """What a function compares: the conditions of its assertions, what it asserts of each of several, and its parameters."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.For) and any(isinstance(inner, ast.Assert) for inner in ast.walk(node)):
            yield node.iter
    yield from function.decorator_list


def compares_sentences(function):
    """Whether a test matches the message of an error or a warning, or compares a literal of several words."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    if any(keyword.arg == "match" for call in calls for keyword in call.keywords):
        return True
    return any(is_sentence(node) for part in compared(function) for node in ast.walk(part))


def functions_of(source):
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_few_tests_compare_sentences():
    found = [
        f"{path.relative_to(TESTS)}::{test.name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        if path.name not in PAGES
        for test in functions_of(path.read_text(encoding="utf-8"))
        if compares_sentences(test)
    ]
    assert len(found) <= MAX_TESTS_OF_SENTENCES, "\n".join(found)


@pytest.mark.parametrize(
    ("body", "counts"),
    [
        ("with pytest.raises(ValueError, match='wrong'):\n  f()", True),
        ("assert 'one two three four five six seven eight' in f()", True),
        ("for text in ('a b c d e f g h i',):\n  assert text in f()", True),
        ("assert error.argument == 'selected'", False),
        ("run('one two three four five six seven eight')", False),
    ],
)
def test_a_compared_sentence_is_counted(body, counts):
    lines = body.replace("\n", "\n ")
    (test,) = functions_of(f"def test_one():\n {lines}")
    assert compares_sentences(test) == counts
