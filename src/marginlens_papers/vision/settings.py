"""Settings for training a vision transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marginlens.errors import reject
from marginlens.training.settings import RunSettings, choice, flag, non_negative, positive, text, whole

MOMENTUM = 0.9  # of stochastic gradient descent


@dataclass(frozen=True)
class VisionSettings(RunSettings):
    """Choices of one training run; the defaults are ViT-base on 2 × 2 patches at the paper's fixed rate.

    Args:
        width, layers, heads, mlp: size of the model: numbers per token, attention layers, heads of each, hidden units of each MLP.
        patch: pixels along an edge of a patch. spread: standard deviation of the initial weights.
        epochs, batch: passes over the images, and images in a step.
        learning_rate: fixed, but for the first `warmup` steps, over which it grows in proportion to the step.
        optimiser: "sgd", with momentum .9, or "adamw". The paper does not state its own.
        weight_decay: of matrices; biases, norms, the CLS token and positions have none. clip: largest norm of a gradient, 0 for any.
        crop: a training image is shifted by up to so many pixels along each axis, with zeros around it. flip: and mirrored, half the time.
        measured: how many test images, the first ones, attention is measured on. tested: how many give the test accuracy of an epoch.
        seed: of the initial weights, of the order of the images and of shifts and flips. device: "cpu", or "cuda" with an index or without.
        precision: "float32", or "bfloat16" on a GPU for products under autocast; weights and moments are float32 in both.
        compiled: whether torch.compile is applied to the training step. On an H200, ViT-base took 1.35 times as long with it.
    """

    FREE: ClassVar[tuple[str, ...]] = ("epochs", "device", "compiled")

    width: int = whole(768, at_least=1)
    layers: int = whole(12, at_least=1)
    heads: int = whole(12, at_least=1)
    mlp: int = whole(3072, at_least=1)
    patch: int = whole(2, at_least=1)
    spread: float = positive(0.02)
    epochs: int = whole(400)
    batch: int = whole(250, at_least=1)
    learning_rate: float = positive(3e-3)
    optimiser: str = choice("sgd", "adamw")
    weight_decay: float = non_negative(0.0)
    warmup: int = whole(0)
    clip: float = non_negative(0.0)
    crop: int = whole(0)
    flip: bool = flag(False)
    measured: int = whole(256, at_least=1)
    tested: int = whole(1000, at_least=1)
    seed: int = whole(0)
    device: str = text("cpu", "cpu or cuda")
    precision: str = choice("float32", "bfloat16")
    compiled: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise reject("heads", f"a divisor of the width {self.width}", self.heads)
        if self.precision == "bfloat16" and self.device.startswith("cpu"):
            raise reject("precision", "float32 on a processor, most of which only emulate bfloat16", "bfloat16")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0 over all epochs."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) if self.warmup else self.learning_rate
