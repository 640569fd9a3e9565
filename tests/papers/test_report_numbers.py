"""Checked numbers as a reader sees them."""

import math

import pytest

from marginlens_papers.claim import Bound, Unit
from marginlens_papers.report import BoundCheck
from marginlens_papers.report.numbers import shown_bound, shown_number


def check(number, unit, low=-math.inf, high=math.inf):
    return BoundCheck("name", Bound(low, high), number, unit=unit)


@pytest.mark.parametrize(
    ("number", "unit", "shown"),
    [
        (0.123456789, Unit.NUMBER, "0.123457"),
        (-2.5e-11, Unit.NUMBER, "−2.5 · 10⁻¹¹"),
        (1e-12, Unit.NUMBER, "10⁻¹²"),
        (1.0 - 4e-7, Unit.NUMBER, "1 − 4 · 10⁻⁷"),
        (1.0, Unit.NUMBER, "1"),
        (math.nan, Unit.COUNT, "not found"),
        (10_000_000.0, Unit.COUNT, "10,000,000"),
        (0.99996, Unit.SHARE, "99.996%"),
        (1.0, Unit.TRUTH, "yes"),
        (0.0, Unit.TRUTH, "no"),
        (math.inf, Unit.COUNT, "inf"),
    ],
)
def test_a_number_is_shown_by_its_unit(number, unit, shown):
    assert shown_number(check(number, unit)).replace("\N{NO-BREAK SPACE}", " ") == shown


@pytest.mark.parametrize(
    ("bound", "unit", "shown"),
    [
        (Bound(1.0, 1.0), Unit.TRUTH, "yes"),
        (Bound(0.0, 0.0), Unit.TRUTH, "no"),
        (Bound(high=0.0), Unit.COUNT, "none"),
        (Bound(0.0, 0.0), Unit.COUNT, "none"),
        (Bound(3.0, 3.0), Unit.COUNT, "3"),
        (Bound(low=50.0), Unit.COUNT, "at least 50"),
        (Bound(high=100.0), Unit.COUNT, "at most 100"),
        (Bound(low=0.95), Unit.SHARE, "≥ 95%"),
        (Bound(high=1e-10), Unit.NUMBER, "≤ 10⁻¹⁰"),
        (Bound(-1.05, -0.95), Unit.NUMBER, "−1.05 to −0.95"),
    ],
)
def test_a_bound_is_shown_by_its_unit(bound, unit, shown):
    assert shown_bound(check(0.0, unit, bound.low, bound.high)).replace("\N{NO-BREAK SPACE}", " ") == shown
