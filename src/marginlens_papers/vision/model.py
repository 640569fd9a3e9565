"""The vision transformer, its optimiser with a state that can be saved, and its batches of pixels on the device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import missing_extra, reject
from marginlens.papers import uses
from marginlens.runtime.files import write_whole
from marginlens_papers.vision.images import LabelledImages
from marginlens_papers.vision.results import MOMENTUM, VisionSettings

PROCESSOR = "preprocessor_config.json"


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
        raise reject("patch", f"a divisor of both edges of images of {height} × {width} pixels", settings.patch)
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


def save_model(model: Any, data: LabelledImages, folder: Path) -> None:
    """Write a model as transformers' `from_pretrained` reads it, with how its pixels are scaled beside it."""
    from transformers.utils import logging

    folder.mkdir(parents=True, exist_ok=True)
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # a bar for each file would stand between the lines of the run
    try:
        model.save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
    mean, spread = data.channel_statistics()
    height, width = data.x_train.shape[1:3]
    processor = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": False,
        "size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": spread,
    }
    write_whole(folder / PROCESSOR, json.dumps(processor, indent=1).encode(), "save_models")


_WEIGHT, _STATE = "weight/", "moment/"


def optimiser_for(model: Any, settings: VisionSettings) -> Any:
    """Gradient descent with momentum, or AdamW; weight decay acts on matrices alone."""
    import torch

    matrices = [p for p in model.parameters() if p.ndim in (2, 4)]
    others = [p for p in model.parameters() if p.ndim not in (2, 4)]  # biases, norms, the CLS token and positions
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if settings.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=settings.learning_rate, momentum=MOMENTUM, fused=True)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def state_arrays(model: Any, optimiser: Any) -> dict[str, Any]:
    """Weights and moments as NumPy arrays by name."""
    arrays = {}
    for name, parameter in model.named_parameters():
        arrays[_WEIGHT + name] = parameter.detach().cpu().numpy()
        for kind, value in optimiser.state.get(parameter, {}).items():
            if value is not None:
                arrays[f"{_STATE}{kind}/{name}"] = (
                    value.detach().cpu().numpy() if hasattr(value, "cpu") else np.array(value)
                )
    return arrays


def restore_arrays(model: Any, optimiser: Any, arrays: Mapping[str, Any]) -> None:
    """Put weights and moments back; KeyError, RuntimeError, TypeError or ValueError where they are another model's."""
    import torch

    by_name = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in by_name.items():
            found = torch.from_numpy(arrays[_WEIGHT + name])
            if found.shape != parameter.shape:  # which copy_ would stretch where it can
                raise ValueError(name)
            parameter.copy_(found)
    for key, value in arrays.items():
        if key.startswith(_STATE):
            kind, name = key.removeprefix(_STATE).split("/", 1)
            parameter = by_name[name]
            moment = torch.from_numpy(np.array(value))
            if moment.ndim and moment.shape != parameter.shape:  # the number of steps has no axis
                raise ValueError(key)
            optimiser.state[parameter][kind] = moment.to(parameter.device)


class DevicePixels:
    """All images of a set as bytes on one device, from which batches are taken without asking the processor."""

    def __init__(self, data: LabelledImages, settings: VisionSettings, device: Any) -> None:
        import torch

        self.settings, self.device = settings, device
        self.x_train, self.x_test = (
            torch.from_numpy(x).permute(0, 3, 1, 2).contiguous().to(device) for x in (data.x_train, data.x_test)
        )
        self.y_train, self.y_test = (torch.from_numpy(y).long().to(device) for y in (data.y_train, data.y_test))
        mean, spread = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in data.channel_statistics())
        self.factor, self.shift = 1.0 / (255.0 * spread), -mean / spread
        self._rng = torch.Generator(device=device)

    def order(self, epoch: int) -> Any:
        """The order of the training images in an epoch."""
        import torch

        return torch.randperm(len(self.x_train), generator=self._seeded(epoch, 0), device=self.device)

    def training(self, chosen: Any, epoch: int, step: int) -> tuple[Any, Any]:
        """Scaled pixels (batch, channels, height, width) and labels of the chosen training images, shifted and mirrored at random."""
        pixels = self.scaled(self.x_train[chosen])
        if self.settings.crop or self.settings.flip:
            pixels = self._altered(pixels, self._seeded(epoch, step + 1))
        return pixels, self.y_train[chosen]

    def scaled(self, images: Any) -> Any:
        """Bytes as numbers of mean 0 and variance 1 in each channel, over the training images."""
        return images.float() * self.factor + self.shift

    def _altered(self, pixels: Any, rng: Any) -> Any:
        import torch

        n, channels, height, width = pixels.shape
        crop, device = self.settings.crop, self.device
        rows = torch.arange(height, device=device).expand(n, height)
        columns = torch.arange(width, device=device).expand(n, width)
        if self.settings.flip:
            mirrored = torch.rand(n, 1, generator=rng, device=device) < 0.5
            columns = torch.where(mirrored, width - 1 - columns, columns)
        if crop:
            pixels = torch.nn.functional.pad(pixels, (crop, crop, crop, crop))  # 0 is the mean colour
            moved = torch.randint(0, 2 * crop + 1, (n, 2, 1), generator=rng, device=device)
            rows, columns = rows + moved[:, 0], columns + moved[:, 1]
        taken = torch.arange(n, device=device)[:, None, None, None]
        every = torch.arange(channels, device=device)[None, :, None, None]
        return pixels[taken, every, rows[:, None, :, None], columns[:, None, None, :]]

    def _seeded(self, epoch: int, step: int) -> Any:
        """The generator for one step, whatever came before: a run can resume at any step."""
        drawn = np.random.SeedSequence((self.settings.seed, epoch, step)).generate_state(1, np.uint64)[0]
        self._rng.manual_seed(int(drawn >> np.uint64(1)))
        return self._rng
