"""What a training run of paper B's models chooses, and its minibatches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from marginlens.errors import reject
from marginlens.papers import implements
from marginlens_papers.training.settings import (
    RunSettings,
    choice,
    flag,
    non_negative,
    positive,
    text,
    whole,
    whole_numbers,
)

ADAMW_BETAS = (0.9, 0.999)  # AdamW's defaults in torch.optim, which the paper leaves as they are
ADAMW_EPSILON = 1e-8
DECAY_OF_STEP = 0.1  # factor of the learning rate at each milestone


@implements("B", "App. E")
@dataclass(frozen=True)
class TrainingSettings(RunSettings):
    """Choices of one training run; the defaults are the paper's for IMDB and Yelp.

    Args:
        layers: 1 for B Eq. (1), 2 for B Eq. (36). d_model: width d of an embedding.
        epochs: passes over the data. batch: sequences in a step; the last step of an epoch may have fewer.
        learning_rate, weight_decay: of AdamW. milestones: epochs after which the rate falls to a tenth.
        train_v: whether the output vector v is trained with the rest. The paper can be read both ways: its Section 2 keeps v fixed, its
            Appendix E has "trained all the parameters".
        affine: whether the layer norm of two layers has a gain and a bias for each coordinate, both trained, as torch's LayerNorm has.
        seed: of the initial values and of the order of the sequences. device: "cpu", or "cuda" with an index or without.
        dtype: "float32" or "float64", of all parameters and moments.
        spread: typical norm of an embedding at the start; 1 is the theory's N(0, I/d), √d has entries of size one.
        tf32: whether, on a GPU, the two-layer model's products of a sequence with itself round their factors to 10 bits; sums and all
            else stay float32.
    """

    FREE: ClassVar[tuple[str, ...]] = ("epochs", "device")

    layers: int = choice(1, 2)
    d_model: int = whole(2048, at_least=1)
    epochs: int = whole(500)
    batch: int = whole(128, at_least=1)
    learning_rate: float = positive(0.01)
    weight_decay: float = non_negative(1e-8)
    milestones: tuple[int, ...] = whole_numbers((100, 200), "a list of epochs")
    train_v: bool = flag(True)
    affine: bool = flag(False)
    seed: int = whole(0)
    device: str = text("cpu", "cpu or cuda")
    dtype: str = choice("float32", "float64")
    spread: float = positive(1.0)
    tf32: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.affine and self.layers == 1:
            raise reject("affine", "false unless layers is 2", self.affine)

    @classmethod
    def for_synthetic_data(cls, **changes: Any) -> TrainingSettings:
        """The paper's settings for its synthetic data (B Fig 2): 196 epochs, rate 1e-4, weight decay 1e-4; `changes` replace others."""
        return cls(**{"epochs": 196, "learning_rate": 1e-4, "weight_decay": 1e-4, **changes})

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch, counted from 0."""
        return self.learning_rate * DECAY_OF_STEP ** sum(epoch >= milestone for milestone in self.milestones)


def batches_of(n_samples: int, batch: int) -> list[tuple[int, int]]:
    """First and last place, in the order of an epoch, of each of its minibatches; the last one may be smaller."""
    return [(first, min(first + batch, n_samples)) for first in range(0, n_samples, batch)]
