"""`python -m experiments.embeddings`: train paper B's embeddings and attention together, on encoded texts or on its K-level sequences."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.embeddings.run import LENGTH, EmbeddingSource, run_embeddings
from experiments.embeddings.settings import TrainingSettings
from experiments.training.options import add_options, chosen_settings, request_of
from experiments.training.script import in_one_sentence, say

_EPILOG = "It ends with 1 if training diverged, or stopped at its time limit without a checkpoint."


def command_parser() -> argparse.ArgumentParser:
    """What can be typed behind `python -m experiments.embeddings`."""
    parser = argparse.ArgumentParser(prog="python -m experiments.embeddings", description=main.__doc__, epilog=_EPILOG)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="a .npz that experiments.encode wrote")
    parser.add_argument("--split", metavar="PART", help="train on this part of the file")
    parser.add_argument("--held-out", metavar="PART", help="measure loss and accuracy on this part of the file too")
    parser.add_argument("--levels", type=int, metavar="N", help="instead of a file: N sequences of B's Figure 2")
    parser.add_argument("--length", type=int, metavar="T", help=f"tokens of a K-level sequence ({LENGTH})")
    parser.add_argument("--data-seed", type=int, metavar="N", help="random seed of the K-level sequences (0)")
    parser.add_argument("--layers", type=int, metavar="1|2", help="of the model: B Eq. (1) or B Eq. (36) (1)")
    add_options(parser, TrainingSettings, every=50)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Train token embeddings together with attention, as in paper B's experiments.

    The folder then has the products of every token's embedding with p and v (tokens.csv), and the settings, losses and rank
    correlations of every epoch (run.json).
    """
    options = command_parser().parse_args(arguments)

    def train() -> int:
        asked = (options.split, options.held_out, options.levels, options.length, options.data_seed)
        settings = chosen_settings(TrainingSettings, options)
        run = run_embeddings(EmbeddingSource(options.file, *asked), settings, request_of(options), say)
        measured = f"loss {run.loss:.4g}, training accuracy {run.accuracy:.4f}"
        if options.held_out is not None:
            measured += f"; held out: loss {run.held_out_loss:.4g}, accuracy {run.held_out_accuracy:.4f}"
        print(f"After {len(run.history)} epochs: {measured}. {run.ending.value}\nWritten to {options.out}")
        return run.ending.exit_code(options.checkpoint)

    return in_one_sentence(train)


if __name__ == "__main__":
    sys.exit(main())
