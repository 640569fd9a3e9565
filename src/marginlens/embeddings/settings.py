"""How a model with trained embeddings is trained: every choice in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marginlens.errors import positive_number, reject, whole_number
from marginlens.papers import implements
from marginlens.runs.settings import RunSettings

BETAS = (0.9, 0.999)  # AdamW's defaults in torch.optim, which the paper leaves as they are
EPSILON = 1e-8
DECAY_OF_STEP = 0.1  # factor of the learning rate at each milestone


@implements("B", "App. E")
@dataclass(frozen=True)
class TrainingSettings(RunSettings):
    """Choices of one training run; the defaults are the paper's for IMDB and Yelp.

    Args:
        layers: 1 for B Eq. (1), 2 for B Eq. (36). d_model: width d of an embedding.
        epochs, batch: passes over the data, and sequences in a step; the last step of an epoch may have fewer.
        learning_rate, weight_decay: of AdamW. milestones: epochs after which the rate falls to a tenth.
        train_v: whether the output vector v is trained with the rest, as in the experiments; the theory keeps it fixed.
        seed: of the initial values and of the order of the sequences. device: "cpu", or "cuda" with an index or without.
        dtype: "float32" or "float64", of all parameters and moments.
        spread: typical norm of an embedding at the start; 1 is the theory's N(0, I/d), √d has entries of size one.
        tf32: whether, on a GPU, the two-layer model's products of a sequence with itself round their factors to 10 bits; sums and all
            else stay float32.
    """

    FREE: ClassVar[tuple[str, ...]] = ("epochs", "device")

    layers: int = 1
    d_model: int = 2048
    epochs: int = 500
    batch: int = 128
    learning_rate: float = 0.01
    weight_decay: float = 1e-8
    milestones: tuple[int, ...] = (100, 200)
    train_v: bool = True
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    spread: float = 1.0
    tf32: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.layers, bool) or not isinstance(self.layers, int | np.integer) or self.layers not in (1, 2):
            raise reject("layers", "1 or 2", repr(self.layers))
        for name, least in (("layers", 1), ("d_model", 1), ("epochs", 0), ("batch", 1), ("seed", 0)):
            object.__setattr__(self, name, whole_number(getattr(self, name), name, at_least=least))
        for name in ("learning_rate", "spread"):
            object.__setattr__(self, name, positive_number(getattr(self, name), name))
        decay = self.weight_decay
        if isinstance(decay, bool) or not isinstance(decay, int | float | np.number) or not 0.0 <= decay < float("inf"):
            raise reject("weight_decay", "a number of at least 0", repr(decay))
        object.__setattr__(self, "weight_decay", float(decay))
        if not isinstance(self.milestones, list | tuple):
            raise reject("milestones", "a list of epochs", repr(self.milestones))
        object.__setattr__(
            self, "milestones", tuple(whole_number(one, "milestones", at_least=0) for one in self.milestones)
        )
        for name in ("train_v", "tf32"):
            if not isinstance(getattr(self, name), bool):
                raise reject(name, "true or false", repr(getattr(self, name)))
        if not isinstance(self.device, str):
            raise reject("device", "cpu or cuda", repr(self.device))
        if not isinstance(self.dtype, str) or self.dtype not in ("float32", "float64"):
            raise reject("dtype", "float32 or float64", repr(self.dtype))

    @classmethod
    def for_synthetic_data(cls, **changes: Any) -> TrainingSettings:
        """The paper's settings for its synthetic data (B Fig 2): 196 epochs, rate 1e-4, weight decay 1e-4; `changes` replace others."""
        return cls(**{"epochs": 196, "learning_rate": 1e-4, "weight_decay": 1e-4, **changes})

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0."""
        return self.learning_rate * DECAY_OF_STEP ** sum(epoch >= one for one in self.milestones)
