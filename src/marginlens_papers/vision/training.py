"""Training a vision transformer while its CLS attention is measured; a stopped run resumes with the same bits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import reject, whole_number
from marginlens.papers import implements
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.training.checkpoint import checkpoint_path
from marginlens_papers.training.loop import Callback, Ending, Schedule, TrainingLoop
from marginlens_papers.training.settings import settings_or_default, torch_device
from marginlens_papers.vision.images import LabelledImages
from marginlens_papers.vision.measure import cls_attention, key_query_norms
from marginlens_papers.vision.model import (
    DevicePixels,
    optimiser_for,
    restore_arrays,
    save_model,
    state_arrays,
    vision_transformer,
)
from marginlens_papers.vision.results import VisionEpochRecord, VisionRun, VisionSettings, curves_of

CHOSEN = 6  # images whose maps are kept: the first of the test images in each of the first six classes
_MAP_STEPS = (1, 2, 5)  # maps are kept at epoch 0, and at 1, 2 and 5 times each power of ten
_TESTED_AT_ONCE = 500
_MAPS = "maps/"  # prefix of maps by epoch in a checkpoint


@implements("A", "Fig 6", "Fig 7")
def train_vision(
    data: LabelledImages,
    settings: VisionSettings | None = None,
    *,
    checkpoint: str | Path | None = None,
    every: int = 10,
    time_limit: float | None = None,
    save_models: tuple[str | Path, int] | None = None,
    callback: Callback | None = None,
) -> VisionRun:
    r"""Train a ViT by minibatches on the cross-entropy, and measure the CLS maps and key-query matrices of all layers after every epoch.

    Args:
        data: images and labels. settings: ViT-base at the paper's rate by default.
        checkpoint: a file. Where it exists the run resumes from it. It is written before the first step, every `every` epochs, at the
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
        raise reject("data", "LabelledImages", type(data).__name__)
    loop = _VisionLoop(data, settings_or_default(settings, VisionSettings), path, _models_to_save(save_models))
    with _tensor_core_products(loop.device):
        run: VisionRun = loop.run(schedule, callback)
        return run


def chosen_images(data: LabelledImages) -> IntArray:
    """(n_chosen,) the test images whose maps are kept: the first of each of the first classes."""
    first = [np.flatnonzero(data.y_test == k)[:1] for k in range(len(data.classes))]
    return np.concatenate(first)[:CHOSEN].astype(np.int64)


def map_epochs(epochs: int) -> set[int]:
    """The epochs at which maps are kept: 0, 1, 2, 5, 10, 20, 50, … and the last."""
    decades = 10 ** np.arange(1 + int(np.log10(max(epochs, 1))))
    return {0, epochs, *(int(k * ten) for ten in decades for k in _MAP_STEPS if k * ten <= epochs)}


def _models_to_save(given: Any) -> tuple[Path, int] | None:
    """The folder for models, and every how many epochs one is written into it."""
    if given is None:
        return None
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str | Path):
        raise reject("save_models", "a folder and a number of epochs", repr(given))
    return Path(given[0]), whole_number(given[1], "save_every", at_least=1)


class _VisionLoop(TrainingLoop):
    """A run in progress: the model, its optimiser, and the maps so far."""

    KIND = "vision"
    RECORD = VisionEpochRecord
    MEASURES_START = True

    def __init__(
        self, data: LabelledImages, settings: VisionSettings, path: Path | None, saved: tuple[Path, int] | None
    ) -> None:
        n_steps = -(-len(data.x_train) // settings.batch)
        super().__init__(settings, n_steps, path, "" if path is None else data.fingerprint)
        checkpoint = self.saved_checkpoint()
        self.data, self.saved_models = data, saved
        self.device = torch_device(settings.device)
        self.model = vision_transformer(settings, data).to(self.device)
        self.optimiser = optimiser_for(self.model, settings)
        self.images = DevicePixels(data, settings, self.device)
        self.chosen = chosen_images(data)
        self.maps: dict[int, FloatArray] = {}
        self._set_sums(0.0, 0.0)
        if checkpoint is not None:
            self.resume(checkpoint)
        self.forward = self._compiled() if settings.compiled else self._outputs

    # ---- the loop

    def begin_epoch(self) -> None:
        self.order = self.images.order(self.epoch)
        self.model.train()
        if not self.step_index:
            self._set_sums(0.0, 0.0)

    def step(self) -> None:
        """One minibatch; nothing here waits for the device."""
        import torch

        first = self.step_index * self.settings.batch
        pixels, labels = self.images.training(
            self.order[first : first + self.settings.batch], self.epoch, self.step_index
        )
        logits = self.forward(pixels)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate(self.epoch * self.n_steps + self.step_index)
        self.optimiser.step()
        self.loss += loss.detach().double() * len(labels)
        self.right += (logits.detach().argmax(dim=1) == labels).sum()

    def measure(self, epoch: int) -> VisionEpochRecord | None:
        import torch

        if epoch == 0:
            return self._record(0, float("nan"), float("nan"))
        n = len(self.data.x_train)
        loss, right = float(self.loss), float(self.right)
        finite = torch.stack([weight.detach().isfinite().all() for weight in self.model.parameters()]).all()
        if not np.isfinite(loss) or not bool(finite):
            return None
        return self._record(epoch, loss / n, right / n)

    def _record(self, epoch: int, loss: float, train_accuracy: float) -> VisionEpochRecord:
        settings = self.settings
        tested = self.images.x_test[: settings.measured]
        found = cls_attention(self.model, self.images.scaled(tested))
        norm, norm_of_sum = key_query_norms(self.model)
        chosen = self.images.scaled(self.images.x_test[self.chosen])
        maps = cls_attention(self.model, chosen, len(self.chosen)).maps
        accuracy = self.accuracy(settings.tested)
        by_layer = (found.sparsity, found.head_sparsity, found.own_share, norm, norm_of_sum)
        values = (tuple(map(float, layers)) for layers in by_layer)
        record = VisionEpochRecord(epoch, loss, train_accuracy, accuracy, self.seconds, *values)
        if self.saved_models is not None and epoch % self.saved_models[1] == 0:
            save_model(self.model, self.data, self.saved_models[0] / f"epoch-{epoch:03d}")
        with_maps = map_epochs(settings.epochs)  # and the latest, whatever it is
        self.maps = {**{k: earlier for k, earlier in self.maps.items() if k in with_maps}, epoch: maps}
        return record

    # ---- the model

    def _outputs(self, pixels: Any) -> Any:
        import torch

        low = self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16) if low else nullcontext():
            return self.model(pixel_values=pixels).logits

    def _compiled(self) -> Any:
        import torch

        return torch.compile(self._outputs)

    def accuracy(self, n_images: int) -> float:
        """Share of the first test images that the model names rightly."""
        import torch

        x, y = self.images.x_test[:n_images], self.images.y_test[:n_images]
        self.model.eval()
        with torch.no_grad():
            right = [
                (self._outputs(self.images.scaled(x[k : k + _TESTED_AT_ONCE])).argmax(1) == y[k : k + _TESTED_AT_ONCE])
                for k in range(0, len(x), _TESTED_AT_ONCE)
            ]
        return float(torch.cat(right).double().mean())

    # ---- on disk

    def _set_sums(self, loss: float, right: float) -> None:
        """Set the sums of the unfinished epoch, on the device."""
        import torch

        self.loss = torch.tensor(loss, dtype=torch.float64, device=self.device)
        self.right = torch.tensor(int(right), device=self.device)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        loss, right = (float(self.loss), float(self.right)) if self.step_index else (0.0, 0.0)
        maps = {f"{_MAPS}{epoch}": values for epoch, values in self.maps.items()}
        return {"loss": loss, "right": right}, {**state_arrays(self.model, self.optimiser), **maps}

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        restore_arrays(self.model, self.optimiser, arrays)
        self.maps = {int(name.removeprefix(_MAPS)): array for name, array in arrays.items() if name.startswith(_MAPS)}
        self._set_sums(values["loss"], values["right"])

    def result(self, ending: Ending) -> VisionRun:
        labels = tuple(self.data.classes[k] for k in self.data.y_test[self.chosen])
        curves = curves_of(self.history, self.maps, labels)
        accuracy = self.accuracy(len(self.data.x_test))
        return VisionRun(self.settings, self.model, curves, accuracy, ending)


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
