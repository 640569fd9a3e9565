"""`python -m marginlens.embeddings.run`: train on encoded sequences from a file, where only NumPy, SciPy, numba and torch are at hand."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marginlens
from marginlens.data.labelled import LabelledSequences
from marginlens.data.levels import Levels, level_sequences
from marginlens.embeddings.display import watched
from marginlens.embeddings.results import Ending
from marginlens.embeddings.sequence_file import read_labelled
from marginlens.embeddings.settings import TrainingSettings
from marginlens.embeddings.training import train_embeddings
from marginlens.errors import InputError, MissingExtra, reject

EXIT_UNUSABLE, EXIT_INTERRUPTED = 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write the result's table and facts to a folder, and say in one line per few seconds how it goes."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        data, names, source = _data(options)
        settings = TrainingSettings.of(_settings(options.settings))
        print(f"{data}; {settings}", flush=True)
        with watched(settings.epochs) as watch:
            run = train_embeddings(
                data,
                settings,
                checkpoint=options.checkpoint,
                every=options.every,
                time_limit=options.time_limit,
                watch=watch,
            )
        facts = {"data": source, "command": shlex.join(["python", "-m", "marginlens.embeddings.run", *given])}
        run.write(options.out, names=names, facts={**facts, "versions": _versions(settings), "sequences": len(data)})
    except (InputError, MissingExtra, OSError) as problem:
        print(f"marginlens: {problem}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        kept = f"; {options.checkpoint} holds where to go on" if options.checkpoint else ""
        print(f"marginlens: interrupted{kept}.", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(f"{run}, accuracy {run.accuracy:.4f}. {run.ending.value} The table is in {options.out}.", flush=True)
    return 0 if run.ending is Ending.FINISHED or options.checkpoint else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marginlens.embeddings.run", description=main.__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="FILE", help="a .npz with tokens, offsets, y and names")
    source.add_argument("--levels", type=int, metavar="N", help="N sequences of the K-level model of B's Figure 2")
    parser.add_argument("--split", metavar="NAME", help="only the sequences of this part of the file")
    parser.add_argument("--length", type=int, default=256, metavar="T", help="tokens of a K-level sequence (256)")
    parser.add_argument("--data-seed", type=int, default=0, metavar="K", help="of K-level sequences (0)")
    parser.add_argument(
        "--settings", default="{}", metavar="JSON", help="settings by name, as JSON or a file that holds it"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the table and the facts go")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="kept up to date; the run goes on from it")
    parser.add_argument("--every", type=int, default=50, metavar="N", help="epochs between checkpoints (50)")
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop in good order after S seconds")
    return parser


def _data(options: Any) -> tuple[LabelledSequences, list[str] | None, dict[str, Any]]:
    if options.data is not None:
        return *read_labelled(options.data, options.split), {"file": options.data.name, "split": options.split}
    told = {"levels": repr(Levels()), "sequences": options.levels, "length": options.length, "seed": options.data_seed}
    return level_sequences(options.levels, options.length, options.data_seed), None, told


def _settings(text: str) -> dict[str, Any]:
    place = Path(text)
    try:
        told = json.loads(text if text.lstrip().startswith("{") else place.read_text())
    except (OSError, ValueError) as problem:
        raise reject("settings", "a JSON object, or a file that holds one", repr(text)) from problem
    if not isinstance(told, dict):
        raise reject("settings", "a JSON object, or a file that holds one", repr(text))
    return told


def _versions(settings: TrainingSettings) -> dict[str, str]:
    from marginlens.versions import versions

    found = {**versions(), "marginlens": marginlens.__version__}
    if settings.device != "cpu":
        import torch

        found["device"] = torch.cuda.get_device_name(settings.device)
    return found


if __name__ == "__main__":
    sys.exit(main())
