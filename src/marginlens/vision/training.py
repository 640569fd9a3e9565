"""Training a vision transformer while its CLS attention is measured, in epochs that can stop anywhere and go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import check_place
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.errors import positive_number, reject, whole_number
from marginlens.papers import implements
from marginlens.runs.interrupts import held_interrupts
from marginlens.runs.settings import check_device
from marginlens.vision.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from marginlens.vision.images import LabelledImages
from marginlens.vision.measuring import cls_attention, key_query_norms
from marginlens.vision.model import save_model, vision_transformer
from marginlens.vision.optimiser import optimiser_for, restore_arrays, state_arrays
from marginlens.vision.pixels import DevicePixels
from marginlens.vision.results import Ending, EpochRecord, Listener, VisionRun, curves_of
from marginlens.vision.settings import VisionSettings

CHOSEN = 6  # images whose maps are kept: the first of the test images in each of the first six classes
_MAP_STEPS = (1, 2, 5)  # maps are kept at epoch 0, and at 1, 2 and 5 times each power of ten
_TESTED_AT_ONCE = 500
Watcher = Callable[[EpochRecord], None]


@implements("A", "Fig 6", "Fig 7")
def train_vision(
    data: LabelledImages,
    settings: VisionSettings | None = None,
    *,
    checkpoint: str | Path | None = None,
    every: int = 10,
    time_limit: float | None = None,
    save_models: tuple[Path, int] | None = None,
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
    called = time.perf_counter()
    place = None if checkpoint is None else Path(checkpoint)
    if place is not None:
        check_place(place, "checkpoint")
    limit = None if time_limit is None else positive_number(time_limit, "time_limit")
    whole_number(every, "every", at_least=1)
    if save_models is not None:
        whole_number(save_models[1], "save_every", at_least=1)
    run = _Run(data, settings or VisionSettings(), place, save_models)
    with held_interrupts() as interrupted, _quick_products(run.device):
        until = None if limit is None else called + limit
        ending = run.go(every, until, watch or (lambda record: None), interrupted)
        return run.result(ending)


def chosen_images(data: LabelledImages) -> IntArray:
    """(n_chosen,) the test images whose maps are kept: the first of each of the first classes."""
    first = [np.flatnonzero(data.y_test == k)[:1] for k in range(len(data.classes))]
    return np.concatenate(first)[:CHOSEN].astype(np.int64)


def map_epochs(epochs: int) -> set[int]:
    """The epochs at which maps are kept: 0, 1, 2, 5, 10, 20, 50, … and the last."""
    decades = 10 ** np.arange(1 + int(np.log10(max(epochs, 1))))
    return {0, epochs, *(int(k * ten) for ten in decades for k in _MAP_STEPS if k * ten <= epochs)}


class _Run:
    """A run in progress: the model, its optimiser, and how far it is."""

    def __init__(
        self, data: LabelledImages, settings: VisionSettings, place: Path | None, saved: tuple[Path, int] | None
    ) -> None:
        self.data, self.settings, self.file, self.saved_models = data, settings, place, saved
        self.fingerprint = "" if place is None else data.fingerprint
        found = None
        if place is not None and place.exists():
            found = read_checkpoint(place)
            found.check(settings, self.fingerprint, place)
        self.device = check_device(settings.device)
        self.model = vision_transformer(settings, data).to(self.device)
        self.optimiser = optimiser_for(self.model, settings)
        self.images = DevicePixels(data, settings, self.device)
        self.chosen = chosen_images(data)
        self.epoch, self.place, self.before = 0, 0, 0.0
        self.history: list[EpochRecord] = []
        self.maps: dict[int, FloatArray] = {}
        self.closing, self.keeping = 0.0, 0.0  # seconds
        self.listener: Listener | None = None
        self._sums(0.0, 0.0)
        if found is not None:
            self._go_on_from(found)
        self.forward = self._compiled() if settings.compiled else self._outputs
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    @property
    def steps(self) -> int:
        return -(-len(self.data.x_train) // self.settings.batch)

    # ---- the loop

    def go(self, every: int, until: float | None, watch: Watcher, interrupted: Callable[[], bool]) -> Ending:
        if isinstance(watch, Listener):
            self.listener = watch
        if not self.history:
            self._measure(0, float("nan"), float("nan"))
            watch(self.history[0])
        if self.epoch < self.settings.epochs:
            self._keep()  # says before the first step what cannot be written, and how long it takes
        while self.epoch < self.settings.epochs:
            order = self.images.order(self.epoch)
            self.model.train()
            while self.place < self.steps:
                self._step(order)
                if interrupted():
                    self._keep()
                    raise KeyboardInterrupt
                if self._late(until) and self.place < self.steps:
                    self.save()
                    return Ending.TIME_LIMIT
            with self._saved_where_it_fails():
                if not self._close_epoch():
                    return Ending.DIVERGED
                watch(self.history[-1])
            if self.epoch == self.settings.epochs:
                self.save()
            elif self.epoch % every == 0:
                self._keep()
        return Ending.FINISHED

    def _late(self, until: float | None) -> bool:
        """Whether closing an epoch and saving, as long as they took so far, would pass the time limit."""
        return until is not None and time.perf_counter() + self.closing + self.keeping > until

    def _step(self, order: Any) -> None:
        """One minibatch; nothing here waits for the device."""
        import torch

        first = self.place * self.settings.batch
        pixels, labels = self.images.training(order[first : first + self.settings.batch], self.epoch, self.place)
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
        self.place += 1

    def _close_epoch(self) -> bool:
        """Measure the model at the end of an epoch; False where its loss or a weight is no number.

        Only what is measured is counted as done: where this fails, all steps of the epoch are still to be closed.
        """
        import torch

        n = len(self.data.x_train)
        loss, right = float(self.loss), float(self.right)
        whole = torch.stack([one.detach().isfinite().all() for one in self.model.parameters()]).all()
        if not np.isfinite(loss) or not bool(whole):
            return False
        self._measure(self.epoch + 1, loss / n, right / n)
        self.epoch, self.place = self.epoch + 1, 0
        self._sums(0.0, 0.0)
        return True

    def _measure(self, epoch: int, loss: float, train_accuracy: float) -> None:
        settings, began = self.settings, time.perf_counter()
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
        self.history.append(record)
        self.closing = max(self.closing, time.perf_counter() - began)

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
        self.epoch, self.place, self.before = found.epoch, found.place, found.seconds
        self.history, self.maps = list(found.history), dict(found.maps)
        self._sums(found.loss, found.right)

    def save(self) -> None:
        if self.file is None:
            return
        arrays = state_arrays(self.model, self.optimiser)
        at = (self.epoch, self.place, float(self.loss), float(self.right), self.seconds)
        write_checkpoint(self.file, Checkpoint(self.settings, self.fingerprint, arrays, *at, self.history, self.maps))

    def _keep(self) -> None:
        """Write the checkpoint, and tell who listens of the run so far."""
        began = time.perf_counter()
        self.save()
        if self.listener is not None:
            self.listener.saved(self.result(Ending.UNFINISHED))
        grows = 1 if self.optimiser.state else 3  # times the size, once there are moments
        self.keeping = max(self.keeping, grows * (time.perf_counter() - began))

    @contextmanager
    def _saved_where_it_fails(self) -> Iterator[None]:
        """Save what was trained when measuring or telling fails in whatever way, and let the failure go on."""
        try:
            yield
        except BaseException as problem:
            if self.file is None:
                raise
            try:
                self.save()
                problem.add_note(f"{self.file} holds where to go on, after {len(self.history) - 1} measured epochs.")
                if self.listener is not None:
                    self.listener.saved(self.result(Ending.UNFINISHED))
            except Exception as other:  # the first failure is the one to tell
                problem.add_note(f"Saving failed too: {other}")
            raise

    def result(self, ending: Ending) -> VisionRun:
        labels = tuple(self.data.classes[k] for k in self.data.y_test[self.chosen])
        curves = curves_of(self.history, self.maps, labels)
        return VisionRun(self.settings, self.model, curves, self.accuracy(len(self.data.x_test)), ending)


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
