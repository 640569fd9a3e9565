"""Training a vision transformer on images while its CLS attention is measured, A Figs 6 and 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marginlens.errors import InputError, missing_extra
from marginlens.papers import implements, uses
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.claims.a.cls_attention import cls_attention, key_query_norms
from marginlens_papers.claims.a.vision_runs import VisionCurves, VisionEpochRecord, VisionSettings

ByteArray = npt.NDArray[np.uint8]
CHOSEN = 6  # images whose maps are kept: the first of the test images in each of the first six classes
MOMENTUM = 0.9  # of stochastic gradient descent
_DIGITS_TESTED = 360  # of scikit-learn's 1,797 digits; the last ones, which other people wrote than the first
_BRIGHTEST_DIGIT = 16
_MAP_STEPS = (1, 2, 5)  # maps are kept at epoch 0, and at 1, 2 and 5 times each power of ten
_TESTED_AT_ONCE = 500


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images `x_train` (n_train, height, width, channels) and `x_test`, bytes, with labels from 0 and the `classes` that they name."""

    name: str
    x_train: ByteArray
    y_train: ByteArray
    x_test: ByteArray
    y_test: ByteArray
    classes: tuple[str, ...]

    def channel_statistics(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel over the training images, as shares of the brightest value."""
        values = self.x_train.reshape(-1, self.x_train.shape[-1])
        mean = values.mean(axis=0, dtype=np.float64) / 255.0
        spread = values.std(axis=0, dtype=np.float64) / 255.0
        return mean.tolist(), np.where(spread > 0.0, spread, 1.0).tolist()


def digit_images() -> LabelledImages:
    """Scikit-learn's 1,797 handwritten digits of 8 × 8 pixels: 1,437 to train on, and 360 by other hands to test."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as problem:
        raise missing_extra("scikit-learn", "report", "The set of digits") from problem

    digits = load_digits()
    x = np.round(digits.images * (255.0 / _BRIGHTEST_DIGIT)).astype(np.uint8)[..., None]
    y = digits.target.astype(np.uint8)
    train, test = slice(None, -_DIGITS_TESTED), slice(-_DIGITS_TESTED, None)
    return LabelledImages("digits", x[train], y[train], x[test], y[test], tuple(map(str, range(10))))


def chosen_images(data: LabelledImages) -> IntArray:
    """(n_chosen,) the test images whose maps are kept: the first of each of the first classes."""
    first = [np.flatnonzero(data.y_test == k)[:1] for k in range(len(data.classes))]
    return np.concatenate(first)[:CHOSEN].astype(np.int64)


def map_epochs(epochs: int) -> set[int]:
    """The epochs at which maps are kept: 0, 1, 2, 5, 10, 20, 50, … and the last."""
    decades = 10 ** np.arange(1 + int(np.log10(max(epochs, 1))))
    return {0, epochs, *(int(k * ten) for ten in decades for k in _MAP_STEPS if k * ten <= epochs)}


class TrainedVision(NamedTuple):
    """A trained vision transformer, how it got there, and the accuracy on all test images at the end."""

    model: Any
    curves: VisionCurves
    accuracy: float


@implements("A", "Fig 6", "Fig 7")
def train_vision(
    data: LabelledImages, settings: VisionSettings, advance: Callable[[], Any] = lambda: None
) -> TrainedVision:
    """Train a ViT by minibatches on the cross-entropy, and measure the CLS maps and key-query matrices of all layers after every epoch.

    Args:
        data: images and labels. settings: of a run on the CPU, on images as they are.
        advance: called before the first step and after each epoch.
    """
    training = VisionTraining(data, settings)
    records, maps, with_maps = [], {}, map_epochs(settings.epochs)
    for epoch in range(settings.epochs + 1):
        for step in range(training.n_steps if epoch else 0):
            if step == 0:
                training.begin_epoch(epoch - 1)
            training.step(epoch - 1, step)
        record, map_of_epoch = training.measure(epoch)
        records.append(record)
        if epoch in with_maps:
            maps[epoch] = map_of_epoch
        advance()
    curves = VisionCurves.of(records, maps, training.labels)
    return TrainedVision(training.model, curves, training.accuracy(len(data.x_test)))


class VisionTraining:
    """A vision transformer in training: its model, its optimiser, and its images as bytes on one device.

    Epochs and steps are counted from 0. What is random in one depends only on the seed and on its numbers, so that a run can be resumed at
    any step.
    """

    def __init__(self, data: LabelledImages, settings: VisionSettings) -> None:
        import torch

        self.data, self.settings, self.device = data, settings, torch.device(settings.device)
        self.n_steps = -(-len(data.x_train) // settings.batch)
        self.model = vision_transformer(settings, data).to(self.device)
        self.optimiser = optimiser_for(self.model, settings)
        self.x_train, self.x_test = (
            torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().to(self.device) for x in (data.x_train, data.x_test)
        )
        self.y_train, self.y_test = (torch.from_numpy(y).long().to(self.device) for y in (data.y_train, data.y_test))
        mean, spread = (
            torch.tensor(values, device=self.device).view(1, -1, 1, 1) for values in data.channel_statistics()
        )
        self.factor, self.shift = 1.0 / (255.0 * spread), -mean / spread
        self.chosen = chosen_images(data)
        self._rng = torch.Generator(device=self.device)
        self.forward = self.outputs  # of a step
        self.set_sums(0.0, 0)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the images whose maps are kept."""
        return tuple(self.data.classes[k] for k in self.data.y_test[self.chosen])

    def begin_epoch(self, epoch: int) -> None:
        """Draw the order of the images, and begin the sums of loss and accuracy."""
        import torch

        self.order = torch.randperm(len(self.x_train), generator=self.seeded(epoch, 0), device=self.device)
        self.model.train()
        self.set_sums(0.0, 0)

    def step(self, epoch: int, index: int) -> None:
        """One minibatch; nothing here waits for the device."""
        import torch

        pixels, labels = self.minibatch(epoch, index)
        logits = self.forward(pixels)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.before_step()
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate(epoch * self.n_steps + index)
        self.optimiser.step()
        self.loss += loss.detach().double() * len(labels)
        self.right += (logits.detach().argmax(dim=1) == labels).sum()

    def minibatch(self, epoch: int, index: int) -> tuple[Any, Any]:
        """Scaled pixels (batch, channels, height, width) and labels of one step."""
        chosen = self.order[index * self.settings.batch : (index + 1) * self.settings.batch]
        return self.scaled(self.x_train[chosen]), self.y_train[chosen]

    def outputs(self, pixels: Any) -> Any:
        """(batch, n_classes) the logits of the model."""
        return self.model(pixel_values=pixels).logits

    def before_step(self) -> None:
        """What is done to the gradients: nothing."""

    def scaled(self, images: Any) -> Any:
        """Bytes as numbers of mean 0 and variance 1 in each channel, over the training images."""
        return images.float() * self.factor + self.shift

    def seeded(self, epoch: int, step: int) -> Any:
        """The generator of one step, which does not depend on earlier steps."""
        drawn = np.random.SeedSequence((self.settings.seed, epoch, step)).generate_state(1, np.uint64)[0]
        self._rng.manual_seed(int(drawn >> np.uint64(1)))
        return self._rng

    def set_sums(self, loss: float, right: int) -> None:
        """Set the summed loss of the unfinished epoch, and how many images were classified correctly in it."""
        import torch

        self.loss = torch.tensor(loss, dtype=torch.float64, device=self.device)
        self.right = torch.tensor(right, device=self.device)

    def measure(self, epoch: int, seconds: float = 0.0) -> tuple[VisionEpochRecord, FloatArray]:
        """The record at the end of this many epochs, and the maps (n_chosen, n_patches) of the last layer."""
        n = len(self.data.x_train)
        loss, train_accuracy = (float(self.loss) / n, float(self.right) / n) if epoch else (float("nan"), float("nan"))
        seen = cls_attention(self.model, self.scaled(self.x_test[: self.settings.measured]))
        norms = key_query_norms(self.model)
        maps = cls_attention(self.model, self.scaled(self.x_test[self.chosen]), len(self.chosen)).maps
        accuracy = self.accuracy(self.settings.tested)
        by_layer = (tuple(map(float, each)) for each in (seen.sparsity, seen.head_sparsity, seen.own_share, *norms))
        return VisionEpochRecord(epoch, loss, train_accuracy, accuracy, seconds, *by_layer), maps

    def accuracy(self, n_images: int) -> float:
        """Share of the first test images that the model classifies correctly."""
        import torch

        x, y = self.x_test[:n_images], self.y_test[:n_images]
        self.model.eval()
        with torch.no_grad():
            right = [
                (self.outputs(self.scaled(x[k : k + _TESTED_AT_ONCE])).argmax(1) == y[k : k + _TESTED_AT_ONCE])
                for k in range(0, len(x), _TESTED_AT_ONCE)
            ]
        return float(torch.cat(right).double().mean())


@uses(
    "A", {"Eq. (4)": "Each layer of the model of Figures 6 and 7, with several heads and W in factors; no risk has it."}
)
def vision_transformer(settings: VisionSettings, data: LabelledImages) -> Any:
    """A `ViTForImageClassification` in float32 on the processor, with the weights that the seed gives.

    Training runs the fused attention that hides its weights; `model.set_attn_implementation("eager")` shows them.
    """
    try:
        import torch
        from transformers import ViTConfig, ViTForImageClassification
    except ImportError as problem:
        raise missing_extra("transformers", "probe", "Training a vision transformer") from problem
    height, width, channels = data.x_train.shape[1:]
    if height != width or height % settings.patch:
        raise InputError("patch", f"a divisor of both edges of images of {height} × {width} pixels", settings.patch)
    names = dict(enumerate(data.classes))
    config = ViTConfig(
        hidden_size=settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=settings.mlp,
        image_size=height,
        patch_size=settings.patch,
        num_channels=channels,
        initializer_range=float(settings.spread),
        encoder_stride=settings.patch,
        id2label=names,
        label2id={name: k for k, name in names.items()},
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
        torch.manual_seed(settings.seed)
        return ViTForImageClassification(config).float()


def optimiser_for(model: Any, settings: VisionSettings) -> Any:
    """Gradient descent with momentum, or AdamW; weight decay acts only on matrices."""
    import torch

    matrices = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]  # biases, norms, the CLS token and positions
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=MOMENTUM, fused=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)
