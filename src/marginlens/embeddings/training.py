"""Training embeddings with AdamW over labelled sequences; a stopped run resumes with the same bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.data.tokens import FloatArray
from marginlens.embeddings.forward import Evaluation, evaluate
from marginlens.embeddings.minibatches import DistinctTokens, batches_of, distinct_tokens
from marginlens.embeddings.parameters import Parameters, initial_parameters
from marginlens.embeddings.results import EpochRecord, RankCorrelations, TrainingRun, close_look
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import token_statistics
from marginlens.errors import reject
from marginlens.training.callbacks import Callback
from marginlens.training.checkpoint import checkpoint_path
from marginlens.training.loop import Ending, Schedule, TrainingLoop
from marginlens.training.settings import settings_or_default, torch_device


def train_embeddings(
    data: Any,
    settings: TrainingSettings | None = None,
    *,
    held_out: Any = None,
    checkpoint: str | Path | None = None,
    every: int = 50,
    time_limit: float | None = None,
    callback: Callback | None = None,
) -> TrainingRun:
    r"""Train embeddings, ⟨cls⟩ embedding and output vector on labelled sequences by AdamW.

    .. math:: \min_{E, p, v} \frac1n \sum_i \log(1 + e^{-y_i f(X_i)})

    Args:
        data: `LabelledSequences`. settings: the paper's by default.
        held_out: other sequences of the same tokens, on which loss and accuracy are measured: in the first epochs, then ever more
            seldom, and at the end.
        checkpoint: a file. Where it exists the run resumes from it. It is written before the first step, every `every` epochs, at the
            time limit, at Ctrl-C and at the end. Resuming gives the same bits as never having stopped, on the same machine.
        time_limit: seconds from the call; the run stops after the first step that passes them.
        callback: a function of every epoch's record, or `Callbacks`.
    Returns:
        The trained model with its table of tokens; `ending` says why it stopped. Ctrl-C raises KeyboardInterrupt.
    """
    schedule, path = Schedule(every, time_limit), checkpoint_path(checkpoint)
    others = None if held_out is None else as_labelled(held_out)
    loop = _EmbeddingLoop(as_labelled(data), settings_or_default(settings, TrainingSettings), path, others)
    run: TrainingRun = loop.run(schedule, callback)
    return run


def model_of(pairs: DistinctTokens, start: Parameters, settings: TrainingSettings) -> Any:
    """The model that the settings ask for, on their device."""
    if settings.layers == 1 and settings.device == "cpu":
        from marginlens.embeddings.one_layer import CompiledOneLayer

        return CompiledOneLayer(pairs, start, settings)
    torch_device(settings.device)
    from marginlens.embeddings.device_models import DeviceOneLayer
    from marginlens.embeddings.two_layer import DeviceTwoLayer

    return (DeviceOneLayer if settings.layers == 1 else DeviceTwoLayer)(pairs, start, settings)


class _EmbeddingLoop(TrainingLoop):
    """A run in progress: the model, and the random generator that draws the order of each epoch."""

    KIND = "embeddings"
    RECORD = EpochRecord

    def __init__(
        self, data: LabelledSequences, settings: TrainingSettings, path: Path | None, held_out: LabelledSequences | None
    ) -> None:
        if not len(data):
            raise reject("data", "at least one sequence", "none")
        if held_out is not None and not (len(held_out) and held_out.n_vocabulary <= data.n_vocabulary):
            expected = f"at least one sequence of the {data.n_vocabulary} tokens of the data"
            raise reject("held_out", expected, f"{len(held_out)} of {held_out.n_vocabulary} tokens")
        self.batches = batches_of(len(data), settings.batch)
        super().__init__(settings, len(self.batches), path, "" if path is None else data.fingerprint)
        checkpoint = self.saved_checkpoint()
        self.data = data
        self.held_out = None if held_out is None else distinct_tokens(held_out)
        self.statistics = token_statistics(data)
        self.ranks = RankCorrelations(self.statistics)
        self.rng = np.random.default_rng(settings.seed)
        start = initial_parameters(data.n_vocabulary, settings.d_model, self.rng, settings.dtype, settings.spread)
        self.model = model_of(distinct_tokens(data), start, settings)
        if checkpoint is not None:
            self.resume(checkpoint)
        self.rng_states = {self.epoch: self.rng.bit_generator.state}  # by epoch, before its order is drawn

    def begin_epoch(self) -> None:
        loss, before = self.model.loss if self.step_index else 0.0, self.rng.bit_generator.state
        order = self.rng.permutation(len(self.data))
        self.rng_states = {self.epoch: before, self.epoch + 1: self.rng.bit_generator.state}
        self.rate = self.settings.rate(self.epoch)
        self.model.begin(order)
        self.model.loss = loss

    def step(self) -> None:
        first, last = self.batches[self.step_index]
        self.model.step(first, last, self.rate)

    def measure(self, epoch: int) -> EpochRecord | None:
        (a, b), loss = self.model.products(), self.model.loss
        if not (math.isfinite(loss) and np.isfinite(a).all() and np.isfinite(b).all()):
            return None
        other = self._held_out() if close_look(epoch) or epoch == self.settings.epochs else (math.nan, math.nan)
        return EpochRecord(epoch, loss / len(self.data), *self.ranks(a, b), self.seconds, *other)

    def _held_out(self) -> tuple[float, float]:
        """Loss and accuracy of the held-out sequences at the present parameters."""
        if self.held_out is None:
            return math.nan, math.nan
        return _evaluated(self.model.outputs(self.held_out), self.held_out.y)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        loss = self.model.loss if self.step_index else 0.0
        generator = dict(self.rng_states[self.epoch])
        return {"generator": generator, "steps": self.model.taken, "loss": loss}, self.model.state()

    def restore(self, values: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        for name, array in self.model.state().items():
            can_be_formed_again = name in ("a", "b") and name not in arrays
            if not can_be_formed_again and arrays[name].shape != array.shape:
                raise ValueError(name)
        self.model.restore(arrays, int(values["steps"]))
        self.model.loss = float(values["loss"])
        self.rng.bit_generator.state = values["generator"]

    def result(self, ending: Ending) -> TrainingRun:
        current = self.model.parameters()
        parameters = Parameters(current.E.copy(), current.p.copy(), current.v.copy())  # which no later step changes
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
    """Loss and accuracy of some outputs; a model that diverged has no loss, and is right where its outputs are numbers."""
    if np.isfinite(outputs).all():
        return evaluate(outputs, y)
    return Evaluation(math.nan, float(np.mean(y * outputs > 0.0)))
