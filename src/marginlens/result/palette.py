"""The colours of every figure: one for each meaning, told apart by colour-blind readers too."""

from __future__ import annotations

# Meanings, not decorations: the same thing has the same colour in every figure.
GLOBAL = "#C4420F"  # the globally optimal max-margin direction (vermilion)
LOCAL = "#0F6FB4"  # a locally optimal max-margin direction (blue)
NEITHER = "#B9BDC2"  # neither, or not saturated (grey)
PATH = "#5B6168"  # a trajectory
ACCENTS = ("#C4420F", "#0F6FB4", "#0B8A64", "#C58A00", "#84467E", "#4D4D4D")  # unordered series
INPUTS = ("#0B8A64", "#C58A00", "#84467E")  # the tokens of the first, second and third input
HOLDS, FAILS = "#0B8A64", "#C4420F"  # a condition that holds, and one that does not
INK, FAINT = "#23272B", "#D9DCDF"
TINTS = {GLOBAL: "#FBE6DD", LOCAL: "#DFECF7"}  # the starts that lead to a direction
SEQUENCE = "viridis"  # ordered series
