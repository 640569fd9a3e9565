"""`AttentionMonitor` measures every attention head during training, in the Trainer of transformers or in any other loop."""

from __future__ import annotations

import atexit
import copy
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from weakref import WeakSet

import numpy as np

from marginlens.errors import InputError, whole_number
from marginlens.probe.monitor.alarms import WITHDRAWN, Alarm, find_alarms, find_selections, loss_alarms
from marginlens.probe.monitor.forecast import HeadForecast, forecast_heads
from marginlens.probe.monitor.measuring import NORM_MEASURES, QUERY_MEASURES, HeadReader
from marginlens.probe.monitor.record import RunRecord, check_path, read_record, set_aside
from marginlens.probe.result import CheckpointCurves, finite_mean
from marginlens.result import counted
from marginlens.runtime.files import as_path, write_whole
from marginlens.typing import FloatArray
from marginlens.words import Fact, text

if TYPE_CHECKING:
    import torch
    from transformers import TrainerControl, TrainerState, TrainingArguments

try:
    from transformers import TrainerCallback as _Callback
except ImportError:  # then there is no model to watch either
    _Callback = object

DEFAULT_EVERY = 100  # optimizer steps; the docstring has what it costs
FINER = 10  # times as often is measured while a run begins, and while logits grow fast:
FAST_GROWTH = 1.5  # by this factor from one measurement to the next,
LARGE_LOGIT = 20.0  # of a largest logit of at least this
REPORTED = (*QUERY_MEASURES, *NORM_MEASURES)
PREFIX = "attention"
# Where the callbacks that report to TensorBoard, W&B and others are defined.
_INTEGRATIONS = "transformers.integrations"
_LOG = logging.getLogger("marginlens")


class AttentionMonitor(_Callback):
    """Watch the attention heads of a model while it trains.

    Every `every` optimizer steps, hooks read the queries and keys of an ordinary training step, for at most 8 inputs and 64
    queries each. They measure the largest logit, margin, entropy, top probability and sink share of every head, and three norms
    of its W. The growth of these measures gives forecasts for each head (`forecasts`), and alarms with remedies (`alarms`). At
    the beginning of a run, and while logits grow fast, ten times as many steps are measured. The forward pass is not repeated
    and the model is not changed: a run with the monitor gives the same weights, bit for bit.

    In the Trainer: `Trainer(…, callbacks=[monitor])`. In other loops: `with AttentionMonitor(…) as monitor:` around the loop,
    `monitor.attach(model)` before the first step, and `monitor.step(model)` after each optimizer step.

    Args:
        path: a .parquet file with one row for each step, layer and head. It is rewritten at measurements, under another name
            that is then renamed. A resumed run continues it from the step at which it resumes; the file of another run is
            renamed, not lost.

        every: the number of optimizer steps from one measurement to the next.

        report: the numbers for the Trainer's reporters (TensorBoard, W&B, …): means over "layers", all "heads", or "nothing".

    `monitor.cost` is the cost in your run.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        every: int = DEFAULT_EVERY,
        report: Literal["layers", "heads", "nothing"] = "layers",
    ) -> None:
        self.every = whole_number(every, "every", at_least=1)
        if report not in ("layers", "heads", "nothing"):
            raise InputError("report", "'layers', 'heads' or 'nothing'", repr(report))
        self.report = report
        self.path = None if path is None else check_path(path)
        self._record = RunRecord()
        self._alarms: tuple[Alarm, ...] = ()
        self._reader: HeadReader | None = None
        self._step: int | None = None  # the optimizer steps counted; None before a run begins
        self._expected: int | None = None  # the steps that made the weights of the pass that is read next
        self._finer_until = 0
        self._began = self.seconds = 0.0
        self._reporters: list[Any] = []
        _MONITORS.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def __del__(self) -> None:
        if getattr(self, "_reader", None) is not None:
            self.finish()

    def __repr__(self) -> str:
        where = f", {self.path}" if self.path is not None else ""
        found = f"{counted(len(self._record.rows), 'measurement')}, {counted(len(self._alarms), 'alarm')}"
        return f"AttentionMonitor(every {counted(self.every, 'step')}: {found}{where})"

    # ---- what was measured

    @property
    def curves(self) -> CheckpointCurves:
        """All measurements so far by name, (n_measurements, n_layers, n_heads), nan if a measure was not due."""
        return self._record.curves()

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """The alarms so far; `print(alarm)` shows the text of an alarm."""
        return self._alarms

    @property
    def selections(self) -> tuple[Alarm, ...]:
        """Heads that have selected while the loss fell, which is not an alarm."""
        return find_selections(self.curves) if self._record.rows else ()

    @property
    def forecasts(self) -> tuple[HeadForecast, ...]:
        """Forecasts of when heads will have selected, or their logits exploded, at their present growth; the nearest first."""
        return forecast_heads(self.curves) if self._record.rows else ()

    @property
    def cost(self) -> float:
        """The time of measuring relative to the time of everything else since the run began."""
        elsewhere = time.perf_counter() - self._began - self.seconds
        return self.seconds / elsewhere if self._step is not None and elsewhere > 0.0 else float("nan")

    def write_page(self, path: str | os.PathLike[str]) -> Path:
        """Write the curves of all heads, with the alarms on top, as one HTML page that needs no other file."""
        from marginlens.probe.page import checkpoint_page

        place = as_path(path, "path", "the place of an HTML file")
        write_whole(place, checkpoint_page(self.curves, self.alarms).encode(), "path")
        return place

    # ---- any loop

    def attach(self, model: torch.nn.Module, *, step: int | None = None) -> None:
        """Put hooks on a model before its first step, so that this step is measured too.

        Args:
            model: the model in training: a Hugging Face model, or a module with one such model inside, such as a
                LightningModule.

            step: the number of optimizer steps so far, if a run is resumed; by default taken from the first
                `monitor.step(step=…)`.
        """
        start = None if step is None else whole_number(step, "step", at_least=0)
        if _is_first_process() and self._reader is None:
            self._watch(model)
            if start is not None:
                self._begin(start)

    def step(
        self, model: torch.nn.Module, *, loss: torch.Tensor | float | None = None, step: int | None = None
    ) -> dict[str, float]:
        """Count an optimizer step, and collect the measurements made in it.

        Args:
            model: as in `attach`, which is called first if necessary.

            loss: the loss of this step, if the loop computes it instead of the model; it distinguishes heads that select from
                heads that are stuck.

            step: the number of optimizer steps so far, including this one, for runs that may be resumed; counted from 1 by
                default.

        Returns:
            The means of every layer by name, for logging, if the step was measured; otherwise an empty dict, as in all
            processes except the first.
        """
        if not _is_first_process():
            return {}
        now = (self._step or 0) + 1 if step is None else whole_number(step, "step", at_least=0)
        if self._reader is None:
            self._watch(model)
            self._begin(now)
            return {}
        if self._step is None:  # the pass that was read is that of the weights before this step
            self._begin(max(now - 1, 0))
        if loss is not None:
            self._reader.add_loss(loss)
        values = self._collect()
        self._step = now
        self._expect_if_due()
        return values

    def finish(self) -> None:
        """Record remaining measurements, write them to the file, and remove the hooks from the model.

        The end of a `with` block, of the Trainer's training and of the process, and deleting the monitor, do the same.
        """
        if self._reader is not None:
            if self._record.rows:
                self._record.facts["finished"] = True
                self._record.n_written = 0  # the file does not say so yet
                self._collect_rest()
            self._reader.remove()
            self._reader = None
        self._write(force=True)

    # ---- the Trainer of transformers

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Find the reporters, continue the file of a resumed run, and read the first step."""
        if not state.is_world_process_zero:
            return
        trainer = _calling_trainer()
        callbacks = trainer.callback_handler.callbacks if trainer is not None else ()
        self._reporters = [other for other in callbacks if type(other).__module__.startswith(_INTEGRATIONS)]
        self.finish()
        self._watch(kwargs["model"])
        self._begin(int(state.global_step))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Collect measurements after an optimizer step, not after each batch of an accumulated gradient."""
        if self._reader is None or not state.is_world_process_zero:
            return
        measured, values = self._expected, self._collect()
        if values and self.report != "nothing":
            then = copy.copy(state)
            then.global_step = measured
            for reporter in self._reporters:  # and nothing that prints
                reporter.on_log(args, then, control, logs=dict(values), model=kwargs["model"])
        self._step = int(state.global_step)
        self._expect_if_due()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Write the file; a run resumed from this checkpoint then lacks no row."""
        if self._reader is not None:
            self._write(force=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the file, and remove the hooks from the model."""
        self.finish()

    # ---- both

    def _watch(self, model: torch.nn.Module) -> None:
        """Put hooks on the model, which read its next pass; the first pass of a run is always read."""
        self._reader = HeadReader(model)
        self._record, self._alarms, self._step = RunRecord(), (), None
        self._began, self.seconds = time.perf_counter(), 0.0
        self._reader.expect()

    def _begin(self, step: int) -> None:
        """Start a run whose first pass has weights after so many steps: continue the file of this run, or set the file of
        another run aside.
        """
        assert self._reader is not None
        self._step = self._expected = step
        self._finer_until = step + self.every
        if self.path is not None and self.path.exists():
            record = read_record(self.path)
            record.drop_after(step - 1)  # the weights of this step are measured again
            if step == 0 or not record.rows:
                set_aside(self.path)
            else:
                self._record = record
        inner = self._reader.model
        self._record.facts |= {"model": f"{inner.config.model_type}, {type(inner).__name__}", "every": self.every}

    def _expect_if_due(self) -> None:
        """Have the next pass read if it is due; its weights have `self._step` steps."""
        assert self._reader is not None
        assert self._step is not None
        interval = max(1, self.every // FINER) if self._step < self._finer_until else self.every
        if (self._step % interval == 0 or not self._record.rows) and self._step not in self._record.rows:
            self._expected = self._step
            self._reader.expect()

    def _collect(self) -> dict[str, float]:
        """Record measurements, look for alarms, and write the file if enough is new. Return the means of layers."""
        assert self._reader is not None
        step, self._expected = self._expected, None
        if step is None:
            return {}
        began = time.perf_counter() - self._reader.seconds
        self._reader.seconds = 0.0
        try:
            measured = self._reader.collect()
            if not measured:
                raise InputError(
                    "model",
                    "one whose attention layers call their hooks",
                    "a step in which none of them did",
                    "If torch.compile compiled the model before, attach the monitor before the model's first step.",
                )
            self._record.add(step, measured)
        except (InputError, RuntimeError, MemoryError) as problem:
            if not self._record.rows:
                raise  # nothing is lost yet: better now than in the middle of a night
            cause = str(problem) if isinstance(problem, InputError) else text("monitor.no_memory")
            note = text("monitor.not_measured", step=step, cause=cause)
            self._note(note)
            _LOG.warning("%s", note)
            return {}
        for note in self._reader.notes:
            self._note(note)
        self._record.facts |= {
            "layer_names": list(self._reader.adapter.layer_names),
            "n_inputs": self._reader.n_inputs,
        }
        curves = self.curves
        self._raise_alarms(curves)
        if _grows_fast(curves["max_logit"]):
            self._finer_until = step + self.every
        self._write(force=False)
        self.seconds += time.perf_counter() - began
        return self._values(measured, curves)

    def _collect_rest(self) -> None:
        """Record a pass whose optimizer step was not taken, and look at the losses since the last measurement."""
        assert self._reader is not None
        assert self._step is not None
        if self._reader.has_read:
            self._collect()
        curves = self.curves
        self._alarms = find_alarms(curves)  # of a run that is over
        if not self._reader.has_losses:
            return
        last = self._reader.mean_loss()
        steps, losses = np.append(curves.steps, self._step), np.append(curves["loss"][:, 0, 0], last)
        kinds = {alarm.kind for alarm in self._alarms}
        for alarm in loss_alarms(steps, losses):
            if alarm.kind not in kinds:
                self._alarms += (alarm,)
                self._note(alarm.sentence)  # the file has no row for it
                _LOG.warning("%s", alarm)

    def _raise_alarms(self, curves: CheckpointCurves) -> None:
        before, self._alarms = self._alarms, find_alarms(curves)
        known = {(alarm.kind, alarm.layer, alarm.heads) for alarm in before}
        for alarm in self._alarms:
            if (alarm.kind, alarm.layer, alarm.heads) not in known:
                _LOG.warning("%s", alarm)
        remaining = {(alarm.kind, alarm.layer) for alarm in self._alarms}
        for alarm in before:
            if (alarm.kind, alarm.layer) not in remaining:
                numbers = {"step": int(curves.steps[-1]), "sentence": replace(alarm, is_over=True).sentence}
                self._record.facts.setdefault("withdrawn", []).append(numbers)
                _LOG.warning("%s", Fact(WITHDRAWN, numbers))

    def _values(self, measured: dict[str, FloatArray], curves: CheckpointCurves) -> dict[str, float]:
        """Return the values for a logger by name, such as attention/relative_nnz/layer_0 or encoder_0; only finite numbers."""
        values: dict[str, float] = {}
        for name in REPORTED:
            numbers = measured[name]
            if self.report == "heads":
                heads = {
                    curves.head_name(layer, head): float(value) for (layer, head), value in np.ndenumerate(numbers)
                }
            else:
                heads = {curves.layer_title(layer): float(value) for layer, value in enumerate(finite_mean(numbers))}
            known = {where.replace(" ", "_"): value for where, value in heads.items() if np.isfinite(value)}
            values |= {f"{PREFIX}/{name}/{where}": value for where, value in known.items()}
        loss = float(measured["loss"][0, 0])
        loss_by_name = {f"{PREFIX}/loss": loss} if np.isfinite(loss) else {}
        return {**values, **loss_by_name, f"{PREFIX}/alarms": float(len(self._alarms))}

    def _note(self, sentence: str) -> None:
        notes = self._record.facts.setdefault("notes", [])
        if sentence not in notes:
            notes.append(sentence)

    def _write(self, *, force: bool) -> None:
        is_behind = self._record.n_written < len(self._record.rows)
        if self.path is None or not is_behind or not (force or self._record.is_due()):
            return
        try:
            self._record.write(self.path)
        except InputError as problem:
            if len(self._record.rows) == 1 and not force:
                raise  # at the first measurement nothing is lost yet
            note = text("monitor.not_written", step=self._step, cause=problem)
            self._note(note)
            _LOG.warning("%s", note)


_MONITORS: WeakSet[AttentionMonitor] = WeakSet()


@atexit.register
def _finish_all() -> None:
    """Write pending measurements of all monitors when the process ends, while the modules for writing still exist."""
    for monitor in list(_MONITORS):
        monitor.finish()


def _is_first_process() -> bool:
    """Return whether this process measures: it is the only one, or the first of those that train together."""
    from torch import distributed

    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _calling_trainer() -> Any:
    """Return the Trainer that raised the event; None if something else did.

    Its event passes the model, the optimizer and the data, but not the other callbacks, which alone can pass numbers to
    TensorBoard or W&B. `on_log` of this callback comes after theirs, so anything it added to the logs would be lost. The
    Trainer is therefore looked up in the frames of the call.
    """
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if hasattr(caller, "callback_handler") and hasattr(caller, "get_eval_dataloader"):
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _grows_fast(logits: FloatArray) -> bool:
    """Return whether the largest logit (n_measurements, n_layers, n_heads) of some head is large and grew much since the
    previous measurement.
    """
    if len(logits) < 2:
        return False
    with np.errstate(invalid="ignore"):
        return bool(np.any((logits[-1] >= FAST_GROWTH * logits[-2]) & (logits[-1] >= LARGE_LOGIT)))
