"""The lab: one page on which attention selects tokens, its presets, links and problem files.

The page's kernels are plain ES modules in `kernels/`, which the tests compare with the library; its views are in `page/`.
"""

from marginlens.lab.assemble import lab_page, write_lab
from marginlens.lab.presets import Preset, permalink, preset, presets
from marginlens.lab.problem_files import LabProblem, read_problem, write_problem

__all__ = [
    "LabProblem",
    "Preset",
    "lab_page",
    "permalink",
    "preset",
    "presets",
    "read_problem",
    "write_lab",
    "write_problem",
]
