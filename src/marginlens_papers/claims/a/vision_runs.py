"""Runs of vision transformers, A Figs 6 and 7: their settings, their curves over the epochs, and the tables that come with the package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from marginlens.typing import FloatArray
from marginlens_papers.tables import Table, numbers, read

PREFIX = "vision-"  # of the files of these runs
SCALARS = ("loss", "train_accuracy", "test_accuracy", "seconds")
BY_LAYER = ("sparsity", "head_sparsity", "own_share", "norm", "norm_of_sum")


@dataclass(frozen=True)
class VisionSettings:
    """Choices of one training run; the defaults are ViT-base on 2 × 2 patches at the paper's fixed rate.

    Args:
        width: numbers per token.
        layers: attention layers.
        heads: of each layer.
        mlp: hidden units of each MLP.
        patch: pixels along an edge of a patch.
        spread: standard deviation of the initial weights.
        epochs: passes over the images.
        batch: images in a step.
        learning_rate: fixed, but for the first steps.
        optimiser: "sgd", with momentum .9, or "adamw". The paper does not state its own.
        weight_decay: of matrices; biases, norms, the CLS token and positions have none.
        warmup: how many first steps the rate grows over, in proportion to the step.
        clip: largest norm of a gradient, 0 for any.
        crop: a training image is shifted by up to so many pixels along each axis, with zeros around it.
        flip: whether a training image is mirrored, half the time.
        measured: how many test images, the first ones, attention is measured on.
        tested: how many test images give the test accuracy of an epoch.
        seed: of the initial weights, of the order of the images and of shifts and flips.
        device: "cpu", or "cuda" with an index or without.
        precision: "float32", or "bfloat16" on a GPU for products under autocast; weights and moments are float32 in both.
        compiled: whether torch.compile is applied to the training step. On an H200, ViT-base took 1.35 times as long with it.
    """

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

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0 over all epochs."""
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) if self.warmup else self.learning_rate


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
        epochs: (n_epochs + 1,) from 0.
        scalars: name → (n_epochs + 1,), NaN if an epoch has none.
        by_layer: name → (n_epochs + 1, n_layers).
        map_epochs: epochs with maps.
        maps: (n_map_epochs, n_chosen, n_patches), each summing to one.
        labels: (n_chosen,) of the images.
    """

    epochs: FloatArray
    scalars: Mapping[str, FloatArray]
    by_layer: Mapping[str, FloatArray]
    map_epochs: tuple[int, ...]
    maps: FloatArray
    labels: tuple[str, ...]

    @classmethod
    def of(
        cls, records: Sequence[VisionEpochRecord], maps: Mapping[int, FloatArray], labels: tuple[str, ...]
    ) -> VisionCurves:
        """The records of all epochs, and the maps of some of them by epoch."""
        return cls(
            numbers([record.epoch for record in records]),
            {name: numbers([getattr(record, name) for record in records]) for name in SCALARS},
            {name: numbers([getattr(record, name) for record in records]) for name in BY_LAYER},
            tuple(sorted(maps)),
            numbers([maps[epoch] for epoch in sorted(maps)]),
            labels,
        )

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
class VisionRun(Table):
    """The table of a run: its curves and maps, the settings, and the `accuracy` of all test images at the end.

    `facts` has the data's name, counts and SHA-256, the command and the versions. A run with `finished` False was stopped after its last
    epoch.
    """

    FORM = "marginlens vision run 1"
    MADE_BY = "python -m experiments.vision with experiments.archive"

    name: str
    settings: VisionSettings
    curves: VisionCurves
    accuracy: float
    finished: bool
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        stopped = "" if self.finished else f" of {self.settings.epochs}, then stopped"
        epochs = f"{int(self.curves.epochs[-1])} epochs{stopped}"
        return f"VisionRun({self.name}: {epochs}, accuracy {self.accuracy:.3f})"

    @classmethod
    def from_table(cls, name: str, values: dict[str, Any]) -> Self:
        epochs, maps = numbers(values.pop("epochs")), values.pop("maps")
        scalars, layers = values.pop("curves"), values.pop("layers")
        by_layer = {curve: numbers(layers[curve]) for curve in BY_LAYER}
        map_values = numbers(maps["values"])
        if any(curve.ndim != 2 or len(curve) != len(epochs) for curve in by_layer.values()) or len(epochs) == 0:
            raise ValueError("curves of different lengths")
        if map_values.ndim != 3 or map_values.shape[:2] != (len(maps["epochs"]), len(maps["labels"])):
            raise ValueError("maps of another shape")
        curves = VisionCurves(
            epochs,
            {curve: numbers(scalars[curve]) for curve in SCALARS},
            by_layer,
            tuple(maps["epochs"]),
            map_values,
            tuple(maps["labels"]),
        )
        settings = VisionSettings(**values.pop("settings"))
        accuracy, ending = float(values.pop("accuracy")), values.pop("ending")
        return cls(name.removeprefix(PREFIX), settings, curves, accuracy, ending == "FINISHED", values)


def vision_run(name: str) -> VisionRun:
    """The run of this name that comes with the package."""
    return read(f"{PREFIX}{name}", VisionRun)
