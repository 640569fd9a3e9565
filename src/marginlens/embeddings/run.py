"""`python -m marginlens.embeddings.run`: train on encoded sequences from a file, without the command line's packages."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.data.files import read_labelled
from marginlens.data.labelled import LabelledSequences
from marginlens.data.sequence_generators import Levels, level_sequences
from marginlens.embeddings.models import TrainingSettings
from marginlens.embeddings.train import FACTS, EpochRecord, TrainingRun, train_embeddings
from marginlens.errors import reject
from marginlens.training.loop import Callbacks, epoch_display
from marginlens.training.script import (
    add_run_options,
    check_folder,
    parse_settings,
    run_script,
    time_left,
    versions_on,
)

_SECONDS_BETWEEN_LINES = 5.0
_LENGTH = 256  # tokens of a K-level sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write the result's table and facts to a folder, and say in one line per few seconds how it goes."""
    return run_script(_parser(), _train, arguments)


def _train(options: Any, given: list[str]) -> int:
    left = time_left(options.time_limit)
    check_folder(options.out, "out")
    settings = TrainingSettings.from_dict(parse_settings(options.settings))
    data, names, source = _data(options)
    held_out = None if options.held_out is None else read_labelled(options.data, options.held_out)[0]
    print(f"{data}; {settings}", flush=True)
    facts = {
        "data": source,
        "command": shlex.join(["python", "-m", "marginlens.embeddings.run", *given]),
        "versions": versions_on(settings.device),
        "sequences": len(data),
        "held_out_sequences": 0 if held_out is None else len(held_out),
    }

    def write(so_far: TrainingRun) -> None:
        if so_far.history or not (options.out / FACTS).exists():  # no epochs are no reason to replace another run's
            so_far.write(options.out, names=names, facts=facts)

    quiet = np.errstate(over="ignore", invalid="ignore")  # a run whose numbers overflow ends, and says so
    with quiet, epoch_display(settings.epochs, _describe, seconds_between=_SECONDS_BETWEEN_LINES) as show:
        run = train_embeddings(
            data,
            settings,
            held_out=held_out,
            checkpoint=options.checkpoint,
            every=options.every,
            time_limit=left(),
            callback=Callbacks(show, write),
        )
    run.write(options.out, names=names, facts=facts)
    measured = (
        "" if held_out is None else f"; held out: loss {run.held_out_loss:.4g}, accuracy {run.held_out_accuracy:.4f}"
    )
    print(
        f"{run}, training accuracy {run.accuracy:.4f}{measured}. {run.ending.value} The table is in {options.out}.",
        flush=True,
    )
    return run.ending.exit_code(options.checkpoint)


def _describe(record: EpochRecord) -> str:
    return f"loss {record.loss:.4g}, Spearman {record.correlation_v:+.3f} (v) {record.correlation_p:+.3f} (p)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marginlens.embeddings.run", description=main.__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="FILE", help="a .npz with tokens, offsets, y and names")
    source.add_argument("--levels", type=int, metavar="N", help="N sequences of the K-level model of B's Figure 2")
    parser.add_argument("--split", metavar="NAME", help="only the sequences of this part of the file")
    parser.add_argument("--held-out", metavar="NAME", help="measure loss and accuracy on this part of the file too")
    parser.add_argument("--length", type=int, metavar="T", help=f"tokens of a K-level sequence ({_LENGTH})")
    parser.add_argument("--data-seed", type=int, metavar="K", help="of K-level sequences (0)")
    add_run_options(parser, every=50)
    return parser


def _data(options: Any) -> tuple[LabelledSequences, list[str] | None, dict[str, Any]]:
    for name in ("split", "held_out") if options.data is None else ("length", "data_seed"):
        if getattr(options, name) is not None:
            raise reject(name, f"left out with --{'data' if options.data else 'levels'}", getattr(options, name))
    if options.data is not None:
        return *read_labelled(options.data, options.split), {
            "file": options.data.name,
            "split": options.split,
            "held_out": options.held_out,
        }
    length = _LENGTH if options.length is None else options.length
    seed = options.data_seed or 0
    source = {"levels": repr(Levels()), "sequences": options.levels, "length": length, "seed": seed}
    return level_sequences(options.levels, length, seed), None, source


if __name__ == "__main__":
    sys.exit(main())
