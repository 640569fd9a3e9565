"""The colours of all figures: one for each meaning, safe for colour-blind readers."""

from __future__ import annotations

# Meanings, not decorations: the same thing has the same colour in every figure.
# The globally optimal max-margin direction (vermilion).
GLOBAL = "#C4420F"
# A locally optimal max-margin direction (blue).
LOCAL = "#0F6FB4"
# A direction that is neither, or not saturated (grey).
NEITHER = "#B9BDC2"
# A trajectory.
PATH = "#5B6168"
# Unordered series.
ACCENTS = ("#C4420F", "#0F6FB4", "#0B8A64", "#C58A00", "#84467E", "#4D4D4D")
# The tokens of the first, second and third input.
INPUTS = ("#0B8A64", "#C58A00", "#84467E")
# A condition that holds, and one that does not.
HOLDS, FAILS = "#0B8A64", "#C4420F"
INK, FAINT = "#23272B", "#D9DCDF"
# The starts that lead to a direction.
TINTS = {GLOBAL: "#FBE6DD", LOCAL: "#DFECF7"}
# An ordered series.
SEQUENCE = "viridis"
