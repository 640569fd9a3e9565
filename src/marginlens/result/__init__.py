"""What every result can do: become a dict or a data frame, be drawn, and show itself in a notebook."""

# ruff: noqa: F401  the names that results use, under one roof

from marginlens.result.drawing import axes_for, draw_matrix, drawn
from marginlens.result.frames import Tabular, frame
from marginlens.result.notebook import Displayed, Headline
from marginlens.result.quantities import Described, counted, table
from marginlens.result.result import Result, jsonable
