"""How a vision transformer is trained: every choice in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marginlens.errors import positive_number, reject, whole_number
from marginlens.runs.settings import RunSettings

MOMENTUM = 0.9  # of stochastic gradient descent
OPTIMISERS = ("sgd", "adamw")
PRECISIONS = ("float32", "bfloat16")
_WHOLE = (
    ("width", 1),
    ("layers", 1),
    ("heads", 1),
    ("mlp", 1),
    ("patch", 1),
    ("epochs", 0),
    ("batch", 1),
    ("warmup", 0),
    ("crop", 0),
    ("measured", 1),
    ("tested", 1),
    ("seed", 0),
)


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

    width: int = 768
    layers: int = 12
    heads: int = 12
    mlp: int = 3072
    patch: int = 2
    spread: float = 0.02
    epochs: int = 400
    batch: int = 250
    learning_rate: float = 3e-3
    optimiser: str = "sgd"
    weight_decay: float = 0.0
    warmup: int = 0
    clip: float = 0.0
    crop: int = 0
    flip: bool = False
    measured: int = 256
    tested: int = 1000
    seed: int = 0
    device: str = "cpu"
    precision: str = "float32"
    compiled: bool = False

    def __post_init__(self) -> None:
        for name, least in _WHOLE:
            object.__setattr__(self, name, whole_number(getattr(self, name), name, at_least=least))
        if self.width % self.heads:
            raise reject("heads", f"a divisor of the width {self.width}", self.heads)
        for name in ("learning_rate", "spread"):
            object.__setattr__(self, name, positive_number(getattr(self, name), name))
        if not isinstance(self.device, str):
            raise reject("device", "cpu or cuda", repr(self.device))
        for name in ("weight_decay", "clip"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < float("inf"):
                raise reject(name, "a number of at least 0", repr(value))
        for name in ("flip", "compiled"):
            if not isinstance(getattr(self, name), bool):
                raise reject(name, "true or false", repr(getattr(self, name)))
        for name, choices in (("optimiser", OPTIMISERS), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise reject(name, " or ".join(choices), repr(getattr(self, name)))
        if self.precision == "bfloat16" and self.device.startswith("cpu"):
            raise reject("precision", "float32 on a processor, most of which only emulate bfloat16", "bfloat16")

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0 over all epochs."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) if self.warmup else self.learning_rate
