"""A whole training run of a ViT on images from a file, or on digits: what it is asked for, and what it leaves in a folder."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from experiments.training.loop import Callbacks, epoch_display
from experiments.training.script import RunRequest, beginning, check_folder, time_left, versions_on
from experiments.vision.images import facts_of, read_images, summary_of
from experiments.vision.settings import VisionTrainingSettings
from experiments.vision.training import FACTS, FinishedVision, train_vision
from marginlens.errors import InputError
from marginlens_papers.claims.a.vision_runs import VisionEpochRecord
from marginlens_papers.claims.a.vision_training import digit_images

_COMMAND = ("python", "-m", "experiments.vision")


class SavedModels(NamedTuple):
    """Where models go, as epoch-NNN, and after how many epochs each; both None for no models."""

    folder: Path | None = None
    every: int | None = None


NO_MODELS = SavedModels()


def run_vision(
    data: Path | None,
    settings: VisionTrainingSettings,
    request: RunRequest,
    models: SavedModels = NO_MODELS,
    say: Callable[[str], None] | None = None,
) -> FinishedVision:
    """Train, and write curves, maps and facts to one file in a folder, also whenever a checkpoint is written.

    Args:
        data: a .npz, or a folder of CIFAR-10's binary batches; None for scikit-learn's digits.
        say: gets a sentence about the data at the start; with None, nothing about progress is shown either.
    """
    left = time_left(request.time_limit)
    check_folder(request.out, "out")
    if (models.folder is None) != (models.every is None):
        raise InputError("save_models", "a folder that comes with how often to save", "one of the two")
    images = digit_images() if data is None else read_images(data)
    if say is not None:
        say(beginning(summary_of(images), settings))
    source = "--digits" if data is None else data.name
    saving = [] if models.every is None else ["--save-every", str(models.every)]
    facts: dict[str, Any] = {
        "data": {"file": None if data is None else data.name, **facts_of(images)},
        "command": shlex.join([*_COMMAND, source, *request.words(settings), *saving]),
        "versions": versions_on(settings.device),
    }

    def write(so_far: FinishedVision) -> None:
        if so_far.curves.epochs[-1] or not (request.out / FACTS).exists():  # no epochs replace no other run's
            so_far.write(request.out, facts)

    with epoch_display(settings.epochs, _describe, shown=say is not None) as show:
        run = train_vision(
            images,
            settings,
            checkpoint=request.checkpoint,
            every=request.every,
            time_limit=left(),
            save_models=None if models.folder is None or models.every is None else (models.folder, models.every),
            callback=Callbacks(show, write),
        )
    run.write(request.out, facts)
    return run


def _describe(record: VisionEpochRecord) -> str:
    return f"accuracy {record.test_accuracy:.3f}, nnz/T {record.sparsity[-1]:.3f}, ‖W‖ {record.norm[-1]:.4g}"
