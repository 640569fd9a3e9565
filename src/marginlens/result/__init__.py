"""The common methods of results: a one-line repr, conversion to a dict or a data frame, and display in a notebook."""

# ruff: noqa: F401  the names that results use, under one roof

from marginlens.result.drawing import axes_for, draw_matrix
from marginlens.result.frames import Tabular
from marginlens.result.notebook import Displayed
from marginlens.result.quantities import Described, counted, table
from marginlens.result.result import Result, jsonable
