"""Training at scale: epochs of AdamW over labelled sequences, that can stop anywhere and go on bit for bit."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.data.tokens import FloatArray
from marginlens.embeddings.checkpoint import Checkpoint, fingerprint_of, read_checkpoint, write_checkpoint
from marginlens.embeddings.forward import Evaluation, evaluate
from marginlens.embeddings.minibatches import DistinctTokens, batches_of, distinct_tokens
from marginlens.embeddings.parameters import Parameters, initial_parameters
from marginlens.embeddings.results import Ending, EpochRecord, RankCorrelations, TrainingRun, close_look
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import token_statistics
from marginlens.errors import reject
from marginlens.runs.loop import Timetable, TrainingLoop, Watcher, checkpoint_place
from marginlens.runs.settings import check_device, given_settings


def train_embeddings(
    data: Any,
    settings: TrainingSettings | None = None,
    *,
    held_out: Any = None,
    checkpoint: str | Path | None = None,
    every: int = 50,
    time_limit: float | None = None,
    watch: Watcher | None = None,
) -> TrainingRun:
    r"""Train embeddings, ⟨cls⟩ embedding and output vector on labelled sequences by AdamW.

    .. math:: \min_{E, p, v} \frac1n \sum_i \log(1 + e^{-y_i f(X_i)})

    Args:
        data: `LabelledSequences`. settings: the paper's by default.
        held_out: other sequences of the same tokens, on which loss and accuracy are measured: in the first epochs, then ever more
            seldom, and at the end.
        checkpoint: a file; where it is there already the run goes on from it, else it appears: at once, every `every` epochs, at the time
            limit, at Ctrl-C, at the end, and where measuring an epoch or telling of it fails, so that nothing trained is lost. Going on
            gives the same bits as never having stopped, on the same machine.
        time_limit: seconds from the call after which the run has stopped in good order, at least one step later and saved, as far as
            the times that saving and measuring took before tell.
        watch: told of every epoch as it ends; a `Listener` also of the run so far.
    Returns:
        The trained model with its table of tokens; `ending` says why it stopped. Ctrl-C raises KeyboardInterrupt.
    """
    timetable, file = Timetable.of(every, time_limit), checkpoint_place(checkpoint)
    others = None if held_out is None else as_labelled(held_out)
    run = _Run(as_labelled(data), given_settings(settings, TrainingSettings), file, others)
    found: TrainingRun = run.go(timetable, watch)
    return found


def model_of(pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> Any:
    """The model that the settings ask for, on their device."""
    if settings.layers == 1 and settings.device == "cpu":
        from marginlens.embeddings.one_layer import CompiledOneLayer

        return CompiledOneLayer(pairs, start, settings)
    check_device(settings.device)
    from marginlens.embeddings.device_models import DeviceOneLayer
    from marginlens.embeddings.two_layer import DeviceTwoLayer

    return (DeviceOneLayer if settings.layers == 1 else DeviceTwoLayer)(pairs, start, settings)


class _Run(TrainingLoop):
    """A run in progress: the model, and the random generator that draws each epoch's order."""

    def __init__(
        self, data: LabelledSequences, settings: TrainingSettings, file: Path | None, held_out: LabelledSequences | None
    ) -> None:
        if not len(data):
            raise reject("data", "at least one sequence", "none")
        if held_out is not None and not (len(held_out) and held_out.n_vocabulary <= data.n_vocabulary):
            expected = f"at least one sequence of the {data.n_vocabulary} tokens of the data"
            raise reject("held_out", expected, f"{len(held_out)} of {held_out.n_vocabulary} tokens")
        self.batches = batches_of(len(data), settings.batch)
        super().__init__(settings.epochs, len(self.batches), file)
        self.data, self.settings = data, settings
        self.held_out = None if held_out is None else distinct_tokens(held_out)
        self.fingerprint = "" if file is None else fingerprint_of(data)
        found = None
        if file is not None and file.exists():
            found = read_checkpoint(file)
            found.check(settings, self.fingerprint, file)
        self.statistics = token_statistics(data)
        self.ranks = RankCorrelations(self.statistics)
        self.rng = np.random.default_rng(settings.seed)
        start = initial_parameters(data.n_vocabulary, settings.d_model, self.rng, settings.dtype, settings.spread)
        self.model = model_of(distinct_tokens(data), start, settings)
        if found is not None:
            self._go_on_from(found)
        self.drawn = {self.epoch: self.rng.bit_generator.state}  # before the order of an epoch is drawn

    def begin_epoch(self) -> None:
        loss, before = self.model.loss if self.place else 0.0, self.rng.bit_generator.state
        order = self.rng.permutation(len(self.data))
        self.drawn = {self.epoch: before, self.epoch + 1: self.rng.bit_generator.state}
        self.rate = self.settings.rate(self.epoch)
        try:
            self.model.begin(order)
        finally:
            self.model.loss = loss

    def step(self) -> None:
        first, last = self.batches[self.place]
        self.model.step(first, last, self.rate)

    def measured(self, epoch: int) -> EpochRecord | None:
        (a, b), loss = self.model.products(), self.model.loss
        if not (math.isfinite(loss) and np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        other = self._held_out() if close_look(epoch) or epoch == self.settings.epochs else (math.nan, math.nan)
        return EpochRecord(epoch, loss / len(self.data), *self.ranks(a, b), self.seconds, *other)

    def _held_out(self) -> tuple[float, float]:
        """Loss and accuracy of the held-out sequences now."""
        if self.held_out is None:
            return math.nan, math.nan
        return _evaluated(self.model.outputs(self.held_out), self.held_out.y)

    def save(self) -> None:
        if self.file is None:
            return
        history = [list(dataclasses.astuple(one)[1:]) for one in self.history]
        at = (self.epoch, self.place, self.model.taken, self.model.loss if self.place else 0.0)
        arrays, generator = self.model.state(), dict(self.drawn[self.epoch])
        kept = Checkpoint(self.settings, self.fingerprint, arrays, generator, *at, history, self.seconds)
        write_checkpoint(self.file, kept)

    def _go_on_from(self, found: Checkpoint) -> None:
        found.check_arrays(self.model.state(), self.file)
        try:
            history = [EpochRecord(k + 1, *row) for k, row in enumerate(found.history)]
            self.model.restore(found.arrays, int(found.taken))
            self.model.loss = float(found.loss)
            self.rng.bit_generator.state = found.generator
        except (KeyError, RuntimeError, TypeError, ValueError) as problem:
            raise reject("checkpoint", "one of the same model", f"{str(self.file)!r} with other contents") from problem
        self.stand_at(found.epoch, found.place, history, found.seconds)

    def result(self, ending: Ending) -> TrainingRun:
        now = self.model.parameters()
        parameters = Parameters(*(one.copy() for one in (now.E, now.p, now.v)))  # which no later step changes
        E = parameters.E.astype(np.float64)
        return TrainingRun(
            self.settings,
            self.statistics,
            parameters,
            E @ parameters.p.astype(np.float64),
            E @ parameters.v.astype(np.float64),
            tuple(self.history),
            *_evaluated(self.model.outputs(), self.data.y),
            ending,
            *self._held_out(),
        )


def _evaluated(outputs: FloatArray, y: FloatArray) -> Evaluation:
    """Loss and accuracy of some outputs; a model that has run away has no loss, and is right where its outputs are numbers."""
    if np.isfinite(outputs).all():
        return evaluate(outputs, y)
    return Evaluation(math.nan, float(np.mean(y * outputs > 0.0)))
