"""Datasets that attention reads, and the papers' protocols for making them."""

from typing import TYPE_CHECKING

from marginlens.data.bags import bags
from marginlens.data.bandit import bandit
from marginlens.data.contexts import ContextDataset
from marginlens.data.counter_based import gaussian_problems, sphere_problems
from marginlens.data.files import (
    load,
    read_labelled,
    read_problem,
    read_sequences,
    save,
    write_labelled,
    write_problem,
    write_sequences,
)
from marginlens.data.label_noise import flip_labels, soft_labels
from marginlens.data.labelled import LabelledSequences, embedding_tokens
from marginlens.data.paper_examples import (
    basin_example,
    cone_example,
    figure_1a,
    figure_1b,
    figure_1c,
    figure_2,
    figure_3a,
    figure_3b,
    figure_5,
    figure_8,
    norm_example,
    norm_selection_example,
)
from marginlens.data.plain_text import read_text
from marginlens.data.random_tokens import (
    gaussian_tokens,
    scored_tokens,
    signal_and_noise,
    sphere_queries,
    sphere_tokens,
)
from marginlens.data.samples import write_samples
from marginlens.data.sequence_generators import (
    Levels,
    acyclic_sequences,
    cyclic_sequences,
    level_sequences,
    ordered_sequences,
)
from marginlens.data.sequences import SequenceDataset
from marginlens.data.text_tokens import TextTokens
from marginlens.data.text_windows import split_sequences, split_text_windows, text_windows
from marginlens.data.tokens import TokenDataset
from marginlens.data.vocabulary import Characters, Vocabulary, Words
from marginlens.removed import no_attribute

__all__ = [
    "Characters",
    "ContextDataset",
    "LabelledSequences",
    "Levels",
    "SequenceDataset",
    "TextTokens",
    "TokenDataset",
    "Vocabulary",
    "Words",
    "acyclic_sequences",
    "bags",
    "bandit",
    "basin_example",
    "cone_example",
    "cyclic_sequences",
    "embedding_tokens",
    "figure_1a",
    "figure_1b",
    "figure_1c",
    "figure_2",
    "figure_3a",
    "figure_3b",
    "figure_5",
    "figure_8",
    "flip_labels",
    "gaussian_problems",
    "gaussian_tokens",
    "level_sequences",
    "load",
    "norm_example",
    "norm_selection_example",
    "ordered_sequences",
    "read_labelled",
    "read_problem",
    "read_sequences",
    "read_text",
    "save",
    "scored_tokens",
    "signal_and_noise",
    "soft_labels",
    "sphere_problems",
    "sphere_queries",
    "sphere_tokens",
    "split_sequences",
    "split_text_windows",
    "text_windows",
    "write_labelled",
    "write_problem",
    "write_samples",
    "write_sequences",
]

# Type checkers must refuse names that do not exist, so this is hidden from them.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name)
