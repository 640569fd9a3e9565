"""Training a vision transformer for many epochs, on a GPU too; a stopped run resumes with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.training.checkpoint import checkpoint_path
from experiments.training.loop import Callback, Ending, Schedule, TrainingLoop
from experiments.training.script import rounded
from experiments.training.settings import settings_or_default, torch_device
from experiments.vision.images import fingerprint
from experiments.vision.models import restore_arrays, save_model, state_arrays
from experiments.vision.settings import VisionTrainingSettings
from marginlens.errors import InputError, whole_number
from marginlens.runtime.files import json_by_line, write_whole
from marginlens.typing import FloatArray
from marginlens_papers.claims.a.vision_runs import BY_LAYER, SCALARS, VisionCurves, VisionEpochRecord, VisionRun
from marginlens_papers.claims.a.vision_training import LabelledImages, VisionTraining, map_epochs

FACTS = "run.json"
_DIGITS = 6  # significant digits of curves
_MAP_DIGITS = 4
_MAPS = "maps/"  # prefix of maps by epoch in a checkpoint


@dataclass(frozen=True, repr=False, eq=False)
class FinishedVision:
    """A trained vision transformer and how it got there; `accuracy` is that of all test images at the end."""

    settings: VisionTrainingSettings
    model: Any
    curves: VisionCurves
    accuracy: float
    ending: Ending

    def write(self, folder: Path, facts: Mapping[str, Any] | None = None) -> None:
        """Write one JSON file with settings, curves and maps, and `facts`; no image is in it."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "form": VisionRun.FORM,
            "settings": self.settings.to_dict(),
            "ending": self.ending.name,
            "epochs_done": int(self.curves.epochs[-1]),
            "accuracy": rounded(self.accuracy, _DIGITS),
            "epochs": self.curves.epochs.astype(int).tolist(),
            "curves": {name: rounded(self.curves.scalars[name], _DIGITS) for name in SCALARS},
            "layers": {name: rounded(self.curves.by_layer[name], _DIGITS) for name in BY_LAYER},
            "maps": {
                "epochs": list(self.curves.map_epochs),
                "labels": list(self.curves.labels),
                "values": rounded(self.curves.maps, _MAP_DIGITS),
            },
        }
        write_whole(folder / FACTS, json_by_line({**values, **(facts or {})}), "out")


def train_vision(
    data: LabelledImages,
    settings: VisionTrainingSettings | None = None,
    *,
    checkpoint: str | Path | None = None,
    every: int = 10,
    time_limit: float | None = None,
    save_models: tuple[str | Path, int] | None = None,
    callback: Callback | None = None,
) -> FinishedVision:
    r"""Train a ViT by minibatches on the cross-entropy, and measure the CLS maps and key-query matrices of all layers after every epoch.

    Args:
        data: images and labels. settings: ViT-base at the paper's rate by default.
        checkpoint: a file. If it exists, the run resumes from it. It is written before the first step, every `every` epochs, at the
            time limit, at Ctrl-C and at the end. Resuming gives the same bits as never having stopped, on the same processor with one
            thread.
        time_limit: seconds from the call; the run stops after the first step that passes them.
        save_models: a folder and every how many epochs the model is written into it, as epoch-NNN for `from_pretrained`.
        callback: a function of every epoch's record, epoch 0 before the first step included, or `Callbacks`.
    Returns:
        The model and its curves; `ending` says why it stopped. Ctrl-C raises KeyboardInterrupt.
    """
    schedule, path = Schedule(every, time_limit), checkpoint_path(checkpoint)
    if not isinstance(data, LabelledImages):
        raise InputError("data", "LabelledImages", type(data).__name__)
    loop = _VisionLoop(data, settings_or_default(settings, VisionTrainingSettings), path, _models_to_save(save_models))
    with _tensor_core_products(loop.training.device):
        run: FinishedVision = loop.run(schedule, callback)
        return run


def _models_to_save(given: Any) -> tuple[Path, int] | None:
    """The folder for models, and every how many epochs one is written into it."""
    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str | Path):
        raise InputError("save_models", "a folder and a number of epochs", repr(given))
    return Path(given[0]), whole_number(given[1], "save_every", at_least=1)


class DeviceVision(VisionTraining):
    """The training of the claim with all that its digits do without: altered images, clipped gradients, bfloat16 and torch.compile."""

    def __init__(self, data: LabelledImages, settings: VisionTrainingSettings) -> None:
        torch_device(settings.device)
        super().__init__(data, settings)
        if settings.compiled:
            import torch

            self.forward = torch.compile(self.outputs)

    def minibatch(self, epoch: int, index: int) -> tuple[Any, Any]:
        """Pixels and labels of one step, shifted and mirrored at random if the settings say so."""
        pixels, labels = super().minibatch(epoch, index)
        if self.settings.crop or self.settings.flip:
            pixels = self._altered(pixels, self.seeded(epoch, index + 1))
        return pixels, labels

    def outputs(self, pixels: Any) -> Any:
        """(batch, n_classes) the logits of the model."""
        import torch

        low = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if low else nullcontext():
            return self.model(pixel_values=pixels).logits

    def before_step(self) -> None:
        """Clip the gradients."""
        import torch

        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)

    def is_finite(self) -> bool:
        """Whether the loss so far and all weights are finite."""
        import torch

        finite = torch.stack([weight.detach().isfinite().all() for weight in self.model.parameters()]).all()
        return bool(np.isfinite(float(self.loss))) and bool(finite)

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


class _VisionLoop(TrainingLoop):
    """A run in progress: the training, and the maps so far."""

    KIND = "vision"
    RECORD = VisionEpochRecord
    MEASURES_START = True

    def __init__(
        self,
        data: LabelledImages,
        settings: VisionTrainingSettings,
        path: Path | None,
        saved: tuple[Path, int] | None,
    ) -> None:
        n_steps = -(-len(data.x_train) // settings.batch)
        super().__init__(settings, n_steps, path, "" if path is None else fingerprint(data))
        checkpoint = self.saved_checkpoint()
        self.saved_models, self.training = saved, DeviceVision(data, settings)
        self.maps: dict[int, FloatArray] = {}
        if checkpoint is not None:
            self.resume(checkpoint)

    def begin_epoch(self) -> None:
        loss, right = float(self.training.loss), int(self.training.right)
        self.training.begin_epoch(self.epoch)
        if self.step_index:
            self.training.set_sums(loss, right)

    def step(self) -> None:
        self.training.step(self.epoch, self.step_index)

    def measure(self, epoch: int) -> VisionEpochRecord | None:
        if epoch and not self.training.is_finite():
            return None
        record, maps = self.training.measure(epoch, self.seconds)
        if self.saved_models is not None and epoch % self.saved_models[1] == 0:
            save_model(self.training.model, self.training.data, self.saved_models[0] / f"epoch-{epoch:03d}")
        with_maps = map_epochs(self.settings.epochs)  # and the latest, whatever it is
        self.maps = {**{k: earlier for k, earlier in self.maps.items() if k in with_maps}, epoch: maps}
        return record

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        training = self.training
        loss, right = (float(training.loss), int(training.right)) if self.step_index else (0.0, 0)
        maps = {f"{_MAPS}{epoch}": values for epoch, values in self.maps.items()}
        return {"loss": loss, "right": right}, {**state_arrays(training.model, training.optimiser), **maps}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        restore_arrays(self.training.model, self.training.optimiser, arrays)
        self.maps = {int(name.removeprefix(_MAPS)): array for name, array in arrays.items() if name.startswith(_MAPS)}
        self.training.set_sums(values["loss"], int(values["right"]))

    def result(self, ending: Ending) -> FinishedVision:
        training = self.training
        curves = VisionCurves.of(self.history, self.maps, training.labels)
        accuracy = training.accuracy(len(training.data.x_test))
        return FinishedVision(self.settings, training.model, curves, accuracy, ending)


@contextmanager
def _tensor_core_products(device: Any) -> Iterator[None]:
    """Products of float32 matrices by tensor cores while the run lasts, on a GPU that has them."""
    import torch

    if device.type != "cuda":
        yield
        return
    usual = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = usual
