"""What a training run of paper B's models chooses, checked when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from experiments.training.settings import (
    Check,
    RunSettings,
    choice,
    flag,
    non_negative,
    positive,
    text,
    whole,
    whole_numbers,
)
from marginlens.errors import InputError
from marginlens_papers.claims.b.embedding_runs import EmbeddingSettings


@dataclass(frozen=True)
class TrainingSettings(RunSettings, EmbeddingSettings):
    """Settings of a run; what each is, `EmbeddingSettings` says."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "layers": choice(1, 2),
        "d_model": whole(at_least=1),
        "epochs": whole(),
        "batch": whole(at_least=1),
        "learning_rate": positive(),
        "weight_decay": non_negative(),
        "milestones": whole_numbers("a list of epochs"),
        "train_v": flag(),
        "affine": flag(),
        "seed": whole(),
        "device": text("cpu or cuda"),
        "dtype": choice("float32", "float64"),
        "spread": positive(),
        "tf32": flag(),
    }
    FREE: ClassVar[tuple[str, ...]] = ("epochs", "device")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.affine and self.layers == 1:
            raise InputError("affine", "false unless layers is 2", self.affine)
