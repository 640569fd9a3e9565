"""Comparisons of arrays say how near is near: the default of one tolerance would decide where the other one is named."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPARISONS = {"allclose", "isclose", "assert_allclose", "approx"}
TOLERANCES = ({"rtol", "atol"}, {"rel_tol", "abs_tol"}, {"rel", "abs"})  # of NumPy and torch, of math, of pytest


def calls_with_a_default_tolerance(source: str) -> list[int]:
    """The lines of comparisons that leave a tolerance to its default."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = {
        call: call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "") for call in calls
    }
    named = {call: {keyword.arg for keyword in call.keywords} for call in calls}
    return [c.lineno for c in calls if names[c] in COMPARISONS and not any(both <= named[c] for both in TOLERANCES)]


def test_every_comparison_names_both_tolerances():
    files = [
        path
        for folder in ("src", "tests", "benchmarks", "examples", "experiments")
        for path in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 100
    found = {path: calls_with_a_default_tolerance(path.read_text(encoding="utf-8")) for path in files}
    assert [f"{path.relative_to(ROOT)}:{line}" for path, lines in found.items() for line in lines] == []


@pytest.mark.parametrize(
    "call",
    [
        "np.allclose(a, b, atol=0.1)",
        "isclose(a, b)",
        "np.testing.assert_allclose(a, b, rtol=0.1)",
        "a == pytest.approx(b, rel=0.1)",
    ],
)
def test_a_default_tolerance_is_found(call):
    assert calls_with_a_default_tolerance(f"x = 1\nassert {call}") == [2]
