"""What attention reads: token datasets and the papers' protocols for making them."""

from marginlens.data.figures import figure_1a, figure_1b, figure_1c, figure_3a, figure_3b, figure_5, figure_8
from marginlens.data.files import read_problem, write_problem
from marginlens.data.generators import gaussian_tokens, scored_tokens, sphere_tokens
from marginlens.data.mixing import MonotoneNetwork, label_mixing, monotone_mixing
from marginlens.data.sequence_generators import (
    acyclic_sequences,
    acyclic_sequences_as_coded,
    cyclic_sequences,
    cyclic_sequences_as_coded,
    figure_2,
    ordered_sequences,
)
from marginlens.data.sequences import SequenceDataset
from marginlens.data.tokens import TokenDataset

__all__ = [
    "MonotoneNetwork",
    "SequenceDataset",
    "TokenDataset",
    "acyclic_sequences",
    "acyclic_sequences_as_coded",
    "cyclic_sequences",
    "cyclic_sequences_as_coded",
    "figure_1a",
    "figure_1b",
    "figure_1c",
    "figure_2",
    "figure_3a",
    "figure_3b",
    "figure_5",
    "figure_8",
    "gaussian_tokens",
    "label_mixing",
    "monotone_mixing",
    "ordered_sequences",
    "read_problem",
    "scored_tokens",
    "sphere_tokens",
    "write_problem",
]
