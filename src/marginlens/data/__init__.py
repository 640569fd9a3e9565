"""What attention reads: token datasets and the papers' protocols for making them."""

from marginlens.data.figures import figure_1a, figure_1b, figure_1c, figure_3a, figure_3b, figure_5, figure_8
from marginlens.data.files import read_problem, write_problem
from marginlens.data.generators import gaussian_tokens, scored_tokens, sphere_tokens
from marginlens.data.labelled import LabelledSequences
from marginlens.data.levels import Levels, balanced_sequences, level_sequences
from marginlens.data.mixing import MonotoneNetwork, label_mixing, monotone_mixing
from marginlens.data.sequence_files import read_sequences, write_sequences
from marginlens.data.sequence_generators import (
    acyclic_sequences,
    acyclic_sequences_as_coded,
    cyclic_sequences,
    cyclic_sequences_as_coded,
    figure_2,
    ordered_sequences,
    random_sequences,
)
from marginlens.data.sequence_splits import SequenceSplit, split_sequences, split_text_windows
from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_windows import read_text, text_windows
from marginlens.data.tokens import TokenDataset
from marginlens.data.vocabulary import Characters, NamedSequences, Vocabulary, Words

__all__ = [
    "Characters",
    "LabelledSequences",
    "Levels",
    "MonotoneNetwork",
    "NamedSequences",
    "SequenceDataset",
    "SequenceSplit",
    "TokenDataset",
    "Vocabulary",
    "Words",
    "acyclic_sequences",
    "acyclic_sequences_as_coded",
    "balanced_sequences",
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
    "level_sequences",
    "monotone_mixing",
    "ordered_sequences",
    "random_sequences",
    "read_problem",
    "read_sequences",
    "read_text",
    "scored_tokens",
    "sphere_tokens",
    "split_sequences",
    "split_text_windows",
    "text_windows",
    "write_problem",
    "write_sequences",
]
