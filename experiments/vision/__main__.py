"""`python -m experiments.vision`: train the vision transformers of paper A's Figures 6 and 7, and see attention get sparser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.training.options import add_options, chosen_settings, request_of
from experiments.training.script import in_one_sentence, say
from experiments.vision.run import SavedModels, run_vision
from experiments.vision.settings import VisionTrainingSettings
from marginlens.errors import InputError

_EPILOG = "It ends with 1 if training diverged, or stopped at its time limit without a checkpoint."


def command_parser() -> argparse.ArgumentParser:
    """What can be typed behind `python -m experiments.vision`."""
    parser = argparse.ArgumentParser(prog="python -m experiments.vision", description=main.__doc__, epilog=_EPILOG)
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="a .npz with x_train, y_train, x_test and y_test, or a folder of CIFAR-10's binary batches",
    )
    parser.add_argument(
        "--digits", action="store_true", help="instead of a file: scikit-learn's digits of 8 by 8 pixels"
    )
    add_options(parser, VisionTrainingSettings, every=10)
    parser.add_argument("--save-models", type=Path, metavar="FOLDER", help="save models there, as epoch-NNN")
    parser.add_argument("--save-every", type=int, metavar="N", help="epochs between two saved models")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a vision transformer, and measure after every epoch how sparse its attention is and how large its weights are."""
    options = command_parser().parse_args(arguments)

    def train() -> int:
        if (options.file is None) != options.digits:
            expected = "left out with --digits" if options.digits else "given, or --digits in its place"
            raise InputError("file", expected, "both" if options.digits else "none")
        models = SavedModels(options.save_models, options.save_every)
        settings = chosen_settings(VisionTrainingSettings, options)
        run = run_vision(options.file, settings, request_of(options), models, say)
        done, last = int(run.curves.epochs[-1]), run.curves.by_layer["sparsity"][-1, -1]
        measured = f"nnz/T {last:.3f} in the last layer, test accuracy {run.accuracy:.4f}"
        print(f"After {done} epochs: {measured}. {run.ending.value}\nWritten to {options.out}")
        return run.ending.exit_code(options.checkpoint)

    return in_one_sentence(train)


if __name__ == "__main__":
    sys.exit(main())
