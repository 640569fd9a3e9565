"""`marginlens vision`: train the vision transformers of paper A's Figures 6 and 7, and see attention get sparser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marginlens.cli._deferred import errors, rows, terminal
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens_papers.training import options as training


def vision(
    out: training.RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Images: a .npz with x_train, y_train, x_test and y_test, or a folder of CIFAR-10's binary batches.",
        ),
    ] = None,
    digits: Annotated[
        bool, typer.Option("--digits", help="Instead of a file: scikit-learn's digits of 8 by 8 pixels.")
    ] = False,
    epochs: training.Epochs = None,
    batch: training.Batch = None,
    learning_rate: training.LearningRate = None,
    seed: training.RunSeed = None,
    device: training.Device = None,
    assignments: Annotated[list[str] | None, training.assignments_option("vision/results.py")] = None,
    settings: training.SettingsText = None,
    list_settings: Annotated[
        bool, training.list_settings_option("marginlens_papers.vision.results", "VisionSettings")
    ] = False,
    checkpoint: training.Checkpoint = None,
    every: Annotated[int, typer.Option(metavar="N", help="Epochs between two checkpoints.")] = 10,
    time_limit: training.TimeLimit = None,
    save_models: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save models there, as epoch-NNN, which probe reads.")
    ] = None,
    save_every: Annotated[int | None, typer.Option(metavar="N", help="Epochs between two saved models.")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train a vision transformer, and measure after every epoch how sparse its attention is and how large its weights are.

    The folder then has curves, attention maps and settings in one file (run.json). Settings are ViT-base at the paper's rate unless
    said otherwise; --list-settings lists all of them. Exits with 1 where training diverged, or stopped at its time limit without a
    checkpoint.

    Examples:
        marginlens vision --digits --epochs 20 --set width=32 --set heads=2 --set layers=2 --set mlp=64 --out run
        marginlens vision cifar10.npz --device cuda --set precision=bfloat16 --checkpoint run.npz --time-limit 600 --out run
        marginlens vision --list-settings
    """
    with errors_as_sentences(
        path="{file}", data="{file}", set="{assignments}", folder="{out}", others="{assignments} {argument}"
    ):
        from marginlens_papers.training.script import RunRequest
        from marginlens_papers.vision.results import VisionSettings
        from marginlens_papers.vision.run import SavedModels, run_vision

        if (file is None) != digits:
            expected = "left out beside --digits" if digits else "given, or --digits in its place"
            raise errors.reject("file", expected, "both" if digits else "none")
        common = {"epochs": epochs, "batch": batch, "learning_rate": learning_rate, "seed": seed, "device": device}
        chosen = training.chosen_settings(VisionSettings, settings, assignments, **common)
        assert isinstance(chosen, VisionSettings)
        models = SavedModels(save_models, save_every)
        request = RunRequest(out, checkpoint, every, time_limit)
        run = run_vision(file, chosen, request, models, training.speaker(as_json=as_json))
        if as_json:
            facts = {"ending": run.ending.name, "epochs_done": int(run.curves.epochs[-1]), "accuracy": run.accuracy}
            typer.echo(rows.as_json({**facts, "settings": chosen.to_dict(), "out": str(out)}))
        else:
            curves = run.curves
            measured = (
                f"nnz/T {curves.by_layer['sparsity'][-1, -1]:.3f} in the last layer, test accuracy {run.accuracy:.4f}"
            )
            terminal.say(f"{terminal.counted(int(curves.epochs[-1]), 'epoch')}: {measured}. {run.ending.value}")
            terminal.say(f"Written to {out}")
        training.leave(run.ending, checkpoint)
