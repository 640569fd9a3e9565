"""`marginlens embeddings`: train paper B's embeddings and attention together, on encoded texts or on its K-level sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from marginlens.cli._deferred import errors, terminal
from marginlens.cli._deferred import rows as _rows
from marginlens.cli._exit import errors_as_sentences
from marginlens.cli._options import AsJson, Quiet
from marginlens_papers.training import options as training

_CALLED = {  # what the command calls arguments of the library
    "path": "{file}",
    "rng": "{data_seed}",
    "set": "{assignments}",
    "n_samples": "{levels}",
    "n_tokens": "{length}",
    "folder": "{out}",
}


def embeddings(
    out: training.RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Encoded texts: a .npz that python -m experiments.encode wrote."),
    ] = None,
    split: Annotated[str | None, typer.Option(metavar="PART", help="Train on this part of the file.")] = None,
    held_out: Annotated[
        str | None, typer.Option(metavar="PART", help="Measure loss and accuracy on this part of the file too.")
    ] = None,
    levels: Annotated[
        int | None,
        typer.Option(metavar="N", help="Instead of a file: N sequences of the K-level model of B's Figure 2."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(metavar="T", help="Tokens of a K-level sequence.", show_default="256")
    ] = None,
    data_seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed of the K-level sequences.", show_default="0")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="1|2", help="Of the model: B Eq. (1) or B Eq. (36).", show_default="1")
    ] = None,
    epochs: training.Epochs = None,
    batch: training.Batch = None,
    learning_rate: training.LearningRate = None,
    seed: training.RunSeed = None,
    device: training.Device = None,
    assignments: Annotated[list[str] | None, training.assignments_option("embeddings/settings.py")] = None,
    settings: training.SettingsText = None,
    list_settings: Annotated[
        bool, training.list_settings_option("marginlens_papers.embeddings.settings", "TrainingSettings")
    ] = False,
    checkpoint: training.Checkpoint = None,
    every: Annotated[int, typer.Option(metavar="N", help="Epochs between two checkpoints.")] = 50,
    time_limit: training.TimeLimit = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train token embeddings together with attention, as in paper B's experiments.

    The folder then has the products of every token's embedding with p and v (tokens.csv), which marginlens figure draws, and the settings,
    losses and rank correlations of every epoch (run.json). Settings are the paper's for IMDB and Yelp unless said otherwise;
    --list-settings lists all of them. Exits with 1 where training diverged, or stopped at its time limit without a checkpoint.

    Examples:
        marginlens embeddings ids.npz --split train --held-out held-out --out run
        marginlens embeddings --levels 20000 --epochs 196 --learning-rate 1e-4 --set weight_decay=1e-4 --out run
        marginlens embeddings ids.npz --layers 2 --device cuda --checkpoint run.npz --time-limit 600 --out run
        marginlens embeddings --list-settings
    """
    with errors_as_sentences(**_CALLED, others="{assignments} {argument}"):
        from marginlens_papers.embeddings.run import EmbeddingSource, run_embeddings
        from marginlens_papers.embeddings.settings import TrainingSettings
        from marginlens_papers.training.script import RunRequest

        if file is None and levels is None:
            raise errors.reject("file", "given, or --levels in its place", "none")
        common = {"layers": layers, "epochs": epochs, "batch": batch, "learning_rate": learning_rate}
        chosen = training.chosen_settings(TrainingSettings, settings, assignments, **common, seed=seed, device=device)
        assert isinstance(chosen, TrainingSettings)
        source = EmbeddingSource(file, split, held_out, levels, length, data_seed)
        run = run_embeddings(
            source, chosen, RunRequest(out, checkpoint, every, time_limit), training.speaker(as_json=as_json)
        )
        if as_json:
            facts = {
                "ending": run.ending.name,
                "epochs_done": len(run.history),
                "loss": run.loss,
                "accuracy": run.accuracy,
                "held_out_loss": run.held_out_loss,
                "held_out_accuracy": run.held_out_accuracy,
                "settings": chosen.to_dict(),
                "out": str(out),
            }
            typer.echo(_rows.as_json(facts))
        else:
            measured = f"loss {run.loss:.4g}, training accuracy {run.accuracy:.4f}"
            if held_out is not None:
                measured += f"; held out: loss {run.held_out_loss:.4g}, accuracy {run.held_out_accuracy:.4f}"
            terminal.say(f"{terminal.counted(len(run.history), 'epoch')}: {measured}. {run.ending.value}")
            terminal.say(f"Written to {out}")
        training.leave(run.ending, checkpoint)
