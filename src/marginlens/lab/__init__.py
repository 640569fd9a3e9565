"""The lab: an interactive page on which attention selects tokens, with its presets, links and problem files.

The page's kernels are plain ES modules in `kernels/`, which the tests compare with the library. Its views are in `page/`.
"""

from typing import TYPE_CHECKING

from marginlens.lab.assemble import lab_page, write_lab
from marginlens.lab.presets import permalink, preset, presets
from marginlens.lab.problem_files import read_problem, write_problem
from marginlens.removed import no_attribute

__all__ = [
    "lab_page",
    "permalink",
    "preset",
    "presets",
    "read_problem",
    "write_lab",
    "write_problem",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
