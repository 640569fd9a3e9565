"""`AttentionMonitor`: measures every attention head as a model trains, in the Trainer of transformers or in any other loop."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from marginlens.errors import InputError, reject, whole_number
from marginlens.probe.models.adapters.base import device_of
from marginlens.probe.monitor.alarms import Alarm, find_alarms
from marginlens.probe.monitor.measuring import (
    MAX_INPUTS,
    Measured,
    MonitorBatch,
    check_whole,
    inner_model,
    is_out_of_memory,
    measure_heads,
)
from marginlens.probe.monitor.record import RunRecord, check_path, read_record, set_aside
from marginlens.probe.result import CheckpointCurves, ProbeSettings, finite_mean
from marginlens.result import counted
from marginlens.runtime.files import as_path, write_whole

try:
    from transformers import TrainerCallback as _Callback
except ImportError:  # then there is no model to watch either
    _Callback = object

DEFAULT_EVERY = 100  # optimizer steps; the docstring has what it costs
DEFAULT_MAX_MARGIN_EVERY = 20  # measurements: one SVM for every head takes as long as many of the other measurements
REPORTED = (
    "relative_nnz",
    "entropy",
    "top_probability",
    "decisive_share",
    "sink_share",
    "margin_median",
    "frobenius",
    "spectral",
    "nuclear",
    "correlation",
)
PREFIX = "attention"
_INTEGRATIONS = (
    "transformers.integrations"  # where the callbacks that report to TensorBoard, W&B and others are defined
)
_NO_MEMORY = "memory ran out (a smaller batch for the monitor takes less)."
_LOG = logging.getLogger("marginlens")


class AttentionMonitor(_Callback):
    """Watch the attention heads of a model while it trains.

    Every `every` optimizer steps, and before the first, the model runs once on the same small batch, in evaluation mode and in float32, and
    every head gets the numbers that `probe_model` gives: nnz/T, entropy, top probability, decisive share, sink share, logit margin and the
    norms of W; at every `max_margin_every`-th measurement also how max-margin it is. Weights, gradients, random numbers, modes and the
    attention implementation are left as they were: a run with the monitor gives the same weights, bit for bit.

    In the Trainer: `Trainer(…, callbacks=[monitor])`. In other loops: `monitor.step(model, batch)` after each optimizer step.

    Args:
        batch: what the model is called with, a mapping of arrays or tensors, used as it is. Where left out, the Trainer's evaluation data
            (else its training data) or the first batch given to `step`, cut to 8 inputs of 64 tokens.
        path: a .parquet file with one row for each step, layer and head; it is written anew at a measurement, aside and renamed. A resumed
            run goes on in it, without the rows after the step at which it resumes; the file of another run is renamed, not lost.
        every: optimizer steps from one measurement to the next.
        max_margin_every: measurements from one with the max-margin part to the next; 0 leaves it out.
        report: what goes to the Trainer's reporters (TensorBoard, W&B, …): means by "layers", every one of the "heads", or "nothing".
        offset: for models with rotary positions, as in `ProbeSettings`.

    With the defaults measuring took .1 % to 1.2 % of the training of a small GPT-2 on a CPU; beside GPT-2 small on an H200, in mixed
    precision, 4.5 % to 4.9 %, and 3 % without the max-margin part. `monitor.cost` says what it takes in your run, `marginlens bench
    monitor` on your machine.

    To check it: `probe_model` on a saved checkpoint and the same inputs gives the same numbers.
    """

    def __init__(
        self,
        batch: Mapping[str, Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        every: int = DEFAULT_EVERY,
        max_margin_every: int = DEFAULT_MAX_MARGIN_EVERY,
        report: Literal["layers", "heads", "nothing"] = "layers",
        offset: int | None = None,
    ) -> None:
        self.every = whole_number(every, "every", at_least=1)
        self.max_margin_every = whole_number(max_margin_every, "max_margin_every", at_least=0)
        if report not in ("layers", "heads", "nothing"):
            raise reject("report", "'layers', 'heads' or 'nothing'", repr(report))
        self.report = report
        self._settings = ProbeSettings(max_margin=True, offset=offset, preferences=0, examples=0)
        self._batch = None if batch is None else MonitorBatch.of(batch, is_chosen=True)
        self.path = None if path is None else check_path(path)
        self._record = RunRecord()
        self._alarms: tuple[Alarm, ...] = ()
        self._step: int | None = None  # the optimizer steps counted; None before a run begins
        self._began = self.seconds = 0.0
        self._reporters: list[Any] = []

    def __repr__(self) -> str:
        where = f", {self.path}" if self.path is not None else ""
        found = f"{counted(len(self._record.rows), 'measurement')}, {counted(len(self._alarms), 'alarm')}"
        return f"AttentionMonitor(every {counted(self.every, 'step')}: {found}{where})"

    # ---- what was measured

    @property
    def curves(self) -> CheckpointCurves:
        """All measurements so far: name → (n_measurements, n_layers, n_heads), nan where a measure was not due."""
        return self._record.curves()

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """What deserves a look so far; `print(alarm)` gives its sentence."""
        return self._alarms

    @property
    def cost(self) -> float:
        """The seconds of measuring over those of everything else since the run began."""
        elsewhere = time.perf_counter() - self._began - self.seconds
        return self.seconds / elsewhere if self._step is not None and elsewhere > 0.0 else float("nan")

    def write_page(self, path: str | os.PathLike[str]) -> Path:
        """Write the curves of all heads, with the alarms on top, as one HTML page that needs no other file."""
        from marginlens.probe.page.checkpoints import checkpoint_page

        place = as_path(path, "path", "the place of an HTML file")
        write_whole(place, checkpoint_page(self.curves, self.alarms).encode(), "path")
        return place

    # ---- any loop

    def step(self, model: Any, batch: Mapping[str, Any] | None = None, *, step: int | None = None) -> dict[str, float]:
        """To be called after each optimizer step; it measures when it is due.

        Args:
            model: the model that is trained: of Hugging Face, or a module with one such model inside, as a LightningModule.
            batch: the batch of the loop. The first that is given is the fixed one, unless the monitor was made with one; later ones are
                not looked at.
            step: the number of optimizer steps so far, for runs that are resumed; counted from 1 by default.
        Returns:
            The means of every layer by name, to be logged, where it measured; else nothing, as in all processes but the first.
        """
        if not _is_first_process():
            return {}
        if self._batch is None:
            if batch is None:
                raise reject("batch", "given at the first step, or to AttentionMonitor", "None")
            self._batch = MonitorBatch.of(batch, is_chosen=False)
        now = (self._step or 0) + 1 if step is None else whole_number(step, "step", at_least=0)
        if self._step is None:
            self._begin(model, now - 1 if now else 0)
        self._step = now
        is_due = not self._record.rows or now % self.every == 0
        return self._measure(model, now) if is_due and now not in self._record.rows else {}

    def finish(self, model: Any | None = None) -> None:
        """Write what is not yet in the file; with a model, measure it once more if its last step has not been measured."""
        if model is not None and self._step is not None and self._step not in self._record.rows:
            self._measure(model, self._step)
        self._write(force=True)

    # ---- the Trainer of transformers

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the batch and the reporters, go on in the file of a resumed run, and measure before the first step."""
        if not state.is_world_process_zero:
            return
        trainer, model = _calling_trainer(), kwargs["model"]
        callbacks = trainer.callback_handler.callbacks if trainer is not None else ()
        self._reporters = [other for other in callbacks if type(other).__module__.startswith(_INTEGRATIONS)]
        if self._batch is None:
            has_evaluation = trainer is not None and trainer.eval_dataset is not None
            evaluation = _evaluation_data(trainer) if has_evaluation else kwargs.get("eval_dataloader")
            self._batch = _batch_of_trainer(evaluation, kwargs.get("train_dataloader"))
        self._begin(model, int(state.global_step))
        if not self._record.rows:
            self._report(self._measure(model, int(state.global_step)), args, state, control, model)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure where it is due: after an optimizer step, not after each batch of an accumulated gradient."""
        if self._step is None or not state.is_world_process_zero:
            return
        self._step = int(state.global_step)
        if self._step % self.every == 0 and self._step not in self._record.rows:
            self._report(self._measure(kwargs["model"], self._step), args, state, control, kwargs["model"])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the file, so that a run that is resumed from this checkpoint lacks no row."""
        if self._step is not None:
            self._write(force=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Measure the trained model, and write the file."""
        if self._step is not None and state.is_world_process_zero:
            if self._step not in self._record.rows:
                self._report(self._measure(kwargs["model"], self._step), args, state, control, kwargs["model"])
            self._write(force=True)

    # ---- both

    def _begin(self, model: Any, step: int) -> None:
        """Start a run at a step: go on in the file of this run, or put that of another aside."""
        inner = inner_model(model)
        check_whole(inner)
        self._step, self._began, self.seconds = step, time.perf_counter(), 0.0
        self._record, self._alarms = RunRecord(), ()
        digest = _digest(self._batch)
        if self.path is not None and self.path.exists():
            record = read_record(self.path)
            record.drop_after(step)
            if step == 0 or not record.rows:
                set_aside(self.path)
            else:
                self._record = record
                if record.facts.get("batch") != digest:
                    self._note(f"From step {step} on another batch is measured than before, where curves may jump.")
        self._record.facts |= {
            "model": f"{inner.config.model_type}, {type(inner).__name__}",
            "n_inputs": 0 if self._batch is None else len(self._batch),
            "every": self.every,
            "batch": digest,
        }

    def _measure(self, model: Any, step: int) -> dict[str, float]:
        """Measure, record, look for alarms, and write the file where enough is new; the means of layers come back."""
        inner = inner_model(model)
        _synchronize(inner)
        began = time.perf_counter()
        assert self._batch is not None
        is_due = self.max_margin_every > 0 and len(self._record.rows) % self.max_margin_every == 0
        try:
            measured: Measured = measure_heads(
                inner, self._batch, offset=self._settings.offset, max_margin=self._settings if is_due else None
            )
        except (InputError, RuntimeError, MemoryError) as problem:
            if not isinstance(problem, InputError | MemoryError) and not is_out_of_memory(problem):
                raise
            if not self._record.rows:
                raise  # nothing is lost yet: better now than in the middle of a night
            said = str(problem) if isinstance(problem, InputError) else _NO_MEMORY
            self._note(f"At step {step} nothing could be measured: {said}")
            _LOG.warning("step %d could not be measured: %s", step, said)
            return {}
        for note in () if self._record.rows else measured.notes:  # later ones say the same with other counts
            self._note(note)
        self._record.facts["layer_names"] = list(measured.layer_names)
        self._record.add(step, measured.measures)
        curves = self.curves
        self._raise_alarms(curves)
        self._write(force=False)
        self.seconds += time.perf_counter() - began
        return self._values(measured, curves)

    def _raise_alarms(self, curves: CheckpointCurves) -> None:
        known = {(alarm.kind, alarm.layer, alarm.heads) for alarm in self._alarms}
        self._alarms = find_alarms(curves)
        for alarm in self._alarms:
            if (alarm.kind, alarm.layer, alarm.heads) not in known:
                _LOG.warning("%s", alarm.sentence)

    def _values(self, measured: Measured, curves: CheckpointCurves) -> dict[str, float]:
        """What a logger gets: attention/relative_nnz/layer_0 or encoder_0 and so on, numbers that are finite."""
        values: dict[str, float] = {}
        for name in REPORTED:
            if name not in measured.measures:
                continue
            numbers = measured.measures[name]
            if self.report == "heads":
                heads = {
                    curves.head_name(layer, head): float(value) for (layer, head), value in np.ndenumerate(numbers)
                }
            else:
                heads = {curves.layer_title(layer): float(value) for layer, value in enumerate(finite_mean(numbers))}
            known = {where.replace(" ", "_"): value for where, value in heads.items() if np.isfinite(value)}
            values |= {f"{PREFIX}/{name}/{where}": value for where, value in known.items()}
        return {**values, f"{PREFIX}/alarms": float(len(self._alarms))}

    def _report(self, values: dict[str, float], args: Any, state: Any, control: Any, model: Any) -> None:
        """Hand the numbers to what the Trainer reports to, and to nothing that prints."""
        if values and self.report != "nothing":
            for reporter in self._reporters:
                reporter.on_log(args, state, control, logs=dict(values), model=model)

    def _note(self, sentence: str) -> None:
        notes = self._record.facts.setdefault("notes", [])
        if sentence not in notes:
            notes.append(sentence)

    def _write(self, *, force: bool) -> None:
        if self.path is None or not self._record.rows or not (self._is_behind if force else self._record.is_due()):
            return
        try:
            self._record.write(self.path)
        except InputError as problem:
            if len(self._record.rows) == 1 and not force:
                raise  # at the first measurement nothing is lost yet
            self._note(f"At step {self._step} the file could not be written, and later ones are tried again: {problem}")
            _LOG.warning("the file of the monitor could not be written at step %s: %s", self._step, problem)

    @property
    def _is_behind(self) -> bool:
        return self._record.n_written < len(self._record.rows)


def _synchronize(model: Any) -> None:
    """Wait for what a GPU still computes for the training, so that it does not count as measuring."""
    import torch

    device = torch.device(device_of(model))
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _is_first_process() -> bool:
    """Whether this is the process that measures: the only one, or the first of those that train together."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _calling_trainer() -> Any:
    """The Trainer that raised the event, which names neither its callbacks nor its evaluation data; None where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if hasattr(caller, "callback_handler") and hasattr(caller, "get_eval_dataloader"):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _evaluation_data(trainer: Any) -> Any:
    """The loader of a Trainer's evaluation data, of the first where there are several."""
    several = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {}
    with _random_state():
        return trainer.get_eval_dataloader(next(iter(several.values()), None))


def _digest(batch: MonitorBatch | None) -> str:
    """A few letters that tell one batch from another."""
    found = hashlib.sha256()
    for name, value in sorted(batch.inputs.items()) if batch is not None else ():
        found.update(f"{name}{value.shape}{value.dtype}".encode() + np.ascontiguousarray(value).tobytes())
    return found.hexdigest()[:16]


def _batch_of_trainer(*loaders: Any) -> MonitorBatch:
    """The first examples of the first data that has a length, as the Trainer collates them; no random number is used up."""
    for loader in loaders:
        dataset, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
        if dataset is None or collate is None or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            continue
        with _random_state():
            examples = [dataset[place] for place in range(min(MAX_INPUTS, len(dataset)))]
            batch = collate(examples)
        return MonitorBatch.of(batch, is_chosen=False)
    expected = "given, since the Trainer's data are a stream without a length"
    raise reject("batch", expected, "None", "Pass a batch to AttentionMonitor.")


@contextmanager
def _random_state() -> Iterator[None]:
    """Afterwards the random numbers of Python, NumPy and torch go on as if nothing had been drawn."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
