"""Archive of finished training runs: one small JSON file each, in the package's results, from which claims draw their figures.

`python -m marginlens_papers.archive embeddings FOLDER NAME` puts a run of `marginlens embeddings` there,
`python -m marginlens_papers.archive vision FOLDER NAME` one of `marginlens vision`. No file holds text or images.
Its `command` is the one that makes the run today, in the words of today's command line; `versions` says what it was made with.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import read_labelled
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.errors import InputError, reject, whole_number
from marginlens.runtime.files import as_path, json_by_line, write_whole
from marginlens.typing import FloatArray
from marginlens_papers.embeddings.settings import TrainingSettings
from marginlens_papers.embeddings.train import CURVES, FACTS, TABLE, close_look, digest
from marginlens_papers.training.loop import Ending
from marginlens_papers.training.script import in_one_sentence
from marginlens_papers.vision.results import VISION_FORM, VisionCurves, VisionSettings, curves_from, curves_to_dict

LEVELS = "levels"  # what the source of K-level sequences is called
EMBEDDINGS_FORM = "marginlens kept training run 1"
_EMBEDDINGS_PREFIX, _VISION_PREFIX = "embeddings-", "vision-"
_DIGITS = 5  # significant digits of what is drawn
_COLUMNS = ("a", "b", "count", "difference")
_RUN_FOLDER = f"a folder with {TABLE} and {FACTS}, which marginlens embeddings wrote"
_VISION_FOLDER = f"a folder with {FACTS}, which marginlens vision wrote"
_OMITTED_OPTIONS = ("--out", "--checkpoint", "--save-models")
_FILE_OPTIONS = ("--data", "--settings")


@dataclass(frozen=True, repr=False, eq=False)
class ArchivedRun:
    """An archived embedding run: `a` = ⟨E_s, p⟩ and `b` = ⟨E_s, v⟩ (n_vocabulary,) to five digits, counts, and `curves` over `epochs`.

    `source` is the name of the data ("imdb", "yelp", "levels"), `names` what the tokens are called, `loss` and `accuracy` those of all
    training sequences at the end, `held_out_loss` and `held_out_accuracy` those of the held-out ones, NaN without any. `facts` has the
    command, the versions and the SHA-256 of ids, lengths and labels. A run with `finished` False was stopped after its last epoch.
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
        return f"ArchivedRun({self.name}: {self.summary})"

    @property
    def summary(self) -> str:
        """The run in a few words."""
        layers = "one layer" if self.settings.layers == 1 else "two layers"
        stopped = "" if self.finished else f" of {self.settings.epochs}, then stopped"
        return f"{self.source}, {layers}, rate {self.settings.learning_rate:g}, {int(self.epochs[-1])} epochs{stopped}"


@dataclass(frozen=True, repr=False, eq=False)
class ArchivedVisionRun:
    """An archived vision run: its curves and maps, the settings, and the `accuracy` of all test images at the end.

    `facts` has the data's name, counts and SHA-256, the command and the versions. A run with another `ending` than FINISHED stopped
    after its last epoch.
    """

    name: str
    settings: VisionSettings
    curves: VisionCurves
    accuracy: float
    ending: Ending
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        stopped = "" if self.ending is Ending.FINISHED else f" of {self.settings.epochs}, then stopped"
        epochs = f"{int(self.curves.epochs[-1])} epochs{stopped}"
        return f"ArchivedVisionRun({self.name}: {epochs}, accuracy {self.accuracy:.3f})"


# ---- reading


def results_folder() -> Path:
    """The folder of results that come with the package."""
    return Path(str(files("marginlens_papers") / "results"))


@contextmanager
def reading(path: str | Path, form: str, writer: str) -> Iterator[dict[str, Any]]:
    """The values of a file of this form; whatever other contents lead to is refused in one sentence."""
    expected = f"a file that {writer} wrote"
    file = as_path(path, "path", expected)
    with _unreadable_is_refused("path", expected, file):
        values = json.loads(file.read_text(encoding="utf-8"))
        if values["form"] != form:
            raise reject("path", expected, f"{str(file)!r}, of another form")
        yield values


def archived_runs(source: str, layers: int) -> tuple[ArchivedRun, ...]:
    """All embedding runs on this data and of this depth that come with the package, the largest learning rate first."""
    if not isinstance(source, str):
        raise reject("source", "the name of data, such as imdb", type(source).__name__)
    whole_number(layers, "layers", at_least=1)
    runs = [read_run(path) for path in results_folder().iterdir() if path.name.startswith(_EMBEDDINGS_PREFIX)]
    chosen = [run for run in runs if run.source == source and run.settings.layers == layers]
    return tuple(sorted(chosen, key=lambda run: (-run.settings.learning_rate, run.settings.spread, run.name)))


def read_run(path: str | Path) -> ArchivedRun:
    """The run in a file that `archive_run` wrote."""
    with reading(path, EMBEDDINGS_FORM, "archive_run") as values:
        return _run_from(Path(path).stem.removeprefix(_EMBEDDINGS_PREFIX), values)


def archived_vision_run(name: str) -> ArchivedVisionRun:
    """The vision run of this name that comes with the package."""
    return read_vision_run(results_folder() / f"{_VISION_PREFIX}{name}.json")


def read_vision_run(path: str | Path) -> ArchivedVisionRun:
    """The run in a file that `archive_vision_run` wrote."""
    file = Path(path)
    values, curves = _vision_values(file, "path", "a file that archive_vision_run wrote")
    fields = ("form", "settings", "epochs", "curves", "layers", "maps", "accuracy", "ending")
    return ArchivedVisionRun(
        file.stem.removeprefix(_VISION_PREFIX),
        VisionSettings.from_dict(values["settings"]),
        curves,
        float(values["accuracy"]),
        Ending[values["ending"]],
        {name: value for name, value in values.items() if name not in fields},
    )


# ---- writing


def archive_run(
    folder: str | Path,
    name: str,
    *,
    data: str | Path | None = None,
    source: str | None = None,
    into: str | Path | None = None,
) -> Path:
    """Put what `marginlens embeddings` wrote into one small file, and return its path.

    Args:
        folder: the run's `--out`. name: what the run is called, in letters, digits, dots and dashes.
        data: the file it was trained on; its counts must be those of the run. K-level sequences are drawn again.
        source: what the data are called, by which `archived_runs` finds the run; the name of the data's file by default.
        into: where the file goes; by default among the results that come with the package.
    """
    target = _target(_EMBEDDINGS_PREFIX, name, into)
    place = as_path(folder, "folder", _RUN_FOLDER)
    with _unreadable_is_refused("folder", _RUN_FOLDER, place):
        facts, table = _facts_and_table(place)
        values = _run_values(facts, table, data, place)
        if source is not None:
            values["source"] = values["data"]["called"] = _checked_name(source, "source")
        _run_from(name, dict(values))  # what cannot be read again is not written
    write_whole(target, json_by_line(values), "into")
    return target


def archive_vision_run(folder: str | Path, name: str, *, into: str | Path | None = None) -> Path:
    """Put what `marginlens vision` wrote into one small file, and return its path; arguments as of `archive_run`."""
    target = _target(_VISION_PREFIX, name, into)
    values, curves = _vision_values(Path(folder) / FACTS, "folder", _VISION_FOLDER)
    values = {**values, **curves_to_dict(curves), "command": command_without_paths(values["command"])}
    write_whole(target, json_by_line(values), "into")
    return target


def command_without_paths(command: str) -> str:
    """A command without local paths: output options are left out, and input files keep their name without the folder.

    Options may be shortened, as scripts of earlier versions allowed.
    """
    if not isinstance(command, str):  # of which shlex would read the standard input
        raise reject("command", "text", repr(command))
    words, portable = iter(shlex.split(command)), []
    for word in words:
        written, given, value = word.partition("=")
        known = _OMITTED_OPTIONS + _FILE_OPTIONS
        option = next((name for name in known if len(written) > 2 and name.startswith(written)), None)
        if option is None:
            portable.append(word)
            continue
        value = value if given else next(words, "")
        if option in _FILE_OPTIONS:
            portable += [option, value if value.lstrip().startswith("{") else Path(value).name]
    return shlex.join(portable)


def main(arguments: Sequence[str] | None = None) -> int:
    """Put a finished training run into one small file, and say where."""
    parser = argparse.ArgumentParser(prog="python -m marginlens_papers.archive", description=main.__doc__)
    parser.add_argument("kind", choices=("embeddings", "vision"), help="which run script wrote it")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="the run's --out")
    parser.add_argument("name", metavar="NAME", help="what the run is called")
    parser.add_argument("--data", type=Path, metavar="FILE", help="the .npz that embeddings were trained on, if any")
    parser.add_argument("--source", metavar="NAME", help="what the data are called (the name of their file)")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to put it (the package's own results)")
    options = parser.parse_args(None if arguments is None else list(arguments))

    def archive() -> int:
        run: ArchivedRun | ArchivedVisionRun
        if options.kind == "vision":
            place = archive_vision_run(options.folder, options.name, into=options.into)
            run = read_vision_run(place)
        else:
            where = {"data": options.data, "source": options.source, "into": options.into}
            place = archive_run(options.folder, options.name, **where)
            run = read_run(place)
        print(f"{run!r} is in {place}, {place.stat().st_size / 1e3:.0f} kB.")
        return 0

    return in_one_sentence(archive)


# ---- parts


@contextmanager
def _unreadable_is_refused(argument: str, expected: str, path: Path) -> Iterator[None]:
    """Refuse a file of other contents in one sentence, whatever they lead to."""
    try:
        yield
    except InputError:
        raise
    except OSError as problem:
        raise reject(argument, expected, f"{str(path)!r} ({problem.strerror or problem})") from problem
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, csv.Error) as problem:
        raise reject(argument, expected, f"{str(path)!r}, which cannot be read") from problem


def _checked_name(name: Any, argument: str) -> str:
    """The name of an archived run or of its data, which becomes part of a file's name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):
        raise reject(argument, "letters, digits, dots and dashes", repr(name))
    return name


def _target(prefix: str, name: str, into: str | Path | None) -> Path:
    folder = results_folder() if into is None else as_path(into, "into", "a folder")
    return folder / f"{prefix}{_checked_name(name, 'name')}.json"


def _vision_values(path: Path, argument: str, expected: str) -> tuple[dict[str, Any], VisionCurves]:
    with _unreadable_is_refused(argument, expected, path):
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["form"] != VISION_FORM:
            raise reject(argument, expected, f"{str(path)!r}, of another form")
        missing = {"settings", "ending", "accuracy", "data", "command", "versions"} - set(values)
        if missing:
            raise reject(argument, expected, f"{str(path)!r} without {' and '.join(sorted(missing))}")
        return values, curves_from(values)


def _facts_and_table(folder: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    written = (folder / TABLE).read_bytes()
    table = list(csv.DictReader(StringIO(written.decode("utf-8"), newline="")))
    needed = {"settings", "ending", "epochs_done", "loss", "accuracy", "history", "data", "command", "versions"}
    if (
        needed - set(facts)
        or not facts["history"]["loss"]
        or not table
        or not {"token", "a", "b", "count"} <= set(table[0])
    ):
        raise reject("folder", _RUN_FOLDER, f"{str(folder)!r}, where something is missing")
    if facts.get("table", digest(written)) != digest(written):  # earlier versions wrote no digest
        remedy = "Run the same command again: it goes on and writes both."
        raise reject("folder", _RUN_FOLDER, f"{str(folder)!r}, whose two files are of different moments", remedy)
    return facts, table


def _run_values(
    facts: Mapping[str, Any], table: Sequence[Mapping[str, str]], data: str | Path | None, folder: Path
) -> dict[str, Any]:
    """What the archive holds of a run's facts and table."""
    sequences, source = _sequences(facts["data"], data)
    statistics = token_statistics(sequences)
    _check_same(table, statistics, folder)
    history = facts["history"]
    epochs = [k for k in range(1, len(history["loss"]) + 1) if close_look(k) or k == len(history["loss"])]
    recorded = [name for name in CURVES if any(value is not None for value in history.get(name, ()))]
    return {
        "form": EMBEDDINGS_FORM,
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
        "seconds": round(history["seconds"][-1], 1),
        "history": {"epoch": epochs, **{name: [_rounded(history[name][k - 1]) for k in epochs] for name in recorded}},
        "tokens": [row["token"] for row in table] if any(row["token"] for row in table) else None,
        "a": [_rounded(row["a"]) for row in table],
        "b": [_rounded(row["b"]) for row in table],
        "count": statistics.count.tolist(),
        "difference": (statistics.in_positive - statistics.in_negative).tolist(),
    }


def _sequences(description: Mapping[str, Any], data: str | Path | None) -> tuple[LabelledSequences, str]:
    """The sequences that a run was trained on, and what they are called."""
    if "levels" in description:
        if description["levels"] != repr(Levels()):
            raise reject("folder", f"a run on {Levels()!r}", description["levels"])
        return level_sequences(description["sequences"], description["length"], description["seed"]), LEVELS
    if data is None:
        raise reject(
            "data", f"the file {description['file']} that the run was trained on", "none", "Name it with --data."
        )
    return read_labelled(data, description["split"])[0], Path(description["file"]).stem


def _check_same(table: Sequence[Mapping[str, str]], statistics: TokenStatistics, folder: Path) -> None:
    """Refuse data whose tokens occur otherwise than those of the run."""
    expected = f"the sequences that {str(folder)!r} was trained on"
    if len(table) != len(statistics.count):
        raise reject("data", expected, f"{len(statistics.count)} tokens where the run has {len(table)}")
    counts = np.array([int(row["count"]) for row in table])
    differences = np.array([float(row["posterior_difference"]) for row in table])
    agree = np.isclose(differences, statistics.posterior_difference, rtol=0.0, atol=1e-8, equal_nan=True)
    other = (counts != statistics.count) | ~agree
    if other.any():
        s = int(np.argmax(other))
        counted = f"{statistics.count[s]} occurrences of token {s} where the run has {counts[s]}, or labels"
        raise reject("data", expected, counted)


def _run_from(name: str, values: dict[str, Any]) -> ArchivedRun:
    columns = {column: values.pop(column) for column in _COLUMNS}
    names, history = values.pop("tokens"), values.pop("history")
    lengths = {len(column) for column in columns.values()} | ({len(names)} if names is not None else set())
    if len(lengths) != 1:
        raise reject("path", "columns of one length", f"lengths {sorted(lengths)}")
    count, difference = (np.array(columns[column], dtype=np.int64) for column in ("count", "difference"))
    positive = (count + difference) // 2
    missing = [None] * len(history["epoch"])

    def scalar(field: str) -> float:
        return float(_numbers([values.pop(field, None)])[0])

    return ArchivedRun(
        name=name,
        source=values.pop("source"),
        settings=TrainingSettings.from_dict(values.pop("settings")),
        names=None if names is None else tuple(names),
        a=_numbers(columns["a"]),
        b=_numbers(columns["b"]),
        statistics=TokenStatistics(positive, count - positive, values.pop("positions")),
        epochs=_numbers(history["epoch"]),
        curves={curve: _numbers(history.get(curve, missing)) for curve in CURVES},
        loss=scalar("loss"),
        accuracy=scalar("accuracy"),
        finished=Ending[values.pop("ending")] is Ending.FINISHED,
        held_out_loss=scalar("held_out_loss"),
        held_out_accuracy=scalar("held_out_accuracy"),
        facts=values,
    )


def _rounded(value: Any) -> float | None:
    number = np.nan if value is None else float(value)
    return float(f"{number:.{_DIGITS}g}") if np.isfinite(number) else None


def _numbers(values: Sequence[Any]) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


if __name__ == "__main__":
    sys.exit(main())
