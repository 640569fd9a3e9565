"""Settings of a training run of a vision transformer, and its results: curves, accuracies and maps of a few images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from marginlens.errors import reject
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.typing import FloatArray
from marginlens_papers.training.loop import Ending
from marginlens_papers.training.settings import RunSettings, choice, flag, non_negative, positive, text, whole

MOMENTUM = 0.9  # of stochastic gradient descent


@dataclass(frozen=True)
class VisionSettings(RunSettings):
    """Choices of one training run; the defaults are ViT-base on 2 × 2 patches at the paper's fixed rate.

    Args:
        width: numbers per token. layers: attention layers. heads: of each layer. mlp: hidden units of each MLP.
        patch: pixels along an edge of a patch. spread: standard deviation of the initial weights.
        epochs: passes over the images. batch: images in a step.
        learning_rate: fixed, but for the first steps. warmup: how many of these, over which it grows in proportion to the step.
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


FACTS = "run.json"
VISION_FORM = "marginlens vision run 1"
SCALARS = ("loss", "train_accuracy", "test_accuracy", "seconds")
BY_LAYER = ("sparsity", "head_sparsity", "own_share", "norm", "norm_of_sum")
_DIGITS = 6  # significant digits of curves
_MAP_DIGITS = 4


@dataclass(frozen=True)
class VisionEpochRecord:
    """One epoch, from 0 before any step: mean loss and accuracy while it ran, test accuracy at its end, and what every layer had then.

    `sparsity`, `head_sparsity` and `own_share` are those of `ClsAttention`, `norm` and `norm_of_sum` those of `key_query_norms`.
    """

    epoch: int
    loss: float
    train_accuracy: float
    test_accuracy: float
    seconds: float
    sparsity: tuple[float, ...]
    head_sparsity: tuple[float, ...]
    own_share: tuple[float, ...]
    norm: tuple[float, ...]
    norm_of_sum: tuple[float, ...]

    def __str__(self) -> str:
        trained = f"loss {self.loss:.4f}, accuracy {self.train_accuracy:.3f}, " if self.epoch else ""
        measured = f"last layer nnz/T {self.sparsity[-1]:.3f} and ‖W‖_F {self.norm[-1]:.4g}"
        return f"epoch {self.epoch}: {trained}test accuracy {self.test_accuracy:.3f}, {measured}, {self.seconds:.1f} s"


@dataclass(frozen=True, repr=False, eq=False)
class VisionCurves:
    """The history of a run by name.

    Attributes:
        epochs: (n_epochs + 1,) from 0. scalars: name → (n_epochs + 1,), nan where an epoch has none.
        by_layer: name → (n_epochs + 1, n_layers).
        map_epochs: epochs with maps. maps: (n_map_epochs, n_chosen, n_patches), each summing to one. labels: (n_chosen,) of the images.
    """

    epochs: FloatArray
    scalars: Mapping[str, FloatArray]
    by_layer: Mapping[str, FloatArray]
    map_epochs: tuple[int, ...]
    maps: FloatArray
    labels: tuple[str, ...]

    def until(self, epoch: int) -> VisionCurves:
        """The history up to an epoch, and with it."""
        so_far, seen = self.epochs <= epoch, np.array(self.map_epochs) <= epoch
        return VisionCurves(
            self.epochs[so_far],
            {name: values[so_far] for name, values in self.scalars.items()},
            {name: values[so_far] for name, values in self.by_layer.items()},
            tuple(k for k in self.map_epochs if k <= epoch),
            self.maps[seen],
            self.labels,
        )


@dataclass(frozen=True, repr=False, eq=False)
class VisionRun:
    """A trained vision transformer and how it got there; `accuracy` is that of all test images at the end."""

    settings: VisionSettings
    model: Any
    curves: VisionCurves
    accuracy: float
    ending: Ending

    def __repr__(self) -> str:
        last = self.curves.by_layer["sparsity"][-1, -1]
        size = f"depth {self.settings.layers}, width {self.settings.width}"
        return f"VisionRun({size}, {int(self.curves.epochs[-1])} epochs, last layer nnz/T {last:.3f})"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model, in plain values."""
        return {
            "form": VISION_FORM,
            "settings": self.settings.to_dict(),
            "ending": self.ending.name,
            "epochs_done": int(self.curves.epochs[-1]),
            "accuracy": rounded(self.accuracy, _DIGITS),
            **curves_to_dict(self.curves),
        }

    def write(self, folder: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write one JSON file with settings, curves and maps, and `facts` beside them; no image is in it."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FACTS, json_by_line({**self.to_dict(), **(facts or {})}), "out")


def curves_of(
    records: list[VisionEpochRecord], maps: Mapping[int, FloatArray], labels: tuple[str, ...]
) -> VisionCurves:
    """Records of epochs as arrays by name."""
    return VisionCurves(
        np.array([record.epoch for record in records], dtype=np.float64),
        {name: np.array([getattr(record, name) for record in records], dtype=np.float64) for name in SCALARS},
        {name: np.array([getattr(record, name) for record in records], dtype=np.float64) for name in BY_LAYER},
        tuple(sorted(maps)),
        np.array([maps[epoch] for epoch in sorted(maps)], dtype=np.float64),
        labels,
    )


def curves_to_dict(curves: VisionCurves) -> dict[str, Any]:
    """Curves in plain values, to as many digits as a figure shows."""
    return {
        "epochs": curves.epochs.astype(int).tolist(),
        "curves": {name: rounded(values, _DIGITS) for name, values in curves.scalars.items()},
        "layers": {name: rounded(values, _DIGITS) for name, values in curves.by_layer.items()},
        "maps": {
            "epochs": list(curves.map_epochs),
            "labels": list(curves.labels),
            "values": rounded(curves.maps, _MAP_DIGITS),
        },
    }


def curves_from(values: Mapping[str, Any]) -> VisionCurves:
    """Curves from what `curves_to_dict` gave; KeyError or ValueError where it is something else."""
    epochs, maps = np.array(values["epochs"], dtype=np.float64), values["maps"]
    by_layer = {name: _numbers(values["layers"][name]) for name in BY_LAYER}
    map_values = _numbers(maps["values"])
    if any(curve.ndim != 2 or len(curve) != len(epochs) for curve in by_layer.values()) or len(epochs) == 0:
        raise ValueError("curves of different lengths")
    if map_values.ndim != 3 or map_values.shape[:2] != (len(maps["epochs"]), len(maps["labels"])):
        raise ValueError("maps of another shape")
    scalars = {name: _numbers(values["curves"][name]) for name in SCALARS}
    return VisionCurves(epochs, scalars, by_layer, tuple(maps["epochs"]), map_values, tuple(maps["labels"]))


def rounded(values: Any, digits: int) -> Any:
    """Numbers as nested lists with so many significant digits; null for what is not finite."""
    if np.ndim(values):
        return [rounded(item, digits) for item in values]
    return float(f"{float(values):.{digits}g}") if np.isfinite(values) else None


def _numbers(values: Any) -> FloatArray:
    return np.array(values, dtype=np.float64)  # None becomes nan
