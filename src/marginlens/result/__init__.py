"""What every result can do: print itself on one line, become a dict or a data frame, and show itself in a notebook."""

# ruff: noqa: F401  the names that results use, under one roof

from marginlens.result.drawing import axes_for, draw_matrix
from marginlens.result.frames import Tabular
from marginlens.result.notebook import Displayed
from marginlens.result.quantities import Described, counted, table
from marginlens.result.result import Result, jsonable
