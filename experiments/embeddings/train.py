"""Training embeddings with AdamW over labelled sequences: the training loop, which resumes with the same bits, and the result."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.embeddings.settings import TrainingSettings
from experiments.training.checkpoint import checkpoint_path
from experiments.training.loop import Callback, Ending, Schedule, TrainingLoop
from experiments.training.settings import settings_or_default, torch_device
from marginlens.data.labelled import LabelledSequences, as_labelled
from marginlens.embeddings.models import DistinctTokens, Parameters, distinct_tokens, initial_parameters
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.errors import InputError, real_array, whole_number
from marginlens.runtime.files import write_whole
from marginlens.typing import FloatArray, IntArray
from marginlens_papers.claims.b.embedding_runs import CURVES, FREQUENT
from marginlens_papers.claims.b.one_layer import CompiledOneLayer, batches_of

DENSE_EPOCHS = 20  # the first epochs, all of which are measured closely
EPOCHS_PER_DECADE = 40  # of the later epochs, which are measured closely
TABLE, FACTS = "tokens.csv", "run.json"


class Evaluation(NamedTuple):
    """The mean logistic loss of some sequences, and the share whose label has the sign of the output."""

    loss: float
    accuracy: float


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: its number from 1, its mean loss, both rank correlations at its end, and the seconds since the run began.

    `held_out_loss` and `held_out_accuracy` are those of held-out sequences at its end, NaN if they were not measured.
    """

    epoch: int
    loss: float
    correlation_v: float
    correlation_p: float
    seconds: float
    held_out_loss: float = float("nan")
    held_out_accuracy: float = float("nan")

    def __str__(self) -> str:
        ranks = f"Spearman {self.correlation_v:+.4f} (v), {self.correlation_p:+.4f} (p)"
        return f"epoch {self.epoch}: loss {self.loss:.6g}, {ranks}, {self.seconds:.1f} s"


@dataclass(frozen=True, repr=False, eq=False)
class TrainingRun:
    """A trained model: `a` = ⟨E_s, p⟩ and `b` = ⟨E_s, v⟩ (n_vocabulary,), its parameters, and how it got there.

    `loss` and `accuracy` are those of all training sequences at the final parameters, `held_out_loss` and `held_out_accuracy` those of
    the held-out ones (NaN without any); `history` has the mean loss of each epoch. `layer_norm` has the gain and the bias of the layer
    norm, each (d_model,), if the settings ask for them.
    """

    settings: TrainingSettings
    statistics: TokenStatistics
    parameters: Parameters
    a: FloatArray
    b: FloatArray
    history: tuple[EpochRecord, ...]
    loss: float
    accuracy: float
    ending: Ending
    held_out_loss: float = float("nan")
    held_out_accuracy: float = float("nan")
    layer_norm: tuple[FloatArray, FloatArray] | None = None

    def __repr__(self) -> str:
        layers = "one layer" if self.settings.layers == 1 else "two layers"
        return (
            f"TrainingRun({layers}, d_model={self.settings.d_model}, {len(self.history)} epochs, loss {self.loss:.4g})"
        )

    def columns(self) -> dict[str, Any]:
        """The table by column: a, b, alpha, posterior_difference and count, by token id."""
        statistics = self.statistics
        return {
            "a": self.a,
            "b": self.b,
            "alpha": statistics.alpha,
            "posterior_difference": statistics.posterior_difference,
            "count": statistics.count,
        }

    def write(self, folder: Path, *, names: Sequence[str] | None = None, facts: dict[str, Any] | None = None) -> None:
        """Write the table as CSV and everything else, with the table's SHA-256, as JSON; neither holds any text of the sequences.

        Args:
            folder: made if it is missing. names: (n_vocabulary,) what each token is called. facts: added to the JSON.
        """
        folder.mkdir(parents=True, exist_ok=True)
        columns = self.columns()
        stream = StringIO()
        rows = csv.writer(stream, lineterminator="\n")
        rows.writerow(["id", "token", *columns])
        for s in range(len(self.a)):
            values = [f"{column[s]:.9g}" if column.dtype.kind == "f" else int(column[s]) for column in columns.values()]
            rows.writerow([s, "" if names is None else names[s], *values])
        table = stream.getvalue().encode()
        write_whole(folder / TABLE, table, "folder")
        summary = {
            "settings": self.settings.to_dict(),
            "ending": self.ending.name,
            "epochs_done": len(self.history),
            "loss": self.loss,
            "accuracy": self.accuracy,
            "held_out_loss": self.held_out_loss,
            "held_out_accuracy": self.held_out_accuracy,
            "positions": self.statistics.n_positions,
            "table": digest(table),
            "history": {name: [getattr(record, name) for record in self.history] for name in (*CURVES, "seconds")},
            **(facts or {}),
        }
        write_whole(folder / FACTS, json.dumps(_json_values(summary), indent=1).encode(), "folder")


def close_look(epoch: int) -> bool:
    """Whether an epoch, counted from 1, is one of those whose curves are kept and whose held-out loss is measured."""
    if epoch <= DENSE_EPOCHS:
        return True
    position = EPOCHS_PER_DECADE * np.log10(epoch / DENSE_EPOCHS)
    nearest = DENSE_EPOCHS * 10.0 ** (np.array([np.floor(position), np.ceil(position)]) / EPOCHS_PER_DECADE)
    return bool(np.any(np.round(nearest) == epoch))


def digest(table: bytes) -> str:
    """The SHA-256 of a table, by which the facts know it."""
    return hashlib.sha256(table).hexdigest()


class RankCorrelations:
    """Spearman's correlation of ⟨E_s, v⟩ with the posterior difference, and of ⟨E_s, p⟩ with its modulus, over frequent tokens."""

    def __init__(self, statistics: TokenStatistics, at_least: int = FREQUENT) -> None:
        if not isinstance(statistics, TokenStatistics):
            raise InputError("statistics", "TokenStatistics, as token_statistics gives them", type(statistics).__name__)
        least = max(whole_number(at_least, "at_least", at_least=0), 1)  # what never occurs has no posterior difference
        self.tokens: IntArray = np.flatnonzero(statistics.count >= least)
        difference = statistics.posterior_difference[self.tokens]
        self._v, self._p = _ranks(difference), _ranks(np.abs(difference))

    def __call__(self, a: Any, b: Any) -> tuple[float, float]:
        """The two correlations, v first; NaN if there is nothing to rank."""
        return _cosine(self._v, _ranks(np.asarray(b)[self.tokens])), _cosine(
            self._p, _ranks(np.asarray(a)[self.tokens])
        )


def _ranks(values: FloatArray) -> FloatArray:
    from scipy.stats import rankdata

    if len(values) == 0:
        return np.empty(0)
    ranks = rankdata(values)
    return ranks - ranks.mean()


def _cosine(x: FloatArray, y: FloatArray) -> float:
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0.0 else float("nan")


def _json_values(value: Any) -> Any:
    """JSON has no NaN: null stands for it."""
    if isinstance(value, dict):
        return {name: _json_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_values(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


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
        checkpoint: a file. If it exists, the run resumes from it. It is written before the first step, every `every` epochs, at the
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
        return ResumableOneLayer(pairs, start, settings)
    torch_device(settings.device)
    from experiments.embeddings.torch_models import DeviceOneLayer, DeviceTwoLayer

    return (DeviceOneLayer if settings.layers == 1 else DeviceTwoLayer)(pairs, start, settings)


class ResumableOneLayer(CompiledOneLayer):
    """The one-layer model on the CPU, whose state can be saved and restored."""

    def state(self) -> dict[str, Any]:
        """All arrays that the next step depends on, by name."""
        of_vectors = self.moments["pv"].swapaxes(0, 1)
        moments = {
            f"{kind}_{name}": array
            for name, both in zip("Epv", (self.moments["E"], *of_vectors), strict=True)
            for kind, array in zip("ms", both, strict=True)
        }
        return {"E": self.E, "p": self.p, "v": self.v, **moments, "a": self.a, "b": self.b}

    def restore(self, arrays: dict[str, Any], taken: int) -> None:
        """Go back to a state, after `taken` steps."""
        for name, mine in self.state().items():
            if name in arrays:
                mine[...] = arrays[name]
        if "a" not in arrays:  # a state that another device left
            self.form_products()
        self.taken = taken


class _EmbeddingLoop(TrainingLoop):
    """A run in progress: the model, and the random generator that draws the order of each epoch."""

    KIND = "embeddings"
    RECORD = EpochRecord

    def __init__(
        self, data: LabelledSequences, settings: TrainingSettings, path: Path | None, held_out: LabelledSequences | None
    ) -> None:
        if not len(data):
            raise InputError("data", "at least one sequence", "none")
        if held_out is not None and not (len(held_out) and held_out.n_vocabulary <= data.n_vocabulary):
            expected = f"at least one sequence of the {data.n_vocabulary} tokens of the data"
            raise InputError("held_out", expected, f"{len(held_out)} of {held_out.n_vocabulary} tokens")
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
            tuple(each.copy() for each in self.model.layer_norm()) if self.settings.affine else None,
        )


def evaluate(outputs: Any, y: Any) -> Evaluation:
    r"""The mean logistic loss :math:`\frac1n \sum_i \log(1 + e^{-y_i f_i})` and the accuracy of some outputs.

    Args:
        outputs: (n_samples,) f. y: (n_samples,) labels, each -1 or +1, or `LabelledSequences` that hold them.
    """
    f = real_array(outputs, "outputs", ("n_samples",))
    labels = y.y if isinstance(y, LabelledSequences) else real_array(y, "y", ("n_samples",))
    if not len(f) or labels.shape != f.shape or not np.isin(labels, (-1.0, 1.0)).all():
        raise InputError(
            "y", f"labels, each -1 or +1, of shape {f.shape}, of at least one output", f"shape {labels.shape}"
        )
    margins = labels * f
    return Evaluation(float(np.mean(np.logaddexp(0.0, -margins))), float(np.mean(margins > 0.0)))


def _evaluated(outputs: FloatArray, y: FloatArray) -> Evaluation:
    """Loss and accuracy of some outputs; a model that diverged has no loss, and is right where its outputs are numbers."""
    if np.isfinite(outputs).all():
        return evaluate(outputs, y)
    return Evaluation(math.nan, float(np.mean(y * outputs > 0.0)))
