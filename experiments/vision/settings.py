"""What a training run of a vision transformer chooses, checked when it is made."""

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
)
from marginlens.errors import InputError
from marginlens_papers.claims.a.vision_runs import VisionSettings


@dataclass(frozen=True)
class VisionTrainingSettings(RunSettings, VisionSettings):
    """Settings of a run; what each is, `VisionSettings` says."""

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "width": whole(at_least=1),
        "layers": whole(at_least=1),
        "heads": whole(at_least=1),
        "mlp": whole(at_least=1),
        "patch": whole(at_least=1),
        "spread": positive(),
        "epochs": whole(),
        "batch": whole(at_least=1),
        "learning_rate": positive(),
        "optimiser": choice("sgd", "adamw"),
        "weight_decay": non_negative(),
        "warmup": whole(),
        "clip": non_negative(),
        "crop": whole(),
        "flip": flag(),
        "measured": whole(at_least=1),
        "tested": whole(at_least=1),
        "seed": whole(),
        "device": text("cpu or cuda"),
        "precision": choice("float32", "bfloat16"),
        "compiled": flag(),
    }
    FREE: ClassVar[tuple[str, ...]] = ("epochs", "device", "compiled")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise InputError("heads", f"a divisor of the width {self.width}", self.heads)
        if self.precision == "bfloat16" and self.device.startswith("cpu"):
            raise InputError("precision", "float32 on a processor, most of which only emulate bfloat16", "bfloat16")
