"""Paper B's experiments on text: the settings of a training run, and the tables of the runs that come with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from marginlens.embeddings.statistics import TokenStatistics
from marginlens.papers import implements
from marginlens.typing import FloatArray
from marginlens_papers.tables import Table, numbers, read_all, results_folder

PREFIX = "embeddings-"  # of the files of these runs
SHARED_COLUMNS = ("tokens", "count", "difference")  # of every run on the same data
LEVELS = "levels"  # what the source of K-level sequences is called
FREQUENT = 200  # occurrences from which a token's posterior difference is taken as known
CURVES = ("loss", "correlation_v", "correlation_p", "held_out_loss", "held_out_accuracy")  # over the epochs
DECAY_OF_STEP = 0.1  # factor of the learning rate at each milestone


@implements("B", "App. E")
@dataclass(frozen=True)
class EmbeddingSettings:
    """Choices of one training run; the defaults are the paper's for IMDB and Yelp.

    Args:
        layers: 1 for B Eq. (1), 2 for B Eq. (36).
        d_model: width d of an embedding.
        epochs: passes over the data.
        batch: sequences in a step; the last step of an epoch may have fewer.
        learning_rate: of AdamW.
        weight_decay: of AdamW.
        milestones: epochs after which the rate falls to a tenth.
        train_v: whether the output vector v is trained with the rest. The paper can be read both ways: its Section 2 keeps v fixed, its
            Appendix E has "trained all the parameters".
        affine: whether the layer norm of two layers has a gain and a bias for each coordinate, both trained, as torch's LayerNorm has.
        seed: of the initial values and of the order of the sequences.
        device: "cpu", or "cuda" with an index or without.
        dtype: "float32" or "float64", of all parameters and moments.
        spread: typical norm of an embedding at the start; 1 is the theory's N(0, I/d), √d has entries of size one.
        tf32: whether, on a GPU, the two-layer model's products of a sequence with itself round their factors to 10 bits; sums and all
            else stay float32.
    """

    layers: int = 1
    d_model: int = 2048
    epochs: int = 500
    batch: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 1e-8
    milestones: tuple[int, ...] = (100, 200)
    train_v: bool = True
    affine: bool = False
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    spread: float = 1.0
    tf32: bool = False

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0."""
        return self.learning_rate * DECAY_OF_STEP ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, repr=False, eq=False)
class EmbeddingRun(Table):
    """The table of a run.

    Attributes:
        name: of its file, without the prefix. source: of the data: "imdb", "yelp", "levels".
        names: what the tokens are called, if they have names.
        a, b: (n_vocabulary,) ⟨E_s, p⟩ and ⟨E_s, v⟩ to five digits. statistics: how often each token occurs.
        epochs: (n_measured,) epochs with a measurement, from 1. curves: name → (n_measured,), for each of `CURVES`.
        loss, accuracy: of all training sequences at the end. held_out_loss, held_out_accuracy: of held-out ones, NaN without any.
        finished: False if the run was stopped after its last epoch.
        facts: the command, the versions, and the SHA-256 of ids, lengths and labels.
    """

    FORM = "marginlens kept training run 1"
    MADE_BY = "python -m experiments.embeddings with experiments.archive"

    name: str
    source: str
    settings: EmbeddingSettings
    names: tuple[str, ...] | None
    a: FloatArray
    b: FloatArray
    statistics: TokenStatistics
    epochs: FloatArray
    curves: Mapping[str, FloatArray]
    loss: float
    accuracy: float
    finished: bool
    facts: Mapping[str, Any]
    held_out_loss: float = float("nan")
    held_out_accuracy: float = float("nan")

    def __repr__(self) -> str:
        return f"EmbeddingRun({self.name}: {self.summary})"

    @property
    def summary(self) -> str:
        """The run in a few words."""
        layers = "one layer" if self.settings.layers == 1 else "two layers"
        stopped = "" if self.finished else f" of {self.settings.epochs}, then stopped"
        return f"{self.source}, {layers}, rate {self.settings.learning_rate:g}, {int(self.epochs[-1])} epochs{stopped}"

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        if "vocabulary" in values:
            values |= shared_columns(values.pop("vocabulary"))
        a, b = numbers(values.pop("a")), numbers(values.pop("b"))
        count, difference = (np.array(values.pop(column), dtype=np.int64) for column in ("count", "difference"))
        names, history, settings = values.pop("tokens"), values.pop("history"), values.pop("settings")
        lengths = {len(column) for column in (a, b, count, difference, *([] if names is None else [names]))}
        if len(lengths) != 1:
            raise ValueError(f"columns of lengths {sorted(lengths)}")
        positive, missing = (count + difference) // 2, [None] * len(history["epoch"])
        scalars = {
            field: float(numbers(values.pop(field, None)))
            for field in ("loss", "accuracy", "held_out_loss", "held_out_accuracy")
        }
        return cls(
            name=name.removeprefix(PREFIX),
            source=values.pop("source"),
            settings=EmbeddingSettings(**{**settings, "milestones": tuple(settings["milestones"])}),
            names=None if names is None else tuple(names),
            a=a,
            b=b,
            statistics=TokenStatistics(positive, count - positive, values.pop("positions")),
            epochs=numbers(history["epoch"]),
            curves={curve: numbers(history.get(curve, missing)) for curve in CURVES},
            finished=values.pop("ending") == "FINISHED",
            facts=values,
            **scalars,
        )


def shared_columns(vocabulary: str) -> dict[str, Any]:
    """The columns that all runs on the same data share and that are stored once: tokens, their occurrences, and those of either label."""
    values = json.loads((results_folder() / f"{vocabulary}.json").read_text(encoding="utf-8"))
    return {column: values[column] for column in SHARED_COLUMNS}


def embedding_runs(source: str, layers: int) -> tuple[EmbeddingRun, ...]:
    """All runs on this data and of this depth that come with the package, the largest learning rate first."""
    runs = [run for run in read_all(PREFIX, EmbeddingRun) if (run.source, run.settings.layers) == (source, layers)]
    return tuple(sorted(runs, key=lambda run: (-run.settings.learning_rate, run.settings.spread, run.name)))
