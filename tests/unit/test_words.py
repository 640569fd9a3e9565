"""Codes and texts fit together: every code has a text, every text a code, and every placeholder a number."""

import ast
import re
import string
from functools import cache
from pathlib import Path

import pytest

from marginlens.words import (
    Fact,
    exponential,
    listed,
    numbered,
    percent,
    rendered_examples,
    sections,
    short,
    text,
    texts,
)
from marginlens.words.renderer import CASE, FORMS

SOURCE = Path(__file__).resolve().parents[2] / "src"
BY_KEYWORD = {"text", "_promise"}  # calls that take the numbers as keywords
MAKERS = {
    "Check",
    "Fact",
    *BY_KEYWORD,
}  # calls whose first argument is a code, and whose second or third holds its numbers
CODE = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")


@cache
def parsed():
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("marginlens", "marginlens_papers")
        for path in (SOURCE / folder).rglob("*.py")
        if "words" not in path.parts
    }


def is_code(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value)


def made():
    """The calls that make a fact with a literal code: (file and line, code, names of its numbers or None, its case if it is literal)."""
    for path, tree in parsed().items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            if name in MAKERS and call.args and is_code(call.args[0]):
                tables = [
                    value for value in (*call.args, *(k.value for k in call.keywords)) if isinstance(value, ast.Dict)
                ]
                literal = all(isinstance(key, ast.Constant) for table in tables for key in table.keys)
                names = {key.value for table in tables for key in table.keys} if literal and len(tables) == 1 else None
                if name in BY_KEYWORD:
                    names = {keyword.arg for keyword in call.keywords}
                    names = None if None in names else names
                cases = [
                    value.value
                    for table in tables
                    for key, value in zip(table.keys, table.values, strict=True)
                    if isinstance(key, ast.Constant) and key.value == CASE and isinstance(value, ast.Constant)
                ]
                yield f"{path.name}:{call.lineno}", call.args[0].value, names, cases[0] if cases else None


def literals():
    """All strings of the library that may be codes, and the beginnings of those that are put together."""
    whole, begun = set(), set()
    for tree in parsed().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                whole.add(node.value)
            if isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
                begun.add(node.values[0].value)
    for path in (page for room in ("lab", "probe") for page in SOURCE.glob(f"marginlens/{room}/**/*.js")):
        page = path.read_text(encoding="utf-8")
        whole.update(re.findall(r"""["']([a-z0-9_.]+)["']""", page))
        begun.update(re.findall(r"`([a-z0-9_]+\.[a-z0-9_.]*)\$\{", page))
    return whole, tuple(start for start in begun if re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_.]*", start))


def templates(entry):
    for form in FORMS:
        cases = entry.get(form, {})
        yield from [(form, None, cases)] if isinstance(cases, str) else [(form, *case) for case in cases.items()]


def placeholders(template):
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_every_code_has_a_text():
    missing = [(where, code) for where, code, *_ in made() if code not in texts()]
    assert missing == []


def test_every_text_has_a_code():
    whole, begun = literals()
    unused = [code for code in texts() if code not in whole and not code.startswith(begun)]
    assert unused == []


def test_every_placeholder_is_among_the_numbers_that_are_given():
    lacking = []
    for where, code, names, stated in made():
        for form, case, template in templates(texts().get(code, {})):
            needed, is_meant = placeholders(template), stated in (None, case)
            if names is not None and form == "en" and is_meant and not needed <= names:
                lacking.append((where, code, needed - names))
    assert lacking == []


@pytest.mark.parametrize("code", texts())
def test_every_text_renders_with_its_example(code):
    entry = texts()[code]
    assert CODE.fullmatch(code)
    for _, _, template in templates(entry):
        assert placeholders(template) <= set(entry.get("example", {}))
    for form, _, sentence in rendered_examples(code):
        assert sentence.strip() == sentence
        assert "{" not in sentence
        if form != "en":
            assert entry["title"]


def test_sections_hold_every_code_once():
    assert sorted(code for codes in sections().values() for code in codes) == list(texts())


def test_formats_of_the_renderer():
    assert numbered(1, "minimum", "minima") == "1 minimum"
    assert numbered(1200, "minimum", "minima") == "1,200 minima"
    assert listed(["a"]) == "a"
    assert listed(["a", "b"]) == "a and b"
    assert listed([1, 0.123456, Fact("status.completed")]) == "1, 0.1235 and All requested steps were taken."
    assert exponential(0.0) == "1"
    assert exponential(-1e4) == "e^-1e+04"
    assert [percent(share) for share in (0.0, 2e-4, 0.05, 0.5, 0.999, 1.0)] == [
        "0%",
        "0.02%",
        "5.0%",
        "50%",
        "99.9%",
        "100%",
    ]
    assert [short(value) for value in (0.0, -0.5, 12.345, 2e-5, float("nan"))] == ["0", "−0.5", "12.3", "2.0e−05", "–"]


def test_render_unknown_code_raises_with_the_code():
    with pytest.raises(KeyError) as error:
        text("no.such_code")
    assert "no.such_code" in str(error.value)
