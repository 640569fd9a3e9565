"""Checked numbers as a reader sees them."""

import math

import pytest

from marginlens_papers.claim import Bound, Unit
from marginlens_papers.report import BoundCheck
from marginlens_papers.report.numbers import shown_bound, shown_number


@pytest.mark.parametrize(
    ("unit", "number", "shown", "bound", "bound_shown"),
    [
        (Unit.NUMBER, 0.123456789, "0.123457", Bound(-1.05, -0.95), "−1.05 to −0.95"),
        (Unit.NUMBER, -2.5e-11, "−2.5 · 10⁻¹¹", Bound(high=1e-10), "≤ 10⁻¹⁰"),
        (Unit.NUMBER, 1e-12, "10⁻¹²", Bound(low=0.5), "≥ 0.5"),
        (Unit.NUMBER, 1.0 - 4e-7, "1 − 4 · 10⁻⁷", Bound(high=1.0), "≤ 1"),
        (Unit.COUNT, math.nan, "not found", Bound(high=0.0), "none"),
        (Unit.COUNT, 10_000_000.0, "10,000,000", Bound(0.0, 0.0), "none"),
        (Unit.COUNT, math.inf, "inf", Bound(3.0, 3.0), "3"),
        (Unit.COUNT, 1.0, "1", Bound(low=50.0), "at least 50"),
        (Unit.COUNT, 0.0, "0", Bound(high=100.0), "at most 100"),
        (Unit.SHARE, 0.99996, "99.996%", Bound(low=0.95), "≥ 95%"),
        (Unit.TRUTH, 1.0, "yes", Bound(1.0, 1.0), "yes"),
        (Unit.TRUTH, 0.0, "no", Bound(0.0, 0.0), "no"),
    ],
)
def test_numbers_and_bounds_are_shown_by_their_unit(unit, number, shown, bound, bound_shown):
    check = BoundCheck("name", bound, number, unit=unit)
    assert shown_number(check).replace("\N{NO-BREAK SPACE}", " ") == shown
    assert shown_bound(check).replace("\N{NO-BREAK SPACE}", " ") == bound_shown
