"""`python -m marginlens_papers.vision.run`: train a ViT on images from a file, without the command line's packages."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from marginlens_papers.vision.images import LabelledImages, digit_images, read_images
from marginlens_papers.vision.results import FACTS, VisionEpochRecord, VisionRun, VisionSettings
from marginlens_papers.vision.training import train_vision


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write curves, maps and facts to one file in a folder, and say how it goes, epoch by epoch."""
    return run_script(_parser(), _train, arguments)


def _train(options: Any, given: list[str]) -> int:
    left = time_left(options.time_limit)
    check_folder(options.out, "out")
    settings = VisionSettings.from_dict(parse_settings(options.settings))
    if (options.save_models is None) != (options.save_every is None):
        raise reject("save_models", "named together with save_every", "one of the two")
    data, source = _data(options)
    print(f"{data}; {settings}", flush=True)
    facts = {
        "data": {**source, **data.to_dict()},
        "command": shlex.join(["python", "-m", "marginlens_papers.vision.run", *given]),
        "versions": versions_on(settings.device),
    }

    def write(so_far: VisionRun) -> None:
        if (
            so_far.curves.epochs[-1] or not (options.out / FACTS).exists()
        ):  # no epochs are no reason to replace another run's
            so_far.write(options.out, facts)

    with epoch_display(settings.epochs, _describe) as show:
        run = train_vision(
            data,
            settings,
            checkpoint=options.checkpoint,
            every=options.every,
            time_limit=left(),
            save_models=None if options.save_models is None else (options.save_models, options.save_every),
            callback=Callbacks(show, write),
        )
    run.write(options.out, facts)
    print(f"{run}, test accuracy {run.accuracy:.4f}. {run.ending.value} The curves are in {options.out}.", flush=True)
    return run.ending.exit_code(options.checkpoint)


def _describe(record: VisionEpochRecord) -> str:
    return f"accuracy {record.test_accuracy:.3f}, nnz/T {record.sparsity[-1]:.3f}, ‖W‖ {record.norm[-1]:.4g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marginlens_papers.vision.run", description=main.__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="PATH", help="a .npz, or a folder of CIFAR-10's binary batches")
    source.add_argument("--digits", action="store_true", help="scikit-learn's digits of 8 by 8 pixels")
    add_run_options(parser, every=10)
    parser.add_argument("--save-models", type=Path, metavar="FOLDER", help="where models go, as epoch-NNN")
    parser.add_argument("--save-every", type=int, metavar="N", help="epochs between two saved models")
    return parser


def _data(options: Any) -> tuple[LabelledImages, dict[str, Any]]:
    if options.digits:
        return digit_images(), {"file": None}
    return read_images(options.data), {"file": options.data.name}


if __name__ == "__main__":
    sys.exit(main())
