"""Probe the checkpoints of a training run, one after the other."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from marginlens.errors import reject
from marginlens.probe.checkpoint_curves import CheckpointCurves
from marginlens.probe.models.inputs import as_inputs
from marginlens.probe.models.loading import load_model
from marginlens.probe.run import probe_model, probe_units
from marginlens.probe.run_margins import is_on_some_heads
from marginlens.probe.settings import ProbeSettings
from marginlens.runtime.progress import Progress, Silence

_NUMBER = re.compile(r"\d+(?=\D*$)")  # the last number of a name: epoch-012, checkpoint-500


def probe_checkpoints(
    places: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    inputs: Any,
    settings: ProbeSettings | None = None,
    *,
    trust_pickle: bool = False,
    progress: Progress | None = None,
) -> CheckpointCurves:
    """The measures of a probe over training: sparsity, norms, margins and selections of every head at every checkpoint.

    Args:
        places: a folder whose subfolders are checkpoints that `save_pretrained` wrote, or such folders in the order of training.
        inputs: what `probe_model` takes, the same for all checkpoints; texts are read with the first checkpoint's tokenizer.
        settings: see `ProbeSettings`; no examples are kept. With `max_margin` the SVM of every head is solved at every checkpoint, on
            queries at the same places, so that each number stands beside its baselines there.
        trust_pickle: as in `load_model`.
    Returns:
        Curves of shape (n_checkpoints, n_layers, n_heads), one for each measure.
    """
    folders = checkpoint_folders(places)
    asked = dataclasses.replace(settings or ProbeSettings(), examples=0)
    watch = progress or Silence()
    given: Any = None
    found: list[dict[str, Any]] = []
    notes: dict[str, int] = {}
    model = ""
    for folder in folders:
        loaded = load_model(folder, trust_pickle=trust_pickle)
        if given is None:
            given = as_inputs(loaded, inputs)
            watch.expect(len(folders) * probe_units(loaded.model, given, asked))
        result = probe_model(loaded, given, asked, progress=_Onward(watch))
        found.append(dict(result.heads) | (dict(result.max_margin) if result.max_margin is not None else {}))
        for note in result.notes:
            notes[note] = notes.get(note, 0) + int(not is_on_some_heads(note))  # said for all checkpoints together
        shape = result.heads.nnz.shape
        if shape != found[0]["nnz"].shape:
            first = "{} layers of {} heads".format(*found[0]["nnz"].shape)
            got = "{} with {} layers of {} heads".format(repr(str(folder)), *shape)
            raise reject("places", f"checkpoints of one model, with {first} as the first", got)
        model = f"{result.family}, {shape[0]} layers of {shape[1]} heads"
    measures = {name: np.stack([one[name] for one in found]) for name in found[0]}
    return CheckpointCurves(
        model=model,
        names=tuple(folder.name for folder in folders),
        steps=_steps(folders),
        measures=measures,
        n_inputs=len(given),
        notes=(
            *(note for note, times in notes.items() if times == len(folders)),
            *_without(measures.get("correlation")),
        ),
    )


def _without(correlation: Any) -> tuple[str, ...]:
    """At how many checkpoints some heads have no max-margin solution, where there are such."""
    missing = np.array([0]) if correlation is None else np.isnan(correlation).sum(axis=(1, 2))
    if not missing.any():
        return ()
    return (
        f"At {int(np.sum(missing > 0))} of {len(missing)} checkpoints some heads, {int(missing.max())} at most, have no max-margin "
        "solution to compare with, since no W makes all their selections or all their queries are tied; the curves leave these heads out.",
    )


class _Onward(Progress):
    """Passes on how far one checkpoint is, where the total was said for all of them."""

    def __init__(self, watch: Progress) -> None:
        super().__init__()
        self._watch = watch

    def expect(self, total: int) -> None:
        """It was said before the first checkpoint."""

    def advance(self, units: int = 1) -> None:
        """Units of this checkpoint are units of all."""
        self._watch.advance(units)


def checkpoint_folders(places: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The folders of checkpoints in the order of training: of a folder, its subfolders with a config.json by their last number."""
    expected = "a folder with at least two checkpoints, subfolders that save_pretrained wrote, such as epoch-001"
    if not isinstance(places, str | os.PathLike):
        folders = [Path(one) for one in places]
    else:
        if not Path(places).is_dir():
            raise reject("places", expected, f"{str(places)!r}, which is no folder")
        folders = sorted((one.parent for one in Path(places).glob("*/config.json")), key=_order)
    if len(folders) < 2:
        raise reject("places", expected, f"{len(folders)} of them" if folders else f"none in {str(places)!r}")
    return folders


def _order(folder: Path) -> tuple[float, str]:
    number = _NUMBER.search(folder.name)
    return float("inf") if number is None else float(number.group()), folder.name


def _steps(folders: Sequence[Path]) -> Any:
    """The numbers in the folders' names where all have one and they increase, else 0, 1, 2, …"""
    numbers = np.array([_order(folder)[0] for folder in folders])
    increasing = np.isfinite(numbers).all() and bool(np.all(np.diff(numbers) > 0.0))
    return numbers if increasing else np.arange(float(len(folders)))
