"""Figures: the style they share, curves and planes, priority graphs, token clouds, problems in the plane, and files."""

# ruff: noqa: F401  the names that figures use, under one roof: `plotting.figure`, `plotting.INK`, `plotting.ray`

from marginlens.plotting.curves import misalignment, proportion_interval, steps_to_keep
from marginlens.plotting.plane import (
    BasinLook,
    Window,
    arrowed_path,
    basins,
    common_separating_line,
    finish_plane,
    log_radius,
    log_radius_disc,
    log_radius_rings,
    point,
    ray,
    rim_label,
    scatter_input_tokens,
    scatter_tokens,
    separating_line,
    starts,
    until_it_leaves,
)
from marginlens.plotting.style import (
    ACCENTS,
    FAINT,
    GLOBAL,
    INK,
    INPUTS,
    LOCAL,
    NEITHER,
    PATH,
    SEQUENCE,
    STYLE,
    TINTS,
    figure,
    in_style,
    note_at,
    plane_and_curves,
    shades,
)
