"""Training at scale: epochs of AdamW over labelled sequences, that can stop anywhere and go on bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import check_place
from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.embeddings.checkpoint import Checkpoint, fingerprint_of, read_checkpoint, write_checkpoint
from marginlens.embeddings.minibatches import DistinctTokens, batches_of, distinct_tokens
from marginlens.embeddings.parameters import Parameters, initial_parameters
from marginlens.embeddings.results import Ending, EpochRecord, RankCorrelations, TrainingRun
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import token_statistics
from marginlens.errors import positive_number, whole_number
from marginlens.runs.interrupts import held_interrupts
from marginlens.runs.settings import check_device

Watcher = Callable[[EpochRecord], None]


def train_embeddings(
    data: Any,
    settings: TrainingSettings | None = None,
    *,
    checkpoint: str | Path | None = None,
    every: int = 50,
    time_limit: float | None = None,
    watch: Watcher | None = None,
) -> TrainingRun:
    r"""Train embeddings, ⟨cls⟩ embedding and output vector on labelled sequences by AdamW.

    .. math:: \min_{E, p, v} \frac1n \sum_i \log(1 + e^{-y_i f(X_i)})

    Args:
        data: `LabelledSequences`. settings: the paper's by default.
        checkpoint: a file; where it is there already the run goes on from it, else it appears: every `every` epochs, at the time limit,
            at Ctrl-C and at the end. Going on gives the same bits as never having stopped, on the same machine.
        time_limit: seconds after which to stop in good order. watch: told of every epoch as it ends.
    Returns:
        The trained model with its table of tokens; `ending` says whether all epochs were run. Ctrl-C raises KeyboardInterrupt.
    """
    sequences, choices = as_labelled(data), settings or TrainingSettings()
    place = None if checkpoint is None else Path(checkpoint)
    if place is not None:
        check_place(place, "checkpoint")
    run = _Run(sequences, choices, place)
    limit = None if time_limit is None else positive_number(time_limit, "time_limit")
    with held_interrupts() as interrupted:
        ending = run.go(whole_number(every, "every", at_least=1), limit, watch or (lambda record: None), interrupted)
    return run.result(ending)


def model_of(pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> Any:
    """The model that the settings ask for, on their device."""
    if settings.layers == 1 and settings.device == "cpu":
        from marginlens.embeddings.one_layer import CompiledOneLayer

        return CompiledOneLayer(pairs, start, settings)
    check_device(settings.device)
    from marginlens.embeddings.device_models import DeviceOneLayer
    from marginlens.embeddings.two_layer import DeviceTwoLayer

    return (DeviceOneLayer if settings.layers == 1 else DeviceTwoLayer)(pairs, start, settings)


class _Run:
    """A run in progress: the model, the random generator, and how far it is."""

    def __init__(self, data: LabelledSequences, settings: TrainingSettings, place: Path | None) -> None:
        self.data, self.settings, self.file = data, settings, place
        self.fingerprint = "" if place is None else fingerprint_of(data)
        self.statistics = token_statistics(data)
        self.ranks = RankCorrelations(self.statistics)
        self.rng = np.random.default_rng(settings.seed)
        saved = None
        if place is not None and place.exists():
            saved = read_checkpoint(place)
            saved.check(settings, self.fingerprint, place)
        start = initial_parameters(data.n_vocabulary, settings.d_model, self.rng, settings.dtype, settings.spread)
        self.model = model_of(distinct_tokens(data), start, settings)
        self.epoch, self.place, self.before, self.unfinished = 0, 0, 0.0, 0.0
        self.history: list[EpochRecord] = []
        if saved is not None:
            saved.check_arrays(self.model.state(), place)
            self.model.restore(saved.arrays, saved.taken)
            self.rng.bit_generator.state = saved.generator
            self.epoch, self.place, self.before, self.unfinished = saved.epoch, saved.place, saved.seconds, saved.loss
            self.history = [EpochRecord(k + 1, *row) for k, row in enumerate(saved.history)]
        self.drawn = self.rng.bit_generator.state  # before this epoch's order was drawn
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self.before + time.perf_counter() - self.began

    def go(self, every: int, limit: float | None, watch: Watcher, interrupted: Callable[[], bool]) -> Ending:
        batches = batches_of(len(self.data), self.settings.batch)
        while self.epoch < self.settings.epochs:
            self.drawn = self.rng.bit_generator.state
            self.model.begin(self.rng.permutation(len(self.data)))
            self.model.loss = self.unfinished
            rate = self.settings.rate(self.epoch)
            for first, last in batches[self.place :]:
                self.model.step(first, last, rate)
                self.place += 1
                if interrupted():
                    self.save()
                    raise KeyboardInterrupt
                if limit is not None and time.perf_counter() - self.began > limit and self.place < len(batches):
                    self.save()
                    return Ending.TIME_LIMIT
            self._close_epoch()
            try:
                watch(self.history[-1])
            except KeyboardInterrupt:
                self.save()
                raise
            if self.epoch == self.settings.epochs or self.epoch % every == 0:
                self.save()
        return Ending.FINISHED

    def _close_epoch(self) -> None:
        ranks = self.ranks(*self.model.products())
        self.epoch, self.place = self.epoch + 1, 0
        self.drawn = self.rng.bit_generator.state
        self.history.append(EpochRecord(self.epoch, self.model.loss / len(self.data), *ranks, self.seconds))
        self.unfinished = 0.0

    def save(self) -> None:
        if self.file is None:
            return
        history = [[one.loss, one.correlation_v, one.correlation_p, one.seconds] for one in self.history]
        loss = self.model.loss if self.place else 0.0
        at = (self.epoch, self.place, self.model.taken, loss)
        generator = dict(self.drawn)
        arrays = self.model.state()
        kept = Checkpoint(self.settings, self.fingerprint, arrays, generator, *at, history, self.seconds)
        write_checkpoint(self.file, kept)

    def result(self, ending: Ending) -> TrainingRun:
        margins = self.data.y * self.model.outputs()
        parameters = self.model.parameters()
        E = parameters.E.astype(np.float64)
        return TrainingRun(
            self.settings,
            self.statistics,
            parameters,
            E @ parameters.p.astype(np.float64),
            E @ parameters.v.astype(np.float64),
            tuple(self.history),
            float(np.mean(np.logaddexp(0.0, -margins))),
            float(np.mean(margins > 0.0)),
            ending,
        )
