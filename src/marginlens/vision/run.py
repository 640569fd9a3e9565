"""`python -m marginlens.vision.run`: train a ViT on images from a file, where rich and the command line's packages need not be."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import marginlens
from marginlens.embeddings.run import EXIT_INTERRUPTED, EXIT_UNUSABLE, _settings
from marginlens.errors import InputError, MissingExtra, reject
from marginlens.vision.display import watched
from marginlens.vision.image_files import read_images
from marginlens.vision.images import LabelledImages, digit_images
from marginlens.vision.results import Ending
from marginlens.vision.settings import VisionSettings
from marginlens.vision.training import train_vision


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write curves, maps and facts to one file in a folder, and say how it goes, epoch by epoch."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    try:
        data, source = _data(options)
        settings = VisionSettings.of(_settings(options.settings))
        if (options.save_models is None) != (options.save_every is None):
            raise reject("save_models", "named together with save_every", "one of the two")
        print(f"{data}; {settings}", flush=True)
        with watched(settings.epochs) as watch:
            run = train_vision(
                data,
                settings,
                checkpoint=options.checkpoint,
                every=options.every,
                time_limit=options.time_limit,
                save_models=None if options.save_models is None else (options.save_models, options.save_every),
                watch=watch,
            )
        facts = {
            "data": {**source, **data.told()},
            "command": shlex.join(["python", "-m", "marginlens.vision.run", *given]),
            "versions": _versions(settings),
        }
        run.write(options.out, facts)
    except (InputError, MissingExtra, OSError) as problem:
        print(f"marginlens: {problem}", file=sys.stderr)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        kept = f"; {options.checkpoint} holds where to go on" if options.checkpoint else ""
        print(f"marginlens: interrupted{kept}.", file=sys.stderr)
        return EXIT_INTERRUPTED
    print(f"{run}, test accuracy {run.accuracy:.4f}. {run.ending.value} The curves are in {options.out}.", flush=True)
    stopped = run.ending is Ending.TIME_LIMIT and options.checkpoint
    return 0 if run.ending is Ending.FINISHED or stopped else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marginlens.vision.run", description=main.__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data", type=Path, metavar="PATH", help="a .npz, or a folder of CIFAR-10's python or binary batches"
    )
    source.add_argument("--digits", action="store_true", help="scikit-learn's digits of 8 × 8 pixels")
    parser.add_argument(
        "--settings", default="{}", metavar="JSON", help="settings by name, as JSON or a file that holds it"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where curves, maps and facts go")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="kept up to date; the run goes on from it")
    parser.add_argument("--every", type=int, default=10, metavar="N", help="epochs between checkpoints (10)")
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop in good order after S seconds")
    parser.add_argument("--save-models", type=Path, metavar="FOLDER", help="where models go, as epoch-NNN")
    parser.add_argument("--save-every", type=int, metavar="N", help="epochs between two saved models")
    return parser


def _data(options: Any) -> tuple[LabelledImages, dict[str, Any]]:
    if options.digits:
        return digit_images(), {"file": None}
    return read_images(options.data), {"file": options.data.name}


def _versions(settings: VisionSettings) -> dict[str, str]:
    from importlib.metadata import version

    from marginlens.versions import versions

    found = {**versions(), "transformers": version("transformers"), "marginlens": marginlens.__version__}
    if settings.device != "cpu":
        import torch

        found["device"] = torch.cuda.get_device_name(settings.device)
    return found


if __name__ == "__main__":
    sys.exit(main())
