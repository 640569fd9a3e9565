"""Checked numbers and their bounds as a reader sees them: yes or no, counts, percentages, and powers of ten with raised digits."""

from __future__ import annotations

import math

from marginlens_papers.claim import Unit
from marginlens_papers.report.formulas import power_of_ten
from marginlens_papers.report.ledger import BoundCheck

ROUNDING = 1e-14
_SPACE = "\N{NO-BREAK SPACE}"


def shown_number(check: BoundCheck, digits: int = 6) -> str:
    """The number that was measured, with so many digits; "not found" if there is none."""
    return "not found" if math.isnan(check.number) else _shown(check.number, check.unit, digits)


def shown_bound(check: BoundCheck) -> str:
    """What the number must be: "yes", "none", "at least 50", "≥ 99.5%", "between 0.95 and 1.05"."""
    low, high = (_shown(limit, check.unit) for limit in (check.bound.low, check.bound.high))
    if check.unit is Unit.COUNT and check.bound.high == 0:
        return "none"
    if check.bound.low == check.bound.high:
        return low
    if check.bound.high == math.inf:
        return f"{'at least' if check.unit is Unit.COUNT else '≥'}{_SPACE}{low}"
    if check.bound.low == -math.inf:
        return f"{'at most' if check.unit is Unit.COUNT else '≤'}{_SPACE}{high}"
    return f"{low} to {high}"


def _shown(value: float, unit: Unit, digits: int = 6) -> str:
    if unit is Unit.TRUTH and value in (0.0, 1.0):
        return "yes" if value else "no"
    if unit is Unit.COUNT and math.isfinite(value):
        return f"{value:,.0f}".replace("-", "−")
    if unit is Unit.SHARE:
        return f"{100 * value:.5g}%".replace("-", "−")
    if ROUNDING < abs(1.0 - value) < 10.0 ** -min(digits, 5):  # the digits would show a one, or nearly
        return f"1{_SPACE}{'−' if value < 1.0 else '+'}{_SPACE}{power_of_ten(f'{abs(1.0 - value):.1e}')}"
    shown = f"{value:.{digits}g}"
    return power_of_ten(f"{value:.3g}" if "e" in shown else shown)
