"""Training a vision transformer while its CLS attention is measured, in epochs that can stop anywhere and go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import reject, whole_number
from marginlens.papers import implements
from marginlens.runs.loop import Timetable, TrainingLoop, Watcher, checkpoint_place
from marginlens.runs.settings import check_device, given_settings
from marginlens.runs.telling import Ending
from marginlens.vision.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from marginlens.vision.images import LabelledImages
from marginlens.vision.measuring import cls_attention, key_query_norms
from marginlens.vision.model import save_model, vision_transformer
from marginlens.vision.optimiser import optimiser_for, restore_arrays, state_arrays
from marginlens.vision.pixels import DevicePixels
from marginlens.vision.results import EpochRecord, VisionRun, curves_of
from marginlens.vision.settings import VisionSettings

CHOSEN = 6  # images whose maps are kept: the first of the test images in each of the first six classes
_MAP_STEPS = (1, 2, 5)  # maps are kept at epoch 0, and at 1, 2 and 5 times each power of ten
_TESTED_AT_ONCE = 500


@implements("A", "Fig 6", "Fig 7")
def train_vision(
    data: LabelledImages,
    settings: VisionSettings | None = None,
    *,
    checkpoint: str | Path | None = None,
    every: int = 10,
    time_limit: float | None = None,
    save_models: tuple[str | Path, int] | None = None,
    watch: Watcher | None = None,
) -> VisionRun:
    r"""Train a ViT by minibatches on the cross-entropy, and measure the CLS maps and key-query matrices of all layers after every epoch.

    Args:
        data: images and labels. settings: ViT-base at the paper's rate by default.
        checkpoint: a file; where it is there already the run goes on from it, else it appears: at once, every `every` epochs, at the time
            limit, at Ctrl-C, at the end, and where measuring an epoch or telling of it fails, so that nothing trained is lost. Going on
            gives the same bits as never having stopped, on the same processor with one thread.
        time_limit: seconds from the call after which the run has stopped in good order, at least one step later and saved, as far as
            the times that saving and measuring took before tell.
        save_models: a folder and every how many epochs the model is written into it, as epoch-NNN for `from_pretrained`.
        watch: told of every epoch as it ends, and of epoch 0 before the first step; a `Listener` also of the run so far.
    Returns:
        The model and its curves; `ending` says why it stopped. Ctrl-C raises KeyboardInterrupt.
    """
    timetable, file = Timetable.of(every, time_limit), checkpoint_place(checkpoint)
    if not isinstance(data, LabelledImages):
        raise reject("data", "LabelledImages", type(data).__name__)
    run = _Run(data, given_settings(settings, VisionSettings), file, _models_to_save(save_models))
    with _quick_products(run.device):
        found: VisionRun = run.go(timetable, watch)
        return found


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


class _Run(TrainingLoop):
    """A run in progress: the model, its optimiser, and the maps so far."""

    measures_the_start = True

    def __init__(
        self, data: LabelledImages, settings: VisionSettings, file: Path | None, saved: tuple[Path, int] | None
    ) -> None:
        super().__init__(settings.epochs, -(-len(data.x_train) // settings.batch), file)
        self.data, self.settings, self.saved_models = data, settings, saved
        self.fingerprint = "" if file is None else data.fingerprint
        found = None
        if file is not None and file.exists():
            found = read_checkpoint(file)
            found.check(settings, self.fingerprint, file)
        self.device = check_device(settings.device)
        self.model = vision_transformer(settings, data).to(self.device)
        self.optimiser = optimiser_for(self.model, settings)
        self.images = DevicePixels(data, settings, self.device)
        self.chosen = chosen_images(data)
        self.maps: dict[int, FloatArray] = {}
        self._sums(0.0, 0.0)
        if found is not None:
            self._go_on_from(found)
        self.forward = self._compiled() if settings.compiled else self._outputs

    @property
    def growth(self) -> float:
        return 1.0 if self.optimiser.state else 3.0  # times the size, once there are moments

    # ---- the loop

    def begin_epoch(self) -> None:
        self.order = self.images.order(self.epoch)
        self.model.train()
        if not self.place:
            self._sums(0.0, 0.0)

    def step(self) -> None:
        """One minibatch; nothing here waits for the device."""
        import torch

        first = self.place * self.settings.batch
        pixels, labels = self.images.training(self.order[first : first + self.settings.batch], self.epoch, self.place)
        logits = self.forward(pixels)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if self.settings.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.rate(self.epoch * self.steps + self.place)
        self.optimiser.step()
        self.loss += loss.detach().double() * len(labels)
        self.right += (logits.detach().argmax(dim=1) == labels).sum()

    def measured(self, epoch: int) -> EpochRecord | None:
        import torch

        if epoch == 0:
            return self._measure(0, float("nan"), float("nan"))
        n = len(self.data.x_train)
        loss, right = float(self.loss), float(self.right)
        whole = torch.stack([one.detach().isfinite().all() for one in self.model.parameters()]).all()
        if not np.isfinite(loss) or not bool(whole):
            return None
        return self._measure(epoch, loss / n, right / n)

    def _measure(self, epoch: int, loss: float, train_accuracy: float) -> EpochRecord:
        settings = self.settings
        tested = self.images.x_test[: settings.measured]
        found = cls_attention(self.model, self.images.scaled(tested))
        norm, norm_of_sum = key_query_norms(self.model)
        some = self.images.scaled(self.images.x_test[self.chosen])
        maps = cls_attention(self.model, some, len(self.chosen)).maps
        accuracy = self.accuracy(settings.tested)
        by_layer = (found.sparsity, found.head_sparsity, found.own_share, norm, norm_of_sum)
        values = (tuple(map(float, one)) for one in by_layer)
        record = EpochRecord(epoch, loss, train_accuracy, accuracy, self.seconds, *values)
        if self.saved_models is not None and epoch % self.saved_models[1] == 0:
            save_model(self.model, self.data, self.saved_models[0] / f"epoch-{epoch:03d}")
        ladder = map_epochs(settings.epochs)  # and the latest, whatever it is
        self.maps = {**{one: kept for one, kept in self.maps.items() if one in ladder}, epoch: maps}
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

    def _sums(self, loss: float, right: float) -> None:
        """What the unfinished epoch has so far, on the device."""
        import torch

        self.loss = torch.tensor(loss, dtype=torch.float64, device=self.device)
        self.right = torch.tensor(int(right), device=self.device)

    def _go_on_from(self, found: Checkpoint) -> None:
        try:
            restore_arrays(self.model, self.optimiser, found.arrays)
        except (KeyError, RuntimeError, TypeError, ValueError) as problem:
            raise reject("checkpoint", "one of the same model", f"{str(self.file)!r} with other weights") from problem
        self.stand_at(found.epoch, found.place, found.history, found.seconds)
        self.maps = dict(found.maps)
        self._sums(found.loss, found.right)

    def save(self) -> None:
        if self.file is None:
            return
        arrays = state_arrays(self.model, self.optimiser)
        sums = (float(self.loss), float(self.right)) if self.place else (0.0, 0.0)
        at = (self.epoch, self.place, *sums, self.seconds)
        write_checkpoint(self.file, Checkpoint(self.settings, self.fingerprint, arrays, *at, self.history, self.maps))

    def result(self, ending: Ending) -> VisionRun:
        labels = tuple(self.data.classes[k] for k in self.data.y_test[self.chosen])
        curves = curves_of(self.history, self.maps, labels)
        accuracy = self.accuracy(len(self.data.x_test))
        return VisionRun(self.settings, self.model, curves, accuracy, ending)


@contextmanager
def _quick_products(device: Any) -> Iterator[None]:
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
