"""What attention reads: token datasets and the papers' protocols for making them."""

from marginlens.data.figures import figure_1a, figure_1b, figure_1c, figure_3a, figure_3b, figure_5, figure_8
from marginlens.data.files import read_problem, write_problem
from marginlens.data.generators import gaussian_tokens, scored_tokens, sphere_tokens
from marginlens.data.mixing import MonotoneNetwork, label_mixing, monotone_mixing
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset

__all__ = [
    "MonotoneNetwork",
    "SequenceDataset",
    "TokenDataset",
    "figure_1a",
    "figure_1b",
    "figure_1c",
    "figure_3a",
    "figure_3b",
    "figure_5",
    "figure_8",
    "gaussian_tokens",
    "label_mixing",
    "monotone_mixing",
    "read_problem",
    "scored_tokens",
    "sphere_tokens",
    "write_problem",
]
