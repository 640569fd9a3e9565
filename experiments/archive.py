"""Small tables of finished training runs: one JSON file each, among the package's results, which claims read.

`python -m experiments.archive embeddings FOLDER NAME` puts a run of `experiments.embeddings` there,
`python -m experiments.archive vision FOLDER NAME` one of `experiments.vision`. No file holds text or images.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from experiments.embeddings.settings import TrainingSettings
from experiments.embeddings.train import FACTS, TABLE, close_look, digest
from experiments.training.loop import Ending
from experiments.training.script import in_one_sentence, rounded
from experiments.vision.settings import VisionTrainingSettings
from marginlens.data.files import read_labelled
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.embeddings.statistics import TokenStatistics, token_statistics
from marginlens.errors import InputError
from marginlens.runtime.files import as_path, json_by_line, write_whole
from marginlens_papers.claims.a import vision_runs
from marginlens_papers.claims.a.vision_runs import VisionRun
from marginlens_papers.claims.b import embedding_runs
from marginlens_papers.claims.b.embedding_runs import CURVES, LEVELS, EmbeddingRun
from marginlens_papers.tables import read_file, results_folder, unreadable_is_refused

_DIGITS = 5  # significant digits of what is drawn
_RUN_FOLDER = f"a folder with {TABLE} and {FACTS}, which python -m experiments.embeddings wrote"
_VISION_FOLDER = f"a folder with {FACTS}, which python -m experiments.vision wrote"
_OMITTED_OPTIONS = ("--out", "--checkpoint", "--save-models")
_FILE_OPTIONS = ("--data", "--settings")


def archive_run(
    folder: str | Path,
    name: str,
    *,
    data: str | Path | None = None,
    source: str | None = None,
    into: str | Path | None = None,
) -> Path:
    """Put what `python -m experiments.embeddings` wrote into one small file, and return its path.

    Args:
        folder: the run's `--out`. name: what the run is called, in letters, digits, dots and dashes.
        data: the file it was trained on; its counts must be those of the run. K-level sequences are drawn again.
        source: what the data are called, by which claims find the run; the name of the data's file by default.
        into: where the file goes; by default among the results that come with the package.
    """
    target = _target(embedding_runs.PREFIX, name, into)
    place = as_path(folder, "folder", _RUN_FOLDER)
    with unreadable_is_refused("folder", _RUN_FOLDER, place):
        facts, table = _facts_and_table(place)
        values = _run_values(facts, table, data, place)
        if source is not None:
            values["source"] = values["data"]["called"] = _checked_name(source, "source")
        TrainingSettings.from_dict(values["settings"])
        EmbeddingRun.from_table(name, dict(values))  # what cannot be read again is not written
    write_whole(target, json_by_line(share_columns(values) if into is None else values), "into")
    return target


def share_columns(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a run, with the name of a packaged vocabulary in place of the columns that it already has."""
    for path in sorted(results_folder().glob("vocabulary-*.json")):
        if all(values[name] == column for name, column in embedding_runs.shared_columns(path.stem).items()):
            others = {name: value for name, value in values.items() if name not in embedding_runs.SHARED_COLUMNS}
            return others | {"vocabulary": path.stem}
    return values


def archive_vision_run(folder: str | Path, name: str, *, into: str | Path | None = None) -> Path:
    """Put what `python -m experiments.vision` wrote into one small file, and return its path; arguments as of `archive_run`."""
    target = _target(vision_runs.PREFIX, name, into)
    place = as_path(folder, "folder", _VISION_FOLDER)
    with unreadable_is_refused("folder", _VISION_FOLDER, place):
        values = json.loads((place / FACTS).read_text(encoding="utf-8"))
        values["command"] = command_without_paths(values["command"])
        VisionTrainingSettings.from_dict(values["settings"])
        is_whole = {"data", "versions"} <= set(values) and values["ending"] in Ending.__members__
        if values["form"] != VisionRun.FORM or not is_whole:
            raise ValueError("of another form")
        VisionRun.from_table(name, dict(values))
    write_whole(target, json_by_line(values), "into")
    return target


def command_without_paths(command: str) -> str:
    """A command without local paths: output options are left out, and input files keep their name without the folder.

    Options may be shortened, as scripts of earlier versions allowed.
    """
    if not isinstance(command, str):  # of which shlex would read the standard input
        raise InputError("command", "text", repr(command))
    words, portable = iter(shlex.split(command)), []
    for word in words:
        written, given, value = word.partition("=")
        replaced = _OMITTED_OPTIONS + _FILE_OPTIONS
        option = next((name for name in replaced if len(written) > 2 and name.startswith(written)), None)
        if option is None:
            portable.append(word)
            continue
        value = value if given else next(words, "")
        if option in _FILE_OPTIONS:
            portable += [option, value if value.lstrip().startswith("{") else Path(value).name]
    return shlex.join(portable)


def main(arguments: Sequence[str] | None = None) -> int:
    """Put a finished training run into one small file, and say where."""
    parser = argparse.ArgumentParser(prog="python -m experiments.archive", description=main.__doc__)
    parser.add_argument("kind", choices=("embeddings", "vision"), help="which run wrote it")
    parser.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="the run's --out")
    parser.add_argument("name", metavar="NAME", help="what the run is called")
    parser.add_argument("--data", type=Path, metavar="FILE", help="the .npz that embeddings were trained on, if any")
    parser.add_argument("--source", metavar="NAME", help="what the data are called (the name of their file)")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="where to put it (the package's own results)")
    options = parser.parse_args(None if arguments is None else list(arguments))

    def archive() -> int:
        run: EmbeddingRun | VisionRun
        if options.kind == "vision":
            place = archive_vision_run(options.folder, options.name, into=options.into)
            run = read_file(place, VisionRun)
        else:
            given = {"data": options.data, "source": options.source, "into": options.into}
            place = archive_run(options.folder, options.name, **given)
            run = read_file(place, EmbeddingRun)
        print(f"{run!r} is in {place}, {place.stat().st_size / 1e3:.0f} kB.")
        return 0

    return in_one_sentence(archive)


# ---- parts


def _checked_name(name: Any, argument: str) -> str:
    """The name of an archived run or of its data, which becomes part of a file's name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name):
        raise InputError(argument, "letters, digits, dots and dashes", repr(name))
    return name


def _target(prefix: str, name: str, into: str | Path | None) -> Path:
    folder = results_folder() if into is None else as_path(into, "into", "a folder")
    return folder / f"{prefix}{_checked_name(name, 'name')}.json"


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
        raise InputError("folder", _RUN_FOLDER, f"{str(folder)!r}, which lacks something")
    if facts.get("table", digest(written)) != digest(written):  # earlier versions wrote no digest
        remedy = "Run the same command again: it goes on and writes both."
        raise InputError("folder", _RUN_FOLDER, f"{str(folder)!r}, whose two files are of different moments", remedy)
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
        "form": EmbeddingRun.FORM,
        "source": source,
        "settings": TrainingSettings.from_dict(facts["settings"]).to_dict(),
        "ending": Ending[facts["ending"]].name,
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
        "history": {
            "epoch": epochs,
            **{name: [rounded(history[name][k - 1], _DIGITS) for k in epochs] for name in recorded},
        },
        "tokens": [row["token"] for row in table] if any(row["token"] for row in table) else None,
        "a": [rounded(float(row["a"]), _DIGITS) for row in table],
        "b": [rounded(float(row["b"]), _DIGITS) for row in table],
        "count": statistics.count.tolist(),
        "difference": (statistics.in_positive - statistics.in_negative).tolist(),
    }


def _sequences(description: Mapping[str, Any], data: str | Path | None) -> tuple[LabelledSequences, str]:
    """The sequences that a run was trained on, and what they are called."""
    if "levels" in description:
        if description["levels"] != repr(Levels()):
            raise InputError("folder", f"a run on {Levels()!r}", description["levels"])
        return level_sequences(description["sequences"], description["length"], description["seed"]), LEVELS
    if data is None:
        raise InputError(
            "data", f"the file {description['file']} that the run was trained on", "none", "Name it with --data."
        )
    return read_labelled(data, description["split"])[0], Path(description["file"]).stem


def _check_same(table: Sequence[Mapping[str, str]], statistics: TokenStatistics, folder: Path) -> None:
    """Refuse data whose tokens occur otherwise than those of the run."""
    expected = f"the sequences that {str(folder)!r} was trained on"
    if len(table) != len(statistics.count):
        raise InputError("data", expected, f"{len(statistics.count)} tokens; the run has {len(table)}")
    counts = np.array([int(row["count"]) for row in table])
    differences = np.array([float(row["posterior_difference"]) for row in table])
    agree = np.isclose(differences, statistics.posterior_difference, rtol=0.0, atol=1e-8, equal_nan=True)
    other = (counts != statistics.count) | ~agree
    if other.any():
        s = int(np.argmax(other))
        counted = f"{statistics.count[s]} occurrences of token {s} where the run has {counts[s]}, or other labels"
        raise InputError("data", expected, counted)


if __name__ == "__main__":
    sys.exit(main())
