"""Quantities that are declared once: what a line and a data frame make of them."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from marginlens.result import Described, Result, Tabular, table
from marginlens.result.quantities import counted, line


@dataclass(frozen=True, repr=False, eq=False)
class Measured(Result, Tabular):
    gaps: np.ndarray = field(default_factory=lambda: np.array([3.0, -4.0]))
    rate: float = 1.23456
    holds: bool = True
    quantities = "{gaps:#} rows, smallest gap {gaps.min:.1f}, rate={rate:.2g}, {holds:good|bad}"
    _columns = table("row", "holds_each", gap="gaps")

    @property
    def holds_each(self):
        return self.gaps > 0.0


class Length(Described):
    quantities = "length={x:norm}"

    def __init__(self, x):
        self.x = x


class Several(Described):
    quantities = "one of {kinds[-1]}"
    batch_quantities = "{kinds:tally}, {kinds:# kind|kinds}"
    kinds: ClassVar[list[str]] = ["a", "b", "a"]

    def __init__(self, is_batch):
        self.is_batch = is_batch


def test_quantity_lines_format_counts_methods_and_texts():
    assert repr(Measured()) == "Measured(2 rows, smallest gap -4.0, rate=1.2, good)"
    assert line(Measured(holds=False)).endswith("rate=1.2, bad")
    assert line(Length(np.array([3.0, -4.0]))) == "length=5"
    assert line(Length(np.full(4, 1e300))) == "length=2e+300"  # no square leaves the range of numbers
    assert line(Length(np.zeros(0))) == "length=0"


def test_a_batch_can_have_its_own_line():
    assert repr(Several(False)) == "Several(one of a)"
    assert repr(Several(True)) == "Several(2 a, 1 b, 3 kinds)"


def test_columns_have_the_given_names():
    columns = Measured()._columns()
    assert {name: list(values) for name, values in columns.items()} == {
        "row": [0, 1],
        "holds_each": [True, False],
        "gap": [3.0, -4.0],
    }
    assert [counted(number, "token") for number in (0, 1, 1204)] == ["0 tokens", "1 token", "1,204 tokens"]
