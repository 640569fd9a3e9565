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
from marginlens.probe.inputs import as_inputs
from marginlens.probe.loading import load_model
from marginlens.probe.run import probe_model
from marginlens.probe.settings import ProbeSettings
from marginlens.progress import Progress, Silence

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
        settings: see `ProbeSettings`; the max-margin part and the examples are left out.
        trust_pickle: as in `load_model`.
    Returns:
        Curves of shape (n_checkpoints, n_layers, n_heads), one for each measure.
    """
    folders = checkpoint_folders(places)
    asked = dataclasses.replace(settings or ProbeSettings(), max_margin=False, examples=0, preferences=0)
    watch = progress or Silence()
    watch.expect(len(folders))
    given: Any = None
    found: list[dict[str, Any]] = []
    n_inputs, model = 0, ""
    for folder in folders:
        loaded = load_model(folder, trust_pickle=trust_pickle)
        given = as_inputs(loaded, inputs) if given is None else given
        result = probe_model(loaded, given, asked)
        found.append(dict(result.heads))
        shape = result.heads.nnz.shape
        if shape != found[0]["nnz"].shape:
            first = "{} layers of {} heads".format(*found[0]["nnz"].shape)
            got = "{} with {} layers of {} heads".format(repr(str(folder)), *shape)
            raise reject("places", f"checkpoints of one model, with {first} as the first", got)
        n_inputs, model = result.n_inputs, f"{result.family}, {shape[0]} layers of {shape[1]} heads"
        watch.advance()
    return CheckpointCurves(
        model=model,
        names=tuple(folder.name for folder in folders),
        steps=_steps(folders),
        measures={name: np.stack([one[name] for one in found]) for name in found[0]},
        n_inputs=n_inputs,
    )


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
