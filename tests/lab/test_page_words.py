"""The page's renderer of texts: the same strings as Python's for every example, and for numbers of all sizes."""

from __future__ import annotations

from typing import Any

import pytest

from lab_kernels import needs_node, run_in_page
from marginlens.words import Fact, render, rendered_examples, texts
from marginlens.words.renderer import CASE, OUTCOMES, example

pytestmark = needs_node

CODE = """
import { render } from "./words.js";
globalThis.labWords.sentences = given.texts;
answer(given.facts.map((fact) => render(fact, String)));
"""
HOLDS = {form: holds for holds, form in OUTCOMES.items()}
FORMATS = ("", ",", "d", "g", ".2g", ".4g", ".12g", ".0f", ".2f", ",.1f", ".1e", ".0%", "exp", "list", "# one|several")
NUMBERS = [0, 1, -3, 1234567, 0.7, -0.26, 1e-5, 1.5e-4, 123456.7, 2.5e-16, 1e300, -12345.678, 99999.6, float("1e22")]


def as_json(value: Any) -> Any:
    """A number of a fact as the page takes it."""
    if isinstance(value, Fact):
        return {"code": value.code, "numbers": {name: as_json(item) for name, item in value.numbers.items()}}
    return [as_json(item) for item in value] if isinstance(value, list) else value


def in_page(facts: list[dict[str, Any]], entries: dict[str, Any]) -> list[str]:
    return list(run_in_page(CODE, {"facts": facts, "texts": entries}))


def test_page_renders_every_example_as_python_does() -> None:
    facts, expected = [], []
    for code in texts():
        for form, case, sentence in rendered_examples(code):
            numbers = {name: as_json(value) for name, value in example(code, form, case).items()}
            holds = {"holds": HOLDS[form]} if form in HOLDS else {}
            facts.append({"code": code, "numbers": {**numbers, **({CASE: case} if case else {})}, **holds})
            expected.append(sentence)
    assert in_page(facts, texts()) == expected
    assert len(expected) > 150


@pytest.mark.parametrize("format_", FORMATS)
def test_page_formats_numbers_as_python_does(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"en": f"{{x:{format_}}}"}
    whole = format_ in ("d", "# one|several")
    numbers = [x for x in NUMBERS if isinstance(x, int) or (not whole and (format_ or not float(x).is_integer()))]
    if format_ == ",":
        numbers = [x for x in numbers if isinstance(x, int)]
    if format_ == "exp":
        numbers = [x for x in numbers if abs(x) < 1e5]
    if format_ == "list":
        numbers = [[], [1], [1, 0.12345], ["a", "b", "c"]]
    monkeypatch.setitem(texts(), "test.format", entry)
    facts = [{"code": "test.format", "numbers": {"x": x}} for x in numbers]
    assert in_page(facts, {"test.format": entry}) == [render(Fact("test.format", {"x": x})) for x in numbers]
