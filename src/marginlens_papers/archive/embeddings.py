"""A finished training run as one small file: what its figure shows and what it takes to run it again, and no text of any sequence."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.labelled import LabelledSequences
from marginlens.data.random_sequences import Levels, level_sequences
from marginlens.data.tokens import FloatArray
from marginlens.embeddings.sequence_file import read_labelled
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.embeddings.train import CURVES, FACTS, TABLE, TrainingSettings, close_look, digest
from marginlens.errors import InputError, reject, whole_number
from marginlens.runtime.files import as_path, json_by_line, write_whole
from marginlens.training.loop import Ending
from marginlens_papers.archive.files import check_name, command_without_paths, results_folder

FORM = "marginlens kept training run 1"
PREFIX = "embeddings-"
LEVELS = "levels"  # what the source of K-level sequences is called
_DIGITS = 5  # significant digits of what is drawn
_COLUMNS = ("a", "b", "count", "difference")
_NEEDED = {"settings", "ending", "epochs_done", "loss", "accuracy", "history", "data", "command", "versions"}
_EXPECTED = f"a folder with {TABLE} and {FACTS}, which marginlens.embeddings.run wrote"
_OTHERWISE = (  # what another content leads to
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    csv.Error,
)


@dataclass(frozen=True, repr=False, eq=False)
class KeptRun:
    """A kept run: `a` = ⟨E_s, p⟩ and `b` = ⟨E_s, v⟩ (n_vocabulary,) to five digits, exact counts, and `curves` over `epochs`.

    `source` is the name of the data ("imdb", "yelp", "levels"), `names` what the tokens are called, `loss` and `accuracy` those of all
    training sequences at the end, `held_out_loss` and `held_out_accuracy` those of the held-out ones, NaN without any. `facts` has the
    command, the versions and the SHA-256 of ids, lengths and labels. A run with `finished` False was stopped after its last kept epoch.
    """

    name: str
    source: str
    settings: TrainingSettings
    names: tuple[str, ...] | None
    a: FloatArray
    b: FloatArray
    statistics: TokenStatistics
    epochs: FloatArray
    curves: Mapping[str, FloatArray]
    loss: float
    accuracy: float
    finished: bool
    facts: Mapping[str, Any]
    held_out_loss: float = float("nan")
    held_out_accuracy: float = float("nan")

    def __repr__(self) -> str:
        return f"KeptRun({self.name}: {self.told})"

    @cached_property
    def told(self) -> str:
        """The run in a few words."""
        layers = "one layer" if self.settings.layers == 1 else "two layers"
        stopped = "" if self.finished else f" of {self.settings.epochs}, then stopped"
        return f"{self.source}, {layers}, rate {self.settings.learning_rate:g}, {int(self.epochs[-1])} epochs{stopped}"


def keep_run(
    folder: str | Path,
    name: str,
    *,
    data: str | Path | None = None,
    source: str | None = None,
    into: str | Path | None = None,
) -> Path:
    """Put what `marginlens.embeddings.run` wrote into one small file.

    Args:
        folder: the run's `--out`. name: what the run is called, in letters, digits, dots and dashes.
        data: the file it was trained on; its counts must be those of the run. K-level sequences are drawn again.
        source: what the data are called, by which `kept_runs` finds the run; the name of the data's file by default.
        into: where the file goes; by default among the results that come with the package.
    Returns:
        The file.
    """
    if not isinstance(name, str):
        raise reject("name", "a name in letters, digits, dots and dashes", type(name).__name__)
    check_name(name)
    if source is not None and not isinstance(source, str):
        raise reject("source", "a name in letters, digits, dots and dashes", type(source).__name__)
    place = as_path(folder, "folder", _EXPECTED)
    facts, table = _read(place)
    try:
        kept = _told(facts, table, data, place)
        if source is not None:
            kept["source"] = kept["data"]["called"] = check_name(source, "source")
        _kept(name, dict(kept))  # what cannot be read again is not written
    except InputError:
        raise
    except _OTHERWISE as problem:
        raise reject("folder", _EXPECTED, f"{str(place)!r}, which cannot be read") from problem
    target = (results_folder() if into is None else as_path(into, "into", "a folder")) / f"{PREFIX}{name}.json"
    write_whole(target, json_by_line(kept), "into")
    return target


def read_kept(path: str | Path) -> KeptRun:
    """The run in a file that `keep_run` wrote."""
    expected = "a file that keep_run wrote"
    place = as_path(path, "path", expected)
    try:
        told = json.loads(place.read_text(encoding="utf-8"))
        if told["form"] != FORM:
            raise reject("path", expected, f"{str(place)!r}, of another form")
        return _kept(place.stem.removeprefix(PREFIX), told)
    except OSError as problem:
        raise reject("path", expected, f"{str(place)!r} ({problem.strerror or problem})") from problem
    except InputError:
        raise
    except _OTHERWISE as problem:
        raise reject("path", expected, f"{str(place)!r}, which cannot be read") from problem


def kept_runs(source: str, layers: int) -> tuple[KeptRun, ...]:
    """All runs on this data and of this depth that come with the package, the largest learning rate first."""
    if not isinstance(source, str):
        raise reject("source", "the name of data, such as imdb", type(source).__name__)
    whole_number(layers, "layers", at_least=1)
    found = [read_kept(one) for one in results_folder().iterdir() if one.name.startswith(PREFIX)]
    chosen = [run for run in found if run.source == source and run.settings.layers == layers]
    return tuple(sorted(chosen, key=lambda run: (-run.settings.learning_rate, run.settings.spread, run.name)))


# ---- parts


def _read(folder: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The facts and the table of a run's folder."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        written = (folder / TABLE).read_bytes()
        table = list(csv.DictReader(StringIO(written.decode("utf-8"), newline="")))
        missing = _NEEDED - set(facts)
        if missing or not facts["history"]["loss"] or not table or not {"token", "a", "b", "count"} <= set(table[0]):
            raise reject("folder", _EXPECTED, f"{str(folder)!r}, where something is missing")
        if facts.get("table", digest(written)) != digest(written):  # earlier versions wrote no digest
            remedy = "Run the same command again: it goes on and writes both."
            raise reject("folder", _EXPECTED, f"{str(folder)!r}, whose two files are of different moments", remedy)
    except OSError as problem:
        raise reject("folder", _EXPECTED, f"{str(folder)!r} ({problem.strerror or problem})") from problem
    except InputError:
        raise
    except _OTHERWISE as problem:
        raise reject("folder", _EXPECTED, f"{str(folder)!r}, which cannot be read") from problem
    return facts, table


def _told(
    facts: Mapping[str, Any], table: Sequence[Mapping[str, str]], data: str | Path | None, folder: Path
) -> dict[str, Any]:
    """What is kept of a run's facts and table."""
    sequences, source = _sequences(facts["data"], data)
    statistics = token_statistics(sequences)
    _check_same(table, statistics, folder)
    return {
        "form": FORM,
        "source": source,
        "settings": TrainingSettings.from_dict(facts["settings"]).to_dict(),
        "ending": facts["ending"],
        "epochs_done": facts["epochs_done"],
        "loss": facts["loss"],
        "accuracy": facts["accuracy"],
        "held_out_loss": facts.get("held_out_loss"),
        "held_out_accuracy": facts.get("held_out_accuracy"),
        "held_out_sequences": facts.get("held_out_sequences", 0),
        "positions": statistics.n_positions,
        "sequences": len(sequences),
        "data": {**facts["data"], "sha256": sequences.fingerprint},
        "command": command_without_paths(facts["command"]),
        "versions": facts["versions"],
        "seconds": round(facts["history"]["seconds"][-1], 1),
        "history": _thinned(facts["history"]),
        "tokens": [row["token"] for row in table] if any(row["token"] for row in table) else None,
        "a": [_rounded(row["a"]) for row in table],
        "b": [_rounded(row["b"]) for row in table],
        "count": statistics.count.tolist(),
        "difference": (statistics.in_positive - statistics.in_negative).tolist(),
    }


def _sequences(told: Mapping[str, Any], data: str | Path | None) -> tuple[LabelledSequences, str]:
    """The sequences that a run was trained on, and what they are called."""
    if "levels" in told:
        if told["levels"] != repr(Levels()):
            raise reject("folder", f"a run on {Levels()!r}", told["levels"])
        return level_sequences(told["sequences"], told["length"], told["seed"]), LEVELS
    if data is None:
        raise reject("data", f"the file {told['file']} that the run was trained on", "none", "Name it with --data.")
    return read_labelled(data, told["split"])[0], Path(told["file"]).stem


def _check_same(table: Sequence[Mapping[str, str]], statistics: TokenStatistics, folder: Path) -> None:
    """Refuse data whose tokens occur otherwise than those of the run."""
    expected = f"the sequences that {str(folder)!r} was trained on"
    if len(table) != len(statistics.count):
        raise reject("data", expected, f"{len(statistics.count)} tokens where the run has {len(table)}")
    counts = np.array([int(row["count"]) for row in table])
    differences = np.array([float(row["posterior_difference"]) for row in table])
    mine = statistics.posterior_difference
    apart = (counts != statistics.count) | ~np.isclose(differences, mine, rtol=0.0, atol=1e-8, equal_nan=True)
    if apart.any():
        s = int(np.argmax(apart))
        raise reject(
            "data", expected, f"{statistics.count[s]} occurrences of token {s} where the run has {counts[s]}, or labels"
        )


def _thinned(history: Mapping[str, Sequence[float | None]]) -> dict[str, list[Any]]:
    """The curves at the first epochs, and then ever more sparsely up to the last."""
    n = len(history["loss"])
    epochs = [k for k in range(1, n + 1) if close_look(k) or k == n]
    recorded = [name for name in CURVES if any(one is not None for one in history.get(name, ()))]
    return {"epoch": epochs, **{name: [_rounded(history[name][k - 1]) for k in epochs] for name in recorded}}


def _rounded(value: Any) -> float | None:
    number = np.nan if value is None else float(value)
    return float(f"{number:.{_DIGITS}g}") if np.isfinite(number) else None


def _numbers(values: Sequence[Any]) -> FloatArray:
    return np.array([np.nan if one is None else one for one in values], dtype=np.float64)


def _kept(name: str, told: dict[str, Any]) -> KeptRun:
    columns = {one: told.pop(one) for one in _COLUMNS}
    names = told.pop("tokens")
    sizes = {len(one) for one in columns.values()} | ({len(names)} if names is not None else set())
    if len(sizes) != 1:
        raise reject("path", "columns of one length", f"lengths {sorted(sizes)}")
    count, difference = (np.array(columns[one], dtype=np.int64) for one in ("count", "difference"))
    positive = (count + difference) // 2
    history = told.pop("history")
    n_epochs = len(history["epoch"])
    return KeptRun(
        name=name,
        source=told.pop("source"),
        settings=TrainingSettings.from_dict(told.pop("settings")),
        names=None if names is None else tuple(names),
        a=_numbers(columns["a"]),
        b=_numbers(columns["b"]),
        statistics=TokenStatistics(positive, count - positive, told.pop("positions")),
        epochs=_numbers(history["epoch"]),
        curves={one: _numbers(history[one]) if one in history else np.full(n_epochs, np.nan) for one in CURVES},
        loss=float(_numbers([told.pop("loss")])[0]),
        accuracy=float(_numbers([told.pop("accuracy")])[0]),
        finished=Ending[told.pop("ending")] is Ending.FINISHED,
        held_out_loss=float(_numbers([told.pop("held_out_loss", None)])[0]),
        held_out_accuracy=float(_numbers([told.pop("held_out_accuracy", None)])[0]),
        facts=told,
    )
