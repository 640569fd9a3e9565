"""The result of training embeddings: two products per token, the tokens' statistics, and the history of the loss."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import write_whole
from marginlens.data.tokens import FloatArray, IntArray
from marginlens.embeddings.forward import one_layer_outputs, two_layer_outputs
from marginlens.embeddings.parameters import Parameters
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.statistics import TokenStatistics
from marginlens.errors import reject, whole_number
from marginlens.training.loop import Ending

FREQUENT = 200  # occurrences from which a token's posterior difference is taken as known
CURVES = ("loss", "correlation_v", "correlation_p", "held_out_loss", "held_out_accuracy")  # of an epoch's record
DENSE_EPOCHS = 20  # the first epochs, all of which are measured closely
EPOCHS_PER_DECADE = 40  # of the later epochs, which are measured closely
TABLE, FACTS = "tokens.csv", "run.json"


@dataclass(frozen=True)
class EpochRecord:
    """One epoch: its number from 1, its mean loss, both rank correlations at its end, and the seconds since the run began.

    `held_out_loss` and `held_out_accuracy` are those of held-out sequences at its end, NaN where they were not measured.
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


@dataclass(frozen=True, repr=False)
class TrainingRun:
    """A trained model: `a` = ⟨E_s, p⟩ and `b` = ⟨E_s, v⟩ (n_vocabulary,), its parameters, and how it got there.

    `loss` and `accuracy` are those of all training sequences at the final parameters, `held_out_loss` and `held_out_accuracy` those of
    the held-out ones (NaN without any); `history` has the mean loss of each epoch.
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

    def __repr__(self) -> str:
        layers = "one layer" if self.settings.layers == 1 else "two layers"
        return (
            f"TrainingRun({layers}, d_model={self.settings.d_model}, {len(self.history)} epochs, loss {self.loss:.4g})"
        )

    def outputs(self, sequences: Any) -> FloatArray:
        """(n_samples,) the model's output f for every sequence, by B Eq. (1) or (36); its sign is the predicted label."""
        model = one_layer_outputs if self.settings.layers == 1 else two_layer_outputs
        return model(self.parameters.E, self.parameters.p, self.parameters.v, sequences)

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
            folder: made where it is not there. names: (n_vocabulary,) what each token is called. facts: added to the JSON.
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
            raise reject("statistics", "TokenStatistics, as token_statistics gives them", type(statistics).__name__)
        least = max(whole_number(at_least, "at_least", at_least=0), 1)  # what never occurs has no posterior difference
        self.tokens: IntArray = np.flatnonzero(statistics.count >= least)
        difference = statistics.posterior_difference[self.tokens]
        self._v, self._p = _ranks(difference), _ranks(np.abs(difference))

    def __call__(self, a: Any, b: Any) -> tuple[float, float]:
        """The two correlations, v first; NaN where there is nothing to rank."""
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
